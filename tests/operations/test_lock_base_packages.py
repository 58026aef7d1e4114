"""`[image] packages = "keep"`: a made base with a made torch, on a registry of loopback, by the user's own commands."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import pytest

from tests.support.builders import base_packages, ecosystem
from tests.support.builders.base_packages import Link, distribution, layer, system, torch
from tests.support.builders.ecosystem import release
from tests.support.builders.images import ImageUser, RegistryInThread, hold_base, make_base
from tests.support.builders.projects import PLAIN, File, day
from tests.support.builders.wheels import sdist
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import PushRegistry, digest
from tests.support.user import refused, succeeded

NVIDIA = "2.9.0a0+145a3a7.nv25.9"
KEEP = '[image]\nbase = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"\npackages = "keep"\ncompiler = "none"\n'
H100, T4 = '[cuda]\ngpus = ["H100"]\n', '[cuda]\ngpus = ["T4"]\n'
NUMPY = distribution("numpy", "1.26.4")


@pytest.fixture(scope="module")
def public() -> Iterator[IndexServer]:
    own = [
        release("needs-torch", "1.0.0", requires=["torch>=2.9.0a0", "numpy<2", "extra-part"]),
        release("needs-numpy-2", "1.0.0", requires=["numpy>=2"]),
        release("needs-vision", "1.0.0", requires=["torchvision"]),
        release("extra-part", "1.0.0"),
        release("extra-part", "2.0.0"),
        File(sdist("compiled-one", "1.0.0"), day("2024-01-01")),
    ]
    with IndexServer([*ecosystem.torch_family(), *own]) as index:
        yield index


@pytest.fixture
def registry() -> Iterator[RegistryInThread]:
    with RegistryInThread(PushRegistry()) as registry:
        yield registry


class Owner(ImageUser):
    """A user with a base of their own."""

    def __init__(self, folder: Path, index: str, registry: RegistryInThread) -> None:
        super().__init__(folder, index, registry.host)
        self.registry = registry

    def has_base(self, *layers: bytes, env: Mapping[str, str] = {}) -> None:
        hold_base(self.registry.held, make_base(blobs_of=layers, env=env))

    def keeps(self, *dependencies: str, rest: str = "", pip: str = "", python: str = "3.11") -> None:
        self.wants(*dependencies, as_of="2026-06-01T00:00:00Z", python=python, pip=pip, rest=rest + KEEP)

    def installed(self) -> dict[str, str]:
        return {each["name"]: each["version"] for each in self.document()["resolution"][0]["installed"]}


@pytest.fixture
def owner(tmp_path: Path, public: IndexServer, registry: RegistryInThread) -> Owner:
    return Owner(tmp_path, public.url, registry)


def test_what_the_base_has_is_recorded_and_never_locked_again(owner: Owner) -> None:
    owner.has_base(layer(system()), layer(torch(NVIDIA), NUMPY), env={"CUDA_VERSION": "13.0.1.012"})
    owner.keeps("needs-torch", "torch", rest=H100)
    owner.locked()
    assert owner.pins() == {"needs-torch": "1.0.0", "extra-part": "2.0.0"}
    assert owner.installed() == {"torch": NVIDIA, "numpy": "1.26.4"}
    part = owner.document()["resolution"][0]
    assert part["python"] == {"version": "3.11.7", "source": "base"}
    assert part["glibc"] == "2.36"
    assert part["on_top_of"]["home"] == "/usr/bin" and part["on_top_of"]["site"] == f"/{base_packages.SITE}"
    by = {each["name"]: each["required_by"] for each in part["installed"]}
    assert by["numpy"] == [{"name": "needs-torch", "requirement": "numpy<2"}]
    (code,) = owner.document()["gpu_code"]
    assert (code["version"], code["variant"], code["sm"]) == (NVIDIA, "cu130", ["sm_80", "sm_90"])
    assert owner.document()["driver"]["minimum"]
    assert owner.locks("--check").status == 0


def test_layers_are_read_once(owner: Owner) -> None:
    layers = layer(system()), layer(torch(NVIDIA), NUMPY)
    owner.has_base(*layers)
    owner.keeps("needs-torch")
    owner.locked()
    before = owner.files()
    asked = [ask.path.rpartition("/")[2] for ask in owner.registry.held.asked]
    assert [asked.count(digest(each)) for each in layers] == [1, 1]
    owner.registry.forget()
    owner.keeps("needs-torch", "extra-part<2")
    owner.locked()
    assert owner.pins()["extra-part"] == "1.0.0"
    assert not [ask for ask in owner.registry.held.asked if "/blobs/" in ask.path]
    owner.keeps("needs-torch")
    owner.locked("--offline")
    assert owner.files() == before


def test_requirements_that_the_base_does_not_satisfy(owner: Owner) -> None:
    owner.has_base(layer(system(), torch(NVIDIA), NUMPY))
    owner.keeps("torch>=2.9")
    error = refused(owner.locks(), 4)
    assert f"nvidia/cuda:12.8.1-base-ubuntu24.04 has torch {NVIDIA}" in error
    assert "[pip] dependencies requires torch>=2.9" in error
    owner.keeps("needs-numpy-2")
    error = refused(owner.locks(), 4)
    assert "has numpy 1.26.4" in error and "needs-numpy-2" in error
    owner.keeps("needs-torch", pip='constraints = ["numpy>=2"]\n')
    assert "pip.constraints has numpy>=2" in refused(owner.locks(), 4)


@pytest.mark.parametrize("asked", ["torchvision", "needs-vision"])
def test_the_family_of_a_torch_that_is_no_release(owner: Owner, asked: str) -> None:
    owner.has_base(layer(system(), torch(NVIDIA), NUMPY))
    owner.keeps(asked)
    error = refused(owner.locks(), 4)
    assert "torchvision" in error and NVIDIA in error
    owner.has_base(layer(system(), torch(NVIDIA), NUMPY, distribution("torchvision", "0.24.0a0+98f8b375")))
    owner.keeps(asked)
    owner.locked("--upgrade")
    assert "torchvision" not in owner.pins()


def test_the_family_of_a_release_fits_it(owner: Owner) -> None:
    """The base's torch is for CUDA 12.6, which is not the default build of its release."""
    owner.has_base(layer(system(), torch("2.8.0+cu126"), NUMPY))
    with IndexServer(ecosystem.pytorch_index("cu126"), PLAIN, prefix="/whl/cu126") as index:
        owner.environ["ENVSPEC_PYTORCH_INDEX"] = index.url.replace("cu126", "{variant}")
        owner.keeps("torchvision", "torchaudio", rest="[cuda]\n")
        owner.locked()
        assert owner.pins() == {"torchvision": "0.23.0+cu126", "torchaudio": "2.8.0+cu126"}
        owner.keeps("torchvision==0.24.*", rest="[cuda]\n")
        error = refused(owner.locks(), 4)
        assert "has torch 2.8.0+cu126" in error and "torchvision 0.23.0" in error


