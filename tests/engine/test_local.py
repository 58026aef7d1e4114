"""The client for engines at a socket of this machine, which a run uses instead of the SDK."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.engine import client
from envspec.engine.client import Engine, first_engine, open_engine, podman_addresses
from envspec.engine.errors import AddressSource, EngineAddress, EngineError, NoEngine
from envspec.engine.local import LocalClient
from tests.support.servers.engine import engine_at

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="for sockets of Unix")


@contextlib.contextmanager
def answering(path: Path, *answers: bytes) -> Iterator[None]:
    """A server that sends the next answer to each connection and ends it; nothing for an empty one until the end."""
    is_over = threading.Event()

    def serve(listening: socket.socket) -> None:
        for answer in answers:
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
                if not answer:
                    is_over.wait(30)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineAddress:
    monkeypatch.setattr(client, "_TIMEOUT_S", 0.2)
    return EngineAddress(f"unix://{tmp_path}/engine.sock", AddressSource.HOST)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "HTTP 404, which is not from a container engine"),
        (b"", "it accepts connections but does not respond"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", "not from a container engine"),
        (b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK", "Expecting value"),
        (b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 4\r\n\r\nnull", "no JSON object"),
        (b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n\r\n" + b" " * (17 << 20) + b"{}", "Expecting value"),
    ],
)
def test_what_is_no_engine(tmp_path: Path, at: EngineAddress, answer: bytes, reason: str) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(answering(tmp_path / "engine.sock", answer, answer))
        caught = stack.enter_context(pytest.raises(NoEngine))
        first_engine(stack, at, None, [], {}, print)
    assert reason in caught.value.message


def opened(tmp_path: Path, at: EngineAddress, stack: contextlib.ExitStack) -> Engine:
    with engine_at(tmp_path / "engine.sock", "Engine"):
        return first_engine(stack, at, None, [], {}, print)


def test_an_engine_that_refuses(tmp_path: Path, at: EngineAddress) -> None:
    body = json.dumps({"message": "no space left on device"}).encode()
    answer = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with contextlib.ExitStack() as stack:
        engine = opened(tmp_path, at, stack)
        stack.enter_context(answering(tmp_path / "engine.sock", answer))
        with pytest.raises(EngineError, match="the engine's disk is full"), engine.errors_while("making the container"):
            engine.containers.start("it")


def test_an_engine_that_ends(tmp_path: Path, at: EngineAddress) -> None:
    with contextlib.ExitStack() as stack:
        engine = opened(tmp_path, at, stack)
        with pytest.raises(EngineError, match="stopped responding: no such file"), engine.errors_while("starting"):
            engine.containers.start("it")


def test_an_engine_that_ends_while_a_container_runs(tmp_path: Path, at: EngineAddress) -> None:
    cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with contextlib.ExitStack() as stack:
        engine = opened(tmp_path, at, stack)
        stack.enter_context(answering(tmp_path / "engine.sock", cut))
        stack.enter_context(pytest.raises(EngineError, match="stopped responding: it ended the connection"))
        with engine.errors_while("running"), engine.containers.post("/wait", params={}, stream=True, timeout=9) as wait:
            wait.json()


def test_the_readers_end_is_not_the_engines(tmp_path: Path, at: EngineAddress) -> None:
    with contextlib.ExitStack() as stack:
        engine = opened(tmp_path, at, stack)
        with pytest.raises(BrokenPipeError), engine.errors_while("running the command"):
            raise BrokenPipeError


@pytest.mark.parametrize("status", [b"101 UPGRADED", b"200 OK"])
def test_an_attached_socket_outlives_its_request(tmp_path: Path, at: EngineAddress, status: bytes) -> None:
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        engine = opened(tmp_path, at, stack)
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(tmp_path / "engine.sock"))
        listening.listen()

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 %b\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n" % status)
                theirs.recv(1)
                connection.sendall(b"from the container")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with ours, theirs, engine.containers.attach_socket("it", {"stream": 1}) as joined:
            ours.sendall(b".")
            assert joined.recv(100) == b"from the container"
        thread.join(30)


@pytest.mark.parametrize(
    ("config", "is_plain"),
    [
        (None, True),
        ("{}", True),
        ('{"auths": {}, "currentContext": "default"}', True),
        ('{"HttpHeaders": {"Team": "vision"}}', False),
        ('{"currentContext": ""}', False),
        ("{", False),
    ],
)
def test_what_docker_is_configured_to_is_left_to_the_sdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, *, is_plain: bool
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/engine.sock"}
    with engine_at(tmp_path / "engine.sock", "Engine"), open_engine(environ) as engine:
        assert isinstance(engine.containers, LocalClient) == is_plain
        assert engine.client.ping() is not None
    with engine_at(tmp_path / "engine.sock", "Engine"), open_engine({**environ, "DOCKER_CONTEXT": "x"}) as engine:
        assert not isinstance(engine.containers, LocalClient)


def test_folders_that_cannot_be_searched_have_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the HOME of another user; a name that is too long is refused to root, too."""
    unusable = "/" + "x" * 5000
    for name in ("HOME", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, unusable)
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/engine.sock"}
    with engine_at(tmp_path / "engine.sock", "Engine"), open_engine(environ) as engine:
        assert isinstance(engine.containers, LocalClient)
    assert unusable not in str(podman_addresses({"XDG_RUNTIME_DIR": unusable}))


def test_the_sdk_is_not_imported(tmp_path: Path) -> None:
    program = """
import os, sys
from envspec.engine import run
from envspec.engine.client import inspect_image, open_engine
with open_engine(os.environ) as engine:
    with engine.errors_while("looking"):
        inspect_image(engine, "x")
print([name for name in ("docker", "requests", "urllib3") if name in sys.modules])
"""
    environ = os.environ | {"DOCKER_HOST": f"unix://{tmp_path}/engine.sock", "HOME": str(tmp_path)}
    with engine_at(tmp_path / "engine.sock", "Engine"):
        done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_a_context_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text('{"currentContext": "of-a-colleague"}')
    with pytest.raises(NoEngine, match="there is no docker context"), open_engine({}):
        pass
