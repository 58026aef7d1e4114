"""Digests from a registry on loopback, in good days and in bad ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from envspec.errors import EnvspecError, NetworkError
from envspec.io.http import open_http
from envspec.io.http_types import Timeouts
from envspec.models import PinnedDigest, Platform
from envspec.registry import errors
from envspec.registry.auth import Keychain
from envspec.registry.client import Registry, resolve_digests
from envspec.registry.reference import parse
from envspec.registry.types import BadManifest, Manifest, ManifestKind
from tests.support.servers import registry as content
from tests.support.servers.loopback import CLOSE, RESET, Answer, Asked, RawServer, reply

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
    name: str = "HOST/nvidia/cuda:v1"

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


def test_an_index_has_one_digest_for_all_platforms(world: World) -> None:
    assert world.resolve() == (
        PinnedDigest(Platform.LINUX_64, INDEX.digest, "registry", "index", f"{AMD.digest} in this index"),
        PinnedDigest(Platform.LINUX_AARCH64, INDEX.digest, "registry", "index", f"{ARM.digest} in this index"),
    )
    (asked,) = world.asked
    kinds = (content.OCI_INDEX, content.OCI_MANIFEST, content.DOCKER_LIST, content.DOCKER_MANIFEST)
    assert all(kind in asked.headers["accept"] for kind in kinds)


@pytest.mark.parametrize("served", [content.DOCKER_LIST, content.OCI_INDEX + "; charset=utf-8", "application/json", ""])
def test_an_index_is_recognised_by_its_type_or_shape(world: World, served: str) -> None:
    listed = content.index({"linux/amd64": AMD, "linux/arm64": ARM}, content.DOCKER_LIST)
    document = json.loads(listed.body)
    if served != content.DOCKER_LIST:
        del document["mediaType"]
    world.held.add("nvidia/cuda:v1", content.Blob(served, content.encode(document)))
    assert [pin.kind for pin in world.resolve()] == ["index", "index"]


@pytest.mark.parametrize("media_type", [content.OCI_MANIFEST, content.DOCKER_MANIFEST])
def test_a_single_manifest_is_for_the_platform_of_its_config(world: World, media_type: str) -> None:
    config = content.config(architecture="arm64")
    single = world.held.add("nvidia/cuda:v1", config, content.manifest(config, media_type))
    assert world.resolve(platforms=(Platform.LINUX_AARCH64,)) == (
        PinnedDigest(Platform.LINUX_AARCH64, single.digest, "registry", "manifest"),
    )


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


def test_basic_authentication(world: World) -> None:
    world.held.basic = ("user", "hunter2")
    world.login(basic())
    assert world.resolve()[0].digest == INDEX.digest
    # Nothing is sent before it is requested, and what was accepted once is cached.
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


def refused(world: World, kind: type[EnvspecError], text: str) -> str:
    """The message: it matches `text`, has no secret, and says what to do."""
    with pytest.raises(kind) as caught:
        world.resolve(world.name)
    message = str(caught.value)
    assert type(caught.value) is kind
    assert re.search(text, message, re.DOTALL), message
    assert "hunter2" not in message
    assert caught.value.hint
    return message


def settings(**of_registry: object) -> Callable[[World], None]:
    """A registry with these settings, asked with a login of `basic()`."""

    def prepare(world: World) -> None:
        world.login(basic())
        for name, value in of_registry.items():
            setattr(world.held, name, value)

    return prepare


def denies(world: World) -> None:
    denied = {"errors": [{"code": "DENIED", "message": "requested access to the resource is denied"}]}
    challenge = reply(401, b"", {"WWW-Authenticate": "Basic realm=x"})
    world.login(basic())
    world.answer = lambda asked: reply(403, denied) if "authorization" in asked.headers else challenge


def answers(*answer: Any) -> Callable[[World], None]:
    return lambda world: setattr(world, "answer", lambda _: reply(*answer))


def token_server(*answer: Any) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        world.held.token = 9
        world.answer = lambda asked: reply(*answer) if asked.path == "/token" else world.held.answer(asked)

    return prepare


def tagged(*blobs: content.Blob) -> Callable[[World], object]:
    return lambda world: world.held.add("nvidia/cuda:v1", *blobs)


def requested(name: str) -> Callable[[World], None]:
    return lambda world: setattr(world, "name", f"HOST/nvidia/{name}")


def holds_another(world: World) -> None:
    world.held.tags["nvidia/cuda"][INDEX.digest] = (AMD.media_type, AMD.body)
    world.name = f"HOST/nvidia/cuda@{INDEX.digest}"


def holds_another_config(world: World) -> None:
    config = content.config()
    world.held.add("nvidia/cuda:v1", config, content.manifest(config))
    world.held.blobs["nvidia/cuda"][config.digest] = RISCV.body


RISCV = content.config(architecture="riscv64")
WINDOWS = content.index({"linux/amd64": AMD, "windows/amd64": ARM})
LIMIT = {"Retry-After": "3600", "ratelimit-limit": "100;w=21600", "ratelimit-remaining": "0;w=21600"}
ESCAPES = {"errors": [{"code": "UNKNOWN", "message": "unknown\x1b[31m error"}]}
Denied, Failed, Absent = errors.AccessRefused, errors.RegistryError, errors.ImageNotFound
#: What the registry does, the error, and its text.
REFUSALS: list[tuple[Callable[[World], object], type[EnvspecError], str]] = [
    (lambda world: setattr(world.held, "basic", ("u", "p")), Denied, "requires a login and none was.*docker login 127"),
    (settings(basic=("user", "other")), Denied, r"refuses the login from .*config\.json"),
    (settings(token=9, token_login=("user", "other")), Denied, "refuses the login from .*incorrect username or pass"),
    (denies, Denied, "DENIED: requested access.*get access to nvidia/cuda"),
    (answers(401), Failed, "HTTP 401.*offers nothing"),
    (answers(401, b"", {"WWW-Authenticate": "Negotiate"}), Failed, "offers negotiate"),
    (token_server(200, {"token": "wrong"}), Denied, "requires a login"),
    (token_server(500), Failed, "its token server 127.* HTTP 500"),
    (token_server(404), Failed, "its token server 127.* HTTP 404"),
    (token_server(200, b"<html>log in</html>"), Failed, "its token server 127.* sends no token"),
    (token_server(429, b"", {"Retry-After": "120"}), errors.RateLimited, "too many requests.*try again in 120 s"),
    (answers(429, b"", LIMIT), errors.RateLimited, r"many requests \(100 in 6 h\).*in 3600 s.*docker login.*mirror"),
    (requested("cuda:v2"), Absent, "v2: not found.*six months after its end of life"),
    (requested("cudda:v2"), Absent, "NAME_UNKNOWN.*no repository nvidia/cudda"),
    (requested(f"cuda@sha256:{'0' * 64}"), Absent, "not found.*--upgrade"),
    (tagged(WINDOWS), Absent, "not published for linux-aarch64.*linux/amd64, windows/amd64"),
    (tagged(RISCV, content.manifest(RISCV)), Absent, "for linux-64, linux-aarch64.*no platform that envspec supports"),
    (holds_another, errors.WrongDigest, f"the received bytes have the digest {AMD.digest}"),
    (holds_another_config, errors.WrongDigest, f"the received bytes have the digest {RISCV.digest}"),
    (
        answers(200, INDEX.body, {"Docker-Content-Digest": AMD.digest}),
        errors.WrongDigest,
        f"the registry names {AMD.digest}.*{INDEX.digest}",
    ),
    (answers(500, ESCAPES), Failed, r"HTTP 500 \(UNKNOWN: unknown"),
    (answers(405), Failed, "HTTP 405.*OCI distribution API"),
]


@pytest.mark.parametrize(("prepare", "kind", "text"), REFUSALS)
def test_refusals(world: World, prepare: Callable[[World], object], kind: type[EnvspecError], text: str) -> None:
    prepare(world)
    assert "\x1b" not in refused(world, kind, text)


def test_a_short_limit_is_waited_for(world: World) -> None:
    left = iter([reply(429, b"", {"Retry-After": "1"})])
    world.answer = lambda asked: next(left, None) or world.held.answer(asked)
    start = time.monotonic()
    assert world.resolve()[0].digest == INDEX.digest
    assert time.monotonic() - start >= 1.0


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"<html>Please log in</html>", "text/html; charset=utf-8", "response is text/html, not a JSON object"),
        (b"", "", "not a JSON object"),
        (b"\xff\xfe", content.OCI_INDEX, "not a JSON object"),
        (b"{}", "application/json", "is not a container image"),
        (b'{"mediaType": ["x"]}', "application/json", "is not a container image"),
        (b'{"schemaVersion": 1}', "application/vnd.docker.distribution.manifest.v1+prettyjws", "schema 1"),
        (b'{"manifests": 7}', content.OCI_INDEX, "without a list of manifests"),
        (b'{"manifests": [7]}', content.OCI_INDEX, "no digest or size"),
        (b'{"config": {}, "layers": []}', content.OCI_MANIFEST, "whose config has no digest"),
    ],
)
def test_what_is_no_manifest_is_refused(world: World, body: bytes, content_type: str, words: str) -> None:
    world.answer = lambda _: reply(200, body, {"Content-Type": content_type})
    refused(world, BadManifest, words)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", CLOSE], "ended early"),
        ([RESET], "connection broke"),
        ([CLOSE], "connection broke"),
    ],
)
def test_a_connection_that_fails(world: World, answer: Answer, words: str) -> None:
    world.answer = lambda _: answer
    with pytest.raises(NetworkError) as caught:
        world.resolve()
    assert words in str(caught.value)
    assert caught.value.exit_code == 5
    assert caught.value.hint


def test_plain_http_is_for_loopback_alone(world: World) -> None:
    """Requests to another host use https; here it is a proxy that sees what would have been sent."""

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
