"""The check `lock` in the files of an image: of a standalone Python as it is published, and of a base's Python."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

from envspec.image.layers.types import PREFIX
from envspec.image.services import ServicesSource
from envspec.image.sources.bytecode import PycCompiler
from envspec.image.sources.python import StandalonePython, Venv
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelSource
from envspec.models import ImageSettings, Python
from envspec.operations.environment import expected_of
from envspec.structs import replace
from tests.support.builders import standalone
from tests.support.builders.entries import lay_out
from tests.support.builders.environments import BASE, RUNNING, SERIES, make_lock
from tests.support.builders.verified import TOOL, anchored
from tests.support.machines import suite

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="images are Linux's")

SITE: Final = f"lib/python{SERIES}/site-packages"
PYC: Final = PycCompiler(BASE, RUNNING)


@dataclass(frozen=True)
class Image:
    """The environment of an image, laid out in a folder of this machine: its programs name that folder."""

    prefix: Path

    def check(self, folder: Path, *first: str) -> suite.SuiteOutput:
        """first: folders at the start of Python's path."""
        part = make_lock(wheels=[anchored(TOOL)]).resolutions[0]
        locked = {"name": "small", "packages": {"tool": "1.0"}, "expected": asdict(expected_of(part)), "code": []}
        # The archive has what starts Python; the suite needs more of the standard library.
        library = Path(sysconfig.get_path("stdlib"))
        environ = {
            "LD_LIBRARY_PATH": str(self.prefix / "lib"),
            "PYTHONPATH": ":".join([*first, str(library), str(library / "lib-dynload")]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return suite.run(self.prefix / "bin/python", suite.make_request("lock", locked=locked), folder, environ=environ)


def lay_image(root: Path, python: StandalonePython | Venv) -> Image:
    prefix = root / PREFIX
    wheel = root / TOOL.filename
    wheel.write_bytes(TOOL.data)
    scheme = Scheme.of(SERIES) if isinstance(python, StandalonePython) else Scheme.of_venv(SERIES)
    locked = LockedWheel(TOOL.name, TOOL.version, TOOL.filename, TOOL.sha256, wheel)
    lay_out(python.entries(), root)
    if isinstance(python, Venv):
        lay_out(ServicesSource(ImageSettings(), pip=False).entries(), root)
    lay_out(WheelSource((locked,), replace(scheme, interpreter=f"{prefix}/bin/python"), PYC).entries(), root)
    return Image(prefix)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Image:
    root = tmp_path_factory.mktemp("published")
    archive = root / "cpython.tar.gz"
    sha256 = standalone.write(archive, standalone.as_published())
    return lay_image(root, StandalonePython(archive, sha256, RUNNING, frozenset({"tool"}), None))


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return lay_image(tmp_path_factory.mktemp("venv"), Venv(Python(RUNNING, "base"), str(BASE.parent)))


@pytest.mark.parametrize("kind", ["published", "venv"])
def test_an_untouched_image_is_as_locked(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    image: Image = request.getfixturevalue(kind)
    output = image.check(tmp_path / "run")
    assert output.results["lock"]["status"] == "passed", output.results["lock"]
    assert output.wrong("lock") == set()


def edit(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data + b"#\n")


#: File -> the check's reason after an edit.
EDITS: Final = {
    f"{SITE}/README.txt": f"files: {SITE}/README.txt belongs to no package",
    f"{SITE}/pip/__init__.py": f"pip: {SITE}/pip/__init__.py was changed",
    f"{SITE}/pip-23.0.dist-info/METADATA": f"pip: {SITE}/pip-23.0.dist-info/METADATA was changed",
    "bin/pip3": "pip: bin/pip3 was changed",
    "bin/tool": "tool: bin/tool was changed",
}


def test_what_hides_a_package_is_no_fault_of_the_environment(published: Image, tmp_path: Path) -> None:
    hiding = tmp_path / "home"
    (hiding / "tool").mkdir(parents=True)
    (hiding / "tool/__init__.py").write_text("")
    output = published.check(tmp_path / "run", str(hiding))
    assert output.results["lock"]["reason"] == f"tool: {hiding}/tool is earlier on Python's path and hides it"
    assert "PYTHONNOUSERSITE=1" in output.results["lock"]["hint"]


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_is_found(path: str, published: Image, tmp_path: Path) -> None:
    edited, kept = published.prefix / path, tmp_path / "kept"
    shutil.copy2(edited, kept)
    try:
        edit(edited)
        output = published.check(tmp_path / "run")
    finally:
        shutil.copy2(kept, edited)
    assert output.results["lock"]["status"] == "failed"
    assert output.results["lock"]["reason"] == EDITS[path]
