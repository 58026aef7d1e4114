"""Pages, metadata and RECORDs of the real indexes."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

from envspec.credentials import filled, has_secret_query, without_credentials
from envspec.errors import NetworkError
from envspec.io.http import Http, read_whole
from envspec.io.http_types import Response, TooLarge, WrongServer
from envspec.io.store import Store, StoredMetadata, StoredPage
from envspec.io.tasks import run_in_thread
from envspec.models import DEFAULT_INDEX
from envspec.names import normalised
from envspec.origins import PYTORCH_FILES, Bounds, same_origin
from envspec.resolve.pypi.index.page import ACCEPT, SDIST_SUFFIXES, BadPage, ListedFile
from envspec.resolve.pypi.index.remote_wheel import (
    LARGEST_BYTES,
    MOST_AT_ONCE,
    BadWheel,
    Part,
    part_of,
    pour,
    read_metadata,
    read_record,
    read_with_record,
)

if TYPE_CHECKING:
    from aiohttp import ClientResponse


_METADATA_BYTES: Final = 32 * 1024 * 1024
#: A wheel read whole because its server knows no ranges: the largest on any index known is 4 GB.
_WHOLE_BYTES: Final = 6 * 1024**3
#: The largest sdists on any index known hold data sets of some hundred MB.
_SDIST_BYTES: Final = 1024**3
#: For files of which sizes and ranges count: those of the file, not of a compressed answer.
AS_IT_IS: Final = {"Accept-Encoding": "identity"}

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Index:
    """A package index. url: of its simple pages, with a closing slash; may hold credentials, which are never written.

    dated: whether its files have upload times. An index without them cannot be held to `as_of`.
    stands_for: the address of the index that this one mirrors; locks name files there.
    files: origins beside its own that its pages and files may be on.
    """

    name: str
    url: str
    dated: bool = True
    stands_for: str | None = None
    files: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Names the index in the memory on disk."""
        return hashlib.sha256(" ".join((self.url, *self.files)).encode()).hexdigest()[:16]

    def within(self, sha256: str | None = None) -> Bounds | None:
        """The servers that may answer for this index; None: any. sha256: what the answer is checked by, as a whole.

        The default index has what nobody else was named for: a mirror of it may redirect to wherever its pages are. The
        files of a mirror of PyTorch's may be elsewhere than its pages.
        """
        if self.name == DEFAULT_INDEX or (self.stands_for and sha256):
            return None
        is_pytorch = self.name.startswith("pytorch-")
        also = PYTORCH_FILES if is_pytorch else self.files
        if is_pytorch:
            allow = (
                "name the address in ENVSPEC_PYTORCH_INDEX that it redirects to, if {} may stand for PyTorch's index"
            )
        else:
            allow = f'add `files = ["{{}}"]` to the [[pip.index]] of {self.name}, if its packages may come from there'
        return Bounds(f"index {self.name}", (self.url, *also), allow, hashed=bool(sha256))

    def public(self, url: str) -> str:
        """A file's address as a lock may hold it."""
        shown = without_credentials(url)
        if has_secret_query(shown):
            # Signed for one request: nobody could use it later, and it is a credential until then.
            shown = shown.partition("?")[0]
        if self.stands_for is None:
            return shown
        # A mirror may have its files elsewhere than beside its pages; the original has them right below its address.
        mirror = self.shown_url
        path = shown.removeprefix(mirror) if shown.startswith(mirror) else shown.rpartition("/")[2]
        return self.stands_for + path

    @property
    def shown_url(self) -> str:
        """The URL without credentials."""
        return without_credentials(self.url)


class NotListed(Exception):
    """The index does not know the project (404)."""


class OfflineMiss(NetworkError):
    """What is asked for is not in the memory, and the network may not be used."""

    def __init__(self, what: str, hint: str = "run once without --offline") -> None:
        super().__init__(f"offline, and {what} is not in the cache", hint=hint)


class IndexFault(NetworkError):
    """An index answered what cannot be used."""


