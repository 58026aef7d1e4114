"""Requests and errors of builds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.credentials import without_credentials
from envspec.errors import EnvspecError, NoSolution
from envspec.models import BuildSettings, BuiltWheel, NamedIndex, Platform, Python, Target
from envspec.spec.pip_lines import index_lines

#: Changes if the same source would give other wheels.
_FORM: Final = 1
#: The same, of builds beside packages of a lock.
_BESIDE_FORM: Final = 3


class Compilers(Enum):
    """Where a build may use compilers.

    NOWHERE: a wheel that needs one is refused; if only a container confines its build, that is one of the lock's base,
    which has none. CONTAINER: of the lock's devel image. LOCAL: this machine's, for a wheel
    that only this machine uses.
    """

    NOWHERE = "nowhere"
    CONTAINER = "container"
    LOCAL = "local"


class ToolDates(Enum):
    """Which releases a build gets of what it requires.

    AS_OF: those up to `as_of`.
    AS_REQUIRED: if a build with these fails, and they are older than it requires, those up to the first time at which
    they are not. Nobody chose the date of another tool's lock, and a project may require newer tools than that.
    """

    AS_OF = "as of"
    AS_REQUIRED = "as required"


@dataclass(frozen=True, slots=True)
class BuildEnvironment:
    """What a build beside packages of a lock finds.

    packages: name and SHA-256 of the lock's wheels that it may import. fetch: these wheels, by name. cuda: the minor
    version whose compiler is installed from wheels; empty: none. compiler: this machine's C++ compiler and C library,
    if it compiles for other machines too; empty: it does not, for the reason `why_not`.
    """

    settings: BuildSettings
    packages: tuple[tuple[str, str], ...] = ()
    fetch: Callable[[], Awaitable[Mapping[str, Path]]] = field(repr=False, compare=False, kw_only=True)
    cuda: str = ""
    compiler: str = ""
    why_not: str = ""

    def key(self) -> list[object]:
        """All of it that a wheel's bytes depend on."""
        own = self.settings
        return [_BESIDE_FORM, own.requires, own.env, own.gpu_code, self.packages, self.cuda, self.compiler]


class BuildSource(Struct, frozen=True):
    """What a wheel is built of.

    identity: SHA-256 of the sdist, or another identity of its contents.
    lay_out: unpacks it into a new folder; the project's folder in it. Its second argument names it in errors.
    """

    identity: str
    lay_out: Callable[[Path, str], Coroutine[None, None, Path]]


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A wheel to build.

    name: normalised.
    version: None if only the build knows it.
    as_of: limits the build's requirements and the times of files.
    indexes: the spec's own, for the build's requirements; may contain credentials.
    locked: the lock's record.
    environment: what it is built beside; None: in isolation.
    tools: which releases it gets of what its build requires.
    """

    name: str
    version: str | None
    target: Target
    as_of: datetime
    source: BuildSource
    indexes: tuple[NamedIndex, ...] = field(default=(), repr=False)
    locked: BuiltWheel | None = None
    compilers: Compilers = Compilers.CONTAINER
    environment: BuildEnvironment | None = None
    tools: ToolDates = ToolDates.AS_OF

    @property
    def of(self) -> str:
        """Its name in messages."""
        return f"{self.name} {self.version}" if self.version else self.name

    @property
    def is_for_compilers_here(self) -> bool:
        """Whether this machine's compilers are used."""
        has_compiler = self.environment is not None and bool(self.environment.compiler)
        return self.compilers is Compilers.LOCAL or has_compiler

    def key(self, index: str) -> str:
        """SHA-256 over all inputs of the wheel. index: the default index."""
        target = self.target
        parts: list[object] = [_FORM, self.name, self.source.identity, self.as_of.isoformat(), target.platform.value]
        parts += [target.python.version, target.glibc, target.macos, index]
        # Without logins, not even hashed: another login gives the same wheel.
        for each in self.indexes:
            parts.append([each.name, without_credentials(each.url), each.packages, each.undated])
            parts += filter(None, [each.format])
        if self.compilers is Compilers.LOCAL:
            parts.append("compiled locally")
        if self.environment:
            parts.append(self.environment.key())
        if self.tools is not ToolDates.AS_OF:
            parts.append(self.tools.value)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class BuildContainer(Struct, frozen=True):
    """A container to build in.

    base: its image, `host/repository@sha256:...`.
    python: the archive of a standalone build of the target's series.
    """

    base: str
    python: Path


