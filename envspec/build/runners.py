"""Runs a build: confined on this machine, or in a container of the devel image.

Build requirements are routed like the lock's packages: names on one of the spec's own indexes come from there only.
PyTorch's own indexes are not used: they have no upload times, so that `as_of` could not limit them, and sources are
built before torch is resolved. Builds that require torch get the default index's.

A build runs confined (`envspec.io.confine`), with a cache of its own that no other build reads. It gets none of the
user's settings of pip and uv, no other index, time or umask, and no compiler, unless only this machine uses the wheel:
a stand-in for each compiler fails and records the call. Some builds work without a compiler, and would give other
wheels with one.

The container has uv, a standalone Python of the target's series, and the source. Its only network is a loopback
interface of its own, on which envspec serves the index: see `envspec.io.confine_init`.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shlex
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Final

from msgspec import Struct, field

from envspec.build.environment import (
    STEP,
    SYSTEM_PATH,
    LockedView,
    Progress,
    available_mib,
    cost_line,
    failed_step,
    limits_of,
    processors,
    requirements_of,
    script_of,
    variables_of,
)
from envspec.build.reproducible import tar_of
from envspec.build.types import (
    BuildContainer,
    BuildRequest,
    BuildTools,
    Compilers,
    IsPlaceholder,
    WheelBuildFailed,
)
from envspec.context import Context
from envspec.engine.errors import NoEngine
from envspec.errors import UnfitMachine
from envspec.fetch.wheels import logins
from envspec.image.sources.system_container import (
    INDEX,
    ArchiveUnreachable,
    ContainerJob,
    DockerRunner,
    InstallFailed,
    run_job,
)
from envspec.image.sources.system_script import WORK
from envspec.io.confine import ALONE, INIT, PORT, PROXY, SOCKET, Listen, Sandbox, bubblewrap, index_socket, run_confined
from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.loopback import listening
from envspec.io.process import ParentLink, run_streaming
from envspec.io.store import Store
from envspec.models import DEFAULT_INDEX, Platform, Target
from envspec.names import normalised
from envspec.resolve import cache
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.pages import Pages
from envspec.resolve.pypi.index.routing import PackageIndex, Rules, routes_of
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.index.server import serve, simple_url
from envspec.resolve.pypi.index.view import Bodies, View
from envspec.spec.targets import wheel_tags


class ServedIndex(Struct, frozen=True):
    """url: of the index's pages. proxy: leads to it on this machine. view: has its errors. listen: serves it at a
    sandbox's listener, behind `PROXY`.
    """

    url: str
    proxy: str
    view: View
    listen: Listen


@asynccontextmanager
async def serve_index(
    request: BuildRequest, on: Target, context: Context, locked: Mapping[str, Path]
) -> AsyncIterator[ServedIndex]:
    """Serve the index for one build. on: where the build runs. locked: wheels that are all of their names."""
    index = PackageIndex(DEFAULT_INDEX, default_index_url(context.environ))
    # A release without a wheel would need a build itself.
    rules = Rules(request.as_of, tuple(wheel_tags(on)), index, routes_of(request.indexes), sdists=Sdists.NONE)
    parts: list[object] = ["build", request.as_of.isoformat(), index.key, on.platform.value, on.python.version]
    parts += [on.glibc, on.macos]
    parts += [[route.pattern, route.index.name, route.index.key, route.index.dated] for route in rules.routes]
    key = cache.key_of(parts)[:20]
    stored = logins((each.url for each in request.indexes), context.environ)
    async with AsyncExitStack() as stack:
        upstream = IndexClient(stack.enter_context(closing(Store(context.cache))), context.now, environ=context.environ)
        if not context.is_offline:
            upstream.http = await stack.enter_async_context(
                open_http(context.environ, credentials=stored, on_retry=context.reporter.warning)
            )
        stack.push_async_callback(upstream.close)
        view = LockedView(Pages(upstream, {key: rules}), key, locked)
        entry = stack.enter_context(listening())
        listen = await stack.enter_async_context(serve({key: view}, entry))
        yield ServedIndex(simple_url(key, Bodies.WHOLE), entry.proxy, view, listen)


def this_target(request: BuildRequest, local: Platform) -> Target:
    """The target of build requirements on this machine: the request's own if the platform is the same."""
    if request.target.platform is local:
        return request.target
    python = request.target.python
    if local.is_linux:
        return Target(local, python, glibc=(2, 28))
    if local is Platform.OSX_ARM64:
        major, minor, *_ = (int(part) for part in f"{platform.mac_ver()[0]}.0".split("."))
        return Target(local, python, macos=(major, minor))
    return Target(local, python)


