"""An extension of torch for CUDA 12, whose wheels have no nvcc: compiled by that of the devel image, in a container."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from docker import DockerClient

from envspec.image.gpu_code import FatbinScan, union
from envspec.models import GpuCodeFound
from tests.build.test_container import pythons
from tests.operations.test_build_beside import code
from tests.operations.test_build_sdists import with_files
from tests.support import e2e
from tests.support.builders.environments import BASE
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.machines import cuda_toolkit, rootfs, standin
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
        'as_of = 2026-06-01T00:00:00Z\n[pip]\ndependencies = ["torch==2.6.0", "ext"]\nbuild.packages = ["ext"]\n'
        f'[build.ext]\n[cuda]\ngpus = ["{gpu}"]\n'
        f'[image]\nbase = "{base.name}@{base.digest}"\nglibc = "{standin.GLIBC}"\n{rest}'
    )


def built(user: User) -> zipfile.ZipFile:
    row = user.packages()["ext"]["built"]
    # Where tests share a cache, it is not the user's own.
    archives = Path(user.environ["ENVSPEC_CACHE_DIR"]) / "archives"
    return zipfile.ZipFile(archives / row["sha256"] / row["filename"])


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
    assert "ext 1.0.0: its wheel has GPU code sm_75, requested: sm_80" in error


#: An operator, and what torch's own build of extensions makes of its sources.
_SETUP: Final = b"""
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(name="ext", version="1.0.0", ext_modules=[CUDAExtension("ext_ops", ["own.cpp", "kernel.cu"])],
      cmdclass={"build_ext": BuildExtension})
"""
_CPP: Final = b"""
#include <torch/extension.h>
torch::Tensor on_gpu(torch::Tensor x);
torch::Tensor doubled(torch::Tensor x) { return x.is_cuda() ? on_gpu(x) : x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("doubled", &doubled); }
"""
_CU: Final = b"""
#include <torch/extension.h>
__global__ void twice(const float* from, float* to, int64_t count) {
  int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at < count) to[at] = 2 * from[at];
}
torch::Tensor on_gpu(torch::Tensor x) {
  auto from = x.contiguous(), to = torch::empty_like(from);
  twice<<<(from.numel() + 255) / 256, 256>>>(from.data_ptr<float>(), to.data_ptr<float>(), from.numel());
  return to;
}
"""
_PROJECT: Final = b"""
[build-system]
requires = ["setuptools<82", "ninja"]
build-backend = "setuptools.build_meta"
[project]
name = "ext"
version = "1.0.0"
"""


@pytest.mark.network
@pytest.mark.skipif(
    not os.environ.get("ENVSPEC_TEST_LONG"), reason="not run: 20 GB and eight minutes; ENVSPEC_TEST_LONG=1 runs it"
)
def test_real_torch_and_real_nvcc(engine: DockerClient, registry: str, pythons: str, tmp_path: Path) -> None:
    """torch 2.6 for CUDA 12.4 of the index, and nvcc 12.4 of Debian; what is compiled for the GPU is not run."""
    base = standin.layout(("g++", "libpython3.11-dev"))
    made = standin.with_layer(base, cuda_toolkit.members(tmp_path), tmp_path / "layout")
    devel = standin.push(made, registry, "12.4.1-devel-ubuntu22.04")
    shutil.rmtree(tmp_path / "layout")
    files = {"setup.py": _SETUP, "own.cpp": _CPP, "kernel.cu": _CU, "pyproject.toml": _PROJECT}
    own = with_files(sdist("ext", "1.0.0"), files)
    (tmp_path / "www" / own.filename).write_bytes(own.data)
    address = pythons.partition('url = "')[2].partition("mine.tar.gz")[0]
    links = f'[[pip.index]]\nname = "own"\nurl = "{address}"\nformat = "links"\npackages = ["ext"]\n'
    user = e2e.online(tmp_path / "user", NO_PROXY="127.0.0.1")
    user.writes(spec_of(devel, f"{links}{pythons}", "H100"))
    succeeded(user.locks())
    with removed(engine, f"{devel.name.rpartition(':')[0]}@{devel.digest}"):
        ran = succeeded(user.locks("--image"))
    assert "ext 1.0.0: compiling [2/2]" in ran.stderr
    assert gpu_code(built(user)) == GpuCodeFound(("sm_90",), ())
    succeeded(user.runs("install", user.lock, "--prefix", "env", "--python", BASE))
    done = subprocess.run(
        [user.folder / "env/bin/python", "-c", _COMPUTES], capture_output=True, text=True, check=False
    )
    assert done.stdout == "2.6.0+cu124 12.4 [2.0, 4.0]\n", done.stderr
    # Gigabytes, and pytest keeps its folders for a while.
    shutil.rmtree(user.folder)


_COMPUTES: Final = """
import torch, ext_ops
print(torch.__version__, torch.version.cuda, ext_ops.doubled(torch.tensor([1.0, 2.0])).tolist())
"""


def gpu_code(wheel: zipfile.ZipFile) -> GpuCodeFound:
    scans = []
    for name in wheel.namelist():
        scan = FatbinScan()
        scan.write(wheel.read(name))
        scan.close()
        scans.append(scan.found)
    return union(scans)
