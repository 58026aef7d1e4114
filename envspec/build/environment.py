"""Builds without isolation: beside torch and other packages of the lock, whose compiled code they have to fit.

The environment is made by uv from envspec's index, on which a package of the lock is its locked wheel alone. Its path
is the same on every machine, like the source's: compilers write paths into what they compile (`__FILE__` in torch's
headers).

CUDA 13's wheels have nvcc. They and the libraries that torch requires share one folder, `nvidia/cu13`, which is the
CUDA_HOME of the build; older releases have no nvcc in their wheels, and are compiled in the devel image's container.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec import documents
from envspec.build.types import BuildEnvironment, BuildRequest, WrongWheel
from envspec.conformance.hardware import memory_bytes
from envspec.conformance.text import counted
from envspec.context import Reporter, Step
from envspec.image.gpu_code import FatbinScan, union
from envspec.io.process import run
from envspec.models import Package, Resolution
from envspec.names import normalised
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.pages import Pages
from envspec.resolve.pypi.index.selection import Selection
from envspec.resolve.pypi.index.view import Bodies, View

#: The first CUDA whose wheels have nvcc. Source: nvidia-cuda-nvcc-cu12 12.8.93 (ptxas alone), nvidia-cuda-nvcc 13.0.88.
FIRST_TOOLKIT: Final = 13
#: nvcc and what it runs and includes; the libraries' headers are in the wheels that torch requires.
_TOOLKIT: Final = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
_RUNTIME: Final = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
#: What PEP 518 and setuptools' own backend require of a source without build-system.requires.
_DEFAULT_REQUIRES: Final = ("setuptools>=40.8.0", "wheel")
#: Its process ID would be in the wheel: in the names of its temporary files, which are beside the object then, and in
#: those of internal symbols of a source that defines no external one (causal-conv1d's, in CUDA 13.0).
_NVCC_FLAGS: Final = "-objtemp -frandom-seed=0"
#: An older nvcc may not have the seed: 13.0 has it, and nobody looked for it in those of CUDA 12.
_NVCC_12_FLAGS: Final = "-objtemp"
#: What one compiler takes if no row states it: measured with torch's headers, 1.3 GiB, and a margin.
_MEMORY_MIB: Final = 2048
SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
#: Written by the script before its steps.
STEP: Final = "envspec: "
#: ninja's lines: how many of its steps have ended.
_PROGRESS: Final = re.compile(r"\[(\d+)/(\d+)\] ")
#: Minutes from which on hours are exact enough.
_HOURS: Final = 120


def packages_beside(part: Resolution, name: str, requires: Sequence[str]) -> tuple[Package, ...]:
    """The wheels of a resolution that a package is built beside: torch, what the build requires, and what these do."""
    by_name = {}
    for each in part.packages:
        if each.built or each.file.filename.endswith(".whl"):
            by_name[each.name] = each
    needed: dict[str, set[str]] = {}
    for each in by_name.values():
        for dependent in each.required_by:
            needed.setdefault(normalised(dependent.name), set()).add(each.name)
    found, left = set[str](), {"torch", *(normalised(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in requires)}
    while left:
        one = left.pop()
        if one in by_name and one not in found and one != name:
            found.add(one)
            left |= needed.get(one, set())
    return tuple(by_name[each] for each in sorted(found))


def cuda_of(packages: Sequence[Package]) -> str:
    """The minor version of the CUDA runtime among them; empty if there is none."""
    runtime = next((each for each in packages if _RUNTIME.fullmatch(each.name)), None)
    return ".".join(runtime.version.split(".")[:2]) if runtime else ""


async def host_compiler() -> str:
    """This machine's C++ compiler and C library: wheels that they compile are the same bytes. Empty: it has none."""
    program = shutil.which("g++", path=SYSTEM_PATH)
    if program is None:
        return ""
    done = await run([program, "--version"], environ={"PATH": SYSTEM_PATH, "LC_ALL": "C"}, cwd=Path("/"))
    if done.status or not done.lines:
        return ""
    return f"{done.lines[0].strip()}, {' '.join(platform.libc_ver())}"


class LockedView(View):
    """A view in which packages of the lock are their locked wheels alone. paths: these wheels, by name."""

    def __init__(self, pages: Pages, key: str, paths: Mapping[str, Path]) -> None:
        super().__init__(pages, key)
        self._paths = paths

    async def selection(self, name: str) -> Selection:
        path = self._paths.get(name)
        if path is None:
            return await super().selection(name)
        # Archives are below a folder named by their hash.
        return Selection({path.name: ListedFile(path.name, "", path.parent.name)})

    async def published_metadata(self, name: str, filename: str) -> bytes:
        from envspec.build.reproducible import metadata_of

        path = self._paths.get(name)
        if path is None:
            return await super().published_metadata(name, filename)
        return await asyncio.to_thread(metadata_of, path, name)

    async def content(self, name: str, filename: str, bodies: Bodies = Bodies.WHOLE) -> bytes | Path:
        if path := self._paths.get(name):
            return path
        return await super().content(name, filename, bodies)

    async def consider(self, name: str, filename: str, bodies: Bodies) -> None:
        if name not in self._paths:
            await super().consider(name, filename, bodies)


