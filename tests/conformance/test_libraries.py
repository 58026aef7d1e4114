"""What a map of memory says: which libraries are CUDA's, which the driver's, and which no package brought."""

from __future__ import annotations

import pytest

from envspec.conformance.libraries import foreign, libraries

STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef"
ENVIRONMENT = "/opt/env"
_CUDNN = "lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9"


def maps(*paths: str) -> str:
    """The text of a map of memory, with two rows of each file and some that are none."""
    rows = [f"7f{place:010x}-7f{place:010x} r-xp 00000000 fd:01 {place}    {path}" for place, path in enumerate(paths)]
    return "\n".join([*rows, "7ffc5d1f0000-7ffc5d212000 rw-p 00000000 00:00 0    [stack]", *rows, ""])


def found(*paths: str) -> list[str]:
    return [each.path for each in foreign(libraries(maps(*paths)), ENVIRONMENT, [_CUDNN])]


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
def test_cudas_that_no_package_brought_are_foreign(path: str) -> None:
    assert found(path, f"{ENVIRONMENT}/{_CUDNN}", "/usr/lib/x86_64-linux-gnu/libc.so.6") == [path]


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
def test_what_is_not_cudas_is_not_foreign(path: str) -> None:
    assert found(path) == []
