"""Torch builds and the torch family.

A release's own metadata is the rule; where it is wrong or empty, a `[[edge]]` row of `envspec/data/family.toml`
corrects it. All checks here are pure; a release that is not in the data passes and is left to the resolver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.errors import NoSolution
from envspec.facts.gpu import (
    Coverage,
    Runs,
    capability_of,
    coverage,
    has_wheel,
    in_time,
    missing_code,
    named_versions,
    oldest_driver,
    probes_outside,
    runs,
    runs_all,
    unsupported,
)
from envspec.facts.tables import EdgeRow, Facts, GpuRow, MemberRow, TorchRelease, at_least, numeric, ranges_text
from envspec.models import CudaVersion, Platform
from envspec.origins import PYTORCH_INDEX


class CudaChoice(Enum):
    """The CUDA of a spec without a version."""

    CPU = "cpu"  # no [cuda] table
    ANY = "any"  # [cuda] without a version: whatever the default build has


class NoSuchBuild(NoSolution):
    """A (torch, CUDA) pair that was never published."""

    code = "no-torch-build"


@dataclass(frozen=True, slots=True)
class Machines:
    """What must run a build: the oldest driver (None: any), GPUs, and a series of Python (empty: any)."""

    driver: str | None = None
    gpus: tuple[GpuRow, ...] = ()
    python: str = ""

    def __str__(self) -> str:
        """`with code for V100 and A100 that driver 535 runs`."""
        code = [f"with code for {' and '.join(gpu.name for gpu in self.gpus)}"] if self.gpus else []
        return " ".join([*code, *([f"that driver {self.driver} runs"] if self.driver else [])])


#: Machines that every build runs on.
ANY_MACHINE: Final = Machines()


@dataclass(frozen=True, slots=True)
class BuildChoice:
    """A build of torch and where it is published.

    variant: `cu128`, `cpu`; None if any will do. versions: known releases that match, oldest first.
    constraint: what to add to every request for torch (`>=2.8.0,<=2.10.0`), empty where the index alone decides.
    url: PyTorch's index, None for the default one. warning: for the user; empty if the choice is sure. left_out: the
    newest release if it does not run on the machines, with the reason; else empty.
    serves_gpus: False if no build that could be chosen is known to have code for the GPUs, which then bound nothing.
    refused: why there is none, if nothing is known to require torch.
    """

    variant: str | None
    why: str
    source: str
    versions: tuple[str, ...] = ()
    constraint: str = ""
    url: str | None = None
    warning: str = ""
    left_out: str = ""
    serves_gpus: bool = True
    refused: NoSuchBuild | None = None


def choose_build(
    facts: Facts,
    torch: SpecifierSet,
    cuda: CudaVersion | CudaChoice,
    platform: Platform,
    as_of: datetime | None = None,
    machines: Machines = ANY_MACHINE,
) -> BuildChoice:
    """Which index and which torch releases serve a request.

    Takes the newest torch that matches, was published for that CUDA, and runs on the machines. Is it the default build,
    the default index holds it; else PyTorch's own index of that variant does. Releases uploaded after `as_of` are not
    considered.

    machines: without a CUDA version, a driver chooses among all builds of a release, GPUs alone take its default build.
    GPUs that no build for the platform has code for bound nothing.

    Raises:
        NoSuchBuild: no torch that matches was ever published for that CUDA, or runs with the driver.
    """
    public, label = split_label(torch)
    wish = cuda_of_label(f"torch{torch}", label, cuda) if label else cuda
    has_code = platform.is_linux and wish is not CudaChoice.CPU
    machines = replace(machines, gpus=served(facts, machines.gpus, platform)) if has_code else ANY_MACHINE
    if wish is CudaChoice.ANY:
        return _for_machines(facts, public, machines, platform, as_of)
    if platform is Platform.OSX_ARM64:
        why = "macOS has no CUDA: the default index's build"
        return BuildChoice("cpu", why, "NVIDIA, CUDA on macOS ended with 10.2")
    variant = wish.variant if isinstance(wish, CudaVersion) else "cpu"
    if coverage(facts, public, as_of) is Coverage.ONLY_OUTSIDE:
        return _outside(facts, torch, variant, platform)
    matching = [row for row in facts.torch if public.contains(row.version, prereleases=True) and in_time(row, as_of)]
    if not matching:
        return BuildChoice(None, f"no known torch release matches {torch} by the date given", facts.torch[-1].source)
    published = [row for row in matching if _has(row, variant, platform)]
    if not published:
        raise _no_such_build(facts, matching, wish, platform)
    # Every build for that CUDA needs the same driver.
    gpus = replace(machines, driver=None)
    running = [row for row in published if not _obstacle(facts, row, variant, platform, gpus)]
    candidates = running or published
    if candidates[-1].default.get(platform.value) == variant:
        choice = _from_default(facts, candidates, variant, platform)
    else:
        choice = _from_pytorch(facts, candidates, variant, platform)
    left_out = _left_out(facts, published[-1], candidates[-1], variant, platform, gpus)
    return replace(choice, left_out=left_out, serves_gpus=bool(running))


def driver_of_build(
    facts: Facts, torch: str, cuda: CudaVersion, platform: Platform, gpus: Sequence[GpuRow]
) -> str | None:
    """The oldest driver that runs a build on GPUs; None if it must compile PTX, and the toolkit's own is unknown."""
    capabilities = [capability_of(gpu) for gpu in gpus]
    code = facts.gpu_code_of(torch, cuda.variant, platform)
    return oldest_driver(facts, cuda, capabilities, runs_all(capabilities, code.sm, code.ptx) if code else Runs.SASS)


