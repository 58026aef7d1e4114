"""Explanations of locks, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from envspec.base_image.cpu_builds import NO_CUDA_KNOWN, cuda_instead
from envspec.base_image.cuda import SharedLibrary
from envspec.conformance.text import counted
from envspec.context import comma_separated
from envspec.diagnostics.explain import (
    CondaVariant,
    Download,
    Explanation,
    ImageExplanation,
    Link,
    PackageExplanation,
    PlatformExplanation,
    Variant,
)
from envspec.lockfile.decided import source_of_digest
from envspec.lockfile.toml_writer import string
from envspec.models import DEFAULT_INDEX, SPEC, CpuBuild, Decision, GpuCode, ImageSettings, Platform
from envspec.reasons import words
from envspec.report.format import (
    Row,
    Table,
    document,
    listing,
    optional,
    row,
    short_hashes,
    size,
    text,
    wrapped,
)
from envspec.spec.dates import utc_text
from envspec.structs import replace


def as_text(explanation: Explanation | PackageExplanation, width: int) -> str:
    if isinstance(explanation, PackageExplanation):
        return text((), _package(explanation), width)
    gpus = optional(", for {}", ", ".join(explanation.gpus))
    facts = optional(", by envspec's data {}", explanation.facts)
    title = f"{explanation.name}: nothing newer than {utc_text(explanation.as_of)}{facts}{gpus}"
    return text(wrapped(title, width), _lock(explanation), width)


def as_json(explanation: Explanation | PackageExplanation) -> str:
    """The explanation's own fields; times in RFC 3339."""
    return document(explanation)


def _lock(found: Explanation) -> Iterator[Table]:
    packages = "packages" if found.channels else "wheels"
    own_as_of = []
    for name, as_of in found.package_as_of:
        own_as_of.append(row(name, utc_text(as_of)))
    for name, as_of in found.conda_as_of:
        own_as_of.append(row(f"{name} (conda)", utc_text(as_of)))
    yield listing("conda channels", _channels(found))
    yield listing("packages with their own as_of", own_as_of)
    yield listing("decisions", _decisions(found.decisions))
    yield listing("base image", _base_image(found))
    yield listing("image", _image(found.image))
    yield listing("driver", _driver(found))
    yield listing("GPU code", _gpu_code(found.gpu_code))
    yield listing("GPU code read from wheels during image builds on this machine", _gpu_code(found.gpu_code_read))
    yield listing("packages that use no GPU", _cpu_builds(found.cpu_builds))
    yield listing(f"CUDA libraries in both the image and the {packages}", _shared(found))
    for item in found.platforms:
        yield listing(item.platform.value, _platform(item))


def _channels(found: Explanation) -> Iterator[Row]:
    for channel in found.channels:
        notes = []
        if part := channel.part:
            count = f"{part.records:,} records"
            notes.append(f"solved from part of {channel.name}: {count}; the whole channel may solve otherwise")
            notes.append(f"sha256:{part.sha256}")
        yield row(channel.name, "" if channel.name == channel.url else channel.url, notes=notes)


#: How a GPU runs a package's code, in words.
_RUNS: Final = {"sass": "runs compiled code", "ptx": "compiles PTX at start"}


def _decisions(decisions: Sequence[Decision]) -> Iterator[Row]:
    """Equal decisions for several platforms are one row."""
    merged: dict[Decision, list[Platform]] = {}
    for decision in decisions:
        platforms = merged.setdefault(replace(decision, platform=None), [])
        if decision.platform:
            platforms.append(decision.platform)
    for decision, platforms in merged.items():
        # The reason for apt packages names the origin of each.
        source = "" if decision.what == "image.apt" else decision.source
        value = decision.value
        if decision.what.startswith("gpu."):
            value = _RUNS.get(value, value)
        notes = [_sourced(words(decision.why), source)]
        yield row(decision.what, short_hashes(value), comma_separated(platforms), notes=notes)


def _sourced(reason: str, source: str) -> str:
    # A key of the spec has brackets of its own: [cuda] version.
    origin = source
    if source.startswith("["):
        origin = f"spec: {source}"
    return reason + optional(" [{}]", origin)


def _base_image(found: Explanation) -> Iterator[Row]:
    images = [found.base_image]
    for each in found.platform_cuda:
        images.append(each.base_image)
    for image in images:
        if image is None:
            continue
        yield row(image.name)
        for pinned in image.digests:
            origin = str(source_of_digest(pinned))
            # The sources of a recorded digest are among the decisions.
            note = "" if pinned.source == "recorded" else pinned.note
            yield row(f"{pinned.platform.value}: {pinned.digest or 'no known digest'}", notes=(origin, note))


