"""What modules need and nothing has: by wheels, by an installed environment, and in how much time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envspec.facts import load_facts
from envspec.image.libraries import missing_libraries, read_libraries
from envspec.models import Library, Package
from envspec.operations.environment import missing_system_libraries
from tests.support.builders.elf_library import elf
from tests.support.builders.locks import X86, package, resolution

_SYSTEM = {"libc.so.6", "libstdc++.so.6"}


def _missing(packages: Mapping[str, Sequence[Library]], os: str = "ubuntu24.04") -> list[tuple[str, ...]]:
    contents: dict[Package, Sequence[Library]] = {package(name, "1.0"): each for name, each in packages.items()}
    found = missing_libraries(contents, os, _SYSTEM.__contains__, load_facts())
    return [(each.package.name, *each.libraries, "|", *each.apt) for each in found]


def test_what_a_module_needs_by_its_own_libraries() -> None:
    qt = Library("libQt5Gui-1a.so.5", "libQt5Gui-1a.so.5", ("libGL.so.1", "libc.so.6"))
    module = Library("cv2.abi3.so", "", ("libQt5Gui-1a.so.5", "libgthread-2.0.so.0"))
    assert _missing({"x": [module, qt]}) == [
        ("x", "libGL.so.1", "libgthread-2.0.so.0", "|", "libgl1", "libglib2.0-0t64"),
    ]


def test_plugins_and_libraries_for_other_systems_are_not_counted() -> None:
    plugin = Library("libqxcb.so", "", ("libX11.so.6",))
    assert _missing({"x": [Library("x.so", "", ("libc.so.6",)), plugin]}) == []


def test_another_wheel_the_driver_and_cuda_have_it() -> None:
    module = Library("_C.cpython-311-x86_64-linux-gnu.so", "", ("libtorch.so", "libcuda.so.1", "libcudart.so.12"))
    torch = Library("libtorch-1.so", "libtorch.so", ())
    assert _missing({"x": [module], "torch": [torch]}) == []
    assert _missing({"x": [module]}) == [("x", "libtorch.so", "|")]


def test_what_a_package_does_without() -> None:
    pool = [Library("tbbpool.cpython-311-x86_64-linux-gnu.so", "", ("libtbb.so.12",))]
    assert _missing({"numba": pool}) == []
    assert _missing({"other": pool}) == [("other", "libtbb.so.12", "|", "libtbb12")]


def test_libraries_that_need_each_other_end() -> None:
    one, two = Library("liba.so", "liba.so", ("libb.so",)), Library("libb.so", "libb.so", ("liba.so", "libz9.so.1"))
    assert _missing({"x": [Library("m.so", "", ("liba.so",)), one, two]}) == [("x", "libz9.so.1", "|")]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An environment with one wheel, whose module needs libGL and the C library."""
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    info = site / "opencv_python-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "cv2").mkdir()
    (site / "cv2" / "cv2.abi3.so").write_bytes(elf(["libGL.so.1", "libc.so.6"]))
    (site / "cv2" / "data.so").write_bytes(b"no library")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opencv-python\nVersion: 1.0\n", encoding="utf-8")
    (info / "RECORD").write_text("cv2/cv2.abi3.so,,\ncv2/data.so,,\ncv2/gone.so,,\n", encoding="utf-8")
    return tmp_path / "env"


def test_an_installed_environment(prefix: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libc.so.6").touch()
    part = resolution(X86, package("opencv-python", "1.0"))
    (text,) = missing_system_libraries(part, prefix, [folder], "debian12")
    assert text == (
        "opencv-python 1.0: cv2.abi3.so needs libGL.so.1, which neither the environment nor this machine has: "
        "apt-get install libgl1"
    )
    (folder / "libGL.so.1").touch()
    assert list(missing_system_libraries(part, prefix, [folder], "debian12")) == []
    assert [each.name for each in read_libraries(prefix.rglob("*"))] == ["cv2.abi3.so"]


def test_this_machine_has_its_own_libraries(prefix: Path) -> None:
    """The loader's folders: whatever this machine lacks, it is not the C library."""
    found = list(missing_system_libraries(resolution(X86, package("opencv-python", "1.0")), prefix))
    assert not any("libc.so.6" in text for text in found)
