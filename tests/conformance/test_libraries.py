"""What a map of memory says: which libraries are CUDA's and which the driver's; and what torch requires of them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from envspec.conformance.checks.libraries import owners_of
from envspec.conformance.libraries import libraries
from envspec.conformance.requirements import PinnedPackage, pins
from envspec.verifier.hashing import ExpectedFile, hash_all
from envspec.verifier.scan import Distribution

STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef"
ENVIRONMENT = "/opt/env"


def maps(*paths: str) -> str:
    """The text of a map of memory, with two rows of each file and some that are none."""
    rows = [f"7f{place:010x}-7f{place:010x} r-xp 00000000 fd:01 {place}    {path}" for place, path in enumerate(paths)]
    return "\n".join([*rows, "7ffc5d1f0000-7ffc5d212000 rw-p 00000000 00:00 0    [stack]", *rows, ""])


def found(*paths: str) -> list[str]:
    return [each.path for each in libraries(maps(*paths)) if each.is_cuda]


def test_a_library_is_listed_once() -> None:
    assert [each.path for each in libraries(maps("/b/libm.so.6", "/a/libc.so.6", "/a/data"))] == [
        "/a/libc.so.6",
        "/b/libm.so.6",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/usr/local/cuda/lib64/libcudart.so.12",
        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.5",
        "/usr/local/cuda/lib64/libnvrtc-builtins.so.12.8",
        f"{ENVIRONMENT}/lib/libcublas.so.12",
        "/usr/local/cuda/lib64/libcublasLt.so.12",
        "/usr/local/cuda/lib64/libcusolverMg.so.11",
        "/usr/lib/libcusparseLt.so.0",
        "/usr/local/cuda/lib64/libnvJitLink.so.12",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.2025.1.1",
        "/usr/lib/x86_64-linux-gnu/libcudnn_engines_precompiled.so.9",
        "/usr/lib/torchvision.libs/libcudart.e8e8b82a.so.12",
        "/other/torch/lib/libtorch_cuda_linalg.so",
    ],
)
def test_cudas_libraries_are_known(path: str) -> None:
    assert found(path, "/usr/lib/x86_64-linux-gnu/libc.so.6") == [path]


@pytest.mark.parametrize(
    "path",
    [
        # Of the driver, which is the machine's.
        "/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.124.06",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.570.124.06",
        "/usr/lib/wsl/lib/libcuda.so.1",
        "/usr/lib/wsl/lib/libdxcore.so",
        f"{STORE}/libcuda.so.1.1",
        f"{STORE}/libcuda_loader.so",
        f"{STORE}/libnvidia-ml_loader.so",
        f"{STORE}/libnvdxgdmal.so.1",
        f"{STORE}/libnvwgf2umx.so",
        # Names that begin alike.
        *(f"/usr/lib/lib{name}" for name in ("curl.so.4", "curl-gnutls.so.4", "cups.so.2", "cue.so.2", "nvme.so.1")),
    ],
)
def test_others_are_not_cudas(path: str) -> None:
    assert found(path) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("libcudart.so.12", "libcudart"),
        ("libcudart-d0da41ae.so.11.0", "libcudart"),
        ("libcudart.e8e8b82a.so.12", "libcudart"),
        ("libnvrtc-builtins.so.12.8", "libnvrtc-builtins"),
        ("libcudnn_ops.so.9", "libcudnn_ops"),
        ("libnccl.so.2.27.5", "libnccl"),
    ],
)
def test_copies_of_a_library_are_of_a_kind(name: str, kind: str) -> None:
    assert [each.kind for each in libraries(maps(f"/lib/{name}"))] == [kind]


def _installed(folder: Path, **requires: list[str]) -> dict[str, Distribution]:
    found = {}
    for name, lines in requires.items():
        (folder / f"{name}.dist-info").mkdir()
        head = "".join(f"Requires-Dist: {each}\n" for each in lines)
        text = f"Metadata-Version: 2.1\nName: {name}\n{head}\nRequires-Dist: nvidia-x==1; of the description\n"
        (folder / f"{name}.dist-info" / "METADATA").write_text(text, encoding="utf-8")
        normal = name.replace("_", "-")
        found[normal] = Distribution(folder, f"{name}.dist-info", normal, "1.0", ())
    return found


def test_pins_are_torchs_own_for_this_machine_and_through_the_metapackage(tmp_path: Path) -> None:
    installed = _installed(
        tmp_path,
        torch=[
            "filelock",
            'nvidia-cudnn-cu12==9.10.2.21; platform_system == "Linux"',
            "nvidia-nccl-cu12 (==2.27.5) ; platform_system == 'Linux' and (python_version >= '3.9' or extra == 'x')",
            'nvidia-cufft-cu12==11.3; platform_system == "Windows"',
            'nvidia-nvshmem-cu12>=3.3; platform_system == "Linux"',
            'nvidia-new-cu12==1; newest_marker == "x"',
            'cuda-toolkit[cublas]==13.0.*; platform_system == "Linux"',
            'cuda-toolkit[nvrtc]==13.0.*; platform_system == "Linux"',
            'numpy==2.0; extra == "opt"',
        ],
        cuda_toolkit=[
            'nvidia-cublas==13.0.2.14.*; extra == "cublas"',
            "nvidia-nvjpeg==13.0; extra == 'nvjpeg'",
            "nvidia-cuda-nvrtc==13.0.88; 'nvrtc' == extra and sys_platform in 'linux linux2'",
        ],
    )
    assert {each.name: each.version for each in pins("torch", installed)} == {
        "cuda-toolkit": "13.0.*",
        "nvidia-cublas": "13.0.2.14.*",
        "nvidia-cuda-nvrtc": "13.0.88",
        "nvidia-cudnn-cu12": "9.10.2.21",
        "nvidia-nccl-cu12": "2.27.5",
    }
    assert pins("torch", {}) == []


@pytest.mark.parametrize(
    ("pin", "version", "allowed"),
    [
        ("13.0.*", "13.0.2", True),
        ("13.0.*", "13.10", False),
        ("2.27.5", "2.27.5", True),
        ("2.27.5", "2.27.5.0", True),
        ("2.27.5", "2.27.5+local", True),
        ("2.27.5", "2.27", False),
    ],
)
def test_a_pin_allows_its_release(pin: str, version: str, *, allowed: bool) -> None:
    assert PinnedPackage("x", pin).allows(version) is allowed


def test_a_conda_package_owns_its_library_as_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libcudart.so.12"
    library.parent.mkdir()
    library.write_bytes(b"cuda")
    sha256 = hashlib.sha256(b"cuda").hexdigest()
    record = {
        "name": "cuda-cudart",
        "version": "12.8.90",
        "build": "0",
        "files": ["lib/libcudart.so.12"],
        "paths_data": {"paths": [{"_path": "lib/libcudart.so.12", "sha256": sha256, "path_type": "hardlink"}]},
    }
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "cuda-cudart-12.8.90-0.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (owner,) = owners_of([]).values()
    assert owner.package == "cuda-cudart"
    (hashed,) = hash_all([ExpectedFile(str(library), dict.fromkeys(owner.hashes))], root="")
    assert hashed.drift is None
