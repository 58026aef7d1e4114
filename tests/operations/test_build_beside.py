"""Packages that are compiled beside the lock's own torch: with its wheels, for the spec's GPUs, by nvcc from wheels."""

from __future__ import annotations

import json
import platform
import shutil
import signal
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from envspec.lockfile.folder import read_lock, write_folder
from envspec.operations.lock.complete import lock_files
from envspec.structs import replace
from tests.operations.test_build_sdists import with_files
from tests.support.builders import ecosystem
from tests.support.builders.cuda_library import CUBIN, Code, container, library
from tests.support.builders.environments import BASE, RUNNING, SERIES
from tests.support.builders.images import ImageUser, keep_base, make_base
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.machines.confinement import confined
from tests.support.servers.index import IndexServer
from tests.support.user import refused, succeeded

pytestmark = [confined, pytest.mark.skipif(not shutil.which("g++", path="/usr/bin"), reason="needs g++")]

#: A backend that records what it sees, and "compiles" a library by the nvcc of CUDA_HOME.
_BACKEND = """
import json, os, platform, subprocess, sys, sysconfig, time, zipfile
from pathlib import Path

import torch


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    seen = {name: os.environ.get(name) for name in NAMES}
    work = Path.cwd().parents[1]
    flags = [sysconfig.get_config_var(name) for name in ("CC", "CFLAGS", "LDSHARED", "LDFLAGS")]
    seen |= {"torch": torch.__version__, "flags": flags, "at": os.path.relpath(torch.__file__, work)}
    print("[1/2] nvcc one.o", flush=True)
    if os.environ.get("WAIT"):
        # As ninja's compilers: in a group of their own, with the build's output open; and deaf to signals.
        deaf = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(600)"
        words = [sys.executable, "-c", deaf, "build_wheel"]
        parent = f"import subprocess; subprocess.run({words!r}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", parent, "build_wheel"], start_new_session=True)
    home = Path(os.environ["CUDA_HOME"])
    assert (home / "lib64").is_dir() and (home / "lib/libcudart.so").exists()
    nvcc = os.environ.get("PYTORCH_NVCC", home / "bin/nvcc")
    code = subprocess.run([nvcc, *os.environ.get("CODE", "sm_90").split()], check=True, stdout=-1).stdout
    tag = f"py3-none-linux_{platform.machine()}"
    info = "ext-1.0.0.dist-info"
    content = {
        "ext.py": json.dumps(seen).encode(),
        "ext.so": code,
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
_NAMES = ("MINE", "TORCH_CUDA_ARCH_LIST", "MAX_JOBS", "NVCC_APPEND_FLAGS", "CUDA_VISIBLE_DEVICES", "SECRET")
#: Writes the code of `sm_90`, or of the last of `x.cu -gencode arch=compute_90,code=sm_90`.
_NVCC = b"""#!/bin/sh
for each; do case "$each" in *threads*) exit 1 ;; esac; done
cat "$(dirname "$0")/../code/${each##*=}"
"""


_SM_80 = """
[[facts.extension]]
package = "ext"
versions = ">=1"
module = "ext"
env = { CODE = "sm_80" }
source = "this test"
"""


def tool(name: str, version: str, files: Mapping[str, bytes] | None = None, **others: Any) -> File:
    held = {f"nvidia/cu13/{path}": data for path, data in (files or {f"include/{name}.h": b""}).items()}
    return File(wheel(name, version, files=held, **others), day("2024-01-01"))


def code(*architectures: int) -> bytes:
    return library([(".nv_fatbin", container([Code(CUBIN, each) for each in architectures]))])


def ext(**files: bytes) -> Artifact:
    backend = f"NAMES = {list(_NAMES)}\n{_BACKEND}".encode()
    return with_files(sdist("ext", "1.0.0", metadata_version="2.2"), {"backend.py": backend, **files})


@pytest.fixture
def index() -> Iterator[IndexServer]:
    cuda = ["nvidia-cuda-runtime==13.0.96"]
    every = code(75, 80, 86, 90, 100, 120)
    torch = {"torch/__init__.py": b'__version__ = "2.12.1"\n', "torch/lib/libtorch_cuda.so": every}
    nvcc = {"bin/nvcc": _NVCC, "code/sm_90": code(90), "code/sm_80": code(80), "code/both": code(80, 90)}
    rows = [
        File(wheel("torch", "2.12.1", files=torch, requires=cuda), day("2024-01-01")),
        # Newer, and not the lock's.
        File(wheel("torch", "2.13.0", files={"torch/__init__.py": b'__version__ = "2.13.0"\n'}), day("2024-01-01")),
        tool("nvidia-cuda-runtime", "13.0.96", {"lib/libcudart.so.13": b"", "include/cuda_runtime.h": b""}),
        tool("nvidia-cuda-nvcc", "13.0.88", nvcc),
        tool("nvidia-cuda-nvcc", "13.1.1", {"bin/nvcc": b"#!/bin/sh\nexit 1\n"}),
        tool("nvidia-nvvm", "13.0.88", {"nvvm/bin/cicc": b""}),
        tool("nvidia-cuda-crt", "13.0.88"),
        tool("nvidia-cuda-cccl", "13.0.85"),
        ecosystem.release("lib", "1.0.0"),
        File(ext(), day("2024-01-01")),
    ]
    with IndexServer(rows) as running:
        yield running


def user_of(folder: Path, index: IndexServer, build: str = "", gpus: str = '["H100"]', rest: str = "") -> ImageUser:
    base = make_base()
    found = ImageUser(folder, index.url)
    keep_base(found.cache, base)
    found.wants(
        "ext",
        "torch==2.12.1",
        as_of="2026-06-01T00:00:00Z",
        python=RUNNING,
        pip='build.packages = ["ext"]\n',
        rest=f"[cuda]\ngpus = {gpus}\n[build.ext]\n{build}\n"
        f'[image]\nbase = "docker.io/nvidia/cuda:1@{base.digest}"\nglibc = "{platform.libc_ver()[1]}"\n'
        f'python = "{RUNNING}"\n{rest}',
    )
    return found


def built(user: ImageUser) -> Path:
    row = user.packages()["ext"]["built"]
    return user.cache / "archives" / str(row["sha256"]) / str(row["filename"])


def seen(user: ImageUser) -> dict[str, Any]:
    with zipfile.ZipFile(built(user)) as archive:
        found: dict[str, Any] = json.loads(archive.read("ext.py"))
    return found


def test_the_build_sees_the_locked_torch_its_own_variables_and_the_gpus_of_the_spec(
    tmp_path: Path, index: IndexServer
) -> None:
    user = user_of(tmp_path, index, 'jobs = 3\nrequires = ["lib"]\nenv = { MINE = "yes" }')
    ran = succeeded(user.locks("--image", SECRET="leaks", TORCH_CUDA_ARCH_LIST="8.0"))
    found = seen(user)
    assert found.pop("at") == f"env/lib/python{RUNNING.rpartition('.')[0]}/site-packages/torch/__init__.py"
    # Not those of the Python that builds, which differ between Pythons of one series.
    assert found.pop("flags") == ["gcc", "-DNDEBUG -fwrapv -O3", "gcc -shared", ""]
    assert found == {
        "torch": "2.12.1",
        "MINE": "yes",
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "MAX_JOBS": "3",
        "NVCC_APPEND_FLAGS": "-objtemp -frandom-seed=0",
        "CUDA_VISIBLE_DEVICES": "",
        "SECRET": None,
    }
    assert "ext 1.0.0: building for sm_90: an unknown time, 3 compilers at once" in ran.stderr
    assert "ext 1.0.0: compiling [1/2], about 1 minute left\n" in ran.stderr
    recorded = user.document()["resolution"][0]["build"][0]
    assert recorded["gpu_code"] == ["sm_90"] and "g++" in recorded["compiler"]
    assert user.locks("--check").status == 0


def test_two_machines_build_the_same_bytes_and_the_cache_has_them(tmp_path: Path, index: IndexServer) -> None:
    users = [user_of(tmp_path / name, index) for name in ("a", "b")]
    for user in users:
        succeeded(user.locks("--image"))
    assert built(users[0]).read_bytes() == built(users[1]).read_bytes()
    again = succeeded(users[0].locks("--image", "--upgrade"))
    assert "compilers at once" not in again.stderr


def test_it_is_built_again_for_another_gpu_and_for_other_variables(tmp_path: Path, index: IndexServer) -> None:
    user = user_of(tmp_path, index)
    succeeded(user.locks("--image"))
    first = built(user)
    user_of(tmp_path, index, 'env = { CODE = "sm_80" }', '["A100"]')
    succeeded(user.locks("--image"))
    assert built(user) != first and seen(user)["TORCH_CUDA_ARCH_LIST"] == "8.0"


def test_the_cost_follows_from_the_row_of_the_facts(tmp_path: Path, index: IndexServer) -> None:
    row = (
        '[[facts.extension]]\npackage = "ext"\nversions = ">=1"\nmodule = "ext"\nminutes = 40\nmemory_mib = 100\n'
        'arch = "MY_ARCH"\narch_form = "80"\njobs = "MY_JOBS"\nenv = { CODE = "both" }\nsource = "this test"\n'
    )
    user = user_of(tmp_path, index, "jobs = 2", '["A100", "H100"]', row)
    ran = succeeded(user.locks("--image"))
    assert "building for sm_80, sm_90: about 40 minutes, 2 compilers at once" in ran.stderr
    recorded = user.document()["resolution"][0]["build"][0]
    assert recorded["env"] == {"CODE": "both", "MY_ARCH": "80;90"} and recorded["limit"] == "MY_JOBS"
    user_of(tmp_path, index, "jobs = 2", '["A100", "H100"]', f"{row}serial = true\n")
    user.locked()
    assert user.document()["resolution"][0]["build"][0]["jobs"] == 1


def test_it_is_compiled_for_the_nearest_gpus_that_its_sources_know(tmp_path: Path, index: IndexServer) -> None:
    row = (
        '[[facts.extension]]\npackage = "ext"\nversions = ">=1"\nmodule = "ext"\n'
        'archs = ["sm_80", "sm_90"]\nsource = "this test"\n'
    )
    user = user_of(tmp_path, index, gpus='["A100", "A10", "L4"]', rest=row)
    user.locked()
    assert user.document()["resolution"][0]["build"][0]["gpu_code"] == ["sm_80"]
    error = refused(user_of(tmp_path, index, gpus='["T4", "A100"]', rest=row).locks(), 4)
    assert "ext >=1 has no code for T4 (sm_75): its sources compile for sm_80, sm_90" in error


@pytest.mark.parametrize(
    "flags",
    [
        "-gencode arch=compute_80,code=sm_80",
        "x.cu -gencode=arch=compute_80,code=sm_80 -O3 --generate-code arch=compute_75,code=sm_75",
        "-arch sm_80 x.cu",
        "--gpu-architecture=sm_80 --gpu-code sm_80",
        "--threads 4 -arch=sm_80 --threads=2",
    ],
)
def test_a_build_with_its_own_list_of_architectures_gets_those_of_the_spec(
    flags: str, tmp_path: Path, index: IndexServer
) -> None:
    row = (
        '[[facts.extension]]\npackage = "ext"\nversions = ">=1"\nmodule = "ext"\n'
        f'arch = "ENVSPEC_NVCC_ARCHITECTURES"\narch_form = "80"\nenv = {{ CODE = "{flags}" }}\nsource = "this test"\n'
    )
    user = user_of(tmp_path, index, rest=row)
    succeeded(user.locks("--image"))
    recorded = user.document()["resolution"][0]["build"][0]
    assert recorded["env"] == {"CODE": flags, "ENVSPEC_NVCC_ARCHITECTURES": "90"}
    assert recorded["gpu_code"] == ["sm_90"]


def test_a_build_beside_cuda_without_gpus_is_refused_unless_its_variable_names_them(
    tmp_path: Path, index: IndexServer
) -> None:
    error = refused(user_of(tmp_path, index, gpus="[]").locks(), 4)
    assert "ext 1.0.0 on linux-64 is compiled beside torch for CUDA, and the spec does not name the GPUs" in error
    assert 'gpus = ["A100", "H100"]' in error
    user = user_of(tmp_path, index, 'env = { TORCH_CUDA_ARCH_LIST = "9.0" }', "[]")
    user.locked()
    assert user.document()["resolution"][0]["build"][0]["gpu_code"] == ["sm_90"]


@pytest.mark.parametrize(("made", "named"), [("sm_80", "sm_80"), ("both", "sm_80, sm_90")])
def test_a_wheel_with_other_gpu_code_is_refused(tmp_path: Path, index: IndexServer, made: str, named: str) -> None:
    user = user_of(tmp_path, index, f'env = {{ CODE = "{made}" }}')
    succeeded(user.locks())
    error = refused(user.locks("--image"), 4)
    assert f"ext 1.0.0: its wheel has GPU code {named}, requested: sm_90" in error


def test_a_cancelled_build_leaves_no_process_and_no_folder(tmp_path: Path, index: IndexServer) -> None:
    user = user_of(tmp_path, index, 'env = { WAIT = "yes" }')
    succeeded(user.locks())
    run = user.starts("--image")
    limit = time.monotonic() + 60
    while len(waiting := _processes(user)) < 3 and time.monotonic() < limit:
        time.sleep(0.1)
    assert len(waiting) >= 3
    words = Path("/proc", waiting[0], "environ").read_bytes().split(b"\0")
    work = Path(next(word for word in words if word.startswith(b"HOME=")).decode().partition("=")[2]).parent
    assert work.name.startswith("envspec-build-") and work.is_dir()
    before = time.monotonic()
    run.child.signal(signal.SIGINT)
    assert run.ends(30).status == 130
    # A folder of gigabytes takes longer to remove; this one is small.
    while any(Path("/proc", each).exists() for each in waiting) and time.monotonic() < before + 5:
        time.sleep(0.1)
    assert time.monotonic() < before + 5
    assert not any(Path("/proc", each).exists() for each in waiting)
    assert not work.exists()
    assert not list(user.cache.glob("archives/.built-*"))


def _processes(user: ImageUser) -> list[str]:
    """The processes of a build that waits in the backend."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "environ").read_bytes().split(b"\0")
            if b"WAIT=yes" in words and b"build_wheel" in (each / "cmdline").read_bytes():
                found.append(each.name)
        except OSError:
            continue
    return found