def _image(image: ImageExplanation | None) -> Iterator[Row]:
    if image is None:
        return
    if image.without:
        yield row(f"none: {image.without}")
        return
    yield from _settings(image.settings)
    for layer in image.system:
        contents = f"{counted(len(layer.packages), 'package')}, {size(layer.size_bytes)}"
        notes = [contents, *map(_undated, layer.undated)]
        yield row(f"{layer.platform.value}: system layer {layer.diff_id}", notes=notes)
    for each in image.ids:
        yield row(f"{each.platform.value}: {each.id}{optional(' (without bytecode)', not each.pyc)}")
    for what in image.does_not_run:
        yield row("does not run", what)


def _settings(settings: ImageSettings) -> Iterator[Row]:
    yield row("working directory", settings.workdir)
    for name, arguments in (("entrypoint", settings.entrypoint), ("command", settings.command)):
        if arguments:
            yield row(name, json.dumps(arguments))
    yield row("compiler", settings.compiler)
    if settings.project:
        yield row("project", settings.project)
    if settings.copy:
        yield row("copied code", " ".join(settings.copy))
    for service in settings.services:
        yield row(service.name, f"on port {service.port}{optional(', logs in {}', service.logdir)}")
    for name, value in settings.env:
        yield row(name, value if value.isprintable() else string(value))
    if settings.apt:
        archive = "system packages"
        if settings.snapshot:
            archive += f" of {utc_text(settings.snapshot)}"
        yield row(archive, notes=[" ".join(settings.apt), *map(_undated, settings.undated)])


def _undated(source: str) -> str:
    return f"{source} has no snapshots: its packages vary"


def _driver(found: Explanation) -> Iterator[Row]:
    drivers = [(found.driver, "")]
    for cuda in found.platform_cuda:
        drivers.append((cuda.driver, f"{cuda.platform.value}: "))
    for driver, where in drivers:
        if driver:
            bundled = optional("; the toolkit ships with {}", driver.bundled)
            yield row(f"{where}{driver.minimum} or newer{bundled}", notes=[_sourced(words(driver.why), driver.source)])
    for each in found.gpu_drivers:
        why = f"its first driver, of CUDA {each.cuda}; older ones do not support it"
        yield row(f"{each.gpu}: {each.minimum} or newer", notes=[_sourced(why, each.source)])


def _gpu_code(codes: Iterable[GpuCode]) -> Iterator[Row]:
    for code in codes:
        architectures = " ".join((*code.sm, *code.ptx)) or "none"
        cells = (f"{code.package} {code.version}", code.variant, code.platform.value, architectures)
        yield row(*filter(None, cells))


def _cpu_builds(builds: Iterable[CpuBuild]) -> Iterator[Row]:
    for each in builds:
        name = f"{each.package} {each.version}"
        yield row(name, each.platform.value, notes=[_sourced(cuda_instead(each) or NO_CUDA_KNOWN, each.source)])


def _shared(found: Explanation) -> Iterator[Row]:
    merged: dict[SharedLibrary, list[Platform]] = {}
    for item in found.platforms:
        for library in item.shared:
            merged.setdefault(library, []).append(item.platform)
    for library, platforms in merged.items():
        package = f"{library.package} {library.package_version}"
        version = library.image_version or "(unknown version)"
        yield row(library.library, f"image {version}", package, comma_separated(platforms))


def _platform(item: PlatformExplanation) -> Iterator[Row]:
    parts = [item.python.version + optional(" ({})", item.python.source)]
    for name, level in (("glibc", item.glibc), ("macOS", item.macos)):
        if level:
            parts.append(f"{name} {level[0]}.{level[1]}")
    yield row(f"Python {', '.join(parts)}")
    if item.on_top_of:
        yield row(f"on top of {item.on_top_of}, which has {counted(item.installed, 'package')}")
    if item.conda is not None:
        yield from _download("conda", "package", item.conda)
    yield from _download("wheels" if item.conda else "download", "file", item.download)
    for warning in item.warnings:
        yield row(f"warning: {warning}")


def _download(what: str, noun: str, download: Download) -> Iterator[Row]:
    if not download.files:
        yield row(f"{what}: none")
        return
    total = f"{counted(download.files, noun)}, {size(download.size_bytes)}"
    if download.unsized:
        total += f" and {len(download.unsized)} of unknown size: {', '.join(download.unsized)}"
    yield row(f"{what}: {total}", notes=[f"{size(count):>9}  {name}" for name, count in download.largest])


