"""Dockerfiles built in the real engine, by BuildKit and by the builder before it."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from docker import DockerClient

from envspec.engine.build import Build, Builder, BuildFailed, build, builder_for
from envspec.engine.client import Engine, open_engine
from envspec.image.docker_builder import DockerOrder
from envspec.image.docker_builder import build as build_lock
from envspec.models import BaseImage, PinnedDigest, Platform
from tests.support import docker_registry
from tests.support.containers import created, image_of_programs, removed, run_in
from tests.support.engine import program
from tests.support.run_container import lock_of

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
BOTH = pytest.mark.parametrize("builder", Builder)


@pytest.fixture
def opened(engine: DockerClient) -> Iterator[Engine]:
    with open_engine(os.environ) as found:
        yield found


@pytest.fixture(scope="module")
def base(engine: DockerClient) -> Iterator[str]:
    """The name of an image with a shell."""
    name = f"envspec-test/base:{uuid.uuid4().hex[:8]}"
    with image_of_programs(engine, "sh", "cat", "mkdir", "sleep", "stat") as image, removed(engine, name):
        engine.images.get(image).tag(name)
        try:
            yield name
        finally:
            remove_children(engine, image)


def remove_children(engine: DockerClient, image: str) -> None:
    """What the older builder keeps of each step, for the next build."""
    for row in engine.api.images(all=True):
        if row["ParentId"] == image:
            remove_children(engine, row["Id"])
            engine.images.remove(row["Id"], force=True)


def folder(path: Path, base: str, *lines: str) -> Path:
    path.mkdir(exist_ok=True)
    shell = json.dumps([program("sh"), "-c"])
    (path / "Dockerfile").write_text("\n".join((f"FROM {base}", f"SHELL {shell}", *lines, "")))
    return path


@BOTH
def test_an_image_its_files_and_its_log(
    engine: DockerClient, opened: Engine, base: str, tmp_path: Path, builder: Builder
) -> None:
    run = uuid.uuid4().hex
    where = folder(
        tmp_path / "made",
        base,
        "ARG WHO",
        "COPY . /in",
        f"RUN cat /in/told.txt; echo from $WHO {run}; stat -c %a%Y /in/told.txt /in/run.sh; cat /in/.secret || true",
    )
    (where / "told.txt").write_text("grüße\n")
    (where / "run.sh").write_text("")
    (where / "run.sh").chmod(0o700)
    (where / ".secret").write_text("hidden")
    (where / ".dockerignore").write_text("# not to be sent\n.secret\n")
    tag = f"envspec-test/made:{run[:8]}"
    lines: list[str] = []
    with removed(engine, tag):
        made = build(opened, Build(where, tag, {"WHO": "me"}), builder, lines.append)
        assert engine.images.get(tag).id == made
        assert run_in(engine, made, "cat", "/in/told.txt").output == "grüße\n"
    text = "\n".join(lines)
    assert "grüße" in text
    assert f"from me {run}" in text
    # whatever this machine's times and umask are
    assert "6440" in text
    assert "7550" in text
    assert "hidden" not in text
    assert "No such file" in text


def files_of(engine: DockerClient, image: str) -> dict[str, tuple[int, int, bytes]]:
    """Path -> kind and mode and size of everything in an image's file system."""
    with created(engine, image, ["true"]) as container:
        packed = io.BytesIO(b"".join(cast("Iterator[bytes]", container.export())))
    with tarfile.open(fileobj=packed) as tar:
        return {each.name: (each.mode, each.size, each.type) for each in tar}


@BOTH
def test_certificates_reach_the_steps_and_not_the_image(
    engine: DockerClient, opened: Engine, base: str, tmp_path: Path, builder: Builder
) -> None:
    run = uuid.uuid4().hex
    secret = f"certificate {run}\n".encode()
    told = (
        "RUN : ; cat $SSL_CERT_FILE /dev/null; \\\n# RUN is a word\n  cat $PIP_CERT $APT_CONFIG /dev/null; mkdir /made"
    )
    where = folder(tmp_path / "made", base, told, f"FROM {base} AS other", f'SHELL ["{program("sh")}", "-c"]', told)
    (where / ".dockerignore").write_text("*\n")
    tags = [f"envspec-test/made:{run[:8]}-{which}" for which in ("with", "without")]
    lines: list[str] = []
    with removed(engine, *tags):
        build(opened, Build(where, tags[1]), builder, lambda _: None)
        build(opened, Build(where, tags[0], certificates=secret), builder, lines.append)
        with_it, without = (engine.images.get(tag) for tag in tags)
        assert files_of(engine, str(with_it.id)) == files_of(engine, str(without.id))
        assert with_it.attrs["Config"]["Env"] == without.attrs["Config"]["Env"]
        assert secret not in b"".join(with_it.save())
    text = "\n".join(lines)
    if builder is Builder.LEGACY:
        assert "warning: the older builder can't be given this machine's certificates" in text
    else:
        assert secret.decode().strip() in text
        assert 'Acquire::https::CaInfo "/dev/shm/envspec/ca.pem";' in text


