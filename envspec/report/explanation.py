"""Explanations of locks, and whether a machine can run one, as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from envspec.base_image.cpu_builds import NO_CUDA_KNOWN, cuda_instead
from envspec.base_image.cuda import SharedLibrary
from envspec.context import counted
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
from envspec.diagnostics.fit import FitFinding, FitReport, FitVerdict
from envspec.diagnostics.machine import Machine, MachineSource
from envspec.lockfile.toml_writer import string
from envspec.models import DEFAULT_INDEX, SPEC, CpuBuild, Decision, GpuCode, Platform
from envspec.reasons import reason, words
from envspec.report.format import (
    Row,
    Table,
    document,
    hanging,
    listing,
    row,
    short_hashes,
    size,
    text,
    utc,
    wrapped,
)


def as_text(explanation: Explanation | PackageExplanation, width: int) -> str:
    if isinstance(explanation, PackageExplanation):
        return text((), _package(explanation), width)
    gpus = f", for {', '.join(explanation.gpus)}" if explanation.gpus else ""
    facts = f", by envspec's data {explanation.facts}" if explanation.facts else ""
    title = f"{explanation.name}: nothing newer than {utc(explanation.as_of)}{facts}{gpus}"
    return text(wrapped(title, width), _lock(explanation), width)


def as_json(explanation: Explanation | PackageExplanation) -> str:
    """The explanation's own fields; times in RFC 3339."""
    return document(explanation)


def _lock(found: Explanation) -> list[Table]:
    packages = "packages" if found.channels else "wheels"
    return [
        listing("conda channels", _channels(found)),
        listing(
            "packages with their own as_of",
            (
                *(row(name, utc(as_of)) for name, as_of in found.package_as_of),
                *(row(f"{name} (conda)", utc(as_of)) for name, as_of in found.conda_as_of),
            ),
        ),
        listing("decisions", _decisions(found.decisions)),
        listing("base image", _base_image(found)),
        listing("image", _image(found.image) if found.image else ()),
        listing("driver", _driver(found)),
        listing("GPU code", _gpu_code(found.gpu_code)),
        listing("GPU code read from wheels during image builds on this machine", _gpu_code(found.gpu_code_read)),
        listing("packages that use no GPU", _cpu_builds(found.cpu_builds)),
        listing(f"CUDA libraries in both the image and the {packages}", _shared(found)),
        *(listing(item.platform.value, _platform(item)) for item in found.platforms),
    ]


def _channels(found: Explanation) -> Iterator[Row]:
    for channel in found.channels:
        part = channel.part
        notes = (
            (
                f"solved from part of {channel.name}: {part.records:,} records; the whole channel may solve otherwise",
                f"sha256:{part.sha256}",
            )
            if part
            else ()
        )
        yield row(channel.name, "" if channel.name == channel.url else channel.url, notes=notes)


#: How a GPU runs a package's code, in words.
_RUNS: Final = {"sass": "runs compiled code", "ptx": "compiles PTX at start"}


def _decisions(decisions: Sequence[Decision]) -> Iterator[Row]:
    """Equal decisions for several platforms are one row."""
    merged: dict[Decision, list[Platform]] = {}
    for decision in decisions:
        platforms = merged.setdefault(replace(decision, platform=None), [])
        platforms += [decision.platform] if decision.platform else []
    for decision, platforms in merged.items():
        # The reason for apt packages names the origin of each.
        source = "" if decision.what == "image.apt" else decision.source
        value = _RUNS.get(decision.value, decision.value) if decision.what.startswith("gpu.") else decision.value
        yield row(decision.what, short_hashes(value), _listed(platforms), notes=[_sourced(words(decision.why), source)])


def _sourced(reason: str, source: str) -> str:
    # A key of the spec has brackets of its own: [cuda] version.
    origin = f"spec: {source}" if source.startswith("[") else source
    return f"{reason} [{origin}]" if source else reason


def _base_image(found: Explanation) -> Iterator[Row]:
    for image in filter(None, (found.base_image, *(each.base_image for each in found.platform_cuda))):
        yield row(image.name)
        for pinned in image.digests:
            origin = words([reason(f"digest-{pinned.source}")])
            # The sources of a recorded digest are among the decisions.
            notes = [origin] if pinned.source == "recorded" else [origin, pinned.note]
            yield row(f"{pinned.platform.value}: {pinned.digest or 'no known digest'}", notes=notes)


