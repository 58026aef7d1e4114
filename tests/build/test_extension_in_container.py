"""An extension of torch for CUDA 12, whose wheels have no nvcc: compiled by that of the devel image, in a container."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from docker import DockerClient

from tests.build.test_container import pythons
from tests.operations.test_build_beside import code
from tests.operations.test_build_sdists import with_files
from tests.support.builders.environments import BASE
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.machines import rootfs, standin
from tests.support.machines.confinement import confined
from tests.support.machines.engine import removed
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

__all__ = ["pythons"]
pytestmark = [pytest.mark.engine, confined]

#: As torch.utils.cpp_extension: nvcc is that of CUDA_HOME, else of PATH, its version is looked at, and a variable names
#: the architectures.
_CPP_EXTENSION: Final = b"""
import os, shutil, subprocess
from pathlib import Path

nvcc = shutil.which("nvcc")
CUDA_HOME = os.environ.get("CUDA_HOME") or (nvcc and str(Path(nvcc).parents[1]))


def compiled(source):
    nvcc = Path(CUDA_HOME, "bin/nvcc")
    assert "release 12.4" in subprocess.run([nvcc, "--version"], check=True, stdout=-1, text=True).stdout
    codes = [f"sm_{each.replace('.', '')}" for each in os.environ["TORCH_CUDA_ARCH_LIST"].split(";")]
    return subprocess.run([nvcc, source, *codes], check=True, stdout=-1).stdout
"""
_BACKEND: Final = b"""
import json, os, platform, zipfile
from pathlib import Path

import torch
from torch.utils import cpp_extension


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    tag = f"py3-none-linux_{platform.machine()}"
    info = "ext-1.0.0.dist-info"
    seen = {"torch": torch.__version__, "cuda": cpp_extension.CUDA_HOME, "at": os.getcwd()}
    content = {
        "ext.py": f"SEEN = {seen!r}\\n".encode(),
        "ext.so": cpp_extension.compiled("own.cu"),
        f"{info}/METADATA": Path("PKG-INFO").read_bytes(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: false\\nTag: {tag}\\n".encode(),
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in (*content, f"{info}/RECORD")).encode()
    name = f"ext-1.0.0-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return name
"""
#: Writes the code of the architecture that it is called for.
_NVCC: Final = b"""#!/bin/sh
[ "$1" = --version ] && exec echo "Cuda compilation tools, release 12.4, V12.4.131"
for each; do :; done
cat "${0%/*}/../code/$each"
"""
_HOME: Final = "usr/local/cuda-12.8"


@pytest.fixture(scope="module")
def devel(registry: str, standin_layout: standin.Layout, tmp_path_factory: pytest.TempPathFactory) -> standin.Pushed:
    """The stand-in with an nvcc that writes code made up, for one architecture of another one."""
    files = {"bin/nvcc": _NVCC, "code/sm_90": code(90), "code/sm_80": code(75)}
    members = [rootfs.file(f"{_HOME}/{name}", content, 0o755) for name, content in files.items()]
    made = standin.with_layer(standin_layout, members, tmp_path_factory.mktemp("devel") / "layout")
    return standin.push(made, registry, "12.4.1-devel-ubuntu22.04")


@pytest.fixture
def pulled(engine: DockerClient, devel: standin.Pushed) -> Iterator[None]:
    with removed(engine, f"{devel.name.rpartition(':')[0]}@{devel.digest}"):
        yield


@pytest.fixture
def index() -> Iterator[IndexServer]:
    torch = {
        "torch/__init__.py": b'__version__ = "2.6.0+cu124"\n',
        "torch/utils/__init__.py": b"",
        "torch/utils/cpp_extension.py": _CPP_EXTENSION,
        "torch/lib/libtorch_cuda.so": code(80, 90),
    }
    ext = with_files(sdist("ext", "1.0.0", metadata_version="2.2"), {"backend.py": _BACKEND, "own.cu": b"// code"})
    rows: list[Artifact] = [
        wheel("torch", "2.6.0", files=torch, requires=["nvidia-cuda-runtime-cu12==12.4.127"]),
        wheel("nvidia-cuda-runtime-cu12", "12.4.127"),
        ext,
    ]
    with IndexServer([File(each, day("2025-02-01")) for each in rows]) as running:
        yield running


def spec_of(base: standin.Pushed, rest: str, gpu: str, python: str = standin.PYTHON) -> str:
    return (
        f'[env]\nname = "small"\npython = "{python}"\npython_source = "standalone"\nplatforms = ["linux-64"]\n'
        'as_of = 2026-06-01T00:00:00Z\n[pip]\ndependencies = ["torch==2.6.0", "ext"]\nallow_sdist = ["ext"]\n'
        f'[build.ext]\n[cuda]\ngpus = ["{gpu}"]\n'
        f'[image]\nbase = "{base.name}@{base.digest}"\nglibc = "{standin.GLIBC}"\n{rest}'
    )


def built(user: User) -> zipfile.ZipFile:
    row = user.packages()["ext"]["built"]
    return zipfile.ZipFile(user.cache / "archives" / row["sha256"] / row["filename"])


@pytest.mark.usefixtures("pulled")
def test_it_is_compiled_beside_the_locked_torch_by_the_images_nvcc(
    devel: standin.Pushed, index: IndexServer, pythons: str, tmp_path: Path
) -> None:
    user = User(tmp_path, index.url, NO_PROXY="127.0.0.1")
    user.writes(spec_of(devel, pythons, "H100"))
    ran = succeeded(user.locks("--image"))
    assert "ext 1.0.0: building for sm_90" in ran.stderr
    with built(user) as archive:
        seen = archive.read("ext.py").decode()
        assert archive.read("ext.so") == code(90)
    assert seen == "SEEN = {'torch': '2.6.0+cu124', 'cuda': '/usr/local/cuda', 'at': '/.envspec-build/src'}\n"
    (recorded,) = user.document()["resolution"][0]["build"]
    assert recorded["gpu_code"] == ["sm_90"] and "compiler" not in recorded
    succeeded(user.locks("--check"))
    succeeded(user.runs("image", "build", user.lock))
    succeeded(user.runs("install", user.lock, "--prefix", "env", "--python", BASE))
    assert next(user.folder.glob("env/lib/python*/site-packages/ext.so")).read_bytes() == code(90)


@pytest.mark.usefixtures("pulled")
def test_code_for_another_gpu_is_refused(
    devel: standin.Pushed, index: IndexServer, pythons: str, tmp_path: Path
) -> None:
    user = User(tmp_path, index.url, NO_PROXY="127.0.0.1")
    user.writes(spec_of(devel, pythons, "A100"))
    succeeded(user.locks())
    error = refused(user.locks("--image"), 4)
    assert "ext 1.0.0: its wheel has GPU code sm_75, asked for: sm_80" in error
