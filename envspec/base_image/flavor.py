"""Which flavour of NVIDIA's image completes a lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envspec.base_image.pins import LIBRARIES, Pins
from envspec.base_image.request import AUTO, HELD, CudaRequest
from envspec.model import Decision

_SOURCE: Final = "names of the locked wheels; NVIDIA container-images Dockerfiles"


def flavors_to_try(request: CudaRequest, pins: Sequence[Pins]) -> tuple[Decision, ...]:
    """The flavours that complete what the wheels bring, smallest first; the spec's own where it names one.

    `auto` never takes a devel flavour: nvcc is needed to build, not to run.
    """
    if request.flavor != AUTO:
        return (Decision("image.flavor", request.flavor, "as the spec says", "[cuda] flavor"),)
    needed, why = _needed(pins)
    enough = [name for name, held in HELD.items() if needed <= set(held) and "devel" not in name]
    return tuple(Decision("image.flavor", name, why, _SOURCE) for name in enough)


def _needed(pins: Sequence[Pins]) -> tuple[set[str], str]:
    """Libraries that the image has to bring, and why. A CUDA build of torch loads all of them."""
    with_torch = [each for each in pins if each.torch and each.torch.cuda]
    with_wheels = [each for each in pins if each.libraries]
    if not with_torch and not with_wheels:
        return {"cudart", "cublas", "nccl"}, "no wheel of the lock brings CUDA's libraries: the image has to"
    lacking = {library for each in with_torch for library in LIBRARIES if library not in each.libraries}
    if lacking:
        return lacking, f"the smallest with {', '.join(sorted(lacking))}, which no wheel of the lock brings"
    brought = sorted({library for each in with_wheels for library in each.libraries})
    return set(), f"the wheels bring {', '.join(brought)}: nothing else is needed to run"
