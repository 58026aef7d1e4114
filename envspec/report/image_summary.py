"""What an image has, as one screen of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from envspec.base_image.cuda import FLAVOR_LIBRARIES
from envspec.conformance.text import counted
from envspec.diagnostics.image_summary import ImageSummary, PlatformSummary
from envspec.report.format import block, optional, properties, size, text_lines, total_size

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
#: What of the project is in the image -> in words.
_PROJECT: Final = {
    "wheel": "its wheel, in the last layer",
    "editable": "its modules, in the last layer",
    "copy": "files of it, in the last layer",
    "none": "not in the image: [image] copy adds files of it, --project its wheel or its modules",
    "": "",
}
_MISSING: Final = "[system] apt lacks {}"
#: Characters of the title of a row.
_TITLE: Final = 15


def as_text(found: ImageSummary, width: int) -> str:
    """At most 20 lines of 100 characters: a list ends with how many more there are."""
    room = width - _TITLE
    values: dict[str, dict[str, str]] = {}
    for each in found.platforms:
        for title, value in _rows(each, room):
            values.setdefault(title, {})[each.platform.value] = value
    rows = [(title, _merged(of_platforms)) for title, of_platforms in values.items()]
    rows.append(("project", _PROJECT[found.project]))
    rows.append(("left out", _some([f"{each.words} (+{each.packages})" for each in found.left_out], room)))
    if by := found.installed_by:
        rows.append(("Dockerfile", f"{by.file} installs more: add {' '.join(by.words)}"))
    lines = [found.lock, *text_lines(properties("", rows), width)]
    if found.settings:
        lines += ["to keep this selection, add to pyproject.toml:", *found.settings.splitlines()]
    return block(lines)


def _merged(values: Mapping[str, str]) -> str:
    """The value of all platforms, or that of each if they differ."""
    different = set(values.values())
    if len(different) == 1:
        return different.pop()
    return "; ".join(f"{platform}: {value or 'none'}" for platform, value in values.items())


def _some(names: Sequence[str], room: int) -> str:
    """As many names as have room, and how many more there are."""
    text = ", ".join(names)
    shown = len(names)
    while len(text) > room and shown > 1:
        shown -= 1
        text = f"{', '.join(names[:shown])} and {len(names) - shown} more"
    return text


def _rows(found: PlatformSummary, room: int) -> Iterator[tuple[str, str]]:
    """Titles with their values; empty: there is nothing to show."""
    image = ""
    if found.image:
        image = f", image: {counted(found.image.layers, 'layer')}, {size(found.image.size_bytes)}"
    yield "packages", f"{found.packages} ({total_size(found.size_bytes, found.unsized)}){image}"
    yield "base image", found.base_image.name if found.base_image else ""
    yield "Python", f"{found.python.version}, {_PYTHONS[found.python.source]}"
    yield "CUDA", _cuda(found)
    yield "driver", optional("{} or newer", found.driver)
    yield "GPUs", _gpus(found)
    yield "torch", _torch(found)
    built = [f"{each.name}{optional(' {}', each.version)} ({each.how})" for each in found.built]
    yield "from source", _some(built, room)
    missing = [f"{' '.join(each.apt or each.libraries)} ({each.package})" for each in found.missing_libraries]
    yield "libraries", optional(_MISSING, _some(missing, room - len(_MISSING)))


def _cuda(found: PlatformSummary) -> str:
    base = found.base_image
    in_base = FLAVOR_LIBRARIES.get(base.flavor or "", ()) if base else ()
    version = " and ".join(found.cuda) or (base.cuda_release if base and in_base else "")
    unknown = ""
    if base and not found.is_base_known:
        unknown = "what the base image has is not known"
    if not version:
        return "none in the packages" + optional("; {}", unknown)
    return version + _copies(found, in_base, unknown)


def _copies(found: PlatformSummary, in_base: Sequence[str], unknown: str) -> str:
    """Whether the image has CUDA's libraries once, and where. unknown: why this is not known."""
    shared = {each.library for each in found.shared}
    if found.libraries == ("torch",):
        shared = {*in_base}
    twice = sorted(shared - {"cudart"})
    if twice:
        return f", twice: the packages and the base image have {', '.join(twice)}"
    if found.repeated:
        return f", twice: packages of two sources have {', '.join(found.repeated)}"
    if found.is_cuda_of_base:
        return ", of the base image's packages"
    if len(found.cuda) > 1:
        return ": two CUDAs in the packages"
    if unknown:
        return f" of the packages; {unknown}"
    if found.libraries:
        also = ", and cudart in the base image too" if shared else ""
        return f", once: in the packages{also}"
    return optional(", once: in the base image ({})", ", ".join(in_base))


def _gpus(found: PlatformSummary) -> str:
    if found.gpus is None:
        return ""
    texts = []
    for template, names in (("{}", found.gpus.compiled), ("by PTX {}", found.gpus.ptx), ("not {}", found.gpus.without)):
        texts.append(optional(template, ", ".join(name for name in _GPUS if name in names)))
    return "; ".join(filter(None, texts))


def _torch(found: PlatformSummary) -> str:
    family = found.torch
    if family is None:
        return ""
    packages = ", ".join(family.packages)
    if family.problem:
        return f"{packages}: these do not fit: {family.problem}"
    if not family.build:
        return f"{packages}: of a build that envspec does not know"
    if len(family.packages) > 1:
        return f"{packages}: {'one build,' if family.is_one_build else 'torch is'} {family.build}"
    return f"{packages}, {family.build}"