def requirements_of(project: Path, environment: BuildEnvironment) -> list[str]:
    """What is installed for a build: what its sources require, what the lock adds, and the compiler for CUDA."""
    try:
        table = documents.read_toml(project / "pyproject.toml")["build-system"]
        own = [str(text) for text in table["requires"]]
    except (OSError, ValueError, KeyError, TypeError):
        own = list(_DEFAULT_REQUIRES)
    own += environment.settings.requires
    if environment.cuda:
        own += [f"{name}=={environment.cuda}.*" for name in _TOOLKIT]
    return list(dict.fromkeys(own))


class Limits(Struct, frozen=True):
    """compilers: how many run at once. minutes: what the build takes then; None if unknown."""

    compilers: int
    minutes: float | None


def limits_of(environment: BuildEnvironment, processors: int, available_mib: int | None) -> Limits:
    """available_mib: of memory, None if unknown."""
    own = environment.settings
    by_memory = available_mib // (own.memory_mib or _MEMORY_MIB) if available_mib is not None else processors
    compilers = own.jobs or max(1, min(processors, by_memory))
    architectures = max(1, len(own.gpu_code))
    return Limits(compilers, own.minutes * architectures / compilers if own.minutes else None)


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def available_mib() -> int | None:
    """Free memory in MiB, within the control group's limit; None if it is unknown."""
    limit, free = memory_bytes(), None
    with suppress(OSError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        if found := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE):
            free = int(found[1]) >> 10
    if limit is None:
        return free
    return min(limit >> 20, free or limit >> 20)


def about(minutes: float) -> str:
    """`about 40 minutes`, `about 5 hours`."""
    if minutes < _HOURS:
        return f"about {counted(max(1, round(minutes)), 'minute')}"
    return f"about {counted(max(1, round(minutes / 60)), 'hour')}"


def cost_line(environment: BuildEnvironment, limits: Limits) -> str:
    """`building for sm_90: about 40 minutes, 2 compilers at once`."""
    what, compilers = "building", counted(limits.compilers, "compiler")
    if codes := environment.settings.gpu_code:
        what += f" for {', '.join(codes)}"
    if limits.compilers != 1:
        compilers += " at once"
    minutes = "an unknown time" if limits.minutes is None else about(limits.minutes)
    return f"{what}: {minutes}, {compilers}"


def variables_of(environment: BuildEnvironment, limits: Limits) -> dict[str, str]:
    """The variables of the build, beside those of every build."""
    own = environment.settings
    return {
        **({own.limit: str(limits.compilers)} if own.limit else {}),
        # Also for builds that ignore the row's variable.
        "MAX_JOBS": str(limits.compilers),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(limits.compilers),
        "NVCC_APPEND_FLAGS": _NVCC_FLAGS if environment.cuda else _NVCC_12_FLAGS,
        # No GPU of this machine decides anything.
        "CUDA_VISIBLE_DEVICES": "",
        **dict(own.env),
    }


def script_of(work: Path) -> Path:
    """Write the script that makes the environment and runs the build in it."""
    path = work / "environment.sh"
    path.write_bytes(files("envspec.build").joinpath("environment.sh").read_bytes())
    return path


class Progress:
    """Reports the steps of a build's log, and how long those that are left take. clock: seconds."""

    def __init__(self, of: str, reporter: Reporter, cost: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._of = of
        self._report = reporter.progress
        self._cost = cost
        self._clock = clock
        self._begun = self._last = 0.0
        self._done = 0

    def line(self, text: str) -> None:
        """A line of the log."""
        if text == f"{STEP}requirements":
            self._report(Step("installing what its build requires", of=self._of))
        elif text == f"{STEP}build":
            self._begun = self._last = self._clock()
            self._report(Step(self._cost, of=self._of))
        elif found := _PROGRESS.match(text):
            done, total, now = int(found[1]), int(found[2]), self._clock()
            if done <= self._done:
                # Of the next extension, by another run of ninja.
                self._begun = self._last
            self._done, self._last = done, now
            what = f"compiling {found[0].strip()}"
            if 0 < done < total:
                what += f", {about((now - self._begun) / done * (total - done) / 60)} left"
            self._report(Step(what, done, total, of=self._of))


def failed_step(lines: Sequence[str]) -> str:
    """The last step that a build's log names; empty if there is none."""
    return next((each.removeprefix(STEP) for each in reversed(lines) if each.startswith(STEP)), "")


def check_gpu_code(wheel: Path, request: BuildRequest) -> None:
    """Fail unless a compiled wheel has code for exactly the GPUs that were asked for.

    PTX of these architectures may be in it, too: some projects add that of the newest.

    Raises:
        WrongWheel: it has other code, or none.
    """
    environment = request.environment
    if environment is None or not environment.settings.gpu_code:
        return
    scans = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            scan = FatbinScan()
            with archive.open(name) as file:
                while data := file.read(1 << 20):
                    scan.write(data)
            scan.close()
            scans.append(scan.found)
    found, asked = union(scans), environment.settings.gpu_code
    ptx = [each for each in found.ptx if each.replace("compute_", "sm_") not in asked]
    if set(found.sm) != set(asked) or ptx:
        raise WrongWheel(
            request.of,
            f"its wheel has GPU code {', '.join((*found.sm, *ptx)) or 'of none'}, requested: {', '.join(asked)}",
            hint=f"set the variable with its GPU architectures, in [build.{request.name}] env",
        )
