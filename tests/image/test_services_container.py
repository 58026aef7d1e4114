"""sshd and init in a container of their own image: who gets in, and what is made at the start."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient
from docker.models.containers import Container

from envspec.context import Context
from envspec.image.layers.store import LayerStore
from envspec.image.layers.types import Compression, LayerSource
from envspec.image.services import ServicesSource, services_config
from envspec.image.sources.system import SystemLayerRequest, build_system_layer, read_entries
from envspec.models import ImageSettings, Platform, Service
from tests.support.machines import program, standin
from tests.support.machines.engine import created, removed, run_in
from tests.support.waits import wait_for

# The packages come from Debian's archive, as the stand-in knows it.
pytestmark = [pytest.mark.engine, pytest.mark.network]

PATH = "/opt/env/bin:/usr/local/cuda/bin:/usr/bin:/bin"
SETTINGS = ImageSettings(services=(Service("ssh", 22),), apt=("openssh-server",))


@dataclass(frozen=True, slots=True)
class Key:
    path: Path

    @property
    def public(self) -> str:
        return self.path.with_suffix(".pub").read_text()


@pytest.fixture(scope="module")
def image(
    engine: DockerClient, standin_base: standin.Pushed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The stand-in, a system layer with sshd, and the layer of services; Debian's Python in the environment's place."""
    cache = tmp_path_factory.mktemp("cache")
    store = LayerStore(cache)
    below = f"{standin_base.name.rpartition(':')[0]}@{standin_base.digest}"
    request = SystemLayerRequest(Platform.LINUX_64, below, standin_base.layout.manifest, SETTINGS.apt)
    installing = build_system_layer(
        request,
        Context(os.environ, cache, cache),
        lambda source: store.write(source, Compression.GZIP),
        lambda _: None,
    )
    _, system = asyncio.run(installing)
    assert not [each.path for each in read_entries(system.folder) if "ssh_host" in each.path]
    conduct = services_config(SETTINGS)
    steps = [
        f"FROM {below}",
        "ADD 0.tar 1.tar /",
        "RUN mkdir -p /opt/env/bin && ln -s /usr/bin/python3.11 /opt/env/bin/python",
        f"USER {conduct.user}",
        f"ENV PATH={PATH} GREETING='good \"day\"' " + " ".join(f"{k}={v}" for k, v in conduct.env),
        f"ENTRYPOINT {list(conduct.entrypoint or ())}".replace("'", '"'),
    ]
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        files = {"Dockerfile": "\n".join(steps).encode()}
        sources: tuple[LayerSource, ...] = (system, ServicesSource(SETTINGS, PATH))
        for place, source in enumerate(sources):
            files[f"{place}.tar"] = b"".join(store.tar(store.write(source, Compression.GZIP)))
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    context.seek(0)
    built, _ = engine.images.build(fileobj=context, custom_context=True, rm=True)
    with removed(engine, str(built.id), below):
        yield str(built.id)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Key, Key]:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "other"):
        words = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    return Key(folder / "own"), Key(folder / "other")


@pytest.fixture
def server(engine: DockerClient, image: str, keys: tuple[Key, Key]) -> Iterator[Container]:
    settings: dict[str, Any] = {"ports": {"22/tcp": ("127.0.0.1", None)}}
    with created(
        engine, image, environment={"SSH_AUTHORIZED_KEYS": keys[0].public, "BROKEN": "a\nb"}, **settings
    ) as container:
        container.start()
        _listening(container)
        yield container


def _listening(container: Container) -> None:
    health = ["/opt/env/bin/python", "-I", "-S", "/opt/envspec/health.py"]
    wait_for(lambda: container.exec_run(health)[0] == 0, 30)
    container.reload()


