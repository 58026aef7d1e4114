"""Requests and stages of installations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from envspec.fetch.types import Network, Step
from envspec.models import Lock, Platform, Resolution


class InstallStage(Enum):
    """The stages of an installation, in order."""

    WAITING = "waiting for another install into the same folder"
    FETCHING = "fetching archives"
    LINKING = "linking conda packages"
    PYTHON = "preparing Python"
    WHEELS = "installing wheels"
    CHECKING = "checking files"


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """resolution: the part of `lock` for this machine. lock_sha256: of the bytes of envspec.lock.

    prefix: absolute, links resolved. python: the user's interpreter for a lock without conda. jobs: downloads at once.
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
    """cache: envspec's own folder. report: called at every step. built: builds the sources with a Python; the
    resolution with the built wheels, and these, SHA-256 -> file.
    """

    environ: Mapping[str, str]
    cache: Path
    report: Callable[[Step], None]
    warn: Callable[[str], None]
    built: Callable[[InstallRequest, Path], Awaitable[tuple[Resolution, Mapping[str, Path]]]]
