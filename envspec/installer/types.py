"""What an installation is told, and what it tells while it runs. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from envspec.fetch.types import Network, Step
from envspec.models import Lock, Platform, Resolution


class Stage(Enum):
    """What an installation is at, in the order in which it comes there."""

    WAITING = "waiting for another install into the same folder"
    FETCHING = "fetching archives"
    LINKING = "linking conda's packages"
    PYTHON = "making Python ready"
    WHEELS = "installing wheels"
    CHECKING = "checking files"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be installed where.

    resolution: the part of `lock` for this machine's platform. lock_sha256: of the bytes of envspec.lock.
    prefix: the environment's folder, absolute, links resolved. python: an interpreter that the user names for a lock
    without conda. jobs: how many files are fetched at once.
    """

    lock: Lock
    lock_sha256: str
    resolution: Resolution
    prefix: Path
    python: Path | None = None
    network: Network = Network.USE
    jobs: int = 8

    @property
    def platform(self) -> Platform:
        return self.resolution.target.platform


@dataclass(frozen=True, slots=True)
class World:
    """The machine around it.

    cache: envspec's own folder. report: told of every step. warn: told of what the user should know. built: the
    resolution with a wheel of every source, and these, SHA-256 -> file; what the lock records no wheel of is built by
    the Python that is named.
    """

    environ: Mapping[str, str]
    cache: Path
    report: Callable[[Step], None]
    warn: Callable[[str], None]
    built: Callable[[Order, Path], Awaitable[tuple[Resolution, Mapping[str, Path]]]]
