"""Explanations as text for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Final

from envspec.base_image.shared_libraries import SharedLibrary
from envspec.explain.explanation import SPEC, Explanation, Link, PackageExplanation, PlatformExplanation, Variant
from envspec.lock.diff import image_name
from envspec.lock.diff_shown import short_hashes
from envspec.model import DEFAULT_INDEX, BaseImage, Decision, GpuCode, Platform

_UNITS: Final = (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000))


def lock_text(told: Explanation, width: int = 100) -> str:
    """Sections with aligned columns, at most `width` wide where words can be broken; ends with a line feed."""
    gpus = f", for {', '.join(told.gpus)}" if told.gpus else ""
    facts = f", by facts {told.facts}" if told.facts else ""
    sections = [
        textwrap.wrap(f"{told.name}: nothing newer than {_moment(told.as_of)}{facts}{gpus}", width),
        _section("moments of their own", _columns((name, _moment(as_of)) for name, as_of in told.package_as_of)),
        _section("decisions", _decisions(told.decisions, width)),
        _section("base image", _base_image(told.base_image, width) if told.base_image else []),
        _section("driver", _driver(told, width)),
        _section("GPU code", _gpu_code(told.gpu_code)),
        _section("CUDA libraries that the image and wheels both hold", _shared(told)),
        *(_section(item.platform.value, _platform(item, width)) for item in told.platforms),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def package_text(told: PackageExplanation, width: int = 100) -> str:
    """The package on each platform, with those that agree told together; ends with a line feed."""
    sections = [section for variant in told.variants for section in _variant(told.name, variant, width)]
    if told.absent:
        sections.append([f"not on {_platforms(told.absent)}"])
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def as_json(told: Explanation | PackageExplanation) -> str:
    """The explanation's own fields as one JSON object, moments in RFC 3339; ends with a line feed."""
    return json.dumps(_plain(told), indent=2, ensure_ascii=False) + "\n"


def size(size_bytes: int) -> str:
    """`899.8 MB`: decimal units, as package indexes show them."""
    for unit, worth in _UNITS:
        if size_bytes >= worth:
            return f"{size_bytes / worth:.1f} {unit}"
    return f"{size_bytes} bytes"


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _moment(value: datetime) -> str:
    return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []


