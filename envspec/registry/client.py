"""Manifests and configs of a registry; retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from envspec.credentials import shown
from envspec.errors import NetworkError, UsageError
from envspec.io.http import read_whole
from envspec.io.http_types import RequestError, Response, Stalled, Timeouts, is_transient, retry_after_s
from envspec.models import PinnedDigest, Platform
from envspec.origins import same_origin
from envspec.registry.auth import Authorization, Keychain, Login, RepositoryAccess, authorize, challenges
from envspec.registry.errors import ImageNotFound, RegistryError, WrongDigest, refusal, shortened
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
    from aiohttp import ClientResponse

    from envspec.io.http import Http
    from envspec.io.http_body import Streamed


#: Configs hold the history of every layer; the largest seen are a tenth of this.
CONFIG_BYTES: Final = 8 * 1024 * 1024
#: Of an answer that has nothing to tell but its status and, where it is a refusal, why.
_WORDS_BYTES: Final = 1024 * 1024
#: A token is not used for a request in its last seconds, or in its last quarter where it is a short one.
_TOKEN_MARGIN_S: Final = 10.0


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
        has = manifest.platforms_in_words or ", ".join("/".join(OCI_PLATFORMS[platform]) for platform in found)
        raise ImageNotFound(
            f"{reference} is not published for {', '.join(platform.value for platform in missing)}",
            hint=f"it has {has or 'no platform that envspec builds for'}; take another image or leave the platform out",
        )
    return tuple(
        PinnedDigest(platform, manifest.digest, "registry", manifest.kind.value, _note(manifest, found[platform]))
        for platform in wanted
    )


@dataclass(slots=True)
class Registry:
    """A client for every registry of one run: mirrors, logins, and the tokens that were given so far.

    mirrors: `[registry.mirrors]`; what is found there is named by the original all the same.
    """

    http: Http
    keychain: Keychain
    mirrors: Mapping[str, str] = field(default_factory=dict)
    _authorizations: dict[RepositoryAccess, tuple[Authorization, float]] = field(default_factory=dict, repr=False)
    _logins: dict[tuple[str, str], Login | None] = field(default_factory=dict, repr=False)
    _locks: dict[RepositoryAccess, asyncio.Lock] = field(default_factory=dict, repr=False)

    async def manifest(self, reference: Reference) -> Manifest:
        """What the registry has under `reference` (its digest if it has one, else its tag), checked."""
        endpoint = endpoint_of(reference, self.mirrors)
        where = f"{reference} at {endpoint.registry}" if endpoint.registry != reference.registry else str(reference)
        answer = await self._get(
            endpoint, f"manifests/{reference.tag_or_digest}", reference.tag_or_digest, MANIFEST_BYTES
        )
        algorithm = (reference.digest or "sha256:").partition(":")[0]
        # Checked before anything is read from it: damaged bytes are a damage, whatever they say.
        _check_digest(where, digest_of(answer.body, algorithm), reference.digest, answer)
        return read_manifest(answer.body, answer.headers.get("Content-Type", ""), where=where, algorithm=algorithm)

    async def platforms(self, reference: Reference, manifest: Manifest) -> dict[Platform, str]:
        """The platforms that `manifest` has, with the digest of each one's own manifest."""
        if manifest.kind is ManifestKind.INDEX:
            children = ((platform, manifest.child(platform)) for platform in OCI_PLATFORMS)
            return {platform: child.digest for platform, child in children if child}
        config = await self.config(reference, manifest)
        own = (str(config.get("os", "")), str(config.get("architecture", "")))
        return {platform: manifest.digest for platform, name in OCI_PLATFORMS.items() if name == own}

    async def config(self, reference: Reference, manifest: Manifest) -> Mapping[str, object]:
        """The config of a single manifest, its bytes checked against its digest."""
        body = await self.config_bytes(reference, manifest)
        return read_json(body, "application/octet-stream", where=f"{reference.name}: config {manifest.config}")

    async def config_bytes(self, reference: Reference, manifest: Manifest) -> bytes:
        """The config as the registry has it, checked."""
        manifest.check_is_single(str(reference))
        endpoint = endpoint_of(reference, self.mirrors)
        where = f"{reference.name}: config {manifest.config}"
        answer = await self._get(endpoint, f"blobs/{manifest.config}", manifest.config, CONFIG_BYTES)
        _check_digest(where, digest_of(answer.body, manifest.config.partition(":")[0]), manifest.config, answer)
        if len(answer.body) != manifest.config_bytes:
            raise WrongDigest(
                f"{where}: it has {len(answer.body)} bytes, and {manifest.config_bytes} by its manifest",
                hint="the registry's copy is damaged: don't use it",
            )
        return answer.body

    @asynccontextmanager
    async def open(
        self,
        access: RepositoryAccess,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Streamed | None = None,
        answer_s: float | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """One request, as `Http.open`; sent a second time where the registry wants a login, or another token.

        The login goes to the registry's own origin, and only the registry's own answer asks for it: a `Location` may
        lead elsewhere, and what is there gets none.
        """
        own = same_origin(url, access.endpoint.base)
        known = self._known(access) if own else None
        given = {**(headers or {}), "Authorization": known.value} if known else headers
        async with self.http.open(method, url, headers=given, body=body, answer_s=answer_s) as answer:
            if answer.status != 401 or not same_origin(str(answer.url), access.endpoint.base):
                yield answer
                return
            offered = answer.headers.getall("WWW-Authenticate", [])
        given = {**(headers or {}), "Authorization": await self._authorize(access, offered, known)}
        async with self.http.open(method, url, headers=given, body=body, answer_s=answer_s) as answer:
            yield answer

    async def ask(
        self,
        access: RepositoryAccess,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Streamed | None = None,
        answer_s: float | None = None,
    ) -> Response:
        """`open`, for answers that are small."""
        async with self.open(access, method, url, headers=headers, body=body, answer_s=answer_s) as answer:
            # A body that is sent may take long; a short answer may not.
            words = await read_whole(answer, _WORDS_BYTES, self.http.timeouts.total_s)
            return Response(str(answer.url), answer.status, answer.headers, words)

    def login_source(self, access: RepositoryAccess) -> str | None:
        """Where the login comes from that was sent; None when none was."""
        held = self._authorizations.get(access)
        return held[0].login_source if held else None

    async def _get(self, endpoint: Endpoint, path: str, asked: str, max_bytes: int) -> Response:
        """GET below a repository; authenticates when the registry asks for it."""
        url, access = f"{endpoint.base}/{endpoint.repository}/{path}", RepositoryAccess(endpoint)

        async def ask(authorization: str | None) -> Response:
            headers = {"Accept": ACCEPT} | ({"Authorization": authorization} if authorization else {})
            return await self.http.get(url, headers=headers, max_bytes=max_bytes)

        known = self._known(access)
        answer = await ask(known.value if known else None)
        if answer.status == 401 and same_origin(answer.url, endpoint.base):
            offered = answer.headers.getall("WWW-Authenticate", [])
            answer = await ask(await self._authorize(access, offered, known))
        if answer.status != 200:
            raise refusal(answer, endpoint, asked, self.login_source(access))
        return answer

    def _known(self, access: RepositoryAccess) -> Authorization | None:
        authorization, until = self._authorizations.get(access, (None, 0.0))
        return authorization if time.monotonic() < until else None

    async def _authorize(self, access: RepositoryAccess, headers: Sequence[str], sent: Authorization | None) -> str:
        """The value to send now. sent: what was refused; whoever was refused with it at the same time asks once."""
        async with self._locks.setdefault(access, asyncio.Lock()):
            known = self._known(access)
            if known is not None and known is not sent:
                return known.value
            endpoint, offered = access.endpoint, challenges(headers)
            key = (endpoint.registry, endpoint.repository)
            if key not in self._logins:
                self._logins[key] = await self.keychain.login(*key)
            authorization = await authorize(offered, access, self._logins[key], self.http.request)
            if authorization is None:
                schemes = shortened(", ".join(challenge.scheme for challenge in offered)) or "nothing"
                raise RegistryError(
                    f"{endpoint.registry}: HTTP 401, and it offers {schemes} to log in with; "
                    "envspec knows Bearer and Basic",
                    hint=f"is {endpoint.base} a registry, or a proxy in front of one?",
                )
            margin_s = min(_TOKEN_MARGIN_S, authorization.lasts_s / 4)
            self._authorizations[access] = (authorization, time.monotonic() + authorization.lasts_s - margin_s)
            return authorization.value


def _check_digest(where: str, computed: str, asked: str | None, answer: Response) -> None:
    """Bytes against the digest that was asked for, and against the one that the registry names for them."""
    hint = "a proxy changed it on the way, or the registry's copy is damaged: don't use it"
    if asked and computed != asked:
        raise WrongDigest(f"{where}: the bytes that came have the digest {computed}", hint=hint)
    named = answer.headers.get("Docker-Content-Digest", "").strip()
    if named and named.partition(":")[0] == computed.partition(":")[0] and named != computed:
        raise WrongDigest(
            f"{where}: named {shortened(named)} by the registry, and the bytes have {computed}", hint=hint
        )


def _note(manifest: Manifest, own: str) -> str:
    return f"{own} in this index" if manifest.kind is ManifestKind.INDEX else ""


#: Not implemented, and a version of HTTP that the server doesn't speak: these stay.
_LASTING: Final = frozenset({501, 505})
#: The longest pause between two tries that nobody asked for, in seconds.
_LONGEST_PAUSE_S: Final = 30.0
_T = TypeVar("_T")


class RetryableError(Exception):
    """An answer that another try may better.

    fault: what to tell where none does. wait_s: what the registry asks to wait.
    """

    def __init__(self, fault: NetworkError, wait_s: float | None = None) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.wait_s = wait_s


def is_transient_status(status: int) -> bool:
    """Whether a status may be another one a little later: 408, 429, most of 5xx."""
    return status in {408, 429} or (status >= 500 and status not in _LASTING)


def raise_refusal(answer: Response, fault: NetworkError) -> NoReturn:
    """Raise `fault` for an answer that is a refusal, as TryAgain where it may pass."""
    if is_transient_status(answer.status):
        raise RetryableError(fault, retry_after_s(answer.headers.get("Retry-After")))
    raise fault


@dataclass(slots=True)
class Retry:
    """Counts tries in a row that brought nothing on.

    url: what is asked, for messages. notice: told of every pause, one line.
    """

    timeouts: Timeouts
    on_retry: Callable[[str], None]
    url: str
    _failed: int = 0
    _stalls: int = 0
    _furthest: int = 0

    async def after(self, fault: NetworkError | RetryableError, reached: int = 0) -> None:
        """Wait as long as is due; raises the fault where it is none that passes, or patience has ended.

        reached: how far the work is, in bytes. A try that came further than all before starts the count anew.
        """
        if reached > self._furthest:
            self._furthest, self._failed, self._stalls = reached, 0, 0
        self._failed += 1
        self._stalls += isinstance(fault, Stalled)
        pause = self.timeouts.pause_s(self.url, self._failed)
        if isinstance(fault, RetryableError):
            known, lasting = fault.fault, (fault.wait_s or 0) > self.timeouts.retry_after_s
            pause = pause if fault.wait_s is None else fault.wait_s
        else:
            known = fault
            lasting = (
                not isinstance(fault, RequestError) or fault.__cause__ is None or not is_transient(fault.__cause__)
            )
        if lasting or self._failed >= self.timeouts.attempts or self._stalls >= 2:
            raise known
        pause = min(pause, max(_LONGEST_PAUSE_S, self.timeouts.retry_after_s))
        self.on_retry(f"{known.message}; trying again in {pause:.1f} s")
        await asyncio.sleep(pause)


async def with_retries(
    timeouts: Timeouts, on_retry: Callable[[str], None], url: str, action: Callable[[], Awaitable[_T]]
) -> _T:
    """What `action` gives, after as many tries as patience has. It has to be one that may happen twice."""
    tries = Retry(timeouts, on_retry, shown(url))
    while True:
        try:
            return await action()
        except (NetworkError, RetryableError) as fault:
            await tries.after(fault)
