"""What holds for every workflow and the action: a test runs each script; pins, rights, forks; what linters say."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.project import test_action as action
from tests.project import test_ci as ci
from tests.project import test_gpu_workflow as gpu
from tests.project import test_lock_check as lock_check
from tests.project import test_raise_uv as raise_uv
from tests.project import test_refresh as refresh
from tests.support.user import ROOT
from tests.support.workflows import ACTION, GITHUB, Job, UnknownExpression, document, holds, jobs, value, workflow_files

JOBS: Final = list(jobs())
#: Of each job, the test that runs every script in it: it asserts that none was left out.
RUN_BY: Final[Mapping[tuple[str, str], Callable[..., None]]] = {
    ("workflows/ci.yml", "tests"): ci.test_the_tests_run_as_a_nox_session,
    ("workflows/ci.yml", "documents"): ci.test_the_tests_of_documents_run_as_a_nox_session,
    ("workflows/ci.yml", "checks"): ci.test_the_checks_run_on_the_whole_repository,
    ("workflows/ci.yml", "site"): ci.test_the_site_is_built_and_kept,
    ("workflows/ci.yml", "readme"): ci.test_what_the_readme_says_is_run_as_anywhere,
    ("workflows/lock-check.yml", "check"): lock_check.test_what_a_new_lock_changes_is_said,
    ("workflows/lock-check.yml", "comment"): lock_check.test_the_comment_is_handed_over_as_it_is,
    ("workflows/refresh.yml", "relock"): refresh.test_newer_packages_come_as_a_pull_request,
    ("workflows/refresh.yml", "propose"): refresh.test_newer_packages_come_as_a_pull_request,
    ("workflows/uv.yml", "raise"): raise_uv.test_a_new_minor_release_comes_as_a_pull_request,
    ("workflows/uv.yml", "propose"): raise_uv.test_a_new_minor_release_comes_as_a_pull_request,
    ("workflows/gpu-conformance.yml", "names"): gpu.test_images_are_pushed_and_run_by_digest,
    ("workflows/gpu-conformance.yml", "build"): gpu.test_images_are_pushed_and_run_by_digest,
    ("workflows/gpu-conformance.yml", "push"): gpu.test_images_are_pushed_and_run_by_digest,
    ("workflows/gpu-conformance.yml", "suite"): gpu.test_the_receipt_is_kept_whether_the_suite_passes_or_not,
    (ACTION, "runs"): action.test_it_installs_what_is_locked_and_runs_the_command,
}
#: What may be written with the token of a job; of all others, nothing.
WRITES: Final = {
    ("workflows/lock-check.yml", "comment"): {"pull-requests"},
    ("workflows/refresh.yml", "propose"): {"contents", "pull-requests"},
    ("workflows/uv.yml", "propose"): {"contents", "pull-requests"},
    ("workflows/gpu-conformance.yml", "push"): {"packages"},
}
#: What runs foreign code: builds, and whatever environment they leave behind.
FOREIGN: Final = re.compile(r"\benvspec (?!-)|refresh\.sh|lock-check\.sh|lock-diff\.sh|nox|pip\b|\.ci/run")
ACTIONS: Final = {"actions/checkout", "actions/download-artifact", "actions/setup-python", "actions/upload-artifact"}
PINNED: Final = re.compile(r"uses: (?P<action>[\w-]+/[\w-]+)@(?P<sha>[0-9a-f]{40}) # (?P<version>v\d+\.\d+\.\d+)$")
FORK: Final = {
    "github.event_name": "pull_request",
    "github.event.pull_request.head.repo.full_name": "stranger/stacks",
    "github.repository": "acme/stacks",
    "needs.check.outputs.comment": "text",
}
OWN: Final = {**FORK, "github.event.pull_request.head.repo.full_name": "acme/stacks"}


def name_of(job: Job) -> str:
    return " ".join(job.key)


def test_every_script_is_run_by_a_test() -> None:
    assert {job.key for job in JOBS if job.runs} == set(RUN_BY)
    for job in JOBS:
        assert len({step.name for step in job.steps}) == len(job.steps), f"{job.key}: two steps of one name"


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_no_expression_stands_in_a_script(job: Job) -> None:
    """What it stands for would be shell."""
    for step in job.steps:
        assert "${{" not in (step.run or ""), step.name


def test_actions_are_pinned_by_commit_and_few() -> None:
    pins: dict[str, tuple[str, str]] = {}
    evidence = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    texts = {file: (GITHUB / file).read_text(encoding="utf-8") for file in (*workflow_files(), ACTION)}
    for file, text in {**texts, "ci.md": evidence}.items():
        for line in text.splitlines():
            if not re.match(r"[ -]*uses:", line) or "/.github/actions/envspec" in line:
                continue
            found = PINNED.search(line)
            assert found, f"{file}: {line}"
            pin = (found["sha"], found["version"])
            assert pins.setdefault(found["action"], pin) == pin, f"{file}: another {found['action']} than elsewhere"
            assert f"| `{found['action']}` | {found['version']} | `{found['sha']}` |" in evidence
    assert set(pins) == ACTIONS


@pytest.mark.parametrize("file", workflow_files())
def test_a_workflow_has_no_rights_of_its_own_and_no_secrets(file: str) -> None:
    text = (GITHUB / file).read_text(encoding="utf-8")
    assert document(file)["permissions"] == {}
    assert document(file)["defaults"] == {"run": {"shell": "bash"}}, "the runner of the tests runs that one"
    assert "concurrency" in document(file)
    for word in ("secrets.", "pull_request_target", "workflow_run", "issue_comment"):
        assert word not in text, word


@pytest.mark.parametrize("job", [job for job in JOBS if job.file != ACTION], ids=name_of)
def test_a_job_has_the_rights_that_it_needs(job: Job) -> None:
    rights = job.permissions or {}
    assert rights and {name for name, right in rights.items() if right == "write"} == WRITES.get(job.key, set())
    assert 0 < job.settings["timeout-minutes"] <= 60
    for step in job.steps:
        if (step.uses or "").startswith("actions/checkout@"):
            assert step.with_["persist-credentials"] == "false"


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_what_can_write_runs_nothing_from_outside(job: Job) -> None:
    """Nor is a cache restored anywhere: whatever runs in a job can write one for another."""
    for step in job.steps:
        assert "cache" not in (step.uses or "") and not any("cache" in name for name in step.with_), step.name
        if job.key in WRITES:
            assert not (step.uses or "").startswith("./"), step.name
            assert not FOREIGN.search(step.run or ""), step.name
            # Of what is on PATH, they run the system's, and of the checkout what is there.
            scripts = re.findall(r"[\w./-]+\.(?:sh|py)\b", step.run or "")
            assert set(scripts) <= {".github/received.py", ".github/images.sh", ".github/raise-uv.sh"}, scripts


@pytest.mark.parametrize("job", [job for job in JOBS if "self-hosted" in job.runs_on], ids=name_of)
def test_a_machine_of_ours_runs_nothing_of_a_fork(job: Job) -> None:
    assert not holds(job.condition, FORK, failed=False)
    assert holds(job.condition, OWN, failed=False)
    assert holds(job.condition, {**FORK, "github.event_name": "push"}, failed=False)
    assert job.settings["environment"] == "gpu" and "gpu" in job.runs_on
    assert job.settings["concurrency"]["cancel-in-progress"] is False
    assert job.steps[-1].name == "Clean up" and job.steps[-1].condition == "always()"


@pytest.mark.parametrize("key", WRITES, ids=" ".join)
def test_what_can_write_is_never_started_by_a_fork(key: tuple[str, str]) -> None:
    (job,) = [job for job in JOBS if job.key == key]
    events = document(job.file)["on"]
    assert "pull_request" not in events or not holds(job.condition, FORK, failed=False)


@pytest.mark.parametrize(
    ("condition", "failed", "expected"),
    [
        (None, False, True),
        (None, True, False),
        ("always()", True, True),
        ("a == 'x'", False, True),
        ("a == 'x'", True, False),
        ("${{ !cancelled() && a != 'x' }}", True, False),
        ("a != 'x' || a == 'x'", False, True),
    ],
)
def test_conditions_are_read_as_github_does(condition: str | None, failed: bool, expected: bool) -> None:
    assert holds(condition, {"a": "x"}, failed) is expected


def test_an_expression_is_not_guessed() -> None:
    assert value("a || 'else'", {"a": ""}) == "else"
    with pytest.raises(UnknownExpression, match=r"^vars\.b$"):
        value("vars.b || 'else'", {})
    with pytest.raises(UnknownExpression, match=r"^hashFiles"):
        holds("hashFiles('x')", {}, failed=False)


def linter(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on PATH: `.ci/with-linters COMMAND` fetches it")
    return found


def said(*command: str | Path, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def copied(folder: Path) -> Path:
    shutil.copytree(GITHUB, folder / ".github")
    return folder


@pytest.mark.parametrize("break_it", ["", "runs-on: [self-hosted, linux, x64, gpu, no-such-label]", "needs: nothing"])
def test_actionlint(tmp_path: Path, break_it: str) -> None:
    program = linter("actionlint")
    path = copied(tmp_path) / ".github" / "workflows" / "gpu-conformance.yml"
    if break_it:
        key = break_it.partition(":")[0]
        path.write_text(re.sub(rf"(?m)^    {key}: .*$", f"    {break_it}", path.read_text(), count=1))
    files = sorted(f".github/{file}" for file in workflow_files())
    status, text = said(program, *files, cwd=tmp_path)
    assert (status, text == "") == ((0, True) if not break_it else (1, False)), text


FAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "unpinned-uses": ("actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd", "actions/checkout@v6"),
    "artipacked": ("          persist-credentials: false", "          persist-credentials: true"),
    "template-injection": ("run: .ci/with-linters nox -s tests", "run: echo ${{ github.head_ref }}"),
}


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_zizmor(tmp_path: Path, fault: str) -> None:
    """In the strictest of its personas, without the network; .github/zizmor.yml says what is set aside, and why."""
    program = linter("zizmor")
    path = copied(tmp_path) / ".github" / "workflows" / "ci.yml"
    if fault:
        old, new = FAULTS[fault]
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
    settings: tuple[Any, ...] = ("--offline", "--no-progress", "--persona", "auditor", "--config", ".github/zizmor.yml")
    status, text = said(program, *settings, ".github", cwd=tmp_path)
    assert (status == 0) == (not fault), text
    assert not fault or f"[{fault}]" in text
