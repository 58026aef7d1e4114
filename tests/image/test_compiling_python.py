"""Which Python compiles an image's modules: of exactly its version where one can be had."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.context import Context, ReporterOf
from envspec.diagnostics.machine import this_platform
from envspec.errors import UsageError
from envspec.facts.tables import load_facts
from envspec.fetch.types import WrongArchive
from envspec.image.base_layers import PythonLayers
from envspec.image.sources.bytecode import BadPython, NoCompiler, PycCompiler, find_compiler, unpacked_build
from envspec.models import Platform, Python
from envspec.structs import replace
from tests.support.builders import standalone
from tests.support.builders.standalone import SERIES, VERSION, Program

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="images are made on Linux and macOS only")

#: A patch that nobody has.
FUTURE: Final = f"{SERIES}.97"
MAGIC: Final = {"3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571}.get(SERIES, 0)


def pretends(
    path: Path,
    version: str,
    *,
    magic: int = MAGIC,
    implementation: str = "CPython",
    free: bool = False,
    executable: str = "",
) -> Path:
    """A program that answers as such an interpreter does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = json.dumps([version, executable or str(path), implementation, free, magic])
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


class Finder:
    def __init__(self, folder: Path) -> None:
        self.warnings: list[str] = []
        environ = {"HOME": str(folder / "home"), "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
        reporter = ReporterOf(warning=self.warnings.append)
        self.context = Context(environ, folder / "home", folder / "cache", jobs=3, reporter=reporter)
        self.parts = PythonLayers(self.context, this_platform(), lambda _: False)

    def finds(self, version: str = VERSION, **more: Any) -> PycCompiler:
        context = replace(self.context, environ={**self.context.environ, **more.pop("environ", {})})
        return asyncio.run(find_compiler(Python(version, "standalone"), context, this_platform(), **more))


@pytest.fixture
def finder(tmp_path: Path) -> Finder:
    return Finder(tmp_path)


def test_the_running_one_where_it_is_of_that_version(finder: Finder) -> None:
    found = finder.finds()
    assert (found.python, found.version, found.jobs) == (Path(sys.executable), VERSION, 3)
    assert finder.warnings == []


@pytest.mark.parametrize(
    "place",
    [
        f"bin/python{SERIES}",
        f"home/.pyenv/versions/{FUTURE}/bin/python{SERIES}",
        f"home/.local/share/uv/python/cpython-{FUTURE}-linux-x86_64-gnu/bin/python{SERIES}",
    ],
)
def test_where_pythons_usually_are(place: str, finder: Finder, tmp_path: Path) -> None:
    there = pretends(tmp_path / place, FUTURE)
    found = finder.finds(FUTURE)
    assert (found.python, found.version) == (there, FUTURE)
    assert finder.warnings == []


def test_another_patch_with_a_warning(finder: Finder) -> None:
    found = finder.finds(FUTURE)
    assert found.python == Path(sys.executable) and found.version == VERSION
    (warning,) = finder.warnings
    assert f"the image has Python {FUTURE}" in warning and "another image ID" in warning


@pytest.mark.parametrize(
    "is_not",
    [{"magic": 1}, {"implementation": "PyPy"}, {"free": True}],
    ids=["preview", "pypy", "free-threaded"],
)
def test_bytecode_of_another_kind_is_none(is_not: dict[str, Any], finder: Finder, tmp_path: Path) -> None:
    there = pretends(tmp_path / f"bin/python{SERIES}", FUTURE, **is_not)
    assert finder.finds(FUTURE).python != there


def test_none_at_all(finder: Finder) -> None:
    with pytest.raises(NoCompiler) as caught:
        finder.finds("3.98.1")
    assert "has no Python 3.98.1" in caught.value.message
    assert caught.value.hint and "--no-compile-bytecode" in caught.value.hint and "--python PATH" in caught.value.hint


def test_one_that_is_named(finder: Finder, tmp_path: Path) -> None:
    there = pretends(tmp_path / "mine", FUTURE)
    assert finder.finds(FUTURE, named=there).python == there
    other = finder.finds(VERSION, named=there)
    assert (other.python, other.version) == (there, FUTURE) and len(finder.warnings) == 1


@pytest.mark.parametrize(
    ("version", "more", "why"),
    [
        ("3.7.1", {}, "; the lock is for"),
        (FUTURE, {"magic": 1}, "; the lock is for"),
        (FUTURE, {"implementation": "PyPy"}, "is not a CPython that runs here"),
    ],
)
def test_one_that_is_named_and_does_not_fit(
    version: str, more: dict[str, Any], why: str, finder: Finder, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        finder.finds(named=pretends(tmp_path / "mine", version, **more))
    assert caught.value.hint and caught.value.hint.endswith("; or omit bytecode with --no-compile-bytecode")
    with pytest.raises(UsageError, match="is not a CPython that runs here"):
        finder.finds(named=tmp_path / "nothing")


# Builds


def locked(folder: Path, sha256: str | None = None, **more: Any) -> Python:
    archive = folder / "source" / "cpython-1.tar.gz"
    found = standalone.write(archive, {**standalone.made_up(), **more})
    return Python(FUTURE, "standalone", archive.as_uri(), sha256 or found)


def test_the_images_own_build_goes_first(finder: Finder, tmp_path: Path) -> None:
    python = locked(tmp_path)
    pretends(tmp_path / f"bin/python{SERIES}", FUTURE)
    own = finder.parts.own_build(python, this_platform(), ())
    found = finder.finds(FUTURE, own=own)
    assert found.python == tmp_path / f"cache/pythons/{python.sha256}/python/bin/python{SERIES}"
    assert found.python.read_bytes() == b"\x7fELF" and found.version == FUTURE
    assert (found.python.parent / "python3").readlink() == Path(f"python{SERIES}")
    shutil.rmtree(tmp_path / "source")
    shutil.rmtree(tmp_path / "cache/archives")
    assert finder.finds(FUTURE, own=own).python == found.python


def test_what_a_killed_run_left_of_it_goes(finder: Finder, tmp_path: Path) -> None:
    python = locked(tmp_path)
    left = tmp_path / f"cache/pythons/{python.sha256}.partial/python/bin"
    left.mkdir(parents=True)
    (left / "old").write_text("half of it")
    own = finder.parts.own_build(python, this_platform(), ())
    found = finder.finds(FUTURE, own=own).python
    assert not (found.parent / "old").exists()
    assert [each.name for each in (tmp_path / "cache/pythons").iterdir()] == [python.sha256]


def test_two_runs_at_once(finder: Finder, tmp_path: Path) -> None:
    own = finder.parts.own_build(locked(tmp_path), this_platform(), ())
    assert own is not None

    async def both() -> list[Path]:
        return list(await asyncio.gather(unpacked_build(own), unpacked_build(own), unpacked_build(own)))

    assert len(set(asyncio.run(both()))) == 1


def test_a_build_that_is_not_to_be_had(finder: Finder, tmp_path: Path) -> None:
    python = locked(tmp_path)
    (tmp_path / "source/cpython-1.tar.gz").unlink()
    there = pretends(tmp_path / f"bin/python{SERIES}", FUTURE)
    own = finder.parts.own_build(python, this_platform(), ())
    assert finder.finds(FUTURE, own=own).python == there
    assert len(finder.warnings) == 1
    # What is of the version goes before another build of it.
    assert finder.finds(FUTURE, other=own).python == there
    there.unlink()
    assert finder.finds(FUTURE, other=own).version == VERSION


def test_a_build_that_is_another_file(finder: Finder, tmp_path: Path) -> None:
    own = finder.parts.own_build(locked(tmp_path, "0" * 64), this_platform(), ())
    with pytest.raises(WrongArchive):
        finder.finds(FUTURE, own=own)


@pytest.mark.parametrize("name", ["python/../../../../../out", "/out", "elsewhere/out"])
def test_a_build_that_leads_out(name: str, finder: Finder, tmp_path: Path) -> None:
    own = finder.parts.own_build(locked(tmp_path, None, **{name: Program(b"x")}), this_platform(), ())
    with pytest.raises(BadPython):
        finder.finds(FUTURE, own=own)
    assert not list(tmp_path.rglob("out")) and list((tmp_path / "cache/pythons").iterdir()) == []


def test_builds_of_that_version_that_are_known(finder: Finder, tmp_path: Path) -> None:
    other = next(each for each in Platform if each is not this_platform())
    assert finder.parts.own_build(locked(tmp_path), other, ()) is None

    rows = load_facts().standalone_pythons("3.11", this_platform())
    found = finder.parts.other_build(Python(rows[0].version, "system"))
    assert found is not None and found.folder.name == rows[0].sha256
    assert finder.parts.other_build(Python("3.11.99", "system")) is None


def test_a_version_managers_shim_is_replaced_by_what_it_starts(finder: Finder, tmp_path: Path) -> None:
    """A shim runs only with the variables of its version manager."""
    real = pretends(tmp_path / "versions" / "bin" / f"python{SERIES}", FUTURE)
    pretends(tmp_path / "bin" / f"python{SERIES}", FUTURE, executable=str(real))
    assert finder.finds(FUTURE).python == real
