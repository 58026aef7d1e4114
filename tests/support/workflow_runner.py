"""A job of a workflow, step by step, as GitHub's runner would have it: the scripts are run as they stand, by bash.

runner = Runner(tmp_path, copy_of_the_repository, {"github.token": "t"})
ran = runner.runs(job("workflows/lock-check.yml", "check"))
assert ran.unrun == [] and ran.status["Locks belong to their specs"] == 0

A whole workflow: each job on a machine of its own, with a checkout, a home and a token of its own; artifacts between
them.

hosted = Hosted(tmp_path, forge, {"github.ref_name": "main"})
assert hosted.runs("workflows/refresh.yml")["propose"].failed == []

`envspec` and `nox` on its PATH are the real ones. A test that puts another program there says what it stands for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support import preloaded
from tests.support.servers.forge import Forge
from tests.support.user import CUT_OFF, ROOT, SHORT_BACKOFF
from tests.support.workflows import Job, Step, document, filled, holds, job

#: Source: docs.github.com, "Workflow syntax for GitHub Actions", `jobs.<id>.steps[*].shell`: what `shell: bash` runs.
BASH: Final = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
_OUTPUT: Final = re.compile(
    r"(?P<name>[\w-]+)(?:=(?P<line>.*)\n|<<(?P<end>.+)\n(?P<text>(?s:.*?))^(?P=end)\n)", re.MULTILINE
)
_FROM_JSON: Final = re.compile(r"\$\{\{ *fromJSON\((?P<name>[^)]*)\) *\}\}")
_LIMIT_S: Final = 300
#: `envspec` in Python started anew: /proc shows its environment to others.
STARTED_ANEW: Final = f'exec env PYTHONPATH="{ROOT}" "{sys.executable}" -m envspec "$@"'


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
    """folder: for what the runner has beside the workspace. values: what GitHub's expressions stand for in this run.

    origin: what a checkout clones into the workspace; without it the workspace has everything from the start.
    """

    def __init__(self, folder: Path, workspace: Path, values: Mapping[str, str], **environ: str) -> None:
        self.folder, self.workspace = folder, workspace
        self.origin = ""
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
            **SHORT_BACKOFF,
            **CUT_OFF,
            **environ,
        }
        self.program("envspec", preloaded.program() if preloaded.IS_POSSIBLE else STARTED_ANEW)

    def program(self, name: str, script: str) -> None:
        """Put a program of this name first on PATH. script: bash."""
        path = self.programs / name
        path.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def locks(self, name: str, *words: str) -> None:
        """`envspec lock NAME WORDS`, as somebody does it before a commit."""
        command = [str(self.programs / "envspec"), "lock", name, *words]
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
            try:
                return self._uses(step, values)
            except FileNotFoundError:
                # There is no such artifact.
                ran.status[step.name] = 1
                return {}
        files = {
            name: self.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH", "GITHUB_ENV")
        }
        for path in files.values():
            path.write_text("")
        script = self.folder / "script.sh"
        script.write_text(step.run, encoding="utf-8")
        done = subprocess.run(
            [*BASH, script],
            cwd=self.workspace / filled(step.folder, values) if self.workspace.exists() else self.folder,
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
        environ |= outputs_of(files["GITHUB_ENV"].read_text(encoding="utf-8"))
        return outputs_of(files["GITHUB_OUTPUT"].read_text(encoding="utf-8"))

    def _uses(self, step: Step, values: Mapping[str, str]) -> dict[str, str]:
        """What an action would leave, as far as later steps see it."""
        assert step.uses is not None
        inputs = {name: filled(text, values) for name, text in step.with_.items()}
        match step.uses.partition("@")[0]:
            case "actions/checkout":
                assert inputs["persist-credentials"] == "false"
                self._check_out()
            case "./.github/actions/envspec":
                pass  # PATH has envspec and nox
            case "actions/setup-python":
                return {"python-path": sys.executable}
            case "actions/upload-artifact":
                self._upload(self.workspace / inputs["path"], self.artifacts / inputs["name"])
            case "actions/download-artifact":
                # Links and modes come as they are, which GitHub's does not do: nothing may rely on that.
                if "name" in inputs:
                    shutil.copytree(self.artifacts / inputs["name"], inputs["path"], symlinks=True)
                for path in self.artifacts.glob(inputs.get("pattern", "")) if "pattern" in inputs else ():
                    shutil.copytree(path, Path(inputs["path"]) / path.name, symlinks=True)
            case other:
                raise UnknownAction(other)
        return {}

    def _check_out(self) -> None:
        if self.origin:
            command = ["git", "clone", "--quiet", self.origin, str(self.workspace)]
            subprocess.run(command, env=self.environ, cwd=self.folder, check=True)

    @staticmethod
    def _upload(source: Path, kept: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, kept)
        elif source.exists():
            kept.mkdir()
            shutil.copy(source, kept)


class Hosted:
    """Runs whole workflows on `main` of a forge. prepare: puts programs on a job's machine; called with the job's name.

    machines: one for each job that ran, of the last workflow.
    """

    def __init__(
        self,
        folder: Path,
        forge: Forge,
        values: Mapping[str, str],
        prepare: Callable[[str, Runner], None] = lambda _name, _machine: None,
        **environ: str,
    ) -> None:
        self.folder, self.forge, self.values, self.environ = folder, forge, values, environ
        self.prepare = prepare
        self.machines: dict[str, Runner] = {}

    def runs(self, file: str) -> dict[str, JobRan]:
        """What each job left, those with a matrix as `job (spec)`; jobs that were skipped are not in it."""
        ran: dict[str, JobRan] = {}
        values = dict(self.values)
        for name in document(file)["jobs"]:
            each = job(file, name)
            needed = each.settings.get("needs", [])
            needed = [needed] if isinstance(needed, str) else needed
            # A job with a matrix counts as one: it has failed where one of them has.
            done = [[found for key, found in ran.items() if key.partition(" ")[0] == need] for need in needed]
            has_failed = any(not rows or any(row.failed for row in rows) for rows in done)
            unknown = {f"needs.{need}.outputs.{key}": "" for need in needed for key in job(file, need).outputs}
            if not holds(each.condition, {**unknown, **values}, has_failed):
                continue
            for suffix, row in _matrix(each, values):
                ran[name + suffix] = self._job(name + suffix, each, {**values, **row})
            values |= {f"needs.{name}.outputs.{key}": text for key, text in ran[name + suffix].outputs.items()}
        return ran

    def _job(self, name: str, each: Job, values: Mapping[str, str]) -> JobRan:
        folder = self.folder / name.replace(" ", "-")
        values = {**values, "github.token": self.forge.token(each.permissions or {})}
        machine = self.machines[name] = Runner(folder, folder / "work", values, **self.environ)
        machine.origin = self.forge.url
        machine.artifacts = self.folder / "artifacts"
        machine.artifacts.mkdir(exist_ok=True)
        machine.program("gh", self.forge.gh)
        self.prepare(name, machine)
        try:
            return machine.runs(each)
        finally:
            _end_all(machine)


def _matrix(each: Job, values: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """(behind the job's name, values) of each run of a job."""
    matrix: Any = each.settings.get("strategy", {}).get("matrix")
    if matrix is None:
        yield "", {}
        return
    if isinstance(matrix, str):
        rows = _from_json(matrix, values)["include"]
    else:
        [(key, words)] = matrix.items()
        rows = [{key: word} for word in (_from_json(words, values) if isinstance(words, str) else words)]
    for row in rows:
        yield f" {next(iter(row.values()))}", {f"matrix.{key}": value for key, value in row.items()}


def _from_json(text: str, values: Mapping[str, str]) -> Any:
    found = _FROM_JSON.fullmatch(text)
    assert found, text
    return json.loads(values[found["name"]])


def _end_all(machine: Runner) -> None:
    """The machine goes, with all that still runs on it."""
    mark = f"RUNNER_TEMP={machine.temp}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue


def _nothing_yet(job: Job) -> dict[str, str]:
    """GitHub's value for an output that no step of the job has set: empty."""
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
