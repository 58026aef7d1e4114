"""What the stages of one lock are told, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envspec.facts import Facts
from envspec.io.confine import Unconfined
from envspec.io.store import Store
from envspec.models import CondaChannel, CondaPackage, Decision, Lock, Platform, Resolution, Target
from envspec.spec import Spec

if TYPE_CHECKING:
    from envspec.resolve.pypi.index.routing import BuiltSource
    from envspec.resolve.pypi.resolve import TargetRequest
    from envspec.resolve.types import CondaProvided


#: Decisions about sources: `source.<name>`.
SOURCE: Final = "source."


class Upgrade(Enum):
    """What may move. KEEP: nothing beyond the lock's `as_of`. ALL: everything that the spec's `as_of` allows."""

    KEEP = "keep"
    ALL = "all"


class Network(Enum):
    USE = "use"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One spec to lock.

    resolver, conda_resolver: names in `envspec.resolve`. upgrade_packages: normalised names that may move
    although the rest stays. channel_repodata: channel name -> a folder of rows that stands for it.
    """

    spec_path: Path
    directory: Path
    resolver: str = "uv"
    conda_resolver: str = "rattler"
    network: Network = Network.USE
    upgrade: Upgrade = Upgrade.KEEP
    upgrade_packages: tuple[str, ...] = ()
    channel_repodata: Mapping[str, Path] = field(default_factory=dict)
    jobs: int = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The effects of a run. warn: told each warning, one line. report: told the progress of each platform."""

    environ: Mapping[str, str]
    home: Path
    cache: Path
    now: Callable[[], datetime]
    warn: Callable[[str], None]
    report: Callable[[str, str], None]
    unconfined: Unconfined = Unconfined.REFUSED


@dataclass(frozen=True, slots=True)
class Work:
    """One lock in the making. started: the moment of this run. upgraded: the names that `--upgrade-package` may move.

    as_of: up to when releases are considered, but for packages with a moment of their own. old: what of the lock that
    stands there may decide anything. before: that lock, whose recorded images and built wheels hold for the new one
    where all that they follow from is the same.
    """

    request: LockRequest
    around: Surroundings
    store: Store
    spec: Spec
    facts: Facts
    old: Lock | None
    started: datetime
    as_of: datetime
    upgraded: tuple[str, ...] = ()
    before: Lock | None = None

    @property
    def offline(self) -> bool:
        return self.request.network is Network.OFFLINE

    @property
    def unconfined(self) -> Unconfined:
        """Whether builds may run where nothing confines them: as the command says, or the user's spec."""
        return Unconfined.ALLOWED if self.spec.pip.unconfined_builds else self.around.unconfined


@dataclass(frozen=True, slots=True)
class CondaHalf:
    """What came of the conda half; empty where the spec has no [conda].

    moments: of the packages that `--upgrade-package` has moved. provided: what of PyPI each platform has from conda.
    """

    packages: Mapping[Platform, tuple[CondaPackage, ...]] = field(default_factory=dict)
    channels: tuple[CondaChannel, ...] = ()
    decisions: tuple[Decision, ...] = ()
    moments: Mapping[str, datetime] = field(default_factory=dict)
    provided: Mapping[Platform, Mapping[str, CondaProvided]] = field(default_factory=dict)

    @property
    def pythons(self) -> dict[Platform, str]:
        return {
            platform: package.version
            for platform, packages in self.packages.items()
            for package in packages
            if package.name == "python"
        }


@dataclass(frozen=True, slots=True)
class Sources:
    """What the spec names to be built. by_target: requirement's text without credentials -> what came of it.

    decisions: which commits they are.
    """

    by_target: Mapping[Target, Mapping[str, BuiltSource]]
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class PypiHalf:
    """What came of the PyPI half. moments: of the packages that `--upgrade-package` has moved. decisions: commits."""

    resolutions: tuple[Resolution, ...]
    questions: tuple[TargetRequest, ...] = ()
    moments: Mapping[str, datetime] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
