"""The workflows and the composite action of this repository, as data, and the expressions in them.

for job in jobs():
    for step in job.steps: ...
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.user import ROOT

GITHUB: Final = ROOT / ".github"
#: The composite action's steps stand here as a job of this name.
ACTION: Final = "actions/envspec/action.yml"
EXPRESSION: Final = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_LITERAL: Final = re.compile(r"'([^']*)'")


class UnknownExpression(Exception):
    """An expression whose value the test does not give: GitHub would know it, and a test may not guess."""


@dataclass(frozen=True, slots=True)
class Step:
    """with_: the inputs of the action that the step uses."""

    name: str
    identity: str | None
    condition: str | None
    uses: str | None
    run: str | None
    environ: Mapping[str, str]
    with_: Mapping[str, str]
    folder: str = "."


@dataclass(frozen=True, slots=True)
class Job:
    """file: below .github. permissions: None where the job states none."""

    file: str
    name: str
    runs_on: str | tuple[str, ...]
    condition: str | None
    permissions: Mapping[str, str] | None
    environ: Mapping[str, str]
    outputs: Mapping[str, str]
    steps: tuple[Step, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[str]:
        """The names of the steps that run a script."""
        return [step.name for step in self.steps if step.run is not None]

    @property
    def key(self) -> tuple[str, str]:
        return self.file, self.name


@cache
def document(file: str) -> dict[str, Any]:
    """A file below .github. YAML 1.1 takes the key `on` for true; it is given back as `on`."""
    read: dict[Any, Any] = yaml.safe_load((GITHUB / file).read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in read.items()}


def workflow_files() -> list[str]:
    return sorted(f"workflows/{path.name}" for path in (GITHUB / "workflows").iterdir())


@cache
def jobs() -> tuple[Job, ...]:
    """Every job of every workflow, and the action."""
    found = [_job(file, name, row) for file in workflow_files() for name, row in document(file)["jobs"].items()]
    return (*found, _job(ACTION, "runs", document(ACTION)["runs"]))


def job(file: str, name: str) -> Job:
    (found,) = [each for each in jobs() if each.key == (file, name)]
    return found


def _job(file: str, name: str, row: Mapping[str, Any]) -> Job:
    runs_on = row.get("runs-on", ())
    return Job(
        file,
        name,
        runs_on if isinstance(runs_on, str) else tuple(runs_on),
        row.get("if"),
        row.get("permissions"),
        _strings(row.get("env", {})),
        _strings(row.get("outputs", {})),
        tuple(_step(each) for each in row["steps"]),
        row,
    )


def _step(row: Mapping[str, Any]) -> Step:
    return Step(
        row["name"],
        row.get("id"),
        row.get("if"),
        row.get("uses"),
        row.get("run"),
        _strings(row.get("env", {})),
        _strings(row.get("with", {})),
        row.get("working-directory", "."),
    )


def _strings(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in row.items()}


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with its `${{ }}` resolved.

    Raises:
        UnknownExpression: one needs what is not in `values`.
    """
    return EXPRESSION.sub(lambda found: value(found[1], values), text)


def value(expression: str, values: Mapping[str, str]) -> str:
    """The first operand of `a || b` that is not empty; an operand is a name of `values` or a literal."""
    answer = ""
    for operand in map(str.strip, expression.split("||")):
        literal = _LITERAL.fullmatch(operand)
        if literal is None and operand not in values:
            raise UnknownExpression(operand)
        answer = literal[1] if literal else values[operand]
        if answer:
            break
    return answer


def holds(condition: str | None, values: Mapping[str, str], failed: bool) -> bool:
    """Whether GitHub runs what stands under this `if`, in a job that was not cancelled. failed: a step before it has.

    Knows what the workflows use: always(), !cancelled(), comparisons by == and !=, && before ||.
    """
    if condition is None:
        return not failed
    whole = EXPRESSION.fullmatch(condition.strip())
    text = whole[1] if whole else condition
    is_told = "always()" in text or "cancelled()" in text
    return (is_told or not failed) and any(
        all(_is_true(term.strip(), values) for term in part.split("&&")) for part in text.split("||")
    )


def _is_true(term: str, values: Mapping[str, str]) -> bool:
    if term in ("always()", "!cancelled()"):
        return True
    for sign in ("==", "!="):
        left, found, right = term.partition(sign)
        if found:
            return (value(left, values) == value(right, values)) == (sign == "==")
    raise UnknownExpression(term)


#: All that is tracked, for steps that look at all of it.
WHOLE: Final = (
    *(".ci", ".github", "bench", "docs", "envspec", "locks", "specs", "tests"),
    *("README.md", "envspec.schema.json", "noxfile.py", "pyproject.toml", "LICENSE"),
)
_AUTHOR: Final = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")


class Repository:
    """A git repository in a new folder. parts: files and folders of this repository that are copied into it."""

    def __init__(self, folder: Path, parts: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for part in parts:
            source = ROOT / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".mypy_cache")
                shutil.copytree(source, folder / part, ignore=ignored, symlinks=True)
            else:
                (folder / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / part)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        """What git prints."""
        command = ["git", *_AUTHOR, *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commits(self, message: str) -> str:
        """The commit of all that there is."""
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD").strip()

    def text(self, path: str) -> str:
        return (self.folder / path).read_text(encoding="utf-8")

    def writes(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")
