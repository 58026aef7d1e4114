"""Run what a CI configuration on a page runs: `python -m tests.docs.ci_steps FILE`, in a hidden block of the page.

FILE is a workflow of GitHub, whose steps may use envspec's action, or a .gitlab-ci.yml. Scripts run as they are, by
bash; conditions do not count. What installs envspec (`before_script`, the action's own installation) does not run:
the envspec on PATH is this one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.workflow_runner import BASH
from tests.support.workflows import ACTION, document

_ACTION: Final = re.compile(r"[\w./-]*/actions/envspec(@\S+)?")
#: Actions that need GitHub.
_OF_GITHUB: Final = re.compile(r"actions/(checkout|cache|upload-artifact)@\S+")
#: Keys of a .gitlab-ci.yml that are no jobs.
_GLOBAL: Final = ("default", "stages", "variables", "workflow", "include")


def scripts(configuration: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each script with its variables."""
    if "jobs" in configuration:
        for job in configuration["jobs"].values():
            for step in job["steps"]:
                yield from _step(step)
        return
    shared = configuration.get("variables", {})
    for name, job in configuration.items():
        if name not in _GLOBAL:
            yield "\n".join(job["script"]), {**shared, **job.get("variables", {})}


def _step(step: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    uses = step.get("uses", "")
    if _ACTION.fullmatch(uses):
        action = document(ACTION)
        inputs = {name: each["default"] for name, each in action["inputs"].items()}
        given = step.get("with", {})
        assert set(given) <= set(inputs), f"the action has no input {set(given) - set(inputs)}"
        (command,) = [each for each in action["runs"]["steps"] if each.get("id") == "command"]
        if given.get("command"):
            folder = {**inputs, **given}["working-directory"]
            yield f"cd {folder}\n{command['run']}", {"COMMAND": given["command"], "GITHUB_OUTPUT": os.devnull}
    elif uses:
        assert _OF_GITHUB.fullmatch(uses), f"unknown action {uses}"
    else:
        yield step["run"], step.get("env", {})


def main(path: Path) -> int:
    """The exit status of the first script that fails."""
    for script, variables in scripts(yaml.safe_load(path.read_text(encoding="utf-8"))):
        environ = {**os.environ, **{name: os.path.expandvars(text) for name, text in variables.items()}}
        status = subprocess.run([*BASH, "-c", script], env=environ, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