#: Programs that compile. Sources: PEP 517 backends' defaults (setuptools, meson-python, scikit-build-core, maturin).
_COMPILERS: Final = (
    *("cc", "gcc", "clang", "c++", "g++", "clang++", "c99", "ld", "gfortran", "f77", "f95", "nvcc", "hipcc", "icpx"),
    *("rustc", "cargo", "go", "cmake", "make", "ninja", "swig"),
    # They describe libraries to compile against.
    *("pkg-config", "llvm-config", "pg_config", "mysql_config", "curl-config", "gdal-config", "geos-config"),
    *("nc-config", "sdl-config", "sdl2-config", "xml2-config", "xslt-config", "mpicc", "mpicxx", "h5cc"),
)
_CC: Final = {"CC": "cc", "CXX": "c++"}
_STAND_IN: Final = """#!/bin/sh
echo "${0##*/}" >>"${0%/*}/../compilers"
echo "${0##*/}: envspec builds this wheel without a compiler" >&2
exit 1
"""
#: Records that a build imports torch and does not find it: many setup.py files then leave out what needs it.
_LAST_FINDER: Final = """
import sys
from pathlib import Path


class LastFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            Path(__file__).parents[1].joinpath("lacks-torch").touch()


sys.meta_path.append(LastFinder)
"""


async def build_locally(
    request: BuildRequest, source: Path, work: Path, interpreter: Path, context: Context, tools: BuildTools
) -> Path:
    """The wheel, below `work`, this build's own folder; see `requested_compiler`.

    Raises:
        WheelBuildFailed: no wheel. NetworkError: a build requirement is not available. NoConfinement: nothing was run.
    """
    from uv import find_uv_bin

    program = await bubblewrap(context.environ, context.unconfined, f"building {request.of}")
    out = work / "out"
    await asyncio.to_thread(_prepare, work)
    on = this_target(request, tools.local or Platform.LINUX_64)
    own = await _Own.of(request, source, context)
    async with serve_index(request, on, context, own.wheels) as needs:
        uv = Path(find_uv_bin())
        command = [str(uv), *uv_arguments(needs.url, str(interpreter), str(source), str(out), f"{work}/cache")]
        if request.environment is not None:
            paths = (uv, interpreter, needs.url, source, out, work)
            command = ["/bin/sh", str(script_of(work)), *map(str, paths), *own.requirements]
        programs, reads = {"PATH": f"{work}/bin:{SYSTEM_PATH}", **_CC, "PYTHONPATH": f"{work}/finder"}, [uv]
        if request.environment is not None and request.environment.compiler:
            programs = {"PATH": SYSTEM_PATH, "CC": "gcc", "CXX": "g++"}
        elif request.compilers is Compilers.LOCAL:
            programs = {"PATH": context.environ.get("PATH") or SYSTEM_PATH}
            reads += toolchains(programs["PATH"], context.environ.get("HOME"))
        variables = {**environ(request, PROXY if program else needs.proxy, str(work)), **programs, **own.variables}
        if program:
            sandbox = Sandbox(program, tuple(reads), work)
            running = partial(run_confined, sandbox, interpreter, command, needs.listen, on_line=own.on_line)
        else:
            running = partial(run_streaming, command, cwd=work, parent=ParentLink(), on_line=own.on_line)
        ended = await running(environ=variables)
    lines = [*ended.stdout.splitlines(), *ended.stderr.splitlines()]
    # Even if the build succeeded with older requirements: it would give another wheel later.
    needs.view.raise_failure()
    if ended.status:
        raise build_error(request.of, lines)
    return only_wheel(out, request)


class _Own(Struct, frozen=True):
    """What one build has of its own: wheels of the lock by name, requirements, variables, and its progress."""

    wheels: Mapping[str, Path] = field(default_factory=dict)
    requirements: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    on_line: Callable[[str], None] = lambda _: None

    @classmethod
    async def of(cls, request: BuildRequest, source: Path, context: Context) -> _Own:
        environment = request.environment
        if environment is None:
            return cls()
        limits = limits_of(environment, processors(), available_mib())
        progress = Progress(request.of, context.reporter, cost_line(environment, limits))
        requirements = await asyncio.to_thread(requirements_of, source, environment)
        return cls(await environment.fetch(), requirements, variables_of(environment, limits), progress.line)


def requested_compiler(work: Path) -> str | None:
    """The first compiler that a build called; the build can write this file, so that other words are ignored."""
    called = work / "compilers"
    try:
        if called.is_symlink() or not called.is_file():
            return None
        words = called.read_text("utf-8", "replace").split()
    except OSError:
        return None
    return next((name for name in words if name in _COMPILERS), None)


def lacks_torch(work: Path) -> bool:
    """Whether a build has looked for torch, and it was not there."""
    return (work / "lacks-torch").exists()


