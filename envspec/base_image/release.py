"""Which CUDA a lock is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envspec.base_image.pins import Pins
from envspec.base_image.request import CudaMismatch, CudaRequest, NoCudaRelease
from envspec.facts.rows import numeric
from envspec.model import CudaVersion, Decision


@dataclass(frozen=True, slots=True)
class Release:
    """cuda: the minor that the image must have. exact: the release that the pins name, if they do."""

    cuda: CudaVersion
    exact: str | None
    decision: Decision
    warnings: tuple[str, ...] = ()


def choose_release(request: CudaRequest, pins: Sequence[Pins]) -> Release:
    """The CUDA of the lock: what the pins name, else torch's build, else the spec.

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
            if found.cuda != request.version:
                raise CudaMismatch(
                    f"[cuda] version is {request.version}, but {found.told_by} on {where.value} is CUDA {found.cuda}",
                    hint=f'set [cuda] version = "{found.cuda}", or leave out what asks for {found.told_by.split()[0]}',
                )
    exact = max(
        (found.release for found, _ in told if found.cuda == first.cuda and found.release), key=numeric, default=None
    )
    decision = Decision(
        "cuda.release",
        exact or str(first.cuda),
        f"{first.told_by} is CUDA {exact or first.cuda}",
        first.source,
    )
    warnings = tuple(
        f"{found.told_by} on {where.value} is CUDA {found.cuda}, beside {first.told_by} on {platform.value}: "
        "two CUDAs in one lock; the image and the driver are chosen for the newer one"
        for found, where in others
    )
    return Release(first.cuda, exact, decision, warnings)


def _untold_release(request: CudaRequest, pins: Sequence[Pins]) -> Release:
    built = next((each.torch for each in pins if each.torch and each.torch.cuda), None)
    if built and built.cuda and request.version in (None, built.cuda):
        why = f"torch {built.version} is a {built.variant} build; no CUDA library comes as a wheel"
        return Release(built.cuda, None, Decision("cuda.release", str(built.cuda), why, "torch's variant"))
    if request.version is None:
        raise NoCudaRelease(
            "nothing that was locked tells which CUDA release it needs",
            hint='set it in the spec: [cuda] version = "12.8", or leave [cuda] out for an environment for the CPU',
        )
    why = "as the spec says; no CUDA library comes as a wheel"
    return Release(request.version, None, Decision("cuda.release", str(request.version), why, "[cuda] version"))
