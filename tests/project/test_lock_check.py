"""lock-check.yml on pull requests: its scripts as they stand, on copies of this repository with a commit on top."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec import documents
from envspec.lockfile.document import dump
from tests.support.builders import ecosystem
from tests.support.builders.locks import on_conda, replacing, tamper
from tests.support.servers.index import IndexServer
from tests.support.user import ROOT
from tests.support.workflow_runner import JobRan, Runner
from tests.support.workflows import Repository, job

CHECK = job("workflows/lock-check.yml", "check")
COMMENT = job("workflows/lock-check.yml", "comment")
LOCKS, CHANGES = CHECK.runs
SMALL = """\
[env]
name = "small"
python = "3.11.7"
platforms = ["linux-64"]
as_of = 2024-06-01T00:00:00Z

[pip]
dependencies = ["app"]
"""
#: torch 2.9 was published for CUDA 12.6, 12.8 and 13.0; 12.4 went with torch 2.4 to 2.6.
RIGHT, WRONG = 'gpus = ["V100", "T4", "A100", "H100", "B200"]', 'version = "12.4"'
REFUSED = "error: torch 2.9.0 to 2.9.1: no build for CUDA 12.4 was ever published\n  hint: published for torch 2.9.1: "


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.diamond(), *ecosystem.torch_family()]) as running:
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository", ["specs/cpu.toml", "locks/cpu", ".github"])


def runner_of(tmp_path: Path, repository: Repository, base: str, index: IndexServer) -> Runner:
    values = {"github.event.pull_request.base.sha": base, "vars.CHANNEL_REPODATA": ""}
    return Runner(tmp_path / "runner", repository.folder, values, ENVSPEC_DEFAULT_INDEX=index.url)


def small(tmp_path: Path, repository: Repository, index: IndexServer) -> Runner:
    """A repository with `small` locked, and a runner of a pull request that begins there."""
    repository.writes("specs/small.toml", SMALL)
    runner = runner_of(tmp_path, repository, "", index)
    runner.locks("small")
    runner.values["github.event.pull_request.base.sha"] = repository.commits("small")
    return runner


def test_a_torch_without_that_cuda_is_refused(tmp_path: Path, index: IndexServer) -> None:
    """The example of docs/how-to/ci.md, word for word."""
    parts = [path for name in ("pytorch-2.9", "cpu") for path in (f"specs/{name}.toml", f"locks/{name}")]
    repository = Repository(tmp_path / "repository", [*parts, ".github"])
    base = repository.commits("base")
    spec = repository.text("specs/pytorch-2.9.toml")
    assert RIGHT in spec
    repository.writes("specs/pytorch-2.9.toml", spec.replace(RIGHT, WRONG))
    repository.commits("CUDA 12.4")
    ran = runner_of(tmp_path, repository, base, index).runs(CHECK)
    assert ran.status[LOCKS] == 4 and ran.failed == [LOCKS] and ran.unrun == []
    comment = ran.outputs["comment"]
    assert "### `specs/pytorch-2.9.toml` can't be locked (exit 4)" in comment and REFUSED in comment
    assert comment.strip() == ran.summary.strip()
    section, _, rest = comment.partition("1 of 2 locks belong")
    assert rest and section in (ROOT / "docs/how-to/ci.md").read_text(encoding="utf-8")


def test_a_spec_that_was_not_locked_again(tmp_path: Path, repository: Repository, index: IndexServer) -> None:
    runner = small(tmp_path, repository, index)
    repository.writes("specs/small.toml", SMALL.replace('"app"', '"app", "left"'))
    repository.commits("a spec alone")
    ran = runner.runs(CHECK)
    assert ran.status[LOCKS] == 3 and ran.failed == [LOCKS] and ran.unrun == []
    assert "### Locks do not belong to their specs (exit 3)" in ran.summary
    assert "stale: specs/small.toml" in ran.summary and "stale: specs/small.toml" in ran.said[LOCKS]


def test_what_a_new_lock_changes_is_said(tmp_path: Path, repository: Repository, index: IndexServer) -> None:
    runner = small(tmp_path, repository, index)
    repository.writes("specs/small.toml", SMALL.replace('"app"', '"app", "left"').replace("2024-06", "2026-06"))
    runner.locks("small")
    repository.commits("left")
    ran = runner.runs(CHECK)
    assert ran.failed == [] and ran.unrun == [], ran.said
    assert "2 of 2 locks belong to their specs." in ran.summary and "## locks/small" in ran.summary
    assert "Resolved again, with the same bytes: locks/small." in ran.summary
    assert ran.outputs["comment"].strip() == ran.summary.strip()


def tampered(repository: Repository, name: str = "small") -> None:
    """Another hash for a wheel, and every checksum right."""
    lock = repository.folder / "locks" / name
    [row] = documents.parse_toml((lock / "envspec.lock").read_text(encoding="utf-8"))["resolution"]
    tamper(lock, replacing((row["package"][0]["file"]["sha256"], "ab" * 32)))


def test_a_lock_that_was_tampered_with(tmp_path: Path, repository: Repository, index: IndexServer) -> None:
    """Its spec is the same, `--check` finds nothing, and the comment shows the other file."""
    runner = small(tmp_path, repository, index)
    tampered(repository)
    repository.commits("no difference worth a look")
    ran = runner.runs(CHECK)
    assert ran.status[LOCKS] == 3 and ran.failed == [LOCKS] and ran.unrun == []
    assert "### `locks/small` is not verified against `specs/small.toml` (exit 3)" in ran.summary
    assert f"app: file.sha256: locked {'ab' * 32}, resolved " in ran.summary
    assert "#### same version, other file: find out why before you accept it" in ran.outputs["comment"]
    assert "| sha256 | `" in ran.summary and f"`{'ab' * 32}` |" in ran.summary


@pytest.mark.parametrize("is_online", [True, False])
def test_a_spec_alone_has_its_lock_verified(
    tmp_path: Path, repository: Repository, index: IndexServer, *, is_online: bool
) -> None:
    runner = small(tmp_path, repository, index)
    repository.writes("specs/small.toml", f"# why\n{SMALL}")
    repository.commits("a comment")
    if not is_online:
        offline = {"ENVSPEC_DEFAULT_INDEX": "http://127.0.0.1:9/", "ENVSPEC_CACHE_DIR": str(tmp_path / "empty")}
        runner.environ |= offline
    ran = runner.runs(CHECK)
    assert ran.failed == ([] if is_online else [LOCKS]) and ran.status[LOCKS] == (0 if is_online else 5)
    assert ("Resolved again, with the same bytes: locks/small." in ran.summary) is is_online


def test_a_lock_without_a_spec(tmp_path: Path, repository: Repository, index: IndexServer) -> None:
    runner = small(tmp_path, repository, index)
    repository.writes("locks/other/requirements.linux-64.txt", "app==1.0.0\n")
    repository.commits("a lock from nowhere")
    ran = runner.runs(CHECK)
    assert ran.status[LOCKS] == 3 and "### `locks/other` belongs to no spec (exit 3)" in ran.summary


def comment(tmp_path: Path, text: str) -> tuple[JobRan, Path]:
    """The second job. `gh` stands for GitHub's: it keeps its arguments and what it reads."""
    values = {
        "github.token": "a token",
        "github.repository": "acme/stacks",
        "github.event.pull_request.number": "7",
        "needs.check.outputs.comment": text,
    }
    repository = Repository(tmp_path / "repository", [".github"])
    repository.commits("scripts")
    runner = Runner(tmp_path / "runner", repository.folder, values)
    kept = tmp_path / "gh"
    runner.program("gh", f'{{ echo "$GH_REPO $GH_TOKEN: $*"; cat; }} > "{kept}"')
    return runner.runs(COMMENT), kept