def _prepare(work: Path) -> None:
    for name in ("out", "home", "tmp", "bin", "finder"):
        (work / name).mkdir()
    (work / "finder" / "sitecustomize.py").write_text(_LAST_FINDER, encoding="utf-8")
    for name in _COMPILERS:
        path = work / "bin" / name
        path.write_text(_STAND_IN, encoding="utf-8")
        path.chmod(0o755)


def toolchains(path: str, home: str | None) -> Iterator[Path]:
    """Folders that a build with compilers reads: those of PATH, with lib and include beside bin.

    Not the home folder: of `~/bin`, only the programs.
    """
    for folder in map(Path, filter(None, path.split(os.pathsep))):
        yield folder
        if folder.is_absolute() and folder.name in ("bin", "sbin") and str(folder.parent) != home:
            yield from (folder.parent / name for name in ("lib", "lib64", "libexec", "include"))


def uv_arguments(url: str, interpreter: str, source: str, out: str, cache: str) -> list[str]:
    return [
        *("build", "--wheel", "--force-pep517", "--no-create-gitignore", "--no-config", "--no-sources"),
        *("--color=never", "--no-progress", "--no-python-downloads", "--default-index", url, "--cache-dir", cache),
        *("--python", interpreter, "--out-dir", out, source),
    ]


_HOOK: Final = re.compile(r"Call to `[\w.:]*?(\w+)` failed|Failed to (resolve requirements|install requirements)")
_NOT_SHOWN: Final = re.compile(
    # uv's own lines, and pip's advice.
    r"\s*(?:hint: |help: |\[(?:stdout|stderr)\]|Building (?:wheel|source)|.*[\u251c\u2570]\u2500\u25b6|\s*\u00d7 |"
    r".*This usually indicates|.*(?:Deprecation|Future|User)Warning: |\s*warn\(|"
    r"(?:Caused by|cause): (?:Call to|The build backend|Failed to (?:resolve|install) requirements)|"
    r"error: Failed to build)"
)
_HINT: Final = re.compile(r"^\s*(?:hint|help): ", re.MULTILINE)
_FRAME: Final = re.compile(
    r'^ *File "[^"\n]*/(?:cache/builds-v0|env/lib)/[^"\n]*", line .*\n(?: {4,}(?!File ").*\n)*', re.MULTILINE
)
_LABEL: Final = re.compile(r"^\s*(?:error|cause|Caused by): ")
#: The advice of NVIDIA's placeholders on the default index (nvidia-stub).
_INDEX: Final = re.compile(r"--(?:extra-)?index-url[ =](https://\S+) ([A-Za-z0-9][\w.-]*)")
_NEEDS: Final = (
    "builds get only wheels for this machine, from the spec's indexes, up to `as_of`: name the index that has them in "
    "[[pip.index]], or use another release"
)
#: A header that a compiler does not find.
_NO_HEADER: Final = re.compile(r"fatal error: (\S+): No such file")
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def build_error(of: str, lines: Sequence[str], where: str = "") -> WheelBuildFailed:
    """The error of a failed build: its step, and the last lines of its log without uv's own.

    lines: the log. where: " in IMAGE".
    """
    begun, lines = failed_step(lines), [line for line in lines if not line.startswith(STEP)]
    text = "\n".join(lines)
    if begun == "requirements":
        shown = [_LABEL.sub("", line) for line in lines if not _NOT_SHOWN.match(line)]
        return WheelBuildFailed(of, f"its build failed{where}: what it requires can't be installed:", shown, _NEEDS)
    step, end = "", len(text)
    if called := _HOOK.search(text):
        step = f" ({called[1]})"
        # uv's hints, which are about its own options, end the log.
        if advised := _HINT.search(text, called.end()):
            end = advised.start()
    # The frames of the backend in tracebacks say nothing of the project.
    log = _FRAME.sub("", text[:end]).splitlines()
    shown = [_LABEL.sub("", line) for line in log if not _NOT_SHOWN.match(line)]
    if called and called[2]:
        return WheelBuildFailed(of, f"its build failed{where}: what it requires can't be installed:", shown, _NEEDS)
    advised_index = _INDEX.search(text)
    if advised_index and normalised(advised_index[2]) == of.partition(" ")[0]:
        return IsPlaceholder(of, advised_index[1])
    return WheelBuildFailed(of, f"its build failed{step}{where}:", shown, _advice(of, text))