def served(facts: Facts, gpus: Sequence[GpuRow], platform: Platform) -> tuple[GpuRow, ...]:
    """The GPUs for which some build for the platform has code."""
    codes = [row for row in facts.gpu_code if row.platform == platform.value and not row.channel]

    def is_served(gpu: GpuRow) -> bool:
        capability = capability_of(gpu)
        return any(runs(capability, row.sm, row.ptx) is not Runs.NOT for row in codes)

    return tuple(filter(is_served, gpus))


def _for_machines(
    facts: Facts, torch: SpecifierSet, machines: Machines, platform: Platform, as_of: datetime | None
) -> BuildChoice:
    """The newest release with a build that runs on the machines."""
    default = BuildChoice(None, "no CUDA version is required: the default build", "")
    if not (machines.driver or machines.gpus):
        return default
    rows = [row for row in facts.torch if in_time(row, as_of) and has_wheel(row, platform, machines.python)]
    matching = [row for row in rows if torch.contains(row.version, prereleases=True)]
    found = _newest_build(facts, matching, platform, machines)
    any_gpu = replace(machines, gpus=())
    if found is None and machines.gpus and (not machines.driver or _newest_build(facts, matching, platform, any_gpu)):
        return replace(_for_machines(facts, torch, any_gpu, platform, as_of), serves_gpus=False)
    if found is None:
        raise _no_build_for_driver(facts, torch, rows, machines, platform)
    row, variant = found
    usual = row.default.get(platform.value)
    tried = next(iter(_variants(facts, matching[-1], platform, machines)), "cpu")
    left_out = _left_out(facts, matching[-1], row, tried, platform, machines)
    cuda = CudaVersion.parse(variant)
    if machines.driver is None:
        if not left_out:
            return default
        why = f"the newest default build on {platform.value} {machines} is torch {row.version} for CUDA {cuda}"
        builds = ((each, builds_for(facts, each, platform, machines)) for each in reversed(matching))
        newer, cudas = next((each, cudas) for each, cudas in builds if cudas)
        if newer is not row:
            left_out += f'. [cuda] version = "{cudas[0]}" allows torch {newer.version}, whose build has that code'
        return BuildChoice(None, why, row.source, (row.version,), f"<={row.version}", left_out=left_out)
    why = f"the newest build {machines} is torch {row.version} for CUDA {cuda}"
    if variant == usual:
        # A driver that runs a release's default build runs those of older releases.
        bound = "" if row is facts.torch[-1] else f"<={row.version}"
        why = f"{why}, its default build on {platform.value}"
        return BuildChoice(None, why, row.source, (row.version,), bound, left_out=left_out)
    gpus = replace(machines, driver=None)
    choice = choose_build(facts, torch & SpecifierSet(f"<={row.version}"), cuda, platform, as_of, gpus)
    why = f"{why}; its default build on {platform.value} is {usual}"
    return replace(choice, why=why, left_out=left_out)


