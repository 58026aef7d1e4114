"""A registry's content, its logins and its token server, for `RawServer`; each part can be made to misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.raw_server import Answer, Asked, reply

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


@dataclass
class FakeRegistry:
    """The distribution API's reading half.

    tags: `repository:tag` to a manifest. basic: user and password that it wants. token: user and password that its
    token server wants, `("", "")` for tokens to anybody. refresh: identity token that the token server knows.
    """

    tags: dict[str, Blob] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)
    basic: tuple[str, str] | None = None
    token: tuple[str, str] | None = None
    refresh: str | None = None
    url: str = ""

    def add(self, name: str, *blobs: Blob) -> Blob:
        """Tag the last of `blobs` and hold them all."""
        self.tags[name] = blobs[-1]
        self.blobs |= {blob.digest: blob for blob in blobs}
        return blobs[-1]

    def answer(self, asked: Asked) -> Answer:
        if asked.path == "/token":
            return self._give_token(asked)
        repository, _, rest = asked.path.removeprefix("/v2/").partition("/manifests/")
        if not rest:
            repository, _, rest = asked.path.removeprefix("/v2/").partition("/blobs/")
        if challenge := self._challenge(asked, repository):
            return reply(401, _errors("UNAUTHORIZED", "authentication required"), {"WWW-Authenticate": challenge})
        blob = self.blobs.get(rest) or self.tags.get(f"{repository}:{rest}")
        if blob is None:
            known = any(name.startswith(f"{repository}:") for name in self.tags)
            code = ("MANIFEST_UNKNOWN", "manifest unknown") if known else ("NAME_UNKNOWN", "repository not known")
            return reply(404, _errors(*code))
        return reply(200, blob.body, {"Content-Type": blob.media_type, "Docker-Content-Digest": blob.digest})

    def _challenge(self, asked: Asked, repository: str) -> str | None:
        given = asked.headers.get("authorization", "")
        if self.basic and given != f"Basic {_b64(*self.basic)}":
            return 'Basic realm="test registry"'
        if self.token is not None and given != f"Bearer for-{repository}":
            return f'Bearer realm="{self.url}/token",service="test",scope="repository:{repository}:pull"'
        return None

    def _give_token(self, asked: Asked) -> Answer:
        assert self.token is not None
        form = parse_qs(asked.body.decode() if asked.method == "POST" else urlsplit(asked.target).query)
        scope = form["scope"][0].split(":")
        if asked.method == "POST":
            allowed = form["refresh_token"] == [self.refresh] and form["grant_type"] == ["refresh_token"]
        else:
            allowed = self.token == ("", "") or asked.headers.get("authorization") == f"Basic {_b64(*self.token)}"
        if not allowed or form["service"] != ["test"]:
            return reply(401, _errors("UNAUTHORIZED", "incorrect username or password"))
        return reply(200, {"access_token" if asked.method == "POST" else "token": f"for-{scope[1]}", "expires_in": 60})


def _errors(code: str, message: str) -> dict[str, Any]:
    return {"errors": [{"code": code, "message": message, "detail": None}]}


def _b64(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()
