"""What there is to tell of a lock's image, and of the GPU code that was read from its wheels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from envspec.explain.layout import columns, size, spoken_moment, wrapped
from envspec.lock.diff_shown import several
from envspec.lock.dockerfile import without_dockerfile
from envspec.lock.writer import string
from envspec.models import GpuCode, GpuCodeFound, ImageId, ImageSettings, Lock, Package, Platform, SystemLayer

#: The GPU code that was read from the wheel with a SHA-256, None where nobody has looked.
Seen: TypeAlias = Callable[[str], GpuCodeFound | None]

#: Where rows come from that no table tells.
READ: Final = "read from the wheel, when an image was made of it here"


@dataclass(frozen=True, slots=True)
class ImageExplanation:
    """The image of a lock. does_not_run: what its settings leave out. without: why there is no image; None for one."""

    settings: ImageSettings
    system: tuple[SystemLayer, ...]
    ids: tuple[ImageId, ...]
    does_not_run: tuple[str, ...]
    without: str | None


def nobody_looked(_: str) -> GpuCodeFound | None:
    """Where no cache is asked."""
    return None


def explain_image(lock: Lock) -> ImageExplanation | None:
    """None for a lock without a linux platform, which has none."""
    if not any(resolution.target.platform.is_linux for resolution in lock.resolutions):
        return None
    without = without_dockerfile(lock)
    missing = () if without else tuple(_does_not_run(lock))
    return ImageExplanation(lock.image, lock.system, lock.images, missing, without)


def code_read(package: Package, platform: Platform, seen: Seen) -> tuple[GpuCode, ...]:
    """The GPU code that was read from a package's wheel; none where nobody has looked, or none was found."""
    found = seen(package.built.sha256 if package.built else package.file.sha256)
    if found is None or not (found.sm or found.ptx):
        return ()
    return (GpuCode(platform, package.name, package.version, "", found.sm, found.ptx, READ),)


def image_lines(told: ImageExplanation, width: int) -> list[str]:
    """The section of a lock's text."""
    if told.without:
        return wrapped(f"none: {told.without}", width, "")
    settings = told.settings
    rows = [("working folder", settings.workdir), ("compiler", settings.compiler)]
    rows += [(service.name, _service(service.port, service.logdir)) for service in settings.services]
    rows += [(name, value if value.isprintable() else string(value)) for name, value in settings.env]
    lines = columns(rows)
    if settings.apt:
        archive = f" of {spoken_moment(settings.snapshot)}" if settings.snapshot else ""
        lines += ["system packages" + archive, *wrapped(" ".join(settings.apt), width)]
    for layer in told.system:
        lines.append(f"{layer.platform.value}: system layer {layer.diff_id}")
        lines.append(f"    {several(len(layer.packages), 'package')}, {size(layer.size_bytes)}")
    lines += [f"{each.platform.value}: {each.id}{'' if each.pyc else ' (without bytecode)'}" for each in told.ids]
    for text in told.does_not_run:
        lines += wrapped(f"does not run: {text}", width, "")
    return lines


def _service(port: int, logdir: str | None) -> str:
    return f"on port {port}" + (f", of {logdir}" if logdir else "")


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
        yield "torch.compile, and whatever else starts a kernel of Triton's: it builds its launcher by a C compiler"
    elif names & {"torch", "pytorch"}:
        yield "torch.compile: on a CPU it builds its kernels by a C++ compiler ([image] compiler)"
