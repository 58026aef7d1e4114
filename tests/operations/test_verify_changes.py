"""`envspec verify` of an environment in which one thing was changed: each of the changes is found."""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from envspec.models import Python
from envspec.operations.environment import verify
from envspec.verifier.types import VerifyResult
from tests.support.builders import standalone
from tests.support.builders.environments import BASE, RUNNING, SERIES, run_in
from tests.support.builders.verified import RECORD, SITE, Made, Scene, hashed, make, rewrite
from tests.support.user import succeeded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="envspec installs on Linux and macOS only")

MODULE: Final = "tool/__init__.py"
EVIL: Final = b"x = 666\n"
TAG: Final = "cpython-{}{}".format(*sys.version_info[:2])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture
def scene(tmp_path: Path, made: Made) -> Scene:
    return made.restored(tmp_path)


def verified(scene: Scene, *, strict: bool = False) -> VerifyResult:
    return verify(scene.lock, scene.prefix, strict=strict)


def found(result: VerifyResult) -> set[tuple[str, str, str]]:
    return {(each.package, each.drift.value, each.path) for each in result.findings}


def replace(path: Path, data: bytes) -> None:
    """Write a file anew: it may be a link, or a hard link into a cache."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def with_row(scene: Scene, path: Path, record: str = RECORD) -> None:
    """Make the row of a file in RECORD as the file is now."""
    name = os.path.relpath(path, scene.site)
    rewrite(scene.site / record, lambda rows: [[name, *hashed(path)] if row[0] == name else row for row in rows])


# The environment's own files


def python_is_a_script(scene: Scene) -> None:
    replace(scene.prefix / "bin/python", b'#!/bin/sh\nexec /usr/bin/python3 "$@"\n')


def python_leads_elsewhere(scene: Scene) -> None:
    (scene.prefix / f"bin/python{SERIES}").unlink()
    (scene.prefix / f"bin/python{SERIES}").symlink_to("/bin/true")


def config(scene: Scene, before: str, after: str) -> None:
    path = scene.prefix / "pyvenv.cfg"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def system_packages(scene: Scene) -> None:
    config(scene, "include-system-site-packages = false", "include-system-site-packages = true")


def another_home(scene: Scene) -> None:
    config(scene, "home = /", "home = /evil/")


def program_added(scene: Scene) -> None:
    replace(scene.prefix / "bin/ls", b"#!/bin/sh\n")


def activate_changed(scene: Scene) -> None:
    with (scene.prefix / "bin/activate").open("a") as script:
        script.write("export LD_PRELOAD=/evil.so\n")


def program_and_its_row(scene: Scene) -> None:
    path = scene.prefix / "bin/tool"
    replace(path, path.read_bytes().replace(b"import sys\n", b"import sys, os\n"))
    with_row(scene, path)


def script_and_its_row(scene: Scene) -> None:
    path = scene.prefix / "bin/script"
    replace(path, path.read_bytes() + b"import os\n")
    with_row(scene, path)


def program_of_another_python(scene: Scene) -> None:
    path = scene.prefix / "bin/tool"
    replace(path, b"#!/evil/bin/python\n" + path.read_bytes().partition(b"\n")[2])
    with_row(scene, path)


def program_in_another_encoding(scene: Scene) -> None:
    """A comment in UTF-7 may be code."""
    path = scene.prefix / "bin/tool"
    replace(path, path.read_bytes().replace(b"coding: utf-8 -*-", b"coding: utf-7 -*- +AAo-import evil"))
    with_row(scene, path)


def program_and_its_row_removed(scene: Scene) -> None:
    (scene.prefix / "bin/tool").unlink()
    rewrite(scene.site / RECORD, lambda rows: [row for row in rows if not row[0].endswith("bin/tool")])


def second_site_packages(scene: Scene) -> None:
    (scene.prefix / "lib64").unlink(missing_ok=True)
    replace(scene.prefix / f"lib64/python{SERIES}/site-packages/evil.py", EVIL)


def library_beside_site_packages(scene: Scene) -> None:
    replace(scene.prefix / f"lib/python{SERIES}/os.py", EVIL)


# Bytecode


def bytecode(scene: Scene, mode: py_compile.PycInvalidationMode) -> None:
    """Bytecode of another source with the header of the right one: its hash, or its time and size."""
    source = scene.site / MODULE
    compiled = Path(str(py_compile.compile(str(source), invalidation_mode=mode)))
    replace(scene.user.folder / "evil.py", EVIL)
    evil = py_compile.compile(str(scene.user.folder / "evil.py"), str(scene.user.folder / "evil.pyc"))
    header = compiled.read_bytes()[:16]
    if mode is py_compile.PycInvalidationMode.UNCHECKED_HASH:
        header = header[:8] + b"of other"
    compiled.write_bytes(header + Path(str(evil)).read_bytes()[16:])


def bytecode_by_time(scene: Scene) -> None:
    bytecode(scene, py_compile.PycInvalidationMode.TIMESTAMP)


def bytecode_unchecked(scene: Scene) -> None:
    bytecode(scene, py_compile.PycInvalidationMode.UNCHECKED_HASH)


def bytecode_alone(scene: Scene) -> None:
    replace(scene.user.folder / "evil.py", EVIL)
    py_compile.compile(str(scene.user.folder / "evil.py"), str(scene.site / "tool/evil.pyc"))


def bytecode_of_nothing(scene: Scene) -> None:
    replace(scene.user.folder / "evil.py", EVIL)
    (scene.site / "tool/__pycache__").mkdir(exist_ok=True)
    py_compile.compile(str(scene.user.folder / "evil.py"), str(scene.site / f"tool/__pycache__/evil.{TAG}.pyc"))


# Modules


def module_is_a_link(scene: Scene) -> None:
    copy = scene.prefix / "share/copy.py"
    shutil.copyfile(scene.site / MODULE, copy)
    (scene.site / MODULE).unlink()
    (scene.site / MODULE).symlink_to(os.path.relpath(copy, scene.site / "tool"))


def module_of_the_same_size_and_time(scene: Scene) -> None:
    path = scene.site / MODULE
    state = path.stat()
    replace(path, b"#" * state.st_size)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def added(name: str) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        replace(scene.site / name, EVIL)

    return change


def dist_info(name: str) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        path = scene.site / "tool-1.0.dist-info" / name
        replace(path, (path.read_bytes() if path.exists() else b"") + b"\n")

    return change


#: Change -> (package, drift, path) that is found, among others.
CHANGES: Final[dict[Callable[[Scene], None], tuple[str, str, str]]] = {
    python_is_a_script: ("python", "changed", "bin/python"),
    python_leads_elsewhere: ("python", "changed", f"bin/python{SERIES}"),
    system_packages: ("python", "system-packages", "pyvenv.cfg"),
    another_home: ("python", "changed", "pyvenv.cfg"),
    program_added: ("", "unowned", "bin/ls"),
    activate_changed: ("python", "changed", "bin/activate"),
    program_and_its_row: ("tool", "changed", "bin/tool"),
    second_site_packages: ("", "unowned", f"lib64/python{SERIES}/site-packages/evil.py"),
    module_is_a_link: ("tool", "link", f"{SITE}/{MODULE}"),
    bytecode_of_nothing: ("", "unowned", f"{SITE}/tool/__pycache__/evil.{TAG}.pyc"),
    bytecode_by_time: ("tool", "bytecode", f"{SITE}/tool/__pycache__/__init__.{TAG}.pyc"),
    script_and_its_row: ("tool", "changed", "bin/script"),
    program_of_another_python: ("tool", "interpreter", "bin/tool"),
    program_in_another_encoding: ("tool", "changed", "bin/tool"),
    program_and_its_row_removed: ("tool", "file-missing", "bin/tool"),
    library_beside_site_packages: ("", "unowned", f"lib/python{SERIES}/os.py"),
    module_of_the_same_size_and_time: ("tool", "changed", f"{SITE}/{MODULE}"),
    added("sitecustomize.py"): ("", "unowned", f"{SITE}/sitecustomize.py"),
    added("usercustomize.py"): ("", "unowned", f"{SITE}/usercustomize.py"),
    added("tool/__pycache__/evil.py"): ("", "unowned", f"{SITE}/tool/__pycache__/evil.py"),
    added("tool/__init__.so"): ("", "unowned", f"{SITE}/tool/__init__.so"),
    added(f"other/inner.{TAG}-x86_64-linux-gnu.so"): (
        *("", "unowned"),
        f"{SITE}/other/inner.{TAG}-x86_64-linux-gnu.so",
    ),
    added("evil.egg-link"): ("evil", "extra", ""),
    bytecode_unchecked: ("tool", "bytecode", f"{SITE}/tool/__pycache__/__init__.{TAG}.pyc"),
    bytecode_alone: ("", "unowned", f"{SITE}/tool/evil.pyc"),
    dist_info("INSTALLER"): ("tool", "changed", f"{SITE}/tool-1.0.dist-info/INSTALLER"),
    dist_info("direct_url.json"): ("", "unowned", f"{SITE}/tool-1.0.dist-info/direct_url.json"),
    dist_info("METADATA"): ("tool", "changed", f"{SITE}/tool-1.0.dist-info/METADATA"),
}


@pytest.mark.parametrize(
    ("change", "expected"), CHANGES.items(), ids=[f"{each.__name__}-{path}" for each, (*_, path) in CHANGES.items()]
)
def test_each_change_is_found(scene: Scene, change: Callable[[Scene], None], expected: tuple[str, str, str]) -> None:
    change(scene)
    result = verified(scene)
    if change is bytecode_by_time:
        assert result.is_same and result.counts.bytecode_by_time == 1
        result = verified(scene, strict=True)
    assert expected in found(result)


def test_an_untouched_environment_matches(scene: Scene) -> None:
    """By the command too, and after Python, which writes bytecode, and other users of the environment ran."""
    result = verified(scene, strict=True)
    assert result.is_same, result.findings
    assert result.counts.unlisted == 0 and result.counts.generated == 1
    for name in ("tool", "script"):
        assert run_in(scene.prefix, name)
    ran = scene.verify("--strict")
    assert succeeded(ran) and "not compared" not in ran.stdout
    counts = verified(scene, strict=True).counts
    assert (counts.bytecode_by_time, counts.bytecode_by_code) == (0, 1)


# Environments without a list of their own files, and with one that can't be read


@pytest.fixture
def earlier(scene: Scene) -> Scene:
    """As earlier versions installed it, or another tool."""
    (scene.prefix / ".envspec/RECORD").unlink()
    return scene


@pytest.mark.parametrize("change", [python_is_a_script, another_home, activate_changed, program_and_its_row])
def test_without_a_list_nothing_is_claimed(earlier: Scene, change: Callable[[Scene], None]) -> None:
    """The output says what is not compared, or only with RECORD."""
    change(earlier)
    ran = succeeded(earlier.verify())
    assert "files of Python itself, such as bin/python and pyvenv.cfg, not compared" in ran.stdout
    assert "of installers, such as INSTALLER, compared with RECORD only" in ran.stdout


@pytest.mark.parametrize(
    "change",
    [system_packages, program_added, second_site_packages, program_of_another_python, library_beside_site_packages],
)
def test_without_a_list_what_needs_none_is_found(earlier: Scene, change: Callable[[Scene], None]) -> None:
    change(earlier)
    assert CHANGES[change] in found(verified(earlier))


def test_a_list_that_cannot_be_read(scene: Scene) -> None:
    (scene.prefix / ".envspec/RECORD").write_text("a,b\n")
    assert found(verified(scene)) == {("python", "unreadable", ".envspec/RECORD")}


def test_an_environment_that_was_moved(scene: Scene) -> None:
    """Its programs run the Python of the folder where it was."""
    moved = scene.user.folder / "moved"
    shutil.copytree(scene.prefix, moved, symlinks=True)
    result = verify(scene.lock, moved)
    assert found(result) == {("tool", "interpreter", "bin/tool")}


def test_a_python_that_differs_is_not_started(scene: Scene) -> None:
    """It could say of any bytecode that it is right."""
    bytecode_by_time(scene)
    mark = scene.user.folder / "started"
    (scene.prefix / "bin/python").unlink()
    standin = scene.prefix / "bin/python"
    standin.write_text(f"#!/bin/sh\ntouch {mark}\n")
    standin.chmod(0o755)
    assert found(verified(scene, strict=True)) == {("python", "changed", "bin/python")}
    assert not mark.exists()


@pytest.mark.parametrize(
    ("data", "drift"),
    [
        # A set with a tuple that contains itself: CPython computes its hash until the stack ends.
        (b">\x01\0\0\0\xa8\x01\0\0\0r\0\0\0\0", "unreadable"),
        (b"no code", "bytecode"),
        (b"N", "bytecode"),
        (b"", "bytecode"),
    ],
)
def test_bytecode_that_python_cannot_read(scene: Scene, data: bytes, drift: str) -> None:
    """Also if it ends Python: the other files are compared."""
    first = Path(str(py_compile.compile(str(scene.site / "other/inner.py"))))
    py_compile.compile(str(scene.site / MODULE))
    first.write_bytes(first.read_bytes()[:16] + data)
    result = verified(scene, strict=True)
    assert found(result) == {("other", drift, f"{SITE}/other/__pycache__/{first.name}")}
    assert result.counts.bytecode_by_code == (1 if drift == "unreadable" else 2)


# A standalone Python, which is in the environment


@pytest.fixture(scope="module")
def with_python(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("standalone")
    files: dict[str, standalone.Content] = {
        f"python/bin/python{SERIES}": standalone.Program(BASE.read_bytes()),
        "python/bin/python3": standalone.Link(f"python{SERIES}"),
        f"python/lib/python{SERIES}/extra.py": b"",
        f"python/lib/python{SERIES}/site-packages/README.txt": standalone.README,
    }
    archive = folder / "cpython.tar.gz"
    python = Python(RUNNING, "standalone", archive.as_uri(), standalone.write(archive, files))
    return make(folder, python=python)


BUILD: Final = ".envspec/python"
OF_BUILD: Final = {
    f"{BUILD}/bin/python{SERIES}": ("python", "changed"),
    f"{BUILD}/lib/python{SERIES}/extra.py": ("python", "changed"),
    f"{BUILD}/lib/python{SERIES}/evil.py": ("", "unowned"),
    f"{BUILD}/lib/python{SERIES}/site-packages/README.txt": ("python", "changed"),
}


def test_an_untouched_environment_with_its_python_matches(with_python: Made, tmp_path: Path) -> None:
    ran = succeeded(with_python.restored(tmp_path).verify("--strict"))
    assert "not compared" not in ran.stdout


@pytest.mark.parametrize("path", OF_BUILD)
def test_a_change_of_the_python_in_it_is_found(with_python: Made, tmp_path: Path, path: str) -> None:
    scene = with_python.restored(tmp_path)
    replace(scene.prefix / path, EVIL)
    assert found(verified(scene)) == {(*OF_BUILD[path], path)}
