"""Digests and manifests of images from their registry, by the OCI distribution API 1.1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from envspec.effects.http_values import Response
from envspec.errors import UsageError
from envspec.model import PinnedDigest, Platform
from envspec.registry.auth import authorize, challenges
from envspec.registry.credentials import Keychain, Login
from envspec.registry.faults import NotThere, RegistryFault, WrongDigest, refusal
from envspec.registry.manifest import (
    ACCEPT,
    MANIFEST_BYTES,
    OCI_PLATFORMS,
    Kind,
    Manifest,
    digest_of,
    read_json,
    read_manifest,
)
from envspec.registry.reference import BadReference, Endpoint, Reference, endpoint

if TYPE_CHECKING:
    from envspec.effects.http import Http

#: Configs hold the history of every layer; the largest seen are a tenth of this.
_CONFIG_BYTES: Final = 8 * 1024 * 1024


async def resolve_digests(
    reference: Reference, platforms: Iterable[Platform], registry: Registry
) -> tuple[PinnedDigest, ...]:
    """The digest to pin for each platform, in the order given.

    An index gives its own digest for every platform that it has (kind `index`); the note says which manifest is the
    platform's. A single manifest gives its digest for the one platform that its config names (kind `manifest`).

    Raises:
        NotThere: no such image, or none for a platform.
        AccessRefused, RateLimited, WrongDigest, BadManifest, NetworkError: the registry gives no usable answer.
        UsageError: a platform that has no container images.
    """
    wanted = tuple(platforms)
    for platform in wanted:
        if platform not in OCI_PLATFORMS:
            raise UsageError(
                f"{reference}: there are no container images for {platform.value}",
                hint=f"images are for {', '.join(known.value for known in OCI_PLATFORMS)}",
            )
    manifest = await registry.manifest(reference)
    found = await registry.platforms(reference, manifest)
    missing = [platform for platform in wanted if platform not in found]
    if missing:
        has = ", ".join(manifest.platforms or ["/".join(OCI_PLATFORMS[platform]) for platform in found])
        raise NotThere(
            f"{reference} is not published for {', '.join(platform.value for platform in missing)}",
            hint=f"it has {has or 'no platform that envspec builds for'}; take another image or leave the platform out",
        )
    return tuple(
        PinnedDigest(platform, manifest.digest, "registry", manifest.kind.value, _note(manifest, found[platform]))
        for platform in wanted
    )


async def fetch_by_digest(reference: Reference, registry: Registry) -> Manifest:
    """The manifest that `reference` pins, its bytes checked against the digest; its tag is not looked at.

    A tag may be overwritten after the lock was made, so that what it names today says nothing about the lock.

    Raises:
        BadReference: `reference` has no digest.
        NotThere: the registry doesn't have it (any more). WrongDigest: its bytes are others.
    """
    if reference.digest is None:
        raise BadReference(str(reference), "it has no digest to verify by")
    return await registry.manifest(reference)


@dataclass(slots=True)
class Registry:
    """A client for every registry of one run: mirrors, logins, and the tokens that were given so far.

    mirrors: `[registry.mirrors]`; what is found there is named by the original all the same.
    """

    http: Http
    keychain: Keychain
    mirrors: Mapping[str, str] = field(default_factory=dict)
    _authorizations: dict[Endpoint, str] = field(default_factory=dict, repr=False)

    async def manifest(self, reference: Reference) -> Manifest:
        """What the registry has under `reference` (its digest if it has one, else its tag), checked."""
        place = endpoint(reference, self.mirrors)
        where = f"{reference} at {place.registry}" if place.registry != reference.registry else str(reference)
        answer = await self._get(place, f"manifests/{reference.asked}", reference.asked, MANIFEST_BYTES)
        algorithm = (reference.digest or "sha256:").partition(":")[0]
        # Checked before anything is read from it: damaged bytes are a damage, whatever they say.
        _check_digest(where, digest_of(answer.body, algorithm), reference.digest, answer)
        return read_manifest(answer.body, answer.headers.get("Content-Type", ""), where=where, algorithm=algorithm)

    async def platforms(self, reference: Reference, manifest: Manifest) -> dict[Platform, str]:
        """The platforms that `manifest` has, with the digest of each one's own manifest."""
        if manifest.kind is Kind.INDEX:
            children = ((platform, manifest.child(platform)) for platform in OCI_PLATFORMS)
            return {platform: child.digest for platform, child in children if child}
        config = await self.config(reference, manifest)
        own = (str(config.get("os", "")), str(config.get("architecture", "")))
        return {platform: manifest.digest for platform, name in OCI_PLATFORMS.items() if name == own}

    async def config(self, reference: Reference, manifest: Manifest) -> Mapping[str, object]:
        """The config of a single manifest, its bytes checked against its digest."""
        place = endpoint(reference, self.mirrors)
        where = f"{reference.name}: config {manifest.config}"
        answer = await self._get(place, f"blobs/{manifest.config}", manifest.config, _CONFIG_BYTES)
        _check_digest(where, digest_of(answer.body, manifest.config.partition(":")[0]), manifest.config, answer)
        return read_json(answer.body, answer.headers.get("Content-Type", ""), where=where)

    async def _get(self, place: Endpoint, path: str, asked: str, max_bytes: int) -> Response:
        """GET below a repository; authenticates when the registry asks for it."""
        url = f"{place.base}/{place.repository}/{path}"

        async def ask() -> Response:
            known = self._authorizations.get(place)
            headers = {"Accept": ACCEPT} | ({"Authorization": known} if known else {})
            return await self.http.get(url, headers=headers, max_bytes=max_bytes)

        answer, login = await ask(), None
        if answer.status == 401:
            login = await self.keychain.login(place.registry, place.repository)
            await self._authorize(place, answer, login)
            answer = await ask()
        if answer.status != 200:
            raise refusal(answer, place, asked, login.source if login else None)
        return answer

    async def _authorize(self, place: Endpoint, answer: Response, login: Login | None) -> None:
        offered = challenges(answer.headers.getall("WWW-Authenticate", []))
        authorization = await authorize(offered, place, login, self.http.request)
        if authorization is None:
            schemes = ", ".join(challenge.scheme for challenge in offered) or "nothing"
            raise RegistryFault(
                f"{place.registry}: HTTP 401, and it offers {schemes} to log in with; envspec knows Bearer and Basic",
                hint=f"is {place.base} a registry, or a proxy in front of one?",
            )
        self._authorizations[place] = authorization


def _check_digest(where: str, computed: str, asked: str | None, answer: Response) -> None:
    """Bytes against the digest that was asked for, and against the one that the registry names for them."""
    hint = "a proxy changed it on the way, or the registry's copy is damaged: don't use it"
    if asked and computed != asked:
        raise WrongDigest(f"{where}: the bytes that came have the digest {computed}", hint=hint)
    named = answer.headers.get("Docker-Content-Digest", "").strip()
    if named and named.partition(":")[0] == computed.partition(":")[0] and named != computed:
        raise WrongDigest(f"{where}: named {named} by the registry, and the bytes have {computed}", hint=hint)


def _note(manifest: Manifest, own: str) -> str:
    return f"{own} in this index" if manifest.kind is Kind.INDEX else ""
