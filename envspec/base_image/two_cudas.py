"""Packages of one lock that are for different CUDAs, and what to require so that they are for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.requirements import Requirement

from envspec.base_image.cuda import CudaPins, PackageSource, Pin, PinnedCuda
from envspec.facts import Facts
from envspec.facts.cuda import require_for, torch_for
from envspec.facts.tables import numeric
from envspec.models import CudaVersion


def other_cudas(pins: CudaPins, first: PinnedCuda, facts: Facts) -> Iterator[str]:
    """A warning for each other major version of CUDA of the packages of one platform, with what to require instead.

    first: the CUDA of the lock.
    """
    own = next((found for found in pins.cudas if found.cuda.major == first.cuda.major), first)
    for found in pins.cudas:
        is_of_wheels = found.pin.source is own.pin.source is PackageSource.PYPI
        if found.cuda == first.cuda or not is_of_wheels:
            continue
        text = (
            f"{_with_dependents(found.pin, pins)} on {pins.platform.value} is CUDA {found.cuda}, beside "
            f"{_with_dependents(own.pin, pins)}: two CUDAs in one lock; the image and the driver are chosen for the "
            "newer one"
        )
        if pins.clashing:
            names = ", ".join(" and ".join(packages) for packages in pins.clashing)
            text = f"{text}. {names} have the same files: this lock can't be installed, and no image can be built of it"
        advice = _advice(pins.bringing(found.pin.name), pins.bringing(own.pin.name), found, own, pins, facts)
        yield f"{text}{advice}"


def without_libraries(pins: CudaPins, first: PinnedCuda, facts: Facts) -> Iterator[str]:
    """A warning for each package that finds no libraries of its CUDA, or of its cuDNN."""
    brought = {found.cuda.major for found in pins.cudas}
    for pin, row in pins.builds:
        major = CudaVersion.parse(row.cuda).major
        where = f"{pin} on {pins.platform.value}"
        if major not in brought and major != first.cuda.major:
            needed = require_for(pin.name, first.cuda.major, pins.platform, facts)
            yield (
                f"{where} is built for CUDA {row.cuda}, beside {first.pin} (CUDA {first.cuda}): it finds no CUDA "
                f"{major} libraries, and so no GPU{_sentence(needed)}"
            )
        if not row.cudnn or major != first.cuda.major:
            continue
        for cudnn in pins.libraries.get("cudnn", ()):
            version = numeric(cudnn.version)[0]
            if version != row.cudnn:
                needed = require_for(pin.name, major, pins.platform, facts, cudnn=version)
                yield (
                    f"{where} loads cuDNN {row.cudnn}, beside {cudnn}: it finds no cuDNN {row.cudnn}, and so no GPU"
                    f"{_sentence(needed)}"
                )


def _advice(
    older: Sequence[str], newer: Sequence[str], found: PinnedCuda, first: PinnedCuda, pins: CudaPins, facts: Facts
) -> str:
    """What to require so that all are for the newer CUDA, else for the older one; empty if nothing is known.

    older, newer: the packages that bring the two.
    """
    for names, major in ((older, first.cuda.major), (newer, found.cuda.major)):
        needed = [_needed(name, major, pins, facts) for name in names]
        if needed and all(needed):
            return f"{_sentence(' and '.join(dict.fromkeys(needed)))}, for CUDA {major}"
    return ""


def _needed(name: str, major: int, pins: CudaPins, facts: Facts) -> str:
    if name == "torch":
        required = [Requirement(each.requirement).specifier for each in pins.dependents.get(name, ())]
        return torch_for(major, pins.platform, required, facts)
    return require_for(name, major, pins.platform, facts)


def _with_dependents(pin: Pin, pins: CudaPins) -> str:
    names = pins.bringing(pin.name)
    return f"{pin} (required by {', '.join(names)})" if names else str(pin)


def _sentence(requirement: str) -> str:
    return f". Require {requirement}" if requirement else ""
