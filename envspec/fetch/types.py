"""Archives, the protocol of transports, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from envspec.credentials import shown
from envspec.errors import NetworkError, WrongHash
from envspec.io.download import DownloadFile
from envspec.io.http_types import BadStatus, IncompleteResponse, RequestError, Stalled, Unreachable
from envspec.names import FILE_NAME, SHA256, Form

_AGAIN: Final = "run the same command again; fetched files are kept"
_TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})


class WrongArchive(WrongHash):
    """An archive whose hash is not the locked one."""

    def __init__(self, of: str, url: str, found: str, locked: str) -> None:
        super().__init__(
            f"{of}: {shown(url)} is not the locked file: SHA-256 {found}, locked {locked}",
            hint="nothing was installed; find out who changed the file, and lock again only if the change is intended",
        )


class UnsafeName(NetworkError):
    """A file name or hash that is not safe in a path."""

    def __init__(self, of: str, text: str, form: Form) -> None:
        super().__init__(
            f"{of}: {text!r} is not {form.words}",
            hint="nothing was fetched; find out whether the index, the channel, the lock or the spec's URL contains it",
        )


class Truncated(NetworkError, code="wrong-size"):
    """An archive whose size is not the locked one."""

    def __init__(self, of: str, url: str, found: int, locked: int) -> None:
        what = "more than" if found > locked else f"{found:,} of"
        super().__init__(f"{of}: {shown(url)} has {what} {locked:,} bytes", hint=_AGAIN)


def is_transient(error: NetworkError) -> bool:
    """Whether a retry may help: not for a deleted file, or one with other content."""
    if isinstance(error, BadStatus):
        return error.status in _TRANSIENT_STATUS
    return isinstance(error, (Truncated, Stalled, IncompleteResponse, Unreachable))


def stalled(url: str, stall_s: float) -> Stalled:
    """The error of a server that stopped sending."""
    return Stalled(url, f"the server stalled: no byte for {stall_s:g} s", hint=_AGAIN)


def rattler_error(url: str, error: BaseException) -> RequestError:
    """rattler's error as envspec's own. Its text may contain a token, which rattler's middleware puts into URLs."""
    text = str(error)
    status = re.search(r"HTTP status \w+ error \((\d{3})", text)
    if status:
        return BadStatus(url, int(status[1]))
    if "builder error" in text:
        return RequestError(
            url, "archives can't be fetched from this URL", hint="correct the channel's URL in the spec, and lock again"
        )
    if "error sending request" in text:
        return Unreachable(url, "no connection", hint="check that the server runs, its name, and HTTPS_PROXY")
    return IncompleteResponse(url, "the response ended early", hint=_AGAIN)


class Archive(Struct, frozen=True):
    """A locked file. of: its package, for messages: `numpy 2.2.6`.

    Raises:
        UnsafeName: its file name or its hash is not safe in a path.
    """

    of: str
    url: str
    filename: str
    sha256: str
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        # The last line of defence: the readers of pages, locks and specs have checked them before.
        for text, form in ((self.filename, FILE_NAME), (self.sha256, SHA256)):
            if not form.fits(text):
                raise UnsafeName(self.of, text, form)

    def path(self, cache: Path) -> Path:
        """Its path in the cache, fetched or not: `archives/<sha256>/<file name>`."""
        return archives_folder(cache) / self.sha256 / self.filename


def archive_path(cache: Path, of: str, sha256: str, filename: str) -> Path:
    """`Archive.path` of a file whose URL does not matter.

    Raises:
        UnsafeName
    """
    return Archive(of, "", filename, sha256).path(cache)


def archives_folder(cache: Path) -> Path:
    return cache / "archives"


def python_archive(version: str, url: str, sha256: str) -> Archive:
    """A standalone build of Python.

    Raises:
        UnsafeName: the URL does not end in a file name.
    """
    return Archive(f"Python {version}", url, unquote(PurePosixPath(urlsplit(url).path).name), sha256)


#: Called with the SHA-256 of each file as soon as it is in the cache, checked.
OnFetched = Callable[[str], object]


def ignore_fetched(_sha256: str) -> None:
    """For callers that need no notification."""


class Transport(Protocol):
    """A way to fetch archives. resumes: whether it continues an interrupted download."""

    @property
    def resumes(self) -> bool: ...

    async def fetch(self, archive: Archive, file: DownloadFile) -> None:
        """Write the archive to `file`, whole and checked, with retries.

        Raises:
            WrongArchive: not the locked content. NetworkError: not available. CacheError, OSError: the cache can't be
            written.
        """
        ...


def check(archive: Archive, file: DownloadFile) -> None:
    """Reject a file that is not the locked archive.

    Raises:
        Truncated: another size. WrongArchive: another hash.
    """
    if archive.size_bytes is not None and file.size != archive.size_bytes:
        raise Truncated(archive.of, archive.url, file.size, archive.size_bytes)
    if file.digest != archive.sha256:
        raise WrongArchive(archive.of, archive.url, file.digest, archive.sha256)
