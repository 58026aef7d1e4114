"""Torch builds and the torch family.

A release's own metadata is the rule; where it is wrong or empty, a `[[edge]]` row of `envspec/data/family.toml`
corrects it. All checks here are pure; a release that is not in the data passes and is left to the resolver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from envspec.errors import NoSolution
from envspec.facts.gpu import (
    Runs,
    capability_of,
    has_wheel,
    in_time,
    named_versions,
    names_text,
    names_with_sm,
    oldest_driver,
    runs,
    runs_all,
    unsupported,
    versions_outside,
)
from envspec.facts.tables import (
    EdgeRow,
    Facts,
    GpuRow,
    MemberRow,
    TorchRelease,
    at_least,
    matching_rows,
    numeric,
    pep440,
    ranges_text,
    rows_with,
    span_text,
    versions_of,
)
from envspec.models import CudaVersion, Platform
from envspec.origins import PYTORCH_INDEX
from envspec.reasons import Reason, Why, reason
from envspec.structs import replace


class CudaChoice(Enum):
    """The CUDA of a spec without a version."""

    CPU = "cpu"  # no [cuda] table
    ANY = "any"  # [cuda] without a version: whatever the default build has


class NoSuchBuild(NoSolution, code="no-torch-build"):
    """A (torch, CUDA) pair that was never published."""


class Machines(Struct, frozen=True):
    """What must run a build: the oldest driver (None: any), GPUs, and a series of Python (empty: any)."""

    driver: str | None = None
    gpus: tuple[GpuRow, ...] = ()
    python: str = ""


#: Machines that every build runs on.
ANY_MACHINE: Final = Machines()


class BuildChoice(Struct, frozen=True):
    """A build of torch and where it is published.

    variant: `cu128`, `cpu`; None if any will do.
    versions: known releases that match, oldest first.
    constraint: what to add to every request for torch (`>=2.8.0,<=2.10.0`), empty where the index alone decides.
    url: PyTorch's index, None for the default one.
    warning: for the user; empty if the choice is sure.
    left_out: the newest release if it does not run on the machines, with the reason; else empty.
    serves_gpus: False if no build that could be chosen is known to have code for the GPUs, which then bound nothing.
    refused: why there is none, if nothing is known to require torch.
    """

    variant: str | None
    why: Why
    source: str
    versions: tuple[str, ...] = ()
    constraint: str = ""
    url: str | None = None
    warning: str = ""
    left_out: Why = ()
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
    if label:
        cuda = cuda_of_label(f"torch{torch}", label, cuda)
    if platform.is_linux and cuda is not CudaChoice.CPU:
        machines = replace(machines, gpus=served(facts, machines.gpus, platform))
    else:
        machines = ANY_MACHINE
    if cuda is CudaChoice.ANY:
        return _for_machines(facts, public, machines, platform, as_of)
    if platform is Platform.OSX_ARM64:
        return BuildChoice("cpu", (reason("torch-macos"),), "NVIDIA, CUDA on macOS ended with 10.2")
    variant = cuda.variant if isinstance(cuda, CudaVersion) else "cpu"
    matching = [row for row in matching_rows(facts.torch, public) if in_time(row, as_of)]
    if not matching and versions_outside(facts, public):
        return _outside(facts, torch, variant, platform)
    if not matching:
        return BuildChoice(None, (reason("torch-unknown", torch=torch),), facts.torch[-1].source)
    published = [row for row in matching if row.is_published(variant, platform)]
    if not published:
        raise _no_such_build(facts, matching, cuda, platform)
    # Every build for that CUDA needs the same driver.
    gpus = replace(machines, driver=None)
    running = [row for row in published if not _obstacle(facts, row, variant, platform, gpus)]
    candidates = running or published
    if candidates[-1].default_on(platform) == variant:
        choice = _from_default(facts, candidates, variant, platform)
    else:
        choice = _from_pytorch(facts, candidates, variant, platform)
    left_out = _left_out(facts, published[-1], candidates[-1], variant, platform, gpus)
    return replace(choice, left_out=left_out, serves_gpus=bool(running))


def driver_of_build(
    facts: Facts, torch: str, cuda: CudaVersion, platform: Platform, gpus: Sequence[GpuRow]
) -> str | None:
    """The oldest driver that runs a build on GPUs; None if it must compile PTX, and the toolkit's own is unknown."""
    capabilities = list(map(capability_of, gpus))
    code = facts.gpu_code_of(torch, cuda.variant, platform)
    how = runs_all(capabilities, code.sm, code.ptx) if code else Runs.SASS
    return oldest_driver(facts, cuda, capabilities, how)


