"""Images into and out of the registry that Docker publishes, over good wires and over ones that are cut."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envspec.io.http import open_http
from envspec.io.http_types import Timeouts
from envspec.registry import errors
from envspec.registry.auth import Keychain
from envspec.registry.client import Registry
from envspec.registry.copy import mirror, push_image
from envspec.registry.pull import fetch_blob
from envspec.registry.push import Transfer, push_blob, push_manifest
from envspec.registry.reference import parse
from envspec.registry.types import Blob, Descriptor, Manifest
from tests.support.registry_clients import Bytes
from tests.support.servers import registry as content
from tests.support.servers.docker_registry import HTPASSWD, LOGIN, PROGRAM, TokenServer, docker_registry
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


def image(architecture: str, *layers: bytes) -> tuple[list[Blob], Manifest]:
    """An image's blobs, the config last, and its manifest."""
    config = content.config(architecture=architecture)
    rows = [{"mediaType": GZIP, "digest": digest(layer), "size": len(layer)} for layer in layers]
    kind = content.OCI_MANIFEST
    document = {"schemaVersion": 2, "mediaType": kind, "config": config.descriptor, "layers": rows}
    return [*map(Bytes, layers), Bytes(config.body)], Manifest(content.encode(document), kind)


def pushed(home: Path, host: str, name: str, images: Sequence[tuple[list[Blob], Manifest]]) -> list[Transfer]:
    """Push one image, or several under an index."""
    documents = [document for _, document in images]
    if len(images) > 1:
        blobs = {
            f"linux/{word}": content.Blob(each.media_type, each.body)
            for word, each in zip(("amd64", "arm64"), documents, strict=True)
        }
        index = content.index(blobs)
        documents.append(Manifest(index.body, index.media_type))

    async def run() -> list[Transfer]:
        async with open_http({}, timeouts=QUICK) as http:
            registry = Registry(http, Keychain({}, home))
            blobs = [blob for held, _ in images for blob in held]
            return [moved.how for moved in await push_image(registry, parse(f"{host}/{name}"), blobs, documents)]

    return asyncio.run(run())


def log_in(home: Path, host: str) -> None:
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": basic(*LOGIN)}}}))


def test_push_mount_mirror_and_fetch(tmp_path: Path) -> None:
    images = [image("amd64", BODY, b"own"), image("arm64", b"arm", b"own")]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with docker_registry(tmp_path / "one") as one, docker_registry(tmp_path / "two") as two:
        assert set(pushed(tmp_path, one, "team/app:v1", images)) <= {Transfer.UPLOADED, Transfer.EXISTS}
        assert pushed(tmp_path, one, "team/app:v1", images) == []

        async def run() -> None:
            async with open_http({}, timeouts=QUICK) as http:
                registry = Registry(http, Keychain({}, tmp_path))
                source = parse(f"{one}/team/app:v1")
                for host, how in ((one, Transfer.MOUNTED), (two, Transfer.UPLOADED)):
                    done = await mirror(registry, source, parse(f"{host}/keep/app:v2"))
                    assert {moved.how for moved in done.transfers} == {how}
                    assert (await registry.manifest(parse(f"{host}/keep/app:v2"))).digest == done.digest
                descriptor = Descriptor(GZIP, digest(BODY), len(BODY))
                await fetch_blob(registry, parse(f"{two}/keep/app:v2"), descriptor, tmp_path / "layer")

        asyncio.run(run())
    assert (tmp_path / "layer").read_bytes() == BODY


def test_skopeo_takes_what_was_pushed(tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("not run: skopeo is not installed")
    with docker_registry(tmp_path) as host:
        layer = gzip.compress(BODY, 1)
        pushed(tmp_path, host, "team/app:v1", [image("amd64", layer)])
        command = [skopeo, "--insecure-policy", "copy", "--src-tls-verify=false", f"docker://{host}/team/app:v1"]
        subprocess.run([*command, f"oci:{tmp_path / 'layout'}:v1"], check=True, capture_output=True)
    assert (tmp_path / "layout" / "blobs" / "sha256" / digest(layer).partition(":")[2]).read_bytes() == layer


@pytest.mark.parametrize("cuts", [[2_500_000], [10_000, 900_000], [4_300_000, 4_300_000, 100]])
def test_a_wire_that_is_cut_while_a_blob_goes(tmp_path: Path, cuts: list[int]) -> None:
    """docker-registry keeps no half of a chunk: it drops the upload, which is then begun anew."""

    async def run(host: str) -> None:
        async with CuttingProxy(host, cuts) as proxy, open_http({}, timeouts=QUICK) as http:
            registry, name = Registry(http, Keychain({}, tmp_path)), parse(f"{proxy.host}/team/app:v1")
            moved = await push_blob(registry, name, Bytes(BODY), chunk_bytes=CHUNK)
            assert moved.how is Transfer.UPLOADED
            path = tmp_path / "back"
            await fetch_blob(registry, name, moved.descriptor, path)
            assert path.read_bytes() == BODY

    with docker_registry(tmp_path) as host:
        asyncio.run(run(host))


def test_a_manifest_before_its_blobs(tmp_path: Path) -> None:
    _, document = image("amd64", BODY)

    async def run(host: str) -> None:
        async with open_http({}, timeouts=QUICK) as http:
            registry, name = Registry(http, Keychain({}, tmp_path)), parse(f"{host}/team/app:v1")
            with pytest.raises(errors.RegistryError, match="UNKNOWN"):
                await push_manifest(registry, name, document.body, document.media_type)
            with pytest.raises(errors.ImageNotFound):
                await registry.manifest(name)

    with docker_registry(tmp_path) as host:
        asyncio.run(run(host))


def test_basic_authentication(tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}}
    with docker_registry(tmp_path, auth) as host:
        with pytest.raises(errors.AccessRefused, match="none was found"):
            pushed(tmp_path, host, "team/app:v1", [image("amd64", BODY)])
        log_in(tmp_path, host)
        assert pushed(tmp_path, host, "team/app:v1", [image("amd64", BODY)]) == [Transfer.UPLOADED] * 2


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

    async def run() -> None:
        async with RawServer(server.answer) as tokens, open_http({}, timeouts=QUICK) as http:
            with docker_registry(tmp_path, server.settings(tokens.url)) as host:
                log_in(tmp_path, host)
                registry = Registry(http, Keychain({}, tmp_path))
                moved = await push_blob(registry, parse(f"{host}/team/app:v1"), Slow(BODY), chunk_bytes=CHUNK)
                assert moved.how is Transfer.UPLOADED
                assert len(server.given) > 1
                other = parse(f"{host}/other/app:v1")
                assert (await push_blob(registry, other, Bytes(BODY), ("team/app",))).how is Transfer.MOUNTED

    asyncio.run(run())
    assert server.given[0] == ["repository:team/app:pull,push"]
    assert server.given[-1] == ["repository:other/app:pull,push", "repository:team/app:pull"]
