"""A registry on 127.0.0.1 that takes pushes, in memory, and misbehaves where a test says so.

    async with PushRegistry(fault=lambda ask: Say(429) if ask.method == "PATCH" else None) as held:
        ...

It follows the distribution API and is strict about it: chunks out of place, wrong digests, and manifests whose blobs
are not there are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from tests.support.loopback import Loopback, head_of, read_head, reset

_STEP = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's head. number: how many there were with this method before it. headers: names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    number: int

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    @property
    def size(self) -> int:
        return int(self.headers.get("content-length", "0"))


@dataclass(frozen=True, slots=True)
class Say:
    """An answer. With `at_once` it goes out before the body is read, and the connection ends; with `lingers` the body
    is then read to its end all the same, as nginx does it."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    at_once: bool = False
    lingers: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """Take `bytes` of the body (into the upload) and reset the connection, or give as many of the answer."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Mute:
    """Do what is asked, and close without an answer."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Read nothing, say nothing."""

    seconds: float


Fault = Say | Cut | Mute | Sleep


@dataclass
class PushRegistry(Loopback):
    """fault: decides about every request after its head. takes_chunks, keeps_parts, knows_ranges: whether it does.

    location: what is put before the path of an upload, empty for relative ones. token: whether it wants tokens, each
    good for that many requests. mounts: whether it grants mounts. tags, blobs: what it has, by repository.
    """

    fault: Callable[[Ask], Fault | None] = lambda _ask: None
    takes_chunks: bool = True
    keeps_parts: bool = True
    knows_ranges: bool = True
    mounts: bool = True
    location: str = ""
    least_chunk: int | None = None
    most_body: int | None = None
    token: int | None = None
    verifies: bool = True
    blobs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, dict[str, tuple[str, bytes]]] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    asked: list[Ask] = field(default_factory=list)
    scopes: list[list[str]] = field(default_factory=list)
    taken_bytes: int = 0
    _tokens: dict[str, tuple[set[str], int]] = field(default_factory=dict)

    def methods(self) -> list[str]:
        return [ask.method for ask in self.asked if ask.path != "/token"]

    def hold(self, repository: str, *bodies: bytes) -> None:
        for body in bodies:
            self.blobs.setdefault(repository, {})[digest(body)] = body

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while ask := await self._head(reader):
                fault = self.fault(ask)
                if isinstance(fault, Sleep):
                    await asyncio.sleep(fault.seconds)
                    return
                if isinstance(fault, Say) and (fault.at_once or fault.lingers):
                    await self._say(writer, ask, fault)
                    if fault.lingers:
                        await self._body(reader, ask.size)
                    return
                limit = fault.bytes if isinstance(fault, Cut) else ask.size
                body = await self._body(reader, min(limit, ask.size))
                if isinstance(fault, Cut) and ask.size:
                    upload = self.uploads.get(ask.path.rpartition("/")[2])
                    if self.keeps_parts and upload is not None:
                        upload += body
                    reset(writer)
                    return
                answer = fault if isinstance(fault, Say) else self._answer(ask, body)
                if isinstance(fault, Mute):
                    return
                await self._say(writer, ask, answer, fault.bytes if isinstance(fault, Cut) else None)
                if isinstance(fault, Cut):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client went
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> Ask | None:
        head = await read_head(reader)
        if head is None:
            return None
        ask = Ask(*head, sum(one.method == head[0] for one in self.asked))
        self.asked.append(ask)
        return ask

    async def _body(self, reader: asyncio.StreamReader, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = await reader.readexactly(min(_STEP, size - len(parts)))
            self.taken_bytes += len(part)
            parts += part
        return bytes(parts)

    async def _say(self, writer: asyncio.StreamWriter, ask: Ask, say: Say, most: int | None = None) -> None:
        writer.write(head_of(say.status, {"Content-Length": str(len(say.body)), **say.headers}))
        if ask.method != "HEAD":
            writer.write(say.body[:most])
        await writer.drain()

    def _answer(self, ask: Ask, body: bytes) -> Say:
        if ask.path == "/token":
            return self._give_token(ask)
        if ask.path == "/v2/":
            return Say(200)
        found = re.fullmatch(r"/v2/(?P<repository>.+)/(?P<kind>blobs|manifests)/(?P<rest>.*)", ask.path)
        if found is None:
            return _errors(404, "NAME_UNKNOWN")
        repository, rest = found["repository"], found["rest"]
        if (challenge := self._challenge(ask, repository)) is not None:
            return Say(401, {"WWW-Authenticate": challenge})
        if self.most_body is not None and len(body) > self.most_body:
            return Say(413)
        if found["kind"] == "manifests":
            return self._manifests(ask, repository, rest, body)
        if not rest.startswith("uploads/"):
            return self._blob(ask, repository, rest)
        return self._uploads(ask, repository, rest.removeprefix("uploads/"), body)

    def _blob(self, ask: Ask, repository: str, name: str) -> Say:
        data = self.blobs.get(repository, {}).get(name)
        if data is None:
            return _errors(404, "BLOB_UNKNOWN")
        start = int((re.fullmatch(r"bytes=(\d+)-", ask.headers.get("range", "")) or ["", "0"])[1])
        if start and self.knows_ranges:
            if start >= len(data):
                return Say(416)
            place = f"bytes {start}-{len(data) - 1}/{len(data)}"
            return Say(206, {"Content-Range": place}, data[start:])
        return Say(200, {"Docker-Content-Digest": name}, data)

    def _uploads(self, ask: Ask, repository: str, name: str, body: bytes) -> Say:
        if ask.method == "POST":
            return self._begin(ask, repository)
        upload = self.uploads.get(name)
        if upload is None:
            return _errors(404, "BLOB_UPLOAD_UNKNOWN")
        place = {"Location": f"{self.location}{ask.path}?state={len(upload) + len(body)}"}
        if ask.method == "GET":
            return Say(204, place | {"Range": f"0-{max(0, len(upload) - 1)}"})
        if ask.method == "DELETE":
            del self.uploads[name]
            return Say(204)
        if ask.method == "PATCH" and not self.takes_chunks:
            return _errors(405, "UNSUPPORTED")
        if ask.method == "PATCH" and not ask.headers.get("content-range", f"{len(upload)}-").startswith(
            f"{len(upload)}-"
        ):
            return Say(416, place | {"Range": f"0-{max(0, len(upload) - 1)}"})
        upload += body
        if ask.method == "PATCH":
            return Say(202, place | {"Range": f"0-{len(upload) - 1}"})
        del self.uploads[name]
        wanted = ask.query["digest"]
        if self.verifies and digest(bytes(upload)) != wanted:
            return _errors(400, "DIGEST_INVALID")
        self.blobs.setdefault(repository, {})[wanted] = bytes(upload)
        return Say(201, {"Location": f"/v2/{repository}/blobs/{wanted}", "Docker-Content-Digest": wanted})

    def _begin(self, ask: Ask, repository: str) -> Say:
        wanted = ask.query.get("mount", "")
        if self.mounts and (data := self.blobs.get(ask.query.get("from", ""), {}).get(wanted)) is not None:
            self.blobs.setdefault(repository, {})[wanted] = data
            return Say(201, {"Location": f"/v2/{repository}/blobs/{wanted}", "Docker-Content-Digest": wanted})
        name = f"u{len(self.asked)}"
        self.uploads[name] = bytearray()
        least = {} if self.least_chunk is None else {"OCI-Chunk-Min-Length": str(self.least_chunk)}
        return Say(202, {"Location": f"{self.location}/v2/{repository}/blobs/uploads/{name}"} | least)

    def _manifests(self, ask: Ask, repository: str, name: str, body: bytes) -> Say:
        held = self.tags.setdefault(repository, {})
        if ask.method == "PUT":
            document: dict[str, Any] = json.loads(body)
            blobs = [document["config"], *document["layers"]] if "config" in document else []
            missing = [row for row in blobs if row["digest"] not in self.blobs.get(repository, {})]
            missing = [row for row in missing if "urls" not in row]
            missing += [row for row in document.get("manifests", []) if row["digest"] not in held]
            if missing:
                return _errors(400, "MANIFEST_BLOB_UNKNOWN")
            held[name] = held[digest(body)] = (ask.headers["content-type"], body)
            return Say(201, {"Docker-Content-Digest": digest(body)})
        if name not in held:
            return _errors(404, "MANIFEST_UNKNOWN")
        kind, data = held[name]
        return Say(200, {"Content-Type": kind, "Docker-Content-Digest": digest(data)}, data)

    def _challenge(self, ask: Ask, repository: str) -> str | None:
        if self.token is None:
            return None
        needed = {f"{repository}:pull"} | ({f"{repository}:push"} if ask.method not in {"GET", "HEAD"} else set())
        needed |= {f"{ask.query['from']}:pull"} if "from" in ask.query else set()
        given = ask.headers.get("authorization", "").removeprefix("Bearer ")
        allowed, uses = self._tokens.get(given, (set(), 0))
        if uses and needed <= allowed:
            self._tokens[given] = (allowed, uses - 1)
            return None
        actions = "pull" if ask.method in {"GET", "HEAD"} else "pull,push"
        return f'Bearer realm="http://{self.host}/token",service="test",scope="repository:{repository}:{actions}"'

    def _give_token(self, ask: Ask) -> Say:
        scopes = parse_qs(urlsplit(ask.target).query)["scope"]
        self.scopes.append(scopes)
        allowed = set()
        for scope in scopes:
            _, repository, actions = scope.split(":")
            allowed |= {f"{repository}:{action}" for action in actions.split(",")}
        assert self.token is not None
        name = f"t{len(self.scopes)}"
        self._tokens[name] = (allowed, self.token)
        return Say(200, {}, json.dumps({"token": name}).encode())


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _errors(status: int, code: str) -> Say:
    return Say(status, {}, json.dumps({"errors": [{"code": code, "message": code.lower()}]}).encode())
