"""Runs a script in a temporary container, by Docker or buildah.

Both receive the same files, run the same script and return the same folder. They are called from a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from envspec.engine.client import open_engine
from envspec.engine.errors import EngineError, NoEngine
from envspec.errors import NetworkError, NoSolution
from envspec.image.sources.system_script import MIRROR, NO_APT, NO_SNAPSHOT, NO_UPDATE, OUT, WORK
from envspec.io.files import open_untrusted
from envspec.models import Platform
from envspec.registry.types import OCI_PLATFORMS

if TYPE_CHECKING:
    from envspec.engine.client import Engine

T = TypeVar("T")
#: What apt prints if it can't reach an archive. `apt-get update` ends with 0 then, and nothing is found afterwards.
_UNREACHABLE: Final = re.compile(r"^  [EW]: (?:Failed to fetch|Some index files failed to download)", re.MULTILINE)
_HOURS_S: Final = 6 * 3600
_LAST_LINES: Final = 12
#: Mount point of a job's index.
INDEX: Final = "/.envspec-index"
_COMMAND: Final = ("/bin/sh", f"{WORK}/install.sh")
_Log = Callable[[str], None]
#: A container's files by name; each is read before the next one.
ContainerFiles = Iterator[tuple[str, IO[bytes]]]


def folder_files(folder: Path) -> ContainerFiles:
    """A folder's regular files: a container may have left links out of it, or endless files."""
    for path in sorted(folder.iterdir()):
        try:
            file = open_untrusted(path)
        except OSError:
            continue
        with file:
            yield path.name, file


def tar_files(stream: IO[bytes]) -> ContainerFiles:
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                yield PurePosixPath(member.name).name, file


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """A tar of WORK with these files, for a container's root."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        folder = tarfile.TarInfo(WORK[1:])
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(f"{WORK[1:]}/{name}")
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace").rstrip() for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace").rstrip()


def forward_lines(lines: Iterable[str], log: _Log) -> list[str]:
    """Log every line; returns the last ones, for a message."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    for line in filter(None, lines):
        log(line)
        last.append(line)
    return list(last)


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a raw stream."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        self._rest = self._rest or memoryview(next(self._chunks, b""))
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)


class ContainerTool(Enum):
    """AUTO: Docker, or Podman by Docker's API; buildah if none answers."""

    AUTO = "auto"
    DOCKER = "docker"
    BUILDAH = "buildah"


class RegistryTransport(Enum):
    """Protocol of the base's registry."""

    HTTP = "http"
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class ContainerJob:
    """One container. base: `host/repository@sha256:...`, to pull. files: below WORK. name: of the container.

    index: for third-party code, which runs without capabilities and network: a folder of `envspec.io.confine.door`,
    mounted at INDEX. None for envspec's own code, which uses this machine's network.
    """

    base: str
    platform: Platform
    plain: RegistryTransport
    name: str
    files: Mapping[str, bytes]
    index: Path | None = None


class InstallFailed(NoSolution):
    """The packages can't be installed in the base."""

    code = "apt-failed"


class ArchiveUnreachable(NetworkError):
    """The archive of packages can't be read."""

    code = "apt-unreachable"


class ContainerRunner(Protocol):
    """Runs one job's container."""

    def run(self, log: _Log, read: Callable[[ContainerFiles], T]) -> T:
        """Run the script, return `read` of the files in OUT, and remove the container."""
        ...

    def stop(self) -> None:
        """End `run`, from another thread."""
        ...


async def run_job(runner: ContainerRunner, log: _Log, read: Callable[[ContainerFiles], T]) -> T:
    """Run a job in a thread; cancelling it removes its container and ends its log.

    Raises: as `ContainerRunner.run`.
    """
    stopped = threading.Event()

    def log_line(line: str) -> None:
        if not stopped.is_set():
            log(line)

    running = asyncio.ensure_future(asyncio.to_thread(runner.run, log_line, read))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.to_thread(runner.stop)
        await asyncio.gather(running, return_exceptions=True)
        raise


