"""Which flavour of NVIDIA's image completes a lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envspec.base_image.pin import Half
from envspec.base_image.pins import LIBRARIES, Pins
from envspec.base_image.request import AUTO, HELD, CudaRequest
from envspec.model import Decision

_SOURCE: Final = "names of the locked {}; NVIDIA container-images Dockerfiles"


def flavors_to_try(request: CudaRequest, pins: Sequence[Pins]) -> tuple[Decision, ...]:
    """The flavours that complete what wheels and conda bring, smallest first; the spec's own where it names one.

    `auto` never takes a devel flavour: nvcc is needed to build, not to run.
    """
    if request.flavor != AUTO:
        return (Decision("image.flavor", request.flavor, "as the spec says", "[cuda] flavor"),)
    needed, why = _needed(pins)
    enough = [name for name, held in HELD.items() if needed <= set(held) and "devel" not in name]
    source = _SOURCE.format("packages" if _with_conda(pins) else "wheels")
    return tuple(Decision("image.flavor", name, why, source) for name in enough)


def _needed(pins: Sequence[Pins]) -> tuple[set[str], str]:
    """Libraries that the image has to bring, and why. A CUDA build of torch loads all of them; one from conda brings
    or depends on them, since conda knows no image.
    """
    with_torch = [each for each in pins if each.torch and each.torch.cuda]
    brought = sorted({library for each in pins for library in each.libraries})
    none = "nothing in" if _with_conda(pins) else "no wheel of"
    if not with_torch and not brought:
        return {"cudart", "cublas", "nccl"}, f"{none} the lock brings CUDA's libraries: the image has to"
    wheels = [each for each in with_torch if each.torch and not each.torch.channel]
    lacking = {library for each in wheels for library in LIBRARIES[Half.PYPI] if library not in each.libraries}
    if lacking:
        return lacking, f"the smallest with {', '.join(sorted(lacking))}, which {none} the lock brings"
    told = f"{_bringers(pins)} bring {', '.join(brought)}" if brought else f"{with_torch[0].torch} brings what it loads"
    return set(), f"{told}: nothing else is needed to run"


def _bringers(pins: Sequence[Pins]) -> str:
    found = {pin.half for each in pins for brought in each.libraries.values() for pin in brought}
    return " and ".join(half.value for half in Half if half in found)


def _with_conda(pins: Sequence[Pins]) -> bool:
    return any(Half.CONDA in each.halves for each in pins)
