"""What libraries need: read wherever the names are, however the bytes come, and nothing of what is no library."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.image.elf import Dynamic, DynamicScan, NotKept, Read, dynamic_of
from envspec.image.libraries import LibraryObserver
from envspec.image.sources.wheel import Scheme, WheelSource
from envspec.io.cache import read_wheel_content, write_wheel_content
from envspec.models import GpuCodeFound, Library, WheelContent
from tests.support.builders.cuda_library import library
from tests.support.builders.elf_library import Names, elf
from tests.support.builders.entries import content as content_of
from tests.support.builders.wheel_trees import locked
from tests.support.builders.zips import FILE, write_wheel

_NEEDS = ("libGL.so.1", "libc.so.6")
_FOUND = Dynamic(_NEEDS, "libx.so.2", ("$ORIGIN", "$ORIGIN/../y.libs"))
_SHA256 = "5" * 64
_MIB = 1 << 20


def _elf(names: Names = Names.FIRST, **sizes: int) -> bytes:
    return elf(_NEEDS, soname="libx.so.2", runpath="$ORIGIN:$ORIGIN/../y.libs", names=names, **sizes)


def _reader(data: bytes) -> Read:
    return lambda start, end: data[start:end]


def _scanned(data: bytes, *cuts: int) -> Dynamic | None:
    scan = DynamicScan()
    for start, end in itertools.pairwise([0, *sorted(place % len(data) for place in cuts), len(data)]):
        scan.add(data[start:end])
    return dynamic_of(scan.read)


@pytest.mark.parametrize("names", Names)
def test_a_library_at_once(names: Names) -> None:
    assert dynamic_of(_reader(_elf(names, head=100, code=100))) == _FOUND


@settings(deadline=None)
@given(st.sampled_from(Names), st.lists(st.integers(0, 4 * _MIB), max_size=6))
def test_the_pieces_in_which_it_comes_do_not_matter(names: Names, cuts: list[int]) -> None:
    assert _scanned(_elf(names, code=2 * _MIB, gap=_MIB + 5), *cuts) == _FOUND


def test_names_in_the_middle_are_not_kept() -> None:
    data = _elf(head=_MIB, code=3 * _MIB)
    with pytest.raises(NotKept) as missing:
        _scanned(data, 600_000, 2 * _MIB)
    assert b"libGL.so.1\0" in data[missing.value.start : missing.value.end]


@pytest.mark.parametrize(
    "data",
    [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60), library([]), _elf()[:150], b"\x7fELF\2\1" + b"\xff" * 200],
    ids=["empty", "a script", "32 bits", "linked statically", "cut short", "damaged"],
)
def test_what_is_none(data: bytes) -> None:
    assert dynamic_of(_reader(data)) is None
    assert not data or _scanned(data, 7) is None


@given(st.integers(0, 700), st.binary(min_size=1, max_size=8))
def test_damage_raises_nothing(place: int, noise: bytes) -> None:
    data = bytearray(_elf())
    place %= len(data)
    data[place : place + len(noise)] = noise
    dynamic_of(_reader(bytes(data)))


@pytest.mark.skipif(sys.platform != "linux", reason="needs ELF programs")
def test_what_the_linker_wrote() -> None:
    """`ldd`'s first words of this Python: every library that it needs directly is in what the loader lists."""
    path = Path(sys.executable).resolve()
    found = dynamic_of(_reader(path.read_bytes()))
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    assert found is not None
    assert "libc.so.6" in found.needed
    assert {name for name in found.needed if name not in listed} == set()


def test_wheels_are_read_on_their_way_into_a_layer(tmp_path: Path) -> None:
    """Names that have passed by are read again."""
    files = [("x/_C.abi3.so", _elf(head=_MIB, code=3 * _MIB), FILE), ("x/data.so", b"no library", FILE)]
    wheel = locked(write_wheel(tmp_path, "x", files=files))
    none = locked(write_wheel(tmp_path, "none", files=[("n/a.py", _elf(), FILE)]))
    source = WheelSource((wheel, none), Scheme.of("3.11"), None)
    observer = LibraryObserver(source.wheels)
    for entry in source.entries():
        if (sink := observer(entry)) is not None:
            content = content_of(entry)
            for start in range(0, len(content), 300_000):
                sink.write(content[start : start + 300_000])
            sink.close()
    named = Library("_C.abi3.so", "libx.so.2", _NEEDS, _FOUND.runpath)
    assert observer.found() == ((wheel.sha256, WheelContent(libraries=(named,))),)


def test_what_was_found_is_cached(tmp_path: Path) -> None:
    same = tuple(Library(f"{name}.so", "", _NEEDS) for name in "abc")
    found = WheelContent(GpuCodeFound(("sm_80",), ("compute_90",)), (*same, Library("d", "d.so.1", (), ("$ORIGIN",))))
    assert read_wheel_content(tmp_path, _SHA256) is None
    write_wheel_content(tmp_path, _SHA256, found)
    assert read_wheel_content(tmp_path, _SHA256) == found
    write_wheel_content(tmp_path, _SHA256, WheelContent())
    assert read_wheel_content(tmp_path, _SHA256) == WheelContent()
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"", b"{}", b"[1]", b"\xff"),
        b'[["x"], [], []]',
        b'[[], ["sm_80"], []]',
        b"[[], []]",
        b'[[], [], [{"soname": "libc.so.6"}]]',
        b'[{"sm": ["x"]}, []]',
        b"[{}, []]",
    ],
)
def test_what_was_damaged_counts_as_missing(damaged: bytes, tmp_path: Path) -> None:
    write_wheel_content(tmp_path, _SHA256, WheelContent(GpuCodeFound(("sm_80",), ())))
    (path,) = (path for path in tmp_path.rglob("*.json"))
    path.write_bytes(damaged)
    assert read_wheel_content(tmp_path, _SHA256) is None


def test_a_hash_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a SHA-256"):
        write_wheel_content(tmp_path, "../../etc", WheelContent())
    assert read_wheel_content(tmp_path, "../../etc") is None
