"""Which CUDA a lock is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envspec.base_image.pin import Half, Pin
from envspec.base_image.pins import PinnedCuda, Pins
from envspec.base_image.request import CudaMismatch, CudaRequest, NoCudaRelease
from envspec.facts.rows import numeric
from envspec.model import CudaVersion, Decision, Platform


@dataclass(frozen=True, slots=True)
class Release:
    """cuda: the minor that the image must have. exact: the release that the pins name, if they do."""

    cuda: CudaVersion
    exact: str | None
    decision: Decision
    warnings: tuple[str, ...] = ()


def choose_release(request: CudaRequest, pins: Sequence[Pins]) -> Release:
    """The CUDA of the lock: what the pins name, else torch's build, else the spec. `[cuda] version` is what wheels have
    to be built for, and the newest that is let in from conda.

    Raises:
        CudaMismatch: the pins are for another CUDA than the spec asks for.
        NoCudaRelease: nothing tells.
    """
    told = sorted(
        ((found, each.platform) for each in pins for found in each.cudas), key=lambda pair: pair[0].cuda, reverse=True
    )
    if not told:
        return _untold_release(request, pins)
    first, platform = told[0]
    others = [(found, where) for found, where in told if found.cuda != first.cuda]
    if request.version is not None:
        for found, where in told:
            if not _within(found.told_by, found.cuda, request.version):
                raise CudaMismatch(
                    f"[cuda] version is {request.version}, but {found.told_by} on {where.value} is CUDA {found.cuda}",
                    hint=f'set [cuda] version = "{found.cuda}", or {_instead(found.told_by, request.version)}',
                )
    exact = max(
        (found.release for found, _ in told if found.cuda == first.cuda and found.release), key=numeric, default=None
    )
    decision = Decision(
        "cuda.release",
        exact or str(first.cuda),
        f"{first.told_by} is CUDA {exact or first.cuda}{_below(first.cuda, request.version)}",
        first.source,
    )
    warnings = tuple(_beside(found, where, first, platform) for found, where in others)
    return Release(first.cuda, exact, decision, warnings)


def _within(pin: Pin, cuda: CudaVersion, version: CudaVersion) -> bool:
    """Wheels are built for one CUDA; of conda's packages `[cuda] version` is the newest that is let in."""
    return cuda == version or (pin.half is Half.CONDA and cuda < version)


def _instead(pin: Pin, version: CudaVersion) -> str:
    if pin.half is Half.PYPI:
        return f"leave out what asks for {pin.name}"
    return f'ask for builds of CUDA {version} or older ("cuda-version <={version}" in [conda] dependencies)'


def _below(cuda: CudaVersion, version: CudaVersion | None) -> str:
    return f", which [cuda] version {version} allows" if version not in (None, cuda) else ""


def _beside(found: PinnedCuda, where: Platform, first: PinnedCuda, platform: Platform) -> str:
    told = f"{found.told_by} on {where.value} is CUDA {found.cuda}, beside {first.told_by} on {platform.value}"
    halves = {found.told_by.half, first.told_by.half}
    if where is not platform or len(halves) == 1:
        return f"{told}: two CUDAs in one lock; the image and the driver are chosen for the newer one"
    wheels = found if found.told_by.half is Half.PYPI else first
    return (
        f"{told} (CUDA {first.cuda}): PyPI's half and conda's each bring a CUDA of their own into one environment; "
        "image and driver are chosen for the newer one. Take torch from conda as well, or hold conda to the CUDA "
        f'of the wheels: "cuda-version {wheels.cuda}.*" in [conda] dependencies'
    )


def _untold_release(request: CudaRequest, pins: Sequence[Pins]) -> Release:
    built = next((each.torch for each in pins if each.torch and each.torch.cuda), None)
    if built and built.cuda:
        if request.version is None or _within(built.pin, built.cuda, request.version):
            why = f"{built} is a {built.variant} build{_below(built.cuda, request.version)}; {_nothing(pins)}"
            return Release(built.cuda, None, Decision("cuda.release", str(built.cuda), why, "torch's variant"))
        if built.channel:
            raise CudaMismatch(
                f"[cuda] version is {request.version}, but {built} is built for CUDA {built.cuda}",
                hint=f'set [cuda] version = "{built.cuda}", or {_instead(built.pin, request.version)}',
            )
    if request.version is None:
        raise NoCudaRelease(
            "nothing that was locked tells which CUDA release it needs",
            hint='set it in the spec: [cuda] version = "12.8", or leave [cuda] out for an environment for the CPU',
        )
    why = f"as the spec says; {_nothing(pins)}"
    return Release(request.version, None, Decision("cuda.release", str(request.version), why, "[cuda] version"))


def _nothing(pins: Sequence[Pins]) -> str:
    conda = any(Half.CONDA in each.halves for each in pins)
    return f"no CUDA library comes as a wheel{' or from conda' if conda else ''}"
