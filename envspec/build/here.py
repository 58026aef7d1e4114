"""A build by a Python on this machine, in an environment of its own: for what needs no compiler.

Nothing of the user's reaches it: no setting of pip or uv, no index but ours, no time, no umask. Nor does a compiler,
unless the wheel is for this machine alone: what stands in for each fails, and notes that it was asked for. Some builds
do without, and would give other wheels here than where there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from envspec.build.faults import BuildFailed
from envspec.build.needs import Needs, serving, this_target
from envspec.build.order import BuildOrder, BuildWorld
from envspec.effects.process import run
from envspec.model import Platform

#: Programs that compile. Sources: PEP 517 backends' defaults (setuptools, meson-python, scikit-build-core, maturin).
_COMPILERS: Final = (
    *("cc", "gcc", "clang", "c++", "g++", "clang++", "c99", "ld", "gfortran", "f77", "f95", "nvcc", "hipcc", "icpx"),
    *("rustc", "cargo", "go", "cmake", "make", "ninja", "swig"),
)
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_CC: Final = {"CC": "cc", "CXX": "c++"}
_STAND_IN: Final = """#!/bin/sh
echo "${0##*/}" >>"${0%/*}/../asked"
echo "${0##*/}: nothing is compiled here" >&2
exit 1
"""


async def build_here(order: BuildOrder, source: Path, work: Path, interpreter: Path, world: BuildWorld) -> Path:
    """The wheel, below `work`, which is a folder of this build's alone; `asked_for` then tells of compilers.

    Raises:
        BuildFailed: there is none. NetworkError: what the build asks for is not to be had.
    """
    from uv import find_uv_bin

    out = work / "out"
    await asyncio.to_thread(_furnish, work)
    on = this_target(order, world.here or Platform.LINUX_64)
    async with serving(order, on, world) as needs:
        cache = world.cache / "engines" / "uv"
        cache.mkdir(parents=True, exist_ok=True)
        words = uv_words(needs.url, str(interpreter), str(source), str(out), str(cache))
        programs = {"PATH": f"{work}/bin:{_PATH}", **_CC}
        if order.compiles:
            programs = {"PATH": world.environ.get("PATH") or _PATH}
        variables = {**environ(order, needs, str(work)), **programs}
        ended = await run([find_uv_bin(), *words], environ=variables, cwd=work)
    lines = [*ended.stdout.splitlines(), *ended.stderr.splitlines()]
    for line in lines:
        world.told(line)
    if needs.view.faults:
        # Even of a build that went round it, by what is older: it would give another wheel once the index is well.
        raise needs.view.faults[0]
    if ended.status:
        raise BuildFailed(order.of, "its build failed:", told(lines))
    return the_one(out, order)


def asked_for(work: Path) -> str | None:
    """The first compiler that a build asked for."""
    asked = work / "asked"
    return asked.read_text(encoding="utf-8").split()[0] if asked.is_file() else None


def _furnish(work: Path) -> None:
    for name in ("out", "home", "tmp", "bin"):
        (work / name).mkdir()
    for name in _COMPILERS:
        path = work / "bin" / name
        path.write_text(_STAND_IN, encoding="utf-8")
        path.chmod(0o755)


def uv_words(url: str, interpreter: str, source: str, out: str, cache: str) -> list[str]:
    """uv's arguments for a build."""
    return [
        *("build", "--wheel", "--force-pep517", "--no-create-gitignore", "--no-config", "--no-sources"),
        *("--color=never", "--no-progress", "--no-python-downloads", "--default-index", url, "--cache-dir", cache),
        *("--python", interpreter, "--out-dir", out, source),
    ]


def told(lines: Iterable[str]) -> list[str]:
    """A build's log as messages show it: without uv's hints, which are about its own options."""
    return [line.removeprefix("error: ") for line in lines if not line.lstrip().startswith(("hint: ", "help: "))]


def environ(order: BuildOrder, needs: Needs, work: str) -> Mapping[str, str]:
    """A build's whole environment, less PATH: it can reach our index and nothing else."""
    return {
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), needs.proxy),
        # What a backend requires besides may be a repository: ssh knows no proxy, and files need none.
        "GIT_ALLOW_PROTOCOL": "none",
        # Our index asks the others again; of what is not to be reached, nothing comes of it.
        "UV_HTTP_RETRIES": "0",
        "HOME": f"{work}/home",
        "TMPDIR": f"{work}/tmp",  # noqa: S108 (below the build's own folder)
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(int(order.as_of.timestamp())),
    }


def the_one(out: Path, order: BuildOrder) -> Path:
    """The one wheel in a folder.

    Raises:
        BuildFailed: there is another number of them.
    """
    found = sorted(out.glob("*.whl"))
    if len(found) != 1:
        raise BuildFailed(order.of, f"its build gave {len(found)} wheels, not one")
    return found[0]
