"""Digests from a registry on loopback, in good days and in bad ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from envspec.errors import EnvspecError, NetworkError, UsageError
from envspec.io.http import open_http
from envspec.io.http_types import Timeouts
from envspec.models import PinnedDigest, Platform
from envspec.registry import errors
from envspec.registry.auth import HUB_KEY, Keychain
from envspec.registry.client import Registry, resolve_digests
from envspec.registry.reference import parse
from envspec.registry.types import BadManifest, Manifest, ManifestKind
from tests.support.servers import registry as content
from tests.support.servers.loopback import CLOSE, RESET, Answer, Asked, RawServer, noting, reply

QUICK = Timeouts(connect_s=1.0, stall_s=0.3, total_s=5.0, backoff_s=0.01, retry_after_s=1.0)
BOTH = (Platform.LINUX_64, Platform.LINUX_AARCH64)
AMD = content.manifest(content.config())
ARM = content.manifest(content.config(architecture="arm64"))
INDEX = content.index({"linux/amd64": AMD, "linux/arm64": ARM, "unknown/unknown": content.manifest(content.config())})


@dataclass
class World:
    """A registry on loopback, a home directory, and what came of asking."""

    home: Path
    held: content.PushRegistry = field(default_factory=content.PushRegistry)
    answer: Callable[[Asked], Answer] | None = None
    asked: list[Asked] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    mirrors: dict[str, str] = field(default_factory=dict)
    host: str = ""

    def login(self, entry: dict[str, Any], registry: str = "HOST") -> None:
        """Log in; `HOST` is the registry's host and port, known when it runs."""
        self._logins = {registry: entry}

    _logins: dict[str, dict[str, Any]] = field(default_factory=dict)

    def resolve(
        self, name: str = "HOST/nvidia/cuda:v1", platforms: tuple[Platform, ...] = BOTH
    ) -> tuple[PinnedDigest, ...]:
        found: tuple[PinnedDigest, ...] = self._with(
            lambda registry: resolve_digests(parse(name.replace("HOST", self.host)), platforms, registry)
        )
        return found

    def fetch(self, name: str) -> Manifest:
        found: Manifest = self._with(lambda registry: registry.manifest(parse(name.replace("HOST", self.host))))
        return found

    def _with(self, use: Callable[[Registry], Any]) -> Any:
        async def run() -> Any:
            async with RawServer(self.answer or self.held.answer) as server:
                self.host, self.asked, self.held.port = server.host, server.asked, server.port
                auths = {key.replace("HOST", server.host): entry for key, entry in self._logins.items()}
                (self.home / ".docker").mkdir(exist_ok=True)
                (self.home / ".docker" / "config.json").write_text(json.dumps({"auths": auths}))
                mirrors = {key: value.replace("HOST", server.host) for key, value in self.mirrors.items()}
                async with open_http({}, timeouts=QUICK) as http:
                    keychain = Keychain({}, self.home, self.warnings.append)
                    return await use(Registry(http, keychain, mirrors))

        return asyncio.run(run())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.held.add("nvidia/cuda:v1", AMD, ARM, INDEX)
    yield world
    # Whatever a test did: no secret in a warning.
    assert not any("hunter2" in line for line in world.warnings)


def basic(user: str = "user", password: str = "hunter2") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def always(answer: Answer) -> Callable[[Asked], Answer]:
    return lambda _: answer


# ------------------------------------------------------------------------------------------------------ good days


def test_an_index_gives_its_own_digest_for_each_platform(world: World) -> None:
    assert world.resolve() == (
        PinnedDigest(Platform.LINUX_64, INDEX.digest, "registry", "index", f"{AMD.digest} in this index"),
        PinnedDigest(Platform.LINUX_AARCH64, INDEX.digest, "registry", "index", f"{ARM.digest} in this index"),
    )
    assert len(world.asked) == 1


def test_a_docker_manifest_list_is_an_index(world: World) -> None:
    listed = content.index({"linux/amd64": AMD, "linux/arm64": ARM}, content.DOCKER_LIST)
    world.held.add("nvidia/cuda:v1", listed)
    assert [pin.kind for pin in world.resolve()] == ["index", "index"]