def served(facts: Facts, gpus: Sequence[GpuRow], platform: Platform) -> tuple[GpuRow, ...]:
    """The GPUs for which some build for the platform has code."""
    sm: set[str] = set()
    ptx: set[str] = set()
    for row in rows_with(facts.gpu_code, platform=platform.value, channel=""):
        sm.update(row.sm)
        ptx.update(row.ptx)
    return tuple(gpu for gpu in gpus if runs(capability_of(gpu), sm, ptx) is not Runs.NOT)


def _for_machines(
    facts: Facts, torch: SpecifierSet, machines: Machines, platform: Platform, as_of: datetime | None
) -> BuildChoice:
    """The newest release with a build that runs on the machines."""
    default = BuildChoice(None, (reason("torch-any"),), "")
    if not (machines.driver or machines.gpus):
        return default
    rows = [row for row in facts.torch if in_time(row, as_of) and has_wheel(row, platform, machines.python)]
    matching = matching_rows(rows, torch)
    found = _newest_build(facts, matching, platform, machines)
    any_gpu = replace(machines, gpus=())
    if found is None and machines.gpus and (not machines.driver or _newest_build(facts, matching, platform, any_gpu)):
        return replace(_for_machines(facts, torch, any_gpu, platform, as_of), serves_gpus=False)
    if found is None:
        raise _no_build_for_driver(facts, torch, rows, machines, platform)
    row, cuda = found
    usual = row.default_on(platform)
    tried = matching[-1].default_on(platform) or "cpu"
    if machines.driver:
        tried = next((each.variant for each in cuda_builds(facts, matching[-1], platform)), "cpu")
    left_out = _left_out(facts, matching[-1], row, tried, platform, machines)
    if machines.driver is None:
        if not left_out:
            return default
        why = reason(
            "torch-default-for-gpus",
            platform=platform.value,
            gpus=names_text(machines.gpus),
            torch=row.version,
            cuda=cuda,
        )
        newest = newest_build_for(facts, matching, platform, machines)
        if newest and newest[0] is not row:
            left_out = (*left_out, reason("torch-other-cuda", cuda=newest[1], torch=newest[0].version))
        return BuildChoice(None, (why,), row.source, (row.version,), f"<={row.version}", left_out=left_out)
    why = reason("torch-for-driver", driver=machines.driver, torch=row.version, cuda=cuda)
    if machines.gpus:
        gpu_names = names_text(machines.gpus)
        why = reason("torch-for-machines", gpus=gpu_names, driver=machines.driver, torch=row.version, cuda=cuda)
    if cuda.variant == usual:
        # A driver that runs a release's default build runs those of older releases.
        bound = "" if row is facts.torch[-1] else f"<={row.version}"
        is_default = reason("torch-is-default", platform=platform.value)
        return BuildChoice(None, (why, is_default), row.source, (row.version,), bound, left_out=left_out)
    gpus = replace(machines, driver=None)
    choice = choose_build(facts, torch & SpecifierSet(f"<={row.version}"), cuda, platform, as_of, gpus)
    default_is = reason("torch-default", platform=platform.value, variant=usual)
    return replace(choice, why=(why, default_is), left_out=left_out)


def _newest_build(
    facts: Facts, rows: Sequence[TorchRelease], platform: Platform, machines: Machines
) -> tuple[TorchRelease, CudaVersion] | None:
    """As `newest_build_for`; without a driver, of default builds alone."""
    if machines.driver:
        return newest_build_for(facts, rows, platform, machines)
    for row in reversed(rows):
        default = row.default_on(platform)
        for cuda in builds_for(facts, row, platform, machines):
            if cuda.variant == default:
                return row, cuda
    return None


