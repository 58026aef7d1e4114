"""Builds in a container of the lock's devel base, which has the compiler and the libraries.

The container has uv, a standalone Python of the target's series, and the source. Its only network is a loopback
interface of its own, on which envspec serves the index: see `envspec.io.confine_init`.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import IO, Final

from envspec.build.local import environ, only_wheel, serve_index, uv_arguments
from envspec.build.local import log_lines as log_of
from envspec.build.reproducible import tar_of
from envspec.build.types import BuildContainer, BuildRequest, BuildTools, WheelBuildFailed
from envspec.context import Context
from envspec.engine.errors import NoEngine
from envspec.errors import UnfitMachine
from envspec.image.sources.system_container import (
    INDEX,
    ArchiveUnreachable,
    ContainerJob,
    ContainerRunner,
    ContainerTool,
    InstallFailed,
    RegistryTransport,
    choose_runner,
    run_job,
)
from envspec.image.sources.system_script import WORK
from envspec.io.confine import INIT, PORT, PROXY, SOCKET, index_socket
from envspec.io.http_settings import is_loopback

_LOG_LINES: Final = 200


async def build_in_container(
    request: BuildRequest, source: Path, work: Path, why: str, context: Context, tools: BuildTools
) -> Path:
    """The wheel, below `work`. why: the reason for a container.

    Raises:
        WheelBuildFailed: no wheel. NoEngine: no container engine. UnfitMachine: the wheel is for another platform.
        NetworkError: a build requirement is not available.
    """
    target = request.target
    if target.platform is not tools.local or not target.platform.is_linux:
        raise UnfitMachine(
            f"{request.of} must be built for {target.platform.value} ({why}), but this machine is "
            f"{tools.local.value if tools.local else 'another'}",
            hint=f"record its wheel: run `envspec lock --image SPEC` on a {target.platform.value} machine",
        )
    # Fails before a download.
    probe = ContainerJob("", target.platform, RegistryTransport.TLS, "", {}, Path("/"))
    await asyncio.to_thread(_engine, probe, request, why, context.environ)
    room = await tools.room(target)
    async with serve_index(request, target, context) as needs, index_socket(needs.listen) as index:
        words = uv_arguments(needs.url, "python/bin/python3", "src", "out", f"{WORK}/cache")
        variables = {
            **environ(request, PROXY, WORK),
            # A standalone Python names the compiler that built it.
            **{"CC": "gcc", "CXX": "g++", "UV_LINK_MODE": "copy"},
        }
        job = ContainerJob(
            base=room.base,
            platform=target.platform,
            plain=RegistryTransport.HTTP
            if room.is_plain or is_loopback(room.base.partition("/")[0].rpartition(":")[0])
            else RegistryTransport.TLS,
            name=f"envspec-build-{request.key('')[:16]}",
            files=await asyncio.to_thread(_files, room, source, words, variables),
            index=index,
        )
        runner = await asyncio.to_thread(_engine, job, request, why, context.environ)
        lines: list[str] = []
        out = work / "built"
        out.mkdir()

        def on_line(line: str) -> None:
            lines[:] = [*lines[-_LOG_LINES:], line]

        try:
            await run_job(runner, on_line, lambda outputs: _take(outputs, out))
        except (InstallFailed, ArchiveUnreachable) as error:
            if not needs.view.errors:
                raise WheelBuildFailed(request.of, f"its build failed in {room.base}:", log_of(lines)) from error
        if needs.view.errors:
            raise needs.view.errors[0]
    return only_wheel(out, request)


def _engine(job: ContainerJob, request: BuildRequest, why: str, environ: Mapping[str, str]) -> ContainerRunner:
    try:
        return choose_runner(ContainerTool.AUTO, job, environ)
    except NoEngine as error:
        raise NoEngine(
            f"{request.of} must be built in a container ({why}), and there is no engine: {error.message}",
            hint="start Docker or Podman, install buildah, or set ENVSPEC_BUILT_WHEELS to a folder with its wheel",
        ) from error


def _take(outputs: Iterable[tuple[str, IO[bytes]]], out: Path) -> None:
    """Copy the wheels of a container's output."""
    for path, file in outputs:
        name = Path(path).name
        if name.endswith(".whl"):
            with (out / name).open("wb") as copy:
                while data := file.read(1 << 20):
                    copy.write(data)


def _files(room: BuildContainer, source: Path, words: list[str], variables: Mapping[str, str]) -> dict[str, bytes]:
    from uv import find_uv_bin

    # The image's own PATH has nvcc.
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    return {
        "install.sh": files("envspec.build").joinpath("in_container.sh").read_bytes(),
        "environment": exported.encode(),
        "init": f"confine_init.py {INDEX}/{SOCKET} {PORT}".encode(),
        "confine_init.py": INIT.read_bytes(),
        "words": "\n".join(words).encode(),
        "uv": Path(find_uv_bin()).read_bytes(),
        "python.tar.gz": room.python.read_bytes(),
        "source.tar": tar_of(source),
    }
