"""The locks of a diff: folders, names, revisions of a real git repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from envspec.errors import StaleLock, UsageError
from envspec.lockfile.diff import load_revision
from envspec.lockfile.document import dump
from envspec.lockfile.folder import write_folder
from envspec.lockfile.header import LOCK_FILE
from tests.support.builders.locks import X86, lock, package, resolution


def put(root: Path, version: str) -> None:
    one = lock(resolution(X86, package("filelock", version)), name="one")
    write_folder(root / "locks" / "one", {LOCK_FILE: dump(one, {}).encode()})


def git(root: Path, *words: str) -> None:
    environ = {"HOME": str(root), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=root, env=environ, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits; the working tree is a third state."""
    git(tmp_path, "init", "-q")
    for version in ("3.1", "3.2"):
        put(tmp_path, version)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", version)
    put(tmp_path, "3.3")
    return tmp_path


@pytest.mark.parametrize(
    ("argument", "version"),
    [
        ("one", "3.3"),
        ("locks/one", "3.3"),
        ("HEAD:locks/one", "3.2"),
        ("HEAD:locks/one/", "3.2"),
        ("HEAD:locks/one/envspec.lock", "3.2"),
        ("HEAD~1:one", "3.1"),
        ("HEAD~1:./locks/one", "3.1"),
    ],
)
def test_words_for_a_side(repository: Path, argument: str, version: str) -> None:
    side = load_revision(argument, repository)
    assert side.resolutions[0].packages[0].version == version


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "HEAD:locks/two",
            r"HEAD:locks/two contains no envspec\.lock: fatal: path 'locks/two/envspec\.lock' does not exist",
        ),
        ("nowhere:locks/one", r"nowhere:locks/one contains no envspec\.lock: fatal: invalid object name 'nowhere'"),
        ("--output=x:locks/one", "is not a revision and a lock"),
        ("HEAD:", "is not a revision and a lock"),
        (":locks/one", "is not a revision and a lock"),
        ("two", "there is no lock two"),
    ],
)
def test_no_such_side(repository: Path, argument: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_revision(argument, repository)
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_outside_of_a_repository(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a git repository"):
        load_revision("HEAD:locks/one", tmp_path)


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="git is not installed"):
        load_revision("HEAD:locks/one", tmp_path)


def test_a_committed_conflict(repository: Path) -> None:
    document = repository / "locks" / "one" / LOCK_FILE
    document.write_bytes(b"<<<<<<< HEAD\n" + document.read_bytes())
    git(repository, "commit", "-q", "-a", "-m", "unresolved")
    with pytest.raises(StaleLock, match=r"HEAD:locks/one/envspec\.lock contains merge-conflict markers"):
        load_revision("HEAD:locks/one", repository)
