"""What an import gives: the spec, the ledger, and what the first lock has moved. Values, and their comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from packaging.version import Version

from envspec.errors import EnvspecError
from envspec.facts import Facts
from envspec.importers.types import Draft, LedgerEntry, SpecDecision
from envspec.models import DEFAULT_INDEX, CondaPackage, Package, Platform, Resolution
from envspec.reasons import words
from envspec.verifier.scan import same_version
from envspec.verifier.types import VerifyResult


class Moved(Struct, frozen=True):
    """A package whose version differs from that of the sources. now: empty if it is not in the lock."""

    name: str
    before: str
    now: str
    why: str


class Proof(Struct, frozen=True):
    """The environment of a source, compared file by file with the new lock."""

    prefix: Path
    result: VerifyResult


@dataclass(frozen=True, slots=True)
class Imported:
    """What `init` did.

    name: of the environment.
    spec, text: the file, and what is in it.
    decisions: the values that follow from clues, or from nothing, each with its reason.
    lock: the folder of its lock; None if it was not locked, and `moved` as well.
    error: why it could not be locked, or not be compared.
    with_cuda: the text with an empty [cuda], for the case that the lock turns out to contain torch; empty if [cuda] is
        decided already.
    """

    name: str
    spec: Path
    text: str
    ledger: tuple[LedgerEntry, ...]
    decisions: tuple[SpecDecision, ...]
    lock: Path | None = None
    moved: tuple[Moved, ...] | None = None
    compared: int = 0
    proofs: tuple[Proof, ...] = ()
    error: EnvspecError | None = field(default=None, compare=False)
    with_cuda: str = ""

    @property
    def lost(self) -> tuple[LedgerEntry, ...]:
        """The lines that the spec lacks."""
        return tuple(each for each in self.ledger if each.outcome.is_lost)


def moves(draft: Draft, part: Resolution, facts: Facts) -> tuple[tuple[Moved, ...], int]:
    """The packages of the sources that the lock has in another version, or not at all; and how many were compared."""
    wheels = {each.name: each for each in part.packages}
    provided: dict[str, str] = {}
    for package in part.conda:
        provided.update({each.name: each.version for each in package.provides})
    conda = {each.name: each for each in part.conda}
    found = [
        *_moved_wheels(draft.versions, wheels, provided, facts, part.target.platform),
        *_moved_conda(draft.conda_versions, conda),
    ]
    return tuple(found), len(draft.versions) + len(draft.conda_versions)


def _moved_wheels(
    versions: Mapping[str, str],
    wheels: Mapping[str, Package],
    provided: Mapping[str, str],
    facts: Facts,
    platform: Platform,
) -> Iterator[Moved]:
    for name, before in sorted(versions.items()):
        package = wheels.get(name)
        now = package.version if package else provided.get(name, "")
        if not now:
            yield Moved(name, before, "", "nothing in the lock requires it")
        elif not same_version(before, now):
            yield Moved(name, before, now, _why(package, before, facts, platform))


def _moved_conda(versions: Mapping[str, str], conda: Mapping[str, CondaPackage]) -> Iterator[Moved]:
    for name, before in sorted(versions.items()):
        package = conda.get(name)
        if package is None:
            yield Moved(name, before, "", "nothing in the lock requires it")
        elif before not in (package.version, f"{package.version} {package.build}"):
            why = words(package.preferred.why) if package.preferred else "the spec requires another one"
            yield Moved(name, before, f"{package.version} {package.build}", why)


def _why(package: Package | None, before: str, facts: Facts, platform: Platform) -> str:
    if package is None:
        return "it comes from conda"
    if package.preferred:
        return words(package.preferred.why)
    old, new = Version(before), Version(package.version)
    if old.public == new.public:
        if package.file.index == DEFAULT_INDEX:
            variant = facts.default_variant(new.public, platform)
            if variant and variant == old.local:
                return f"the default index has the build for {variant} without its label"
        return "the same release, built for another CUDA"
    if package.file.index != DEFAULT_INDEX and not package.uploaded:
        return "the spec names its address"
    return "the spec requires another one"
