"""pip-tools as the resolver: pip's own resolver.

pip resolves for the Python and the machine that run it. Here, nothing that it reads depends on them: its index shows
what metadata means on the target (`Bodies.EVALUATED`), and the lines of the request have no markers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import starmap
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from envspec.io.process import run
from envspec.models import Target
from envspec.names import normalised
from envspec.resolve.pypi.index.selection import version_text
from envspec.resolve.pypi.index.view import Bodies
from envspec.resolve.pypi.metadata import NO_PYTHON, evaluated_requirement
from envspec.resolve.pypi.resolver import Pins, ResolverError, Unsolvable, Workspace, read_pins
from envspec.resolve.pypi.types import PypiRequest
from envspec.spec.targets import marker_environment

UNSATISFIABLE = ("ResolutionImpossible", "No matching distribution", "Could not find a version")


class PipTools:
    """`pip-compile`: resolves for every platform and Python, by what its index shows."""

    @property
    def version(self) -> str:
        return f"pip-tools {version('pip-tools')} pip {version('pip')}"

    @property
    def bodies(self) -> Bodies:
        return Bodies.EVALUATED

    async def resolve(self, request: PypiRequest, workspace: Workspace) -> Pins:
        import piptools

        requirements = lines_without_markers(request.requirements, request.target)
        source = workspace.write("requirements.in", requirements)
        constraints = workspace.write("constraints.txt", lines_without_markers(request.constraints, request.target))
        pins = workspace.write("pins.txt", request.preferences)
        command = [
            sys.executable,
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
            "PYTHONPATH": str(Path(piptools.__file__).parent.parent),
            "PYTHONNOUSERSITE": "1",
        }
        done = await run(command, environ=environ, cwd=workspace.work)
        if done.status == 0:
            return read_pins(pins.read_text(encoding="utf-8"))
        reason = pip_reason(done.stderr, requirements)
        if any(text in done.stderr for text in UNSATISFIABLE):
            raise Unsolvable(reason)
        raise ResolverError(f"pip-compile exited with status {done.status}: {reason}", hint="try --resolver uv")


def lines_without_markers(lines: Iterable[str], target: Target) -> list[str]:
    """The lines that apply to a target, without their markers."""
    environment = marker_environment(target)
    evaluated = [evaluated_requirement(line, environment) for line in lines]
    return [line for line in evaluated if line]


_CAUSE: Final = re.compile(r"requirement=(\w+)\('([^']+)'\), parent=(?:LinkCandidate\('([^' ]+)|None)")
#: What the index adds to the Pythons of a release that is not for the target's.
_REFUSED: Final = re.compile(rf"{re.escape(NO_PYTHON)},|,{re.escape(NO_PYTHON)}")


def pip_reason(stderr: str, requirements: Sequence[str]) -> str:
    """pip's reason without the traceback of pip-tools.

    requirements: the lines of its input, which its messages refer to by number.
    """
    stderr = _REFUSED.sub("", stderr)
    # Only the traceback shows which requirements exclude each other.
    causes = list(dict.fromkeys(starmap(_cause, _CAUSE.findall(stderr))))
    if len(causes) > 1:
        return f"these exclude each other: {'; '.join(causes)}"
    if causes and _PYTHON in causes[0]:
        # pip's text names the Python that runs it.
        return causes[0]
    lines = filter(None, map(str.strip, re.split(r"(?:^|\n)Traceback ", stderr)[0].splitlines()))
    text = " ".join(line for line in lines if not line.startswith(("WARNING", "To fix this", "1.", "2.")))
    text = re.sub(r"\b(?:ERROR|error): |\u00d7|\u2502|\u2570\u2500>", "", text or " ".join(stderr.split())[-500:])

    def requirement(found: re.Match[str]) -> str:
        number = int(found[1])
        if 0 < number <= len(requirements):
            return requirements[number - 1]
        return found[0]

    return re.sub(r"-r \S+ \(line (\d+)\)", requirement, " ".join(text.split()))


_PYTHON: Final = " needs Python "


def _cause(kind: str, requirement: str, url: str) -> str:
    """A requirement with what has it. kind: pip's class. url: of the file that has it; empty: the spec."""
    if not url:
        return f"the spec requires {requirement}"
    filename = unquote(url.rpartition("/")[2])
    needs = _PYTHON if kind == "RequiresPythonRequirement" else " needs "
    return f"{normalised(filename.partition('-')[0])} {version_text(filename)}{needs}{requirement}"
