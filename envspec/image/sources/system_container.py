"""A script in a throw-away container, by Docker or buildah.

Both get the same files, run the same script and give the same folder back. They are called from a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

from envspec.engine.client import open_engine
from envspec.engine.errors import EngineError, NoEngine
from envspec.errors import EnvspecError, NetworkError
from envspec.image.sources.system_script import MIRROR, NO_APT, NO_SNAPSHOT, NO_UPDATE, OUT, WORK
from envspec.io.files import open_untrusted
from envspec.models import Platform
from envspec.registry.types import OCI_PLATFORMS

if TYPE_CHECKING:
    from envspec.engine.client import Engine


_LAST_LINES: Final = 12

#: The files that a container gives, by name; each is read before the next one is asked for.
Outputs = Iterator[tuple[str, IO[bytes]]]


def in_folder(folder: Path) -> Outputs:
    """A folder's files. What wrote there may have left links, which lead anywhere, and what can't be read to an end."""
    for path in sorted(folder.iterdir()):
        try:
            file = open_untrusted(path)
        except OSError:
            continue
        with file:
            yield path.name, file


def in_tar(stream: IO[bytes]) -> Outputs:
    """The files of a folder that comes as a tar."""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                yield PurePosixPath(member.name).name, file


def packed(files: Mapping[str, bytes]) -> bytes:
    """A tar of WORK with these files, as an engine unpacks it at a container's root."""
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


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Text that comes in pieces, by lines."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace").rstrip() for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace").rstrip()


def telling(lines: Iterable[str], told: Callable[[str], None]) -> list[str]:
    """Every line to who wants to know; gives the last ones, for a message."""
    kept: list[str] = []
    for line in filter(None, lines):
        told(line)
        kept = [*kept[1 - _LAST_LINES :], line]
    return kept


class Pieces:
    """Bytes that come in pieces, read as a file is read from its start to its end."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end only."""
        parts: list[memoryview] = []
        missing = size
        while missing:
            if not self._rest:
                self._rest = memoryview(next(self._chunks, b""))
                if not self._rest:
                    break
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)


#: What apt says of a source whose snapshots it does not know where to find (apt 2.7 to 3.0).
_NO_SERVER: Final = ("Snapshots not supported for", "Cannot identify snapshot server for")
_HOURS_S: Final = 6 * 3600
#: Where a job's index is mounted.
INDEX: Final = "/.envspec-index"
_COMMAND: Final = ("/bin/sh", f"{WORK}/install.sh")


class Builder(Enum):
    """What makes the container. AUTO: Docker, or Podman by Docker's API; buildah where none answers."""

    AUTO = "auto"
    DOCKER = "docker"
    BUILDAH = "buildah"


class Plain(Enum):
    """Whether the base's registry is asked without TLS."""

    HTTP = "http"
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class Job:
    """One container. base: what is pulled, `host/repository@sha256:...`. files: below WORK. name: of the container.

    index: a folder of `envspec.io.confine.door`, mounted at INDEX: what runs is foreign code, which gets no
    capabilities and no network. None: what runs is envspec's own, and its network is this machine's.
    """

    base: str
    platform: Platform
    plain: Plain
    name: str
    files: Mapping[str, bytes]
    index: Path | None = None


class InstallFailed(EnvspecError):
    """The packages could not be installed in the base."""


class ArchiveSilent(NetworkError):
    """The archive of packages could not be read."""


class Work(Protocol):
    """What makes one job's container."""

    def run(self, told: Callable[[str], None], take: Callable[[Outputs], None]) -> None:
        """Run the script, then have `take` read what is in OUT. Nothing of the container is left afterwards."""
        ...

    def stop(self) -> None:
        """End `run`, from another thread."""
        ...


async def run_job(work: Work, told: Callable[[str], None], take: Callable[[Outputs], None]) -> None:
    """Run it in a thread; when the caller is cancelled its container is removed, and `told` hears no more of it.

    Raises: as `Work.run`.
    """
    stopped = threading.Event()

    def hear(line: str) -> None:
        if not stopped.is_set():
            told(line)

    running = asyncio.ensure_future(asyncio.to_thread(work.run, hear, take))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.to_thread(work.stop)
        await asyncio.gather(running, return_exceptions=True)
        raise


def choose(builder: Builder, job: Job, environ: Mapping[str, str]) -> Work:
    """What is at hand.

    Raises:
        NoEngine: nothing is.
    """
    program = shutil.which("buildah", path=environ.get("PATH"))
    if builder is not Builder.BUILDAH:
        try:
            with open_engine(environ) as engine:
                if job.index is not None and engine.address.is_remote:
                    raise NoEngine(
                        f"the engine at {engine.address} is another machine, which can't reach the index of a build",
                        hint="use an engine on this machine",
                    )
                return ByDocker(job, environ)
        except NoEngine as fault:
            if builder is Builder.DOCKER:
                raise
            if program is None:
                raise NoEngine(
                    f"the system's packages need a container once, and {fault.message}; there is no buildah either",
                    hint=f"{fault.hint}; or install buildah; or copy the layer from the cache of who made the lock",
                ) from fault
    if program is None:
        raise NoEngine("buildah is not installed", hint="install it, or use Docker or Podman")
    return ByBuildah(program, job, environ)


