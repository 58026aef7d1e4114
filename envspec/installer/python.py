"""The Python of an environment without conda: the one that the user names, the build that the lock names, or one that
is on this machine already; and a venv of it."""

from __future__ import annotations

import asyncio
import tarfile
import threading
from pathlib import Path, PurePosixPath
from typing import Any, Final

from envspec.context import Context, Step
from envspec.errors import EnvspecError, UnfitMachine, UsageError
from envspec.installer import uv
from envspec.installer.staging import FOLDER, StagingFolder
from envspec.installer.types import InstallRequest, InstallStage
from envspec.io.process import Interpreter, probe_interpreter
from envspec.models import Python
from envspec.names import is_whiteout

#: Where a standalone build lies in an environment: it goes with it, and needs nothing of the cache.
BUILD: Final = "python"


class NoPython(UnfitMachine):
    """This machine has no Python of the version that the lock is for."""


class BadBuild(EnvspecError):
    """A standalone build that is not laid out as those builds are."""


async def find_python(order: InstallRequest, context: Context) -> Interpreter:
    """The interpreter that the user names, else one of exactly the locked version that is here.

    Raises:
        UsageError: what the user names is no CPython of the locked series. NoPython: there is none here.
    """
    wanted = order.resolution.target.python
    if order.python is not None:
        return await _named(order.python, wanted, context)
    variables = uv.environ(context)
    found = await uv.run_uv(["python", "find", "--no-project", "--system", wanted.version], variables)
    if found.status == 0 and found.lines:
        there = await probe_interpreter(Path(found.lines[-1]), context.environ)
        if there is not None and there.version == wanted.version:
            return there
    other = await uv.run_uv(["python", "find", "--no-project", "--system", wanted.series], variables)
    near = (
        await probe_interpreter(Path(other.lines[-1]), context.environ) if other.status == 0 and other.lines else None
    )
    instead = f"; or take the one that is here: --python {near.path} ({near.version})" if near else ""
    raise NoPython(
        f"the lock is for Python {wanted.version}, names no build of it, and this machine has none",
        hint=f"`uv python install {wanted.version}`, or name another {wanted.series} by --python PATH{instead}",
    )


async def _named(path: Path, wanted: Python, context: Context) -> Interpreter:
    there = await probe_interpreter(path, context.environ)
    if there is None:
        raise UsageError(
            f"--python {path} is not a CPython that runs here", hint=f"name an interpreter of Python {wanted.version}"
        )
    if there.version.split(".")[:2] != wanted.series.split("."):
        raise UsageError(
            f"--python {path} is Python {there.version}; the lock is for {wanted.version}",
            hint=f"name an interpreter of Python {wanted.series}: wheels are built for a series",
        )
    if there.version != wanted.version:
        context.reporter.warning(f"{path} is Python {there.version}; the lock was made for {wanted.version}")
    return there


async def unpack(archive: Path, site: StagingFolder, wanted: Python, context: Context) -> Interpreter:
    """Put a checked standalone build into the site.

    Raises:
        BadBuild: it is laid out otherwise, or is another version.
    """
    context.reporter.progress(Step(InstallStage.PYTHON))
    stopping = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_extract, archive, site.path / FOLDER, stopping))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        # A thread can't be cancelled, and must not write any more when the site is removed.
        stopping.set()
        await asyncio.gather(work, return_exceptions=True)
        raise
    except (tarfile.TarError, EOFError) as fault:
        raise BadBuild(f"{archive.name} can't be unpacked: {fault}", hint="report this with the lock") from fault
    path = site.path / FOLDER / BUILD / "bin" / f"python{wanted.series}"
    there = await probe_interpreter(path, context.environ)
    if there is None or there.version != wanted.version:
        what = f"is Python {there.version}" if there else f"has no bin/python{wanted.series} that runs here"
        raise BadBuild(f"{archive.name} {what}; the lock says {wanted.version}", hint="report this with the lock")
    return there


def _extract(archive: Path, folder: Path, stopping: threading.Event) -> None:
    """Everything in such a build is under `python/`."""
    folder.mkdir(exist_ok=True)
    # "data" refuses what leads out of the folder; Pythons from before mid-2023 have no such filter.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if stopping.is_set():
                return
            parts = PurePosixPath(member.name).parts
            if parts[:1] != (BUILD,) or ".." in parts:
                raise BadBuild(
                    f"{archive.name} holds {member.name!r}, which is not under {BUILD}/",
                    hint="report this with the lock",
                )
            if is_whiteout(member.name):
                raise BadBuild(
                    f"{archive.name} holds {member.name!r}, which would hide files of an image's lower layers",
                    hint="report this with the lock",
                )
            tar.extract(member, folder, **options)


async def make_venv(interpreter: Interpreter, order: InstallRequest, context: Context, site: StagingFolder) -> None:
    """A venv of the interpreter in the site, which is there already.

    Raises:
        UvFault: uv could not make it.
    """
    context.reporter.progress(Step(InstallStage.PYTHON))
    words = ["venv", "--allow-existing", "--no-project", "--python", str(interpreter.path)]
    words += ["--prompt", order.lock.name, str(site.path)]
    variables = uv.environ(context)
    ended = await uv.run_uv(words, variables, site)
    if ended.status != 0:
        raise uv.error_of(ended)
