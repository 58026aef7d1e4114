"""Builds by a Python of this machine.

Names are routed as those of the lock's packages are: a name of one of the spec's own indexes comes from there and from
nowhere else. PyTorch's own indexes are none of these. They have no upload times, so `as_of` could not bound what they
give, and what is built when a spec is locked is built before its torch is resolved: builds that require torch take the
default index's.

A build is code: it runs confined (`envspec.effects.confine`), with a cache of its own, so that no other build reads
what it wrote. Nothing of the user's reaches it: no setting of pip or uv, no index but ours, no time, no umask. Nor does
a compiler, unless the wheel is for this machine alone: what stands in for each fails, and notes that it was asked for.
Some builds do without, and would give other wheels here than where there is one.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.build.types import BuildRequest, BuildTools, WheelBuildFailed
from envspec.context import Context
from envspec.fetch.wheels import logins
from envspec.io.confine import ALONE, PROXY, Listen, Sandbox, bubblewrap, run_confined
from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.process import run
from envspec.io.store import Store
from envspec.models import DEFAULT_INDEX, Platform, Target
from envspec.resolve import cache
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.routing import PackageIndex, Rules, routes_of
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.index.server import listening, serve, simple_url
from envspec.resolve.pypi.index.view import Bodies, Pages, View
from envspec.spec.targets import wheel_tags


@dataclass(frozen=True, slots=True)
class ServedIndex:
    """url: of the index's pages. proxy: through which it is reached on this machine. view: knows what went wrong.

    listen: serves it at a sandbox's listener as well, where it is reached through `PROXY`.
    """

    url: str
    proxy: str
    view: View
    listen: Listen


@asynccontextmanager
async def serve_index(order: BuildRequest, on: Target, context: Context) -> AsyncIterator[ServedIndex]:
    """Serve the index for one build. on: where the build runs."""
    index = PackageIndex(DEFAULT_INDEX, default_index_url(context.environ))
    # A build that asked for a release without a wheel would need a build itself.
    rules = Rules(order.as_of, tuple(wheel_tags(on)), index, routes_of(order.indexes), others=Sdists.NONE)
    parts: list[object] = ["build", order.as_of.isoformat(), index.key, on.platform.value, on.python.version]
    parts += [on.glibc, on.macos]
    parts += [[route.pattern, route.index.name, route.index.key, route.index.dated] for route in rules.routes]
    key = cache.key_of(parts)[:20]
    known = logins((each.url for each in order.indexes), context.environ)
    async with AsyncExitStack() as stack:
        upstream = IndexClient(stack.enter_context(closing(Store(context.cache))), context.now, environ=context.environ)
        if not context.is_offline:
            upstream.http = await stack.enter_async_context(
                open_http(context.environ, credentials=known, on_retry=context.reporter.warning)
            )
        stack.push_async_callback(upstream.close)
        view = View(upstream, Pages(upstream, {key: rules}), rules, key)
        entry = stack.enter_context(listening())
        listen = await stack.enter_async_context(serve({key: view}, entry))
        yield ServedIndex(simple_url(key, Bodies.WHOLE), entry.proxy, view, listen)


def this_target(order: BuildRequest, here: Platform) -> Target:
    """This machine as what a build on it may ask for: the order's own target where it is of that platform."""
    if order.target.platform is here:
        return order.target
    python = order.target.python
    if here.is_linux:
        return Target(here, python, glibc=(2, 28))
    if here is Platform.OSX_ARM64:
        major, minor, *_ = (int(part) for part in f"{platform.mac_ver()[0]}.0".split("."))
        return Target(here, python, macos=(major, minor))
    return Target(here, python)


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