def choose_runner(builder: ContainerTool, job: ContainerJob, environ: Mapping[str, str]) -> ContainerRunner:
    """An available runner. Raises NoEngine: there is none."""
    program = shutil.which("buildah", path=environ.get("PATH"))
    if builder is not ContainerTool.BUILDAH:
        try:
            with open_engine(environ) as engine:
                if job.index is not None and engine.address.is_remote:
                    raise NoEngine(
                        f"the engine at {engine.address} is on another machine, which can't reach the index of a build",
                        hint="use an engine on this machine",
                    )
                return DockerRunner(job, environ)
        except NoEngine as fault:
            if builder is ContainerTool.DOCKER:
                raise
            if program is None:
                raise NoEngine(
                    f"system packages need a container, but {fault.message}; buildah is not installed either",
                    hint=f"{fault.hint}; or install buildah; or copy the layer from the cache of the lock's author",
                ) from fault
    if program is None:
        raise NoEngine("buildah is not installed", hint="install it, or use Docker or Podman")
    return BuildahRunner(program, job, environ)


@dataclass(frozen=True, slots=True)
class DockerRunner:
    """Uses a Docker engine's API. Only the index is mounted: without it the engine may be on another machine."""

    job: ContainerJob
    environ: Mapping[str, str]

    def run(self, log: _Log, read: Callable[[ContainerFiles], T]) -> T:
        job = self.job
        with open_engine(self.environ) as engine, engine.errors_while(f"installing packages in {job.base}"):
            client = engine.client
            # Configuring a package may take minutes without output.
            client.timeout = _HOURS_S
            _pull(engine, job, log)
            _remove(engine, job)
            config = client.create_host_config(**_host_config(job))
            created = client.create_container(
                job.base,
                list(_COMMAND[1:]),
                entrypoint=_COMMAND[0],
                user="0:0",
                working_dir="/",
                name=job.name,
                host_config=config,
                healthcheck={"test": ["NONE"]},
            )
            try:
                client.put_archive(created["Id"], "/", pack_files(job.files))
                client.start(created["Id"])
                lines = forward_lines(split_lines(client.logs(created["Id"], stream=True, follow=True)), log)
                _check_status(client.wait(created["Id"])["StatusCode"], lines, job)
                chunks, _ = client.get_archive(created["Id"], OUT)
                return read(tar_files(cast("IO[bytes]", _Chunks(chunks))))
            finally:
                _remove(engine, job)

    def stop(self) -> None:
        with open_engine(self.environ) as engine:
            _remove(engine, self.job)