def _wrapped(text: str, width: int, indent: str = "    ") -> list[str]:
    return textwrap.wrap(
        text,
        width - 2,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells padded to the widest of their column, but for the last of a row."""
    table = list(rows)
    count = max(map(len, table), default=0)
    widths = [max((len(row[column]) for row in table if column < len(row)), default=0) for column in range(count)]
    return ["  ".join(cell.ljust(widths[column]) for column, cell in enumerate(row)).rstrip() for row in table]


def _platforms(platforms: Iterable[Platform]) -> str:
    return ", ".join(platform.value for platform in platforms)


def _decisions(decisions: Sequence[Decision], width: int) -> list[str]:
    """What was decided alike for several platforms is told once."""
    merged: dict[Decision, list[Platform]] = {}
    for decision in decisions:
        platforms = merged.setdefault(dataclasses.replace(decision, platform=None), [])
        platforms += [decision.platform] if decision.platform else []
    heads = _columns(
        (decision.what, short_hashes(decision.value), _platforms(where)) for decision, where in merged.items()
    )
    lines: list[str] = []
    for head, decision in zip(heads, merged, strict=True):
        source = f" [{decision.source}]" if decision.source else ""
        lines += [head, *_wrapped(decision.why + source, width)]
    return lines


def _base_image(image: BaseImage, width: int) -> list[str]:
    lines = [image_name(image)]
    for pinned in image.digests:
        told = " ".join(filter(None, (pinned.source, pinned.kind)))
        lines.append(f"{pinned.platform.value}: {pinned.digest or 'no digest is known'} ({told})")
        lines += _wrapped(pinned.note, width)
    return lines


def _driver(told: Explanation, width: int) -> list[str]:
    driver = told.driver
    if driver is None:
        return []
    bundled = f"; the toolkit ships with {driver.bundled}" if driver.bundled else ""
    source = f" [{driver.source}]" if driver.source else ""
    return [f"{driver.minimum} or newer{bundled}", *_wrapped(driver.why + source, width)]


def _gpu_code(codes: Sequence[GpuCode]) -> list[str]:
    return _columns(
        (
            f"{code.package} {code.version}",
            code.variant,
            code.platform.value,
            " ".join((*code.sm, *code.ptx)) or "none",
        )
        for code in codes
    )


def _shared(told: Explanation) -> list[str]:
    """What is held twice on several platforms is told once."""
    merged: dict[SharedLibrary, list[Platform]] = {}
    for item in told.platforms:
        for library in item.shared:
            merged.setdefault(library, []).append(item.platform)
    return _columns(
        (
            library.library,
            f"image {library.image_version or '(version unknown)'}",
            f"{library.package} {library.package_version}",
            _platforms(where),
        )
        for library, where in merged.items()
    )


def _platform(item: PlatformExplanation, width: int) -> list[str]:
    source = f" ({item.python.source})" if item.python.source else ""
    bounds = [
        f"{name} {level[0]}.{level[1]}" for name, level in (("glibc", item.glibc), ("macOS", item.macos)) if level
    ]
    download = item.download
    fetched = f"{download.files} {'file' if download.files == 1 else 'files'}, {size(download.size_bytes)}"
    if download.unsized:
        fetched += f" and {len(download.unsized)} of unknown size: {', '.join(download.unsized)}"
    lines = [
        f"Python {', '.join((item.python.version + source, *bounds))}",
        *_wrapped(f"download: {fetched}", width, ""),
    ]
    lines += [f"  {row}" for row in _columns((size(big).rjust(10), name) for name, big in download.largest)]
    for warning in item.warnings:
        lines += _wrapped(f"warning: {warning}", width, "")
    return lines


def _variant(name: str, variant: Variant, width: int) -> list[list[str]]:
    extras = f"[{','.join(variant.extras)}]" if variant.extras else ""
    where = _platforms(file.platform for file in variant.files)
    newest = variant.newest
    sections = [
        [f"{name}{extras} {variant.version} on {where}"],
        _section("asked for by", _tree(variant.chains)),
        _section("newest not taken", [newest.version, *_wrapped(newest.why, width)] if newest else []),
        _section("GPU code", _gpu_code(variant.gpu_code)),
        _section("files", _files(variant)),
    ]
    return [section for section in sections if section]


def _tree(chains: Sequence[Sequence[Link]]) -> list[str]:
    """Chains with what they begin with in common told once, each step indented below the one that led to it."""
    lines: list[str] = []
    before: Sequence[Link] = ()
    for chain in sorted(chains, key=_from_the_spec_first):
        shared = next(
            (place for place, (one, other) in enumerate(zip(before, chain, strict=False)) if one != other),
            min(len(before), len(chain)),
        )
        lines += [
            f"{'  ' * depth}{' '.join(filter(None, (link.name, link.version)))}: {link.requirement}"
            for depth, link in enumerate(chain)
            if depth >= shared
        ]
        before = chain
    return lines


def _from_the_spec_first(chain: Sequence[Link]) -> tuple[bool, list[tuple[str, str]]]:
    return chain[0].name != SPEC, [(link.name, link.requirement) for link in chain]


def _files(variant: Variant) -> list[str]:
    lines: list[str] = []
    for item in variant.files:
        file = item.file
        known = [
            "size unknown" if file.size_bytes is None else size(file.size_bytes),
            *([] if file.index == DEFAULT_INDEX else [f"from {file.index}"]),
            *([f"uploaded {_moment(item.uploaded)}"] if item.uploaded else []),
        ]
        lines += [f"{item.platform.value}: {file.filename}", f"  {', '.join(known)}", f"  sha256:{file.sha256}"]
        lines += [f"  {file.url}"] if file.url else []
    return lines
