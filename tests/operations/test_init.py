"""`envspec init` as its users run it: what is written, where it ends with which exit code, and that nothing moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envspec import documents
from tests.support.builders import ecosystem
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, refused


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    files = [*ecosystem.dated(), *ecosystem.requires_python(), *ecosystem.diamond(), *ecosystem.torch_family()]
    with IndexServer(files) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url)


def sources(user: User, **files: str) -> None:
    for name, text in files.items():
        path = user.folder / name.replace("__", "/").replace("_txt", ".txt").replace("_toml", ".toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def init(user: User, *words: str) -> Ran:
    return user.runs("init", *words)


def answer(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def locked(user: User, name: str) -> dict[str, str]:
    document = documents.parse_toml((user.folder / "locks" / name / "envspec.lock").read_text())
    return {each["name"]: each["version"] for each in document["resolution"][0]["package"]}


def test_a_requirements_file_becomes_a_spec_and_a_lock(user: User) -> None:
    sources(user, requirements_txt="# the tools\nweekly==1.3.0\nmodern  # any\n")
    ran = init(user, "requirements.txt", "--name", "tools", "--python", "3.11", "--gpu", "A100", "--format", "json")
    assert ran.status == 0, ran.stderr
    found = answer(ran)
    assert (found["spec"], found["lock"]) == ("specs/tools.toml", "locks/tools")
    assert found["counts"] == {"kept": 2, "translated": 0, "refused": 0, "not understood": 0}
    assert [(each["file"], each["line"], each["text"]) for each in found["ledger"]] == [
        ("requirements.txt", 2, "weekly==1.3.0"),
        ("requirements.txt", 3, "modern"),
    ]
    assert locked(user, "tools") == {"weekly": "1.3.0", "modern": "2.0.0"}
    assert user.runs("lock", "specs/tools.toml", "--check").status == 0


def test_lost_lines_are_named_and_accepted_on_request(user: User) -> None:
    sources(user, requirements_txt="weekly\n--no-such-option\n")
    words = ("requirements.txt", "--name", "tools", "--python", "3.11")
    ran = init(user, *words)
    assert (ran.status, "not in the spec\n  requirements.txt:2: --no-such-option" in ran.stdout) == (10, True)
    assert "1 line of the sources is not in the spec" in ran.stderr
    assert "exists" in refused(init(user, *words), 2)
    assert init(user, *words, "--force", "--accept-loss").status == 0


def test_nothing_is_written_on_a_dry_run(user: User) -> None:
    sources(user, requirements_txt="weekly\n")
    ran = init(user, "requirements.txt", "--name", "tools", "--dry-run")
    assert ran.status == 0
    assert 'dependencies = ["weekly"]' in ran.stderr
    assert sorted(each.name for each in user.folder.iterdir()) == ["home", "requirements.txt"]


def test_without_sources_the_folders_are_taken(user: User) -> None:
    assert "no requirements, pyproject.toml" in refused(init(user), 2)
    sources(user, requirements_txt="weekly\n")
    ran = init(user, "--name", "tools", "--no-lock")
    assert (ran.status, "importing requirements.txt" in ran.stderr) == (0, True)
    assert not (user.folder / "locks").exists()


def test_a_spec_that_cannot_be_locked_is_written_all_the_same(user: User) -> None:
    sources(user, requirements_txt="weekly==9\n")
    ran = init(user, "requirements.txt", "--name", "tools", "--python", "3.11")
    assert ran.status in (2, 4)
    assert "weekly" in ran.error
    assert (user.folder / "specs" / "tools.toml").is_file()
    assert "specs/tools.toml" in ran.stdout


@pytest.mark.parametrize(
    ("word", "message"),
    [("none.txt", "there is no none.txt"), ("home", "is no Python environment"), ("a.docx", "no importer reads")],
)
def test_a_source_that_is_none_is_refused(user: User, word: str, message: str) -> None:
    (user.folder / "a.docx").write_text("")
    error = refused(init(user, word), 2)
    assert message in error or "site-packages" in error