@pytest.mark.parametrize("media_type", [content.OCI_MANIFEST, content.DOCKER_MANIFEST])
def test_a_single_manifest_holds_for_the_platform_of_its_config(world: World, media_type: str) -> None:
    config = content.config(architecture="arm64")
    single = world.held.add("nvidia/cuda:v1", config, content.manifest(config, media_type))
    assert world.resolve(platforms=(Platform.LINUX_AARCH64,)) == (
        PinnedDigest(Platform.LINUX_AARCH64, single.digest, "registry", "manifest"),
    )


def test_every_readable_type_is_asked_for(world: World) -> None:
    world.resolve()
    accept = world.asked[0].headers["accept"]
    assert all(
        kind in accept
        for kind in (content.OCI_INDEX, content.OCI_MANIFEST, content.DOCKER_LIST, content.DOCKER_MANIFEST)
    )


def test_the_type_may_be_only_in_the_header_or_only_in_the_shape(world: World) -> None:
    document = json.loads(INDEX.body)
    del document["mediaType"]
    for media_type in (content.OCI_INDEX + "; charset=utf-8", "application/json", ""):
        world.held.add("nvidia/cuda:v1", content.Blob(media_type, content.encode(document)))
        assert [pin.kind for pin in world.resolve()] == ["index", "index"]


def test_a_digest_is_asked_for_and_its_tag_is_not_looked_at(world: World) -> None:
    world.held.add("nvidia/cuda:v1", ARM)
    got = world.fetch(f"HOST/nvidia/cuda:v1@{INDEX.digest}")
    assert (got.kind, got.digest, got.platforms) == (ManifestKind.INDEX, INDEX.digest, ("linux/amd64", "linux/arm64"))
    assert [asked.path for asked in world.asked] == [f"/v2/nvidia/cuda/manifests/{INDEX.digest}"]


def test_a_digest_of_sha512_is_checked_by_sha512(world: World) -> None:
    name = f"sha512:{hashlib.sha512(AMD.body).hexdigest()}"
    world.held.tags["nvidia/cuda"][name] = (AMD.media_type, AMD.body)
    assert world.fetch(f"HOST/nvidia/cuda@{name}").digest == name
    world.held.tags["nvidia/cuda"][name] = (ARM.media_type, ARM.body)
    with pytest.raises(errors.WrongDigest):
        world.fetch(f"HOST/nvidia/cuda@{name}")


def test_a_mirror_stands_in_and_the_original_is_named(world: World) -> None:
    world.mirrors = {"docker.io": "HOST"}
    assert world.resolve("nvidia/cuda:v1")[0].digest == INDEX.digest
    with pytest.raises(errors.ImageNotFound, match=r"127\.0\.0\.1:\d+/nvidia/cuda:v2"):
        world.resolve("nvidia/cuda:v2")


def test_a_mirror_gets_its_own_login_and_not_the_original_s(world: World) -> None:
    world.mirrors = {"docker.io": "HOST"}
    world.held.basic = ("user", "hunter2")
    world.login(basic(), registry=HUB_KEY)
    with pytest.raises(errors.AccessRefused, match="none was found"):
        world.resolve("nvidia/cuda:v1")
    assert all("authorization" not in asked.headers for asked in world.asked)
    world.login(basic())
    assert world.resolve("nvidia/cuda:v1")[0].digest == INDEX.digest


# ---------------------------------------------------------------------------------------------------------- logins


def test_basic_authentication(world: World) -> None:
    world.held.basic = ("user", "hunter2")
    world.login(basic())
    assert world.resolve()[0].digest == INDEX.digest
    # Nothing is sent before it is asked for, and what was accepted once is kept.
    assert [("authorization" in asked.headers) for asked in world.asked] == [False, True]


def test_a_token_for_anybody(world: World) -> None:
    world.held.token = 9
    assert world.resolve()[0].digest == INDEX.digest
    assert [asked.path for asked in world.asked] == [
        "/v2/nvidia/cuda/manifests/v1",
        "/token",
        "/v2/nvidia/cuda/manifests/v1",
    ]
    assert "authorization" not in world.asked[1].headers


def test_a_token_for_a_login(world: World) -> None:
    world.held.token, world.held.token_login = 9, ("user", "hunter2")
    world.login(basic())
    config = content.config()
    world.held.add("nvidia/cuda:v1", config, content.manifest(config))
    assert world.resolve(platforms=(Platform.LINUX_64,))[0].kind == "manifest"
    assert [asked.path for asked in world.asked].count("/token") == 1


