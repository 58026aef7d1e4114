"""A package index on 127.0.0.1 that talks as real ones do, fails where a test says so, and counts requests.

    with IndexServer(ecosystem.diamond()) as index:
        index.fail("/simple/left/", Status(500), times=2)
        resolve(index.url)
        assert index.fetched_twice() == []

`python -m tests.support.servers.index` serves a whole small ecosystem until it is interrupted.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote, urlsplit

from envspec.structs import replace
from tests.support.builders.projects import Caching, Compression, Dialect, File, MetadataFiles, Ranges, by_name
from tests.support.builders.wheels import normalized
from tests.support.servers import pages
from tests.support.servers.faults import Answer, Fault, Wire
from tests.support.servers.loopback import basic
from tests.support.servers.threaded import Exchange, Threaded

FRIENDLY: Final = Dialect()


@dataclass(slots=True)
class Request:
    """What was asked and what came of it; a request under way has status 0.

    path: unquoted, without its query. sent_bytes: headers and body, as they went out.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    status: int = 0
    sent_bytes: int = 0

    @property
    def range(self) -> str:
        return self.headers.get("range", "")


@dataclass(slots=True)
class _Planned:
    """times: how often it is still to happen; None: always."""

    pattern: str
    fault: Fault
    times: int | None


class IndexServer(Threaded):
    """One index. `url` is what `--index-url` takes; faults and files may change while it runs.

    credentials: user and password that every request must bring. delay_s: before each answer, as a network has.
    prefix: a path such as `/whl/cu126` below which everything lies (not for `Hrefs.ROOTED`).
    """

    def __init__(
        self,
        files: Iterable[File] = (),
        dialect: Dialect = FRIENDLY,
        *,
        credentials: tuple[str, str] | None = None,
        delay_s: float = 0.0,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.dialect = dialect
        self.prefix = prefix
        self.credentials = credentials
        self.delay_s = delay_s
        self._projects = by_name(files)
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._faults: list[_Planned] = []

    def handle(self, request: Exchange) -> None:
        whole = unquote(urlsplit(request.path).path)
        # What does not lie below the prefix is no path of this index.
        path = whole.removeprefix(self.prefix) if whole.startswith(self.prefix) else f"/beside{whole}"
        found = Request(request.command, path, {key.lower(): value for key, value in request.headers.items()})
        with self._lock:
            self._requests.append(found)
        if self.delay_s:
            time.sleep(self.delay_s)
        fault = self._fault_for(path)
        answer = self.answer(path, found.headers) if fault is None else self._play(fault, found, request)
        if answer is None:
            request.close_connection = True
        else:
            found.status = answer.status
            found.sent_bytes += request.answer(answer)

    def _fault_for(self, path: str) -> Fault | None:
        """The latest fault for a path, one of its times used up."""
        with self._lock:
            for planned in reversed(self._faults):
                if planned.times != 0 and fnmatchcase(path, planned.pattern):
                    planned.times = planned.times and planned.times - 1
                    return planned.fault
        return None

    def _play(self, fault: Fault, found: Request, request: Exchange) -> Answer | None:
        def write(data: bytes) -> None:
            if found.status == 0 and data.startswith(b"HTTP/1.1 "):
                found.status = int(data[9:12])
            request.wfile.write(data)
            found.sent_bytes += len(data)

        honest = functools.partial(self.answer, found.path, found.headers)
        return fault.play(Wire(request.path, honest, write, request.connection, self.stopping))

    @property
    def root(self) -> str:
        return f"http://{self.host}{self.prefix}"

    @property
    def url(self) -> str:
        return f"{self.root}/simple/"

    @property
    def url_with_credentials(self) -> str:
        user, password = self.credentials or ("", "")
        return self.url.replace("://", f"://{user}:{password}@") if user else self.url

    def file_url(self, filename: str) -> str:
        """The address of a file that the index holds; KeyError for one that it does not."""
        return self.root + pages.file_path(self._file(filename))

    def file_path(self, filename: str) -> str:
        """The path to give to `fail` or `requests_for`."""
        return unquote(pages.file_path(self._file(filename)))

    def page_path(self, name: str) -> str:
        return f"/simple/{normalized(name)}/"

    def add(self, *files: File) -> None:
        """Publish more files; pages show them from now on."""
        held = [file for project in self._projects.values() for file in project]
        self._projects = by_name([*held, *files])

    def files_of(self, name: str) -> tuple[File, ...]:
        return self._projects.get(normalized(name), ())

    def remove(self, name: str) -> None:
        self._projects = {key: value for key, value in self._projects.items() if key != normalized(name)}

    def fail(self, pattern: str, fault: Fault, times: int | None = None) -> None:
        """Misbehave on paths that match (`fnmatch`), for so many requests or for good; the latest fault wins."""
        with self._lock:
            self._faults.append(_Planned(pattern, fault, times))

    def heal(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    def forget(self) -> None:
        """Start counting anew."""
        with self._lock:
            self._requests.clear()

    def requests_for(self, pattern: str) -> list[Request]:
        return [request for request in self.requests if fnmatchcase(request.path, pattern)]

    def sent_bytes(self, pattern: str = "*") -> int:
        return sum(request.sent_bytes for request in self.requests_for(pattern))

    def fetched_twice(self) -> list[str]:
        """Paths of which the same content went out more than once: not 304s, errors, HEADs or other ranges."""
        seen = Counter(
            (request.path, request.range)
            for request in self.requests
            if request.method == "GET" and request.status in (200, 206)
        )
        return sorted({path for (path, _), count in seen.items() if count > 1})

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        """What an index without faults says to a GET. path: unquoted; headers: keys in lower case."""
        if not self._is_allowed(headers):
            return Answer(401, b"credentials needed\n", {"WWW-Authenticate": 'Basic realm="index"'})
        if path in ("/simple", "/simple/"):
            kind, body = pages.root_page(self._projects, self.dialect, headers.get("accept", ""))
            return self._page(kind, body, headers)
        if found := re.fullmatch(r"/simple/([^/]+)(/?)", path):
            return self._project(found[1], found[2], headers)
        if path == "/links.html":
            kind, body = pages.links_page([file for files in self._projects.values() for file in files])
            return self._page(kind, body, headers)
        if found := re.fullmatch(r"/files/([^/]+)/([^/]+)", path):
            return self._download(found[1], found[2], headers)
        return Answer(404, b"no such page\n")

    def _project(self, name: str, slash: str, headers: Mapping[str, str]) -> Answer:
        if name != normalized(name) or not slash:
            return Answer(301, b"", {"Location": self.page_path(name)})
        if name not in self._projects:
            return Answer(404, b"no such project\n")
        accept = headers.get("accept", "")
        kind, body = pages.project_page(name, self._projects[name], self.dialect, accept, self.root)
        return self._page(kind, body, headers)

    def _page(self, kind: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        answer = self._tagged(Answer(200, body, {"Content-Type": kind, "Vary": "Accept, Accept-Encoding"}), headers)
        asked = "gzip" in headers.get("accept-encoding", "")
        if answer.status == 200 and asked and self.dialect.compression is Compression.GZIP:
            more = {"Content-Encoding": "gzip"}
            return replace(answer, body=gzip.compress(body, mtime=0), headers={**answer.headers, **more})
        return answer

    def _download(self, name: str, filename: str, headers: Mapping[str, str]) -> Answer:
        file = next((held for held in self._projects.get(name, ()) if held.filename == filename), None)
        if file is not None:
            kind = {"Content-Type": "application/octet-stream"}
            return _ranged(self._tagged(Answer(200, file.artifact.data, kind), headers), headers, self.dialect.ranges)
        stem = filename.removesuffix(".metadata")
        file = next((held for held in self._projects.get(name, ()) if held.filename == stem), None)
        served = self.dialect.metadata not in (MetadataFiles.NONE, MetadataFiles.MISSING)
        if file is None or filename == stem or not file.artifact.is_wheel or not served:
            return Answer(404, b"no such file\n")
        return self._tagged(Answer(200, file.artifact.metadata, {"Content-Type": "text/plain"}), headers)

    def _tagged(self, answer: Answer, headers: Mapping[str, str]) -> Answer:
        if self.dialect.caching is Caching.NONE:
            return answer
        tag = f'"{hashlib.sha256(answer.body).hexdigest()[:16]}"'
        if headers.get("if-none-match") == tag:
            return Answer(304, b"", {"ETag": tag})
        return replace(answer, headers={**answer.headers, "ETag": tag})

    def _is_allowed(self, headers: Mapping[str, str]) -> bool:
        if self.credentials is None:
            return True
        return headers.get("authorization") == f"Basic {basic(*self.credentials)}"

    def _file(self, filename: str) -> File:
        for files in self._projects.values():
            for file in files:
                if file.filename == filename:
                    return file
        raise KeyError(filename)


def _ranged(answer: Answer, headers: Mapping[str, str], ranges: Ranges) -> Answer:
    """Apply one `Range: bytes=` (RFC 9110 section 14): first-last, first-, or -suffix."""
    total = len(answer.body)
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
    if answer.status != 200 or ranges is Ranges.IGNORED:
        return answer
    answer = replace(answer, headers={**answer.headers, "Accept-Ranges": "bytes"})
    if not wanted or wanted[0] == "bytes=-":
        return answer
    first, last = wanted[1], wanted[2]
    if not first and ranges is Ranges.NO_SUFFIX_501:
        return Answer(501, b"suffix ranges are not supported\n")
    start = int(first) if first else max(0, total - int(last))
    end = min(int(last), total - 1) if first and last else total - 1
    if start > end or (not first and ranges is Ranges.NO_SUFFIX_416):
        return Answer(416, b"", {"Content-Range": f"bytes */{total}"})
    more = {"Content-Range": f"bytes {start}-{end}/{total}"}
    return Answer(206, answer.body[start : end + 1], {**answer.headers, **more})


def main() -> int:
    """Serve everything in `ecosystem` until interrupted."""
    from tests.support.builders import ecosystem

    with IndexServer(ecosystem.everything()) as index:
        sys.stdout.write(f"{index.url}\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
