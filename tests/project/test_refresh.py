"""refresh.yml: its scripts as they stand, against an index and a remote on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import release
from tests.support.servers.forge import Forge
from tests.support.servers.index import IndexServer
from tests.support.workflow_runner import Hosted, Runner
from tests.support.workflows import Repository, jobs

REFRESH = "workflows/refresh.yml"
WHOLE = "Every spec could be locked"
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


class Project:
    """A repository with specs and locks of small projects, and a forge that has it once it is committed."""

    forge: Forge

    def __init__(self, folder: Path, index: IndexServer) -> None:
        self.folder, self.index = folder, index
        self.repository = Repository(folder / "repository", [".github"])
        self.author = Runner(folder / "author", self.repository.folder, {}, ENVSPEC_DEFAULT_INDEX=index.url)

    def locks(self, name: str, package: str, as_of: str = JUNE, rest: str = "") -> None:
        self.repository.writes(f"specs/{name}.toml", SPEC.format(name=name, package=package, as_of=as_of) + rest)
        self.author.locks(name)

    @contextmanager
    def commits(self) -> Iterator[Hosted]:
        """The forge and its machines."""
        self.repository.commits("locked")
        with Forge(self.folder / "forge", self.repository) as forge:
            values = {"github.ref_name": "main"}
            yield Hosted(self.folder / "run", forge, values, ENVSPEC_DEFAULT_INDEX=self.index.url)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with IndexServer([*ecosystem.dated(), release("still", "1.0.0", "2023-01-01")]) as index:
        yield Project(tmp_path, index)


def test_newer_packages_come_as_a_pull_request(project: Project) -> None:
    project.locks("moves", "weekly", "as_of = 2025-03-15T00:00:00Z")
    project.locks("stays", "still")
    project.locks("undated", "still", "")
    with project.commits() as hosted:
        ran = hosted.runs(REFRESH)
    assert {name: (job.failed, job.unrun) for name, job in ran.items()} == {"relock": ([], []), "propose": ([], [])}
    forge = hosted.forge
    assert forge.git("diff", "--name-only", "main", "refresh-locks").splitlines() == [
        "locks/moves/envspec.lock",
        "locks/moves/requirements.linux-64.txt",
        "specs/moves.toml",
    ]
    assert forge.git("show", "refresh-locks:specs/moves.toml").startswith("# kept\n")
    assert forge.calls == [
        "pr list --head refresh-locks --state open --json number --jq .[0].number // empty",
        "pr create --base main --head refresh-locks --title Locks as of now --body-file "
        f"{hosted.machines['propose'].temp}/body.md",
    ]
    assert "## moves" in forge.body and "weekly" in forge.body and "stays" not in forge.body
    assert forge.body == ran["relock"].summary


def test_an_open_pull_request_is_renewed(project: Project) -> None:
    project.locks("moves", "weekly", "as_of = 2025-03-15T00:00:00Z")
    with project.commits() as hosted:
        hosted.forge.git("branch", "refresh-locks", "main")
        (hosted.forge.folder / "open").write_text("12")
        ran = hosted.runs(REFRESH)
    assert ran["propose"].failed == [], ran["propose"].said
    assert hosted.forge.calls[-1] == f"pr edit 12 --body-file {hosted.machines['propose'].temp}/body.md"
    assert hosted.forge.git("log", "--format=%an", "-1", "refresh-locks").strip() == "github-actions[bot]"


def test_variants_come_with_their_spec_and_ages_stay(project: Project) -> None:
    march = "as_of = 2025-03-15T00:00:00Z"
    project.locks("moves", "still", march, '[variants.more]\npip.dependencies = ["weekly"]\n')
    project.locks("aged", "weekly", 'as_of = "90 weeks ago"')
    aged = project.repository.text("specs/aged.toml").replace("90 weeks", "1 week")
    project.repository.writes("specs/aged.toml", aged)
    with project.commits() as hosted:
        ran = hosted.runs(REFRESH)
    assert ran["propose"].failed == [], ran["propose"].said
    forge = hosted.forge
    changed = forge.git("diff", "--name-only", "main", "refresh-locks").splitlines()
    assert {path.rpartition("/")[0] for path in changed} == {"locks/aged", "locks/moves", "locks/moves-more", "specs"}
    assert "specs/aged.toml" not in changed
    assert "## moves-more" in forge.body and "## aged" in forge.body and "## moves\n" not in forge.body


def test_nothing_newer_is_no_pull_request(project: Project) -> None:
    project.locks("stays", "still")
    with project.commits() as hosted:
        ran = hosted.runs(REFRESH)
    assert list(ran) == ["relock"] and ran["relock"].failed == [], ran
    assert ran["relock"].summary == "Nothing newer.\n" and hosted.forge.calls == []
    work = str(hosted.machines["relock"].workspace)
    assert project.repository.git("-C", work, "status", "--porcelain") == ""


def test_a_spec_that_can_not_be_locked_keeps_its_lock_and_fails_the_job(project: Project) -> None:
    project.locks("moves", "weekly", "as_of = 2025-03-15T00:00:00Z")
    project.locks("gone", "still")
    broken = project.repository.text("specs/gone.toml").replace('"still"', '"never-published"')
    project.repository.writes("specs/gone.toml", broken)
    with project.commits() as hosted:
        ran = hosted.runs(REFRESH)
    assert ran["relock"].failed == [WHOLE] and ran["propose"].failed == [], ran
    assert "## gone: not locked, unchanged" in ran["relock"].summary
    assert "no such package: never-published" in ran["relock"].summary
    assert "specs/gone.toml" not in hosted.forge.git("diff", "--name-only", "main", "refresh-locks")
    assert hosted.forge.calls[-1].startswith("pr create ")


def test_no_step_beside_the_pushing_one_is_given_the_token() -> None:
    having = [step.name for job in jobs() for step in job.steps if job.file == REFRESH and "GH_TOKEN" in step.environ]
    assert having == ["Open or update the pull request"]