def test_an_identity_token_is_exchanged(world: World) -> None:
    world.held.token, world.held.token_login, world.held.refresh = 9, ("user", "other"), "hunter2"
    world.login({"identitytoken": "hunter2"})
    assert world.resolve()[0].digest == INDEX.digest
    assert [asked.method for asked in world.asked] == ["GET", "POST", "GET"]
    assert "hunter2" not in world.asked[1].target


def test_a_registry_s_own_token_is_sent_as_it_is(world: World) -> None:
    world.held.token = 9
    world.held._tokens["own"] = ({"nvidia/cuda:pull"}, 9)
    world.login({"registrytoken": "own"})
    assert world.resolve()[0].digest == INDEX.digest
    assert [asked.path for asked in world.asked].count("/token") == 0


def refused(world: World, kind: type[EnvspecError], *words: str, name: str = "HOST/nvidia/cuda:v1") -> str:
    """The message for resolving `name`, which has these words, no secret, and says what to do."""
    with pytest.raises(kind) as caught:
        world.resolve(name)
    text = str(caught.value)
    assert type(caught.value) is kind
    for word in words:
        assert word in text
    assert "hunter2" not in text
    assert caught.value.hint
    return text


def test_no_login_where_one_is_wanted(world: World) -> None:
    world.held.basic = ("user", "hunter2")
    refused(world, errors.AccessRefused, "requires a login and none was found", f"docker login {'127.0.0.1'}")


def test_a_wrong_password(world: World) -> None:
    world.held.basic = ("user", "other")
    world.login(basic())
    refused(world, errors.AccessRefused, "refuses the login from", "config.json")
    assert len(world.asked) == 2


def test_a_token_server_that_refuses_the_login(world: World) -> None:
    world.held.token, world.held.token_login = 9, ("user", "other")
    world.login(basic())
    refused(world, errors.AccessRefused, "refuses the login from", "incorrect username or password")


def test_a_login_that_may_not_pull(world: World) -> None:
    world.login(basic())
    denied = {"errors": [{"code": "DENIED", "message": "requested access to the resource is denied"}]}

    def answer(asked: Asked) -> Answer:
        if "authorization" in asked.headers:
            return reply(403, denied)
        return reply(401, b"", {"WWW-Authenticate": "Basic realm=x"})

    world.answer = answer
    refused(world, errors.AccessRefused, "DENIED: requested access", "get access to nvidia/cuda")


# -------------------------------------------------------------------------------------------------------- bad days


def test_a_401_without_a_challenge(world: World) -> None:
    world.answer = always(reply(401))
    refused(world, errors.RegistryError, "HTTP 401", "offers nothing")


def test_a_401_with_a_challenge_of_another_kind(world: World) -> None:
    world.answer = always(reply(401, b"", {"WWW-Authenticate": "Negotiate"}))
    refused(world, errors.RegistryError, "offers negotiate")


@pytest.mark.parametrize(
    "realm", ["", "ftp://auth/", "token", "http://auth.example.com/token", "http://u:p@127.0.0.1/"]
)
def test_a_token_server_that_no_login_may_be_sent_to(world: World, realm: str) -> None:
    world.login(basic())
    world.answer = always(reply(401, b"", {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}))
    refused(world, errors.RegistryError, "token server")
    assert len(world.asked) == 1


@pytest.mark.parametrize(
    ("token_answer", "words"),
    [
        (reply(500), "HTTP 500"),
        (reply(503), "HTTP 503"),
        (reply(404), "HTTP 404"),
        (reply(200, b"<html>log in</html>"), "sends no token"),
        (reply(200, {"token": ""}), "sends no token"),
        (reply(200, {"token": 7}), "sends no token"),
        (reply(200, {"token": "a\r\nX-Injected: b"}), "sends no token"),
        (reply(200, []), "sends no token"),
    ],
)
def test_a_token_server_that_fails(world: World, token_answer: Answer, words: str) -> None:
    world.held.token = 9
    world.answer = lambda asked: token_answer if asked.path == "/token" else world.held.answer(asked)
    refused(world, errors.RegistryError, "its token server 127.0.0.1", words)


def test_a_token_server_that_is_too_busy(world: World) -> None:
    world.held.token = 9
    busy = reply(429, b"", {"Retry-After": "120"})
    world.answer = lambda asked: busy if asked.path == "/token" else world.held.answer(asked)
    refused(world, errors.RateLimited, "too many requests", "try again in 120 s")


