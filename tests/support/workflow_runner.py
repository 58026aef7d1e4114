"""A job of a workflow, step by step, as GitHub's runner would have it: the scripts are run as they stand, by bash.

runner = Runner(tmp_path, copy_of_the_repository, {"github.token": "t"})
ran = runner.runs(job("workflows/lock-check.yml", "check"))
assert ran.unrun == [] and ran.status["Locks belong to their specs"] == 0

`envspec` and `nox` on its PATH are the real ones. A test that puts another program there says what it stands for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.user import CUT_OFF, HASTY, ROOT
from tests.support.workflows import Job, Step, filled, holds

#: Source: docs.github.com, "Workflow syntax for GitHub Actions", `jobs.<id>.steps[*].shell`: what `shell: bash` runs.
BASH: Final = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
_OUTPUT: Final = re.compile(
    r"(?P<name>[\w-]+)(?:=(?P<line>.*)\n|<<(?P<end>.+)\n(?P<text>(?s:.*?))^(?P=end)\n)", re.MULTILINE
)
_LIMIT_S: Final = 300


class UnknownAction(Exception):
    """A step uses an action of which this runner does not know what it does."""


@dataclass
class JobRan:
    """status: exit code by the step's name. unrun: scripts that were not reached. said: stdout and stderr together."""

    status: dict[str, int] = field(default_factory=dict)
    unrun: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    @property
    def failed(self) -> list[str]:
        return [name for name, code in self.status.items() if code]


class Runner:
    """folder: for what the runner has beside the workspace. values: what GitHub's expressions stand for in this run."""

    def __init__(self, folder: Path, workspace: Path, values: Mapping[str, str], **environ: str) -> None:
        self.folder, self.workspace = folder, workspace
        self.programs, self.temp, self.home = (folder / name for name in ("programs", "temp", "home"))
        self.artifacts = folder / "artifacts"
        for path in (self.programs, self.temp, self.home, self.artifacts):
            path.mkdir(parents=True, exist_ok=True)
        self.values = {"runner.temp": str(self.temp), **values}
        self.environ = {
            "PATH": os.pathsep.join([str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(self.home),
            "CI": "true",
            "LC_ALL": "C.UTF-8",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(workspace),
            "ENVSPEC_CACHE_DIR": str(folder / "cache"),
            **HASTY,
            **CUT_OFF,
            **environ,
        }
        self.program("envspec", f'exec env PYTHONPATH="{ROOT}" "{sys.executable}" -m envspec "$@"')

    def program(self, name: str, script: str) -> None:
        """Put a program of this name first on PATH. script: bash."""
        path = self.programs / name
        path.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def locks(self, name: str) -> None:
        """`envspec lock NAME`, as somebody does it before a commit."""
        command = [str(self.programs / "envspec"), "lock", name]
        done = subprocess.run(
            command, cwd=self.workspace, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def runs(self, job: Job) -> JobRan:
        """Every step in its turn: after one that failed, those whose `if` says so."""
        ran = JobRan()
        values = {**_nothing_yet(job), **self.values}
        environ = {**self.environ, **{name: filled(text, values) for name, text in job.environ.items()}}
        for step in job.steps:
            outcome = "skipped"
            if holds(step.condition, values, bool(ran.failed)):
                outputs = self._step(step, values, environ, ran)
                values |= {f"steps.{step.identity}.outputs.{name}": text for name, text in outputs.items()}
                outcome = "failure" if ran.status[step.name] else "success"
            elif step.run is not None:
                ran.unrun.append(step.name)
            values[f"steps.{step.identity}.outcome"] = outcome
        ran.outputs = {name: filled(text, values) for name, text in job.outputs.items()}
        return ran

    def _step(self, step: Step, values: Mapping[str, str], environ: dict[str, str], ran: JobRan) -> dict[str, str]:
        """The step's outputs."""
        if step.run is None:
            ran.status[step.name] = 0
            return self._uses(step, values)
        files = {name: self.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")}
        for path in files.values():
            path.write_text("")
        script = self.folder / "script.sh"
        script.write_text(step.run, encoding="utf-8")
        done = subprocess.run(
            [*BASH, script],
            cwd=self.workspace / filled(step.folder, values),
            env={
                **environ,
                **{name: str(path) for name, path in files.items()},
                **{name: filled(text, values) for name, text in step.environ.items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        ran.status[step.name] = done.returncode
        ran.said[step.name] = done.stdout
        ran.summary += files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
        for line in files["GITHUB_PATH"].read_text().splitlines():
            environ["PATH"] = os.pathsep.join([line, environ["PATH"]])
        return outputs_of(files["GITHUB_OUTPUT"].read_text(encoding="utf-8"))

    def _uses(self, step: Step, values: Mapping[str, str]) -> dict[str, str]:
        """What an action would leave, as far as later steps see it."""
        assert step.uses is not None
        inputs = {name: filled(text, values) for name, text in step.with_.items()}
        match step.uses.partition("@")[0]:
            case "actions/checkout" | "./.github/actions/envspec":
                pass  # the workspace is the copy, and PATH has envspec and nox
            case "actions/setup-python":
                return {"python-path": sys.executable}
            case "actions/upload-artifact":
                source = self.workspace / inputs["path"]
                if source.exists():
                    shutil.copytree(source, self.artifacts / inputs["name"])
            case other:
                raise UnknownAction(other)
        return {}


def _nothing_yet(job: Job) -> dict[str, str]:
    """GitHub's value for an output that a step of the job has not given: empty."""
    texts = [
        text for step in job.steps for text in (*step.environ.values(), *step.with_.values(), step.condition or "")
    ]
    asked = re.findall(r"steps\.([\w-]+)\.(outputs\.[\w-]+)", " ".join([*texts, *job.outputs.values()]))
    known = {step.identity for step in job.steps}
    return {f"steps.{identity}.{output}": "" for identity, output in asked if identity in known}


def outputs_of(text: str) -> dict[str, str]:
    """What a step wrote to $GITHUB_OUTPUT: `name=value`, or `name<<END`, lines and END."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        row = _OUTPUT.match(text, at)
        assert row is not None, f"no output: {text[at:]!r}"
        found[row["name"]] = row["line"] if row["end"] is None else row["text"].removesuffix("\n")
        at = row.end()
    return found
