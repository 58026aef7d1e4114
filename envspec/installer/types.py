"""Requests and stages of installations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envspec.context import Stages
from envspec.models import Lock, Platform, Resolution


class InstallStage(Stages):
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

    prefix: absolute, links resolved. python: the user's interpreter for a lock without conda.
    """

    lock: Lock
    lock_sha256: str
    resolution: Resolution
    prefix: Path
    python: Path | None = None

    @property
    def platform(self) -> Platform:
        return self.resolution.target.platform


#: Builds the sources with a Python: the resolution with the built wheels, and these, SHA-256 -> file.
BuildSources = Callable[[InstallRequest, Path], Awaitable[tuple[Resolution, Mapping[str, Path]]]]
