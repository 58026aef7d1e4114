"""Wheels as layers: equal to what pip installs of the same files, and what a layer follows from."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sys
from pathlib import Path

import pytest

from envspec.image.layers.types import Entry
from envspec.image.sources.bytecode import PycCompiler
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelSource
from envspec.structs import replace
from tests.support.builders.wheel_trees import Found, differences, hashed, locked, pip_tree, scheme_of_pip, tree_of
from tests.support.builders.zips import FILE, PROGRAM, SYMLINK, wheel_members, write_wheel, zipped

_SCHEME = Scheme.of("3.11")
_SITE = "opt/env/lib/python3.11/site-packages"
_OWN = PycCompiler(Path(sys.executable), ".".join(map(str, sys.version_info[:3])))
_TAG = sys.implementation.cache_tag

_POINTS = b"""[console_scripts]
thing = thing.cli:main
other-thing = thing.cli:Group.run [extra]

[gui_scripts]
window = thing:main

[pytest11]
plugin = thing.plugin
"""

#: One of each that a wheel may hold.
_EVERYTHING = [
    ("thing/__init__.py", b"version = 1\n", FILE),
    ("thing/cli.py", b"def main(): pass\n", FILE),
    ("thing/tool", b"#!/bin/sh\n", PROGRAM),
    ("thing/empty.py", b"", FILE),
    ("thing/data file,with comma.txt", b"x", FILE),
    ("thing/\xc3\xbcml\xc3\xa4ut.py".encode("latin-1").decode(), b"x = 1\n", FILE),
    (f"thing/__pycache__/old.{_TAG}.pyc", b"of its builder", FILE),
    ("thing/link", b"cli.py", SYMLINK),
    ("thing-1.0.data/purelib/thing/pure.py", b"pure = 1\n", FILE),
    ("thing-1.0.data/platlib/thing/plat.py", b"plat = 1\n", FILE),
    ("thing-1.0.data/data/share/thing/logo.svg", b"<svg/>", FILE),
    ("thing-1.0.data/data/etc/thing.json", b"{}", FILE),
    ("thing-1.0.data/headers/thing.h", b"#pragma once\n", FILE),
    ("thing-1.0.data/scripts/run-thing", b"#!python\nimport thing\n", PROGRAM),
    ("thing-1.0.data/scripts/windowed", b"#!pythonw -x\r\nimport thing\n", PROGRAM),
    ("thing-1.0.data/scripts/plain.sh", b"#!/bin/sh\ntrue\n", FILE),
    ("thing-1.0.data/scripts/thing", b"#!python\nof setuptools\n", PROGRAM),
    ("thing-1.0.dist-info/entry_points.txt", _POINTS, FILE),
    ("thing-1.0.dist-info/licenses/LICENSE", b"text", FILE),
]


def _with_hashes(members: list[tuple[str, bytes, int]]) -> list[tuple[str, bytes, int]]:
    rows = []
    for path, content, _ in members[:-1]:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        name = f'"{path}"' if "," in path else path
        # One row without hash, and one file that has no row.
        rows.append(f"{name},," if path.endswith("empty.py") else f"{name},sha256={digest},{len(content)}")
    rows = [row for row in rows if "tool" not in row]
    return [*members[:-1], (members[-1][0], ("\n".join(rows) + "\nthing-1.0.dist-info/RECORD,,\n").encode(), FILE)]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheels") / "thing-1.0-py3-none-any.whl"
    path.write_bytes(zipped(_with_hashes(wheel_members(files=_EVERYTHING))))
    return path


def test_a_layer_is_what_pip_installs(everything: Path, tmp_path: Path) -> None:
    wheel = locked(everything)
    pips = pip_tree(tmp_path, [hashed(wheel)], "--no-index", "--find-links", str(everything.parent))
    ours = tree_of(WheelSource((wheel,), scheme_of_pip(), None).entries())
    assert differences(ours, pips) == []
    assert len(ours) == len(_EVERYTHING) - 1 + 3 + 4


def test_a_wheel_by_url_tells_its_origin_as_pip_does(everything: Path, tmp_path: Path) -> None:
    url = everything.as_uri()
    wheel = locked(everything, direct_url=url)
    pips = pip_tree(tmp_path, [f"thing @ {url} --hash=sha256:{wheel.sha256}"], "--no-index")
    ours = tree_of(WheelSource((wheel,), scheme_of_pip(), None).entries())
    assert differences(ours, pips) == []
    (message,) = (found.content for path, found in ours.items() if path.endswith("/direct_url.json"))
    assert json.loads(message)["archive_info"]["hashes"] == {"sha256": wheel.sha256}


def test_programs_are_run_by_the_image_s_python(everything: Path) -> None:
    tree = tree_of(WheelSource((locked(everything),), _SCHEME, None).entries())
    assert tree["opt/env/bin/run-thing"] == Found(0o755, b"#!/opt/env/bin/python\nimport thing\n")
    assert tree["opt/env/bin/windowed"].content == b"#!/opt/env/bin/python\nimport thing\n"
    assert tree["opt/env/bin/plain.sh"] == Found(0o644, b"#!/bin/sh\ntrue\n")
    for name, call in (("thing", "main()"), ("other-thing", "Group.run()"), ("window", "main()")):
        text = tree[f"opt/env/bin/{name}"]
        assert text.mode == 0o755
        assert text.content.startswith(b"#!/opt/env/bin/python\n")
        assert f"sys.exit({call})".encode() in text.content
    assert tree["opt/env/include/python3.11/thing/thing.h"].content == b"#pragma once\n"
    assert "opt/env/share/thing/logo.svg" in tree
    venv = tree_of(WheelSource((locked(everything),), Scheme.of_venv("3.11"), None).entries())
    assert "opt/env/include/site/python3.11/thing/thing.h" in venv


def test_bytecode_is_laid_beside_its_modules_and_listed(everything: Path) -> None:
    scheme = Scheme.of(".".join(map(str, sys.version_info[:2])))
    site = scheme.library
    with_pyc = tree_of(WheelSource((locked(everything),), scheme, _OWN).entries())
    without = tree_of(WheelSource((locked(everything),), scheme, None).entries())
    made = sorted(set(with_pyc) - set(without))
    modules = sorted(path for path in without if path.endswith(".py") and path.startswith(site))
    assert made == sorted(_OWN.path_of(path) for path in modules)
    assert {path: with_pyc[path] for path in without if not path.endswith("/RECORD")} == {
        path: found for path, found in without.items() if not path.endswith("/RECORD")
    }
    record = with_pyc[f"{site}/thing-1.0.dist-info/RECORD"].content.decode().splitlines()
    assert f"thing/__pycache__/cli.{_TAG}.pyc,," in record
    # As with pip, the row of a script that was made anew stays, beside that of the new one.
    assert len(record) == len(with_pyc) + 1
    assert len(record) == len(set(record))


def test_bytecode_that_a_wheel_brings_gives_way_to_ours(tmp_path: Path) -> None:
    cached = f"a/__pycache__/b.{_TAG}.pyc"
    broken = f"a/__pycache__/c.{_TAG}.pyc"
    files = [("a/b.py", b"b = 1\n", FILE), (cached, b"old", FILE), ("a/c.py", b"def (\n", FILE), (broken, b"old", FILE)]
    wheel = locked(write_wheel(tmp_path, files=files))
    scheme = Scheme.of(".".join(map(str, sys.version_info[:2])))
    tree = tree_of(WheelSource((wheel,), scheme, _OWN).entries())
    assert len(tree[f"{scheme.library}/{cached}"].content) > 20
    assert tree[f"{scheme.library}/{broken}"].content == b"old"
    rows = tree[f"{scheme.library}/thing-1.0.dist-info/RECORD"].content.decode().splitlines()
    assert [row for row in rows if cached in row] == [f"{cached},,"]


def test_the_same_layer_from_any_order_of_wheels_and_any_place(tmp_path: Path) -> None:
    sources = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        wheels = [
            locked(write_wheel(tmp_path / folder, name, files=[(f"{name}.py", name.encode(), FILE)]))
            for name in ("alpha", "beta", "gamma")
        ]
        random.Random(folder).shuffle(wheels)
        sources.append(WheelSource(tuple(wheels), _SCHEME, None))

    def message(source: WheelSource) -> list[Entry]:
        return [replace(entry, data=None) for entry in source.entries()]

    one, other = sources
    assert one.key == other.key
    assert message(one) == message(other)
    assert one.title == "3 wheels: alpha 1.0, beta 1.0, gamma 1.0"
    assert WheelSource(one.wheels[:1], _SCHEME, None).title == f"{one.wheels[0].name} 1.0"


def test_what_the_key_follows_from() -> None:
    wheel = LockedWheel("a", "1.0", "a-1.0-py3-none-any.whl", "0" * 64, Path("a"))
    python = PycCompiler(Path("python"), "3.11.16")
    keys = [
        WheelSource((wheel,), _SCHEME, None).key,
        WheelSource((wheel,), _SCHEME, python).key,
        WheelSource((wheel,), _SCHEME, PycCompiler(Path("python"), "3.11.15")).key,
        WheelSource((wheel,), Scheme.of("3.12"), None).key,
        WheelSource((wheel,), Scheme.of_venv("3.11"), None).key,
        WheelSource((replace(wheel, sha256="1" * 64),), _SCHEME, None).key,
        WheelSource((replace(wheel, direct_url="https://example.com/a.whl"),), _SCHEME, None).key,
        WheelSource((wheel, replace(wheel, name="b")), _SCHEME, None).key,
    ]
    assert len(set(keys)) == len(keys)
    moved = replace(wheel, path=Path("elsewhere"))
    assert WheelSource((moved,), _SCHEME, PycCompiler(Path("other"), "3.11.16", jobs=9)).key == keys[1]


@pytest.mark.parametrize(
    ("spelled", "version"), [("1.0.0", "1.0"), ("1.0+cu128", "1.0+cu128"), ("1.0_post1", "1.0.post1")]
)
def test_versions_are_compared_as_versions(spelled: str, version: str, tmp_path: Path) -> None:
    path = write_wheel(tmp_path, "My_Thing", spelled)
    wheel = replace(locked(path), name="my-thing", version=version)
    assert list(WheelSource((wheel,), _SCHEME, None).entries())


def test_pip_s_own_programs_are_named_for_the_image_s_python(tmp_path: Path) -> None:
    points = b"[console_scripts]\npip = pip:main\npip3 = pip:main\npip3.7 = pip:main\n"
    path = write_wheel(tmp_path, "pip", files=[("pip-1.0.dist-info/entry_points.txt", points, FILE)])
    tree = tree_of(WheelSource((locked(path),), _SCHEME, None).entries())
    assert [path for path in tree if "/bin/" in path] == [f"opt/env/bin/{name}" for name in ("pip", "pip3", "pip3.11")]
