"""Findings of `envspec doctor`, and its access to the machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.diagnostics.machine import NvmlReading, read_nvml
from envspec.errors import EnvspecError, NetworkError
from envspec.io.cache import cache_problem
from envspec.io.process import Finished, run

#: The first `podman info` takes some seconds; a program that takes longer than this hangs.
_PROGRAM_S: Final = 15.0
#: Resolving a name has no limit of its own.
_PROBE_S: Final = 12.0


class FindingState(Enum):
    """Whether something has to be done."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    NOT_APPLICABLE = "not applicable"


class DoctorFinding(Struct, frozen=True):
    """what: the examined thing. todo: empty if nothing has to be done."""

    what: str
    state: FindingState
    found: str
    todo: str = ""


class DiskSpace(Struct, frozen=True):
    """Of a file system, in bytes."""

    total_bytes: int
    free_bytes: int


class RunningPython(Struct, frozen=True):
    """The Python that runs envspec. managed: its distribution keeps pip out of it (PEP 668)."""

    version: str
    executable: str
    virtual: bool
    managed: bool


class ProbeResult(Struct, frozen=True):
    """status: of HTTP, None without a response; problem and todo explain that."""

    status: int | None
    problem: str = ""
    todo: str = ""


class DoctorContext(Struct, frozen=True):
    """Access to a machine.

    root: of `/proc`, `/dev`, `/sys` and `/etc`.
    system: as `sys.platform`.
    open_cache: why the cache can't be written, or is not safe from other users.
    path_of: a program on PATH.
    run: a command; None if it can't be run or hangs.
    space: of the file system of a path, None if there is none.
    probe: one HEAD or GET, with a time limit.
    uv: its program, None if not installed.
    """

    root: Path
    home: Path
    cache: Path
    system: str
    environ: Mapping[str, str]
    prefix: Path
    python: RunningPython
    open_cache: Callable[[], EnvspecError | None]
    path_of: Callable[[str], str | None]
    run: Callable[[Sequence[str]], Awaitable[Finished | None]]
    space: Callable[[Path], DiskSpace | None]
    nvml: Callable[[], NvmlReading]
    probe: Callable[[str, str], Awaitable[ProbeResult]]
    uv: Callable[[], str | None]

    def text(self, path: str) -> str:
        """A file below the root; empty if it can't be read."""
        try:
            return (self.root / path.lstrip("/")).read_text("utf-8", "replace")
        except OSError:
            return ""

    async def version(self, program: str) -> str | None:
        """From the output of `PROGRAM --version`; None if it can't be run or fails, empty without a version."""
        done = await self.run((program, "--version"))
        if done is None or done.status:
            return None
        found = re.search(r"\d+(?:\.\d+)+", done.stdout)
        return found[0] if found else ""


def this_machine(environ: Mapping[str, str], cache: Path) -> DoctorContext:
    async def run_command(command: Sequence[str]) -> Finished | None:
        with suppress(OSError, asyncio.TimeoutError):
            return await asyncio.wait_for(run(command, environ=environ, cwd=Path(os.sep)), _PROGRAM_S)
        return None

    async def probe(method: str, url: str) -> ProbeResult:
        try:
            return await asyncio.wait_for(_probe(environ, method, url), _PROBE_S)
        except asyncio.TimeoutError:
            return ProbeResult(None, f"no response within {_PROBE_S:g} s", "check DNS, the firewall and HTTPS_PROXY")

    return DoctorContext(
        root=Path(os.sep),
        home=Path.home(),
        cache=cache,
        system=sys.platform,
        environ=environ,
        prefix=Path(sys.prefix),
        python=_running_python(),
        open_cache=lambda: cache_problem(cache),
        path_of=lambda name: shutil.which(name, path=environ.get("PATH")),
        run=run_command,
        space=_space,
        nvml=read_nvml,
        probe=probe,
        uv=_uv,
    )


async def _probe(environ: Mapping[str, str], method: str, url: str) -> ProbeResult:
    from envspec.io.http import open_http
    from envspec.io.http_types import Timeouts

    timeouts = Timeouts(connect_s=5.0, stall_s=5.0, total_s=10.0, attempts=1, retry_after_s=0.0)
    try:
        async with open_http(environ, timeouts=timeouts) as http:
            return ProbeResult((await http.request(method, url)).status)
    except NetworkError as error:
        return ProbeResult(None, error.message, error.hint or "")


def _running_python() -> RunningPython:
    import sysconfig

    virtual = sys.prefix != sys.base_prefix
    managed = not virtual and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    return RunningPython(".".join(map(str, sys.version_info[:3])), sys.executable, virtual, managed)


def _space(path: Path) -> DiskSpace | None:
    """Of the nearest folder that exists: a cache may not exist yet."""
    try:
        usage = shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists()))
    except OSError:
        return None
    return DiskSpace(usage.total, usage.free)


def _uv() -> str | None:
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return find_uv_bin()
    return None