def _newest_build(
    facts: Facts, rows: Sequence[TorchRelease], platform: Platform, machines: Machines
) -> tuple[TorchRelease, str] | None:
    """The newest of the releases, oldest first, with a build that runs on the machines, and that build's variant."""
    for row in reversed(rows):
        for variant in _variants(facts, row, platform, machines):
            if not _obstacle(facts, row, variant, platform, machines):
                return row, variant
    return None


def _variants(facts: Facts, row: TorchRelease, platform: Platform, machines: Machines) -> list[str]:
    """The CUDA builds of a release among which a spec without a CUDA version chooses, the first one first."""
    variants = [cuda.variant for cuda in cuda_builds(facts, row, platform)]
    return variants if machines.driver else [name for name in variants if name == row.default.get(platform.value)]


def _obstacle(facts: Facts, row: TorchRelease, variant: str, platform: Platform, machines: Machines) -> str:
    """Why a build of a release does not run on the machines; empty if it does."""
    if not (machines.driver or machines.gpus):
        return ""
    if variant == "cpu":
        return f"its default build on {platform.value} is not known to be for CUDA"
    cuda = CudaVersion.parse(variant)
    build, driver = f"its build for CUDA {cuda}", facts.driver_of(str(cuda))
    if older := _older_driver(facts, build, driver.minimum, machines):
        return older
    code = facts.gpu_code_of(row.version, variant, platform)
    if machines.gpus and code is None:
        return f"the GPU code of {build} is unknown. {missing_code(row.version, variant, platform)}"
    how = {gpu: runs(capability_of(gpu), code.sm, code.ptx) for gpu in machines.gpus} if code else {}
    if without := [f"{gpu.name} ({capability_of(gpu).sm})" for gpu, each in how.items() if each is Runs.NOT]:
        return f"{build} has no code for {' and '.join(without)}"
    needed = driver.bundled if Runs.PTX in how.values() else None
    if machines.driver and needed and not at_least(machines.driver, needed):
        return f"{build} has only PTX for one of the GPUs, which needs driver {needed} or newer"
    return ""


def _older_driver(facts: Facts, build: str, minimum: str, machines: Machines) -> str:
    """What the driver is too old for; empty without a driver, and if it is new enough."""
    if machines.driver is None:
        return ""
    if not at_least(machines.driver, minimum):
        return f"{build} needs driver {minimum} or newer"
    newer = unsupported(facts, machines.driver, machines.gpus)
    return f"{newer[0][0].name} needs driver {newer[0][1].version} or newer" if newer else ""


def _left_out(
    facts: Facts, newest: TorchRelease, row: TorchRelease, variant: str, platform: Platform, machines: Machines
) -> str:
    """Why the newest release is not the one that is taken; empty if it is. variant: of the build that it would have."""
    why = _obstacle(facts, newest, variant, platform, machines) if newest is not row else ""
    return f"torch {newest.version} is left out: {why}" if why else ""


def _no_build_for_driver(
    facts: Facts, torch: SpecifierSet, rows: Sequence[TorchRelease], machines: Machines, platform: Platform
) -> NoSuchBuild:
    older, hints = _newest_build(facts, rows, platform, machines), []
    if older:
        release, variant = older
        is_default = variant == release.default.get(platform.value)
        setting = "" if is_default else f', with [cuda] version = "{CudaVersion.parse(variant)}"'
        hints.append(f"torch {release.version} is the newest that it runs{setting}")
    matching = [row for row in rows if torch.contains(row.version, prereleases=True)]
    gpus = machines.gpus
    needed = easiest_build(facts, matching, platform, gpus)
    if needed is None:
        gpus, needed = (), easiest_build(facts, matching, platform, ())
    if needed:
        code = f"has code for {' and '.join(gpu.name for gpu in gpus)}, and " if gpus else ""
        hints.append(f"torch {needed.torch} for CUDA {needed.cuda} {code}needs driver {needed.driver} or newer")
    return NoSuchBuild(
        f"[cuda] driver is {machines.driver}, and no known build of torch{torch} for {platform.value} runs with it",
        hint="; ".join(hints) or "leave [cuda] driver out",
    )


