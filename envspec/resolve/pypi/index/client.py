"""Pages, metadata and RECORDs of the real indexes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from email.parser import BytesParser
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import astuple
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envspec.credentials import filled, without_credentials
from envspec.errors import NetworkError, OfflineMiss, WrongHash
from envspec.io.http import Http
from envspec.io.http_types import RequestError, Response, TooLarge, WrongServer
from envspec.io.lazy_http import LazyHttp
from envspec.io.store import Store, StoredMetadata, StoredPage
from envspec.io.tasks import run_in_thread
from envspec.names import normalised
from envspec.origins import same_origin
from envspec.resolve import cache
from envspec.resolve.pypi.index.file_metadata import (
    LARGEST_BYTES,
    MOST_AT_ONCE,
    BadRemoteWheel,
    FilePart,
    ReadPart,
    WheelRecord,
    read_file,
    read_member,
    read_metadata,
    read_record,
)
from envspec.resolve.pypi.index.file_metadata import metadata as sdist_metadata
from envspec.resolve.pypi.index.page import ACCEPT, SDIST_SUFFIXES, BadPage, ListedFile
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex, PackageIndexError
from envspec.resolve.pypi.index.selection import version_of
from envspec.structs import replace

_METADATA_BYTES: Final = 32 * 1024 * 1024
#: A wheel read whole because its server supports no ranges: the largest on any known index is 4 GB.
_WHOLE_BYTES: Final = 6 * 1024**3
#: The largest sdists on any known index contain data sets of some hundred MB.
_SDIST_BYTES: Final = 1024**3
#: For sizes and ranges of the file itself, not of a compressed answer.
UNCOMPRESSED: Final = {"Accept-Encoding": "identity"}
#: A wheel no larger is taken whole from a server without ranges.
_SMALL_BYTES: Final = 256 * 1024

T = TypeVar("T")


class _FoundPage(Struct):
    """A page in this run. is_cached: its body is of an earlier run. is_saved: nothing is left to store."""

    page: StoredPage
    is_cached: bool = False
    is_saved: bool = False


class IndexClient:
    """Pages and metadata, from the cache where it is valid, else from the network, each fetched once.

    now: the clock; a page is valid for every `as_of` up to the time of its request.
    began: the start of this run.
    http: None offline, or before it is opened.
    environ: has the values of variables in indexes' logins.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], datetime],
        http: Http | LazyHttp | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.environ = environ
        self.http = http
        self.store = store
        self.began = now()
        self._now = now
        self._running: dict[Hashable, asyncio.Future[Any]] = {}

    async def page(
        self, index: PackageIndex, name: str, as_of: datetime, read: Callable[[StoredPage], Awaitable[T]]
    ) -> T:
        """What `read` makes of a project's page, no older than `as_of`.

        A page is stored once it was read: a page that is none (of a captive portal, cut short) would be found in every
        later run. A cached one that cannot be read is requested again.

        read: raises BadPage for a page that it cannot read; may be called twice.

        Raises:
            NotListed: the index answers 404.
            PackageIndexError: the page cannot be read.
            NetworkError: no usable answer, or offline and not in the cache.
        """
        # A page of links is the same for all names.
        part = "" if index.is_page else name
        key = "page", index.name, part
        found = await self.once((*key, as_of), lambda: self._page(index, part, as_of))
        while True:
            if found.page.status == 404:
                raise NotListed(name)
            try:
                result = await read(found.page.unpacked())
            except BadPage as error:
                if not found.is_cached:
                    raise unreadable_page(index, name, error) from error
                found = await self.once((*key, "again"), lambda: self._fetched_page(index, part))
            else:
                self._save_page(index, part, found)
                # The pages of a stack have 40 MB, packed 4.
                found.page = found.page.packed()
                return result

    async def metadata(self, index: PackageIndex, file: ListedFile) -> StoredMetadata:
        """The METADATA of a wheel; of an sdist, what it states about its wheel.

        Raises:
            NetworkError: it cannot be fetched, or has another hash than on the page.
            BadSdist: the sdist cannot be read.
        """
        key = file.sha256 or hashlib.sha256(without_credentials(file.url).encode()).hexdigest()
        return await self.once(("metadata", key), lambda: self._metadata(index, file, key))

    async def size_bytes(self, index: PackageIndex, file: ListedFile) -> int | None:
        """The file's size from its page, else from the server; None if neither gives it."""
        if file.size_bytes is not None:
            return file.size_bytes
        cached = self.store.metadata(file.sha256 or "")
        if cached and cached.size_bytes is not None:
            return cached.size_bytes
        return await self.once(("size", file.url), lambda: self._size_bytes(index, file))

    async def content(self, index: PackageIndex, file: ListedFile) -> bytes:
        """The whole file, its hash checked (sdists are small; wheels only if a build backend requires them)."""
        most = _SDIST_BYTES
        if file.is_wheel:
            most = _WHOLE_BYTES
        http, within = self.network(file.filename), index.within(file.sha256)
        answer = (await http.request("GET", self.with_login(index, file.url), max_bytes=most, within=within)).checked()
        _check_hash(index, file.filename, file.sha256, answer.body)
        return answer.body

    async def measure(self, index: PackageIndex, file: ListedFile, as_of: datetime) -> ListedFile:
        """The file with the SHA-256 of its bytes, for one whose index gives none.

        It is downloaded once, and again if the last time was before `as_of`.
        """
        return await self.once(("measured", file.url, as_of), lambda: self._measure_file(index, file, as_of))

    async def _measure_file(self, index: PackageIndex, file: ListedFile, as_of: datetime) -> ListedFile:
        url, store = without_credentials(file.url), self.store
        key = cache.key_of(["wheel", url])
        found = store.answer(key)
        is_wheel = file.is_wheel
        has_metadata = not is_wheel or (found is not None and store.metadata(found["sha256"]) is not None)
        if found is None or datetime.fromisoformat(found["fetched"]) < as_of or not has_metadata:
            http, started = self.network(url), self._now()
            with tempfile.TemporaryFile() as body:
                address = self.with_login(index, file.url)
                sha256 = await http.download(address, body, _WHOLE_BYTES, within=index.within())
                size_bytes = body.seek(0, io.SEEK_END)
                if is_wheel:
                    try:
                        metadata, _, record = await read_file(body)
                        _check_release(metadata, file.filename)
                    except BadRemoteWheel as error:
                        raise NetworkError(
                            f"{file.filename} is no usable wheel: {error}", hint="check the URL in the spec"
                        ) from error
                    store.put_metadata(sha256, StoredMetadata(metadata, size_bytes))
                    _put_record(store, sha256, record)
            found = {"fetched": started.isoformat(), "sha256": sha256, "size_bytes": size_bytes}
            store.put_answer(key, found)
        return replace(file, sha256=found["sha256"], size_bytes=found["size_bytes"])

    def with_login(self, index: PackageIndex, url: str) -> str:
        return with_login(index, url, self.environ)

    async def close(self) -> None:
        """Cancel what is still running: a resolver that failed leaves fetches that nothing awaits."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def once(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The result of `make`, called once for a key."""
        # Shielded: a resolver that disconnects must not cancel what another one awaits.
        result: T = await asyncio.shield(self.begin(key, make))
        return result

    def begin(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Start what `once` gives; `close` ends it if nothing awaits it."""
        if key not in self._running:
            self._running[key] = asyncio.ensure_future(make())
        return self._running[key]

    def network(self, what: str) -> Http | LazyHttp:
        """what: the subject of OfflineMiss."""
        if self.http is None:
            raise OfflineMiss(what)
        return self.http

    async def _page(self, index: PackageIndex, name: str, as_of: datetime) -> _FoundPage:
        stored, within = self.store.page(index.key, name), index.within()
        if stored and within and not within.allows(stored.url, redirected=True):
            stored = None
        oldest = as_of
        if stored and stored.status == 404 and self.http is not None:
            # What the index did not have then, or a server in its place denied, it may have now.
            oldest = self.began
        if stored and stored.asked >= oldest:
            return _FoundPage(stored, is_cached=True, is_saved=True)
        return await self._fetched_page(index, name, stored)

    async def _fetched_page(self, index: PackageIndex, name: str, stored: StoredPage | None = None) -> _FoundPage:
        """The index's answer. stored: an earlier one, which may still be valid."""
        requested = self._now()
        headers = {"Accept": ACCEPT}
        if stored is not None and stored.etag and stored.status == 200:
            headers["If-None-Match"] = stored.etag
        address, subject = without_credentials(index.url), "the page"
        if name:
            address, subject = f"{address}{name}/", f"the page of {name}"
        http = self.network(f"{subject} at index {index.name}")
        try:
            answer = await http.request("GET", self.with_login(index, address), headers=headers, within=index.within())
        except RequestError as error:
            if way_out := index.mirror_hint(self.environ):
                error.hint = "; ".join(filter(None, [error.hint, way_out]))
            raise
        if answer.status == 304 and stored is not None:
            return _FoundPage(replace(stored, asked=requested), is_cached=True)
        status = 404 if answer.status in (404, 410) else answer.checked().status
        body, gzipped = b"", None
        if status == 200:
            body, gzipped = answer.body, answer.gzipped
        page = StoredPage(
            status=status,
            asked=requested,
            url=without_credentials(answer.url),
            content_type=answer.headers.get("Content-Type", "text/html"),
            etag=answer.headers.get("ETag"),
            body=body,
            gzipped=gzipped,
            no_store="no-store" in ",".join(answer.headers.getall("Cache-Control", [])).lower(),
        )
        found = _FoundPage(page)
        if status == 404:
            self._save_page(index, name, found)
        return found

    def _save_page(self, index: PackageIndex, name: str, found: _FoundPage) -> None:
        if not found.is_saved and not found.page.no_store:
            self.store.put_page(index.key, name, found.page)
        found.is_saved = True

    async def _metadata(self, index: PackageIndex, file: ListedFile, key: str) -> StoredMetadata:
        metadata = self.store.metadata(key)
        if metadata is not None:
            return metadata
        if file.filename.endswith(SDIST_SUFFIXES):
            content = await self.content(index, file)
            name, version = normalised(file.filename.rpartition("-")[0]), str(version_of(file.filename))
            body = await run_in_thread(sdist_metadata, content, file.filename, name, version)
            metadata = StoredMetadata(body, len(content))
        else:
            metadata = await self._served_metadata(index, file) or await self._metadata_of_wheel(index, file)
        self.store.put_metadata(key, metadata)
        return metadata

    async def _served_metadata(self, index: PackageIndex, file: ListedFile) -> StoredMetadata | None:
        """PEP 658: a file beside the wheel; None if the index does not have it after all."""
        if file.metadata_sha256 is None:
            return None
        http, within = self.network(f"the metadata of {file.filename}"), index.within(file.metadata_sha256)
        url = self.with_login(index, file.url + ".metadata")
        answer = await http.request("GET", url, max_bytes=_METADATA_BYTES, within=within)
        if answer.status == 404:
            return None
        body = answer.checked().body
        if not file.metadata_sha256:
            # Any page may be in its place; the wheel's own has a checksum.
            try:
                _check_release(body, file.filename)
            except BadRemoteWheel:
                return None
        _check_hash(index, file.filename + ".metadata", file.metadata_sha256, body)
        return StoredMetadata(body, file.size_bytes)

    async def _metadata_of_wheel(self, index: PackageIndex, file: ListedFile) -> StoredMetadata:
        http = self.network(f"the metadata of {file.filename}")
        url, within = self.with_login(index, file.url), index.within()

        async def get(span: str) -> Response:
            status = 0

            def note(answered: int, _: int | None) -> None:
                nonlocal status
                status = answered

            try:
                return await http.part(url, span, note, max_bytes=MOST_AT_ONCE, within=within)
            except TooLarge as error:
                if status != 206:
                    raise
                raise BadRemoteWheel("the server sends more of it than requested") from error

        ranges = _ranges(get, http, url, index)

        async def read(start: int | None, end: int) -> FilePart:
            part = await ranges(start, end)
            # Small wheels come whole, and so do those of servers without ranges: then the hash can be checked.
            if part.contains(0, part.total):
                _check_hash(index, file.filename, file.sha256, part.body)
            return part

        try:
            try:
                body, total, record = await read_metadata(read)
            except TooLarge:
                # A server without ranges: the wheel is read on disk, whatever its size.
                body, total, record = await self._whole_wheel(http, index, file)
        except BadRemoteWheel as error:
            raise PackageIndexError(
                f"index {index.name}: {file.filename} is no usable wheel: {error}",
                hint="report it to the index's operator: it was cut short or changed on the way or on the server",
            ) from error
        if record is not None and file.sha256:
            _put_record(self.store, file.sha256, record)
        return StoredMetadata(body, total)

    async def _whole_wheel(
        self, http: Http | LazyHttp, index: PackageIndex, file: ListedFile
    ) -> tuple[bytes, int, WheelRecord | None]:
        url, within = self.with_login(index, file.url), index.within(file.sha256)
        with tempfile.TemporaryFile() as wheel:
            found = await http.download(url, wheel, file.size_bytes or _WHOLE_BYTES, within=within)
            if file.sha256 and found != file.sha256:
                raise _wrong_hash(index, file.filename, file.sha256, found)
            return await read_file(wheel)

    async def _size_bytes(self, index: PackageIndex, file: ListedFile) -> int | None:
        http = self.network(f"the size of {file.filename}")
        url = self.with_login(index, file.url)
        answer = await http.request("HEAD", url, headers=UNCOMPRESSED, within=index.within())
        if answer.status >= 500 and answer.status != 501:
            # Another run may get the size, and would lock something else.
            answer.checked()
        if answer.status == 200 and answer.headers.get("Content-Type", "").startswith("text/html"):
            raise PackageIndexError(
                f"index {index.name}: the server sends a page in place of {file.filename}",
                hint="open the URL with a browser: a login or a server on the way may have to be passed first",
            )
        length = answer.headers.get("Content-Length", "")
        if answer.status != 200 or not length.isdigit():
            return None
        if file.sha256 and (cached := self.store.metadata(file.sha256)):
            self.store.put_metadata(file.sha256, replace(cached, size_bytes=int(length)))
        return int(length)


def with_login(index: PackageIndex, url: str, environ: Mapping[str, str] = MappingProxyType({})) -> str:
    """`url` with the index's credentials if it is on the index's origin and has none itself, as pip and uv do.

    environ: has the values of variables in them, which are for requests only.
    """
    own = urlsplit(index.url).netloc
    if "@" not in own or not same_origin(index.url, url) or "@" in (parts := urlsplit(url)).netloc:
        return url
    return urlunsplit(parts._replace(netloc=filled(own, environ)))


def _ranges(
    get: Callable[[str], Awaitable[Response]],
    http: Http | LazyHttp,
    url: str,
    index: PackageIndex,
    size: int | None = None,
) -> ReadPart:
    """Parts of a remote file. get: requests a range, as `bytes=0-99`. size: the file's, if known."""

    async def read(start: int | None, end: int) -> FilePart:
        if start is None and size is not None:
            return await read(max(0, size - end), size)
        span = f"bytes=-{end}" if start is None else f"bytes={start}-{end - 1}"
        answer = await get(span)
        if start is None and answer.status in (400, 416, 501):
            # No suffix ranges, or a file smaller than the suffix: get the size, then the bytes by number.
            head = (await http.request("HEAD", url, headers=UNCOMPRESSED, within=index.within())).checked()
            length = head.headers.get("Content-Length", "")
            if not length.isdigit():
                raise BadRemoteWheel("the server sends neither its size nor a part of it")
            return await read(max(0, int(length) - end), int(length))
        answer = answer.checked()
        if answer.status != 206:
            return FilePart(0, len(answer.body), answer.body)
        # "bytes 100-199/1234": RFC 9110, 14.4
        span, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if not total.isdigit():
            raise BadRemoteWheel("the server sends a part without its range")
        return FilePart(int(span.partition("-")[0]), int(total), answer.body)

    return read


def unreadable_page(index: PackageIndex, name: str, error: BadPage) -> PackageIndexError:
    return PackageIndexError(
        f"index {index.name}: the page of {name} at {index.shown_url} cannot be read: {error}",
        hint="use the URL of the simple pages, which often ends in /simple",
    )


def _check_hash(index: PackageIndex, what: str, expected: str | None, body: bytes) -> None:
    if expected and (found := hashlib.sha256(body).hexdigest()) != expected:
        raise _wrong_hash(index, what, expected, found)


def _wrong_hash(index: PackageIndex, what: str, expected: str, found: str) -> WrongHash:
    return WrongHash(
        f"index {index.name}: {what} has SHA-256 {found}, its page has {expected}",
        hint="report it to the index's operator: the file was changed on the way or on the server",
    )


def _put_record(store: Store, sha256: str, record: WheelRecord | None) -> None:
    """Store the RECORD of the wheel with a hash."""
    if record is None:
        store.put_record(sha256, None)
    else:
        store.put_record(sha256, record.content, list(map(astuple, record.wrong)), record.rows)


def _check_release(metadata: bytes, filename: str) -> None:
    """Refuse a wheel whose METADATA has another name or version than its file name, but for a label that it lacks:
    projects rename wheels after they are built.
    """
    head = BytesParser().parsebytes(metadata, headersonly=True)
    name, version = head.get("Name", ""), head.get("Version", "")
    expected_name, expected_version, *_ = parse_wheel_filename(filename)
    with suppress(InvalidVersion):
        releases = expected_version, Version(expected_version.public)
        if normalised(name) == expected_name and Version(version) in releases:
            return
    raise BadRemoteWheel(f"its METADATA is of {name} {version}")


class NoRanges(BadRemoteWheel):
    """The server would send the whole wheel."""


class RecordDigests:
    """Digests of wheels' RECORDs, from the cache, else from the network. A missing one never fails a lock.

    missing: file names of wheels without one, with the reason.
    may_appear: whether another run may find one of them.
    """

    def __init__(self, client: IndexClient) -> None:
        self.missing: dict[str, str] = {}
        self.may_appear = False
        self._client = client
        self._rangeless: set[str] = set()

    async def of(self, index: PackageIndex, file: ListedFile) -> str | None:
        """The digest of an index's wheel; None if it cannot be had, and for an sdist."""
        if not file.is_wheel or file.sha256 is None:
            return None
        sha256, store = file.sha256, self._client.store
        if store.contents(sha256) is None:
            try:
                await self._client.once(("record", sha256), lambda: self._store(index, file, sha256))
            except NoRanges as error:
                self.missing[file.filename] = str(error)
            except BadRemoteWheel as error:
                # A part of the wheel has no hash: it may have been changed on the way.
                self.may_appear = True
                self.missing[file.filename] = str(error)
            except NetworkError as error:
                self.may_appear |= not isinstance(error, WrongServer)
                self.missing[file.filename] = error.message
        digest = store.contents(sha256)
        if digest == "":
            self.missing.setdefault(file.filename, "its RECORD cannot be read, or lacks SHA-256 hashes")
        return digest or None

    def begin(self, index: PackageIndex, file: ListedFile) -> None:
        """Fetch a RECORD for a later `of`, which then has its errors."""
        sha256 = file.sha256
        if file.is_wheel and sha256 and self._client.store.contents(sha256) is None:
            self._client.begin(("record", sha256), lambda: self._store(index, file, sha256))

    async def small_file(self, index: PackageIndex, file: ListedFile, path: str, most_bytes: int) -> bytes | None:
        """A file of an index's wheel, by its path in site-packages; None if it is larger, or can't be read alone."""
        if file.sha256 is None:
            return None
        store, key = self._client.store, cache.key_of(["small file", file.sha256, path])
        if (cached := store.answer(key)) is not None:
            return b64decode(cached["content"])
        folder = "-".join(file.filename.split("-")[:2]) + ".data"
        paths = {path, f"{folder}/purelib/{path}", f"{folder}/platlib/{path}"}
        try:
            content = await read_member(self._parts(index, file, path), paths, most_bytes)
        except BadRemoteWheel:
            return None
        except NetworkError as error:
            self.may_appear |= not isinstance(error, WrongServer)
            return None
        store.put_answer(key, {"content": b64encode(content).decode()})
        return content

    async def _store(self, index: PackageIndex, file: ListedFile, sha256: str) -> None:
        record = await read_record(self._parts(index, file, "RECORD"))
        _put_record(self._client.store, sha256, record)

    def _parts(self, index: PackageIndex, file: ListedFile, what: str) -> ReadPart:
        """Reads parts of a wheel. what: is read of it, for messages."""
        http = self._client.network(f"{what} of {file.filename}")
        url = self._client.with_login(index, file.url)

        def admit(status: int, size: int | None) -> None:
            # The body of a large wheel that comes whole is not read.
            if status == 200 and (size is None or size > _SMALL_BYTES):
                self._rangeless.add(index.name)
                raise NoRanges("its server supports no ranges")
            if (size or 0) > LARGEST_BYTES:
                raise BadRemoteWheel(f"its zip directory or RECORD is larger than {LARGEST_BYTES} bytes")

        async def get(span: str) -> Response:
            # Whatever order they come in: a small wheel is read whole.
            if index.name in self._rangeless and (file.size_bytes or 0) > _SMALL_BYTES:
                raise NoRanges("its server supports no ranges")
            return await http.part(url, span, admit, max_bytes=MOST_AT_ONCE, within=index.within())

        return _ranges(get, http, url, index, file.size_bytes)


def missing_digests(digests: Iterable[RecordDigests]) -> str | None:
    """One warning for all wheels without a digest; None if there are none."""
    missing: dict[str, str] = {}
    for each in digests:
        missing |= each.missing
    if not missing:
        return None
    filename, why = min(missing.items())
    others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"locked without a digest of its installed files, so that `envspec verify` can check them against RECORD only: "
        f"{filename} ({why}){others}"
    )
