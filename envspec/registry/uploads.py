"""One blob's way into a registry: in chunks that go on from where the registry says it is, or whole.

Source: OCI distribution specification 1.1, "Pushing blobs"; what docker-registry 2.8 does beside it stands where it is
dealt with.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from envspec.effects.http_values import Response
from envspec.errors import NetworkError
from envspec.registry.auth import Access
from envspec.registry.blob import Descriptor
from envspec.registry.client import Registry
from envspec.registry.faults import RegistryFault, WrongDigest, shortened, spoken
from envspec.registry.pieces import Cursor, Pieces
from envspec.registry.tries import Tries, TryAgain, passes, refuse
from envspec.registry.upload_answers import held_bytes, is_there, next_location, push_refusal

#: 500 MB into docker-registry 2.8 on loopback cost, in CPU seconds of both sides: 2.6 in one request, 2.9 in chunks of
#: 64 MiB, 3.1 of 16 MiB, 4.2 of 4 MiB. Some proxies let 100 MB through in one request.
CHUNK_BYTES: Final = 64 * 1024 * 1024
#: Up to this size a blob is sent whole: a request less, and little to send again.
_WHOLE_BYTES: Final = 4 * 1024 * 1024
#: Proxies with a limit on requests rarely go below this (nginx's own is 1 MiB).
_LEAST_CHUNK_BYTES: Final = 1024 * 1024
#: For the last word to a registry, seconds: it may be what the push fails of.
_LET_GO_S: Final = 1.0
#: How many chunks of a blob a registry may keep next to nothing of: all of it would be sent for ever.
_SHORT: Final = 16
_OCTETS: Final = {"Content-Type": "application/octet-stream"}
#: What a registry that takes no chunks says to the first one.
_NO_CHUNKS: Final = frozenset({400, 404, 405, 411, 415, 501})


class Way(Enum):
    """How a blob is sent."""

    CHUNKS = "chunks"
    WHOLE = "whole"


async def let_go(registry: Registry, access: Access, location: str) -> None:
    """Have a registry forget an upload that nobody goes on with; where it does not listen, it will after its own time.

    Also on the way out of a task that is cancelled.
    """
    with contextlib.suppress(NetworkError, asyncio.TimeoutError):
        await asyncio.wait_for(registry.ask(access, "DELETE", location), _LET_GO_S)


class _Lost(TryAgain):
    """The registry doesn't go on with this upload: it has to be begun anew."""