def test_a_token_that_is_not_accepted_ends_the_talk(world: World) -> None:
    world.held.token = 9
    world.answer = lambda asked: reply(200, {"token": "wrong"}) if asked.path == "/token" else world.held.answer(asked)
    refused(world, errors.AccessRefused, "requires a login")
    assert len(world.asked) == 3


def test_the_limit_of_docker_hub_is_told(world: World) -> None:
    said = {
        "errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your unauthenticated pull rate limit."}]
    }
    headers = {"Retry-After": "3600", "ratelimit-limit": "100;w=21600", "ratelimit-remaining": "0;w=21600"}
    world.answer = always(reply(429, said, headers))
    refused(world, errors.RateLimited, "too many requests (100 in 6 h)", "in 3600 s", "docker login", "mirror")


def test_a_short_limit_is_waited_for(world: World) -> None:
    left = iter([reply(429, b"", {"Retry-After": "1"})])
    world.answer = lambda asked: next(left, None) or world.held.answer(asked)
    start = time.monotonic()
    assert world.resolve()[0].digest == INDEX.digest
    assert time.monotonic() - start >= 1.0


def test_a_tag_that_is_not_there(world: World) -> None:
    refused(
        world, errors.ImageNotFound, "v2: not found", "six months after its end of life", name="HOST/nvidia/cuda:v2"
    )


def test_a_repository_that_is_not_there(world: World) -> None:
    refused(world, errors.ImageNotFound, "NAME_UNKNOWN", "no repository nvidia/cudda", name="HOST/nvidia/cudda:v2")


def test_a_digest_that_is_not_there(world: World) -> None:
    refused(world, errors.ImageNotFound, "not found", "--upgrade", name=f"HOST/nvidia/cuda@sha256:{'0' * 64}")


def test_a_platform_that_is_not_there(world: World) -> None:
    world.held.add("nvidia/cuda:v1", content.index({"linux/amd64": AMD, "windows/amd64": ARM}))
    refused(world, errors.ImageNotFound, "not published for linux-aarch64", "linux/amd64, windows/amd64")


def test_a_single_manifest_of_another_platform(world: World) -> None:
    config = content.config(architecture="riscv64")
    world.held.add("nvidia/cuda:v1", config, content.manifest(config))
    refused(
        world, errors.ImageNotFound, "not published for linux-64, linux-aarch64", "no platform that envspec supports"
    )


def test_a_platform_without_images(world: World) -> None:
    with pytest.raises(UsageError, match="no container images for osx-arm64"):
        world.resolve(platforms=(Platform.OSX_ARM64,))
    assert world.asked == []


def test_other_bytes_than_the_digest_says(world: World) -> None:
    world.held.tags["nvidia/cuda"][INDEX.digest] = (AMD.media_type, AMD.body)
    refused(
        world,
        errors.WrongDigest,
        f"the received bytes have the digest {AMD.digest}",
        name=f"HOST/nvidia/cuda@{INDEX.digest}",
    )


def test_other_bytes_than_the_header_says(world: World) -> None:
    world.answer = always(reply(200, INDEX.body, {"Docker-Content-Digest": AMD.digest}))
    refused(world, errors.WrongDigest, f"the registry names {AMD.digest}", INDEX.digest)


