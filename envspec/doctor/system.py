"""Shared memory, disk, Python and uv."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.doctor.finding import Finding, State
from envspec.doctor.place import Interpreter, Place, Space
from envspec.effects.cache import OpenCache

_GIB: Final = 2**30
#: Docker gives a container 64 MB, which NCCL and DataLoader workers use up (NVIDIA/nccl issue 342).
_ENOUGH_SHM: Final = _GIB
#: A torch stack with PyG is 7.8 GB unpacked (measured 2026-11-20), and wheels and installation stand side by side.
_ENOUGH_DISK: Final = 20 * 10**9


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """shm: of `/dev/shm`, None where the system has none. disk: of the cache's file system. uv: its version.

    open_cache: why the cache is not safe from other users.
    """

    system: str
    shm: Space | None
    cache: Path
    open_cache: OpenCache | None
    disk: Space | None
    python: Interpreter
    uv: str | None


async def look(place: Place) -> SystemFacts:
    """Ask the file systems, and uv for its version."""
    shm = place.root / "dev/shm"
    return SystemFacts(
        system=place.system,
        shm=place.space(shm) if place.system == "linux" and shm.is_dir() else None,
        cache=place.cache,
        open_cache=place.open_cache(),
        disk=place.space(place.cache),
        python=place.python,
        uv=await _uv(place),
    )


def judge(facts: SystemFacts) -> tuple[Finding, ...]:
    """One finding for each; of the cache, where something is wrong with it."""
    return (_shm(facts), _disk(facts), *_cache(facts), _python(facts.python), _uv_finding(facts.uv))


def _shm(facts: SystemFacts) -> Finding:
    what = "shared memory"
    if facts.system != "linux":
        return Finding(what, State.NOT_APPLICABLE, "Linux alone has it")
    todo = "start the container with `--shm-size=8g` or `--ipc=host`: training on several GPUs breaks without"
    if facts.shm is None:
        return Finding(what, State.MISSING, "there is no /dev/shm", todo)
    found = f"{size(facts.shm.total_bytes)} in /dev/shm"
    if facts.shm.total_bytes < _ENOUGH_SHM:
        return Finding(what, State.WARNING, found, todo)
    return Finding(what, State.OK, found)


def _disk(facts: SystemFacts) -> Finding:
    what = "disk"
    if facts.disk is None:
        return Finding(what, State.WARNING, f"{facts.cache} can't be looked at", "name another ENVSPEC_CACHE_DIR")
    found = f"{size(facts.disk.free_bytes)} free at {facts.cache}"
    if facts.disk.free_bytes < _ENOUGH_DISK:
        todo = "a torch stack is 8 GB (locking alone needs less than 1): make room or name another ENVSPEC_CACHE_DIR"
        return Finding(what, State.WARNING, found, todo)
    return Finding(what, State.OK, found)


def _cache(facts: SystemFacts) -> tuple[Finding, ...]:
    if facts.open_cache is None:
        return ()
    return (Finding("cache", State.MISSING, facts.open_cache.message, facts.open_cache.hint or ""),)


def _python(python: Interpreter) -> Finding:
    found = f"{python.version}, {python.executable}"
    if python.virtual:
        return Finding("Python", State.OK, f"{found}, a virtual environment")
    todo = "its packages belong to the system: install envspec into a virtual environment" if python.managed else ""
    return Finding("Python", State.OK, found, todo)


def _uv_finding(version: str | None) -> Finding:
    if version is None:
        todo = "install envspec again: uv, a dependency of envspec's, brings its program"
        return Finding("uv", State.MISSING, "its program isn't there or can't be run", todo)
    return Finding("uv", State.OK, version)


async def _uv(place: Place) -> str | None:
    path = place.uv()
    done = await place.ask((path, "--version")) if path else None
    found = re.search(r"\d+(?:\.\d+)+", done.stdout) if done and done.status == 0 else None
    return found[0] if found else None


def size(size_bytes: int) -> str:
    """`64 MiB`, `23.5 GiB`."""
    if size_bytes < _GIB:
        return f"{size_bytes / 2**20:.0f} MiB"
    return f"{size_bytes / _GIB:.1f} GiB"