class EasiestBuild(NamedTuple):
    """The build that needs the oldest driver. driver: that driver."""

    torch: str
    cuda: CudaVersion
    driver: str


def easiest_build(
    facts: Facts, rows: Sequence[TorchRelease], platform: Platform, gpus: tuple[GpuRow, ...]
) -> EasiestBuild | None:
    """The build of these releases, oldest first, that has code for all GPUs and needs the oldest driver; of equal ones
    the newest torch. None if no build is known to have code for them.
    """
    found = [
        EasiestBuild(row.version, cuda, driver)
        for row in reversed(rows)
        for cuda in builds_for(facts, row, platform, Machines(gpus=gpus))
        if (driver := driver_of_build(facts, row.version, cuda, platform, gpus))
    ]
    return min(found, key=lambda build: numeric(build.driver), default=None)


def cuda_builds(facts: Facts, row: TorchRelease, platform: Platform) -> list[CudaVersion]:
    """The CUDA builds of a release that a source confirms: the default index's first, then the newest CUDA first."""
    default = row.default.get(platform.value)
    published = [name for name in row.variants if name == default or _is_confirmed(facts, row, name, platform)]
    found = {CudaVersion.parse(name) for name in (*published, default or "cpu") if name != "cpu"}
    return sorted(found, key=lambda cuda: (cuda.variant == default, cuda), reverse=True)


def builds_for(facts: Facts, row: TorchRelease, platform: Platform, machines: Machines) -> list[CudaVersion]:
    """Those of `cuda_builds` that run on the machines, in the same order."""
    builds = cuda_builds(facts, row, platform)
    return [cuda for cuda in builds if not _obstacle(facts, row, cuda.variant, platform, machines)]


def nearest_cuda(facts: Facts, cuda: CudaVersion) -> CudaVersion | None:
    """The CUDA itself if some torch is built for it and NVIDIA has an image of it; else the next newer one of its major
    version, else the newest older one. None if there is none.
    """
    variants = {name for row in facts.torch for name in row.variants if name.startswith("cu")}
    known = sorted(each for each in map(CudaVersion.parse, variants) if each.major == cuda.major)
    usable = [each for each in known if facts.releases_of(each)]
    newer = [each for each in usable if each >= cuda]
    return next(iter(newer), usable[-1] if usable else None)


def split_label(torch: SpecifierSet) -> tuple[SpecifierSet, str | None]:
    """`==2.7.0+cu118` is (`==2.7.0`, `cu118`)."""
    clauses = [str(clause).partition("+") for clause in torch]
    label = next((label for _, _, label in clauses if label), None)
    return SpecifierSet(",".join(public for public, _, _ in clauses)), label


def cuda_of_label(line: str, label: str, cuda: CudaVersion | CudaChoice) -> CudaVersion | CudaChoice:
    """The CUDA that a label of the torch family names. line: the requirement with it. cuda: what `[cuda]` states.

    Raises:
        NoSuchBuild: `[cuda]` states another one, or the label names neither a CUDA nor the CPU.
    """
    name = line.partition("=")[0]
    try:
        meant = CudaChoice.CPU if label == "cpu" else CudaVersion.parse(label)
    except ValueError:
        raise NoSuchBuild(
            f"{line}: envspec locks builds for CUDA and for the CPU, not `{label}`",
            hint=f"remove the label from {name}, and set the CUDA version in the spec: [cuda] version",
        ) from None
    if cuda in (CudaChoice.ANY, meant):
        return meant
    setting = f"[cuda] version is {cuda}" if isinstance(cuda, CudaVersion) else "the spec has no [cuda] table"
    fix = f'set [cuda] version = "{meant}"' if isinstance(meant, CudaVersion) else "leave [cuda] out"
    raise NoSuchBuild(f"{line} names the {label} build, but {setting}", hint=f"{fix}, or remove the label")


