"""Real wheels, laid as pip lays them. They come from the package index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envspec.image.libraries import LibraryObserver
from envspec.image.sources.wheel import WheelSource
from envspec.models import GpuCodeFound
from tests.support.builders.entries import content as content_of
from tests.support.builders.wheel_trees import (
    SERIES,
    differences,
    hashed,
    locked,
    pip_environ,
    pip_tree,
    scheme_of_pip,
    tree_of,
)

#: What is odd about each.
_WHEELS = {
    "numpy==1.26.4": "brings bytecode of its own",
    "jupyterlab==4.4.0": "data files below share and etc",
    "notebook==7.4.0": "data files, entry points",
    "torch-geometric==2.6.1": "pure, many modules",
    "setuptools==80.9.0": "modules that are wheels' own, entry points that are no programs",
    "tensorboard==2.19.0": "entry points, assets",
    "ninja==1.13.0": "a program in C++ among its scripts",
    "greenlet==3.2.3": "headers",
    "pip==25.2": "programs that are named for the Python",
    "jupyterlab-widgets==3.0.15": "data files alone",
}


@pytest.mark.network
@pytest.mark.parametrize("requirement", _WHEELS)
def test_a_layer_is_what_pip_installs(requirement: str, tmp_path: Path) -> None:
    if requirement.startswith("numpy") and sys.version_info >= (3, 13):
        pytest.skip("numpy 1.26 has no wheel for Python 3.13")
    path = _download(tmp_path, requirement)
    wheel = locked(path)
    pips = pip_tree(tmp_path, [hashed(wheel)], "--no-index", "--find-links", str(tmp_path))
    ours = tree_of(WheelSource((wheel,), scheme_of_pip(), None).entries())
    assert differences(ours, pips) == [], f"with Python {SERIES}"


@pytest.mark.network
def test_the_gpu_code_of_a_wheel(tmp_path: Path) -> None:
    """What cuobjdump 12.8 shows: seven architectures in `_C.so`; more, and PTX, in the libnvjpeg that it brings."""
    wheel = locked(
        _download(
            tmp_path,
            "torchvision==0.24.1",
            *("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_28_x86_64"),
        )
    )
    source = WheelSource((wheel,), scheme_of_pip(), None)
    watch = LibraryObserver(source.wheels)
    for entry in source.entries():
        if (scan := watch(entry)) is not None:
            scan.write(content_of(entry))
            scan.close()
            if entry.path.endswith("/_C.so"):
                own = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
                assert scan.code == GpuCodeFound(own, ())
    numbers = (50, 52, 60, 61, 70, 75, 80, 86, 89, 90, 100, 101, 120)
    ((sha256, content),) = watch.found()
    assert sha256 == wheel.sha256
    assert content.gpu_code == GpuCodeFound(tuple(f"sm_{each}" for each in numbers), ("compute_120",))
    assert "libtorch_cuda.so" in next(each.needed for each in content.libraries if each.name == "_C.so")


def _download(folder: Path, requirement: str, *words: str) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
        *("--dest", str(folder), *words, requirement),
    ]
    subprocess.run(command, check=True, env=pip_environ())
    (path,) = folder.glob("*.whl")
    return path
