"""Images into and out of the registry that Docker publishes: open, with logins, and over connections that break."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from envspec.io.http import open_http
from envspec.io.http_types import Timeouts
from envspec.models import PinnedDigest, Platform
from envspec.registry import errors
from envspec.registry.auth import Keychain
from envspec.registry.client import Registry, resolve_digests
from envspec.registry.copy import mirror, push_image
from envspec.registry.pull import fetch_blob
from envspec.registry.push import push_blob
from envspec.registry.reference import parse
from envspec.registry.types import Blob, Descriptor, Manifest, ManifestKind
from tests.support.registry_clients import Bytes
from tests.support.servers import registry as content
from tests.support.servers.docker_registry import HTPASSWD, LOGIN, PROGRAM, TokenServer, docker_registry, push
from tests.support.servers.loopback import CuttingProxy, RawServer, basic
from tests.support.servers.registry import digest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PROGRAM is None, reason="not run: docker-registry is not installed"),
]

QUICK = Timeouts(connect_s=2.0, stall_s=5.0, total_s=20.0, backoff_s=0.01)
CHUNK = 1024 * 1024
BODY = random.Random(9).randbytes(6 * CHUNK + 5)
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
BOTH = (Platform.LINUX_64, Platform.LINUX_AARCH64)
CONFIGS = (content.config(), content.config(architecture="arm64"))
OCI = tuple(content.manifest(config) for config in CONFIGS)
INDEX = content.index({"linux/amd64": OCI[0], "linux/arm64": OCI[1]})
DOCKER = tuple(content.manifest(config, content.DOCKER_MANIFEST) for config in CONFIGS)
LIST = content.index({"linux/amd64": DOCKER[0], "linux/arm64": DOCKER[1]}, content.DOCKER_LIST)
T = TypeVar("T")


def with_registry(home: Path, use: Callable[[Registry], Awaitable[T]], mirrors: Mapping[str, str] | None = None) -> T:
    async def run() -> T:
        async with open_http({}, timeouts=QUICK) as http:
            return await use(Registry(http, Keychain({}, home), mirrors or {}))

    return asyncio.run(run())


def resolve(
    home: Path, name: str, platforms: tuple[Platform, ...] = BOTH, mirrors: Mapping[str, str] | None = None
) -> tuple[PinnedDigest, ...]:
    return with_registry(home, lambda registry: resolve_digests(parse(name), platforms, registry), mirrors)


def image(architecture: str, *layers: bytes) -> tuple[list[Blob], Manifest]:
    """An image's blobs, the config last, and its manifest."""
    config = content.config(architecture=architecture)
    rows = [{"mediaType": GZIP, "digest": digest(layer), "size": len(layer)} for layer in layers]
    kind = content.OCI_MANIFEST
    document = {"schemaVersion": 2, "mediaType": kind, "config": config.descriptor, "layers": rows}
    return [*map(Bytes, layers), Bytes(config.body)], Manifest(content.encode(document), kind)


def pushed(home: Path, name: str, *images: tuple[list[Blob], Manifest]) -> None:
    """Push one image, or several under an index."""
    documents = [document for _, document in images]
    if len(images) > 1:
        words = ("linux/amd64", "linux/arm64")
        children = {word: content.Blob(each.media_type, each.body) for word, each in zip(words, documents, strict=True)}
        index = content.index(children)
        documents.append(Manifest(index.body, index.media_type, ManifestKind.INDEX))
    blobs = [blob for held, _ in images for blob in held]
    with_registry(home, lambda registry: push_image(registry, parse(name), blobs, documents))


def log_in(home: Path, host: str, user: str, password: str) -> None:
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": basic(user, password)}}}))


def test_an_index_a_list_and_a_single_manifest(tmp_path: Path) -> None:
    with docker_registry(tmp_path) as host:
        push(host, "nvidia/cuda:oci", *CONFIGS, *OCI, INDEX)
        push(host, "nvidia/cuda:docker", *DOCKER, LIST)
        push(host, "nvidia/cuda:amd64", DOCKER[0])
        push(host, "nvidia/cuda:arm64", OCI[1])
        for tag, expected in (("oci", INDEX), ("docker", LIST)):
            pins = resolve(tmp_path, f"{host}/nvidia/cuda:{tag}")
            assert [(pin.digest, pin.kind) for pin in pins] == [(expected.digest, "index")] * 2
        for tag, platform, single in (("amd64", BOTH[0], DOCKER[0]), ("arm64", BOTH[1], OCI[1])):
            pins = resolve(tmp_path, f"{host}/nvidia/cuda:{tag}", (platform,))
            assert pins == (PinnedDigest(platform, single.digest, "registry", "manifest"),)
        for name, text in (
            ("cuda:amd64", "not published for linux-aarch64"),
            ("cuda:none", "MANIFEST_UNKNOWN"),
            ("none:v1", "not found"),
        ):
            with pytest.raises(errors.ImageNotFound, match=text):
                resolve(tmp_path, f"{host}/nvidia/{name}")
        assert resolve(tmp_path, "nvidia/cuda:oci", mirrors={"docker.io": host})[0].digest == INDEX.digest