def _from_default(facts: Facts, candidates: Sequence[TorchRelease], variant: str, platform: Platform) -> BuildChoice:
    newest = candidates[-1]
    same = tuple(row.version for row in candidates if row.default.get(platform.value) == variant)
    always = all(row.default.get(platform.value) == variant for row in facts.torch)
    why = f"torch {newest.version} is the newest match with {variant}, its default build on {platform.value}"
    constraint = "" if always else _range(same)
    return BuildChoice(variant, why, newest.source, same, constraint)


def _from_pytorch(facts: Facts, candidates: Sequence[TorchRelease], variant: str, platform: Platform) -> BuildChoice:
    newest = candidates[-1]
    usual = newest.default.get(platform.value, "not known")
    why = f"torch {newest.version} is the newest match with {variant}; its default build on {platform.value} is {usual}"
    unsure = f"torch {newest.version}: no source confirms a {variant} build for {platform.value}"
    warning = "" if _is_confirmed(facts, newest, variant, platform) else unsure
    versions = tuple(row.version for row in candidates)
    url = PYTORCH_INDEX.format(variant=variant)
    return BuildChoice(variant, why, newest.source, versions, _range(versions), url, warning)


def _range(versions: Sequence[str]) -> str:
    return f"=={versions[0]}" if len(versions) == 1 else f">={versions[0]},<={versions[-1]}"


def _is_confirmed(facts: Facts, torch: TorchRelease, variant: str, platform: Platform) -> bool:
    """The build matrix covers linux x86-64 and Windows; for Arm, a row of GPU code shows that a build was made."""
    needs_row = platform is Platform.LINUX_AARCH64 and variant != "cpu"
    has_row = facts.gpu_code_of(torch.version, variant, platform) is not None
    return variant not in torch.unsure and (has_row or not needs_row)


def _outside(facts: Facts, torch: SpecifierSet, variant: str, platform: Platform) -> BuildChoice:
    """A torch that the data does not have: the default index, unless its newest default build is another variant."""
    oldest, newest = facts.torch[0], facts.torch[-1]
    is_default = variant == newest.default.get(platform.value)
    outside = f"torch {torch} is outside the facts ({oldest.version} to {newest.version})"
    return BuildChoice(
        variant,
        f"{outside}; {variant} is{'' if is_default else ' not'} torch {newest.version}'s default build",
        newest.source,
        url=None if is_default else PYTORCH_INDEX.format(variant=variant),
        warning=f"{outside}: its builds and its family could not be checked. Add it to the spec: "
        '[[facts.torch]] version = "...", default = { linux-64 = "cu..." }, variants = ["cu..."], source = "..."',
    )


def _has(row: TorchRelease, variant: str, platform: Platform) -> bool:
    return row.default.get(platform.value) == variant or variant in row.published


def _no_such_build(
    facts: Facts, matching: Sequence[TorchRelease], cuda: CudaVersion | CudaChoice, platform: Platform
) -> NoSuchBuild:
    requested = f"CUDA {cuda}" if isinstance(cuda, CudaVersion) else "the CPU alone"
    variant = cuda.variant if isinstance(cuda, CudaVersion) else "cpu"
    newest = matching[-1]
    releases = newest.version if len(matching) == 1 else f"{matching[0].version} to {newest.version}"
    published = ", ".join(str(CudaVersion.parse(name)) if name.startswith("cu") else name for name in newest.published)
    releases_known = [row.version for row in facts.torch]
    others = ranges_text([row.version for row in facts.torch if _has(row, variant, platform)], releases_known)
    elsewhere = f"torch with {requested}: {others}" if others else f"no known torch has {requested}"
    return NoSuchBuild(
        f"torch {releases}: no build for {requested} was ever published",
        hint=f"published for torch {newest.version}: {published}. Set [cuda] version to one of them; {elsewhere}",
    )


#: Members whose releases the data lists one by one.
MEMBERS: Final = ("torchvision", "torchaudio", "torchtext", "torchdata")


class FamilyMismatch(NoSolution):
    """Requests for members of the torch family that no set of releases serves."""

    code = "family-mismatch"


