"""The digest of a wheel's contents, from the RECORD at the wheel's end; no wheel is fetched for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from envspec.effects.http_answers import read_whole
from envspec.effects.http_faults import Elsewhere
from envspec.errors import NetworkError
from envspec.resolve.index.page import ListedFile
from envspec.resolve.index.remote_wheel import LARGEST_BYTES, BadWheel, Part, read_record
from envspec.resolve.index.upstream import AS_IT_IS, Index, Upstream, length, part

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from envspec.effects.http import Http, Response

#: A wheel no larger is taken whole from a server that knows no ranges.
_SMALL_BYTES: Final = 256 * 1024


class NoRanges(BadWheel):
    """The server would send the whole wheel."""


class Contents:
    """Digests from memory, else from the network. A lock never fails for want of one.

    missing: file names of wheels whose digest nobody could tell, with why. may_come: whether another run may find one
    of them.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.missing: dict[str, str] = {}
        self.may_come = False
        self._upstream = upstream
        self._rangeless: set[str] = set()

    async def of(self, index: Index, file: ListedFile) -> str | None:
        """The digest of an index's wheel; None where nobody can tell, and of an sdist."""
        if not file.filename.endswith(".whl") or file.sha256 is None:
            return None
        sha256, store = file.sha256, self._upstream.store
        if store.contents(sha256) is None:
            try:
                record = await self._upstream.once(("record", sha256), lambda: self._ask(index, file))
                store.remember_record(sha256, record)
            except NoRanges as fault:
                self.missing[file.filename] = str(fault)
            except BadWheel as fault:
                # Its bytes are known by their hash: they will not get any better.
                store.remember_record(sha256, None)
                self.missing[file.filename] = str(fault)
            except NetworkError as fault:
                self.may_come |= not isinstance(fault, Elsewhere)
                self.missing[file.filename] = fault.message
        known = store.contents(sha256)
        if known == "":
            self.missing.setdefault(file.filename, "its RECORD can't be read, or tells no SHA-256 of its files")
        return known or None

    async def _ask(self, index: Index, file: ListedFile) -> bytes:
        http = self._upstream.network(f"the RECORD of {file.filename}")
        url = self._upstream.authorised(index, file.url)

        async def read(start: int | None, end: int) -> Part:
            if start is None and file.size_bytes is not None:
                start, end = max(0, file.size_bytes - end), file.size_bytes
            wanted = f"bytes=-{end}" if start is None else f"bytes={start}-{end - 1}"
            answer = await self._part(http, index, url, wanted)
            if start is None and answer.status in (400, 416, 501):
                total = length(await http.request("HEAD", url, headers=AS_IT_IS, within=index.within()))
                return await read(max(0, total - end), total)
            return part(answer.checked())

        return await read_record(read)

    async def _part(self, http: Http, index: Index, url: str, wanted: str) -> Response:
        """The answer to a request for a range; its body is not read where it is a whole wheel that is no small one."""
        from envspec.effects.http import Response

        async def use(answer: ClientResponse) -> Response:
            size = answer.content_length
            if answer.status == 200 and (size is None or size > _SMALL_BYTES):
                self._rangeless.add(index.name)
                raise NoRanges("its server knows no ranges")
            if (size or 0) > LARGEST_BYTES:
                raise BadWheel(f"its zip directory or RECORD is larger than {LARGEST_BYTES} bytes")
            return Response(str(answer.url), answer.status, answer.headers, await read_whole(answer, LARGEST_BYTES))

        if index.name in self._rangeless:
            raise NoRanges("its server knows no ranges")
        return await http.stream(url, use, headers=lambda: {"Range": wanted}, within=index.within())


def without_digest(contents: Iterable[Contents]) -> str | None:
    """One warning for all wheels whose digest nobody could tell; None where there is none."""
    missing = {filename: why for each in contents for filename, why in each.missing.items()}
    if not missing:
        return None
    filename, why = min(missing.items())
    others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"locked without a digest of what it installs, so that `envspec verify` has nothing but RECORD beside it: "
        f"{filename} ({why}){others}"
    )
