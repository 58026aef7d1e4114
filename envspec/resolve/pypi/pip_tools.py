"""pip-tools as the resolver: pip's own resolver, for the Python and the platform that run it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from envspec.models import Platform, Target
from envspec.resolve.pypi.index.selection import version_text
from envspec.resolve.pypi.index.view import Bodies, normalised
from envspec.resolve.pypi.resolver import BuildFailed, EngineFault, Pins, Place, Request, Unsolvable, read_pins

_MACHINES = {
    ("Linux", "x86_64"): Platform.LINUX_64,
    ("Linux", "aarch64"): Platform.LINUX_AARCH64,
    ("Darwin", "arm64"): Platform.OSX_ARM64,
    ("Windows", "AMD64"): Platform.WIN_64,
}


class PipTools:
    """Works where an interpreter of the target's exact version and platform is at hand."""

    @property
    def version(self) -> str:
        return f"pip-tools {version('pip-tools')} pip {version('pip')}"

    def unable(self, target: Target) -> str | None:
        here = _MACHINES.get((platform.system(), platform.machine()))
        if here is not target.platform:
            return f"pip resolves only for the platform that runs it ({here.value if here else platform.machine()})"
        if _interpreter(target.python.version) is None:
            return f"pip resolves only for the Python that runs it, and no Python {target.python.version} is on PATH"
        return None

    def bodies(self, request: Request) -> Bodies:
        # pip fetches every wheel that it chose, 4 GB of a torch stack; builds need theirs whole.
        return Bodies.WHOLE if request.sdists else Bodies.STUB

    async def resolve(self, request: Request, place: Place) -> Pins:
        import piptools

        # pip-tools and what it needs are plain Python: another interpreter can run them from where they are.
        packages = Path(piptools.__file__).parent.parent
        source = place.work / "requirements.in"
        source.write_text("\n".join(request.requirements) + "\n", encoding="utf-8")
        constraints = place.work / "constraints.txt"
        constraints.write_text("\n".join(request.bounds) + "\n", encoding="utf-8")
        pins = place.work / "pins.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in request.preferences), encoding="utf-8")
        command = [
            _interpreter(request.target.python.version) or sys.executable,
            *("-m", "piptools", "compile", str(source), "--output-file", str(pins), "--quiet", "--no-config"),
            *("--no-header", "--no-annotate", "--strip-extras", "--allow-unsafe", "--rebuild"),
            *("--constraint", str(constraints)),
            *("--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-options"),
            *("--index-url", place.simple_url, "--trusted-host", place.simple_url.split("/")[2]),
            *("--cache-dir", str(place.cache / "pip")),
            *(() if request.sdists else ("--pip-args", "--only-binary :all:")),
        ]
        environ = place.environ() | {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
            "PYTHONPATH": str(packages),
            "PYTHONNOUSERSITE": "1",
        }
        done = await place.run(command, environ, python=command[0], reads=[packages])
        if done.status == 0:
            return read_pins(pins.read_text(encoding="utf-8"))
        if any(
            word in done.stderr
            for word in ("ResolutionImpossible", "No matching distribution", "Could not find a version")
        ):
            raise Unsolvable(told(done.stderr, request.requirements))
        why = told(done.stderr, request.requirements)
        if "subprocess-exited-with-error" in done.stderr:
            raise BuildFailed(why)
        raise EngineFault(f"pip-compile ended with status {done.status}: {why}", hint="try --resolver uv")


@cache
def _interpreter(wanted: str) -> str | None:
    """A CPython of exactly this version: this one, else one on PATH."""
    if platform.python_version() == wanted:
        return sys.executable
    series = ".".join(wanted.split(".")[:2])
    for name in (f"python{series}", "python3", "python"):
        path = shutil.which(name)
        if path and _version_of(path) == wanted:
            return path
    return None


def _version_of(path: str) -> str:
    words = [path, "-I", "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20, check=False).stdout.strip()  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""


_CAUSE: Final = re.compile(r"requirement=\w+\('([^']+)'\), parent=(?:LinkCandidate\('([^' ]+)|None)")


def told(stderr: str, requirements: Sequence[str]) -> str:
    """pip's reason without the traceback of pip-tools.

    requirements: the lines of the file that it was given, to which its words refer by their numbers.
    """
    # Which requirements exclude each other stands in the traceback alone.
    causes = list(dict.fromkeys(_asker(where) + what for what, where in _CAUSE.findall(stderr)))
    if causes:
        return f"these exclude each other: {'; '.join(causes)}"
    lines = [line.strip() for line in re.split(r"(?:^|\n)Traceback ", stderr)[0].splitlines()]
    telling = [line for line in lines if line and not line.startswith(("WARNING", "To fix this", "1.", "2."))]
    text = " ".join(telling) or " ".join(stderr.split())[-500:]
    text = " ".join(re.sub(r"\b(?:ERROR|error): |\u00d7|\u2502|\u2570\u2500>", "", text).split())
    return re.sub(r"-r \S+ \(line (\d+)\)", lambda found: _line(int(found[1]), requirements, found[0]), text)


def _line(number: int, requirements: Sequence[str], otherwise: str) -> str:
    return requirements[number - 1] if 0 < number <= len(requirements) else otherwise


def _asker(address: str) -> str:
    """Who asks, by the address of its file; the spec itself has none."""
    if not address:
        return "the spec asks "
    filename = unquote(address.rpartition("/")[2])
    return f"{normalised(filename.partition('-')[0])} {version_text(filename)} needs "