@BOTH
def test_lines_come_while_it_builds(opened: Engine, base: str, tmp_path: Path, builder: Builder) -> None:
    run = uuid.uuid4().hex
    where = folder(tmp_path / "slow", base, f"RUN echo first {run[:6]}; sleep 2; echo last; exit 4")
    seen: list[tuple[str, float]] = []
    with pytest.raises(BuildFailed, match="4"):
        build(opened, Build(where), builder, lambda line: seen.append((line, time.monotonic())))
    first = next(moment for line, moment in seen if line.endswith(f"first {run[:6]}"))
    last = next(moment for line, moment in seen if line.endswith("last"))
    assert last - first > 1.5


@BOTH
def test_a_dockerfile_that_is_none(opened: Engine, tmp_path: Path, builder: Builder) -> None:
    (tmp_path / "Dockerfile").write_text("FRUM nothing\n")
    with pytest.raises(BuildFailed, match="FRUM"):
        build(opened, Build(tmp_path), builder, lambda _: None)


@BOTH
def test_ctrl_c_ends_the_build_in_the_engine(engine: DockerClient, base: str, tmp_path: Path, builder: Builder) -> None:
    mark = f"envspec-{uuid.uuid4().hex}"
    where = folder(tmp_path / "long", base, f"RUN echo begun; : {mark}; sleep 300")
    script = (
        "import os, sys, pathlib\n"
        "from envspec.engine.build import Build, Builder, build\n"
        "from envspec.engine.client import open_engine\n"
        "with open_engine(os.environ) as engine:\n"
        "    asked = Build(pathlib.Path(sys.argv[1]))\n"
        "    build(engine, asked, Builder[sys.argv[2]], lambda line: print(line, flush=True))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(where), builder.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.rstrip().endswith("begun"):
            break
    assert is_running(mark)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    until = time.monotonic() + 120
    while is_running(mark) or engine.api.containers(all=True, filters={"ancestor": base}):
        assert time.monotonic() < until
        time.sleep(0.2)


def is_running(mark: str) -> bool:
    return any(mark in words for words in _command_lines() if "-c" in words)


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if "pytest" not in words and "Builder[" not in words:
            yield words


@pytest.mark.parametrize("choice", ["1", "0"])
def test_a_locks_dockerfile_on_a_base_that_needs_a_login(
    engine: DockerClient, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    program("docker-registry")
    (tmp_path / "htpasswd").write_text(docker_registry.HTPASSWD)
    auth = {"htpasswd": {"realm": "tests", "path": str(tmp_path / "htpasswd")}}
    user, password = docker_registry.LOGIN
    with docker_registry.docker_registry(tmp_path, auth) as host:
        name = f"{host}/nvidia/cuda"
        engine.images.get(base).tag(name, "1")
        pushed = list(
            engine.api.push(name, "1", stream=True, decode=True, auth_config={"username": user, "password": password})
        )
        digest = next(row["aux"]["Digest"] for row in pushed if "aux" in row)
        engine.images.remove(f"{name}:1")
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        lines = (
            "ARG REGISTRY=docker.io",
            f"FROM ${{REGISTRY}}/nvidia/cuda:1@{digest}",
            f'SHELL ["{program("sh")}", "-c"]',
        )
        lock_folder = tmp_path / "lock"
        lock_folder.mkdir()
        (lock_folder / "Dockerfile").write_text("\n".join((*lines, "ARG TARGETARCH", "RUN echo for $TARGETARCH", "")))
        pinned = PinnedDigest(Platform.LINUX_64, digest, "registry", "manifest")
        lock = replace(lock_of(), base_image=BaseImage("docker.io/nvidia/cuda", "1", None, None, "", (pinned,)))
        tag = f"envspec-test/locked:{uuid.uuid4().hex[:8]}"
        order = DockerOrder(lock, lock_folder, Platform.LINUX_64, tag, {"docker.io": host})
        told: list[str] = []
        environ = {**os.environ, "DOCKER_BUILDKIT": choice}
        with open_engine(environ) as opened, removed(engine, tag, f"{name}@{digest}"):
            assert (builder_for(opened.facts, environ) is Builder.LEGACY) is (choice == "0")
            made = build_lock(opened, order, environ, told.append)
            assert engine.images.get(tag).id == made
        assert f"pulling the base image {name}@{digest}" in told
        assert any(line.endswith("for amd64") for line in told)