def _obstacle(facts: Facts, row: TorchRelease, variant: str, platform: Platform, machines: Machines) -> Reason | None:
    """Why a build of a release does not run on the machines; None if it does."""
    if not (machines.driver or machines.gpus):
        return None
    if variant == "cpu":
        return reason("torch-cpu", platform=platform.value)
    cuda = CudaVersion.parse(variant)
    driver = facts.driver_of(str(cuda))
    older = _older_driver(facts, cuda, driver.minimum, machines)
    if older or not machines.gpus:
        return older
    code = facts.gpu_code_of(row.version, variant, platform)
    if code is None:
        return reason("torch-code-unknown", cuda=cuda, torch=row.version, variant=variant, platform=platform.value)
    how = {gpu: runs(capability_of(gpu), code.sm, code.ptx) for gpu in machines.gpus}
    if without := [gpu for gpu, each in how.items() if each is Runs.NOT]:
        return reason("torch-no-code", cuda=cuda, gpus=names_with_sm(without))
    needed = driver.bundled if Runs.PTX in how.values() else None
    if machines.driver and needed and not at_least(machines.driver, needed):
        return reason("torch-only-ptx", cuda=cuda, driver=needed)
    return None


def _older_driver(facts: Facts, cuda: CudaVersion, minimum: str, machines: Machines) -> Reason | None:
    """What the driver is too old for; None without a driver, and if it is new enough."""
    if machines.driver is None:
        return None
    if not at_least(machines.driver, minimum):
        return reason("torch-driver", cuda=cuda, driver=minimum)
    for gpu, first in unsupported(facts, machines.driver, machines.gpus):
        return reason("torch-gpu-driver", gpu=gpu.name, driver=first.version)
    return None


def _left_out(
    facts: Facts, newest: TorchRelease, row: TorchRelease, variant: str, platform: Platform, machines: Machines
) -> Why:
    """Why the newest release is not the one that is taken; empty if it is. variant: of the build that it would have."""
    if newest is row:
        return ()
    why = _obstacle(facts, newest, variant, platform, machines)
    if why is None:
        return ()
    return (reason("torch-left-out", (why,), torch=newest.version),)


def _no_build_for_driver(
    facts: Facts, torch: SpecifierSet, rows: Sequence[TorchRelease], machines: Machines, platform: Platform
) -> NoSuchBuild:
    older, hints = _newest_build(facts, rows, platform, machines), []
    if older:
        release, cuda = older
        hint = f"torch {release.version} is the newest that it runs"
        if cuda.variant != release.default_on(platform):
            hint += f', with [cuda] version = "{cuda}"'
        hints.append(hint)
    matching = matching_rows(rows, torch)
    gpus = machines.gpus
    needed = easiest_build(facts, matching, platform, gpus)
    if needed is None:
        gpus, needed = (), easiest_build(facts, matching, platform, ())
    if needed:
        code = f"has code for {names_text(gpus)}, and " if gpus else ""
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
    builds = []
    for row in reversed(rows):
        for cuda in builds_for(facts, row, platform, Machines(gpus=gpus)):
            driver = driver_of_build(facts, row.version, cuda, platform, gpus)
            if driver:
                builds.append(EasiestBuild(row.version, cuda, driver))
    return min(builds, key=lambda build: numeric(build.driver), default=None)


def cuda_builds(facts: Facts, row: TorchRelease, platform: Platform) -> list[CudaVersion]:
    """The CUDA builds of a release that a source confirms: the default index's first, then the newest CUDA first."""
    default = row.default_on(platform)
    confirmed = {name for name in row.variants if _is_confirmed(facts, row, name, platform)}
    variants = (confirmed | {default or "cpu"}) - {"cpu"}
    return sorted(map(CudaVersion.parse, variants), key=lambda cuda: (cuda.variant == default, cuda), reverse=True)


def builds_for(facts: Facts, row: TorchRelease, platform: Platform, machines: Machines) -> list[CudaVersion]:
    """Those of `cuda_builds` that run on the machines, in the same order."""
    builds = cuda_builds(facts, row, platform)
    return [cuda for cuda in builds if not _obstacle(facts, row, cuda.variant, platform, machines)]