def _advice(of: str, log: str) -> str | None:
    """What to do about a header or a module that a build does not find; None if it finds all."""
    if header := _NO_HEADER.search(log):
        if header[1] == "Python.h":
            return "use a Python with its headers: `apt-get install python3-dev`, or --python PATH"
        return f"install what has {header[1]} on this machine"
    missing = _NO_MODULE.findall(log)
    if not missing:
        return None
    module = missing[-1].partition(".")[0]
    return (
        f"its build imports {module} without requiring it: if the lock has it, build beside it, by compilers if that "
        f'needs them:\n    [build.{of.partition(" ")[0]}]\n    requires = ["{module}"]\n  and add its name to '
        "[pip.build] packages; or use a release that has a wheel"
    )


def environ(request: BuildRequest, proxy: str, work: str) -> Mapping[str, str]:
    """A build's environment without PATH. proxy: leads to envspec's index only."""
    return {
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy),
        **ALONE,
        "HOME": f"{work}/home",
        "TMPDIR": f"{work}/tmp",  # noqa: S108 (below the build's own folder)
        # The index fetches a wheel whole before it answers, torch's in minutes.
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        # TensorRT's sdists call pip for what they require, unless this is set: then they declare it.
        "NVIDIA_TENSORRT_DISABLE_INTERNAL_PIP": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(int(request.as_of.timestamp())),
    }


def only_wheel(out: Path, request: BuildRequest) -> Path:
    """The only wheel in a build's output folder; links are ignored, since they may lead anywhere.

    Raises:
        WheelBuildFailed: none or several.
    """
    wheels = [] if out.is_symlink() else sorted(out.glob("*.whl"))
    found = [each for each in wheels if stat.S_ISREG(each.lstat().st_mode)]
    if len(found) != 1:
        raise WheelBuildFailed(request.of, f"its build gave {len(found)} wheels, not one")
    return found[0]


_LOG_LINES: Final = 200


async def build_in_container(
    request: BuildRequest, source: Path, work: Path, why: str, context: Context, tools: BuildTools
) -> Path:
    """The wheel, below `work`. why: the reason for a container.

    Raises:
        WheelBuildFailed: no wheel. NoEngine: no container engine. UnfitMachine: the wheel is for another platform.
        NetworkError: a build requirement is not available.
    """
    target, room_of = request.target, tools.room
    assert room_of is not None  # noqa: S101 (for the type checker)
    if target.platform is not tools.local or not target.platform.is_linux:
        raise UnfitMachine(
            f"{request.of} must be built for {target.platform.value} ({why}), but this machine is "
            f"{tools.local.value if tools.local else 'another'}",
            hint=f"record its wheel: run `envspec lock --image SPEC` on a {target.platform.value} machine",
        )
    # Fails before a download.
    probe = ContainerJob("", target.platform, "", {}, Path("/"))
    await asyncio.to_thread(_engine, probe, request, why, context.environ)
    room = await room_of(target, request.compilers)
    own = await _Own.of(request, source, context)
    async with serve_index(request, target, context, own.wheels) as needs, index_socket(needs.listen) as index:
        words = ["./uv", *uv_arguments(needs.url, "python/bin/python3", "src", "out", f"{WORK}/cache")]
        scripts = {}
        if request.environment is not None:
            script = await asyncio.to_thread(script_of, work)
            scripts = {script.name: await asyncio.to_thread(script.read_bytes)}
            paths = ("./uv", "python/bin/python3", needs.url, "src", "out", WORK)
            words = ["/bin/sh", script.name, *paths, *own.requirements]
        variables = {
            **environ(request, PROXY, WORK),
            # A standalone Python names the compiler that built it.
            **{"CC": "gcc", "CXX": "g++", "UV_LINK_MODE": "copy"},
            **own.variables,
        }
        job = ContainerJob(
            base=room.base,
            platform=target.platform,
            name=f"envspec-build-{request.key('')[:16]}",
            files={**await asyncio.to_thread(_files, room, source, words, variables), **scripts},
            index=index,
        )
        runner = await asyncio.to_thread(_engine, job, request, why, context.environ)
        lines: list[str] = []
        out = work / "built"
        out.mkdir()

        def on_line(line: str) -> None:
            lines[:] = [*lines[-_LOG_LINES:], line]
            own.on_line(line)

        try:
            await run_job(runner, on_line, lambda outputs: _take(outputs, out))
        except (InstallFailed, ArchiveUnreachable) as error:
            needs.view.raise_failure()
            raise build_error(request.of, lines, f" in {room.base}") from error
        needs.view.raise_failure()
    return only_wheel(out, request)


def _engine(job: ContainerJob, request: BuildRequest, why: str, environ: Mapping[str, str]) -> DockerRunner:
    runner = DockerRunner(job, environ)
    try:
        runner.check_engine()
    except NoEngine as error:
        raise NoEngine(
            f"{request.of} must be built in a container ({why}), and there is no engine: {error.message}",
            hint="start Docker or Podman, or set ENVSPEC_BUILT_WHEELS to a folder with its wheel",
        ) from error
    return runner


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
