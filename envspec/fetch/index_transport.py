"""Files of package indexes, by envspec's own door to HTTP: a file that broke off goes on from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from envspec.effects.http_faults import BadStatus, BrokenOff, Stalled, Unreachable
from envspec.effects.sink import Sink
from envspec.errors import NetworkError
from envspec.fetch.faults import Truncated, WrongArchive
from envspec.fetch.transport import check
from envspec.fetch.values import Archive

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from envspec.effects.http import Http

#: A connection that brought so many bytes before it broke is not counted against patience.
_PROGRESS_BYTES: Final = 16 << 20
_GONE: Final = frozenset({403, 404, 410})
_REFUSED: Final = frozenset({401, 403})


class Ask(Enum):
    """Where a file's address may come from. REMEMBERED: from a page that was read earlier. ANEW: from its index."""

    REMEMBERED = "remembered"
    ANEW = "anew"


#: Gives the address of a file, with the credentials that its server wants.
Locate = Callable[[Archive, Ask], Awaitable[str]]


class IndexTransport:
    """http: opened when the first file is asked for. locate: where each file is."""

    resumes: Final = True

    def __init__(self, http: Callable[[], Awaitable[Http]], locate: Locate) -> None:
        self._http = http
        self._locate = locate

    async def bring(self, archive: Archive, sink: Sink) -> None:
        """See `Transport.bring`."""
        await sink.adopt()
        url = await self._locate(archive, Ask.REMEMBERED)
        try:
            await self._fetch(replace(archive, url=url), sink)
        except BadStatus as fault:
            if fault.status in _REFUSED:
                fault.hint = (
                    "write a login for its host into ~/.netrc, or into the file that NETRC names; https alone gets it"
                )
            if fault.status not in _GONE:
                raise
            # An index that gives every reader addresses of their own, or has moved the file since.
            anew = await self._locate(archive, Ask.ANEW)
            if anew == url:
                raise
            await sink.restart()
            await self._fetch(replace(archive, url=anew), sink)

    async def _fetch(self, archive: Archive, sink: Sink) -> None:
        wrong = 0
        while True:
            before = sink.size
            try:
                await self._pour(archive, sink)
                await sink.settle()
                check(archive, sink)
            except (Truncated, WrongArchive) as fault:
                # What was there from an earlier answer may be of another file: then from its beginning, once.
                wrong += 1
                if wrong > 1 or not (sink.is_joined or isinstance(fault, Truncated)):
                    raise
                await sink.restart()
            except (BrokenOff, Stalled, Unreachable):
                if not sink.is_joined or sink.size - before < _PROGRESS_BYTES:
                    raise
            else:
                return

    async def _pour(self, archive: Archive, sink: Sink) -> None:
        if archive.size_bytes is not None and sink.size == archive.size_bytes:
            return

        def rest() -> dict[str, str]:
            return {"Range": f"bytes={sink.size}-"} if sink.size else {}

        async def use(answer: ClientResponse) -> None:
            if answer.status == 416 and sink.size:
                raise _NoSuchPart
            if not 200 <= answer.status < 300:
                raise BadStatus(str(answer.url), answer.status, retry_after=answer.headers.get("Retry-After"))
            await _begin(archive, answer, sink)
            async for chunk in answer.content.iter_any():
                await sink.take(chunk)
                if sink.limit is not None and sink.size > sink.limit:
                    raise Truncated(archive.of, archive.url, sink.size, sink.limit)

        http = await self._http()
        try:
            await http.stream(archive.url, use, headers=rest)
        except _NoSuchPart:
            await sink.restart()
            await http.stream(archive.url, use, headers=rest)


class _NoSuchPart(Exception):
    """The file ends before the part that was asked for."""


async def _begin(archive: Archive, answer: ClientResponse, sink: Sink) -> None:
    """Make the sink ready for an answer's first byte.

    Raises:
        Truncated: it is known already that the file is not of the locked size.
    """
    if answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {sink.size}-"):
        sink.is_joined = True
    elif sink.size:
        await sink.restart()
    if answer.status == 206 and not sink.is_joined:
        raise NetworkError(
            f"{archive.of}: the server sends another part of {archive.filename} than was asked for",
            hint="a proxy in between may be at fault: look at the URL with curl -v",
        )
    coming = None if "Content-Encoding" in answer.headers else answer.content_length
    if coming is not None and sink.limit is not None and sink.size + coming != sink.limit:
        raise Truncated(archive.of, archive.url, sink.size + coming, sink.limit)