def test_a_torch_without_code_for_the_gpus(owner: Owner) -> None:
    owner.has_base(layer(system()), layer(torch(NVIDIA)), env={"CUDA_VERSION": "13.0.1"})
    owner.keeps("torch", rest=T4)
    error = refused(owner.locks(), 4)
    assert f"T4 (sm_75) can't run this lock: torch {NVIDIA} on linux-64 has code for sm_80 sm_90" in error
    assert "install on top of a torch that has code for sm_75" in error


def test_a_torch_for_the_cpu(owner: Owner) -> None:
    owner.has_base(layer(system(), torch(NVIDIA, sm=())))
    owner.keeps("torch", rest=H100)
    assert "a CPU build" in owner.locks().stderr


def test_no_build_beside_the_torch_of_a_base(owner: Owner) -> None:
    owner.has_base(layer(system(), torch(NVIDIA), NUMPY))
    owner.keeps(
        "compiled-one", pip='build.packages = ["compiled-one"]\n', rest='[build.compiled-one]\nrequires = ["torch"]\n'
    )
    error = refused(owner.locks(), 4)
    assert "compiled-one 1.0.0 is compiled beside torch, which is not in the lock but in" in error


def test_verify_reads_the_base_again(owner: Owner) -> None:
    owner.has_base(layer(system()), layer(torch(NVIDIA), NUMPY))
    owner.keeps("needs-torch")
    owner.locked()
    assert owner.locks("--verify").status == 0


def test_explain_and_diff_name_what_the_base_has(owner: Owner) -> None:
    owner.has_base(layer(system(), torch(NVIDIA), NUMPY), env={"CUDA_VERSION": "13.0.1"})
    owner.keeps("needs-torch", rest=H100)
    owner.locked()
    explained = owner.runs("explain", owner.lock, "torch")
    assert explained.status == 0, explained.stderr
    assert f"torch {NVIDIA} on linux-64" in explained.stdout and "is there already" in explained.stdout
    assert "needs-torch 1.0.0: torch>=2.9.0a0" in explained.stdout and "sm_80 sm_90" in explained.stdout
    whole = owner.runs("explain", owner.lock)
    assert "on top of docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04, which has 2 packages" in whole.stdout
    before = owner.folder / "before"
    shutil.copytree(owner.lock, before)
    owner.has_base(layer(system(), torch(NVIDIA), distribution("numpy", "1.26.3")), env={"CUDA_VERSION": "13.0.1"})
    owner.locked("--upgrade")
    [line] = [each for each in owner.runs("diff", before, owner.lock).stdout.splitlines() if "base.numpy" in each]
    assert "1.26.4" in line and "1.26.3" in line


def test_layers_hide_what_is_below(owner: Owner) -> None:
    below = layer(system(), torch("2.8.0"), distribution("numpy", "2.2.0"), distribution("gone", "1.0"))
    folder = f"{base_packages.SITE}/numpy-2.2.0.dist-info"
    above = layer(
        {f"{base_packages.SITE}/.wh.numpy-2.2.0.dist-info": b"", f"{base_packages.SITE}/.wh.gone-1.0.dist-info": b""}
    )
    owner.has_base(below, above, layer(NUMPY))
    owner.keeps()
    owner.locked()
    assert owner.installed() == {"torch": "2.8.0", "numpy": "1.26.4"}, folder


