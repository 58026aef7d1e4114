"""Archives, the protocol of transports, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from envspec.credentials import shown
from envspec.errors import NetworkError
from envspec.io.download import DownloadFile
from envspec.io.http_types import BadStatus, IncompleteResponse, RequestError, Stalled, Unreachable
from envspec.names import FILE_NAME, SHA256, Form

_AGAIN: Final = "run the same command again; what was fetched is kept"
_PASSING_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})


class WrongArchive(NetworkError):
    """An archive whose content is not what the lock says."""

    def __init__(self, of: str, url: str, found: str, locked: str) -> None:
        super().__init__(
            f"{of}: {shown(url)} is not the file that the lock names: SHA-256 {found}, locked {locked}",
            hint="nothing was installed; find out who changed the file, and lock again only if the change is meant",
        )


class UnsafeName(NetworkError):
    """A file name or a hash that can't be a part of a path in the cache."""

    def __init__(self, of: str, text: str, wanted: Form) -> None:
        super().__init__(
            f"{of}: {text!r} is not {wanted.words}",
            hint="nothing was fetched; find out who wrote it, the index, the channel, the lock or the spec's URL",
        )


class Truncated(NetworkError):
    """An archive of another size than the lock says."""

    def __init__(self, of: str, url: str, found: int, locked: int) -> None:
        what = "more than" if found > locked else f"{found:,} of"
        super().__init__(f"{of}: {shown(url)} has {what} {locked:,} bytes", hint=_AGAIN)


def is_transient(fault: NetworkError) -> bool:
    """Whether asking again may help: not for a file that is gone, or one with other content."""
    if isinstance(fault, BadStatus):
        return fault.status in _PASSING_STATUS
    return isinstance(fault, (Truncated, Stalled, IncompleteResponse, Unreachable))


def stalled(url: str, stall_s: float) -> Stalled:
    """The server sends nothing any more."""
    return Stalled(url, f"the server stalled: no byte for {stall_s:g} s", hint=_AGAIN)


def rattler_error(url: str, fault: BaseException) -> RequestError:
    """rattler's fault in words for the user. Its own may hold a token, which its middleware puts into URLs."""
    text = str(fault)
    status = re.search(r"HTTP status \w+ error \((\d{3})", text)
    if status:
        return BadStatus(url, int(status[1]))
    if "builder error" in text:
        return RequestError(url, "not a URL that archives can be fetched from", hint="was the lock made for this use?")
    if "error sending request" in text:
        return Unreachable(url, "no connection", hint="is the server up, its name known here, and HTTPS_PROXY right?")
    return IncompleteResponse(url, "the answer broke off before its end", hint=_AGAIN)


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


#: Told the SHA-256 of each file that is in the cache, checked, when it is.
OnFetched = Callable[[str], object]


def ignore_fetched(_sha256: str) -> None:
    """Tells nobody."""


class Transport(Protocol):
    """A way to fetch archives. `resumes`: whether it goes on where a run broke off that was ended in the middle."""

    @property
    def resumes(self) -> bool: ...

    async def bring(self, archive: Archive, sink: DownloadFile) -> None:
        """Write the archive to `sink`, whole and checked; what passes is tried again as often as patience allows.

        Raises:
            WrongArchive: other content than the lock's; NetworkError: not to be had. CannotKeep, OSError: the cache
            can't be written.
        """
        ...


def check(archive: Archive, sink: DownloadFile) -> None:
    """Refuse what is not the archive that the lock names.

    Raises:
        Truncated: another size. WrongArchive: another hash.
    """
    if archive.size_bytes is not None and sink.size != archive.size_bytes:
        raise Truncated(archive.of, archive.url, sink.size, archive.size_bytes)
    if sink.digest != archive.sha256:
        raise WrongArchive(archive.of, archive.url, sink.digest, archive.sha256)
