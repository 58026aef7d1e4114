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
from typing import Final, NoReturn, Protocol

from msgspec import Struct

from envspec.documents import table_of
from envspec.errors import NetworkError
from envspec.escaping import excerpt
from envspec.models import Platform
from envspec.registry.reference import is_digest

OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
#: All supported types: for a missing one, a registry may convert to an older type with another digest.
ACCEPT: Final = ", ".join((OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST))
#: The limit of the OCI distribution specification.
MANIFEST_BYTES: Final = 4 * 1024 * 1024
#: Of an index or an image: docker supports 127 layers, and there are fewer platforms.
MAX_ENTRIES: Final = 1000
#: Registries accept no hundredth of it.
_MAX_BLOB_BYTES: Final = 1 << 40
_FOREIGN: Final = ("application/vnd.docker.image.rootfs.foreign.", "application/vnd.oci.image.layer.nondistributable.")
_DAMAGED: Final = "use another image: the registry's copy is damaged"


class ManifestKind(Enum):
    INDEX = "index"
    MANIFEST = "manifest"


_KINDS: Final[Mapping[str, ManifestKind]] = {
    OCI_INDEX: ManifestKind.INDEX,
    DOCKER_LIST: ManifestKind.INDEX,
    OCI_MANIFEST: ManifestKind.MANIFEST,
    DOCKER_MANIFEST: ManifestKind.MANIFEST,
}
#: The platforms with container images, as (os, architecture) in OCI's terms.
OCI_PLATFORMS: Final[Mapping[Platform, tuple[str, str]]] = {
    Platform.LINUX_64: ("linux", "amd64"),
    Platform.LINUX_AARCH64: ("linux", "arm64"),
}


class BadManifest(NetworkError, code="bad-manifest"):
    """The registry's response is not a usable manifest."""


class Descriptor(Struct, frozen=True):
    """is_foreign: a layer with URLs of its owner, who forbids distribution by registries. Nothing is fetched from them:
    the author of a manifest could name any URL.
    """

    media_type: str
    digest: str
    size_bytes: int
    is_foreign: bool = False


class IndexEntry(Struct, frozen=True):
    """One entry of an index; os and architecture may be empty."""

    digest: str
    os: str
    architecture: str
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """algorithm: of the digest in references to it. children: of an index. config: digest of a single manifest's
    config, else empty. config_bytes: its size in the manifest.
    """

    body: bytes = field(repr=False)
    media_type: str
    kind: ManifestKind = ManifestKind.MANIFEST
    algorithm: str = "sha256"
    children: tuple[IndexEntry, ...] = ()
    config: str = ""
    config_bytes: int = 0

    @property
    def digest(self) -> str:
        return digest_of(self.body, self.algorithm)

    def check_is_single(self, where: str) -> None:
        """Raises BadManifest if it is an index."""
        if self.kind is not ManifestKind.MANIFEST:
            raise BadManifest(
                f"{where}: an index, not the image of one platform",
                hint="use an image of one platform, or an index without nested indexes",
            )

    def child(self, platform: Platform) -> IndexEntry | None:
        """The index's entry for a platform."""
        names = OCI_PLATFORMS.get(platform)
        return next((child for child in self.children if (child.os, child.architecture) == names), None)

    @property
    def platforms(self) -> tuple[str, ...]:
        """`os/architecture` of each entry, each once; entries without a platform (attestations) are skipped."""
        names: dict[str, None] = {}
        for child in self.children:
            if child.os not in {"", "unknown"}:
                names["/".join(filter(None, (child.os, child.architecture, child.variant)))] = None
        return tuple(names)

    @property
    def platforms_in_words(self) -> str:
        """`platforms`, for messages."""
        return excerpt(", ".join(self.platforms))


