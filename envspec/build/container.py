"""A build in a container of the lock's devel base: for what needs a compiler, and loads that base's libraries.

The container has uv, a standalone Python of the target's series, and the source. It has no network but a loopback
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

_KEPT_LINES: Final = 200


async def build_in_container(
    order: BuildRequest, source: Path, work: Path, why: str, context: Context, tools: BuildTools
) -> Path:
    """The wheel, below `work`. why: says what needs a container.

    Raises:
        BuildFailed: there is none. NoEngine: nothing here makes containers. UnfitMachine: the wheel is for another kind
        of machine. NetworkError: what the build asks for is not to be had.
    """
    target = order.target
    if target.platform is not tools.local or not target.platform.is_linux:
        raise UnfitMachine(
            f"{order.of} is to be built for {target.platform.value} ({why}), and this machine is "
            f"{tools.local.value if tools.local else 'another'}",
            hint=f"record its wheel by `envspec lock --image SPEC` on a {target.platform.value} machine",
        )
    # Before anything is fetched for it.
    probe = ContainerJob("", target.platform, RegistryTransport.TLS, "", {}, Path("/"))
    await asyncio.to_thread(_engine, probe, order, why, context.environ)
    room = await tools.room(target)
    async with serve_index(order, target, context) as needs, index_socket(needs.listen) as index:
        words = uv_arguments(needs.url, "python/bin/python3", "src", "out", f"{WORK}/cache")
        variables = {
            **environ(order, PROXY, WORK),
            # A standalone Python remembers the compiler that it was made by.
            **{"CC": "gcc", "CXX": "g++", "UV_LINK_MODE": "copy"},
        }
        job = ContainerJob(
            base=room.base,
            platform=target.platform,
            plain=RegistryTransport.HTTP
            if room.is_plain or is_loopback(room.base.partition("/")[0].rpartition(":")[0])
            else RegistryTransport.TLS,
            name=f"envspec-build-{order.key('')[:16]}",
            files=await asyncio.to_thread(_files, room, source, words, variables),
            index=index,
        )
        making = await asyncio.to_thread(_engine, job, order, why, context.environ)
        lines: list[str] = []
        out = work / "built"
        out.mkdir()

        def on_line(line: str) -> None:
            lines[:] = [*lines[-_KEPT_LINES:], line]

        try:
            await run_job(making, on_line, lambda outputs: _take(outputs, out))
        except (InstallFailed, ArchiveUnreachable) as fault:
            if not needs.view.errors:
                raise WheelBuildFailed(order.of, f"its build failed in {room.base}:", log_of(lines)) from fault
        if needs.view.errors:
            raise needs.view.errors[0]
    return only_wheel(out, order)


def _engine(job: ContainerJob, order: BuildRequest, why: str, environ: Mapping[str, str]) -> ContainerRunner:
    try:
        return choose_runner(ContainerTool.AUTO, job, environ)
    except NoEngine as fault:
        raise NoEngine(
            f"{order.of} has to be built in a container ({why}), and there is no engine here: {fault.message}",
            hint="start Docker or Podman, or install buildah; or name by ENVSPEC_BUILT_WHEELS where its wheel is",
        ) from fault


def _take(outputs: Iterable[tuple[str, IO[bytes]]], out: Path) -> None:
    """The wheels of what the container gives."""
    for path, file in outputs:
        name = Path(path).name
        if name.endswith(".whl"):
            with (out / name).open("wb") as kept:
                while data := file.read(1 << 20):
                    kept.write(data)


def _files(room: BuildContainer, source: Path, words: list[str], variables: Mapping[str, str]) -> dict[str, bytes]:
    from uv import find_uv_bin

    # PATH stays the image's own: that is where nvcc is.
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