def test_push_mount_mirror_and_fetch(tmp_path: Path) -> None:
    images = [image("amd64", BODY, b"own"), image("arm64", b"arm", b"own")]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with docker_registry(tmp_path / "one") as one, docker_registry(tmp_path / "two") as two:
        pushed(tmp_path, f"{one}/team/app:v1", *images)

        async def use(registry: Registry) -> None:
            source = parse(f"{one}/team/app:v1")
            for host in (one, two):
                copied = await mirror(registry, source, parse(f"{host}/keep/app:v2"))
                assert (await registry.manifest(parse(f"{host}/keep/app:v2"))).digest == copied
            descriptor = Descriptor(GZIP, digest(BODY), len(BODY))
            await fetch_blob(registry, parse(f"{two}/keep/app:v2"), descriptor, tmp_path / "layer")

        with_registry(tmp_path, use)
    assert (tmp_path / "layer").read_bytes() == BODY


def test_skopeo_reads_a_pushed_image(tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("not run: skopeo is not installed")
    with docker_registry(tmp_path) as host:
        layer = gzip.compress(BODY, 1)
        pushed(tmp_path, f"{host}/team/app:v1", image("amd64", layer))
        command = [skopeo, "--insecure-policy", "copy", "--src-tls-verify=false", f"docker://{host}/team/app:v1"]
        subprocess.run([*command, f"oci:{tmp_path / 'layout'}:v1"], check=True, capture_output=True)
    assert (tmp_path / "layout" / "blobs" / "sha256" / digest(layer).partition(":")[2]).read_bytes() == layer


@pytest.mark.parametrize("cuts", [[2_500_000], [10_000, 900_000], [4_300_000, 4_300_000, 100]])
def test_a_connection_that_is_cut_during_an_upload(tmp_path: Path, cuts: list[int]) -> None:
    """docker-registry keeps no half of a chunk: it drops the upload, which then starts anew."""

    async def use(registry: Registry) -> None:
        async with CuttingProxy(host, cuts) as proxy:
            name = parse(f"{proxy.host}/team/app:v1")
            await push_blob(registry, name, Bytes(BODY), chunk_bytes=CHUNK)
            await fetch_blob(registry, name, Bytes(BODY).descriptor, tmp_path / "back")

    with docker_registry(tmp_path) as host:
        with_registry(tmp_path, use)
    assert (tmp_path / "back").read_bytes() == BODY


def test_basic_authentication(tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}}
    with docker_registry(tmp_path, auth) as host:
        name = f"{host}/team/app:v1"
        with pytest.raises(errors.AccessRefused, match="none was found"):
            pushed(tmp_path, name, image("amd64", BODY))
        log_in(tmp_path, host, LOGIN[0], "wrong")
        with pytest.raises(errors.AccessRefused, match=r"refuses the login from .*config\.json"):
            resolve(tmp_path, name)
        log_in(tmp_path, host, *LOGIN)
        pushed(tmp_path, name, image("amd64", BODY))
        assert resolve(tmp_path, name, BOTH[:1])[0].kind == "manifest"


class Slow(Bytes):
    """A blob that takes four seconds to read."""

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        for piece in super().chunks(start):
            time.sleep(4 * len(piece) / len(self.body))
            yield piece


def test_tokens_that_expire_midway(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("not run: openssl is not installed")
    server = TokenServer(tmp_path, openssl, lasts_s=-57)  # for two or three seconds: the registry adds 60

    async def use(registry: Registry) -> None:
        async with RawServer(server.answer) as tokens:
            with docker_registry(tmp_path, server.settings(tokens.url)) as host:
                log_in(tmp_path, host, LOGIN[0], "wrong")
                name = parse(f"{host}/team/app:v1")
                with pytest.raises(errors.AccessRefused, match="no such user"):
                    await resolve_digests(name, BOTH, Registry(registry.http, Keychain({}, tmp_path)))
                log_in(tmp_path, host, *LOGIN)
                await push_blob(registry, name, Slow(BODY), chunk_bytes=CHUNK)
                assert len(server.given) > 1
                other = parse(f"{host}/other/app:v1")
                reported: list[int] = []
                await push_blob(registry, other, Bytes(BODY), ("team/app",), reported.append)
                # Mounted, not sent.
                assert reported == [len(BODY)]

    with_registry(tmp_path, use)
    assert server.given[0] == ["repository:team/app:pull,push"]
    assert server.given[-1] == ["repository:other/app:pull,push", "repository:team/app:pull"]