@dataclass(slots=True)
class Upload:
    """One blob on its way. `run` ends when the registry has it.

    location: of an upload that has begun already, by a mount that was not granted. report: told of every change of how
    much has gone, in bytes; negative where some of it has to go again. sent_bytes: what went twice counts twice.
    """

    registry: Registry
    access: Access
    descriptor: Descriptor
    pieces: Pieces
    location: str | None = None
    report: Callable[[int], None] = lambda _: None
    chunk_bytes: int = CHUNK_BYTES
    sent_bytes: int = 0
    _cursor: Cursor = field(init=False)
    _way: Way = field(init=False)
    _offset: int = 0
    _told: int = 0
    _is_sure: bool = True
    _begun: int = 0
    _wrong: int = 0
    _short: int = 0

    def __post_init__(self) -> None:
        self._cursor = Cursor(self.descriptor, self.pieces)
        self._way = Way.WHOLE if self.descriptor.size_bytes <= _WHOLE_BYTES else Way.CHUNKS

    @property
    def _what(self) -> str:
        place = self.access.place
        return f"{place.registry}/{place.repository}: blob {self.descriptor.digest}"

    async def run(self) -> int:
        """Send it; the bytes that went.

        Raises:
            NetworkError: the registry doesn't take it, or patience has ended.
            WrongDigest: twice the registry found other bytes than the digest says.
        """
        http = self.registry.http
        tries = Tries(http.patience, http.notice, self._what)
        try:
            while True:
                try:
                    if await self._step():
                        self.location = None
                        return self.sent_bytes
                except (NetworkError, TryAgain) as fault:
                    await self._take_in(fault, tries)
        finally:
            await self._leave()
            await self._cursor.close()

    async def _step(self) -> bool:
        """The next request; whether the registry has the blob now."""
        if self.location is None:
            # An answer that got lost may have been the last one.
            if self._begun and await is_there(self.registry, self.access, self.descriptor):
                return True
            await self._begin()
        elif not self._is_sure:
            await self._find_out(self.location)
        elif self._way is Way.WHOLE or self._offset == self.descriptor.size_bytes:
            await self._commit(self.location)
            return True
        else:
            await self._send_chunk(self.location)
        return False

    async def _take_in(self, fault: NetworkError | TryAgain, tries: Tries) -> None:
        reached = self._offset
        if isinstance(fault, _Lost) or (self._way is Way.WHOLE and self.location is not None):
            await self._leave()
            self._stand_at(0)
        self._is_sure = self.location is None
        await tries.after(fault, reached)

    async def _begin(self) -> None:
        place = self.access.place
        self._begun += 1
        answer = await self.registry.ask(
            self.access, "POST", f"{place.base}/{place.repository}/blobs/uploads/", headers=_OCTETS, body=b""
        )
        if answer.status != 202:
            refuse(answer, self._refusal(answer))
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        if re.fullmatch(r"[0-9]{1,12}", least):
            self.chunk_bytes = max(self.chunk_bytes, int(least))
        self.location = next_location(answer, self.access)

    async def _send_chunk(self, location: str) -> None:
        start = self._offset
        end = min(start + self.chunk_bytes, self.descriptor.size_bytes)
        answer = await self.registry.ask(
            self.access,
            "PATCH",
            location,
            headers=_OCTETS | {"Content-Range": f"{start}-{end - 1}"},
            body=self.registry.http.streamed(lambda: self._going(start, end), end - start),
        )
        if 200 <= answer.status < 300:
            reached = held_bytes(answer)
            reached = end if reached is None else reached
            self._short += reached < end and reached - start < _LEAST_CHUNK_BYTES
            if not start < reached <= end or self._short > _SHORT:
                raise _Lost(self._fault(f"says that it has {reached} bytes after {end} were sent"))
            self.location = next_location(answer, self.access, location)
            self._stand_at(reached)
            return
        self._stand_at(start)
        if answer.status == 413 and self.chunk_bytes > _LEAST_CHUNK_BYTES:
            self.chunk_bytes = max(self.chunk_bytes // 4, _LEAST_CHUNK_BYTES)
        elif answer.status == 416:
            raise TryAgain(self._fault("refuses the place at which a chunk begins"), 0.0)
        elif start == 0 and self._begun <= 1 and answer.status in _NO_CHUNKS:
            await self._leave()
            self._way = Way.WHOLE
        else:
            self._give_up(answer)

    async def _commit(self, location: str) -> None:
        """The last request, with the whole blob where no chunks went."""
        size = self.descriptor.size_bytes if self._way is Way.WHOLE else 0
        mark = "&" if "?" in location else "?"
        answer = await self.registry.ask(
            self.access,
            "PUT",
            f"{location}{mark}digest={self.descriptor.digest}",
            headers=_OCTETS,
            body=self.registry.http.streamed(lambda: self._going(0, size), size) if size else b"",
            # A registry may copy a blob of gigabytes before it answers.
            answer_s=self.registry.http.patience.total_s,
        )
        if not 200 <= answer.status < 300:
            self._give_up(answer)
        named = answer.headers.get("Docker-Content-Digest", "").strip()
        if named and named != self.descriptor.digest:
            raise WrongDigest(
                f"{self._what}: the registry names it {shortened(named)}",
                hint="a proxy in between answers for something else, or the registry is broken",
            )

    async def _find_out(self, location: str) -> None:
        """Ask how much the registry has."""
        answer = await self.registry.ask(self.access, "GET", location)
        if answer.status in {401, 403} or passes(answer.status):
            refuse(answer, self._refusal(answer))
        reached = held_bytes(answer) if 200 <= answer.status < 300 else None
        self._is_sure = True
        if reached is None or reached > self.descriptor.size_bytes:
            await self._leave()
            reached = 0
        else:
            self.location = next_location(answer, self.access, location)
        self._stand_at(reached)

    def _give_up(self, answer: Response) -> None:
        """Raise what an answer means that is none of those in which an upload goes on."""
        said = spoken(answer.body)
        if said.startswith("DIGEST_INVALID"):
            self._wrong += 1
            wrong = WrongDigest(
                f"{self._what}: the registry finds another digest in the bytes that came ({said})",
                hint="a proxy changes what is sent, or the copy on this machine is damaged",
            )
            if self._wrong > 1:
                raise wrong
            raise _Lost(wrong)
        if answer.status in {400, 404, 409, 410, 416}:
            raise _Lost(
                self._fault(f"doesn't go on with the upload (HTTP {answer.status}{': ' if said else ''}{said})")
            )
        refuse(answer, self._refusal(answer))

    async def _going(self, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        self._stand_at(start)
        async with contextlib.aclosing(self._cursor.take(start, end)) as pieces:
            async for piece in pieces:
                yield piece
                self.sent_bytes += len(piece)
                self._tell(self._told + len(piece))

    def _stand_at(self, offset: int) -> None:
        self._offset = offset
        self._tell(offset)

    def _tell(self, position: int) -> None:
        if position != self._told:
            self.report(position - self._told)
            self._told = position

    async def _leave(self) -> None:
        """End an upload that is not to be gone on with, if one has begun."""
        location, self.location = self.location, None
        if location is not None:
            await let_go(self.registry, self.access, location)

    def _fault(self, does: str) -> RegistryFault:
        return RegistryFault(
            f"{self._what}: the registry {does}", hint="try again; if it stays, tell whoever runs the registry"
        )

    def _refusal(self, answer: Response) -> RegistryFault:
        return push_refusal(answer, self.access, self.descriptor.digest, self.registry)
