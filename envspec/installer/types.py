"""What to install, and the stages of an installation. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envspec.context import Stages
from envspec.models import Lock, Platform, Resolution


class InstallStage(Stages):
    """What an installation is at, in the order in which it comes there."""

    WAITING = "waiting for another install into the same folder"
    FETCHING = "fetching archives"
    LINKING = "linking conda's packages"
    PYTHON = "making Python ready"
    WHEELS = "installing wheels"
    CHECKING = "checking files"


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """What to install, and where.

    resolution: the part of `lock` for this machine's platform. lock_sha256: of the bytes of envspec.lock.
    prefix: the environment's folder, absolute, links resolved. python: an interpreter that the user names for a lock
    without conda.
    """

    lock: Lock
    lock_sha256: str
    resolution: Resolution
    prefix: Path
    python: Path | None = None

    @property
    def platform(self) -> Platform:
        return self.resolution.target.platform


#: The resolution with a wheel of every source, and these, SHA-256 -> file. The Python builds those that the lock
#: records no wheel of.
BuildSources = Callable[[InstallRequest, Path], Awaitable[tuple[Resolution, Mapping[str, Path]]]]
