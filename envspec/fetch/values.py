"""What a fetch is told, and what it tells while it runs. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from envspec.effects.http_values import Patience
from envspec.fetch.faults import UnsafeName
from envspec.names import FILE_NAME, SHA256


class Network(Enum):
    """Whether anything may be fetched."""

    USE = "use"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Archive:
    """A file that the lock names. of: whose archive it is, as messages say it: `numpy 2.2.6`.

    Raises:
        UnsafeName: its file name or its hash can't be a part of a path in the cache.
    """

    of: str
    url: str
    filename: str
    sha256: str
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        # The last line of defence: whoever reads pages, locks and specs has checked them before.
        for text, form in ((self.filename, FILE_NAME), (self.sha256, SHA256)):
            if not form.fits(text):
                raise UnsafeName(self.of, text, form)

    def path(self, cache: Path) -> Path:
        """Where the file is in the cache, or will be once it is fetched: `archives/<sha256>/<file name>`."""
        return archives_folder(cache) / self.sha256 / self.filename


def archive_path(cache: Path, of: str, sha256: str, filename: str) -> Path:
    """As `Archive.path`, of a file whose URL does not matter.

    Raises:
        UnsafeName
    """
    return Archive(of, "", filename, sha256).path(cache)


def archives_folder(cache: Path) -> Path:
    """The folder of all archives."""
    return cache / "archives"


def python_archive(version: str, url: str, sha256: str) -> Archive:
    """A standalone build of Python.

    Raises:
        UnsafeName: the URL does not end in a file name.
    """
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
