"""What an image has, as one screen of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from envspec.base_image.cuda import FLAVOR_LIBRARIES
from envspec.conformance.text import counted
from envspec.diagnostics.image_summary import ImageSummary, PlatformSummary
from envspec.report.format import block, optional, properties, size, text_lines

#: GPUs that stand for all of their compute capability; JSON has the others.
_GPUS: Final = (
    *("P100", "V100", "T4", "A100", "A10", "L4", "H100", "B200", "B300", "RTX 4090", "RTX 5090", "Orin", "GB10"),
)
#: Source of a Python -> in words.
_PYTHONS: Final = {
    "standalone": "a standalone build",
    "system": "of the base image's system",
    "base": "of the base image",
    "conda": "of conda",
    "spec": "as the spec has it",
}
_MISSING: Final = "[system] apt lacks {}"
#: Of the title of a row.
_TITLE: Final = 15


def as_text(found: ImageSummary, width: int) -> str:
    """At most 20 lines of 100 characters: a list ends with how many more there are."""
    room = width - _TITLE
    rows: list[tuple[str, str]] = []
    for title, of_platform in _ROWS.items():
        rows.append((title, _merged(found.platforms, lambda each: of_platform(each, room))))  # noqa: B023
    left_out = [f"{each.words} (+{each.packages})" for each in found.left_out]
    rows.append(("left out", _some(left_out, room)))
    if by := found.installed_by:
        rows.append(("Dockerfile", f"{by.file} installs more: add {' '.join(by.words)}"))
    lines = [found.lock, *text_lines(properties("", rows), width)]
    if found.settings:
        lines += ["to keep this selection, add to pyproject.toml:", *found.settings.splitlines()]
    return block(lines)


def _merged(platforms: Iterable[PlatformSummary], value: Callable[[PlatformSummary], str]) -> str:
    """The value of all platforms, or that of each if they differ."""
    values = {each.platform.value: value(each) for each in platforms}
    different = set(values.values())
    if len(different) == 1:
        return different.pop()
    return "; ".join(f"{name}: {text or 'none'}" for name, text in values.items())


def _some(names: Sequence[str], room: int) -> str:
    """As many names as have room, and how many more there are."""
    text = ", ".join(names)
    shown = len(names)
    while len(text) > room and shown > 1:
        shown -= 1
        text = f"{', '.join(names[:shown])} and {len(names) - shown} more"
    return text


def _packages(found: PlatformSummary, _room: int) -> str:
    text = f"{found.packages} ({size(found.size_bytes)})"
    if found.image:
        text += f", image: {counted(found.image.layers, 'layer')}, {size(found.image.size_bytes)}"
    return text


def _base(found: PlatformSummary, _room: int) -> str:
    return found.base_image.name if found.base_image else ""


def _python(found: PlatformSummary, _room: int) -> str:
    return f"{found.python.version}, {_PYTHONS[found.python.source]}"


def _cuda(found: PlatformSummary, _room: int) -> str:
    base = found.base_image
    in_base = FLAVOR_LIBRARIES.get(base.flavor or "", ()) if base else ()
    twice = sorted({each.library for each in found.shared} - {"cudart"})
    if not found.cuda and not in_base:
        return "none"
    if twice:
        where = f", twice: the packages and the base image have {', '.join(twice)}"
    elif found.libraries:
        where = ", once: in the packages"
        if found.shared:
            where += ", and cudart in the base image too"
    else:
        where = f", once: in the base image ({', '.join(in_base)})" if in_base else ""
    version = " and ".join(found.cuda) or (base.cuda_release if base else "")
    return f"{version}{where}"


def _driver(found: PlatformSummary, _room: int) -> str:
    return optional("{} or newer", found.driver)


def _gpus(found: PlatformSummary, _room: int) -> str:
    if found.gpus is None:
        return ""
    texts = []
    for template, names in (("{}", found.gpus.compiled), ("by PTX {}", found.gpus.ptx), ("not {}", found.gpus.without)):
        texts.append(optional(template, ", ".join(name for name in _GPUS if name in names)))
    return "; ".join(filter(None, texts))


def _torch(found: PlatformSummary, _room: int) -> str:
    family = found.torch
    if family is None:
        return ""
    packages = ", ".join(family.packages)
    if family.problem:
        return f"{packages}: these do not fit: {family.problem}"
    if not family.build:
        return f"{packages}: of a build that envspec does not know"
    verdict = ": one build" if len(family.packages) > 1 else ""
    return f"{packages}{verdict}, {family.build}"


def _sources(found: PlatformSummary, room: int) -> str:
    names = []
    for each in found.built:
        names.append(f"{each.name}{optional(' {}', each.version)} ({each.how})")
    return _some(names, room)


def _libraries(found: PlatformSummary, room: int) -> str:
    missing = []
    for each in found.missing_libraries:
        missing.append(f"{' '.join(each.apt or each.libraries)} ({each.package})")
    return optional(_MISSING, _some(missing, room - len(_MISSING)))


_ROWS: Final[dict[str, Callable[[PlatformSummary, int], str]]] = {
    "packages": _packages,
    "base image": _base,
    "Python": _python,
    "CUDA": _cuda,
    "driver": _driver,
    "GPUs": _gpus,
    "torch": _torch,
    "from source": _sources,
    "libraries": _libraries,
}
