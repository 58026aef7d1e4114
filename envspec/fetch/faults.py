"""What can be wrong with an archive: whose it is, what happened, what to do. No message holds a credential."""

from __future__ import annotations

import re
from typing import Final

from envspec.credentials import shown
from envspec.effects.http_faults import BadStatus, BrokenOff, RequestFault, Stalled, Unreachable
from envspec.errors import NetworkError
from envspec.names import Form

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


def is_passing(fault: NetworkError) -> bool:
    """Whether asking again may help: not for a file that is gone, or one with other content."""
    if isinstance(fault, BadStatus):
        return fault.status in _PASSING_STATUS
    return isinstance(fault, (Truncated, Stalled, BrokenOff, Unreachable))


def stalled(url: str, stall_s: float) -> Stalled:
    """The server sends nothing any more."""
    return Stalled(url, f"the server stalled: no byte for {stall_s:g} s", hint=_AGAIN)


def of_rattler(url: str, fault: BaseException) -> RequestFault:
    """rattler's fault in words for the user. Its own may hold a token, which its middleware puts into URLs."""
    text = str(fault)
    status = re.search(r"HTTP status \w+ error \((\d{3})", text)
    if status:
        return BadStatus(url, int(status[1]))
    if "builder error" in text:
        return RequestFault(url, "not a URL that archives can be fetched from", hint="was the lock made for this use?")
    if "error sending request" in text:
        return Unreachable(url, "no connection", hint="is the server up, its name known here, and HTTPS_PROXY right?")
    return BrokenOff(url, "the answer broke off before its end", hint=_AGAIN)
