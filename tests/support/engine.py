"""Docker engines for tests marked `engine`: the one of this machine, and one of a test's own.

A test or a fixture that cannot have what it needs raises `NotRun` with the reason: a skip, which pytest lists.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _pytest.outcomes import Skipped
from docker import DockerClient
from docker.errors import DockerException

#: A dockerd that starts containerd first is up in some 3 s here; a machine under load gets longer.
STARTING_S: Final = 60.0
STOPPING_S: Final = 30.0
SOCKET: Final = "unix:///var/run/docker.sock"


class NotRun(Skipped):
    """Why a test does not run on this machine, in words for the list of skipped tests.

    pytest's own, since its hooks in a `conftest.py` of a folder do not see fixtures of the session.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"not run: {why}")


def program(name: str) -> str:
    """The path of an installed program. PATH of users is searched, and the folders for administrators."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise NotRun(f"{name} is not installed")
    return found


def connect(url: str | None = None, timeout_s: float = 120) -> DockerClient:
    """A client of the engine at that address, of the machine's own where none is given."""
    address = url or os.environ.get("DOCKER_HOST", SOCKET)
    if not address.startswith("unix://"):
        raise NotRun(f"the engine at {address} is not on this machine, and the registry of the tests is")
    client: DockerClient | None = None
    try:
        client = DockerClient(base_url=address, timeout=int(timeout_s))
        client.ping()
    except DockerException as error:
        if client is not None:
            client.close()
        raise NotRun(f"no container engine answers at {address} ({error})") from error
    return client


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine that only one test knows. url: its socket. folder: its data, its log, and what the test lays there."""

    url: str
    folder: Path
    pid: int

    @property
    def log(self) -> str:
        return (self.folder / "dockerd.log").read_text(errors="replace")


@contextlib.contextmanager
def own_engine(programs: Mapping[str, str] | None = None) -> Iterator[OwnEngine]:
    """Start dockerd with data, socket and network namespace of its own; stop it by its id, and leave nothing behind.

    In one namespace two engines would tear down each other's bridge. Nothing outside can be reached from this one.
    programs: executables, by name, with their text: first on the daemon's PATH from its start on.

    Raises:
        NotRun: not root, not Linux, a program is missing, or the daemon does not come up (with the end of its log).
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NotRun("an engine of the test's own needs root on Linux")
    dockerd, ip, nsenter = program("dockerd"), program("ip"), program("nsenter")
    # Sockets have at most 108 characters: pytest's folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="envspec-engine-"))
    namespace = f"envspec-{uuid.uuid4().hex[:8]}"
    try:
        with _network(ip, namespace):
            _lay(folder / "bin", programs or {})
            # `ip netns exec` would mount /sys anew, without the cgroups in it, which the daemon needs.
            command = [nsenter, f"--net=/run/netns/{namespace}", dockerd, *_options(folder)]
            environ = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
            with (folder / "dockerd.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ)
            engine = OwnEngine(f"unix://{folder / 'docker.sock'}", folder, process.pid)
            try:
                _wait(engine, process)
                yield engine
            finally:
                _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options(folder: Path) -> list[str]:
    (folder / "daemon.json").write_text("{}")  # else /etc/docker/daemon.json counts
    named = {"config-file": "daemon.json", "data-root": "data", "exec-root": "run", "pidfile": "dockerd.pid"}
    paths = [f"--{option}={folder / name}" for option, name in named.items()]
    return [*paths, f"--host=unix://{folder / 'docker.sock'}"]


@contextlib.contextmanager
def _network(ip: str, name: str) -> Iterator[None]:
    made = subprocess.run([ip, "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise NotRun(f"no network namespace can be made: {made.stderr.strip()}")
    try:
        subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True)
        yield
    finally:
        subprocess.run([ip, "netns", "delete", name], check=True)


def _lay(folder: Path, programs: Mapping[str, str]) -> None:
    folder.mkdir()
    for name, text in programs.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)


def _wait(engine: OwnEngine, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTING_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(NotRun):
            connect(engine.url).close()
            return
        time.sleep(0.1)
    raise NotRun(f"dockerd does not come up: {' | '.join(engine.log.splitlines()[-3:])}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOPPING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
