"""The client of registries: manifests, configs, logins and retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from envspec.context import comma_separated
from envspec.credentials import shown
from envspec.errors import NetworkError
from envspec.escaping import excerpt
from envspec.io.http import RetryableError, read_whole
from envspec.io.http_types import Response, Retry, retry_after_s
from envspec.models import PinnedDigest, Platform
from envspec.origins import same_origin
from envspec.registry.auth import Authorization, Challenges, Keychain, Login, RepositoryAccess, authorize, challenges
from envspec.registry.errors import ImageNotFound, RegistryError, WrongDigest, refusal
from envspec.registry.reference import Endpoint, Reference, endpoint_of
from envspec.registry.types import (
    ACCEPT,
    MANIFEST_BYTES,
    OCI_PLATFORMS,
    Manifest,
    ManifestKind,
    digest_of,
    read_json,
    read_manifest,
)

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientTimeout

    from envspec.io.http import Http
    from envspec.io.http_body import Streamed


#: Configs contain the history of every layer; the largest known are a tenth of this.
CONFIG_BYTES: Final = 8 * 1024 * 1024
#: Of a response whose body is at most an error document.
SMALL_BYTES: Final = 1024 * 1024
#: A token is not used in its last seconds, or in the last quarter of a short lifetime.
_TOKEN_MARGIN_S: Final = 10.0


async def resolve_digests(
    reference: Reference, platforms: Iterable[Platform], registry: Registry
) -> tuple[PinnedDigest, ...]:
    """The digest to pin for each platform, in the order given.

    An index has one digest for all of its platforms (kind `index`); the note names the platform's manifest. A single
    manifest is for the platform in its config (kind `manifest`).

    Raises:
        ImageNotFound: no such image, or none for a platform.
        AccessRefused, RateLimited, WrongDigest, BadManifest, NetworkError: no usable response.
    """
    requested = tuple(platforms)
    manifest = await registry.manifest(reference)
    found = await registry.platforms(reference, manifest)
    missing = [platform for platform in requested if platform not in found]
    if missing:
        has = manifest.platforms_in_words or ", ".join("/".join(OCI_PLATFORMS[platform]) for platform in found)
        raise ImageNotFound(
            f"{reference} is not published for {comma_separated(missing)}",
            hint=f"it has {has or 'no platform that envspec supports'}; use another image or remove the platform",
        )
    pins = []
    for platform in requested:
        note = f"{found[platform]} in this index" if manifest.kind is ManifestKind.INDEX else ""
        pins.append(PinnedDigest(platform, manifest.digest, "registry", manifest.kind.value, note))
    return tuple(pins)


@dataclass(slots=True)
class Registry:
    """A client for all registries of one run, with their logins and tokens.

    mirrors: `[registry.mirrors]`; images from a mirror are named by the original.
    """

    http: Http
    keychain: Keychain
    mirrors: Mapping[str, str] = field(default_factory=dict)
    _authorizations: dict[RepositoryAccess, tuple[Authorization, float]] = field(default_factory=dict, repr=False)
    _logins: dict[tuple[str, str], Login | None] = field(default_factory=dict, repr=False)
    _locks: dict[RepositoryAccess, asyncio.Lock] = field(default_factory=dict, repr=False)

    async def manifest(self, reference: Reference) -> Manifest:
        """The manifest of `reference` (by digest if it has one, else by tag), checked."""
        endpoint = endpoint_of(reference, self.mirrors)
        where = str(reference)
        if endpoint.registry != reference.registry:
            where += f" at {endpoint.registry}"
        response = await self._get(
            endpoint, f"manifests/{reference.tag_or_digest}", reference.tag_or_digest, MANIFEST_BYTES
        )
        algorithm = (reference.digest or "sha256:").partition(":")[0]
        # Checked before it is parsed.
        _check_digest(where, digest_of(response.body, algorithm), reference.digest, response)
        return read_manifest(response.body, response.headers.get("Content-Type", ""), where=where, algorithm=algorithm)

    async def platforms(self, reference: Reference, manifest: Manifest) -> dict[Platform, str]:
        """The platforms of `manifest`, with the digest of each one's own manifest."""
        if manifest.kind is ManifestKind.INDEX:
            children = ((platform, manifest.child(platform)) for platform in OCI_PLATFORMS)
            return {platform: child.digest for platform, child in children if child}
        config = await self.config(reference, manifest)
        own = (str(config.get("os", "")), str(config.get("architecture", "")))
        return {platform: manifest.digest for platform, name in OCI_PLATFORMS.items() if name == own}

    async def config(self, reference: Reference, manifest: Manifest) -> Mapping[str, object]:
        """The config of a single manifest, checked."""
        body = await self.config_bytes(reference, manifest)
        return read_json(body, "application/octet-stream", where=f"{reference.name}: config {manifest.config}")

    async def config_bytes(self, reference: Reference, manifest: Manifest) -> bytes:
        """The bytes of the config, checked."""
        manifest.check_is_single(str(reference))
        endpoint = endpoint_of(reference, self.mirrors)
        where = f"{reference.name}: config {manifest.config}"
        response = await self._get(endpoint, f"blobs/{manifest.config}", manifest.config, CONFIG_BYTES)
        _check_digest(where, digest_of(response.body, manifest.config.partition(":")[0]), manifest.config, response)
        if len(response.body) != manifest.config_bytes:
            raise WrongDigest(
                f"{where}: it has {len(response.body)} bytes, but {manifest.config_bytes} in its manifest",
                hint="don't use it: the registry's copy is damaged",
            )
        return response.body

    @asynccontextmanager
    async def open(
        self,
        access: RepositoryAccess,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Streamed | None = None,
        timeout: ClientTimeout | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """Like `Http.open`; sent again if the registry requires a login or another token.

        The login is sent to the registry's own origin only, not to a server that a `Location` names.
        """
        own = same_origin(url, access.endpoint.base)
        known = self._valid(access) if own else None
        given = dict(headers or {})
        if known is not None:
            given["Authorization"] = known.value
        async with self.http.open(method, url, headers=given, body=body, timeout=timeout) as response:
            if response.status != 401 or not same_origin(str(response.url), access.endpoint.base):
                yield response
                return
            offered = challenges(response.headers.getall("WWW-Authenticate", []))
        given["Authorization"] = await self._authorize(access, offered, known)
        async with self.http.open(method, url, headers=given, body=body, timeout=timeout) as response:
            yield response

    async def request(
        self,
        access: RepositoryAccess,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Streamed | None = None,
        timeout: ClientTimeout | None = None,
    ) -> Response:
        """`open`, for small responses."""
        async with self.open(access, method, url, headers=headers, body=body, timeout=timeout) as response:
            # Sending a body may take long, reading a short response may not.
            return await read_whole(response, SMALL_BYTES, self.http.timeouts.total_s)

    def refusal(self, response: Response, access: RepositoryAccess, requested: str) -> NetworkError | RetryableError:
        """The error of a refused request, a RetryableError if a retry may get another status.

        requested: tag or digest.
        """
        authorization, _ = self._authorizations.get(access, (None, 0.0))
        source = authorization.login_source if authorization else None
        error = refusal(response, access.endpoint, requested, source, access.action)
        if is_transient_status(response.status):
            return RetryableError(error, retry_after_s(response.headers.get("Retry-After")))
        return error

    async def _get(self, endpoint: Endpoint, path: str, requested: str, max_bytes: int) -> Response:
        access = RepositoryAccess(endpoint)
        url = f"{access.repository_url}/{path}"

        async def get() -> Response:
            async with self.open(access, "GET", url, headers={"Accept": ACCEPT}, timeout=self.http.whole) as response:
                whole = await read_whole(response, max_bytes)
            if whole.status != 200:
                raise self.refusal(whole, access, requested)
            return whole

        return await with_retries(self.http, url, get)

    def _valid(self, access: RepositoryAccess) -> Authorization | None:
        authorization, until = self._authorizations.get(access, (None, 0.0))
        return authorization if time.monotonic() < until else None

    async def _authorize(self, access: RepositoryAccess, offered: Challenges, refused: Authorization | None) -> str:
        """The header's value. refused: was sent and refused; concurrent requests refused with it log in once."""
        async with self._locks.setdefault(access, asyncio.Lock()):
            known = self._valid(access)
            if known is not None and known is not refused:
                return known.value
            endpoint = access.endpoint
            key = (endpoint.registry, endpoint.repository)
            if key not in self._logins:
                self._logins[key] = await self.keychain.login(*key)
            authorization = await authorize(offered, access, self._logins[key], self.http.request)
            if authorization is None:
                schemes = excerpt(", ".join(offered)) or "nothing"
                raise RegistryError(
                    f"{endpoint.registry}: HTTP 401, and it offers {schemes} for logins; "
                    "envspec supports Bearer and Basic",
                    hint=f"check that {endpoint.base} is a registry, not a proxy in front of one",
                )
            margin_s = min(_TOKEN_MARGIN_S, authorization.lasts_s / 4)
            self._authorizations[access] = (authorization, time.monotonic() + authorization.lasts_s - margin_s)
            return authorization.value


def _check_digest(where: str, computed: str, requested: str | None, response: Response) -> None:
    """Compare the bytes' digest with the requested one and with the registry's header."""
    hint = "don't use it: a proxy changed it, or the registry's copy is damaged"
    if requested and computed != requested:
        raise WrongDigest(f"{where}: the received bytes have the digest {computed}", hint=hint)
    named = response.headers.get("Docker-Content-Digest", "").strip()
    if named and named.partition(":")[0] == computed.partition(":")[0] and named != computed:
        raise WrongDigest(f"{where}: the registry names {excerpt(named)}, but the bytes have {computed}", hint=hint)


#: "Not implemented" and "HTTP version not supported" are permanent.
_PERMANENT: Final = frozenset({501, 505})
_T = TypeVar("_T")


def is_transient_status(status: int) -> bool:
    """Whether a retry may get another status: 408, 429, most of 5xx."""
    return status in {408, 429} or (status >= 500 and status not in _PERMANENT)


async def with_retries(http: Http, url: str, action: Callable[[], Awaitable[_T]]) -> _T:
    """The result of an idempotent action, with retries."""
    retry = Retry(http.timeouts, shown(url))
    while True:
        try:
            return await action()
        except (NetworkError, RetryableError) as error:
            await http.wait_to_retry(retry, error)
