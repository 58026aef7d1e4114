"""The Python of an environment without conda: the one in --python, the locked build, or an installed one; its venv."""

from __future__ import annotations

import asyncio
import tarfile
import threading
from pathlib import Path, PurePosixPath
from typing import Any, Final

from envspec.context import Context, Step
from envspec.errors import EnvspecError, UnfitMachine, UsageError
from envspec.installer import uv
from envspec.installer.request import InstallRequest, InstallStage
from envspec.installer.staging import FOLDER, StagingFolder
from envspec.io.process import Interpreter, probe_interpreter
from envspec.models import Python
from envspec.names import is_whiteout

#: The folder of a standalone build in an environment, which needs nothing from the cache.
BUILD: Final = "python"
_REPORT: Final = "report this with the lock"


async def find_python(request: InstallRequest, context: Context) -> Interpreter:
    """The interpreter in --python, else an installed one of exactly the locked version.

    Raises:
        UsageError: --python is not a CPython of the locked series. UnfitMachine: none is installed.
    """
    locked = request.resolution.target.python
    if request.python is not None:
        return await _named(request.python, locked, context)
    variables = uv.environ(context)
    found = await uv.run_uv(["python", "find", "--no-project", "--system", locked.version], variables)
    if found.status == 0 and found.lines:
        interpreter = await probe_interpreter(Path(found.lines[-1]), context.environ)
        if interpreter is not None and interpreter.version == locked.version:
            return interpreter
    other = await uv.run_uv(["python", "find", "--no-project", "--system", locked.series], variables)
    near = (
        await probe_interpreter(Path(other.lines[-1]), context.environ) if other.status == 0 and other.lines else None
    )
    instead = f"; or use the installed one: --python {near.path} ({near.version})" if near else ""
    raise UnfitMachine(
        f"the lock is for Python {locked.version} without a build of it, and this machine has none",
        hint=f"`uv python install {locked.version}`, or use another {locked.series}: --python PATH{instead}",
    )


async def _named(path: Path, locked: Python, context: Context) -> Interpreter:
    interpreter = await probe_interpreter(path, context.environ)
    if interpreter is None:
        raise UsageError(
            f"--python {path} is not a CPython that runs on this machine",
            hint=f"use an interpreter of Python {locked.version}",
        )
    if interpreter.version.split(".")[:2] != locked.series.split("."):
        raise UsageError(
            f"--python {path} is Python {interpreter.version}; the lock is for {locked.version}",
            hint=f"use an interpreter of Python {locked.series}: wheels are built for a series",
        )
    if interpreter.version != locked.version:
        context.reporter.warning(f"{path} is Python {interpreter.version}; the lock was made for {locked.version}")
    return interpreter


async def unpack(archive: Path, site: StagingFolder, locked: Python, context: Context) -> Interpreter:
    """Unpack a checked standalone build into the site.

    Raises:
        EnvspecError: unexpected layout or version.
    """
    context.reporter.progress(Step(InstallStage.PYTHON))
    stopping = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_extract, archive, site.path / FOLDER, stopping))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        # A thread can't be cancelled, and must not write after the site is removed.
        stopping.set()
        await asyncio.gather(work, return_exceptions=True)
        raise
    except (tarfile.TarError, EOFError) as error:
        raise EnvspecError(f"{archive.name} can't be unpacked: {error}", hint=_REPORT) from error
    path = site.path / FOLDER / BUILD / "bin" / f"python{locked.series}"
    interpreter = await probe_interpreter(path, context.environ)
    if interpreter is None or interpreter.version != locked.version:
        what = (
            f"is Python {interpreter.version}"
            if interpreter
            else f"has no bin/python{locked.series} that runs on this machine"
        )
        raise EnvspecError(f"{archive.name} {what}; the lock says {locked.version}", hint=_REPORT)
    return interpreter


def _extract(archive: Path, folder: Path, stopping: threading.Event) -> None:
    """Extract a build, whose members are all below `python/`."""
    folder.mkdir(exist_ok=True)
    # "data" refuses paths that lead out of the folder; Pythons from before mid-2023 have no such filter.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if stopping.is_set():
                return
            parts = PurePosixPath(member.name).parts
            if parts[:1] != (BUILD,) or ".." in parts:
                raise EnvspecError(
                    f"{archive.name} contains {member.name!r}, which is not below {BUILD}/", hint=_REPORT
                )
            if is_whiteout(member.name):
                raise EnvspecError(
                    f"{archive.name} contains {member.name!r}, which would hide files of an image's lower layers",
                    hint=_REPORT,
                )
            tar.extract(member, folder, **options)


async def make_venv(interpreter: Interpreter, request: InstallRequest, context: Context, site: StagingFolder) -> None:
    """Create a venv of the interpreter in the existing site.

    Raises:
        UvError
    """
    context.reporter.progress(Step(InstallStage.PYTHON))
    arguments = ["venv", "--allow-existing", "--no-project", "--python", str(interpreter.path)]
    arguments += ["--prompt", request.lock.name, str(site.path)]
    variables = uv.environ(context)
    ended = await uv.run_uv(arguments, variables, site)
    if ended.status != 0:
        raise uv.error_of(ended)