def _ssh(container: Container, key: Key, *command: str, user: str = "envspec", **options: str) -> tuple[int, str]:
    port = container.attrs["NetworkSettings"]["Ports"]["22/tcp"][0]["HostPort"]
    given: Mapping[str, str] = {
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "10",
        "LogLevel": "ERROR",
        **options,
    }
    words = [program("ssh"), "-F", "none", "-i", str(key.path), "-p", port]
    words += [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(
        [*words, f"{user}@127.0.0.1", *command], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def _host_key(container: Container) -> str:
    status, key = container.exec_run(["cat", "/var/lib/envspec/ssh/ssh_host_ed25519_key.pub"])
    assert status == 0, key
    assert isinstance(key, bytes)
    return key.decode()


def test_a_key_lets_the_user_in_with_the_containers_environment(server: Container, keys: tuple[Key, Key]) -> None:
    status, message = _ssh(server, keys[0], "id -u; command -v python; echo $GREETING; pwd")
    assert status == 0, message
    assert message.splitlines()[-4:] == ["1000", "/opt/env/bin/python", 'good "day"', "/home/envspec"]
    status, message = _ssh(server, keys[0], shlex.join(["bash", "-lc", "echo $PATH"]))
    assert (status, message.splitlines()[-1].startswith(f"{PATH}:")) == (0, True), message
    assert b"ssh: logins do not get BROKEN: sshd accepts no line breaks" in server.logs()


def test_nobody_else_gets_in(server: Container, keys: tuple[Key, Key]) -> None:
    own, other = keys
    for refused in (
        _ssh(server, other, "true"),
        _ssh(server, own, "true", user="root"),
        _ssh(server, own, "true", user="nobody"),
        _ssh(server, own, "true", PubkeyAuthentication="no", BatchMode="no", NumberOfPasswordPrompts="0"),
    ):
        assert refused[0] == 255
        # The methods that the server would have taken: keys, and nothing else.
        assert "Permission denied (publickey)" in refused[1]


def test_sshd_is_not_root_whoever_starts_the_container(engine: DockerClient, image: str, keys: tuple[Key, Key]) -> None:
    settings: dict[str, Any] = {"ports": {"22/tcp": ("127.0.0.1", None)}, "user": "0:0"}
    with created(engine, image, environment={"SSH_AUTHORIZED_KEYS": keys[0].public}, **settings) as container:
        container.start()
        _listening(container)
        owners = {
            name: uid for _, uid, name in container.top(ps_args="-eo pid,uid,comm")["Processes"] if "sshd" in name
        }
        assert owners == {"sshd": "1000"}
        assert _ssh(container, keys[0], "id -u")[0] == 0
        assert _ssh(container, keys[0], "true", user="root")[0] == 255


def test_host_keys_are_made_at_the_first_start_and_kept(engine: DockerClient, image: str) -> None:
    volume = engine.volumes.create(f"envspec-test-{uuid.uuid4().hex[:8]}")
    try:
        seen = []
        for volumes in ({}, {volume.name: {"bind": "/var/lib/envspec"}}, {volume.name: {"bind": "/var/lib/envspec"}}):
            with created(engine, image, volumes=volumes) as container:
                container.start()
                _listening(container)
                first = _host_key(container)
                container.restart(timeout=10)
                _listening(container)
                assert _host_key(container) == first
                seen.append(first)
                assert "nobody can log in yet" in container.logs().decode()
        assert seen[0] != seen[1] == seen[2]
    finally:
        volume.remove(force=True)


def test_a_stop_ends_it_at_once_and_well(server: Container) -> None:
    server.stop(timeout=10)
    server.reload()
    assert server.attrs["State"]["ExitCode"] == 0


def test_a_user_without_a_name_is_told_what_to_do(engine: DockerClient, image: str) -> None:
    done = run_in(engine, image, user="4242:4242", environment={"HOME": "/tmp/home"})
    assert done.status == 78
    assert re.search(r"ssh: user 4242 is not in /etc/passwd", done.output)


def test_a_command_runs_beside_the_services_with_process_1s_duties(engine: DockerClient, image: str) -> None:
    done = run_in(engine, image, "sh", "-c", "echo $PPID; id -un; exit 5")
    assert done.status == 5
    assert done.output.splitlines()[-2:] == ["1", "envspec"]
