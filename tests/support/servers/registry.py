"""A registry on 127.0.0.1, in memory, and the documents that it serves; it misbehaves where a test says so.

    async with PushRegistry(fault=lambda ask: Say(429) if ask.method == "PATCH" else None) as held:
        ...

It follows the distribution API and is strict about it: chunks out of place, wrong digests, and manifests whose blobs
are missing are rejected.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from envspec.structs import replace
from tests.support.servers.loopback import Answer, Asked, Loopback, basic, head_of, read_head, reply, reset

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def encode(document: object) -> bytes:
    return json.dumps(document, indent=1).encode()


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes under their digest."""

    media_type: str
    body: bytes

    @property
    def digest(self) -> str:
        return digest(self.body)

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.body)}


def config(os: str = "linux", architecture: str = "amd64") -> Blob:
    document = {"os": os, "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": []}, "config": {}}
    return Blob(OCI_CONFIG, encode(document))


def manifest(of: Blob, media_type: str = OCI_MANIFEST) -> Blob:
    document = {"schemaVersion": 2, "mediaType": media_type, "config": of.descriptor, "layers": []}
    return Blob(media_type, encode(document))


def index(children: Mapping[str, Blob], media_type: str = OCI_INDEX) -> Blob:
    """children: `linux/amd64` to its manifest."""
    rows = []
    for name, child in children.items():
        os, architecture = name.split("/")
        rows.append(child.descriptor | {"platform": {"os": os, "architecture": architecture}})
    return Blob(media_type, encode({"schemaVersion": 2, "mediaType": media_type, "manifests": rows}))


_STEP = 64 * 1024


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
    """Do what is requested, and close without an answer."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Read nothing, say nothing."""

    seconds: float


Fault = Say | Cut | Mute | Sleep


