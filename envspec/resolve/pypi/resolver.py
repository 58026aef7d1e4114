"""What a PyPI resolver has to do here: requirements in, pins out, seeing one index only."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from packaging.version import Version

from envspec.errors import EnvspecError, NoSolution
from envspec.io.confine import ALONE, Listen, Sandbox, run_confined
from envspec.io.process import Finished, run
from envspec.models import Target
from envspec.resolve.pypi.index.view import Bodies, normalised


@dataclass(frozen=True, slots=True)
class Request:
    """One target's question. requirements and constraints: PEP 508 lines. sdists: names that may be built from source.

    preferences: (name, version) to keep where the requirements allow it. excluded: releases that can't be built for the
    target at all, with the reason.
    """

    target: Target
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    sdists: frozenset[str] = frozenset()
    preferences: tuple[tuple[str, str], ...] = ()
    excluded: Mapping[tuple[str, Version], str] = field(default_factory=dict)

    def without(self, releases: Mapping[tuple[str, Version], str]) -> Request:
        """The same request with more releases excluded."""
        return replace(self, excluded={**self.excluded, **releases})

    @property
    def bounds(self) -> tuple[str, ...]:
        """The constraints, with those that exclude releases."""
        return (*self.constraints, *sorted(f"{name}!={version}" for name, version in self.excluded))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine works.

    simple_url: the one index. proxy: through which it is reached. cache: a folder of envspec's own. work: an empty
    folder for this run alone. path: the PATH for builds from source; empty where nothing is built. sandbox: confines
    these, with a cache of its own; None where nothing is built, or nothing confines it. listen: see `run_confined`.
    """

    simple_url: str
    proxy: str
    cache: Path
    work: Path
    path: str = ""
    sandbox: Sandbox | None = None
    listen: Listen | None = None

    async def run(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        stdin: str = "",
        *,
        python: str = sys.executable,
        reads: Sequence[Path] = (),
    ) -> Finished:
        """Run an engine. python: what builds are made with, and may run the engine. reads: what else it has to see."""
        if self.sandbox is None or self.listen is None:
            return await run(command, environ=environ, cwd=self.work, stdin=stdin)
        sandbox = replace(self.sandbox, reads=(*self.sandbox.reads, *reads))
        return await run_confined(sandbox, Path(python), command, self.listen, environ=environ, stdin=stdin)

    def environ(self) -> dict[str, str]:
        """A whole environment: nothing of the user's comes through, and nothing but the proxy can be reached."""
        return {
            **ALONE,
            "HTTP_PROXY": self.proxy,
            "HTTPS_PROXY": self.proxy,
            "http_proxy": self.proxy,
            "https_proxy": self.proxy,
            "HOME": str(self.work),
            "TMPDIR": str(self.work),
            "PATH": self.path,
            "LC_ALL": "C.UTF-8",
            "SOURCE_DATE_EPOCH": "315532800",
        }


#: Normalised names and the versions that were chosen for them.
Pins = Mapping[str, str]


class Engine(Protocol):
    """A resolver. Engines decide pins and nothing more: files and hashes come from the index's rows."""

    @property
    def version(self) -> str:
        """Name and version, for the memory of what was resolved."""

    def unable(self, target: Target) -> str | None:
        """Why it can't resolve for `target` on this machine; None when it can."""

    def bodies(self, request: Request) -> Bodies:
        """What it is to get where it fetches a wheel."""

    async def resolve(self, request: Request, place: Place) -> Pins:
        """The pins that satisfy the request.

        Raises:
            Unsolvable: nothing satisfies it.
            EngineFault: the engine itself failed.
        """


class Unsolvable(NoSolution):
    """No set of releases satisfies the requirements; says why in the engine's words."""


class BuildFailed(NoSolution):
    """An sdist that may be built from source can't be.

    release: its normalised name and its version, where the engine names them.
    """

    def __init__(self, told: str, release: tuple[str, Version] | None = None) -> None:
        super().__init__(told, hint="give its build what it asks for, or take a release that has a wheel")
        self.release = release

    @property
    def of_python(self) -> str | None:
        """What the build says of the Python that it runs on; None where it fails for another reason."""
        found = _OF_PYTHON.search(self.message)
        return found[0].strip() if found else None


#: What setup.py files raise on a Python that they don't support: numba, scikit-learn, numpy, and those for Python 2.
_OF_PYTHON: Final = re.compile(
    r"(?:Cannot install on Python version [^\n;.]*\d[^\n\"]{0,80}"
    r"|[^\n:]{0,60}\brequires? (?:a different )?Python\b[^\n]{0,60}"
    r"|\bPython (?:version )?[<>=\d.]+ ?[^\n]{0,20}\b(?:is not supported|required|or (?:later|newer|higher))\b"
    r"|[^\n:]{0,60}\b(?:does not|doesn't) support Python\b[^\n]{0,40}"
    r"|SyntaxError: Missing parentheses in call to 'print'"
    r"|use_2to3 is invalid)",
    re.IGNORECASE,
)


class EngineFault(EnvspecError):
    """The engine can't be run, or said something that isn't understood."""

    exit_code = 1


_PIN: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")


def read_pins(text: str) -> dict[str, str]:
    """The pins in a requirements file; other lines are comments, options and hashes."""
    found = (_PIN.match(line) for line in text.splitlines())
    return {normalised(match[1]): match[2] for match in found if match}
