"""refresh.yml: its scripts as they stand, against an index and a remote on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ecosystem
from tests.support.ecosystem import release
from tests.support.index_server import IndexServer
from tests.support.workflow_repository import Repository
from tests.support.workflow_runner import Runner
from tests.support.workflows import job

REFRESH = job("workflows/refresh.yml", "refresh")
RELOCK, PROPOSE, WHOLE = REFRESH.runs
SPEC = """\
# kept
[env]
name = "{name}"
python = "3.11.7"
platforms = ["linux-64"]
{as_of}

[pip]
dependencies = ["{package}"]
"""
JUNE = "as_of = 2024-06-01T00:00:00Z"
#: Stands for GitHub's: keeps its arguments and the body, and knows of the pull requests in $OPEN.
GH = """\
echo "$*" >> "{kept}/calls"
case "$1 $2" in
  "auth setup-git") ;;
  "pr list") printf '%s' "{open}" ;;
  "pr create" | "pr edit") while [ "$1" != --body-file ]; do shift; done; cp "$2" "{kept}/body" ;;
  *) exit 64 ;;
esac
"""


class Project:
    """A repository with specs and locks of small projects, cloned from a bare remote."""

    def __init__(self, folder: Path, index: IndexServer) -> None:
        self.folder = folder
        self.index = index
        self.repository = Repository(folder / "repository", [".github"])
        self.runner = Runner(
            folder / "runner",
            self.repository.folder,
            {"github.token": "a token", "github.ref_name": "main"},
            ENVSPEC_DEFAULT_INDEX=index.url,
        )
        self.remote = folder / "remote.git"
        subprocess.run(["git", "init", "--quiet", "--bare", self.remote], check=True)
        self.opens("")

    def opens(self, number: str) -> None:
        """Which pull request is open, if any."""
        self.runner.program("gh", GH.format(kept=self.folder, open=number))

    def locks(self, name: str, package: str, as_of: str = JUNE) -> None:
        self.repository.writes(f"specs/{name}.toml", SPEC.format(name=name, package=package, as_of=as_of))
        self.runner.locks(name)

    def commits(self) -> None:
        self.repository.commits("locked")
        self.repository.git("remote", "add", "origin", str(self.remote))
        self.repository.git("push", "--quiet", "origin", "main")

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def pushed(self, *words: str) -> str:
        return self.repository.git("--git-dir", str(self.remote), *words)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with IndexServer([*ecosystem.dated(), release("still", "1.0.0", "2023-01-01")]) as index:
        yield Project(tmp_path, index)


def test_newer_packages_come_as_a_pull_request(project: Project) -> None:
    project.locks("moves", "weekly", "as_of = 2025-03-15T00:00:00Z")
    project.locks("stays", "still")
    project.locks("undated", "still", "")
    project.commits()
    ran = project.runner.runs(REFRESH)
    assert ran.failed == [] and ran.unrun == [], ran.said
    assert project.pushed("diff", "--name-only", "main", "refresh-locks").splitlines() == [
        "locks/moves/envspec.lock",
        "locks/moves/requirements.linux-64.txt",
        "specs/moves.toml",
    ]
    assert project.pushed("show", "refresh-locks:specs/moves.toml").startswith("# kept\n")
    assert project.calls == [
        "auth setup-git",
        "pr list --head refresh-locks --state open --json number --jq .[0].number // empty",
        f"pr create --base main --head refresh-locks --title Locks as of now --body-file {project.runner.temp}/body.md",
    ]
    body = (project.folder / "body").read_text()
    assert "## moves" in body and "weekly" in body and "stays" not in body
    assert body == ran.summary


def test_an_open_pull_request_is_renewed(project: Project) -> None:
    project.locks("moves", "weekly", "as_of = 2025-03-15T00:00:00Z")
    project.commits()
    project.repository.git("push", "--quiet", "origin", "main:refresh-locks")
    project.opens("12")
    ran = project.runner.runs(REFRESH)
    assert ran.failed == [] and ran.unrun == [], ran.said
    assert project.calls[-1] == f"pr edit 12 --body-file {project.runner.temp}/body.md"
    assert project.pushed("log", "--format=%an", "-1", "refresh-locks").strip() == "github-actions[bot]"


def test_nothing_newer_is_no_pull_request(project: Project) -> None:
    project.locks("stays", "still")
    project.commits()
    ran = project.runner.runs(REFRESH)
    assert ran.failed == [] and ran.unrun == [PROPOSE], ran.said
    assert ran.summary == "Nothing newer.\n" and project.calls == []
    assert project.repository.git("status", "--porcelain") == ""


def test_a_spec_that_can_not_be_locked_keeps_its_lock_and_fails_the_job(project: Project) -> None:
    project.locks("moves", "weekly", "as_of = 2025-03-15T00:00:00Z")
    project.locks("gone", "still")
    broken = project.repository.text("specs/gone.toml").replace('"still"', '"never-published"')
    project.repository.writes("specs/gone.toml", broken)
    project.commits()
    ran = project.runner.runs(REFRESH)
    assert ran.failed == [WHOLE] and ran.unrun == [], ran.said
    assert "## gone stays as it is" in ran.summary and "no such package: never-published" in ran.summary
    assert "specs/gone.toml" not in project.pushed("diff", "--name-only", "main", "refresh-locks")
    assert project.calls[-1].startswith("pr create ")


def test_the_token_is_with_the_step_that_pushes_and_no_other() -> None:
    having = [step.name for step in REFRESH.steps if "GH_TOKEN" in step.environ]
    assert having == [PROPOSE] and "GH_TOKEN" not in REFRESH.environ