def newest_build_for(
    facts: Facts, rows: Sequence[TorchRelease], platform: Platform, machines: Machines
) -> tuple[TorchRelease, CudaVersion] | None:
    """The newest of the releases, oldest first, with a CUDA build that runs on the machines, and that build's CUDA."""
    for row in reversed(rows):
        for cuda in builds_for(facts, row, platform, machines):
            return row, cuda
    return None


def nearest_cuda(facts: Facts, cuda: CudaVersion) -> CudaVersion | None:
    """The CUDA itself if some torch is built for it and NVIDIA has an image of it; else the next newer one of its major
    version, else the newest older one. None if there is none.
    """
    variants: set[str] = set()
    for row in facts.torch:
        variants.update(row.variants)
    usable = []
    for image in facts.images:
        each = CudaVersion.parse(image.cuda)
        if each.major == cuda.major and each.variant in variants:
            usable.append(each)
    newer = [each for each in usable if each >= cuda]
    return min(newer) if newer else max(usable, default=None)


def split_label(torch: SpecifierSet) -> tuple[SpecifierSet, str | None]:
    """`==2.7.0+cu118` is (`==2.7.0`, `cu118`)."""
    clauses, labels = [], []
    for clause in torch:
        public, _, label = str(clause).partition("+")
        clauses.append(public)
        labels.append(label)
    return SpecifierSet(",".join(clauses)), next(filter(None, labels), None)


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
    same = versions_of(row for row in candidates if row.default_on(platform) == variant)
    why = (reason("torch-newest-default", torch=newest.version, variant=variant, platform=platform.value),)
    defaults = {row.default_on(platform) for row in facts.torch}
    constraint = "" if defaults == {variant} else _range(same)
    return BuildChoice(variant, why, newest.source, same, constraint)


def _from_pytorch(facts: Facts, candidates: Sequence[TorchRelease], variant: str, platform: Platform) -> BuildChoice:
    newest = candidates[-1]
    usual = newest.default_on(platform) or "not known"
    why = (
        reason("torch-newest", torch=newest.version, variant=variant),
        reason("torch-default", platform=platform.value, variant=usual),
    )
    warning = ""
    if not _is_confirmed(facts, newest, variant, platform):
        warning = f"torch {newest.version}: no source confirms a {variant} build for {platform.value}"
    versions = versions_of(candidates)
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
    outside = reason("torch-outside", torch=torch, oldest=oldest.version, newest=newest.version)
    relation, url = "torch-default-of", None
    if variant != newest.default_on(platform):
        relation, url = "torch-not-default-of", PYTORCH_INDEX.format(variant=variant)
    return BuildChoice(
        variant,
        (outside, reason(relation, variant=variant, torch=newest.version)),
        newest.source,
        url=url,
        warning=f"{outside}: its builds and its family could not be checked. Add it to the spec: "
        '[[facts.torch]] version = "...", default = { linux-64 = "cu..." }, variants = ["cu..."], source = "..."',
    )


def _no_such_build(
    facts: Facts, matching: Sequence[TorchRelease], cuda: CudaVersion | CudaChoice, platform: Platform
) -> NoSuchBuild:
    requested, variant = "the CPU alone", "cpu"
    if isinstance(cuda, CudaVersion):
        # `CudaVersion.parse` does not read the variant of a minor with two digits.
        requested, variant = f"CUDA {cuda}", cuda.variant
    newest = matching[-1]
    published = ", ".join(map(_variant_text, newest.published))
    serving = versions_of(row for row in facts.torch if row.is_published(variant, platform))
    elsewhere = f"no known torch has {requested}"
    if serving:
        elsewhere = f"torch with {requested}: {ranges_text(serving, versions_of(facts.torch))}"
    return NoSuchBuild(
        f"torch {span_text(versions_of(matching))}: no build for {requested} was ever published",
        hint=f"published for torch {newest.version}: {published}. Set [cuda] version to one of them; {elsewhere}",
    )


def _variant_text(variant: str) -> str:
    """`12.8` for cu128; other names as they are."""
    return str(CudaVersion.parse(variant)) if variant.startswith("cu") else variant


#: Members whose releases the data lists one by one.
MEMBERS: Final = ("torchvision", "torchaudio", "torchtext", "torchdata")