def test_a_virtual_environment_of_the_base(owner: Owner) -> None:
    site = "opt/venv/lib/python3.11/site-packages"
    venv: base_packages.Files = {
        "opt/venv/bin/python3": Link("/usr/bin/python3"),
        "opt/venv/pyvenv.cfg": b"home = /usr/bin\ninclude-system-site-packages = false\n",
    }
    owner.has_base(
        layer(system(), NUMPY), layer(venv, torch(NVIDIA, site=site)), env={"PATH": "/opt/venv/bin:/usr/bin:/bin"}
    )
    owner.keeps("torch")
    owner.locked()
    assert owner.installed() == {"torch": NVIDIA}
    assert owner.document()["resolution"][0]["on_top_of"]["nested"] == f"/{site}"


def test_the_dockerfile_installs_on_top_as_well(owner: Owner) -> None:
    owner.has_base(layer(system()), layer(torch(NVIDIA), NUMPY))
    owner.keeps("needs-torch")
    owner.locked()
    lines = succeeded(owner.runs("export", owner.lock, "--format", "dockerfile")).stdout
    assert "/usr/bin/python3.11 -m venv --without-pip --system-site-packages /opt/env" in lines
    assert f"> /{base_packages.SITE}/envspec.pth" in lines


def test_constraints_of_the_base(owner: Owner) -> None:
    files = {"etc/pip/constraint.txt": b"# NVIDIA's\nextra-part==1.0.0\nnumpy==9\n-c other.txt\n"}
    owner.has_base(layer(system(), torch(NVIDIA), NUMPY, files), env={"PIP_CONSTRAINT": "/etc/pip/constraint.txt"})
    owner.keeps("needs-torch")
    ran = owner.locked()
    assert owner.pins() == {"needs-torch": "1.0.0", "extra-part": "1.0.0"}
    assert any("'-c other.txt', which is none on versions: not used" in text for text in ran.warnings)
    (part,) = owner.document()["resolution"]
    assert part["on_top_of"]["constraints"] == ["extra-part==1.0.0", "numpy==9"]


def test_what_the_base_itself_does_not_meet_is_left_as_it_is(owner: Owner) -> None:
    owner.has_base(layer(system(), torch(NVIDIA, ["numpy>=2", "absent", "extra-part<2"]), NUMPY))
    owner.keeps("needs-torch")
    ran = owner.locked()
    assert owner.pins() == {"needs-torch": "1.0.0", "extra-part": "1.0.0"}
    (text,) = [each for each in ran.warnings if "left as it is" in each]
    assert "numpy>=2 (numpy is 1.26.4), absent (absent is not there)" in text


def test_the_image_has_nothing_of_torch_in_its_layers(owner: Owner) -> None:
    owner.has_base(layer(system()), layer(torch(NVIDIA), NUMPY), env={"CUDA_VERSION": "13.0.1.012"})
    owner.keeps("needs-torch", "torch", rest=H100)
    owner.locked()
    built = owner.image("build", owner.lock, "--no-compile-bytecode", "--output", owner.folder / "image.tar")
    assert built.status == 0, built.stderr
    names = set()
    with tarfile.open(owner.folder / "image.tar") as whole:
        [image] = json.loads(member(whole, "manifest.json").read())
        for path in image["Layers"][2:]:
            with tarfile.open(fileobj=member(whole, path)) as one:
                names |= set(one.getnames())
    assert "opt/env/lib/python3.11/site-packages/needs_torch/__init__.py" in names
    assert f"{base_packages.SITE}/envspec.pth" in names
    assert not [name for name in names if "torch/" in name and "needs_torch" not in name]


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"usr/bin/python3": Link("python3")}, "no program python3"),
        ({"usr/bin/python3": Link("/usr/bin/missing")}, "no program python3"),
        (system("3.12.1"), "has Python 3.12.1, but env.python is 3.11"),
        ({**system(), "usr/lib/x86_64-linux-gnu/libc.so.6": b""}, "no glibc was found"),
        ({**system(), "usr/bin/python3.11": b""}, "is not in its program"),
    ],
    ids=["circle", "nothing", "another", "glibc", "version"],
)
def test_bases_without_the_python_of_the_spec(owner: Owner, broken: base_packages.Files, expected: str) -> None:
    owner.has_base(layer(broken))
    owner.keeps("extra-part")
    assert expected in refused(owner.locks(), 2)


def test_a_layer_that_is_a_bomb_is_refused_without_a_traceback(owner: Owner) -> None:
    """Its stream and connection are open when its reader stops."""
    zeros, rest = gzip.compress(bytes(64 << 20)), gzip.compress(os.urandom(4 << 20), 0)
    owner.has_base(zeros * 16 + rest, layer(system()))
    owner.keeps("extra-part")
    assert "which is a bomb" in refused(owner.locks(), 5)
