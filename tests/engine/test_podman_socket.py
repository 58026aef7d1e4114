"""Which engine is used: Docker's, or Podman's where nothing listens at Docker's socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.engine.client import Engine, first_engine, open_engine, podman_addresses
from envspec.engine.errors import AddressSource, EngineAddress, NoEngine
from tests.support.servers.engine import engine_at


def opened(
    stack: contextlib.ExitStack, docker: Path, environ: dict[str, str], warnings: list[str], *others: Path
) -> Engine:
    address = EngineAddress(f"unix://{docker}", AddressSource.DEFAULT)
    podman = [EngineAddress(f"unix://{each}", AddressSource.PODMAN) for each in others]
    return first_engine(stack, address, {"base_url": address.url}, podman, environ, warnings.append)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as found:
        yield found


def dead(path: Path) -> Path:
    """A socket that a process left when it ended."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return path


@pytest.mark.parametrize("is_left", [False, True])
def test_podman_is_used_where_docker_does_not_listen(
    stack: contextlib.ExitStack, tmp_path: Path, *, is_left: bool
) -> None:
    docker = dead(tmp_path / "docker.sock") if is_left else tmp_path / "docker.sock"
    podman = tmp_path / "podman.sock"
    warnings: list[str] = []
    stack.enter_context(engine_at(podman, "Podman Engine"))
    engine = opened(stack, docker, {}, warnings, dead(tmp_path / "of-the-user.sock"), podman)
    assert (engine.facts.is_podman, engine.address.url) == (True, f"unix://{podman}")
    [warning] = warnings
    assert f"unix://{docker}" in warning and f"podman 4.3.1 at unix://{podman} is used" in warning


def test_docker_goes_before_podman(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    docker, podman = tmp_path / "docker.sock", tmp_path / "podman.sock"
    warnings: list[str] = []
    stack.enter_context(engine_at(docker, "Engine"))
    stack.enter_context(engine_at(podman, "Podman Engine"))
    engine = opened(stack, docker, {}, warnings, podman)
    assert (engine.facts.name, warnings) == ("docker", [])


def test_no_engine_responds(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "podman"):
        (programs / name).touch(mode=0o755)
    with pytest.raises(NoEngine, match="Docker is installed but not running: no such file") as caught:
        opened(stack, tmp_path / "docker.sock", {"PATH": str(programs)}, [], dead(tmp_path / "podman.sock"))
    assert "systemctl --user start podman.socket" in str(caught.value.hint)


def test_podmans_socket_is_the_users(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert str(tmp_path) not in str(podman_addresses(environ))
    stack.enter_context(engine_at(tmp_path / "podman" / "podman.sock", "Podman Engine"))
    assert podman_addresses(environ)[0].url == f"unix://{tmp_path}/podman/podman.sock"
    # An address that somebody set is not another engine's.
    with pytest.raises(NoEngine, match="no engine responds at unix:///nowhere"):
        stack.enter_context(open_engine({**environ, "DOCKER_HOST": "unix:///nowhere"}))