@dataclass(frozen=True, slots=True)
class ByDocker:
    """By a Docker engine's API. Only the index is mounted: without it the engine may be on another machine."""

    job: Job
    environ: Mapping[str, str]

    def run(self, told: Callable[[str], None], take: Callable[[Outputs], None]) -> None:
        job = self.job
        with open_engine(self.environ) as engine, engine.errors_while(f"installing packages in {job.base}"):
            client = engine.client
            # A package may take minutes to configure, and says nothing meanwhile.
            client.timeout = _HOURS_S
            _pull(engine, job, told)
            _remove(engine, job)
            config = client.create_host_config(**_reach(job))
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
                client.put_archive(created["Id"], "/", packed(job.files))
                client.start(created["Id"])
                lines = telling(lines_of(client.logs(created["Id"], stream=True, follow=True)), told)
                _judge(client.wait(created["Id"])["StatusCode"], lines, job)
                chunks, _ = client.get_archive(created["Id"], OUT)
                take(in_tar(cast("IO[bytes]", Pieces(chunks))))
            finally:
                _remove(engine, job)

    def stop(self) -> None:
        with open_engine(self.environ) as engine:
            _remove(engine, self.job)


@dataclass(slots=True)
class ByBuildah:
    """By buildah, which needs no daemon and, with subordinate ids, no root."""

    program: str
    job: Job
    environ: Mapping[str, str]
    _running: subprocess.Popen[bytes] | None = None
    _stopped: bool = False

    def run(self, told: Callable[[str], None], take: Callable[[Outputs], None]) -> None:
        job = self.job
        platform = "/".join(OCI_PLATFORMS[job.platform])
        tls = ["--tls-verify=false"] if job.plain is Plain.HTTP else []
        isolation = self._isolation()
        with contextlib.suppress(InstallFailed):
            self._do(["rm", job.name])
        try:
            self._do(["from", "--name", job.name, "--platform", platform, *tls, f"docker://{job.base}"], told)
            with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
                given, out = Path(folder, "given"), Path(folder, "out")
                given.mkdir()
                out.mkdir()
                for name, content in job.files.items():
                    path = given / name
                    path.touch(mode=0o600)
                    path.write_bytes(content)
                self._do(["copy", "--quiet", job.name, str(given), WORK])
                # Through a pipe the end of the output got lost on a busy machine (buildah 1.28, chroot).
                volume = f"{out}:{OUT}:rw,Z"
                options = ["--isolation", isolation, "--user", "0:0", "--volume", volume]
                if job.index is None:
                    options += ["--network", "host"]
                else:
                    options += ["--network", "none", "--cap-drop", "all", "--volume", f"{job.index}:{INDEX}:ro"]
                self._do(["run", *options, "--workingdir", "/", job.name, "--", *_COMMAND], told)
                take(in_folder(out))
        finally:
            self._stopped = False
            with contextlib.suppress(InstallFailed):
                self._do(["rm", job.name])

    def _isolation(self) -> str:
        """How buildah runs what it runs.

        Raises:
            NoEngine: foreign code is to run in a mere chroot, which has this machine's network and processes.
        """
        named = self.environ.get("BUILDAH_ISOLATION")
        if self.job.index is None:
            # The one isolation that needs no runtime and no cgroups, as machines of CI have them or not.
            return named or "chroot"
        if named == "chroot":
            raise NoEngine(
                "BUILDAH_ISOLATION=chroot confines nothing, and a build is code from outside",
                hint="set it to oci or rootless, which need runc or crun, or use Docker or Podman",
            )
        return named or "oci"

    def stop(self) -> None:
        self._stopped = True
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGTERM)

    def _do(self, words: list[str], told: Callable[[str], None] = lambda _: None) -> None:
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
            lines = telling(lines_of(process.stdout or ()), told)
        _judge(process.returncode, lines, self.job)


def _reach(job: Job) -> Mapping[str, Any]:
    """What a container of the engine reaches."""
    if job.index is None:
        return {"network_mode": "host"}
    return {
        "network_mode": "none",
        "binds": [f"{job.index}:{INDEX}:ro"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
    }


def _judge(status: int, lines: list[str], job: Job) -> None:
    """What a container's status means."""
    if status == 0:
        return
    said = "\n".join(f"  {line}" for line in lines)
    if status == NO_APT:
        raise InstallFailed(
            f"{job.base} has no apt-get: [system] apt, services and the compiler need Debian or Ubuntu below",
            hint="take a base of that kind, or leave those out",
        )
    if status == NO_SNAPSHOT or (status == NO_UPDATE and any(words in said for words in _NO_SERVER)):
        raise InstallFailed(
            f"the apt of {job.base} knows no snapshots of its sources, and [system] snapshot asks for one",
            hint=f"name a mirror that has them, such as {MIRROR}=https://mirror.corp/{{archive}}/{{moment}}/",
        )
    if status == NO_UPDATE:
        raise ArchiveSilent(
            f"apt in {job.base} can't read the archive of packages:\n{said}",
            hint="can it be reached from here, with http_proxy and SSL_CERT_FILE as they are?",
        )
    raise InstallFailed(
        f"the packages can't be installed in {job.base} (status {status}):\n{said}",
        hint="`apt-get install` in a container of that image says the same; correct [system] apt",
    )


def _pull(engine: Engine, job: Job, told: Callable[[str], None]) -> None:
    from docker.errors import ImageNotFound

    system, architecture = OCI_PLATFORMS[job.platform]
    with contextlib.suppress(ImageNotFound):
        there = engine.client.inspect_image(job.base)  # type: ignore[no-untyped-call]  # as docker's stubs have it
        if (there.get("Os"), there.get("Architecture")) == (system, architecture):
            return
    told(f"pulling {job.base}")
    name, _, digest = job.base.partition("@")
    platform = f"{system}/{architecture}"
    for row in engine.client.pull(name, tag=digest, platform=platform, stream=True, decode=True):
        if "error" in row:
            raise EngineError(f"the engine can't pull {job.base}: {row['error']}", hint="is it logged in there?")


def _remove(engine: Engine, job: Job) -> None:
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        engine.client.remove_container(job.name, force=True, v=True)
