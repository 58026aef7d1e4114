"""Explanations as text for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Any

from envspec.base_image.cuda import SharedLibrary
from envspec.explain.downloads import Download
from envspec.explain.explanation import Explanation, PackageExplanation, PlatformExplanation
from envspec.explain.image import image_lines
from envspec.explain.layout import columns, gpu_code_rows, section, size, spoken_moment, spoken_platforms, wrapped
from envspec.lock.diff import image_name
from envspec.lock.diff_shown import several, short_hashes
from envspec.models import BaseImage, Decision, Platform


def lock_text(told: Explanation, width: int = 100) -> str:
    """Sections with aligned columns, at most `width` wide where words can be broken; ends with a line feed."""
    gpus = f", for {', '.join(told.gpus)}" if told.gpus else ""
    facts = f", by facts {told.facts}" if told.facts else ""
    packages = "packages" if told.channels else "wheels"
    sections = [
        textwrap.wrap(f"{told.name}: nothing newer than {spoken_moment(told.as_of)}{facts}{gpus}", width),
        section("conda channels", _channels(told, width)),
        section("moments of their own", _moments(told)),
        section("decisions", _decisions(told.decisions, width)),
        section("base image", _base_image(told.base_image, width) if told.base_image else []),
        section("image", image_lines(told.image, width) if told.image else []),
        section("driver", _driver(told, width)),
        section("GPU code", gpu_code_rows(told.gpu_code)),
        section("GPU code read from wheels, when images were made of them here", gpu_code_rows(told.gpu_code_read)),
        section(f"CUDA libraries that the image and {packages} both hold", _shared(told)),
        *(section(item.platform.value, _platform(item, width)) for item in told.platforms),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def as_json(told: Explanation | PackageExplanation) -> str:
    """The explanation's own fields as one JSON object, moments in RFC 3339; ends with a line feed."""
    return json.dumps(_plain(told), indent=2, ensure_ascii=False) + "\n"


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return spoken_moment(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _channels(told: Explanation, width: int) -> list[str]:
    lines: list[str] = []
    for channel in told.channels:
        lines.append(channel.name if channel.name == channel.url else f"{channel.name}  {channel.url}")
        if channel.part:
            rows = f"solved from a part of {channel.name}: {channel.part.rows:,} rows"
            lines += wrapped(f"{rows}; the whole channel may solve to something else", width)
            lines.append(f"    sha256:{channel.part.sha256}")
    return lines


def _moments(told: Explanation) -> list[str]:
    wheels = [(name, spoken_moment(as_of)) for name, as_of in told.package_as_of]
    return columns([*wheels, *((f"{name} (conda)", spoken_moment(as_of)) for name, as_of in told.conda_as_of)])


def _decisions(decisions: Sequence[Decision], width: int) -> list[str]:
    """What was decided alike for several platforms is told once."""
    merged: dict[Decision, list[Platform]] = {}
    for decision in decisions:
        platforms = merged.setdefault(dataclasses.replace(decision, platform=None), [])
        platforms += [decision.platform] if decision.platform else []
    heads = columns(
        (decision.what, short_hashes(decision.value), spoken_platforms(where)) for decision, where in merged.items()
    )
    lines: list[str] = []
    for head, decision in zip(heads, merged, strict=True):
        source = f" [{decision.source}]" if decision.source else ""
        lines += [head, *wrapped(decision.why + source, width)]
    return lines


def _base_image(image: BaseImage, width: int) -> list[str]:
    lines = [image_name(image)]
    for pinned in image.digests:
        told = " ".join(filter(None, (pinned.source, pinned.kind)))
        lines.append(f"{pinned.platform.value}: {pinned.digest or 'no digest is known'} ({told})")
        lines += wrapped(pinned.note, width)
    return lines


def _driver(told: Explanation, width: int) -> list[str]:
    driver = told.driver
    if driver is None:
        return []
    bundled = f"; the toolkit ships with {driver.bundled}" if driver.bundled else ""
    source = f" [{driver.source}]" if driver.source else ""
    return [f"{driver.minimum} or newer{bundled}", *wrapped(driver.why + source, width)]


def _shared(told: Explanation) -> list[str]:
    """What is held twice on several platforms is told once."""
    merged: dict[SharedLibrary, list[Platform]] = {}
    for item in told.platforms:
        for library in item.shared:
            merged.setdefault(library, []).append(item.platform)
    return columns(
        (
            library.library,
            f"image {library.image_version or '(version unknown)'}",
            f"{library.package} {library.package_version}",
            spoken_platforms(where),
        )
        for library, where in merged.items()
    )


def _platform(item: PlatformExplanation, width: int) -> list[str]:
    source = f" ({item.python.source})" if item.python.source else ""
    bounds = [
        f"{name} {level[0]}.{level[1]}" for name, level in (("glibc", item.glibc), ("macOS", item.macos)) if level
    ]
    lines = [f"Python {', '.join((item.python.version + source, *bounds))}"]
    if item.conda is None:
        lines += _download("download", "file", item.download, width)
    else:
        lines += _download("conda", "package", item.conda, width)
        lines += _download("wheels", "file", item.download, width) if item.download.files else ["wheels: none"]
    for warning in item.warnings:
        lines += wrapped(f"warning: {warning}", width, "")
    return lines


def _download(what: str, noun: str, download: Download, width: int) -> list[str]:
    fetched = f"{several(download.files, noun)}, {size(download.size_bytes)}"
    if download.unsized:
        fetched += f" and {len(download.unsized)} of unknown size: {', '.join(download.unsized)}"
    return [
        *wrapped(f"{what}: {fetched}", width, ""),
        *(f"  {row}" for row in columns((size(big).rjust(10), name) for name, big in download.largest)),
    ]