def _package(found: PackageExplanation) -> Iterator[Table]:
    """Platforms with equal properties together."""
    for conda in found.conda:
        provided = ", ".join(f"{each.name} {each.version}" for each in conda.provides)
        note = optional("contains the Python package {}", provided)
        yield from _variant(f"{conda.name} {conda.version} of {conda.channel}", conda, _conda_files(conda), note=note)
    for wheel in found.variants:
        extras = optional("[{}]", ",".join(wheel.extras))
        # A conda package of the same name may be something else.
        kind = optional(" from a wheel", found.conda)
        title = f"{found.name}{extras} {wheel.version}{kind}"
        yield from _variant(title, wheel, _files(wheel), wheel.gpu_code_read)
    for there in found.installed:
        digest = optional("RECORD sha256:{}", there.record_sha256)
        place = row(f"is there already: {there.place} has it", notes=[digest])
        yield listing(f"{found.name} {there.version} on {there.platform.value}", [place])
        yield listing("required by", _tree(there.chains, with_channels=True))
        yield listing("GPU code", _gpu_code(there.gpu_code))
    if found.absent:
        yield listing(f"not on {comma_separated(found.absent)}", [row("")])


def _variant(
    title: str, variant: Variant | CondaVariant, files: Iterable[Row], code: Iterable[GpuCode] = (), note: str = ""
) -> list[Table]:
    """code: read from a wheel."""
    platforms = comma_separated(file.platform for file in variant.files)
    preferred: list[Row] = []
    if variant.preferred:
        preferred.append(row(variant.preferred.version, notes=[words(variant.preferred.why)]))
    return [
        listing(f"{title} on {platforms}", [row(note)]),
        listing("required by", _tree(variant.chains, with_channels=isinstance(variant, Variant))),
        _newest(variant),
        listing("version that the spec prefers", preferred),
        listing("GPU code", _gpu_code(variant.gpu_code)),
        listing("GPU code read from the wheel", _gpu_code(code)),
        listing("files", files),
    ]


def _newest(variant: Variant | CondaVariant) -> Table:
    """The newest version that was considered: the locked one, or why it was rejected."""
    where = "on its index"
    if variant.as_of:
        where = f"up to {utc_text(variant.as_of)}"
    if variant.rejected:
        rejected = row(variant.rejected.version, notes=[words(variant.rejected.why)])
        return listing(f"newest version {where}, rejected", [rejected])
    rows = []
    if variant.is_newest:
        rows.append(row(f"{variant.version}, which is locked"))
    return listing(f"newest version {where}", rows)


def _tree(chains: Sequence[Sequence[Link]], *, with_channels: bool) -> Iterator[Row]:
    """Each step indented below the one that led to it; common beginnings of chains appear once."""
    before: Sequence[Link] = ()
    for chain in sorted(chains, key=_from_the_spec_first):
        is_shared = True
        for depth, link in enumerate(chain):
            is_shared = is_shared and depth < len(before) and before[depth] == link
            if is_shared:
                continue
            # A conda package that requires a wheel is listed with its channel.
            channel = optional("of {}", link.channel) if with_channels else ""
            name = " ".join(filter(None, (link.name, link.version, channel)))
            yield row(f"{'  ' * depth}{name}: {link.requirement}")
        before = chain


def _from_the_spec_first(chain: Sequence[Link]) -> tuple[bool, list[tuple[str, str]]]:
    return chain[0].name != SPEC, [(link.name, link.requirement) for link in chain]


def _files(variant: Variant) -> Iterator[Row]:
    for item in variant.files:
        details = [_size(item.file.size_bytes)]
        if item.file.index != DEFAULT_INDEX:
            details.append(f"from {item.file.index}")
        if item.uploaded:
            details.append(f"uploaded {utc_text(item.uploaded)}")
        if item.unbuilt:
            details.append(f"not built: {item.unbuilt.described}")
        yield _file(item.platform, item.file.filename, details, item.file.sha256, item.file.url or "")
        for wrong in item.wrong_record:
            is_there = optional("sha256:{}", wrong.sha256) or "is not in the wheel"
            yield row(f"{item.platform.value}: RECORD is wrong about {wrong.path}", notes=[is_there])


def _conda_files(variant: CondaVariant) -> Iterator[Row]:
    for item in variant.files:
        details = [f"build {item.build}", _size(item.size_bytes)]
        if item.built:
            details.append(f"built {utc_text(item.built)}")
        yield _file(item.platform, item.filename, details, item.sha256, item.url)


def _file(platform: Platform, name: str, details: Iterable[str], sha256: str, url: str) -> Row:
    return row(f"{platform.value}: {name}", notes=(", ".join(details), f"sha256:{sha256}", url))


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "unknown size"
    return size(size_bytes)
