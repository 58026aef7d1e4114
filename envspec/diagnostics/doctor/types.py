"""Findings, and what a diagnosis reads of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from envspec.diagnostics.machine import Nvml, ask_nvml
from envspec.errors import NetworkError
from envspec.io.cache import UnsafeCache, cache_problem
from envspec.io.process import Finished, run


class State(Enum):
    """How a thing stands."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """what: the thing looked at. found: what is there. todo: what to do about it, empty where nothing is to be done."""

    what: str
    state: State
    found: str
    todo: str = ""


def render_text(findings: Sequence[Finding]) -> str:
    """A plain table, what is to be done below its line; ends without a newline."""
    states = max((len(finding.state.value) for finding in findings), default=0)
    names = max((len(finding.what) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state.value:<{states}}  {finding.what:<{names}}  {finding.found}".rstrip())
        if finding.todo:
            lines.append(f"{'':<{states}}  {'':<{names}}  -> {finding.todo}")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> str:
    """A list of objects with the keys what, state, found and todo; ends without a newline."""
    rows = [{"what": f.what, "state": f.state.value, "found": f.found, "todo": f.todo} for f in findings]
    return json.dumps(rows, indent=2, ensure_ascii=False)


#: `podman info` of a first start needs some seconds; what takes longer than this hangs.
_PROGRAM_S: Final = 15.0
#: A name server that doesn't answer is waited for by the system, not by us.
_PROBE_S: Final = 12.0


@dataclass(frozen=True, slots=True)
class Space:
    """A file system, in bytes."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs envspec. managed: its distribution keeps pip out of it (PEP 668)."""

    version: str
    executable: str
    virtual: bool
    managed: bool


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of one request. status: HTTP's, None without an answer; then problem and todo say why."""

    status: int | None
    problem: str = ""
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A machine.

    root: where `/proc`, `/dev`, `/sys` and `/etc` are. system: as `sys.platform`. path_of: a program's path on PATH.
    open_cache: why the cache is not safe from other users. ask: a program's end, None when it can't be run or hangs.
    space: of the file system that holds a path, None where there is none. probe: one HEAD or GET, bounded in time. uv:
    path of uv's program, None where it isn't installed.
    """

    root: Path
    home: Path
    cache: Path
    system: str
    environ: Mapping[str, str]
    prefix: Path
    python: Interpreter
    open_cache: Callable[[], UnsafeCache | None]
    path_of: Callable[[str], str | None]
    ask: Callable[[Sequence[str]], Awaitable[Finished | None]]
    space: Callable[[Path], Space | None]
    nvml: Callable[[], Nvml]
    probe: Callable[[str, str], Awaitable[Probed]]
    uv: Callable[[], str | None]

    def text(self, path: str) -> str | None:
        """A file below the root; None where it can't be read."""
        try:
            return (self.root / path.lstrip("/")).read_text("utf-8", "replace")
        except OSError:
            return None

    def has(self, path: str) -> bool:
        """Whether there is such a path below the root."""
        return (self.root / path.lstrip("/")).exists()


def this_place(environ: Mapping[str, str], cache: Path) -> Place:
    """The machine that runs this."""

    async def ask(command: Sequence[str]) -> Finished | None:
        try:
            return await asyncio.wait_for(run(command, environ=environ, cwd=Path(os.sep)), _PROGRAM_S)
        except (OSError, asyncio.TimeoutError):
            return None

    async def probe(method: str, url: str) -> Probed:
        try:
            return await asyncio.wait_for(_probe(environ, method, url), _PROBE_S)
        except asyncio.TimeoutError:
            return Probed(None, f"no answer within {_PROBE_S:g} s", "check DNS, the firewall and HTTPS_PROXY")

    return Place(
        root=Path(os.sep),
        home=Path.home(),
        cache=cache,
        system=sys.platform,
        environ=environ,
        prefix=Path(sys.prefix),
        python=_interpreter(),
        open_cache=lambda: cache_problem(cache),
        path_of=lambda name: shutil.which(name, path=environ.get("PATH")),
        ask=ask,
        space=_space,
        nvml=ask_nvml,
        probe=probe,
        uv=_uv,
    )


async def _probe(environ: Mapping[str, str], method: str, url: str) -> Probed:
    from envspec.io.http import open_http
    from envspec.io.http_types import Timeouts

    timeouts = Timeouts(connect_s=5.0, stall_s=5.0, total_s=10.0, attempts=1, retry_after_s=0.0)
    try:
        async with open_http(environ, timeouts=timeouts) as http:
            return Probed((await http.request(method, url)).status)
    except NetworkError as fault:
        return Probed(None, fault.message, fault.hint or "")


def _interpreter() -> Interpreter:
    import sysconfig

    virtual = sys.prefix != sys.base_prefix
    managed = not virtual and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    version = ".".join(map(str, sys.version_info[:3]))
    return Interpreter(version, sys.executable, virtual, managed)


def _space(path: Path) -> Space | None:
    """Of the nearest folder that exists: a cache may not have been made yet."""
    for folder in (path, *path.parents):
        try:
            usage = shutil.disk_usage(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return Space(usage.total, usage.free)
    return None


def _uv() -> str | None:
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        return None
