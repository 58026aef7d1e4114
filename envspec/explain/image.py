"""A lock's image, and the GPU code that was read from its wheels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from envspec.lockfile.export.dockerfile import without_dockerfile
from envspec.models import GpuCode, GpuCodeFound, ImageId, ImageSettings, Lock, Package, Platform, SystemLayer

#: SHA-256 of a wheel -> GPU code that was read from it; None if it was not read.
Seen: TypeAlias = Callable[[str], GpuCodeFound | None]

#: Source of GPU code that no table has.
READ: Final = "read from the wheel during an image build on this machine"


@dataclass(frozen=True, slots=True)
class ImageExplanation:
    """The image of a lock. does_not_run: what its settings rule out. without: why there is none."""

    settings: ImageSettings
    system: tuple[SystemLayer, ...]
    ids: tuple[ImageId, ...]
    does_not_run: tuple[str, ...]
    without: str | None


def nobody_looked(_: str) -> GpuCodeFound | None:
    """Without a cache."""
    return None


def explain_image(lock: Lock) -> ImageExplanation | None:
    """None for a lock without a linux platform."""
    if not any(resolution.target.platform.is_linux for resolution in lock.resolutions):
        return None
    without = without_dockerfile(lock)
    missing = () if without else tuple(_does_not_run(lock))
    return ImageExplanation(lock.image, lock.system, lock.images, missing, without)


def code_read(package: Package, platform: Platform, seen: Seen) -> tuple[GpuCode, ...]:
    """The GPU code that was read from a package's wheel, if any."""
    found = seen(package.built.sha256 if package.built else package.file.sha256)
    if found is None or not (found.sm or found.ptx):
        return ()
    return (GpuCode(platform, package.name, package.version, "", found.sm, found.ptx, READ),)


def _does_not_run(lock: Lock) -> Iterator[str]:
    if lock.image.compiler != "none":
        return
    names = {
        name
        for resolution in lock.resolutions
        if resolution.target.platform.is_linux
        for name in (
            *(package.name for package in resolution.packages),
            *(each.name for row in resolution.conda for each in row.provides),
            *(row.name for row in resolution.conda),
        )
    }
    if "triton" in names:
        yield "torch.compile and other kernels of Triton: they need a C compiler ([image] compiler)"
    elif names & {"torch", "pytorch"}:
        yield "torch.compile: on a CPU it needs a C++ compiler ([image] compiler)"