class Upstream:
    """Pages and metadata: from memory where that is right, else from the network, each asked for once.

    now: the clock; a page counts for every `as_of` not after the moment at which it was asked for. began: this run's
    first moment. http: the network, None while there is none. environ: has the values of variables in
    indexes' logins.
    """

    def __init__(
        self, store: Store, now: Callable[[], datetime], http: Http | None = None, environ: Mapping[str, str] = _NOTHING
    ) -> None:
        self._environ = environ
        self.http = http
        self.store = store
        self.began = now()
        self._now = now
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    async def page(self, index: Index, name: str, as_of: datetime) -> StoredPage:
        """A project's page, as new as `as_of` at least.

        Raises:
            NotListed: the index answers 404.
            NetworkError: no usable answer, or offline without a memory of it.
        """
        page = await self.once(("page", index.name, name, as_of), lambda: self._page(index, name, as_of))
        if page.status == 404:
            raise NotListed(name)
        return page

    async def metadata(self, index: Index, file: ListedFile) -> StoredMetadata:
        """The METADATA of a wheel; of an sdist, what it states of the wheel that it becomes.

        Raises:
            NetworkError: it can't be fetched, or its hash is not the one that the page gives.
            BadSdist: the sdist can't be read.
        """
        key = file.sha256 or hashlib.sha256(without_credentials(file.url).encode()).hexdigest()
        return await self.once(("metadata", key), lambda: self._metadata(index, file, key))

    async def size_bytes(self, index: Index, file: ListedFile) -> int | None:
        """The file's size: as the page says, else as the server says; None where neither does."""
        if file.size_bytes is not None:
            return file.size_bytes
        key = file.sha256 or ""
        known = self.store.metadata(key)
        if known and known.size_bytes is not None:
            return known.size_bytes
        return await self.once(("size", file.url), lambda: self._size_bytes(index, file))

    async def content(self, index: Index, file: ListedFile) -> bytes:
        """The whole file, its hash checked (sdists: small; wheels only where a build backend asks for them)."""
        most = _WHOLE_BYTES if file.filename.endswith(".whl") else _SDIST_BYTES
        http, within = self.network(file.filename), index.within(file.sha256)
        answer = (await http.get(self.authorised(index, file.url), max_bytes=most, within=within)).checked()
        found = hashlib.sha256(answer.body).hexdigest()
        if file.sha256 and found != file.sha256:
            raise wrong_hash(index, file.filename, file.sha256, found)
        return answer.body

    def authorised(self, index: Index, url: str) -> str:
        """As the function of this name."""
        return authorised(index, url, self._environ)

    async def close(self) -> None:
        """End what is still being asked for: an engine that failed leaves fetches that nobody waits for."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def once(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` gives, made once for a key, however many ask for it."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(make())
        # Shielded: an engine that hangs up must not cancel what another one waits for.
        result: T = await asyncio.shield(task)
        return result

    def network(self, what: str) -> Http:
        """The network. what: what is asked of it, for the message of OfflineMiss."""
        if self.http is None:
            raise OfflineMiss(what)
        return self.http

    async def _page(self, index: Index, name: str, as_of: datetime) -> StoredPage:
        stored, within = self.store.page(index.key, name), index.within()
        if stored and within and not within.allows(stored.url, redirected=True):
            stored = None
        return stored if stored and stored.asked >= as_of else await self._ask_page(index, name, stored)

    async def _ask_page(self, index: Index, name: str, known: StoredPage | None) -> StoredPage:
        asked = self._now()
        headers = {"Accept": ACCEPT}
        if known is not None and known.etag and known.status == 200:
            headers["If-None-Match"] = known.etag
        answer = await self.network(f"the page of {name} at index {index.name}").get(
            self.authorised(index, f"{without_credentials(index.url)}{name}/"), headers=headers, within=index.within()
        )
        if answer.status == 304 and known is not None:
            page = replace(known, asked=asked)
        else:
            page = StoredPage(
                status=404 if answer.status in (404, 410) else answer.checked().status,
                asked=asked,
                url=without_credentials(answer.url),
                content_type=answer.headers.get("Content-Type", "text/html"),
                etag=answer.headers.get("ETag"),
                body=answer.body if answer.status == 200 else b"",
            )
        self.store.put_page(index.key, name, page)
        return page

    async def _metadata(self, index: Index, file: ListedFile, key: str) -> StoredMetadata:
        known = self.store.metadata(key)
        if known is None:
            if file.filename.endswith(SDIST_SUFFIXES):
                known = await self._metadata_of_sdist(index, file)
            else:
                known = await self._served_metadata(index, file) or await self._metadata_of_wheel(index, file)
            self.store.put_metadata(key, known)
        return known

    async def _metadata_of_sdist(self, index: Index, file: ListedFile) -> StoredMetadata:
        # Few locks need it: whoever reads remembered pages alone starts without.
        from envspec.resolve.pypi.index import sdist
        from envspec.resolve.pypi.index.selection import version_of

        content = await self.content(index, file)
        name, version = normalised(file.filename.rpartition("-")[0]), str(version_of(file.filename))
        body = await run_in_thread(sdist.metadata, content, file.filename, name, version)
        return StoredMetadata(body, len(content))

    async def _served_metadata(self, index: Index, file: ListedFile) -> StoredMetadata | None:
        """PEP 658: a file of its own beside the wheel; None where the index has none after all."""
        if file.metadata_sha256 is None:
            return None
        http = self.network(f"the metadata of {file.filename}")
        within = index.within(file.metadata_sha256)
        address = self.authorised(index, file.url + ".metadata")
        answer = await http.get(address, max_bytes=_METADATA_BYTES, within=within)
        if answer.status == 404:
            return None
        body = answer.checked().body
        found = hashlib.sha256(body).hexdigest()
        if file.metadata_sha256 and found != file.metadata_sha256:
            raise wrong_hash(index, file.filename + ".metadata", file.metadata_sha256, found)
        return StoredMetadata(body, file.size_bytes)

    async def _metadata_of_wheel(self, index: Index, file: ListedFile) -> StoredMetadata:
        http = self.network(f"the metadata of {file.filename}")
        url, within = self.authorised(index, file.url), index.within()

        async def read(start: int | None, end: int) -> Part:
            wanted = f"bytes=-{end}" if start is None else f"bytes={start}-{end - 1}"
            headers = {"Range": wanted, **AS_IT_IS}
            answer = await http.get(url, headers=headers, max_bytes=MOST_AT_ONCE, within=within)
            if start is None and answer.status in (400, 416, 501):
                # No suffix ranges, or a file smaller than the suffix: ask for the size, then for the bytes by number.
                total = length(await http.request("HEAD", url, headers=AS_IT_IS, within=within))
                return await read(max(0, total - end), total)
            piece = part(answer.checked())
            # Small wheels come whole, and so do those of servers that know no ranges: then there is a hash to check.
            if file.sha256 and piece.holds(0, piece.total):
                found = hashlib.sha256(piece.body).hexdigest()
                if found != file.sha256:
                    raise wrong_hash(index, file.filename, file.sha256, found)
            return piece

        try:
            try:
                body, total, record = await read_with_record(read)
            except TooLarge:
                # A server without ranges: the wheel is read on disk, whatever its size.
                body, total, record = await self._whole_wheel(http, index, file)
        except BadWheel as error:
            raise IndexFault(
                f"index {index.name}: {file.filename} is no usable wheel: {error}",
                hint="it was cut short or changed on its way or on the server: tell who runs the index",
            ) from error
        if record is not None and file.sha256:
            self.store.put_record(file.sha256, record)
        return StoredMetadata(body, total)

    async def _whole_wheel(self, http: Http, index: Index, file: ListedFile) -> tuple[bytes, int, bytes | None]:
        with tempfile.TemporaryFile() as kept:
            found = await pour(
                http, self.authorised(index, file.url), kept, _WHOLE_BYTES, within=index.within(file.sha256)
            )
            if file.sha256 and found != file.sha256:
                raise wrong_hash(index, file.filename, file.sha256, found)
            read = part_of(kept)
            body, total = await read_metadata(read)
            try:
                return body, total, await read_record(read)
            except BadWheel:
                return body, total, None

    async def _size_bytes(self, index: Index, file: ListedFile) -> int | None:
        http = self.network(f"the size of {file.filename}")
        url = self.authorised(index, file.url)
        answer = await http.request("HEAD", url, headers=AS_IT_IS, within=index.within())
        if answer.status >= 500 and answer.status != 501:
            # Others may be told the size: what they lock would differ from this.
            answer.checked()
        length = answer.headers.get("Content-Length", "") if answer.status == 200 else ""
        size = int(length) if length.isdigit() else None
        if size is not None and file.sha256 and (known := self.store.metadata(file.sha256)):
            self.store.put_metadata(file.sha256, replace(known, size_bytes=size))
        return size


def authorised(index: Index, url: str, environ: Mapping[str, str] = _NOTHING) -> str:
    """`url` with the index's credentials where it is on the index's own host, as pip and uv do, and has none itself.

    environ: has the values of variables in them, which are a request's and nothing else's.
    """
    ours = urlsplit(index.url).netloc
    if "@" not in ours or not same_origin(index.url, url) or "@" in (theirs := urlsplit(url)).netloc:
        return url
    return urlunsplit(theirs._replace(netloc=filled(ours, environ)))


def part(answer: Response) -> Part:
    """The piece of a file that a server sent; the whole file where it knows no ranges. BadWheel: it says not which."""
    if answer.status != 206:
        return Part(0, len(answer.body), answer.body)
    # "bytes 100-199/1234": RFC 9110, 14.4
    span, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    if not total.isdigit():
        raise BadWheel("the server answers a part without saying which")
    return Part(int(span.partition("-")[0]), int(total), answer.body)


def length(answer: Response) -> int:
    """A file's size by the answer to a HEAD. BadWheel: it doesn't tell."""
    value = answer.checked().headers.get("Content-Length", "")
    if not value.isdigit():
        raise BadWheel("the server tells neither its size nor a part of it")
    return int(value)


def unreadable(index: Index, name: str, error: BadPage) -> IndexFault:
    return IndexFault(
        f"index {index.name}: the page of {name} at {index.shown_url} can't be read: {error}",
        hint="the address must be that of the simple pages, which often end in /simple",
    )


def wrong_hash(index: Index, what: str, wanted: str, found: str) -> IndexFault:
    return IndexFault(
        f"index {index.name}: {what} has SHA-256 {found}, its page says {wanted}",
        hint="the file was changed on its way or on the server: tell who runs the index; nothing was locked",
    )


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
                store.put_record(sha256, record)
            except NoRanges as fault:
                self.missing[file.filename] = str(fault)
            except BadWheel as fault:
                # Its bytes are known by their hash: they will not get any better.
                store.put_record(sha256, None)
                self.missing[file.filename] = str(fault)
            except NetworkError as fault:
                self.may_come |= not isinstance(fault, WrongServer)
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
        from envspec.io.http_types import Response

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
