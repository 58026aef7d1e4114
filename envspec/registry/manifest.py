"""What a registry answers for an image: an index, or one platform's manifest. Read here, fetched elsewhere.

Source: OCI image specification 1.1, `image-index.md` and `manifest.md`; Docker's manifest schema 2.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from envspec.errors import NetworkError
from envspec.model import Platform
from envspec.registry.reference import is_digest

OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
#: Everything that can be read, asked for at once: a registry that is not told of a type may convert to an older one,
#: and the digest is then another.
ACCEPT: Final = ", ".join((OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST))
#: What the OCI distribution specification asks registries to take at least, and clients not to exceed.
MANIFEST_BYTES: Final = 4 * 1024 * 1024


class Kind(Enum):
    """`PinnedDigest.kind` in words of the registry."""

    INDEX = "index"
    MANIFEST = "manifest"


_KINDS: Final[Mapping[str, Kind]] = {
    OCI_INDEX: Kind.INDEX,
    DOCKER_LIST: Kind.INDEX,
    OCI_MANIFEST: Kind.MANIFEST,
    DOCKER_MANIFEST: Kind.MANIFEST,
}
#: (os, architecture) in OCI's words of the platforms that have container images.
OCI_PLATFORMS: Final[Mapping[Platform, tuple[str, str]]] = {
    Platform.LINUX_64: ("linux", "amd64"),
    Platform.LINUX_AARCH64: ("linux", "arm64"),
}


class BadManifest(NetworkError):
    """The registry's answer is no manifest, or none that can be used."""


@dataclass(frozen=True, slots=True)
class Child:
    """One entry of an index. os and architecture are empty where the index doesn't say."""

    digest: str
    media_type: str
    size_bytes: int
    os: str
    architecture: str
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as its registry holds it.

    digest: of `body`, computed. children: of an index. config: digest of a single manifest's config, else empty.
    """

    digest: str
    media_type: str
    kind: Kind
    body: bytes = field(repr=False)
    children: tuple[Child, ...] = ()
    config: str = ""

    def child(self, platform: Platform) -> Child | None:
        """The index's entry for a platform."""
        wanted = OCI_PLATFORMS.get(platform)
        return next((child for child in self.children if (child.os, child.architecture) == wanted), None)

    @property
    def platforms(self) -> tuple[str, ...]:
        """`os/architecture` of each entry; what has no platform (attestations) is left out."""
        return tuple(
            "/".join(filter(None, (child.os, child.architecture, child.variant)))
            for child in self.children
            if child.os not in {"", "unknown"}
        )


def digest_of(body: bytes, algorithm: str = "sha256") -> str:
    """`sha256:` and the hash of `body`."""
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


def read_manifest(body: bytes, content_type: str, *, where: str, algorithm: str = "sha256") -> Manifest:
    """Read a registry's answer.

    content_type: the answer's header; the document's own `mediaType` goes before it. where: for messages.

    Raises:
        BadManifest: not JSON, not an image, of a form that is too old, or one that says two things at once.
    """
    document = read_json(body, content_type, where=where)
    stated = document.get("mediaType") or content_type.partition(";")[0].strip().lower()
    kind = _KINDS.get(str(stated)) or _kind_by_shape(document)
    if document.get("schemaVersion") == 1 or str(stated).startswith("application/vnd.docker.distribution.manifest.v1"):
        raise BadManifest(
            f"{where}: a manifest of Docker's schema 1, which has no digests of its layers' content",
            hint="push the image again with a current docker, or take another tag",
        )
    if kind is None:
        raise BadManifest(
            f"{where}: {stated!r} is not a container image", hint="is it a chart or an artifact of another kind?"
        )
    if "manifests" in document and "layers" in document:
        # The same bytes would be an index to one reader and an image to another (CVE-2021-41190).
        raise BadManifest(f"{where}: a manifest and an index in one document", hint="don't use this image")
    return Manifest(
        digest=digest_of(body, algorithm),
        media_type=str(stated),
        kind=kind,
        body=body,
        children=_children(document, where) if kind is Kind.INDEX else (),
        config=_config(document, where) if kind is Kind.MANIFEST else "",
    )


def read_json(body: bytes, content_type: str, *, where: str) -> Mapping[str, object]:
    """A JSON object, or BadManifest in words that help: a login page is the usual cause."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    kind = content_type.partition(";")[0].strip() or "something"
    raise BadManifest(
        f"{where}: the registry answers with {kind} that is not a JSON object",
        hint="is there a proxy with a login page in between, or a web server in the registry's place?",
    )


def _kind_by_shape(document: Mapping[str, object]) -> Kind | None:
    """`mediaType` is optional in OCI documents and some servers send application/json."""
    if "manifests" in document:
        return Kind.INDEX
    return Kind.MANIFEST if "config" in document and "layers" in document else None


def _children(document: Mapping[str, object], where: str) -> tuple[Child, ...]:
    rows = document.get("manifests")
    if not isinstance(rows, list):
        raise BadManifest(f"{where}: an index without a list of manifests", hint="the registry's copy is damaged")
    return tuple(_child(row, where) for row in rows)


def _child(row: object, where: str) -> Child:
    if not isinstance(row, dict) or not is_digest(row.get("digest")) or not isinstance(row.get("size"), int):
        raise BadManifest(
            f"{where}: an entry of the index has no digest or size", hint="the registry's copy is damaged"
        )
    platform = row.get("platform")
    platform = platform if isinstance(platform, dict) else {}
    return Child(
        digest=row["digest"],
        media_type=str(row.get("mediaType", "")),
        size_bytes=row["size"],
        os=str(platform.get("os", "")),
        architecture=str(platform.get("architecture", "")),
        variant=str(platform.get("variant", "")),
    )


def _config(document: Mapping[str, object], where: str) -> str:
    config = document.get("config")
    digest = config.get("digest") if isinstance(config, dict) else None
    if not isinstance(digest, str) or not is_digest(digest):
        raise BadManifest(f"{where}: a manifest whose config has no digest", hint="the registry's copy is damaged")
    return digest