def extra_requirements(facts: Facts, package: str, version: str) -> tuple[tuple[str, EdgeRow], ...]:
    """The Requires-Dist lines to add to the metadata of one release, each with the row that says why."""
    return tuple(
        (line, edge)
        for edge in facts.family_edges(package)
        if SpecifierSet(edge.versions).contains(version, prereleases=True)
        for line in edge.requires
    )


def fitting_set(facts: Facts, torch: str) -> Mapping[str, str]:
    """The newest known release of each member that works with a torch release; `triton` as a specifier.

    A member without an entry has none that is known to fit.
    """
    chosen: dict[str, str] = {}
    for package in MEMBERS:
        fitting = [row.version for row in _listed(facts, package) if _accepts(facts, row, torch)]
        if fitting:
            chosen[package] = fitting[-1]
    if torch in facts.tritons:
        chosen["triton"] = facts.tritons[torch].triton.removeprefix("==")
    return chosen


def family_mismatch(facts: Facts, requests: Mapping[str, SpecifierSet]) -> FamilyMismatch | None:
    """The error for requests that no torch release serves together; None if the data allows them.

    Its hint names sets that fit. requests: normalised name -> specifier, with or without `torch`; other
    names are ignored.
    """
    requests = {name: split_label(specifier)[0] for name, specifier in requests.items()}
    torch = requests.get("torch", SpecifierSet())
    members = [_member_request(facts, name, requests[name]) for name in (*MEMBERS, "triton") if name in requests]
    candidates = list(_torch_candidates(facts, torch))
    if not candidates:
        return None
    for version in candidates:
        if all(_may_fit(facts, member, version) for member in members):
            return None
    for member in members:
        if not any(_may_fit(facts, member, version) for version in candidates):
            return _one_member(facts, member, torch)
    reasons = "; ".join(_fits(facts, member) for member in members)
    sets = dict.fromkeys(_set_for(facts, member, torch) for member in members)
    return FamilyMismatch(
        f"{', '.join(map(str, members))}: no torch release works with all of them ({reasons})",
        hint=f"use {'; or '.join(sets)}",
    )


@dataclass(frozen=True, slots=True)
class _MemberRequest:
    """A request for a member. listed: releases of the data that match; older, newer: some that match beyond them."""

    package: str
    spec: SpecifierSet
    listed: tuple[MemberRow, ...]
    older: tuple[str, ...]
    newer: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.package}{self.spec}"


def _member_request(facts: Facts, package: str, spec: SpecifierSet) -> _MemberRequest:
    rows = _listed(facts, package)
    if not rows:
        return _MemberRequest(package, spec, (), (), ())
    first, last = Version(rows[0].version), Version(rows[-1].version)
    named = named_versions(spec)
    tried = (
        Version(f"{major}.{minor}.{patch}")
        for major in range(last.major + 2)
        for minor in range(40)
        for patch in range(3)
    )
    beyond = [version for version in (*named, *tried) if not first <= version <= last]
    matching = [version for version in beyond if spec.contains(version, prereleases=True)]
    return _MemberRequest(
        package,
        spec,
        tuple(row for row in rows if spec.contains(row.version, prereleases=True)),
        tuple(str(version) for version in matching if version < first),
        () if _ended(facts, package) else tuple(str(version) for version in matching if version > last),
    )


def _ended(facts: Facts, package: str) -> bool:
    row = facts.ended.get(package)
    return row is not None and row.confidence == "high"


def _torch_candidates(facts: Facts, torch: SpecifierSet) -> Iterator[Version]:
    for row in facts.torch:
        if torch.contains(row.version, prereleases=True):
            yield Version(row.version)
    for text in probes_outside(facts, torch):
        if torch.contains(text, prereleases=True):
            yield Version(text)


def _may_fit(facts: Facts, member: _MemberRequest, torch: Version) -> bool:
    """Is there a release that matches, in the data or beyond it, that may go with this torch?"""
    if member.package == "triton":
        return _triton_may_fit(facts, member.spec, torch)
    if any(_accepts(facts, row, str(torch)) for row in member.listed):
        return True
    older = member.older if _older_may_fit(facts, member.package, torch) else ()
    newer = member.newer if _newer_may_fit(facts, member.package, torch) else ()
    return any(_edges_allow(facts, member.package, version, str(torch)) for version in (*older, *newer))


