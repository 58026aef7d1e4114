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

from envspec.io.process import run
from envspec.models import Platform, Target
from envspec.names import normalised
from envspec.resolve.pypi.index.selection import version_text
from envspec.resolve.pypi.resolver import Pins, ResolverError, Unsolvable, Workspace, read_pins
from envspec.resolve.pypi.types import PypiRequest

_MACHINES = {
    ("Linux", "x86_64"): Platform.LINUX_64,
    ("Linux", "aarch64"): Platform.LINUX_AARCH64,
    ("Darwin", "arm64"): Platform.OSX_ARM64,
    ("Windows", "AMD64"): Platform.WIN_64,
}

UNSATISFIABLE = ("ResolutionImpossible", "No matching distribution", "Could not find a version")


class PipTools:
    """Needs an interpreter of the target's exact version on a machine of its platform."""

    @property
    def version(self) -> str:
        return f"pip-tools {version('pip-tools')} pip {version('pip')}"

    def unable(self, target: Target) -> str | None:
        own = _MACHINES.get((platform.system(), platform.machine()))
        if own is not target.platform:
            return f"pip resolves only for the platform that it runs on ({own.value if own else platform.machine()})"
        if interpreter(target.python.version) is None:
            return f"pip resolves only for the Python that it runs on, and no Python {target.python.version} is on PATH"
        return None

    async def resolve(self, request: PypiRequest, workspace: Workspace) -> Pins:
        import piptools

        # pip-tools and its dependencies are pure Python: another interpreter can import them from their folder.
        packages = Path(piptools.__file__).parent.parent
        source = workspace.write("requirements.in", request.requirements)
        constraints = workspace.write("constraints.txt", request.constraints)
        pins = workspace.write("pins.txt", request.preferences)
        command = [
            interpreter(request.target.python.version) or sys.executable,
            *("-m", "piptools", "compile", str(source), "--output-file", str(pins), "--quiet", "--no-config"),
            *("--no-header", "--no-annotate", "--strip-extras", "--allow-unsafe", "--rebuild"),
            *("--constraint", str(constraints)),
            *("--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-options"),
            *("--index-url", workspace.simple_url, "--trusted-host", workspace.simple_url.split("/")[2]),
            *("--cache-dir", str(workspace.cache / "pip")),
            *("--pip-args", "--only-binary :all:"),
        ]
        environ = workspace.environ() | {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
            "PYTHONPATH": str(packages),
            "PYTHONNOUSERSITE": "1",
        }
        done = await run(command, environ=environ, cwd=workspace.work)
        if done.status == 0:
            return read_pins(pins.read_text(encoding="utf-8"))
        reason = pip_reason(done.stderr, request.requirements)
        if any(text in done.stderr for text in UNSATISFIABLE):
            raise Unsolvable(reason)
        raise ResolverError(f"pip-compile exited with status {done.status}: {reason}", hint="try --resolver uv")


@cache
def interpreter(exact: str) -> str | None:
    """A Python of exactly this version: the running one, else one on PATH."""
    if platform.python_version() == exact:
        return sys.executable
    series = ".".join(exact.split(".")[:2])
    for name in (f"python{series}", "python3", "python"):
        path = shutil.which(name)
        if path and _version_of(path) == exact:
            return path
    return None


def _version_of(path: str) -> str:
    command = [path, "-I", "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""


_CAUSE: Final = re.compile(r"requirement=\w+\('([^']+)'\), parent=(?:LinkCandidate\('([^' ]+)|None)")


def pip_reason(stderr: str, requirements: Sequence[str]) -> str:
    """pip's reason without the traceback of pip-tools.

    requirements: the lines of its input, which its messages refer to by number.
    """
    # Only the traceback shows which requirements exclude each other.
    causes = list(dict.fromkeys(_requirer(url) + requirement for requirement, url in _CAUSE.findall(stderr)))
    if causes:
        return f"these exclude each other: {'; '.join(causes)}"
    lines = filter(None, map(str.strip, re.split(r"(?:^|\n)Traceback ", stderr)[0].splitlines()))
    text = " ".join(line for line in lines if not line.startswith(("WARNING", "To fix this", "1.", "2.")))
    text = re.sub(r"\b(?:ERROR|error): |\u00d7|\u2502|\u2570\u2500>", "", text or " ".join(stderr.split())[-500:])

    def requirement(found: re.Match[str]) -> str:
        number = int(found[1])
        if 0 < number <= len(requirements):
            return requirements[number - 1]
        return found[0]

    return re.sub(r"-r \S+ \(line (\d+)\)", requirement, " ".join(text.split()))


def _requirer(url: str) -> str:
    """What has the requirement, by the URL of its file; the spec has none."""
    if not url:
        return "the spec requires "
    filename = unquote(url.rpartition("/")[2])
    return f"{normalised(filename.partition('-')[0])} {version_text(filename)} needs "
