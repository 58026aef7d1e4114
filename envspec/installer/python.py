"""The Python of an environment without conda: the one in --python, the locked build, or an installed one; its venv."""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from envspec.conformance.text import first_of
from envspec.context import Context, Step
from envspec.errors import UnfitMachine
from envspec.image.sources.bytecode import TOP, BadPython, named_interpreter, open_archive, python_members
from envspec.installer import uv
from envspec.installer.request import InstallRequest, InstallStage
from envspec.installer.staging import FOLDER, StagingFolder, site_packages
from envspec.io.process import Interpreter, probe_interpreter, run
from envspec.models import PATH_FILE, Python, Resolution
from envspec.verifier.compare import compare_beneath
from envspec.verifier.types import ExpectedPackage

#: Differences that one message lists.
_MOST_SHOWN: Final = 20


async def find_python(request: InstallRequest, context: Context) -> Interpreter:
    """The interpreter in --python, else an installed one of exactly the locked version.

    Raises:
        UsageError: --python is not a CPython of the locked series. UnfitMachine: none is installed.
    """
    locked = request.resolution.target.python
    named = request.python
    if named is None and request.resolution.on_top_of:
        # The Python whose pip listed the packages, as a rule.
        program = shutil.which("python3", path=context.environ.get("PATH"))
        named = Path(program) if program else None
    if named is not None:
        found = await named_interpreter(named, locked, context.environ)
        if found.version != locked.version:
            context.reporter.warning(f"{named} is Python {found.version}; the lock was made for {locked.version}")
        return found
    exact = await _installed(locked.version, context)
    if exact is not None and exact.version == locked.version:
        return exact
    near = await _installed(locked.series, context)
    instead = f"; or use the installed one: --python {near.path} ({near.version})" if near else ""
    raise UnfitMachine(
        f"the lock is for Python {locked.version} without a build of it, and this machine has none",
        hint=f"`uv python install {locked.version}`, or use another {locked.series}: --python PATH{instead}",
    )


async def _installed(version: str, context: Context) -> Interpreter | None:
    """The interpreter that uv finds on this machine for a version or a series."""
    ended = await uv.run_uv(["python", "find", "--no-project", "--system", version], uv.environ(context))
    if ended.status != 0 or not ended.lines:
        return None
    return await probe_interpreter(Path(ended.lines[-1]), context.environ)


async def unpack(archive: Path, site: StagingFolder, locked: Python, context: Context) -> Interpreter:
    """Unpack a checked standalone build into the site.

    Raises:
        BadPython: unexpected layout or version.
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
    path = site.path / FOLDER / TOP / "bin" / f"python{locked.series}"
    interpreter = await probe_interpreter(path, context.environ)
    if interpreter is None or interpreter.version != locked.version:
        what = f"has no bin/python{locked.series} that runs on this machine"
        if interpreter:
            what = f"is Python {interpreter.version}"
        raise BadPython(archive.name, f"{what}; the lock requires {locked.version}")
    return interpreter


def _extract(archive: Path, folder: Path, stopping: threading.Event) -> None:
    folder.mkdir(exist_ok=True)
    # "data" refuses paths that lead out of the folder; Pythons from before mid-2023 have no such filter.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with open_archive(archive) as tar:
        for _, member in python_members(archive, tar):
            if stopping.is_set():
                return
            tar.extract(member, folder, **options)


async def make_venv(interpreter: Interpreter, request: InstallRequest, context: Context, site: StagingFolder) -> None:
    """Create a venv of the interpreter in the existing site; on top of its packages if the lock is on top of any.

    Raises:
        UvError. UnfitMachine: the interpreter has other packages than those that the lock is on top of.
    """
    context.reporter.progress(Step(InstallStage.PYTHON))
    arguments = ["venv", "--allow-existing", "--no-project", "--python", str(interpreter.path)]
    arguments += ["--prompt", request.lock.name, str(site.path)]
    below = await python_path(interpreter.path, context.environ) if request.resolution.on_top_of else None
    if below and not below.is_isolated:
        arguments.append("--system-site-packages")
    variables = uv.environ(context)
    ended = await uv.run_uv(arguments, variables, site)
    if ended.status != 0:
        raise uv.error_of(ended, variables)
    if below:
        _check_beneath(request.resolution, below, interpreter.path)
    if below and below.nested:
        line = f"import site; site.addsitedir({below.nested!r})\n"
        for folder in site_packages(site.path):
            (folder / PATH_FILE).write_text(line, encoding="utf-8")


class PythonPath(Struct, frozen=True):
    """Where a Python finds packages. folders: in order. nested: its own folder of packages if it is that of a virtual
    environment, else empty; is_isolated: such a one without the packages of the Python behind it.
    """

    folders: tuple[str, ...]
    nested: str
    is_isolated: bool


#: `-E`: without PYTHONPATH, as an environment is compared; a user's own folder of packages counts.
_PATH: Final = """
import json, sys, sysconfig
nested = sys.prefix != sys.base_prefix
outside = [each for each in sys.path if each.endswith("-packages") and not each.startswith(sys.prefix)]
print(json.dumps([sys.path[1:], sysconfig.get_path("purelib") if nested else "", nested and not outside]))
"""


async def python_path(python: Path, environ: Mapping[str, str]) -> PythonPath:
    """Ask a Python where it finds packages. Raises UnfitMachine: it does not say."""
    try:
        ended = await run([str(python), "-E", "-B", "-c", _PATH], environ=environ, cwd=Path("/"))
        folders, nested, is_isolated = json.loads(ended.stdout)
        return PythonPath(tuple(map(str, folders)), str(nested), bool(is_isolated))
    except (OSError, ValueError, TypeError) as error:
        raise UnfitMachine(
            f"{python} does not list its path: {error}", hint="check that this Python runs on this machine"
        ) from error


def _check_beneath(resolution: Resolution, below: PythonPath, python: Path) -> None:
    expected = [ExpectedPackage(each.name, each.version, each.record_sha256) for each in resolution.installed]
    folders = [folder for folder in map(Path, below.folders) if folder.is_dir()]
    found = list(compare_beneath(expected, folders))
    if found:
        place = resolution.on_top_of.source if resolution.on_top_of else ""
        lines = first_of([f"{each.package}: {each.text}" for each in found], _MOST_SHOWN)
        raise UnfitMachine(
            "\n  ".join([f"{python} does not have the packages of {place}, on top of which the lock is:", *lines]),
            hint="name the Python that has them by --python; or list its packages again, and lock again",
        )
