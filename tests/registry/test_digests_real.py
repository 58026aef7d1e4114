"""Digests from the registry that Docker publishes, open, with basic authentication, and with a token server."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from envspec.io.http import open_http
from envspec.io.http_types import Timeouts
from envspec.models import PinnedDigest, Platform
from envspec.registry import errors
from envspec.registry.auth import Keychain
from envspec.registry.client import Registry, resolve_digests
from envspec.registry.reference import parse
from envspec.registry.types import ManifestKind
from tests.support.servers import registry as content
from tests.support.servers.docker_registry import HTPASSWD, LOGIN, PROGRAM, TokenServer, docker_registry, push
from tests.support.servers.loopback import RawServer, basic

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PROGRAM is None, reason="not run: docker-registry is not installed"),
]

BOTH = (Platform.LINUX_64, Platform.LINUX_AARCH64)
CONFIGS = (content.config(), content.config(architecture="arm64"))
OCI = tuple(content.manifest(config) for config in CONFIGS)
INDEX = content.index({"linux/amd64": OCI[0], "linux/arm64": OCI[1]})
DOCKER = tuple(content.manifest(config, content.DOCKER_MANIFEST) for config in CONFIGS)
LIST = content.index({"linux/amd64": DOCKER[0], "linux/arm64": DOCKER[1]}, content.DOCKER_LIST)


def resolve(
    home: Path, name: str, platforms: tuple[Platform, ...] = BOTH, mirrors: Mapping[str, str] | None = None
) -> tuple[PinnedDigest, ...]:
    async def run() -> tuple[PinnedDigest, ...]:
        async with open_http({}, timeouts=Timeouts(backoff_s=0.01)) as http:
            return await resolve_digests(parse(name), platforms, Registry(http, Keychain({}, home), mirrors or {}))

    return asyncio.run(run())


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
        with pytest.raises(errors.ImageNotFound, match="not published for linux-aarch64"):
            resolve(tmp_path, f"{host}/nvidia/cuda:amd64")
        with pytest.raises(errors.ImageNotFound, match="MANIFEST_UNKNOWN"):
            resolve(tmp_path, f"{host}/nvidia/cuda:none")
        with pytest.raises(errors.ImageNotFound, match="not found"):
            resolve(tmp_path, f"{host}/nvidia/none:v1")
        assert resolve(tmp_path, "nvidia/cuda:oci", mirrors={"docker.io": host})[0].digest == INDEX.digest


def test_skopeo_names_the_same_digest(tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("not run: skopeo is not installed")
    with docker_registry(tmp_path) as host:
        push(host, "nvidia/cuda:v1", *CONFIGS, *OCI, INDEX)
        raw = subprocess.run(
            [skopeo, "inspect", "--tls-verify=false", "--raw", f"docker://{host}/nvidia/cuda:v1"],
            check=True,
            capture_output=True,
        ).stdout
        assert resolve(tmp_path, f"{host}/nvidia/cuda:v1")[0].digest == content.digest(raw)


def test_a_tag_that_was_overwritten_does_not_matter_to_a_digest(tmp_path: Path) -> None:
    async def fetch(name: str) -> tuple[ManifestKind, str]:
        async with open_http({}) as http:
            got = await Registry(http, Keychain({}, tmp_path)).manifest(parse(name))
            return got.kind, got.digest

    with docker_registry(tmp_path) as host:
        push(host, "nvidia/cuda:v1", *CONFIGS, *OCI, INDEX)
        pinned = resolve(tmp_path, f"{host}/nvidia/cuda:v1")[0].digest
        push(host, "nvidia/cuda:v1", *DOCKER, LIST)
        assert resolve(tmp_path, f"{host}/nvidia/cuda:v1")[0].digest == LIST.digest
        assert asyncio.run(fetch(f"{host}/nvidia/cuda:v1@{pinned}")) == (ManifestKind.INDEX, INDEX.digest)


def test_a_blob_that_was_damaged_on_its_disk_is_refused(tmp_path: Path) -> None:
    with docker_registry(tmp_path) as host:
        push(host, "nvidia/cuda:v1", *CONFIGS, OCI[0])
        stored = [path for path in (tmp_path / "data").rglob("data") if path.read_bytes() == CONFIGS[0].body]
        stored[0].write_bytes(CONFIGS[0].body.replace(b"amd64", b"arm64"))
        with pytest.raises(errors.WrongDigest):
            resolve(tmp_path, f"{host}/nvidia/cuda:v1", BOTH[1:])


def test_basic_authentication(tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}}
    with docker_registry(tmp_path, auth) as host:
        push(host, "nvidia/cuda:v1", *CONFIGS, *OCI, INDEX, headers={"Authorization": f"Basic {basic(*LOGIN)}"})
        with pytest.raises(errors.AccessRefused, match="none was found"):
            resolve(tmp_path, f"{host}/nvidia/cuda:v1")
        log_in(tmp_path, host, LOGIN[0], "wrong")
        with pytest.raises(errors.AccessRefused, match=r"refuses the login from .*config\.json"):
            resolve(tmp_path, f"{host}/nvidia/cuda:v1")
        log_in(tmp_path, host, *LOGIN)
        assert resolve(tmp_path, f"{host}/nvidia/cuda:v1")[0].digest == INDEX.digest


def test_a_token_server(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("not run: openssl is not installed")
    server = TokenServer(tmp_path, openssl)

    async def run() -> None:
        async with RawServer(server.answer) as tokens:
            with docker_registry(tmp_path, server.settings(tokens.url)) as host:
                given = {"Authorization": f"Bearer {server.token('repository:nvidia/cuda:pull,push')}"}
                push(host, "nvidia/cuda:v1", *CONFIGS, *OCI, INDEX, headers=given)
                async with open_http({}, timeouts=Timeouts(backoff_s=0.01)) as http:
                    reference = parse(f"{host}/nvidia/cuda:v1")
                    log_in(tmp_path, host, LOGIN[0], "wrong")
                    with pytest.raises(errors.AccessRefused, match="no such user"):
                        await resolve_digests(reference, BOTH, Registry(http, Keychain({}, tmp_path)))
                    log_in(tmp_path, host, *LOGIN)
                    registry = Registry(http, Keychain({}, tmp_path))
                    assert (await resolve_digests(reference, BOTH, registry))[0].digest == INDEX.digest
                    before = len(tokens.asked)
                    await resolve_digests(reference, BOTH, registry)
                    assert len(tokens.asked) == before

    asyncio.run(run())
