"""The Python on this machine whose bytecode an image's Python takes: of exactly its version where one can be had.

The bytes follow from the exact version: patch releases have changed what the compiler makes of a module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.effects.confine import NoConfinement, Sandbox, Unconfined, bubblewrap
from envspec.effects.interpreter import Interpreter, ask
from envspec.errors import NetworkError, UnfitMachine, UsageError
from envspec.fetch.faults import WrongArchive
from envspec.image.cached_python import Build, made_of
from envspec.image.pyc import WORKER, Pyc
from envspec.model import Platform, Python

#: Of each series from its first release on. Source: CPython, Lib/importlib/_bootstrap_external.py of 3.9 to 3.13.
_MAGIC: Final = {"3.9": 3425, "3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571}


class NoCompiler(UnfitMachine):
    """No Python on this machine makes bytecode that the image's takes."""


@dataclass(frozen=True, slots=True)
class Looking:
    """Where to look. here: this machine's platform. named: an interpreter that the user names.

    own: the build that the image has, where this machine can run it. other: one of the same version that it can run.
    jobs: how many processes compile one layer. unconfined: whether a Python that only the lock names may run where
    nothing confines it.
    """

    here: Platform
    environ: Mapping[str, str]
    named: Path | None
    own: Build | None
    other: Build | None
    warn: Callable[[str], None]
    jobs: int = 1
    unconfined: Unconfined = Unconfined.REFUSED


async def find(python: Python, looking: Looking) -> Pyc:
    """The first of: the one that is named; the image's own build; one of exactly its version that is here; another
    build of that version; one of its series, with a warning.

    The image's own is whatever the lock says. Unless envspec's own data names it, it runs confined; where nothing
    confines it, another of exactly its version does as well.

    Raises:
        UsageError: the named one is no CPython of the series. NoCompiler: there is none. NetworkError: the image's own
        build is not the locked file. NoConfinement: there is only the image's own, and nothing confines it.
    """
    if looking.named is not None:
        return _pyc(await _named(looking.named, python, looking), python, looking)
    loose: NoConfinement | None = None
    try:
        if (found := await _own(python, looking)) is not None:
            return found
    except NoConfinement as fault:
        loose = fault
    near: Interpreter | None = None
    for place in _places(python, looking.environ):
        there = await ask(place, looking.environ)
        if there is None or not _takes(there, python):
            continue
        if there.version == python.version:
            return _pyc(there, python, looking)
        near = near or there
    if (path := await _made(looking.other, looking)) is not None:
        return Pyc(path, python.version, looking.jobs)
    if loose is not None:
        raise loose
    if near is not None:
        return _pyc(near, python, looking)
    raise NoCompiler(
        f"this machine ({looking.here.value}) has no Python {python.version}, nor another {python.series}, to compile "
        "modules with",
        hint=f"name one by --python PATH (`uv python install {python.version}` fetches it), or leave bytecode out with "
        "--no-pyc",
    )


async def _own(python: Python, looking: Looking) -> Pyc | None:
    """The image's own build, confined unless it is known; None where there is none to be had.

    Raises:
        NoConfinement
    """
    build = looking.own
    if build is None:
        return None
    program = None
    if not build.is_known:
        what = f"the lock's own Python {python.version}, which compiles the image's modules,"
        instead = f"name a Python {python.version} of yours by --python PATH; or leave bytecode out with --no-pyc"
        program = await bubblewrap(looking.environ, looking.unconfined, what, instead)
    if (path := await _made(build, looking)) is None:
        return None
    return Pyc(path, python.version, looking.jobs, Sandbox(program, (build.folder, WORKER)) if program else None)


async def _made(build: Build | None, looking: Looking) -> Path | None:
    """Its interpreter; None where it can't be fetched: then there may be others."""
    try:
        return await made_of(build) if build is not None else None
    except WrongArchive:
        raise
    except NetworkError as fault:
        looking.warn(f"a Python to compile with could not be fetched: {fault.message}")
        return None


def _pyc(there: Interpreter, python: Python, looking: Looking) -> Pyc:
    if there.version != python.version:
        looking.warn(
            f"the image has Python {python.version}, and {there.path}, which compiles its modules, is {there.version}: "
            "where another patch compiles them, the image ID may be another one"
        )
    return Pyc(there.path, there.version, looking.jobs)


async def _named(path: Path, python: Python, looking: Looking) -> Interpreter:
    there = await ask(path, looking.environ)
    if there is None:
        raise UsageError(
            f"--python {path} is not a CPython that runs here", hint=f"name an interpreter of Python {python.version}"
        )
    if not _takes(there, python):
        raise UsageError(
            f"--python {path} is Python {there.version}, whose bytecode the image's {python.version} does not take",
            hint=f"name an interpreter of Python {python.version}, or leave bytecode out with --no-pyc",
        )
    return there


def _takes(there: Interpreter, python: Python) -> bool:
    """Whether the image's Python takes its bytecode: previews of a series have other forms than its releases."""
    return there.series == python.series and there.magic == _MAGIC.get(python.series, there.magic)


def _places(python: Python, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where Pythons usually are, those of the exact version first; each once."""
    name = f"python{python.series}"
    seen: set[Path] = set()
    for path in (
        Path(sys.executable),
        *_versions(environ, python.version, name),
        *(Path(folder, name) for folder in environ.get("PATH", "").split(":") if folder.startswith("/")),
        *(Path(folder, name) for folder in ("/usr/local/bin", "/usr/bin")),
        *_versions(environ, f"{python.series}.*", name),
    ):
        real = path.resolve()
        if real not in seen and path.is_file():
            seen.add(real)
            yield path


def _versions(environ: Mapping[str, str], version: str, name: str) -> Iterator[Path]:
    """The Pythons of pyenv and uv. version: may have `*` in it."""
    home = environ.get("HOME")
    roots = {
        f"versions/{version}/bin/{name}": environ.get("PYENV_ROOT") or (home and f"{home}/.pyenv"),
        f"cpython-{version}-*/bin/{name}": environ.get("UV_PYTHON_INSTALL_DIR")
        or (home and f"{environ.get('XDG_DATA_HOME') or f'{home}/.local/share'}/uv/python"),
    }
    for pattern, root in roots.items():
        if root:
            yield from sorted(Path(root).glob(pattern), reverse=True)
