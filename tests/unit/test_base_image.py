"""What goldens can't say: libraries in two places, and that the plan touches nothing outside."""

from __future__ import annotations

from envspec.base_image import CudaRequest, SharedLibrary, plan_base_image, shared_libraries
from envspec.facts import load_facts
from envspec.model import BaseImage, Platform, Resolution
from tests.support.locks import package, resolution

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


def test_a_base_image_shares_the_runtime_alone() -> None:
    found = shared_libraries(image_of("base"), pinned(), FACTS)
    assert [(each.library, each.package) for each in found] == [("cudart", "nvidia-cuda-runtime-cu12")]


def test_a_cudnn_image_holds_all_that_the_wheels_bring() -> None:
    found = shared_libraries(image_of("cudnn-runtime"), pinned(), FACTS)
    assert found == (
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


def test_nothing_is_known_of_a_custom_base() -> None:
    plan = plan_base_image(CudaRequest(base="registry.corp/cuda:1"), [pinned()], FACTS)
    assert plan.base_image is not None
    assert shared_libraries(plan.base_image, pinned(), FACTS) == ()


def test_the_same_pins_give_the_same_plan() -> None:
    request = CudaRequest(os="ubuntu24.04", gpus=("A100",))
    assert plan_base_image(request, [pinned()], FACTS) == plan_base_image(request, [pinned()], load_facts())
