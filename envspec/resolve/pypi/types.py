"""What is to be resolved for one target: requirements and bounds, and the rules of what resolvers see. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct
from packaging.version import Version

from envspec.errors import NoSolution
from envspec.models import Decision, Target
from envspec.reasons import Why, reason
from envspec.resolve import cache
from envspec.resolve.pypi.index.routing import Rules
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.types import Release
from envspec.structs import replace


class BoundKind(Enum):
    """What a bound is, and whether a resolver must follow it.

    CONSTRAINT: of the spec, of the build of torch, or of what the environment is installed on top of: must.
    EXCLUDED: a release that cannot be built for the target: must.
    PREFERRED: one that the spec prefers.
    PINNED: one that goes before what the spec prefers.
    KEPT: the same, of the lock that is replaced; without it, another release is chosen.
    SAME: the same; it is chosen without it, too.
    """

    CONSTRAINT = "constraint"
    EXCLUDED = "excluded"
    PREFERRED = "preferred"
    PINNED = "pinned"
    KEPT = "kept"
    SAME = "same"


#: Kinds of the pins of a lock that is replaced.
OLD_PINS: Final = (BoundKind.KEPT, BoundKind.SAME)
_PINS: Final = (BoundKind.PINNED, *OLD_PINS)


class Bound(Struct, frozen=True):
    """A bound on a package that is required.

    line: of PEP 508: `numpy<2`; of one release `numpy==2.2.6` or `numpy!=2.2.6`.
    why: it leaves out releases; empty if the spec states it.
    """

    line: str
    kind: BoundKind = BoundKind.CONSTRAINT
    why: Why = ()

    @property
    def release(self) -> Release:
        """Of a bound on one release."""
        name, _, text = re.split(r"([!=]=)", self.line, maxsplit=1)
        return name, Version(text)


class PypiRequest(Struct, frozen=True):
    """What a resolver resolves for one target. requirements: PEP 508 lines."""

    target: Target
    requirements: tuple[str, ...]
    bounds: tuple[Bound, ...] = ()

    def of_kind(self, *kinds: BoundKind) -> list[Bound]:
        return sorted((each for each in self.bounds if each.kind in kinds), key=lambda each: each.line)

    def with_bounds(self, bounds: Iterable[Bound]) -> PypiRequest:
        return replace(self, bounds=(*self.bounds, *bounds))

    @property
    def constraints(self) -> list[str]:
        """The lines that a resolver must follow."""
        return [each.line for each in (*self.of_kind(BoundKind.CONSTRAINT), *self.of_kind(BoundKind.EXCLUDED))]

    @property
    def preferences(self) -> list[str]:
        """The lines that a resolver follows if it can: one for each package."""
        bounds = [*self.of_kind(BoundKind.PREFERRED), *self.of_kind(*_PINS)]
        return sorted({each.release[0]: each.line for each in bounds}.values())

    def release_of(self, name: str, *kinds: BoundKind) -> Version | None:
        """The release of a package that a bound of one of these kinds names."""
        return dict(each.release for each in self.of_kind(*kinds)).get(name)

    def is_kept(self, name: str, version: Version) -> bool:
        """Whether an older lock decides a version: without that, another one would have been chosen."""
        return self.release_of(name, BoundKind.PINNED, BoundKind.KEPT) == version

    def excluded(self) -> dict[Release, Why]:
        """The releases that cannot be built for the target, with the reasons."""
        return {each.release: each.why for each in self.of_kind(BoundKind.EXCLUDED)}


def exclusions_of(releases: Mapping[Release, str]) -> list[Bound]:
    """Bounds without these releases. releases: with the reasons why they cannot be built."""
    return [
        Bound(f"{name}!={version}", BoundKind.EXCLUDED, (reason("unreadable", problem=problem),))
        for (name, version), problem in releases.items()
    ]


class TargetRequest(Struct, frozen=True):
    """One target's request with everything that decides its result, and what was decided to make it.

    identity: JSON of all that decides the rules (indexes, `as_of`, facts), without credentials: rules contain
        functions, which cannot be compared.
    serves_gpus: see `BuildChoice`.
    no_torch: why torch can't be in the resolution.
    """

    request: PypiRequest
    rules: Rules
    identity: object
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()
    serves_gpus: bool = True
    no_torch: NoSolution | None = None

    @property
    def view_key(self) -> str:
        """Identifies what the target sees of the indexes, independent of its requirements."""
        target = self.request.target
        parts = [self.identity, target.platform.value, target.python.version, target.glibc, target.macos]
        return cache.key_of(parts)[:20]

    def with_build_results(self, built: Mapping[Release, bytes], excluded: Mapping[Release, str]) -> TargetRequest:
        """With what builds of sdists have shown. built: METADATA of wheels. excluded: why a release cannot be built."""
        if not built and not excluded:
            return self
        identity = self.identity
        if built:
            hashes = [(name, str(version), hashlib.sha256(body).hexdigest()) for (name, version), body in built.items()]
            identity = [identity, sorted(hashes)]
        return replace(
            self,
            request=self.request.with_bounds(exclusions_of(excluded)),
            rules=replace(self.rules, built=built),
            identity=identity,
        )

    def with_sdists(self, sdists: Sdists) -> TargetRequest:
        """With other sdists as candidates."""
        if sdists is self.rules.sdists:
            return self
        return replace(self, rules=replace(self.rules, sdists=sdists), identity=[self.identity, sdists.value])

    def answer_key(self, resolver: str) -> str:
        """Identifies its resolution. resolver: its name and version."""
        request = self.request
        # Their reasons are part of the answer.
        bounds = sorted((each.line, each.kind.value, tuple(map(str, each.why))) for each in request.bounds)
        return cache.key_of([self.view_key, resolver, sorted(request.requirements), bounds])