async def build_locally(
    order: BuildRequest, source: Path, work: Path, interpreter: Path, context: Context, tools: BuildTools
) -> Path:
    """The wheel, below `work`, which is a folder of this build's alone; `requested_compiler` then tells of compilers.

    Raises:
        BuildFailed: there is none. NetworkError: what the build asks for is not to be had. NoConfinement: nothing was
        run, since nothing here confines it.
    """
    from uv import find_uv_bin

    program = await bubblewrap(context.environ, context.unconfined, f"building {order.of}")
    out = work / "out"
    await asyncio.to_thread(_furnish, work)
    on = this_target(order, tools.local or Platform.LINUX_64)
    async with serve_index(order, on, context) as needs:
        uv = Path(find_uv_bin())
        command = [str(uv), *uv_arguments(needs.url, str(interpreter), str(source), str(out), f"{work}/cache")]
        programs, reads = {"PATH": f"{work}/bin:{_PATH}", **_CC}, [uv]
        if order.compiles:
            programs = {"PATH": context.environ.get("PATH") or _PATH}
            reads += toolchains(programs["PATH"], context.environ.get("HOME"))
        variables = {**environ(order, PROXY if program else needs.proxy, str(work)), **programs}
        if program:
            sandbox = Sandbox(program, tuple(reads), work)
            ended = await run_confined(sandbox, interpreter, command, needs.listen, environ=variables)
        else:
            ended = await run(command, environ=variables, cwd=work)
    lines = [*ended.stdout.splitlines(), *ended.stderr.splitlines()]
    if needs.view.errors:
        # Even of a build that went round it, by what is older: it would give another wheel once the index is well.
        raise needs.view.errors[0]
    if ended.status:
        raise WheelBuildFailed(order.of, "its build failed:", log_lines(lines))
    return only_wheel(out, order)


def requested_compiler(work: Path) -> str | None:
    """The first compiler that a build asked for; the build can write this file, so any other word is ignored."""
    asked = work / "asked"
    try:
        words = [] if asked.is_symlink() or not asked.is_file() else asked.read_text("utf-8", "replace").split()
    except OSError:
        return None
    return next((name for name in words if name in _COMPILERS), None)


def _furnish(work: Path) -> None:
    for name in ("out", "home", "tmp", "bin"):
        (work / name).mkdir()
    for name in _COMPILERS:
        path = work / "bin" / name
        path.write_text(_STAND_IN, encoding="utf-8")
        path.chmod(0o755)


def toolchains(path: str, home: str | None) -> Iterator[Path]:
    """What a build that may compile reads beside the system's programs: the folders of PATH and what goes with them.

    A home as a whole is none: of `~/bin`, the programs alone are shown.
    """
    for folder in map(Path, filter(None, path.split(os.pathsep))):
        yield folder
        if folder.is_absolute() and folder.name in ("bin", "sbin") and str(folder.parent) != home:
            yield from (folder.parent / name for name in ("lib", "lib64", "libexec", "include"))


def uv_arguments(url: str, interpreter: str, source: str, out: str, cache: str) -> list[str]:
    """uv's arguments for a build."""
    return [
        *("build", "--wheel", "--force-pep517", "--no-create-gitignore", "--no-config", "--no-sources"),
        *("--color=never", "--no-progress", "--no-python-downloads", "--default-index", url, "--cache-dir", cache),
        *("--python", interpreter, "--out-dir", out, source),
    ]


def log_lines(lines: Iterable[str]) -> list[str]:
    """A build's log as messages show it: without uv's hints, which are about its own options."""
    return [line.removeprefix("error: ") for line in lines if not line.lstrip().startswith(("hint: ", "help: "))]


def environ(order: BuildRequest, proxy: str, work: str) -> Mapping[str, str]:
    """A build's whole environment, less PATH. proxy: leads to our index alone."""
    return {
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy),
        **ALONE,
        "HOME": f"{work}/home",
        "TMPDIR": f"{work}/tmp",  # noqa: S108 (below the build's own folder)
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(int(order.as_of.timestamp())),
    }


def only_wheel(out: Path, order: BuildRequest) -> Path:
    """The one wheel in a folder, which a build may have filled as it liked: links lead anywhere.

    Raises:
        BuildFailed: there is another number of them.
    """
    found = (
        []
        if out.is_symlink()
        else [each for each in sorted(out.glob("*.whl")) if each.is_file() and not each.is_symlink()]
    )
    if len(found) != 1:
        raise WheelBuildFailed(order.of, f"its build gave {len(found)} wheels, not one")
    return found[0]