def test_settings_that_the_spec_does_not_have_are_found_in_a_lock(tmp_path: Path, index: IndexServer) -> None:
    user = user_of(tmp_path, index, 'env = { MINE = "yes" }')
    user.locked()
    lock = read_lock(user.lock)
    (settings,) = lock.resolutions[0].builds
    others = replace(settings, env=(*settings.env, ("LD_PRELOAD", "/tmp/x.so")))
    part = replace(lock.resolutions[0], builds=(others,))
    write_folder(user.lock, lock_files(replace(lock, resolutions=(part,))))
    ran = user.locks("--check")
    assert ran.status == 3
    assert "linux-64: build.ext.env.LD_PRELOAD: /tmp/x.so -> (none)" in ran.stderr


def test_a_name_that_is_no_sdist_of_the_lock_is_a_warning(tmp_path: Path, index: IndexServer) -> None:
    user = user_of(tmp_path, index, rest="[build.torch]\njobs = 2\n[build.other]\njobs = 2\n")
    ran = user.locked()
    assert "[build.other] has no effect: other is not in the lock" in ran.warnings
    assert "[build.torch] has no effect: torch is locked as a wheel" in ran.warnings


def test_another_machine_takes_the_wheel_from_a_folder_and_builds_nothing(tmp_path: Path, index: IndexServer) -> None:
    first = user_of(tmp_path / "first", index)
    succeeded(first.locks("--image"))
    second = _with_lock_of(first, tmp_path / "second", index)
    index.forget()
    place = str(first.cache / "archives")
    ran = succeeded(
        second.runs(
            "install", second.lock, "--prefix", "env", "--python", BASE, environ={"ENVSPEC_BUILT_WHEELS": place}
        )
    )
    assert "its build requires" not in ran.stderr and "building" not in ran.stderr
    asked = [each.path for each in index.requests]
    assert not any("ext-1.0.0.tar.gz" in path or "nvcc" in path for path in asked)
    assert built(second).read_bytes() == built(first).read_bytes()
    site = second.folder / "env" / "lib" / f"python{SERIES}" / "site-packages"
    with zipfile.ZipFile(built(first)) as archive:
        assert (site / "ext.so").read_bytes() == archive.read("ext.so")


