"""Requests and errors of builds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from envspec.credentials import without_credentials
from envspec.errors import EnvspecError, NoSolution
from envspec.models import BuiltWheel, NamedIndex, Platform, Python, Target

#: Another way to build makes other wheels of the same source.
_FORM: Final = 1


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A wheel that is wanted.

    name: normalised. version: None where only the build tells it. source: SHA-256 of the sdist, or what else names the
    source's contents for good. lay_out: puts the source into a new folder, below which it gives the project's own.
    as_of: nothing newer builds it, and no file of the source is newer. indexes: the spec's own, by which the build's
    requirements are routed as the lock's packages are; may hold credentials. locked: what the lock records. compiles:
    whether this machine's compilers may be used, for a wheel that is for this machine alone.
    """

    name: str
    version: str | None
    source: str
    lay_out: Callable[[Path], Awaitable[Path]]
    target: Target
    as_of: datetime
    indexes: tuple[NamedIndex, ...] = field(default=(), repr=False)
    locked: BuiltWheel | None = None
    compiles: bool = False

    @property
    def of(self) -> str:
        """Whose wheel it is, as messages say it."""
        return f"{self.name} {self.version}" if self.version else self.name

    def key(self, index: str) -> str:
        """SHA-256 over all that decides the wheel. index: names the default index."""
        target = self.target
        parts: list[object] = [_FORM, self.name, self.source, self.as_of.isoformat(), target.platform.value]
        parts += [target.python.version, target.glibc, target.macos, index]
        # Not even as a hash: who has another login gets the same wheel.
        parts += [[each.name, without_credentials(each.url), each.packages, each.undated] for each in self.indexes]
        parts += ["compiled here"] if self.compiles else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class BuildContainer:
    """A container to build in. base: what is pulled, `host/repository@sha256:...`. is_plain: without TLS.

    python: a standalone build of the target's series, packed.
    """

    base: str
    is_plain: bool
    python: Path


@dataclass(frozen=True, slots=True)
class BuildTools:
    """What builds find on this machine.

    local: its platform, None if envspec locks nothing for it. interpreter: a Python of the series on this machine, None
    if there is none. room: finds a container, once one is needed.
    """

    local: Platform | None
    interpreter: Callable[[Python], Awaitable[Path | None]]
    room: Callable[[Target], Awaitable[BuildContainer]]


@dataclass(frozen=True, slots=True)
class CachedWheel:
    """A wheel in the cache."""

    wheel: BuiltWheel
    path: Path


_MOST: Final = 15


class WheelBuildFailed(NoSolution):
    """The source gives no wheel. lines: what the build wrote, of which the last are shown."""

    def __init__(self, of: str, why: str, lines: Sequence[str] = (), hint: str | None = None) -> None:
        told = [line.rstrip() for line in lines if line.strip()][-_MOST:]
        super().__init__(
            "\n".join([f"{of}: {why}", *(f"  {line}" for line in told)]),
            hint=hint or "give its build what it asks for, or take a release that has a wheel",
        )


class WrongWheel(WheelBuildFailed):
    """The build gave the wheel of something else, or for another machine."""


class UnexpectedWheel(EnvspecError):
    """A build gave other bytes than the lock records."""

    exit_code = 8

    def __init__(self, of: str, found: str, locked: str) -> None:
        super().__init__(
            f"{of}: the wheel that was built has SHA-256 {found}, the lock records {locked}",
            hint="its build is not the same everywhere: take the wheel from who made the lock (ENVSPEC_BUILT_WHEELS "
            "names where its cache's `archives` folder is served), or record this one by `envspec lock --upgrade "
            "--image SPEC`",
        )
