"""Choose the torch build for a requested CUDA: which index holds it, and which releases may be taken from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from packaging.specifiers import SpecifierSet

from envspec.errors import NoSolution
from envspec.facts.load import Facts
from envspec.facts.reach import Reach, in_time, reaches_past
from envspec.facts.rows import TorchRelease, spoken_ranges
from envspec.model import CudaVersion, Platform
from envspec.origins import PYTORCH_INDEX


class Wish(Enum):
    """What a spec says of CUDA when it names no version."""

    CPU = "cpu"  # no [cuda] table
    ANY = "any"  # [cuda] without a version: whatever the default build has


class Index(Enum):
    """Where the torch family comes from."""

    DEFAULT = "default"
    PYTORCH = "pytorch"


class Known(Enum):
    """What stands behind a choice."""

    SURE = "sure"
    UNSURE = "unsure"  # reported, but in no build matrix; or never looked up for this platform
    UNKNOWN = "unknown"  # a torch outside the data


class NoSuchBuild(NoSolution):
    """A (torch, CUDA) pair that was never published."""


@dataclass(frozen=True, slots=True)
class Build:
    """The choice.

    variant: `cu128`, `cpu`; None where nothing is asked of it. versions: known releases that serve, oldest first.
    constraint: what to add to every request for torch (`>=2.8.0,<=2.10.0`), empty where the index alone decides.
    url: the index, None for the default one. warning: what the user should know, empty where nothing is doubtful.
    """

    index: Index
    variant: str | None
    versions: tuple[str, ...]
    known: Known
    why: str
    source: str
    constraint: str = ""
    url: str | None = None
    warning: str = ""


def choose_build(
    facts: Facts,
    torch: SpecifierSet,
    cuda: CudaVersion | Wish,
    platform: Platform,
    as_of: datetime | None = None,
) -> Build:
    """Which index and which torch releases serve a request.

    Takes the newest torch that matches and was published for that CUDA. Is it the default build, the default index
    holds it; else PyTorch's own index of that variant does. Releases uploaded after `as_of` are not considered.

    Raises:
        NoSuchBuild: no torch that matches was ever published for that CUDA.
    """
    public, label = split_label(torch)
    wish = _wish_of(torch, label, cuda)
    if wish is Wish.ANY:
        return Build(Index.DEFAULT, None, (), Known.SURE, "no CUDA version is asked for: the default build", "")
    if platform is Platform.OSX_ARM64:
        why = "macOS has no CUDA: the default index's build"
        return Build(Index.DEFAULT, "cpu", (), Known.SURE, why, "NVIDIA, CUDA on macOS ended with 10.2")
    variant = wish.variant if isinstance(wish, CudaVersion) else "cpu"
    if reaches_past(facts, public, as_of) is Reach.ONLY_OUTSIDE:
        return _outside(facts, torch, variant, platform)
    matching = [row for row in facts.torch if public.contains(row.version, prereleases=True) and in_time(row, as_of)]
    if not matching:
        why = f"no torch release known here matches {torch} by the date given"
        return Build(Index.DEFAULT, None, (), Known.UNKNOWN, why, facts.torch[-1].source)
    candidates = [row for row in matching if _has(row, variant, platform)]
    if not candidates:
        raise _no_such_build(facts, matching, wish, platform)
    if label is None and candidates[-1].default.get(platform.value) == variant:
        return _from_default(facts, candidates, variant, platform)
    return _from_pytorch(facts, candidates, variant, platform, label)


def split_label(torch: SpecifierSet) -> tuple[SpecifierSet, str | None]:
    """`==2.7.0+cu118` is (`==2.7.0`, `cu118`): only PyTorch's own indexes have releases with a label."""
    clauses = [str(clause).partition("+") for clause in torch]
    label = next((label for _, _, label in clauses if label), None)
    return SpecifierSet(",".join(public for public, _, _ in clauses)), label


def _wish_of(torch: SpecifierSet, label: str | None, cuda: CudaVersion | Wish) -> CudaVersion | Wish:
    """What the label of a request says of CUDA, if it has one, where the spec's `[cuda]` does not gainsay it."""
    if label is None:
        return cuda
    try:
        told = Wish.CPU if label == "cpu" else CudaVersion.parse(label)
    except ValueError:
        raise NoSuchBuild(
            f"torch{torch}: envspec locks builds for CUDA and for the CPU, not `{label}`",
            hint="ask for torch without a label, and name the CUDA in the spec: [cuda] version",
        ) from None
    if cuda in (Wish.ANY, told):
        return told
    asked = f"[cuda] version is {cuda}" if isinstance(cuda, CudaVersion) else "the spec has no [cuda] table"
    fix = f'set [cuda] version = "{told}"' if isinstance(told, CudaVersion) else "leave [cuda] out"
    raise NoSuchBuild(f"torch{torch} names the {label} build, but {asked}", hint=f"{fix}, or drop the label")


