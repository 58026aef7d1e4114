"""uv.yml: its scripts as they stand, against an index and a remote on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.test_refresh import Project
from tests.support.builders.ecosystem import release
from tests.support.servers.index import IndexServer
from tests.support.workflow_runner import JobRan, Runner

RAISE = "workflows/uv.yml"
PROJECT = '[project]\nname = "small"\ndependencies = ["uv>=0.11.6,<0.14"]\n'


def run(folder: Path, newest: str, nox: str = "true") -> tuple[Project, dict[str, JobRan]]:
    """The workflow, in a repository whose uv is below 0.14. newest: the newest release. nox: stands for the tests."""
    releases = [release("uv", version, "2024-01-01") for version in ("0.13.8", newest)]
    with IndexServer(releases) as index:
        project = Project(folder, index)
        project.repository.writes("pyproject.toml", PROJECT)
        project.locks("dev-3.11", "uv>=0.11.6,<0.14")

        def prepare(_job: str, machine: Runner) -> None:
            machine.program("nox", f'echo "$*" >> "{folder}/nox"; {nox}')

        with project.commits() as hosted:
            hosted.prepare = prepare
            ran = hosted.runs(RAISE)
            project.forge = hosted.forge
    return project, ran


def test_a_new_minor_release_comes_as_a_pull_request(tmp_path: Path) -> None:
    project, ran = run(tmp_path, "0.14.2")
    assert {name: (job.failed, job.unrun) for name, job in ran.items()} == {"raise": ([], []), "propose": ([], [])}
    assert (tmp_path / "nox").read_text() == "-s tests\n"
    assert project.forge.git("diff", "--name-only", "main", "raise-uv").splitlines() == [
        "locks/dev-3.11/envspec.lock",
        "locks/dev-3.11/requirements.linux-64.txt",
        "pyproject.toml",
        "specs/dev-3.11.toml",
    ]
    assert '"uv>=0.11.6,<0.15"' in project.forge.git("show", "raise-uv:pyproject.toml")
    assert "uv==0.14.2" in project.forge.git("show", "raise-uv:locks/dev-3.11/requirements.linux-64.txt")
    assert project.forge.calls[-1].startswith(
        "pr create --base main --head raise-uv --title uv below 0.15 --body-file "
    )


@pytest.mark.parametrize(("newest", "nox", "failed"), [("0.13.9", "true", []), ("0.14.2", "false", ["Test"])])
def test_without_one_or_if_a_test_fails_nothing_is_proposed(
    tmp_path: Path, newest: str, nox: str, failed: list[str]
) -> None:
    project, ran = run(tmp_path, newest, nox)
    assert list(ran) == ["raise"] and ran["raise"].failed == failed
    assert project.forge.calls == []