@pytest.mark.parametrize("compiler", ["this machine's", "g++ (Other 1) 99.1, glibc 2.36"])
def test_another_wheel_in_the_folder_is_refused(tmp_path: Path, index: IndexServer, compiler: str) -> None:
    """It is a real one, for another GPU. Without the lock's compiler, nothing is built in its place."""
    first, other = user_of(tmp_path / "first", index), user_of(tmp_path / "other", index, gpus='["A100"]', rest=_SM_80)
    for user in (first, other):
        succeeded(user.locks("--image"))
    row = first.packages()["ext"]["built"]
    place = tmp_path / "place" / str(row["sha256"])
    place.mkdir(parents=True)
    shutil.copy(built(other), place / str(row["filename"]))
    if compiler != "this machine's":
        lock = read_lock(first.lock)
        part = lock.resolutions[0]
        part = replace(part, builds=(replace(part.builds[0], compiler=compiler),))
        write_folder(first.lock, lock_files(replace(lock, resolutions=(part,))))
    second = _with_lock_of(first, tmp_path / "second", index)
    words = ("install", second.lock, "--prefix", "env", "--python", BASE)
    ran = second.runs(*words, environ={"ENVSPEC_BUILT_WHEELS": str(place.parent)})
    assert f"ext 1.0.0: its wheel can't be fetched from {place.parent}" in ran.stderr
    if compiler == "this machine's":
        assert "ext 1.0.0: building for sm_90" in succeeded(ran).stderr
        assert built(second).read_bytes() == built(first).read_bytes()
    else:
        error = refused(ran, 6)
        assert f"the locked wheel was compiled by {compiler}, and this machine has" in error
        assert not (second.folder / "env").exists()


def _with_lock_of(first: ImageUser, folder: Path, index: IndexServer) -> ImageUser:
    """Another machine, with a cache of its own."""
    second = ImageUser(folder, index.url)
    shutil.copytree(first.lock, second.lock)
    return second