class BuildTools(Struct, frozen=True):
    """What builds find on this machine.

    local: its platform, None if envspec locks nothing for it. interpreter: a Python of the series on this machine, None
    if there is none. room: finds a container, once one is needed; None: builds run on this machine or not at all.
    """

    local: Platform | None
    interpreter: Callable[[Python], Awaitable[Path | None]]
    room: Callable[[Target, Compilers], Awaitable[BuildContainer]] | None


class CachedWheel(Struct, frozen=True):
    wheel: BuiltWheel
    path: Path


#: Lines of a build's log in its error.
_SHOWN_LINES: Final = 15


class WheelBuildFailed(NoSolution, code="build-failed"):
    """A source could not be built. lines: the build's output, of which the last are shown."""

    def __init__(self, of: str, why: str, lines: Sequence[str] = (), hint: str | None = None) -> None:
        self.of = of
        shown = [line.rstrip() for line in lines if line.strip()][-_SHOWN_LINES:]
        super().__init__(
            "\n".join([f"{of}: {why}", *(f"  {line}" for line in shown)]),
            hint=hint or "install what its build requires, or use a release that has a wheel",
        )

    @property
    def python_error(self) -> str | None:
        """What the build reports about its Python; None if it fails for another reason."""
        found = _PYTHON_ERROR.search(self.message)
        return found[0].strip() if found else None


#: What setup.py files raise on an unsupported Python: numba, scikit-learn, numpy, and those for Python 2.
_PYTHON_ERROR: Final = re.compile(
    r"(?:Cannot install on Python version [^\n;.]*\d[^\n\"]{0,80}"
    r"|[^\n:]{0,60}\brequires? (?:a different )?Python\b[^\n]{0,60}"
    r"|\bPython (?:version )?[<>=\d.]+ ?[^\n]{0,20}\b(?:is not supported|required|or (?:later|newer|higher))\b"
    r"|[^\n:]{0,60}\b(?:does not|doesn't) support Python\b[^\n]{0,40}"
    r"|SyntaxError: Missing parentheses in call to 'print'"
    r"|use_2to3 is invalid)",
    re.IGNORECASE,
)


#: Of a build that compiles for the torch that it gets: its wheel would not fit the lock's.
REQUIRES_TORCH: Final = "its build requires torch"


def torch_hint(names: Iterable[str]) -> str:
    """How to have packages built beside the lock's torch."""
    lines = (f'    [build.{name}]\n    requires = ["torch"]' for name in names)
    return "\n".join(["add to the end of the spec, to build beside the lock's torch:", *lines])


class NeedsCompiler(WheelBuildFailed):
    """The wheel needs a compiler, and the request allows none. reason: "its build calls cc"."""

    def __init__(self, of: str, reason: str) -> None:
        super().__init__(of, reason)
        self.reason = reason


class IsPlaceholder(WheelBuildFailed, code="placeholder-package"):
    """The sdist has nothing to build: the wheels are on another index, from which its build would fetch one."""

    def __init__(self, of: str, url: str) -> None:
        self.name, self.url = of.partition(" ")[0], url
        why = f"its sdist is a placeholder, whose build fetches a wheel from {url}"
        super().__init__(of, why, hint=index_hint(url, [self.name]))


def index_hint(url: str, names: Sequence[str]) -> str:
    """How to take packages from another index."""
    lines = index_lines(url, names, ['undated = "accept"  # unless it gives upload times'])
    return "\n    ".join(["add to the end of the spec:", *lines])


class WrongWheel(WheelBuildFailed, code="wrong-wheel"):
    """The build gave a wheel of another package or for another machine."""


class OtherPackage(WrongWheel):
    """The build gave a wheel of another name or version. requested, found: names, as they are written."""

    def __init__(self, of: str, requested: tuple[str, str], found: tuple[str, str]) -> None:
        self.requested, self.found = requested[0], found[0]
        named, got = " ".join(filter(None, requested)), " ".join(filter(None, found))
        hint = "correct the name and version, or contact its publisher"
        if not requested[1]:
            hint = f"require it by the name of its project: `{self.found} @ ...`"
        super().__init__(of, f"the build gave a wheel of {got}, not of {named}", hint=hint)


class UnexpectedWheel(EnvspecError, exit_code=8, code="build-differs"):
    """A built wheel is not the locked one."""

    def __init__(self, of: str, found: str, locked: str) -> None:
        super().__init__(
            f"{of}: the built wheel has SHA-256 {found}, locked {locked}",
            hint="set ENVSPEC_BUILT_WHEELS to the `archives` folder of the cache of the lock's author, or record this "
            "wheel by `envspec lock --upgrade --image SPEC`: its build is not reproducible",
        )
