"""Where archives come from: one protocol, and what is the same for all that follow it."""

from __future__ import annotations

from typing import Protocol

from envspec.effects.sink import Sink
from envspec.fetch.faults import Truncated, WrongArchive
from envspec.fetch.values import Archive


class Transport(Protocol):
    """A way to fetch archives. `resumes`: whether it goes on where a run broke off that was ended in the middle."""

    @property
    def resumes(self) -> bool: ...

    async def bring(self, archive: Archive, sink: Sink) -> None:
        """Write the archive to `sink`, whole and checked; what passes is tried again as often as patience allows.

        Raises:
            WrongArchive: other content than the lock's; NetworkError: not to be had. CannotKeep, OSError: the cache
            can't be written.
        """
        ...


def check(archive: Archive, sink: Sink) -> None:
    """Refuse what is not the archive that the lock names.

    Raises:
        Truncated: another size. WrongArchive: another hash.
    """
    if archive.size_bytes is not None and sink.size != archive.size_bytes:
        raise Truncated(archive.of, archive.url, sink.size, archive.size_bytes)
    if sink.digest != archive.sha256:
        raise WrongArchive(archive.of, archive.url, sink.digest, archive.sha256)