@dataclass
class PushRegistry(Loopback):
    """fault: decides about every request after its head. takes_chunks, keeps_parts, knows_ranges: whether it does.

    location: what is put before the path of an upload, empty for relative ones. mounts: whether it grants mounts.
    basic: user and password that it requires. token: for how many requests each of its tokens is good, None if it
    requires none; its token server requires `token_login`, or the identity token `refresh`. tags, blobs: by repository.
    """

    fault: Callable[[Asked], Fault | None] = lambda _ask: None
    takes_chunks: bool = True
    keeps_parts: bool = True
    knows_ranges: bool = True
    mounts: bool = True
    location: str = ""
    least_chunk: int | None = None
    most_body: int | None = None
    basic: tuple[str, str] | None = None
    token: int | None = None
    token_login: tuple[str, str] | None = None
    refresh: str | None = None
    verifies: bool = True
    blobs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, dict[str, tuple[str, bytes]]] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    scopes: list[list[str]] = field(default_factory=list)
    taken_bytes: int = 0
    _tokens: dict[str, tuple[set[str], int]] = field(default_factory=dict)

    def methods(self) -> list[str]:
        return [ask.method for ask in self.asked if ask.path != "/token"]

    def hold(self, repository: str, *bodies: bytes) -> None:
        for body in bodies:
            self.blobs.setdefault(repository, {})[digest(body)] = body

    def add(self, name: str, *blobs: Blob) -> Blob:
        """Hold configs and manifests, the last one under the tag of `name` too."""
        repository, _, tag = name.partition(":")
        held = self.tags.setdefault(repository, {})
        for blob in blobs:
            if blob.media_type == OCI_CONFIG:
                self.hold(repository, blob.body)
            else:
                held[blob.digest] = held[tag] = (blob.media_type, blob.body)
        return blobs[-1]

    def answer(self, asked: Asked) -> Answer:
        """The registry's answer, for a `RawServer` that gives it."""
        say = self._answer(asked, asked.body)
        return reply(say.status, say.body, say.headers)

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

    async def _head(self, reader: asyncio.StreamReader) -> Asked | None:
        head = await read_head(reader)
        if head is None:
            return None
        ask = Asked(*head, number=sum(one.method == head[0] for one in self.asked))
        self.asked.append(ask)
        return ask

    async def _body(self, reader: asyncio.StreamReader, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = await reader.readexactly(min(_STEP, size - len(parts)))
            self.taken_bytes += len(part)
            parts += part
        return bytes(parts)

    async def _say(self, writer: asyncio.StreamWriter, ask: Asked, say: Say, most: int | None = None) -> None:
        writer.write(head_of(say.status, {"Content-Length": str(len(say.body)), **say.headers}))
        if ask.method != "HEAD":
            writer.write(say.body[:most])
        await writer.drain()

    def _answer(self, ask: Asked, body: bytes) -> Say:
        if ask.path == "/token":
            return self._give_token(ask, body)
        if ask.path == "/v2/":
            return Say(200)
        found = re.fullmatch(r"/v2/(?P<repository>.+)/(?P<kind>blobs|manifests)/(?P<rest>.*)", ask.path)
        if found is None:
            return _errors(404, "NAME_UNKNOWN")
        repository, rest = found["repository"], found["rest"]
        if (challenge := self._challenge(ask, repository)) is not None:
            return replace(_errors(401, "UNAUTHORIZED"), headers={"WWW-Authenticate": challenge})
        if self.most_body is not None and len(body) > self.most_body:
            return Say(413)
        if found["kind"] == "manifests":
            return self._manifests(ask, repository, rest, body)
        if not rest.startswith("uploads/"):
            return self._blob(ask, repository, rest)
        return self._uploads(ask, repository, rest.removeprefix("uploads/"), body)

    def _blob(self, ask: Asked, repository: str, name: str) -> Say:
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

    def _uploads(self, ask: Asked, repository: str, name: str, body: bytes) -> Say:
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

    def _begin(self, ask: Asked, repository: str) -> Say:
        wanted = ask.query.get("mount", "")
        if self.mounts and (data := self.blobs.get(ask.query.get("from", ""), {}).get(wanted)) is not None:
            self.blobs.setdefault(repository, {})[wanted] = data
            return Say(201, {"Location": f"/v2/{repository}/blobs/{wanted}", "Docker-Content-Digest": wanted})
        name = f"u{len(self.asked)}"
        self.uploads[name] = bytearray()
        least = {} if self.least_chunk is None else {"OCI-Chunk-Min-Length": str(self.least_chunk)}
        return Say(202, {"Location": f"{self.location}/v2/{repository}/blobs/uploads/{name}"} | least)

    def _manifests(self, ask: Asked, repository: str, name: str, body: bytes) -> Say:
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
            return _errors(404, "MANIFEST_UNKNOWN" if held else "NAME_UNKNOWN")
        kind, data = held[name]
        return Say(200, {"Content-Type": kind, "Docker-Content-Digest": digest(data)}, data)

    def _challenge(self, ask: Asked, repository: str) -> str | None:
        if self.basic and ask.headers.get("authorization") != f"Basic {basic(*self.basic)}":
            return 'Basic realm="test registry"'
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

    def _give_token(self, ask: Asked, body: bytes) -> Say:
        form = parse_qs(body.decode() if ask.method == "POST" else urlsplit(ask.target).query)
        login = None if self.token_login is None else f"Basic {basic(*self.token_login)}"
        if ask.method == "POST":
            allowed = form["refresh_token"] == [self.refresh] and form["grant_type"] == ["refresh_token"]
        else:
            allowed = login in (None, ask.headers.get("authorization"))
        if not allowed or form["service"] != ["test"]:
            return _errors(401, "UNAUTHORIZED", "incorrect username or password")
        scopes = form["scope"]
        self.scopes.append(scopes)
        granted = set()
        for scope in scopes:
            _, repository, actions = scope.split(":")
            granted |= {f"{repository}:{action}" for action in actions.split(",")}
        assert self.token is not None
        name = f"t{len(self.scopes)}"
        self._tokens[name] = (granted, self.token)
        key = "access_token" if ask.method == "POST" else "token"
        return Say(200, {}, json.dumps({key: name, "expires_in": 60}).encode())


def _errors(status: int, code: str, message: str = "") -> Say:
    return Say(status, {}, json.dumps({"errors": [{"code": code, "message": message or code.lower()}]}).encode())
