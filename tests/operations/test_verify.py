"""`envspec verify`: what was done to an environment is found, and nothing is found where nothing was done."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import py_compile
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from envspec.models import Package
from envspec.verifier.record import wheel_sha256
from tests.support.builders.environments import BASE, SERIES, installs, make_lock, pin, write_lock
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, core_metadata, wheel
from tests.support.builders.zips import member
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, refused

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="envspec installs on Linux and macOS only")

SITE: Final = f"lib/python{SERIES}/site-packages"
TOOL: Final = wheel(
    "tool",
    "1.0",
    files={
        "tool/__init__.py": b"def main():\n    print('tool')\n",
        "tool/data.bin": bytes(range(256)) * 20,
        "tool-1.0.data/data/share/tool/notes.txt": b"notes\n",
        "tool-1.0.data/scripts/script": b"#!python\nprint('script')\n",
        "tool-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = tool:main\n",
    },
)
#: As numpy 1.26.4 brings one.
COMPILED: Final = "other/__pycache__/inner.cpython-{}{}.pyc".format(*sys.version_info[:2])
OTHER: Final = wheel(
    "other", "2.0", files={"other/__init__.py": b"", "other/inner.py": b"a = 1\n", COMPILED: b"wheel's"}
)
OTHER_3: Final = wheel("other", "3.0")


def anchored(artifact: Artifact) -> Package:
    record = member(artifact.data, ".dist-info/RECORD")
    return replace(pin(artifact), record_sha256=wheel_sha256(record))


@dataclass(frozen=True)
class Scene:
    """A user with an environment and its lock, which may be verified again and again."""

    user: User
    prefix: Path
    lock: Path

    @property
    def site(self) -> Path:
        return self.prefix / SITE

    def verify(self, *words: str | Path, **environ: str) -> Ran:
        return self.user.runs("verify", self.lock, "--prefix", self.prefix, *words, environ=environ)

    def found(self) -> set[tuple[str, str, str]]:
        """(package, drift, path) of all that differs."""
        ran = self.verify("--format", "json")
        assert ran.status == 8, ran
        told = json.loads(ran.stdout)
        assert not told["same"]
        return {(each["package"], each["drift"], each["path"]) for each in told["findings"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with IndexServer([File(TOOL), File(OTHER), File(OTHER_3)]) as index:
        user = User(folder, index.url)
        lock = write_lock(folder / "lock", make_lock(wheels=[anchored(TOOL), anchored(OTHER)]))
        ran = installs(user, lock, "--python", BASE)
        assert ran.status == 0, ran.stderr
    return folder


@pytest.fixture
def scene(tmp_path: Path, made: Path) -> Scene:
    shutil.copytree(made / "env", tmp_path / "env", symlinks=True)
    shutil.copytree(made / "lock", tmp_path / "lock")
    return Scene(User(tmp_path, "http://127.0.0.1:9/"), tmp_path / "env", tmp_path / "lock")


def rewrite(record: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    rows = list(csv.reader(io.StringIO(record.read_text())))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(change(rows))
    record.write_text(text.getvalue())


def hashed(path: Path) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return [f"sha256={digest}", str(path.stat().st_size)]


def one_byte(scene: Scene) -> Path:
    path = scene.site / "tool/data.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    return path


def test_a_fresh_environment_is_what_the_lock_says(scene: Scene) -> None:
    ran = scene.verify()
    assert ran.status == 0, ran
    assert ran.stdout.startswith(f"{scene.prefix} matches small: 2 packages, ")
    assert "not anchored" not in ran.stdout
    assert ran.stdout.count("\n") == 1 and ran.stderr == ""


def test_nothing_is_written_and_no_network_is_used(scene: Scene) -> None:
    before = scene.user.leaves()
    assert scene.verify().status == 0
    assert scene.user.leaves() == before


def test_one_byte(scene: Scene) -> None:
    one_byte(scene)
    assert scene.found() == {("tool", "changed", f"{SITE}/tool/data.bin")}


def test_one_byte_and_its_row(scene: Scene) -> None:
    """Files and RECORD agree: what is in the lock alone tells."""
    path, record = one_byte(scene), scene.site / "tool-1.0.dist-info/RECORD"
    rewrite(record, lambda rows: [[*row[:1], *hashed(path)] if row[0] == "tool/data.bin" else row for row in rows])
    assert scene.found() == {("tool", "record", f"{SITE}/tool-1.0.dist-info/RECORD")}


def test_without_a_digest_in_the_lock_files_are_compared_with_record(scene: Scene) -> None:
    write_lock(scene.lock, make_lock(wheels=[pin(TOOL), anchored(OTHER)]))
    ran = scene.verify()
    assert ran.status == 0, ran
    assert "1 package not anchored" in ran.stdout
    one_byte(scene)
    assert scene.found() == {("tool", "changed", f"{SITE}/tool/data.bin")}


def test_a_row_taken_out_with_its_file(scene: Scene) -> None:
    (scene.site / "tool/data.bin").unlink()
    rewrite(scene.site / "tool-1.0.dist-info/RECORD", lambda rows: [r for r in rows if r[0] != "tool/data.bin"])
    assert scene.found() == {("tool", "record", f"{SITE}/tool-1.0.dist-info/RECORD")}


def test_a_row_without_its_hash(scene: Scene) -> None:
    one_byte(scene)
    rewrite(
        scene.site / "tool-1.0.dist-info/RECORD",
        lambda rows: [[row[0], "", ""] if row[0] == "tool/data.bin" else row for row in rows],
    )
    assert ("tool", "unhashed", f"{SITE}/tool/data.bin") in scene.found()


def test_a_removed_file(scene: Scene) -> None:
    (scene.prefix / "share/tool/notes.txt").unlink()
    assert scene.found() == {("tool", "file-missing", "share/tool/notes.txt")}


def test_a_removed_package(scene: Scene) -> None:
    shutil.rmtree(scene.site / "other")
    shutil.rmtree(scene.site / "other-2.0.dist-info")
    assert scene.found() == {("other", "missing", "")}


def install(scene: Scene, artifact: Artifact) -> None:
    """Lay a wheel into the site as pip would, without scripts."""
    with zipfile.ZipFile(io.BytesIO(artifact.data)) as archive:
        archive.extractall(scene.site)


def test_a_package_added_by_hand(scene: Scene) -> None:
    install(scene, wheel("guest", "1.0"))
    assert scene.found() == {("guest", "extra", "")}


def test_what_an_environment_brings_itself_is_allowed(scene: Scene) -> None:
    install(scene, wheel("pip", "25.0"))
    ran = scene.verify()
    assert ran.status == 0, ran
    assert "1 that the lock allows, such as pip" in ran.stdout
    (scene.site / "pip/__init__.py").write_text("changed = True\n")
    assert scene.found() == {("pip", "changed", f"{SITE}/pip/__init__.py")}


def test_a_locked_pip_must_be_the_locked_one(scene: Scene) -> None:
    write_lock(scene.lock, make_lock(wheels=[anchored(TOOL), anchored(OTHER), anchored(wheel("pip", "26.0"))]))
    install(scene, wheel("pip", "25.0"))
    assert scene.found() == {("pip", "version", "")}


def test_another_version(scene: Scene) -> None:
    shutil.rmtree(scene.site / "other")
    shutil.rmtree(scene.site / "other-2.0.dist-info")
    install(scene, OTHER_3)
    assert scene.found() == {("other", "version", "")}
    ran = scene.verify()
    assert "other\n  3.0 is installed, the lock has 2.0\n" in ran.stdout


def test_another_wheel_of_the_same_version(scene: Scene) -> None:
    """As where somebody has built it himself: all is whole, and it is not the locked one."""
    shutil.rmtree(scene.site / "other")
    shutil.rmtree(scene.site / "other-2.0.dist-info")
    install(scene, wheel("other", "2.0", files={"other/__init__.py": b"__version__ = '2.0'\nmine = True\n"}))
    assert scene.found() == {("other", "record", f"{SITE}/other-2.0.dist-info/RECORD")}


def test_two_of_one_name(scene: Scene) -> None:
    shutil.copytree(scene.site / "other-2.0.dist-info", scene.site / "Other-1.9.dist-info")
    assert ("other", "duplicate", "") in scene.found()


@pytest.mark.parametrize("name", ["added.pth", "added.py", "other/added.py", "added.pyc", "added/inner/module.py"])
def test_a_file_that_no_package_owns(scene: Scene, name: str) -> None:
    path = scene.site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("import os\n")
    assert scene.found() == {("", "unowned", f"{SITE}/{name}")}


def test_a_folder_that_is_a_link_is_not_gone_into(scene: Scene, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("")
    (scene.site / "linked").symlink_to(elsewhere)
    assert scene.found() == {("", "unowned", f"{SITE}/linked")}


def test_a_file_that_leads_out(scene: Scene, tmp_path: Path) -> None:
    path = scene.site / "tool/data.bin"
    path.rename(tmp_path / "data.bin")
    path.symlink_to(tmp_path / "data.bin")
    assert scene.found() == {("tool", "leads-out", f"{SITE}/tool/data.bin")}


def test_what_is_no_file_and_what_can_not_be_read(scene: Scene) -> None:
    (scene.site / "tool/data.bin").unlink()
    os.mkfifo(scene.site / "tool/data.bin")
    (scene.site / "other-2.0.dist-info/RECORD").write_bytes(b'"\xff')
    found = scene.found()
    assert ("tool", "unreadable", f"{SITE}/tool/data.bin") in found
    assert ("other", "record", f"{SITE}/other-2.0.dist-info/RECORD") in found


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(scene: Scene) -> None:
    (scene.site / "tool/data.bin").chmod(0)
    assert scene.found() == {("tool", "unreadable", f"{SITE}/tool/data.bin")}


def compiles(scene: Scene, mode: py_compile.PycInvalidationMode) -> Path:
    return Path(str(py_compile.compile(str(scene.site / "tool/__init__.py"), invalidation_mode=mode)))


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_bytecode_of_its_source(scene: Scene, mode: py_compile.PycInvalidationMode) -> None:
    compiles(scene, mode)
    ran = scene.verify("--format", "json")
    assert ran.status == 0, ran
    counts = json.loads(ran.stdout)["counts"]
    by_time = mode is py_compile.PycInvalidationMode.TIMESTAMP
    assert (counts["bytecode_by_time"], counts["bytecode_by_source"]) == ((1, 0) if by_time else (0, 1))


def test_bytecode_of_another_source(scene: Scene) -> None:
    """Python would run it without a look at the source."""
    path = compiles(scene, py_compile.PycInvalidationMode.UNCHECKED_HASH)
    data = path.read_bytes()
    path.write_bytes(data[:8] + importlib.util.source_hash(b"other") + data[16:])
    inside = str(path.relative_to(scene.prefix))
    assert scene.found() == {("tool", "bytecode", inside)}


def test_bytecode_of_a_wheel_may_be_compiled_anew(scene: Scene) -> None:
    """pip and `uv --compile-bytecode` do it over what a wheel brings."""
    source = scene.site / "other/inner.py"
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    ran = scene.verify("--format", "json")
    assert ran.status == 0, ran
    assert json.loads(ran.stdout)["counts"]["bytecode_by_source"] == 1
    path = scene.site / COMPILED
    path.write_bytes(path.read_bytes()[:8] + importlib.util.source_hash(b"a = 2\n") + path.read_bytes()[16:])
    inside = str(path.relative_to(scene.prefix))
    assert scene.found() == {("other", "bytecode", inside)}
    path.unlink()
    assert scene.verify().status == 0


def test_a_program_that_was_changed(scene: Scene) -> None:
    with (scene.prefix / "bin/tool").open("a") as file:
        file.write("# changed\n")
    assert scene.found() == {("tool", "changed", "bin/tool")}


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


def test_names_and_versions_in_other_spellings(scene: Scene) -> None:
    folder = scene.site / "other-2.0.dist-info"
    (folder / "METADATA").write_bytes(core_metadata("OTHER", "v2.0.0"))
    rewrite(
        folder / "RECORD",
        lambda rows: [[r[0], *hashed(folder / "METADATA")] if r[0].endswith("METADATA") else r for r in rows],
    )
    assert scene.found() == {("other", "record", f"{SITE}/other-2.0.dist-info/RECORD")}
