"""Runs a script in a temporary container, by Docker's API, which Podman has as well. It is called from a thread."""

from __future__ import annotations

import asyncio
import re
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import Struct

from envspec.engine.client import inspect_image, open_engine, packed_tar, pull, remove_container
from envspec.engine.errors import NoEngine
from envspec.errors import NetworkError, NoSolution
from envspec.image.layers.contents import Chunks
from envspec.image.sources.system_script import MIRROR, NO_APT, NO_SNAPSHOT, NO_UPDATE, OUT, WORK
from envspec.models import Platform
from envspec.registry.reference import parse
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


def tar_files(stream: IO[bytes]) -> ContainerFiles:
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if member.isreg() and (file := tar.extractfile(member)) is not None:
                yield PurePosixPath(member.name).name, file


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """A tar of WORK with these files, for a container's root."""
    return packed_tar([WORK], {f"{WORK}/{name}": content for name, content in files.items()}, mode=0o600)


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


class ContainerJob(Struct, frozen=True):
    """One container. base: `host/repository@sha256:...`, to pull. files: below WORK. name: of the container.

    index: for third-party code, which runs without capabilities and network: a folder of `envspec.io.confine.door`,
    mounted at INDEX. None for envspec's own code, which uses this machine's network.
    """

    base: str
    platform: Platform
    name: str
    files: Mapping[str, bytes]
    index: Path | None = None


class InstallFailed(NoSolution, code="apt-failed"):
    """The packages can't be installed in the base."""


class ArchiveUnreachable(NetworkError, code="apt-unreachable"):
    """The archive of packages can't be read."""


async def run_job(runner: DockerRunner, log: _Log, read: Callable[[ContainerFiles], T]) -> T:
    """Run a job in a thread; cancelling it removes its container and ends its log.

    Raises: as `DockerRunner.run`.
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


class DockerRunner(Struct, frozen=True):
    """Runs one job's container by a Docker engine's API.

    Only the index is mounted: without it the engine may be on another machine.
    """

    job: ContainerJob
    environ: Mapping[str, str]

    def check_engine(self) -> None:
        """Raises NoEngine: no engine answers, or it can't run this job."""
        with open_engine(self.environ) as engine:
            if self.job.index is not None and engine.address.is_remote:
                raise NoEngine(
                    f"the engine at {engine.address} is on another machine, which can't reach the index of a build",
                    hint="use an engine on this machine",
                )

    def run(self, log: _Log, read: Callable[[ContainerFiles], T]) -> T:
        """Run the script, return `read` of the files in OUT, and remove the container."""
        job = self.job
        with open_engine(self.environ) as engine, engine.errors_while(f"installing packages in {job.base}"):
            client = engine.client
            # Configuring a package may take minutes without output.
            client.timeout = _HOURS_S
            _pull(engine, job, log)
            remove_container(engine, job.name, {404})
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
                check_status(client.wait(created["Id"])["StatusCode"], lines, job)
                chunks, _ = client.get_archive(created["Id"], OUT)
                return read(tar_files(cast("IO[bytes]", Chunks(chunks))))
            finally:
                remove_container(engine, job.name, {404})

    def stop(self) -> None:
        """End `run`, from another thread."""
        with open_engine(self.environ) as engine:
            remove_container(engine, self.job.name, {404})


def _host_config(job: ContainerJob) -> Mapping[str, Any]:
    if job.index is None:
        return {"network_mode": "host"}
    confined = {"network_mode": "none", "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
    return {**confined, "binds": [f"{job.index}:{INDEX}:ro"]}


def check_status(status: int, lines: list[str], job: ContainerJob) -> None:
    """Raise what a job's exit status and last lines of output mean; 0 is success.

    Raises:
        InstallFailed, ArchiveUnreachable
    """
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
    system, architecture = OCI_PLATFORMS[job.platform]
    found = inspect_image(engine, job.base) or {}
    if (found.get("Os"), found.get("Architecture")) == (system, architecture):
        return
    log(f"pulling {job.base}")
    pull(engine, parse(job.base), lambda _done, _total: None, f"{system}/{architecture}")
