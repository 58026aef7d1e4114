"""Whose a path is: two wheels share none that they would differ in."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

import pytest

from envspec.image.layers.ownership import OwnedPath, OwnedPathCache, owners_of
from envspec.image.sources.wheel import Scheme, WheelSource
from envspec.io.archives import FileConflict
from envspec.structs import replace
from tests.support.builders.wheel_trees import locked, tree_of
from tests.support.builders.zips import FILE, PROGRAM, record_digest, wheel_members, write_wheel, zipped

_SITE = "opt/env/lib/python3.11/site-packages"


def test_one_path_with_other_bytes_names_both_owners() -> None:
    with pytest.raises(FileConflict, match=r"x/y belongs to a 1\.0 and to b 2\.0, with different content") as caught:
        owners_of([OwnedPath("x/y", "a 1.0", "1"), OwnedPath("x/y", "b 2.0", "2")])
    assert caught.value.exit_code == 4


def test_two_wheels_of_a_layer_with_one_path(tmp_path: Path) -> None:
    same = write_wheel(tmp_path, "one", files=[("nvidia/__init__.py", b"", FILE), ("nvidia/a.py", b"", FILE)])
    also = write_wheel(tmp_path, "two", files=[("nvidia/__init__.py", b"", FILE), ("nvidia/b.py", b"", FILE)])
    runs = write_wheel(tmp_path, "three", files=[("nvidia/__init__.py", b"", PROGRAM)])
    source = WheelSource((locked(also), locked(same)), Scheme.of("3.11"), None)
    tree = tree_of(source.entries())
    assert f"{_SITE}/nvidia/__init__.py" in tree
    for name in ("one", "two"):
        assert b"nvidia/__init__.py,," in tree[f"{_SITE}/{name}-1.0.dist-info/RECORD"].content
    with pytest.raises(FileConflict, match=r"nvidia/__init__\.py belongs to one 1\.0 and to three 1\.0"):
        list(WheelSource((locked(same), locked(runs)), Scheme.of("3.11"), None).entries())


#: Two contents of one size and one CRC-32: the second is the CRC's own polynomial.
ALIKE: Final = (bytes(5), (0x1_DB71_0641).to_bytes(5, "little"))
SUMS: Final = (record_digest(ALIKE[0]), record_digest(ALIKE[1]))


def _by_record(folder: Path, name: str, content: bytes, digest: str) -> WheelSource:
    """A wheel with `shared.py`, of which RECORD has that hash."""
    members = wheel_members(name, files=[("shared.py", content, FILE)])
    path, rows, mode = members[-1]
    members[-1] = (path, rows.replace(b"shared.py,,", f"shared.py,{digest},".encode()), mode)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    wheel.write_bytes(zipped(members))
    return WheelSource((locked(wheel),), Scheme.of("3.11"), None)


@pytest.mark.parametrize(
    ("other", "digest"), [(0, ""), (0, SUMS[0]), (0, f"{SUMS[0]}="), (0, "sha512=x"), (1, ""), (1, SUMS[1])]
)
@pytest.mark.parametrize("own", ["", SUMS[0]])
def test_equal_checksums_are_not_equal_files(own: str, other: int, digest: str, tmp_path: Path) -> None:
    assert zlib.crc32(ALIKE[0]) == zlib.crc32(ALIKE[1])
    one, two = _by_record(tmp_path, "one", ALIKE[0], own), _by_record(tmp_path, "two", ALIKE[other], digest)
    assert _are_apart(tmp_path / "cache", one, two) is (other == 0)
    if other == 0:
        assert list(replace(one, wheels=one.wheels + two.wheels).entries())
    else:
        with pytest.raises(FileConflict, match=r"shared\.py belongs to one 1\.0 and to two 1\.0"):
            list(replace(one, wheels=one.wheels + two.wheels).entries())


# From lists in the cache


def _source(folder: Path, name: str, files: list[tuple[str, bytes, int]]) -> WheelSource:
    folder.mkdir(exist_ok=True)
    return WheelSource((locked(write_wheel(folder, name, files=files)),), Scheme.of_venv("3.11"), None)


def _are_apart(cache: Path, *sources: WheelSource) -> bool:
    try:
        OwnedPathCache(cache).owners(sources)
    except FileConflict:
        return False
    return True


@pytest.mark.parametrize(
    ("path", "content", "mode", "is_apart"),
    [
        ("other/a.py", b"1", FILE, True),
        ("shared/__init__.py", b"", FILE, True),
        ("shared/__init__.py", b"", PROGRAM, False),
        ("shared/__init__.py", b"1", FILE, False),
        ("shared/a.py", b"1", FILE, True),
        ("shared/a.py", b"1", PROGRAM, False),
        ("shared/a.py", b"2", FILE, False),
        ("shared/a.py", b"", FILE, False),
        ("shared/a.py/b", b"1", FILE, False),
        ("shared/__init__.py/b", b"1", FILE, False),
        ("shared", b"1", FILE, False),
        ("shared", b"", FILE, False),
    ],
)
def test_only_an_equal_file_may_be_in_two(tmp_path: Path, path: str, content: bytes, mode: int, is_apart: bool) -> None:
    one = _source(tmp_path, "one", [("shared/__init__.py", b"", FILE), ("shared/a.py", b"1", FILE)])
    two = _source(tmp_path, "two", [(path, content, mode)])
    assert _are_apart(tmp_path / "cache", one, two) is is_apart
    assert _are_apart(tmp_path / "cache", two, one) is is_apart


def test_a_list_outlives_its_wheel_and_half_a_list_is_none(tmp_path: Path) -> None:
    one = _source(tmp_path, "one", [("one/a.py", b"1", FILE)])
    other = _source(tmp_path / "b", "two", [("one/a.py", b"2", FILE)])
    cache = tmp_path / "cache"
    assert not OwnedPathCache(cache).has(one)
    assert _are_apart(cache, one)
    (kept,) = (cache / "image-owned/3").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert _are_apart(cache, one) and kept.read_bytes() == whole
    one.wheels[0].path.unlink()
    assert OwnedPathCache(cache).has(one)
    assert _are_apart(cache, one) and not _are_apart(cache, one, other)