@dataclass(slots=True)
class BuildahRunner:
    """Uses buildah, which needs no daemon and, with subordinate IDs, no root."""

    program: str
    job: ContainerJob
    environ: Mapping[str, str]
    _running: subprocess.Popen[bytes] | None = None
    _stopped: bool = False

    def run(self, log: _Log, read: Callable[[ContainerFiles], T]) -> T:
        job = self.job
        platform = "/".join(OCI_PLATFORMS[job.platform])
        tls = ["--tls-verify=false"] if job.plain is RegistryTransport.HTTP else []
        isolation = self._isolation()
        with contextlib.suppress(EngineError):
            self._do(["rm", job.name])
        try:
            self._do(["from", "--name", job.name, "--platform", platform, *tls, f"docker://{job.base}"], log)
            with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
                files, out = Path(folder, "in"), Path(folder, "out")
                files.mkdir()
                out.mkdir()
                for name, content in job.files.items():
                    path = files / name
                    path.touch(mode=0o600)
                    path.write_bytes(content)
                self._do(["copy", "--quiet", job.name, str(files), WORK])
                # With a pipe, the end of the output was lost on a busy machine (buildah 1.28, chroot).
                volume = f"{out}:{OUT}:rw,Z"
                options = ["--isolation", isolation, "--user", "0:0", "--volume", volume]
                if job.index is None:
                    options += ["--network", "host"]
                else:
                    options += ["--network", "none", "--cap-drop", "all", "--volume", f"{job.index}:{INDEX}:ro"]
                self._do(["run", *options, "--workingdir", "/", job.name, "--", *_COMMAND], log)
                return read(folder_files(out))
        finally:
            self._stopped = False
            with contextlib.suppress(EngineError):
                self._do(["rm", job.name])

    def _isolation(self) -> str:
        """buildah's --isolation.

        Raises:
            NoEngine: third-party code in a chroot, which has this machine's network and processes.
        """
        named = self.environ.get("BUILDAH_ISOLATION")
        if self.job.index is None:
            # The only isolation without a runtime and cgroups, which CI machines may lack.
            return named or "chroot"
        if named == "chroot":
            raise NoEngine(
                "BUILDAH_ISOLATION=chroot does not isolate a build, which is third-party code",
                hint="set it to oci or rootless, which need runc or crun, or use Docker or Podman",
            )
        return named or "oci"

    def stop(self) -> None:
        self._stopped = True
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGTERM)

    def _do(self, words: list[str], log: _Log = lambda _: None) -> None:
        if self._stopped:
            raise InstallFailed(f"buildah {words[0]} was stopped")
        process = subprocess.Popen(  # noqa: S603 (no shell; the words are ours)
            [self.program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(self.environ),
            start_new_session=True,
        )
        self._running = process
        with process:
            lines = forward_lines(split_lines(process.stdout or ()), log)
        if words[0] == "run":
            _check_status(process.returncode, lines, self.job)
        elif process.returncode != 0:
            is_pull = words[0] == "from"
            what = f"can't pull {self.job.base}" if is_pull else f"{words[0]} ended with status {process.returncode}"
            raise EngineError(f"buildah {what}: {' '.join(lines[-1:])}", hint="check its login" if is_pull else None)


def _host_config(job: ContainerJob) -> Mapping[str, Any]:
    if job.index is None:
        return {"network_mode": "host"}
    confined = {"network_mode": "none", "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
    return {**confined, "binds": [f"{job.index}:{INDEX}:ro"]}


def _check_status(status: int, lines: list[str], job: ContainerJob) -> None:
    if status == 0:
        return
    output = "\n".join(f"  {line}" for line in lines)
    if status == NO_APT:
        raise InstallFailed(
            f"{job.base} has no apt-get: [system] apt, services and the compiler need a base with Debian or Ubuntu",
            hint="select such a base, or remove them from the spec",
        )
    if status == NO_SNAPSHOT:
        raise InstallFailed(
            f"no source of apt in {job.base} has known snapshots: its packages can't be installed as of a date",
            hint=f"set a mirror with snapshots, such as {MIRROR}=https://mirror.corp/{{archive}}/{{time}}/; or set "
            "[system] snapshot to false, for today's packages",
        )
    if status == NO_UPDATE or _UNREACHABLE.search(output):
        raise ArchiveUnreachable(
            f"apt in {job.base} can't read the archive of packages:\n{output}",
            hint="check that this machine reaches it, with its http_proxy and SSL_CERT_FILE",
        )
    raise InstallFailed(
        f"the packages can't be installed in {job.base} (status {status}):\n{output}",
        hint="correct [system] apt, or [image] os if these are names of another system; `apt-get install` in a "
        "container of that image reports the same",
    )


def _pull(engine: Engine, job: ContainerJob, log: _Log) -> None:
    from docker.errors import ImageNotFound

    system, architecture = OCI_PLATFORMS[job.platform]
    with contextlib.suppress(ImageNotFound):
        found = engine.client.inspect_image(job.base)  # type: ignore[no-untyped-call]  # not in docker's stubs
        if (found.get("Os"), found.get("Architecture")) == (system, architecture):
            return
    log(f"pulling {job.base}")
    name, _, digest = job.base.partition("@")
    platform = f"{system}/{architecture}"
    for event in engine.client.pull(name, tag=digest, platform=platform, stream=True, decode=True):
        if "error" in event:
            raise EngineError(f"the engine can't pull {job.base}: {event['error']}", hint="check its login")


def _remove(engine: Engine, job: ContainerJob) -> None:
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        engine.client.remove_container(job.name, force=True, v=True)