def _from_default(facts: Facts, candidates: Sequence[TorchRelease], variant: str, platform: Platform) -> Build:
    newest = candidates[-1]
    same = tuple(row.version for row in candidates if row.default.get(platform.value) == variant)
    always = all(row.default.get(platform.value) == variant for row in facts.torch)
    why = f"torch {newest.version} is the newest match with {variant}, its default build on {platform.value}"
    constraint = "" if always else _range(same)
    return Build(Index.DEFAULT, variant, same, Known.SURE, why, newest.source, constraint)


def _from_pytorch(
    facts: Facts, candidates: Sequence[TorchRelease], variant: str, platform: Platform, label: str | None
) -> Build:
    newest = candidates[-1]
    usual = newest.default.get(platform.value, "not known")
    known = _certainty(facts, newest, variant, platform)
    why = f"torch {newest.version} is the newest match with {variant}; its default build on {platform.value} is {usual}"
    if label:
        why = f"only PyTorch's own index has releases with the label +{label}"
    warning = f"torch {newest.version}: nothing known here confirms a {variant} build for {platform.value}"
    versions = tuple(row.version for row in candidates)
    return Build(
        Index.PYTORCH,
        variant,
        versions,
        known,
        why,
        newest.source,
        _range(versions),
        PYTORCH_INDEX.format(variant=variant),
        "" if known is Known.SURE else warning,
    )


def _range(versions: Sequence[str]) -> str:
    return f"=={versions[0]}" if len(versions) == 1 else f">={versions[0]},<={versions[-1]}"


def _certainty(facts: Facts, torch: TorchRelease, variant: str, platform: Platform) -> Known:
    """The build matrix speaks of linux x86-64 and Windows; for Arm, a row of GPU code says that a build was made."""
    if variant in torch.unsure:
        return Known.UNSURE
    if platform is not Platform.LINUX_AARCH64 or variant == "cpu":
        return Known.SURE
    return Known.SURE if facts.gpu_code_of(torch.version, variant, platform) else Known.UNSURE


def _outside(facts: Facts, torch: SpecifierSet, variant: str, platform: Platform) -> Build:
    """A torch that the data does not have: the default index, unless its newest default build is another variant."""
    oldest, newest = facts.torch[0], facts.torch[-1]
    usual = newest.default.get(platform.value)
    index = Index.DEFAULT if variant == usual else Index.PYTORCH
    outside = f"torch {torch} is outside the facts ({oldest.version} to {newest.version})"
    return Build(
        index,
        variant,
        (),
        Known.UNKNOWN,
        f"{outside}; {variant} is{'' if index is Index.DEFAULT else ' not'} torch {newest.version}'s default build",
        newest.source,
        "",
        None if index is Index.DEFAULT else PYTORCH_INDEX.format(variant=variant),
        f"{outside}: its builds and its family could not be checked. Add it to the spec: "
        '[[facts.torch]] version = "...", default = { linux-64 = "cu..." }, variants = ["cu..."], source = "..."',
    )


def _has(row: TorchRelease, variant: str, platform: Platform) -> bool:
    return row.default.get(platform.value) == variant or variant in row.published


def _no_such_build(
    facts: Facts, matching: Sequence[TorchRelease], cuda: CudaVersion | Wish, platform: Platform
) -> NoSuchBuild:
    wanted = f"CUDA {cuda}" if isinstance(cuda, CudaVersion) else "the CPU alone"
    variant = cuda.variant if isinstance(cuda, CudaVersion) else "cpu"
    newest = matching[-1]
    releases = newest.version if len(matching) == 1 else f"{matching[0].version} to {newest.version}"
    published = ", ".join(_spoken(name) for name in newest.published)
    others = [row.version for row in facts.torch if _has(row, variant, platform)]
    elsewhere = (
        f"; torch with {wanted}: {spoken_ranges(others, [row.version for row in facts.torch])}"
        if others
        else f"; no torch known here has {wanted}"
    )
    return NoSuchBuild(
        f"torch {releases}: no build for {wanted} was ever published",
        hint=f"published for torch {newest.version}: {published}. Set [cuda] version to one of them{elsewhere}",
    )


def _spoken(variant: str) -> str:
    return str(CudaVersion.parse(variant)) if variant.startswith("cu") else variant