class FamilyMismatch(NoSolution, code="family-mismatch"):
    """Requests for members of the torch family that no set of releases serves.

    what: the requests, or what does not work.
    because: why; empty if nothing more is known.
    packages: those of the requests that exclude each other.
    """

    def __init__(self, what: str, because: str = "", packages: Sequence[str] = (), *, hint: str = "") -> None:
        super().__init__(f"{what}: {because}" if because else what, hint=hint)
        self.what = what
        self.because = because
        self.packages = tuple(packages)


def extra_requirements(facts: Facts, package: str, version: str) -> tuple[tuple[str, EdgeRow], ...]:
    """The Requires-Dist lines to add to the metadata of one release, each with the row that says why."""
    found: list[tuple[str, EdgeRow]] = []
    for edge in facts.family_edges(package):
        if SpecifierSet(edge.versions).contains(version, prereleases=True):
            for line in edge.requires:
                found.append((line, edge))
    return tuple(found)


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
    torch, _ = split_label(requests.get("torch", SpecifierSet()))
    members = []
    for name in (*MEMBERS, "triton"):
        if name in requests:
            specifier, _ = split_label(requests[name])
            members.append(_member_request(facts, name, specifier))
    known = versions_of(matching_rows(facts.torch, torch))
    candidates = [*map(Version, known), *versions_outside(facts, torch)]
    if not candidates:
        return None
    for version in candidates:
        if all(_may_fit(facts, member, version) for member in members):
            return None
    for member in members:
        if not any(_may_fit(facts, member, version) for version in candidates):
            return _one_member(facts, member, torch)
    reasons, sets = [], []
    for member in members:
        reasons.append(_fits(facts, member))
        sets.append(_set_for(facts, member, torch))
    return FamilyMismatch(
        ", ".join(map(str, members)),
        f"no torch release works with all of them ({'; '.join(reasons)})",
        [member.package for member in members],
        hint=f"use {'; or '.join(dict.fromkeys(sets))}",
    )


class _MemberRequest(Struct, frozen=True):
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
    tried = named_versions(spec)
    for major in range(last.major + 2):
        for minor in range(40):
            tried += filter(None, (pep440(f"{major}.{minor}.{patch}") for patch in range(3)))
    ended = facts.ended.get(package)
    has_ended = ended is not None and ended.confidence == "high"
    older, newer = [], []
    for version in spec.filter(tried, prereleases=True):
        if version < first:
            older.append(str(version))
        elif version > last and not has_ended:
            newer.append(str(version))
    return _MemberRequest(package, spec, tuple(matching_rows(rows, spec)), tuple(older), tuple(newer))


def _may_fit(facts: Facts, member: _MemberRequest, torch: Version) -> bool:
    """Is there a release that matches, in the data or beyond it, that may go with this torch?"""
    if member.package == "triton":
        return _triton_may_fit(facts, member.spec, torch)
    for row in member.listed:
        if _accepts(facts, row, str(torch)):
            return True
    beyond: list[str] = []
    if _older_may_fit(facts, member.package, torch):
        beyond += member.older
    if _newer_may_fit(facts, member.package, torch):
        beyond += member.newer
    return any(_edges_allow(facts, member.package, version, str(torch)) for version in beyond)


def _older_may_fit(facts: Facts, package: str, torch: Version) -> bool:
    """Where the first release of the data pins torch exactly, older ones pinned older torches."""
    first = _listed(facts, package)[0].torch
    return not first.startswith("==") or torch < Version(first.removeprefix("=="))


def _newer_may_fit(facts: Facts, package: str, torch: Version) -> bool:
    """Newer releases go with the torches that the last one of the data takes, or with later ones."""
    last = _listed(facts, package)[-1]
    for row in facts.torch:
        if _accepts(facts, last, row.version):
            return torch >= Version(row.version)
    return True


def _triton_may_fit(facts: Facts, spec: SpecifierSet, torch: Version) -> bool:
    pin = facts.tritons.get(str(torch))
    if pin is None:
        return True
    both = spec & SpecifierSet(pin.triton)
    for clause in both:
        is_exact = clause.operator in ("==", "~=")
        if is_exact and both.contains(clause.version.removesuffix(".*"), prereleases=True):
            return True
    return False


