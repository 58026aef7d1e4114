"""Descriptors, manifests, indexes and blobs.

Source: OCI image specification 1.1, `image-index.md` and `manifest.md`; Docker's manifest schema 2.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NoReturn, Protocol, TypeGuard

from envspec.errors import NetworkError
from envspec.models import Platform
from envspec.registry.errors import shortened
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


#: Of an index or an image: docker takes 127 layers, and there are not as many platforms.
MAX_ENTRIES: Final = 1000
_LARGEST: Final = 1 << 40


class ManifestKind(Enum):
    """`PinnedDigest.kind` in words of the registry."""

    INDEX = "index"
    MANIFEST = "manifest"


_KINDS: Final[Mapping[str, ManifestKind]] = {
    OCI_INDEX: ManifestKind.INDEX,
    DOCKER_LIST: ManifestKind.INDEX,
    OCI_MANIFEST: ManifestKind.MANIFEST,
    DOCKER_MANIFEST: ManifestKind.MANIFEST,
}
#: (os, architecture) in OCI's words of the platforms that have container images.
OCI_PLATFORMS: Final[Mapping[Platform, tuple[str, str]]] = {
    Platform.LINUX_64: ("linux", "amd64"),
    Platform.LINUX_AARCH64: ("linux", "arm64"),
}


class BadManifest(NetworkError):
    """The registry's answer is no manifest, or none that can be used."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
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

    digest: of `body`, computed. children: of an index. config: digest of a single manifest's config, else empty, and
    how many bytes the manifest says that it has.
    """

    digest: str
    media_type: str
    kind: ManifestKind
    body: bytes = field(repr=False)
    children: tuple[IndexEntry, ...] = ()
    config: str = ""
    config_bytes: int = 0

    def check_is_single(self, where: str) -> None:
        """Refuse an index.

        Raises:
            BadManifest: it is one, inside of another one or where one platform's image is meant.
        """
        if self.kind is not ManifestKind.MANIFEST:
            raise BadManifest(
                f"{where}: an index, where the image of one platform is meant",
                hint="indexes inside of indexes are not followed: name an image of one platform, or a flat index",
            )

    def child(self, platform: Platform) -> IndexEntry | None:
        """The index's entry for a platform."""
        wanted = OCI_PLATFORMS.get(platform)
        return next((child for child in self.children if (child.os, child.architecture) == wanted), None)

    @property
    def platforms(self) -> tuple[str, ...]:
        """`os/architecture` of each entry, each once; what has no platform (attestations) is left out."""
        names = (
            "/".join(filter(None, (child.os, child.architecture, child.variant)))
            for child in self.children
            if child.os not in {"", "unknown"}
        )
        return tuple(dict.fromkeys(names))

    @property
    def platforms_in_words(self) -> str:
        """`platforms`, for messages; empty where there are none."""
        return shortened(", ".join(self.platforms))


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
    served = content_type.partition(";")[0].strip().lower()
    stated = str(document.get("mediaType") or served)
    kind = _KINDS.get(stated) or _kind_by_shape(document)
    if document.get("schemaVersion") == 1 or stated.startswith("application/vnd.docker.distribution.manifest.v1"):
        raise BadManifest(
            f"{where}: a manifest of Docker's schema 1, which has no digests of its layers' content",
            hint="push the image again with a current docker, or take another tag",
        )
    if kind is None:
        raise BadManifest(
            f"{where}: {shortened(stated)!r} is not a container image",
            hint="is it a chart or an artifact of another kind?",
        )
    if _KINDS.get(served, kind) is not kind or ("manifests" in document and "layers" in document):
        # The same bytes would be an index to one reader and an image to another (CVE-2021-41190).
        raise BadManifest(f"{where}: a manifest and an index in one document", hint="don't use this image")
    config, config_bytes = _config(document, where) if kind is ManifestKind.MANIFEST else ("", 0)
    return Manifest(
        digest=digest_of(body, algorithm),
        media_type=stated,
        kind=kind,
        body=body,
        children=_children(document, where) if kind is ManifestKind.INDEX else (),
        config=config,
        config_bytes=config_bytes,
    )


def read_json(body: bytes, content_type: str, *, where: str) -> Mapping[str, object]:
    """A JSON object, or BadManifest in words that help: a login page is the usual cause.

    One that means the same to every reader: in UTF-8, each key once, no numbers and characters that JSON doesn't have.
    """
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
        if b"\\u" in body:
            json.dumps(document, ensure_ascii=False).encode("utf-8")  # half a pair of surrogates is no character
    except _Ambiguous as fault:
        raise BadManifest(f"{where}: the key {shortened(fault)!r} stands in it twice", hint="don't use it") from None
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    kind = shortened(content_type.partition(";")[0].strip()) or "something"
    raise BadManifest(
        f"{where}: the registry answers with {kind} that is not a JSON object",
        hint="is there a proxy with a login page in between, or a web server in the registry's place?",
    )


class _Ambiguous(Exception):
    """A JSON object with a key twice: which of them counts differs from reader to reader."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise _Ambiguous(name)
        found[name] = value
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(word)


def _kind_by_shape(document: Mapping[str, object]) -> ManifestKind | None:
    """`mediaType` is optional in OCI documents and some servers send application/json."""
    if "manifests" in document:
        return ManifestKind.INDEX
    return ManifestKind.MANIFEST if "config" in document and "layers" in document else None


def _children(document: Mapping[str, object], where: str) -> tuple[IndexEntry, ...]:
    rows = document.get("manifests")
    if not isinstance(rows, list):
        raise BadManifest(f"{where}: an index without a list of manifests", hint="the registry's copy is damaged")
    if len(rows) > MAX_ENTRIES:
        raise BadManifest(
            f"{where}: an index of {len(rows)} manifests, and envspec reads {MAX_ENTRIES} at most",
            hint="name one platform's image by its digest",
        )
    return tuple(_child(row, where) for row in rows)


def _child(row: object, where: str) -> IndexEntry:
    if not isinstance(row, dict) or not is_digest(row.get("digest")) or not is_size(row.get("size")):
        raise BadManifest(
            f"{where}: an entry of the index has no digest or size", hint="the registry's copy is damaged"
        )
    platform = row.get("platform")
    platform = platform if isinstance(platform, dict) else {}
    return IndexEntry(
        digest=row["digest"],
        media_type=str(row.get("mediaType", "")),
        size_bytes=row["size"],
        os=_word(platform.get("os")),
        architecture=_word(platform.get("architecture")),
        variant=_word(platform.get("variant")),
    )


def is_size(value: object) -> TypeGuard[int]:
    """Whether `value` may be a blob's size in bytes: a registry of today takes no blob of a hundredth of the limit."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _word(value: object) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value) else ""


def _config(document: Mapping[str, object], where: str) -> tuple[str, int]:
    config = document.get("config")
    digest, size = (config.get("digest"), config.get("size")) if isinstance(config, dict) else (None, None)
    if not isinstance(digest, str) or not is_digest(digest) or not is_size(size):
        raise BadManifest(
            f"{where}: a manifest whose config has no digest or size", hint="the registry's copy is damaged"
        )
    return digest, size


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob by its digest, as a manifest names it."""

    media_type: str
    digest: str
    size_bytes: int


class Blob(Protocol):
    """Bytes that can be read more than once, from any place on: an upload that broke off goes on from there."""

    @property
    def descriptor(self) -> Descriptor: ...

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Its bytes from `start` on, in pieces of at most a few MiB."""
        ...
