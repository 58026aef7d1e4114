"""Docker engines for tests marked `engine`: this machine's and one of a test's own, their containers and images.

A test or a fixture that cannot have what it needs raises `NotRun` with the reason: a skip, which pytest lists.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from docker import DockerClient
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container

from tests.support.machines import NotRun, program
from tests.support.machines.netns import namespace

#: A dockerd that starts containerd first is up in some 3 s here; a machine under load gets longer.
STARTING_S: Final = 60.0
STOPPING_S: Final = 30.0
SOCKET: Final = "unix:///var/run/docker.sock"


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
    dockerd, nsenter = program("dockerd"), program("nsenter")
    # Sockets have at most 108 characters: pytest's folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="envspec-engine-"))
    try:
        with namespace() as network:
            _lay(folder / "bin", programs or {})
            # `ip netns exec` would mount /sys anew, without the cgroups in it, which the daemon needs.
            command = [nsenter, f"--net=/run/netns/{network}", dockerd, *_options(folder)]
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


@dataclass(frozen=True, slots=True)
class Done:
    """What a container left. output: both streams, in the order in which they came. stdout: the one alone."""

    status: int
    output: str
    stdout: str


@contextlib.contextmanager
def created(
    client: DockerClient, image: str, command: Sequence[str] | None = None, **settings: Any
) -> Iterator[Container]:
    """A container that does not run yet, taken away at the end, running or not. settings: of the SDK's `create`."""
    container = client.containers.create(image, list(command) if command else None, **settings)
    try:
        yield container
    finally:
        container.remove(force=True, v=True)


def run_in(
    client: DockerClient,
    image: str,
    *command: str,
    files: Mapping[str, bytes] | None = None,
    timeout_s: float = 600,
    **settings: Any,
) -> Done:
    """Run a command in a container of that image, without a network where `settings` names none.

    files: put in first, by absolute path.
    """
    with created(client, image, command, **{"network_mode": "none", **settings}) as container:
        for path, content in (files or {}).items():
            put(container, path, content)
        container.start()
        status = int(container.wait(timeout=timeout_s)["StatusCode"])
        output, stdout = container.logs(), container.logs(stderr=False)
        return Done(status, output.decode("utf-8", "replace"), stdout.decode("utf-8", "replace"))


def put(container: Container, path: str, content: bytes, mode: int = 0o755) -> None:
    """Lay a file into a container, with the folders above it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.size, member.mode = len(content), mode
        tar.addfile(member, io.BytesIO(content))
    assert container.put_archive("/", packed.getvalue())


@contextlib.contextmanager
def removed(client: DockerClient, *images: str) -> Iterator[None]:
    """Take these images away at the end, by name or id, where they are there."""
    try:
        yield
    finally:
        for image in images:
            with contextlib.suppress(ImageNotFound):
                client.images.remove(image, force=True)


@contextlib.contextmanager
def image_of_programs(client: DockerClient, *names: str, files: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """An image of this machine's own programs and the libraries that they load: plumbing needs no network.

    Gives its id. The programs lie where they lie here. files: further ones, by path without the first `/`.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        for path in dict.fromkeys(path for name in names for path in _with_libraries(program(name))):
            tar.add(path, recursive=False)
        for path, content in (files or {}).items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    image = client.images.get(client.api.import_image_from_data(packed.getvalue()).split('"')[3])
    with removed(client, str(image.id)):
        yield str(image.id)


def _with_libraries(path: str) -> list[str]:
    """The file, and what `ldd` finds of it (`libc.so.6 => /lib/libc.so.6 (0x7f)`)."""
    message = subprocess.run([program("ldd"), path], capture_output=True, text=True, check=False).stdout
    words = [word for line in message.splitlines() for word in line.split() if word.startswith("/")]
    return [path, *(word for word in words if Path(word).is_file())]
