"""Which layers have a path in common, told without reading their wheels again."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.image.sources.wheel import Scheme, WheelPathCache, WheelSource
from tests.support.builders.wheel_trees import locked
from tests.support.builders.zips import FILE, PROGRAM, write_wheel

SITE = "opt/env/lib/python3.11/site-packages"
Files = list[tuple[str, bytes, int]]


def source(folder: Path, name: str, files: Files) -> WheelSource:
    folder.mkdir(exist_ok=True)
    return WheelSource((locked(write_wheel(folder, name, files=files)),), Scheme.of_venv("3.11"), None)


def test_layers_that_share_nothing_are_disjoint(tmp_path: Path) -> None:
    sources = [
        source(tmp_path, "one", [("one/__init__.py", b"", FILE), ("one/a.py", b"1", FILE)]),
        source(tmp_path, "two", [("two/__init__.py", b"", FILE)]),
    ]
    assert WheelPathCache(tmp_path / "cache").are_disjoint(sources, [f"{SITE}/pip/__init__.py"])


@pytest.mark.parametrize(
    ("path", "content", "mode", "is_apart"),
    [
        ("shared/__init__.py", b"", FILE, True),
        ("shared/__init__.py", b"", PROGRAM, False),
        ("shared/__init__.py", b"1", FILE, False),
        ("shared/a.py", b"1", FILE, False),
        ("shared/a.py", b"", FILE, False),
        ("shared/a.py/b", b"1", FILE, False),
        ("shared/__init__.py/b", b"1", FILE, False),
        ("shared", b"1", FILE, False),
        ("shared", b"", FILE, False),
    ],
)
def test_only_an_empty_file_may_be_in_two(tmp_path: Path, path: str, content: bytes, mode: int, is_apart: bool) -> None:
    sources = [
        source(tmp_path, "one", [("shared/__init__.py", b"", FILE), ("shared/a.py", b"1", FILE)]),
        source(tmp_path, "two", [(path, content, mode)]),
    ]
    lists = WheelPathCache(tmp_path / "cache")
    assert lists.are_disjoint(sources, []) is is_apart
    assert lists.are_disjoint(sources[::-1], []) is is_apart


@pytest.mark.parametrize("below", [f"{SITE}/one/a.py", f"{SITE}/one", f"{SITE}/one/__init__.py"])
def test_what_lies_below_counts(tmp_path: Path, below: str) -> None:
    one = source(tmp_path, "one", [("one/__init__.py", b"", FILE), ("one/a.py", b"1", FILE)])
    assert not WheelPathCache(tmp_path / "cache").are_disjoint([one], [below])


def test_a_list_outlives_its_wheel(tmp_path: Path) -> None:
    one = source(tmp_path, "one", [("one/a.py", b"1", FILE)])
    same = source(tmp_path / "b", "two", [("one/a.py", b"1", FILE)])
    cache = tmp_path / "cache"
    assert not WheelPathCache(cache).has(one)
    assert WheelPathCache(cache).are_disjoint([one], [])
    one.wheels[0].path.unlink()
    again = WheelPathCache(cache)
    assert again.has(one)
    assert again.are_disjoint([one], [])
    assert not again.are_disjoint([one, same], [])


def test_half_a_list_is_none(tmp_path: Path) -> None:
    one = source(tmp_path, "one", [("one/a.py", b"1", FILE)])
    lists = WheelPathCache(tmp_path / "cache")
    assert lists.are_disjoint([one], [])
    (kept,) = (tmp_path / "cache" / "image-owned").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert lists.are_disjoint([one], [])
    assert kept.read_bytes() == whole