def _image(image: ImageExplanation) -> Iterator[Row]:
    if image.without:
        yield row(f"none: {image.without}")
        return
    settings = image.settings
    yield row("working directory", settings.workdir)
    yield row("compiler", settings.compiler)
    if settings.project:
        yield row("project", settings.project)
    if settings.copy:
        yield row("copied code", " ".join(settings.copy))
    for service in settings.services:
        logs = f", logs in {service.logdir}" if service.logdir else ""
        yield row(service.name, f"on port {service.port}{logs}")
    for name, value in settings.env:
        yield row(name, value if value.isprintable() else string(value))
    if settings.apt:
        archive = f" of {utc(settings.snapshot)}" if settings.snapshot else ""
        yield row(f"system packages{archive}", notes=[" ".join(settings.apt), *map(_undated, settings.undated)])
    for layer in image.system:
        contents = f"{counted(len(layer.packages), 'package')}, {size(layer.size_bytes)}"
        notes = [contents, *map(_undated, layer.undated)]
        yield row(f"{layer.platform.value}: system layer {layer.diff_id}", notes=notes)
    for each in image.ids:
        yield row(f"{each.platform.value}: {each.id}{'' if each.pyc else ' (without bytecode)'}")
    for what in image.does_not_run:
        yield row("does not run", what)


def _undated(source: str) -> str:
    return f"{source} has no snapshots: its packages vary"


def _driver(found: Explanation) -> Iterator[Row]:
    own = ((each.driver, f"{each.platform.value}: ") for each in found.platform_cuda)
    for driver, where in ((found.driver, ""), *own):
        if driver:
            bundled = f"; the toolkit ships with {driver.bundled}" if driver.bundled else ""
            yield row(f"{where}{driver.minimum} or newer{bundled}", notes=[_sourced(words(driver.why), driver.source)])
    for each in found.gpu_drivers:
        why = f"its first driver, of CUDA {each.cuda}; older ones do not support it"
        yield row(f"{each.gpu}: {each.minimum} or newer", notes=[_sourced(why, each.source)])


def _gpu_code(codes: Iterable[GpuCode]) -> Iterator[Row]:
    for code in codes:
        variant = (code.variant,) if code.variant else ()
        architectures = " ".join((*code.sm, *code.ptx)) or "none"
        yield row(f"{code.package} {code.version}", *variant, code.platform.value, architectures)


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
        yield row(library.library, f"image {version}", package, _listed(platforms))


def _platform(item: PlatformExplanation) -> Iterator[Row]:
    source = f" ({item.python.source})" if item.python.source else ""
    levels = [
        f"{name} {level[0]}.{level[1]}" for name, level in (("glibc", item.glibc), ("macOS", item.macos)) if level
    ]
    yield row(f"Python {', '.join((item.python.version + source, *levels))}")
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
        note = f"contains the Python package {provided}" if provided else ""
        yield from _variant(f"{conda.name} {conda.version} of {conda.channel}", conda, _conda_files(conda), note=note)
    for wheel in found.variants:
        extras = f"[{','.join(wheel.extras)}]" if wheel.extras else ""
        # A conda package of the same name may be something else.
        kind = " from a wheel" if found.conda else ""
        title = f"{found.name}{extras} {wheel.version}{kind}"
        yield from _variant(title, wheel, _files(wheel), wheel.gpu_code_read)
    for there in found.installed:
        digest = [f"RECORD sha256:{there.record_sha256}"] if there.record_sha256 else []
        yield listing(
            f"{found.name} {there.version} on {there.platform.value}",
            [row(f"is there already: {there.place} has it", notes=digest)],
        )
        yield listing("required by", _tree(there.chains, with_channels=True))
        yield listing("GPU code", _gpu_code(there.gpu_code))
    if found.absent:
        yield listing(f"not on {_listed(found.absent)}", [row("")])


def _variant(
    title: str, variant: Variant | CondaVariant, files: Iterable[Row], code: Iterable[GpuCode] = (), note: str = ""
) -> list[Table]:
    """code: read from a wheel."""
    preferred: list[Row] = []
    if variant.preferred:
        preferred.append(row(variant.preferred.version, notes=[words(variant.preferred.why)]))
    return [
        listing(f"{title} on {_listed(file.platform for file in variant.files)}", [row(note)]),
        listing("required by", _tree(variant.chains, with_channels=isinstance(variant, Variant))),
        _newest(variant),
        listing("version that the spec prefers", preferred),
        listing("GPU code", _gpu_code(variant.gpu_code)),
        listing("GPU code read from the wheel", _gpu_code(code)),
        listing("files", files),
    ]


def _newest(variant: Variant | CondaVariant) -> Table:
    """The newest version that was considered: the locked one, or why it was rejected."""
    where = f"up to {utc(variant.as_of)}" if variant.as_of else "on its index"
    if variant.rejected:
        rejected = row(variant.rejected.version, notes=[words(variant.rejected.why)])
        return listing(f"newest version {where}, rejected", [rejected])
    return listing(f"newest version {where}", [row(f"{variant.version}, which is locked")] if variant.is_newest else [])


