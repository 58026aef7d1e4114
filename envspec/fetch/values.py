"""What a fetch is told, and what it tells while it runs. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from envspec.effects.http_values import Patience


class Network(Enum):
    """Whether anything may be fetched."""

    USE = "use"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Archive:
    """A file that the lock names. of: whose archive it is, as messages say it: `numpy 2.2.6`."""

    of: str
    url: str
    filename: str
    sha256: str
    size_bytes: int | None = None


def python_archive(version: str, url: str, sha256: str) -> Archive:
    """A standalone build of Python."""
    return Archive(f"Python {version}", url, unquote(PurePosixPath(urlsplit(url).path).name), sha256)


@dataclass(frozen=True, slots=True)
class Count:
    """How far a fetch is, in files and in bytes. A total of 0 is not known."""

    done: int
    total: int
    bytes_done: int
    bytes_total: int


#: Told the SHA-256 of each file that is in the cache, checked, when it is.
Arrived = Callable[[str], object]


def unheard(_sha256: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How files are fetched.

    cache: envspec's own folder. jobs: how many at once. report, warn: told of every step, and of what the user should
    know.
    """

    cache: Path
    patience: Patience
    network: Network
    jobs: int
    report: Callable[[Count], None]
    warn: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """How far a run is in one of its stages, whose value is what the user reads. A total of 0 is not known."""

    stage: Enum
    done: int = 0
    total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