def _older_may_fit(facts: Facts, package: str, torch: Version) -> bool:
    """Where the first release of the data pins torch exactly, older ones pinned older torches."""
    first = _listed(facts, package)[0].torch
    return not first.startswith("==") or torch < Version(first.removeprefix("=="))


def _newer_may_fit(facts: Facts, package: str, torch: Version) -> bool:
    """Newer releases go with the torches that the last one of the data takes, or with later ones."""
    last = _listed(facts, package)[-1]
    taken = [row.version for row in facts.torch if _accepts(facts, last, row.version)]
    return not taken or torch >= Version(taken[0])


def _triton_may_fit(facts: Facts, spec: SpecifierSet, torch: Version) -> bool:
    pin = facts.tritons.get(str(torch))
    if pin is None:
        return True
    both = spec & SpecifierSet(pin.triton)
    exact = [clause.version for clause in both if clause.operator in ("==", "~=")]
    return any(both.contains(version.removesuffix(".*"), prereleases=True) for version in exact)


def _listed(facts: Facts, package: str) -> list[MemberRow]:
    return [row for row in facts.members if row.package == package]


def _accepts(facts: Facts, row: MemberRow, torch: str) -> bool:
    own = SpecifierSet(row.torch).contains(torch, prereleases=True)
    return own and _edges_allow(facts, row.package, row.version, torch)


def _edges_allow(facts: Facts, package: str, version: str, torch: str) -> bool:
    lines = (Requirement(line) for line, _ in extra_requirements(facts, package, version))
    return all(line.specifier.contains(torch, prereleases=True) for line in lines if line.name == "torch")


def _fits(facts: Facts, member: _MemberRequest) -> str:
    """The torch of the releases that a request allows: `torchvision 0.19.0 works with torch==2.4.0`."""
    if member.package == "triton":
        torches = [
            row.torch for row in facts.tritons.values() if _triton_may_fit(facts, member.spec, Version(row.torch))
        ]
        return f"{member} is pinned by torch {', '.join(torches)}" if torches else f"no torch pins {member}"
    if not member.listed:
        return f"{member} is not known"
    row = member.listed[-1]
    return f"{row.package} {row.version} works with torch{_effective(facts, row) or ' of any version'}"


def _effective(facts: Facts, row: MemberRow) -> str:
    lines = [line for line, _ in extra_requirements(facts, row.package, row.version)]
    corrected = [line.removeprefix("torch") for line in lines if Requirement(line).name == "torch"]
    return ",".join(corrected) or row.torch


def _set_for(facts: Facts, member: _MemberRequest, torch: SpecifierSet) -> str:
    """The set of the newest known torch that works with one member; for members of older torches, their requirement."""
    for row in reversed(facts.torch):
        if torch.contains(row.version, prereleases=True) and _may_fit(facts, member, Version(row.version)):
            return _set_text(facts, row.version)
    return _fits(facts, member)


def _set_text(facts: Facts, torch: str) -> str:
    fitting = fitting_set(facts, torch)
    return ", ".join([f"torch {torch}", *(f"{name} {version}" for name, version in fitting.items())])


def _one_member(facts: Facts, member: _MemberRequest, torch: SpecifierSet) -> FamilyMismatch:
    package = member.package
    because = [_fits(facts, member)]
    if member.listed:
        because += [edge.reason for _, edge in extra_requirements(facts, package, member.listed[-1].version)]
    if package in facts.ended:
        because.append(facts.ended[package].reason)
    newest = next((row for row in reversed(facts.torch) if torch.contains(row.version, prereleases=True)), None)
    advice: list[str] = []
    if newest:
        advice.append(f"use {_set_text(facts, newest.version)}")
        if package != "triton" and package not in fitting_set(facts, newest.version):
            row = _listed(facts, package)[-1]
            advice.append(f"leave {package} out, or use {package} {row.version} with torch{_effective(facts, row)}")
    return FamilyMismatch(
        f"no {member} works with torch{torch}: {'; '.join(because)}",
        hint="; ".join(advice) or "leave one of the versions open",
    )