def _tree(chains: Sequence[Sequence[Link]], *, with_channels: bool) -> Iterator[Row]:
    """Each step indented below the one that led to it; common beginnings of chains appear once."""
    before: Sequence[Link] = ()
    for chain in sorted(chains, key=_from_the_spec_first):
        shared = next(
            (index for index, (one, other) in enumerate(zip(before, chain, strict=False)) if one != other),
            min(len(before), len(chain)),
        )
        for depth, link in enumerate(chain[shared:], shared):
            # A conda package that requires a wheel is listed with its channel.
            channel = f"of {link.channel}" if link.channel and with_channels else None
            name = " ".join(filter(None, (link.name, link.version, channel)))
            yield row(f"{'  ' * depth}{name}: {link.requirement}")
        before = chain


def _from_the_spec_first(chain: Sequence[Link]) -> tuple[bool, list[tuple[str, str]]]:
    return chain[0].name != SPEC, [(link.name, link.requirement) for link in chain]


def _files(variant: Variant) -> Iterator[Row]:
    for item in variant.files:
        index = "" if item.file.index == DEFAULT_INDEX else f"from {item.file.index}"
        uploaded = f"uploaded {utc(item.uploaded)}" if item.uploaded else ""
        unbuilt = f"not built: {item.unbuilt.described}" if item.unbuilt else ""
        details = _size(item.file.size_bytes), index, uploaded, unbuilt
        yield _file(item.platform, item.file.filename, details, item.file.sha256, item.file.url or "")
        for wrong in item.wrong_record:
            is_there = f"sha256:{wrong.sha256}" if wrong.sha256 else "is not in the wheel"
            yield row(f"{item.platform.value}: RECORD is wrong about {wrong.path}", notes=[is_there])


def _conda_files(variant: CondaVariant) -> Iterator[Row]:
    for item in variant.files:
        details = f"build {item.build}", _size(item.size_bytes), f"built {utc(item.built)}" if item.built else ""
        yield _file(item.platform, item.filename, details, item.sha256, item.url)


def _file(platform: Platform, name: str, details: Iterable[str], sha256: str, url: str) -> Row:
    return row(f"{platform.value}: {name}", notes=(", ".join(filter(None, details)), f"sha256:{sha256}", url))


def _size(size_bytes: int | None) -> str:
    return "unknown size" if size_bytes is None else size(size_bytes)


def _listed(platforms: Iterable[Platform]) -> str:
    return ", ".join(platform.value for platform in platforms)


_CONCLUSIONS: Final = {
    FitVerdict.FITS: "{machine} can run {lock}",
    FitVerdict.DOES_NOT_FIT: "{machine} can't run {lock}",
    FitVerdict.UNKNOWN: "it is unknown whether {machine} can run {lock}",
}


def fit_as_text(report: FitReport, width: int) -> str:
    """The verdict, the machine, each different finding once, and what to change."""
    name = "this machine" if report.machine.source is MachineSource.READ else "the described machine"
    head = [
        *wrapped(_CONCLUSIONS[report.verdict].format(machine=name, lock=report.lock), width),
        *hanging("  ", _machine(report.machine), width),
    ]
    missing = [each for each in report.findings if each.verdict is not FitVerdict.FITS]
    changes = [report.change] if report.change else list(dict.fromkeys(each.change for each in missing))
    tables = [listing("", dict.fromkeys(map(_fit_finding, report.findings)))]
    return "\n".join(
        [
            text(head, tables, width),
            *("\n".join([*hanging("smallest change: ", change, width), ""]) for change in filter(None, changes)),
        ]
    )


def _fit_finding(found: FitFinding) -> Row:
    # What is missing has its change below all findings.
    notes = [found.change] if found.change and found.verdict is FitVerdict.FITS else []
    return row(found.verdict.value, found.what, found.why, notes=notes)


def fit_as_json(report: FitReport) -> str:
    machine = report.machine
    return document(
        {
            "lock": report.lock,
            "verdict": report.verdict,
            "machine": {
                "source": machine.source,
                "platform": machine.platform,
                "driver": machine.driver,
                "gpus": [
                    {
                        "name": gpu.name,
                        "compute_capability": str(gpu.capability) if gpu.capability else None,
                        "memory_mib": gpu.memory_mib,
                    }
                    for gpu in machine.gpus
                ],
                "problem": machine.problem,
            },
            "findings": report.findings,
            "change": report.change,
        }
    )


def _machine(machine: Machine) -> str:
    read = machine.source is MachineSource.READ
    driver = f"driver {machine.driver}" if machine.driver else "no NVIDIA driver" if read else "any driver"
    counts = Counter(gpu.name for gpu in machine.gpus)
    gpus = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return ", ".join((machine.platform.value, driver, *(gpus or ["no NVIDIA GPU" if read else "any GPU"])))
