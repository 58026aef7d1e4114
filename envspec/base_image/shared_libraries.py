"""CUDA libraries that the base image holds and the locked packages bring again."""

from __future__ import annotations

from dataclasses import dataclass

from envspec.base_image.pin import pins_of
from envspec.base_image.pins import libraries_of
from envspec.base_image.request import HELD
from envspec.facts import Facts
from envspec.facts.rows import PartsRow
from envspec.model import BaseImage, Resolution


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """A library that is there twice. image_version: None where the image's parts are not known."""

    library: str
    image_version: str | None
    package: str
    package_version: str


def shared_libraries(image: BaseImage, resolution: Resolution, facts: Facts) -> tuple[SharedLibrary, ...]:
    """What image and packages both hold on one platform. Python loads the packages' copy, by the paths in them."""
    if image.flavor is None or image.cuda_release is None:
        return ()
    parts = next(
        (row for row in facts.parts if row.cuda == image.cuda_release and (image.os in row.os or not row.os)), None
    )
    brought = libraries_of(pins_of(resolution))
    return tuple(
        SharedLibrary(library, _version(parts, library), pin.name, pin.version)
        for library in HELD.get(image.flavor, ())
        for pin in brought.get(library, ())
    )


def _version(parts: PartsRow | None, library: str) -> str | None:
    if parts is None:
        return None
    return {"cudart": parts.cudart, "cublas": parts.cublas, "nccl": parts.nccl, "cudnn": parts.cudnn}[library]