def test_the_comment_is_handed_over_as_it_is(tmp_path: Path) -> None:
    """Nothing in it is taken for shell, though a pull request decides what it says."""
    text = "### `a`\n\n$(touch hacked) `touch hacked` ${HOME} \"'; touch hacked\n% -n \\n"
    ran, kept = comment(tmp_path, text)
    assert ran.failed == [] and ran.unrun == []
    words = "acme/stacks a token: pr comment 7 --body-file - --edit-last --create-if-none\n"
    assert kept.read_text() == f"{words}{text}\n"
    assert not (tmp_path / "repository" / "hacked").exists()


def test_a_comment_as_long_as_they_get(tmp_path: Path) -> None:
    """60,000 bytes go through the environment of one process, which has less than 128 KiB for each value."""
    ran, kept = comment(tmp_path, "ü" * 30_000)
    assert ran.failed == [] and kept.read_text().endswith("ü\n")


def test_locks_from_a_part_of_a_channel_are_recognised() -> None:
    script = (ROOT / ".github" / "lock-check.sh").read_text(encoding="utf-8")
    pattern = re.search(r"grep -q '([^']+)' \"\$1/envspec.lock\"", script)
    assert pattern
    texts = {"all": (ROOT / "locks/cpu/envspec.lock").read_text(encoding="utf-8"), "a part": dump(on_conda(), {})}
    assert {name for name, text in texts.items() if re.search(pattern[1], text, re.MULTILINE)} == {"a part"}


@pytest.mark.parametrize("is_tampered", [False, True])
def test_the_lock_of_a_variant_is_verified_with_its_spec(
    tmp_path: Path, repository: Repository, index: IndexServer, *, is_tampered: bool
) -> None:
    runner = small(tmp_path, repository, index)
    repository.writes("specs/small.toml", f'{SMALL}\n[variants.more]\npip.dependencies = ["left"]\n')
    runner.locks("small")
    commit = repository.commits("a variant")
    if is_tampered:
        runner.values["github.event.pull_request.base.sha"] = commit
        tampered(repository, "small-more")
        repository.commits("its lock")
    ran = runner.runs(CHECK)
    assert ran.status[LOCKS] == (3 if is_tampered else 0)
    assert ("### `locks/small` is not verified against `specs/small.toml` (exit 3)" in ran.summary) is is_tampered
    assert ran.summary.count("Resolved again, with the same bytes: locks/small.") == (not is_tampered)