def _listed(facts: Facts, package: str) -> Sequence[MemberRow]:
    return facts.members_by_package.get(package, ())


def _accepts(facts: Facts, row: MemberRow, torch: str) -> bool:
    own = SpecifierSet(row.torch).contains(torch, prereleases=True)
    return own and _edges_allow(facts, row.package, row.version, torch)


def _edges_allow(facts: Facts, package: str, version: str, torch: str) -> bool:
    for line, _ in extra_requirements(facts, package, version):
        requirement = Requirement(line)
        if requirement.name == "torch" and not requirement.specifier.contains(torch, prereleases=True):
            return False
    return True


def excludes_torch(facts: Facts, package: str, torch: SpecifierSet, version: Version) -> bool:
    """Whether a release of a member surely requires a torch other than those of `torch`: by its own metadata, or by
    what corrects it.
    """
    public = pep440(version.public)
    required = [row.torch for row in _listed(facts, package) if pep440(row.version) == public]
    for line, _ in extra_requirements(facts, package, version.public):
        requirement = Requirement(line)
        if requirement.name == "torch":
            required.append(str(requirement.specifier))
    return any(_excludes(clause, torch) for text in required for clause in SpecifierSet(text))


def _excludes(clause: Specifier, torch: SpecifierSet) -> bool:
    """Whether no version fits both: False if that is not plain to see."""
    if clause.version.endswith(".*"):
        return False
    if clause.operator == "==":
        return not torch.contains(clause.version, prereleases=True)
    if clause.operator != ">=":
        return False
    bounds = [each.version for each in torch if each.operator in ("==", "<=", "<") and not each.version.endswith(".*")]
    return any(Version(bound) < Version(clause.version) for bound in bounds)


def _fits(facts: Facts, member: _MemberRequest) -> str:
    """The torch of the releases that a request allows: `torchvision 0.19.0 works with torch==2.4.0`."""
    if member.package == "triton":
        torches = [torch for torch in facts.tritons if _triton_may_fit(facts, member.spec, Version(torch))]
        if not torches:
            return f"no torch pins {member}"
        return f"{member} is pinned by torch {', '.join(torches)}"
    if not member.listed:
        return f"{member} is not known"
    row = member.listed[-1]
    return f"{row.package} {row.version} works with torch{_effective(facts, row) or ' of any version'}"


def _effective(facts: Facts, row: MemberRow) -> str:
    corrected = []
    for line, _ in extra_requirements(facts, row.package, row.version):
        if Requirement(line).name == "torch":
            corrected.append(line.removeprefix("torch"))
    return ",".join(corrected) or row.torch


def _set_for(facts: Facts, member: _MemberRequest, torch: SpecifierSet) -> str:
    """The set of the newest known torch that works with one member; for members of older torches, their requirement."""
    for row in matching_rows(reversed(facts.torch), torch):
        if _may_fit(facts, member, Version(row.version)):
            return _set_text(facts, row.version)
    return _fits(facts, member)


def _set_text(facts: Facts, torch: str) -> str:
    text = f"torch {torch}"
    for name, version in fitting_set(facts, torch).items():
        text += f", {name} {version}"
    return text


def _one_member(facts: Facts, member: _MemberRequest, torch: SpecifierSet) -> FamilyMismatch:
    package = member.package
    because = [_fits(facts, member)]
    if member.listed:
        because += [edge.reason for _, edge in extra_requirements(facts, package, member.listed[-1].version)]
    if package in facts.ended:
        because.append(facts.ended[package].reason)
    advice: list[str] = []
    if known := matching_rows(facts.torch, torch):
        newest = known[-1].version
        advice.append(f"use {_set_text(facts, newest)}")
        if package != "triton" and package not in fitting_set(facts, newest):
            row = _listed(facts, package)[-1]
            advice.append(f"leave {package} out, or use {package} {row.version} with torch{_effective(facts, row)}")
    return FamilyMismatch(
        f"no {member} works with torch{torch}",
        "; ".join(because),
        [package, "torch"],
        hint="; ".join(advice) or "leave one of the versions open",
    )