def digest_of(body: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


def read_manifest(body: bytes, content_type: str, *, where: str, algorithm: str = "sha256") -> Manifest:
    """Parse a registry's response.

    content_type: the header; the document's own `mediaType` has priority. where: for messages.

    Raises:
        BadManifest: not JSON, not an image, an obsolete format, or ambiguous.
    """
    document = read_json(body, content_type, where=where)
    served = content_type.partition(";")[0].strip().lower()
    stated = str(document.get("mediaType") or served)
    kind = _KINDS.get(stated) or _kind_by_shape(document)
    if document.get("schemaVersion") == 1 or stated.startswith("application/vnd.docker.distribution.manifest.v1"):
        raise BadManifest(
            f"{where}: a manifest of Docker's schema 1, which has no digests of its layers' content",
            hint="push the image again with a current docker, or use another tag",
        )
    if kind is None:
        raise BadManifest(
            f"{where}: {excerpt(stated)!r} is not a container image",
            hint="use an image: this may be a chart or another artifact",
        )
    if _KINDS.get(served, kind) is not kind or ("manifests" in document and "layers" in document):
        # One reader would parse it as an index, another as an image (CVE-2021-41190).
        raise BadManifest(f"{where}: a manifest and an index in one document", hint="don't use this image")
    if kind is ManifestKind.INDEX:
        return Manifest(body, stated, kind, algorithm, _children(document, where))
    config = _descriptor(document.get("config"), f"{where}: a manifest whose config has no digest or size")
    return Manifest(body, stated, kind, algorithm, (), config.digest, config.size_bytes)


def image_blobs(manifest: Manifest, where: str) -> tuple[Descriptor, ...]:
    """The config of a single manifest and its layers, the lowest first.

    Raises:
        BadManifest: it is an index, or has invalid descriptors.
    """
    document = read_json(manifest.body, manifest.media_type, where=where)
    layers = document.get("layers")
    manifest.check_is_single(where)
    if not isinstance(layers, list) or len(layers) > MAX_ENTRIES:
        raise BadManifest(f"{where}: it has no layers, or more than {MAX_ENTRIES}", hint="use another image")
    invalid = f"{where}: a blob without a valid digest and size"
    return tuple(_descriptor(value, invalid) for value in (document.get("config"), *layers))


def read_json(body: bytes, content_type: str, *, where: str) -> Mapping[str, object]:
    """A JSON object that every parser reads alike: in UTF-8, each key once, only JSON's numbers and characters.

    Raises:
        BadManifest: it is none; the usual cause is a login page.
    """
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
        if b"\\u" in body:
            json.dumps(document, ensure_ascii=False).encode("utf-8")  # lone surrogates are not characters
    except _Ambiguous as error:
        raise BadManifest(f"{where}: the key {excerpt(error)!r} occurs twice", hint="don't use it") from None
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    kind = excerpt(content_type.partition(";")[0].strip()) or "of an unknown type"
    raise BadManifest(
        f"{where}: the registry's response is {kind}, not a JSON object",
        hint="check for a proxy with a login page in between, or a web server at the registry's address",
    )


class _Ambiguous(Exception):
    """A JSON object with a duplicate key, of which parsers use different ones."""


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
    entries = document.get("manifests")
    if not isinstance(entries, list):
        raise BadManifest(f"{where}: an index without a list of manifests", hint=_DAMAGED)
    if len(entries) > MAX_ENTRIES:
        raise BadManifest(
            f"{where}: an index of {len(entries)} manifests, and envspec supports {MAX_ENTRIES}",
            hint="use one platform's image by its digest",
        )
    return tuple(_child(entry, where) for entry in entries)


def _child(entry: object, where: str) -> IndexEntry:
    found = _descriptor(entry, f"{where}: an entry of the index has no digest or size")
    words = table_of(entry, "platform")
    return IndexEntry(found.digest, *(_word(words.get(name)) for name in ("os", "architecture", "variant")))


def _descriptor(value: object, invalid: str) -> Descriptor:
    """A descriptor in a manifest; raises BadManifest with the message `invalid` if it has no digest or size."""
    entry = table_of(value)
    digest, size = entry.get("digest"), entry.get("size")
    if not is_digest(digest) or not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_BLOB_BYTES:
        raise BadManifest(invalid, hint=_DAMAGED)
    kind = excerpt(entry.get("mediaType", ""))
    return Descriptor(kind, str(digest), size, bool(entry.get("urls")) and kind.startswith(_FOREIGN))


def _word(value: object) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value) else ""


class Blob(Protocol):
    """Bytes that can be read repeatedly, from any position: an interrupted upload resumes."""

    @property
    def descriptor(self) -> Descriptor: ...

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on, in pieces of at most a few MiB."""
        ...
