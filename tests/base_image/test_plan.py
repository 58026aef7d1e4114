"""Libraries in image and packages, and names of builds and channels; plans are in golden/."""

from __future__ import annotations

import pytest

from envspec.base_image.cuda import CudaRequest, SharedLibrary, channel_name, shared_libraries, variant_of_build
from envspec.base_image.plan import plan_base_image
from envspec.facts import load_facts
from envspec.models import BaseImage, Platform, Resolution
from envspec.structs import replace
from tests.support.builders.locks import package, resolution
from tests.support.cuda_cases import conda_row

FACTS = load_facts()
WHEELS = {
    "torch": "2.9.1",
    "nvidia-cuda-runtime-cu12": "12.8.90",
    "nvidia-cublas-cu12": "12.8.4.1",
    "nvidia-cudnn-cu12": "9.10.2.21",
    "nvidia-nccl-cu12": "2.27.5",
}


def pinned(*left_out: str) -> Resolution:
    kept = (package(name, version) for name, version in WHEELS.items() if name not in left_out)
    return resolution(Platform.LINUX_64, *kept)


def image_of(flavor: str) -> BaseImage:
    plan = plan_base_image(CudaRequest(flavor=flavor, os="ubuntu22.04"), [pinned()], FACTS)
    assert plan.base_image is not None
    return plan.base_image


def test_libraries_of_the_image_that_the_wheels_bring_too() -> None:
    of_base = shared_libraries(image_of("base"), pinned(), FACTS)
    assert [(each.library, each.package) for each in of_base] == [("cudart", "nvidia-cuda-runtime-cu12")]
    assert shared_libraries(image_of("cudnn-runtime"), pinned(), FACTS) == (
        SharedLibrary("cudart", "12.8.90", "nvidia-cuda-runtime-cu12", "12.8.90"),
        SharedLibrary("cublas", "12.8.4.1", "nvidia-cublas-cu12", "12.8.4.1"),
        SharedLibrary("nccl", "2.25.1", "nvidia-nccl-cu12", "2.27.5"),
        SharedLibrary("cudnn", "9.8.0.87", "nvidia-cudnn-cu12", "9.10.2.21"),
    )


def test_parts_that_nobody_read_have_no_version() -> None:
    image = BaseImage("docker.io/nvidia/cuda", "13.4.2-runtime-ubuntu24.04", "13.4.2", "runtime", "ubuntu24.04")
    found = shared_libraries(image, pinned(), FACTS)
    assert {each.image_version for each in found} == {None}
    assert [each.library for each in found] == ["cudart", "cublas", "nccl"]


def test_conda_and_wheels_each_bring_a_library_again() -> None:
    rows = {
        "cuda-cudart": "12.9.79 h5888daf_0",
        "cuda-cudart_linux-64": "12.9.79 h3f2d84a_0",
        "cudnn": "9.10.2.21 hbcb9cd8_0",
        "libcudnn": "9.10.2.21 hf7e9902_0",
    }
    conda = tuple(conda_row(name, message, "linux-64") for name, message in rows.items())
    both = replace(pinned("nvidia-cudnn-cu12"), conda=conda)
    found = shared_libraries(image_of("cudnn-runtime"), both, FACTS)
    assert [(each.library, each.package) for each in found] == [
        ("cudart", "nvidia-cuda-runtime-cu12"),
        ("cudart", "cuda-cudart"),
        ("cublas", "nvidia-cublas-cu12"),
        ("nccl", "nvidia-nccl-cu12"),
        ("cudnn", "cudnn"),
    ]


@pytest.mark.parametrize(
    ("build", "variant"),
    [
        ("cuda129_mkl_py313_h1e53aa0_304", "cu129"),
        ("cuda112py39hb0b7ed5_200", "cu112"),
        ("py3.11_cuda12.1_cudnn8.9.2_0", "cu121"),
        ("py3.7_cuda10.2.89_cudnn7.6.5_0", "cu102"),
        ("gpu_cuda118py311h8c1e5b9_0", "cu118"),
        ("cpu_mkl_py312_h8abce0f_103", "cpu"),
        ("py3.11_cpu_0", "cpu"),
        ("cuda_py312_h4a51b5c_1", None),
        ("py313h7033f15_0", None),
        ("hcpu129a_0", None),
        ("", None),
    ],
)
def test_the_variant_of_a_conda_build(build: str, variant: str | None) -> None:
    assert variant_of_build(build) == variant


@pytest.mark.parametrize(
    ("channel", "name"),
    [
        ("conda-forge", "conda-forge"),
        ("conda-forge/label/pytorch_rc", "conda-forge"),
        ("https://conda.example.org/conda-forge", "conda-forge"),
        ("https://conda.example.org/mirrors/conda-forge/", "conda-forge"),
        ("https://conda.example.org/conda-forge/label/main", "conda-forge"),
        ("file:///srv/channels/corp", "corp"),
        ("https://conda.example.org", "https://conda.example.org"),
    ],
)
def test_the_name_of_a_channel(channel: str, name: str) -> None:
    assert channel_name(channel) == name


def test_wheels_and_conda_with_one_cuda() -> None:
    rows = (conda_row("cuda-version", "12.8 h5d125a7_3", "linux-64"),)
    both = replace(pinned(), conda=rows)
    plan = plan_base_image(CudaRequest(os="ubuntu22.04"), [both], FACTS)
    assert not [warning for warning in plan.warnings if "beside" in warning]


def test_nothing_is_known_of_a_custom_base() -> None:
    plan = plan_base_image(CudaRequest(base="registry.corp/cuda:1"), [pinned()], FACTS)
    assert plan.base_image is not None
    assert shared_libraries(plan.base_image, pinned(), FACTS) == ()
