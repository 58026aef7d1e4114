"""From pins to base image, driver and GPU code: pure, no registry is asked."""

from __future__ import annotations

from collections.abc import Sequence

from envspec.base_image.cuda import Pins, Release, TorchBuild, choose_release, flavors_to_try, read_pins
from envspec.base_image.gpus import GpuChecks, check_gpus, code_of, unknown_code
from envspec.base_image.tag import Choice, choose_image, custom_image
from envspec.base_image.types import BaseImagePlan, CudaRequest
from envspec.facts import Facts
from envspec.facts.tables import numeric
from envspec.models import Decision, Driver, GpuCode, Resolution


def plan_base_image(
    request: CudaRequest | None, resolutions: Sequence[Resolution], facts: Facts, base: str | None = None
) -> BaseImagePlan:
    """The base image, the oldest driver and the GPU code that go with resolved pins.

    request: None for an environment without CUDA. The image's digests are those that data or spec know; a registry
    may fill the rest in later. base: the spec's own image, where there is no request to name it.

    Raises:
        CudaMismatch: the pins are for another CUDA than `[cuda] version`.
        NoCudaRelease: nothing tells which CUDA is needed.
        NoSuchImage: NVIDIA has no such image.
        UnknownGpu, GpuNotServed: a GPU of `[cuda] gpus` that nobody knows, or for which the wheels hold no code.
    """
    pins = [read_pins(resolution, facts) for resolution in resolutions]
    codes = tuple(code for code in (code_of(each, facts) for each in pins) if code)
    warnings = [_newer(each, facts) for each in pins if each.torch and _is_newer(each.torch, facts)]
    if request is None:
        return _without_cuda(pins, codes, warnings, base, facts)
    linux = [each for each in pins if each.platform.is_linux]
    # Where GPUs are asked for, it is told that they could not be checked.
    warnings += filter(None, (unknown_code(each, codes) for each in pins if not (request.gpus and each in linux)))
    checks = check_gpus(request.gpus, linux, [code for code in codes if code.platform.is_linux], facts)
    if not linux:
        why = "no linux platform: NVIDIA's images are for linux"
        none = Decision("image.tag", "none", why, "[env] platforms")
        return BaseImagePlan(None, None, codes, (none,), (*warnings, *checks.warnings))
    release = choose_release(request, linux)
    choice = _image(request, release, linux, facts)
    driver = _driver(release, choice, checks, facts)
    if checks.ptx and not driver.bundled:
        warnings.append(
            f"{', '.join(checks.ptx)}: PTX needs the driver that CUDA {release.cuda} ships with; not known here"
        )
    warnings += [_cpu_build(each) for each in linux if each.torch and each.torch.variant == "cpu"]
    return BaseImagePlan(
        choice.image,
        driver,
        codes,
        (release.decision, *choice.decisions, _driver_decision(driver), *checks.decisions),
        (*warnings, *release.warnings, *choice.warnings, *checks.warnings),
    )


def _image(request: CudaRequest, release: Release, pins: Sequence[Pins], facts: Facts) -> Choice:
    platforms = [each.platform for each in pins]
    if request.base:
        return custom_image(request.base, request.os, platforms, facts)
    return choose_image(release, flavors_to_try(request, pins), request.os, platforms, facts)


def _driver(release: Release, choice: Choice, checks: GpuChecks, facts: Facts) -> Driver:
    """Minor-version compatibility asks for the major's first driver; code kept as PTX for the toolkit's own."""
    row = facts.driver_of(release.exact or choice.image.cuda_release or str(release.cuda))
    if checks.ptx and row.bundled:
        why = f"{', '.join(checks.ptx)} runs code that the driver compiles from PTX: the toolkit's own driver is needed"
        return Driver(row.bundled, row.bundled, why, row.source)
    why = f"CUDA {release.cuda.major}.x runs from driver {row.minimum} on (minor-version compatibility)" + (
        f"; {release.exact or row.cuda} ships with {row.bundled}" if row.bundled else ""
    )
    return Driver(row.minimum, row.bundled, why, row.source)


def _driver_decision(driver: Driver) -> Decision:
    return Decision("driver.minimum", driver.minimum, driver.why, driver.source)


def _without_cuda(
    pins: Sequence[Pins], codes: tuple[GpuCode, ...], warnings: Sequence[str], base: str | None, facts: Facts
) -> BaseImagePlan:
    brought = [f"{found.told_by} on {each.platform.value}" for each in pins for found in each.cudas]
    told = (f"the spec has no [cuda] table, and {', '.join(brought)} is in the lock all the same",) if brought else ()
    linux = [each.platform for each in pins if each.platform.is_linux]
    if base and linux:
        # Which system it is nobody has said: without [cuda] there is no `os`.
        choice = custom_image(base, "", linux, facts)
        return BaseImagePlan(choice.image, None, codes, choice.decisions, (*warnings, *told, *choice.warnings))
    none = Decision("image.tag", "none", "no [cuda] table: an environment for the CPU", "the spec")
    return BaseImagePlan(None, None, codes, (none,), (*warnings, *told))


def _is_newer(torch: TorchBuild, facts: Facts) -> bool:
    """The facts tell of the project's releases; a conda channel's solver keeps its family together by itself."""
    known = facts.torch_release(torch.version) is not None or torch.channel
    return not known and numeric(torch.version) > numeric(facts.torch[-1].version)


def _newer(pins: Pins, facts: Facts) -> str:
    version = pins.torch.version if pins.torch else ""
    return (
        f"torch {version} on {pins.platform.value} is newer than the facts (up to {facts.torch[-1].version}): "
        "its family and its GPU code could not be checked. Add it to the spec, with its source: [[facts.torch]]"
    )


def _cpu_build(pins: Pins) -> str:
    told = f"{pins.torch} is a CPU build on {pins.platform.value}: no GPU is used there"
    if pins.torch and pins.torch.channel:
        return f'{told}. Ask for its CUDA builds: "{pins.torch.pin.name} * cuda*" in [conda] dependencies'
    return (
        f"{told}. Its CUDA builds, if any, "
        "are on PyTorch's own index: set [cuda] version, or take a torch whose default build has CUDA"
    )
