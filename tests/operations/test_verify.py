"""`envspec verify`: what was done to an environment is found, and nothing is found where nothing was done."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import py_compile
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.builders.environments import SERIES, make_lock, pin, write_lock
from tests.support.builders.verified import (
    COMPILED,
    OTHER,
    RECORD,
    SITE,
    TOOL,
    Made,
    Scene,
    anchored,
    hashed,
    make,
    rewrite,
)
from tests.support.builders.wheels import Artifact, core_metadata, wheel
from tests.support.user import refused

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="envspec installs on Linux and macOS only")

OTHER_3: Final = wheel("other", "3.0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("made"), OTHER_3)


@pytest.fixture
def scene(tmp_path: Path, made: Made) -> Scene:
    return made.restored(tmp_path)


def install(scene: Scene, artifact: Artifact) -> None:
    """Lay a wheel into the site as pip would, without scripts."""
    with zipfile.ZipFile(io.BytesIO(artifact.data)) as archive:
        archive.extractall(scene.site)


def remove_other(scene: Scene) -> None:
    shutil.rmtree(scene.site / "other")
    shutil.rmtree(scene.site / "other-2.0.dist-info")


def one_byte(scene: Scene) -> None:
    data = bytearray((scene.site / "tool/data.bin").read_bytes())
    data[1000] ^= 1
    (scene.site / "tool/data.bin").write_bytes(data)


DATA: Final = ("tool", "changed", f"{SITE}/tool/data.bin")
RECORDS: Final = {("tool", "record", f"{SITE}/{RECORD}"), ("other", "record", f"{SITE}/other-2.0.dist-info/RECORD")}
UNOWNED: Final = ("added.pth", "added.py", "other/added.py", "added.pyc", "added/inner/module.py", "linked")


def test_every_file_that_was_changed_added_or_removed(scene: Scene) -> None:
    one_byte(scene)
    (scene.prefix / "share/tool/notes.txt").unlink()
    with (scene.prefix / "bin/tool").open("a") as program:
        program.write("# changed\n")
    (scene.site / "added/inner").mkdir(parents=True)
    for name in UNOWNED[:-1]:
        (scene.site / name).write_text("import os\n")
    elsewhere = scene.user.folder / "elsewhere"
    elsewhere.mkdir()
    (scene.site / "other/inner.py").rename(elsewhere / "__init__.py")
    (scene.site / "other/inner.py").symlink_to(elsewhere / "__init__.py")
    # What is in a folder that is a link is not looked at.
    (scene.site / "linked").symlink_to(elsewhere)
    (scene.site / "tool/__init__.py").unlink()
    os.mkfifo(scene.site / "tool/__init__.py")
    assert scene.found() == {
        DATA,
        ("tool", "file-missing", "share/tool/notes.txt"),
        ("tool", "changed", "bin/tool"),
        ("tool", "unreadable", f"{SITE}/tool/__init__.py"),
        ("other", "leads-out", f"{SITE}/other/inner.py"),
        *(("", "unowned", f"{SITE}/{name}") for name in UNOWNED),
    }


def test_a_record_that_agrees_with_its_files_is_not_the_locked_one(scene: Scene) -> None:
    one_byte(scene)
    metadata = scene.site / "other-2.0.dist-info/METADATA"
    metadata.write_bytes(core_metadata("OTHER", "v2.0.0"))
    for path, record in ((scene.site / "tool/data.bin", RECORD), (metadata, "other-2.0.dist-info/RECORD")):
        row = [str(path.relative_to(scene.site)), *hashed(path)]
        rewrite(scene.site / record, lambda rows: [row if each[0] == row[0] else each for each in rows])  # noqa: B023
    assert scene.found() == RECORDS


def test_a_row_removed_with_its_file_and_another_wheel_of_the_version(scene: Scene) -> None:
    (scene.site / "tool/data.bin").unlink()
    rewrite(scene.site / RECORD, lambda rows: [row for row in rows if row[0] != "tool/data.bin"])
    remove_other(scene)
    install(scene, wheel("other", "2.0", files={"other/__init__.py": b"__version__ = '2.0'\nmine = True\n"}))
    assert scene.found() == RECORDS


def test_packages_removed_added_or_of_another_version(scene: Scene) -> None:
    remove_other(scene)
    assert scene.found() == {("other", "missing", "")}
    write_lock(scene.lock, make_lock(wheels=[anchored(TOOL), anchored(OTHER), anchored(wheel("pip", "26.0"))]))
    for artifact in (OTHER_3, wheel("pip", "25.0"), wheel("guest", "1.0")):
        install(scene, artifact)
    assert scene.found() == {("other", "version", ""), ("pip", "version", ""), ("guest", "extra", "")}
    assert "other\n  3.0 is installed, the lock has 2.0\n" in scene.verify().stdout


def test_a_fresh_environment_is_what_the_lock_says_and_nothing_is_written(scene: Scene) -> None:
    before = scene.user.leaves()
    ran = scene.verify()
    assert (ran.status, ran.stderr) == (0, ""), ran
    assert ran.stdout.startswith(f"{scene.prefix} matches small: 2 packages, ")
    assert "without a digest" not in ran.stdout and ran.stdout.count("\n") == 1
    assert scene.user.leaves() == before


def test_without_a_digest_in_the_lock_files_are_compared_with_record(scene: Scene) -> None:
    write_lock(scene.lock, make_lock(wheels=[pin(TOOL), anchored(OTHER)]))
    ran = scene.verify()
    assert ran.status == 0, ran
    assert "1 package without a digest in the lock" in ran.stdout
    one_byte(scene)
    assert scene.found() == {DATA}


def test_what_an_environment_brings_itself_is_allowed(scene: Scene) -> None:
    install(scene, wheel("pip", "25.0"))
    ran = scene.verify()
    assert ran.status == 0, ran
    assert "1 package that the lock allows, such as pip" in ran.stdout
    (scene.site / "pip/__init__.py").write_text("changed = True\n")
    assert scene.found() == {("pip", "changed", f"{SITE}/pip/__init__.py")}


def test_one_cause_may_have_several_findings(scene: Scene) -> None:
    one_byte(scene)
    rewrite(scene.site / RECORD, lambda rows: [[r[0], "", ""] if r[0] == "tool/data.bin" else r for r in rows])
    shutil.copytree(scene.site / "other-2.0.dist-info", scene.site / "Other-1.9.dist-info")
    found = scene.found()
    assert found >= {("tool", "unhashed", f"{SITE}/tool/data.bin"), ("other", "duplicate", "")}
    (scene.site / "other-2.0.dist-info/RECORD").write_bytes(b'"\xff')
    assert ("other", "record", f"{SITE}/other-2.0.dist-info/RECORD") in scene.found()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(scene: Scene) -> None:
    (scene.site / "tool/data.bin").chmod(0)
    assert scene.found() == {("tool", "unreadable", f"{SITE}/tool/data.bin")}


def compiles(scene: Scene, mode: py_compile.PycInvalidationMode) -> Path:
    return Path(str(py_compile.compile(str(scene.site / "tool/__init__.py"), invalidation_mode=mode)))


def of_another_source(scene: Scene, path: Path) -> str:
    """Bind bytecode to another source by hash; its path in the environment."""
    data = path.read_bytes()
    path.write_bytes(data[:8] + importlib.util.source_hash(b"other") + data[16:])
    return str(path.relative_to(scene.prefix))


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_bytecode_of_its_source(scene: Scene, mode: py_compile.PycInvalidationMode) -> None:
    compiles(scene, mode)
    ran = scene.verify("--format", "json")
    assert ran.status == 0, ran
    counts = json.loads(ran.stdout)["counts"]
    by_time = mode is py_compile.PycInvalidationMode.TIMESTAMP
    assert (counts["bytecode_by_time"], counts["bytecode_by_source"]) == ((1, 0) if by_time else (0, 1))


def test_bytecode_of_a_wheel_may_be_compiled_anew(scene: Scene) -> None:
    """pip and `uv --compile-bytecode` do it over what a wheel brings."""
    source = scene.site / "other/inner.py"
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    ran = scene.verify("--format", "json")
    assert ran.status == 0, ran
    assert json.loads(ran.stdout)["counts"]["bytecode_by_source"] == 1
    path = scene.site / COMPILED
    inside = of_another_source(scene, path)
    assert scene.found() == {("other", "bytecode", inside)}
    path.unlink()
    assert scene.verify().status == 0


def test_another_python(scene: Scene) -> None:
    (scene.prefix / "lib" / f"python{SERIES}").rename(scene.prefix / "lib" / "python3.99")
    ran = scene.verify()
    assert ran.status == 8
    assert f"python\n  3.99 is installed, the lock has {SERIES}\n" in ran.stdout
    assert "uv pip sync" not in ran.error, "it would be for the wrong Python"


def test_files_of_no_package_are_counted_as_none(scene: Scene) -> None:
    (scene.site / "mine.py").write_text("")
    assert "1 difference in no package" in scene.verify().error
    (scene.site / "tool" / "__init__.py").unlink()
    assert "2 differences in 1 package" in scene.verify().error


def test_the_message_says_what_to_do(scene: Scene) -> None:
    one_byte(scene)
    ran = scene.verify()
    assert ran.status == 8
    assert ran.stdout == f"tool\n  {SITE}/tool/data.bin was changed\n"
    assert ran.error.startswith(f"{scene.prefix} differs from small: 1 difference in 1 package\n  hint: ")
    assert f"`envspec install {scene.lock} --prefix DIR`" in ran.error


def test_the_active_environment_is_looked_at(scene: Scene) -> None:
    ran = scene.user.runs("verify", scene.lock, environ={"VIRTUAL_ENV": str(scene.prefix)})
    assert (ran.status, ran.stderr) == (0, "")
    ran = scene.user.runs("verify", scene.lock)
    assert "--prefix DIR" in refused(ran, 2)


def test_a_folder_that_is_no_environment_and_a_platform_that_is_not_locked(scene: Scene, tmp_path: Path) -> None:
    assert "site-packages" in refused(scene.user.runs("verify", scene.lock, "--prefix", tmp_path), 2)
    assert "win-64" in refused(scene.verify("--platform", "win-64"), 2)