def test_a_config_of_other_bytes(world: World) -> None:
    config, other = content.config(), content.config(architecture="arm64")
    world.held.add("nvidia/cuda:v1", config, content.manifest(config))
    world.held.blobs["nvidia/cuda"][config.digest] = other.body
    refused(world, errors.WrongDigest, "the received bytes have the digest", other.digest)


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"<html>Please log in</html>", "text/html; charset=utf-8", "response is text/html, not a JSON object"),
        (b"", "", "not a JSON object"),
        (b"[]", content.OCI_INDEX, "not a JSON object"),
        (b"[" * 100_000, content.OCI_INDEX, "not a JSON object"),
        (b"\xff\xfe", content.OCI_INDEX, "not a JSON object"),
        (b"{}", "application/json", "is not a container image"),
        (b'{"mediaType": "application/vnd.cncf.helm.config.v1+json"}', "application/json", "is not a container image"),
        (b'{"mediaType": ["x"]}', "application/json", "is not a container image"),
        (b'{"schemaVersion": 1}', "application/vnd.docker.distribution.manifest.v1+prettyjws", "schema 1"),
        (b'{"manifests": 7}', content.OCI_INDEX, "without a list of manifests"),
        (b'{"manifests": [7]}', content.OCI_INDEX, "no digest or size"),
        (b'{"manifests": [{"digest": "sha256:../..", "size": 1}]}', content.OCI_INDEX, "no digest or size"),
        (b'{"config": {}, "layers": []}', content.OCI_MANIFEST, "whose config has no digest"),
        (b'{"config": {"digest": "../../x"}, "layers": []}', content.OCI_MANIFEST, "whose config has no digest"),
        (b'{"manifests": [], "layers": []}', content.OCI_INDEX, "a manifest and an index in one document"),
    ],
)
def test_what_is_no_manifest_is_refused(world: World, body: bytes, content_type: str, words: str) -> None:
    world.answer = always(reply(200, body, {"Content-Type": content_type}))
    refused(world, BadManifest, words)


def test_a_registry_that_fails(world: World) -> None:
    world.answer = always(reply(500, {"errors": [{"code": "UNKNOWN", "message": "unknown\x1b[31m error"}]}))
    assert "\x1b" not in refused(world, errors.RegistryError, "HTTP 500 (UNKNOWN: unknown")


def test_something_else_in_the_registry_s_place(world: World) -> None:
    world.answer = always(reply(405))
    refused(world, errors.RegistryError, "HTTP 405", "OCI distribution API")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([30.0], "stalled"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", 30.0], "stalled"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", CLOSE], "ended early"),
        ([RESET], "connection broke"),
        ([CLOSE], "connection broke"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", *([b"x" * 65536] * 100)], "larger than 4 MB"),
        (reply(302, b"", {"Location": "/v2/nvidia/cuda/manifests/v1"}), "redirects without an end"),
    ],
    ids=["stalls", "stalls within", "truncated", "reset", "closed", "endless", "circle"],
)
def test_a_connection_that_fails(world: World, answer: Answer, words: str) -> None:
    world.answer = always(answer)
    with pytest.raises(NetworkError) as caught:
        world.resolve()
    assert words in str(caught.value)
    assert caught.value.exit_code == 5
    assert caught.value.hint


def test_a_redirect_to_another_host_gets_no_login(world: World) -> None:
    """Registries send blobs to a store of their own by redirects: the login stays behind."""
    config = content.config()
    world.held.add("nvidia/cuda:v1", config, content.manifest(config))
    world.held.basic = ("user", "hunter2")
    world.login(basic())
    seen: list[Asked] = []

    async def run() -> tuple[PinnedDigest, ...]:
        async with RawServer(noting(seen, reply(200, config.body))) as store:

            def answer(asked: Asked) -> Answer:
                if "/blobs/" in asked.path and "authorization" in asked.headers:
                    return reply(307, b"", {"Location": f"{store.url}{asked.path}?signature=hunter2"})
                return world.held.answer(asked)

            async with RawServer(answer) as server, open_http({}, timeouts=QUICK) as http:
                (world.home / ".docker").mkdir()
                (world.home / ".docker" / "config.json").write_text(json.dumps({"auths": {server.host: basic()}}))
                registry = Registry(http, Keychain({}, world.home))
                return await resolve_digests(parse(f"{server.host}/nvidia/cuda:v1"), (Platform.LINUX_64,), registry)

    assert asyncio.run(run())[0].kind == "manifest"
    assert len(seen) == 1
    assert "authorization" not in seen[0].headers


def test_plain_http_is_for_loopback_alone(world: World) -> None:
    """Another host is asked by https; here it is a proxy that sees what would have been sent."""

    async def run() -> list[Asked]:
        async with RawServer(lambda _: reply(502)) as proxy:
            environ = {"HTTP_PROXY": proxy.url, "HTTPS_PROXY": proxy.url}
            async with open_http(environ, timeouts=QUICK) as http:
                registry = Registry(http, Keychain({}, world.home))
                with pytest.raises(NetworkError):
                    await resolve_digests(parse("registry.corp/x:v1"), (Platform.LINUX_64,), registry)
            return proxy.asked

    first = asyncio.run(run())[0]
    assert (first.method, first.target) == ("CONNECT", "registry.corp:443")
