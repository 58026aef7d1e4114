"""The interface of a PyPI resolver (requirements in, pins out, one index), and uv, the default one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from envspec.errors import EnvspecError, NoSolution
from envspec.io.confine import ALONE
from envspec.io.process import run
from envspec.models import Platform, Target
from envspec.names import normalised
from envspec.resolve.pypi.index.view import Bodies
from envspec.resolve.pypi.types import PypiRequest


class Workspace(Struct, frozen=True):
    """Where a resolver runs.

    simple_url: the only index.
    proxy: the proxy that serves it.
    cache: a folder of envspec's own.
    work: an empty folder for this run.
    """

    simple_url: str
    proxy: str
    cache: Path
    work: Path

    def write(self, name: str, lines: Iterable[str]) -> Path:
        path = self.work / name
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return path

    def environ(self) -> dict[str, str]:
        """The whole environment: none of the user's variables, and no way around the proxy."""
        return {
            **ALONE,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.proxy),
            "HOME": str(self.work),
            "TMPDIR": str(self.work),
            "PATH": "",
            "LC_ALL": "C.UTF-8",
        }


#: Normalised names and their chosen versions.
Pins = Mapping[str, str]


class Resolver(Protocol):
    """Decides pins and nothing else: files and hashes come from the index, and nothing is built."""

    @property
    def version(self) -> str:
        """Name and version: part of the key of cached resolutions."""

    @property
    def bodies(self) -> Bodies:
        """What it sees of files."""

    async def resolve(self, request: PypiRequest, workspace: Workspace) -> Pins:
        """The pins that satisfy the request.

        Raises:
            Unsolvable: nothing satisfies it.
            ResolverError: the resolver itself failed.
        """


class PassedOver(NamedTuple):
    """An sdist that a resolver may have passed over for what it states, which its wheel may not require."""

    target: Target
    name: str
    filename: str


class Unsolvable(NoSolution):
    """No set of releases satisfies the requirements; the message is the resolver's.

    passed_over: newest first.
    is_hint_general: whether its hint would be the same for every conflict.
    """

    passed_over: tuple[PassedOver, ...] = ()
    is_hint_general: bool = False


class ResolverError(EnvspecError, exit_code=1, code="resolver-failed"):
    """A resolver cannot be run, or its output cannot be read."""


_PIN: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")


def read_pins(text: str) -> dict[str, str]:
    """The pins in a requirements file; other lines are comments, options and hashes."""
    found = filter(None, map(_PIN.match, text.splitlines()))
    return {normalised(match[1]): match[2] for match in found}


#: The glibc levels that uv has names for (`uv pip compile --help`, 0.9 to 0.13).
_GLIBC_MINORS: Final = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)


class Uv:
    """`uv pip compile`: resolves for every platform and Python, from metadata alone."""

    @property
    def version(self) -> str:
        return f"uv {version('uv')}"

    @property
    def bodies(self) -> Bodies:
        return Bodies.STUB

    async def resolve(self, request: PypiRequest, workspace: Workspace) -> Pins:
        from uv import find_uv_bin

        constraints = workspace.write("constraints.txt", request.constraints)
        # uv keeps the pins of its output file if it can; it then writes its result there alone.
        pins = workspace.write("pins.txt", request.preferences)
        command = [
            find_uv_bin(),
            *("pip", "compile", "-", "--quiet", "--no-config", "--color=never"),
            *("--no-header", "--no-annotate", "--no-progress"),
            *("--default-index", workspace.simple_url),
            *("--cache-dir", str(workspace.cache / "uv")),
            *("--python", sys.executable, "--no-python-downloads"),
            *("--python-version", request.target.python.version),
            *("--python-platform", _platform_name(request.target)),
            *("--only-binary", ":all:"),
        ]
        if request.constraints:
            command += ["--constraints", str(constraints)]
        if request.preferences:
            command += ["--output-file", str(pins)]
        environ = workspace.environ()
        if request.target.macos is not None:
            environ["MACOSX_DEPLOYMENT_TARGET"] = ".".join(map(str, request.target.macos))
        stdin = "\n".join(request.requirements) + "\n"
        done = await run(command, environ=environ, cwd=workspace.work, stdin=stdin)
        if done.status == 0:
            return read_pins(pins.read_text(encoding="utf-8") if request.preferences else done.stdout)
        if "No solution found" in done.stderr or done.status == 1:
            raise Unsolvable(uv_reason(done.stderr))
        raise ResolverError(
            f"uv exited with status {done.status}: {done.stderr.strip()}", hint="run again with --debug"
        )


def _platform_name(target: Target) -> str:
    """uv's name of a platform, with the nearest glibc below: its index holds no wheels above the target's."""
    if target.platform is Platform.OSX_ARM64:
        return "aarch64-apple-darwin"
    if target.platform is Platform.WIN_64:
        return "x86_64-pc-windows-msvc"
    machine = "x86_64" if target.platform is Platform.LINUX_64 else "aarch64"
    minor = max((each for each in _GLIBC_MINORS if target.glibc and each <= target.glibc[1]), default=17)
    return f"{machine}-manylinux_2_{minor}"


def uv_reason(stderr: str) -> str:
    """uv's explanation on one line, without its headline, its drawing and the hints about its own options.

    uv calls the target's Python `current` if an interpreter of that very patch runs it, else `requested`: the same text
    on every machine here.
    """
    text = re.sub(r"^\s*(?:\u00d7|\u2570\u2500\u25b6|\u2502|error:)\s?", "", stderr, flags=re.MULTILINE)
    text = re.split(r"\n[^\S\n]*(?:hint:|help:)", text)[0]
    _, headline, reason = text.partition("No solution found when resolving dependencies")
    if headline:
        text = re.sub(r"^\s*:?\s*(?:cause:)?", "", reason)
    text = re.sub(r"(?:current|requested) Python version \((?:>=)?([\d.]+)\)", r"target's Python (\1)", text)
    return " ".join(text.split()) or "uv found no solution and gave no reason"
