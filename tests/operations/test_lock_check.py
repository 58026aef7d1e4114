"""`envspec lock --check`: values that are computed again, with the same facts and with others."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest

from envspec.errors import StaleLock
from envspec.lockfile.check import StaleCause
from envspec.operations.lock.check import check_lock
from envspec.operations.lock_state import LockRequest
from tests.conftest import Serve
from tests.support.builders import ecosystem
from tests.support.builders.locks import forge, replacing
from tests.support.user import User, refused, succeeded

#: Locks of this repository with their spec, as two earlier commits have them, each with the facts of its time.
OTHER_FACTS: Final = Path(__file__).parent / "golden" / "other_facts"
NOW: Final = datetime(2026, 12, 1, tzinfo=timezone.utc)


@pytest.fixture
def user(tmp_path: Path, serve: Serve) -> User:
    user = User(tmp_path, serve(ecosystem.diamond()).url)
    user.wants("app", as_of="2026-06-01T00:00:00Z")
    succeeded(user.locks())
    return user


def facts_of(user: User) -> str:
    return str(user.document()["facts"])


@pytest.mark.parametrize(("commit", "by_facts"), [("6ba1af95", {"build.deepspeed"}), ("7ba6e9e2", set())])
def test_locks_with_the_facts_of_earlier_commits(tmp_path: Path, commit: str, by_facts: set[str]) -> None:
    """What the facts decide differently is listed; no package is. The first of them is older than `spec`."""
    folder = shutil.copytree(OTHER_FACTS / commit, tmp_path / commit)
    result = check_lock(LockRequest(folder / "specs" / "llm.toml", folder / "locks" / "llm"), NOW)
    assert {reason.why for reason in result.reasons} - {StaleCause.PLACE} == {StaleCause.FACTS}
    fields = [field for reason in result.reasons for field in reason.fields]
    assert by_facts <= {field.what for field in fields}
    assert [field for field in fields if field.package or field.locked == field.resolved] == []


def test_other_facts_with_the_same_values(user: User) -> None:
    forge(user.lock, replacing((f'facts = "{facts_of(user)}"', 'facts = "123456789abc"')))
    ran = succeeded(user.locks("--check"))
    assert ran.warnings == []


def test_other_facts_hide_nothing(user: User) -> None:
    """Each value is listed, old and new; `envspec lock` decides it again and moves no package."""
    whole, glibc = user.files(), user.document()["resolution"][0]["glibc"]
    forged = replacing(
        (f'facts = "{facts_of(user)}"', 'facts = "123456789abc"'), (f'"{glibc}"', '"2.17"'), ("why = ", "why = ")
    )
    forge(user.lock, forged)
    ran = user.locks("--check", "--format", "json")
    assert ran.status == StaleLock.exit_code
    assert "more: envspec explain-error other-facts" in ran.stderr
    [lock] = json.loads(ran.stdout)["locks"]
    [reason] = lock["reasons"]
    assert (reason["why"], reason["code"]) == ("facts", "other-facts")
    values = {(each["platform"], each["what"]): (each["locked"], each["resolved"]) for each in reason["fields"]}
    assert values["linux-64", "glibc"] == ("2.17", glibc)
    assert f"  linux-64: glibc: 2.17 -> {glibc}" in ran.stderr.splitlines()
    succeeded(user.locks(ENVSPEC_CACHE_DIR=str(user.folder / "another")))
    assert user.files() == whole


def test_a_lock_of_another_spec_file(user: User) -> None:
    """Its path decides which folder an image gets: it has to lead to the spec that is checked."""
    other = user.folder / "other.toml"
    shutil.copy(user.spec, other)
    ran = user.runs("lock", "other.toml", "--check", "--output", user.lock)
    assert ran.status == 3 and "names ../../spec.toml as its spec; other.toml is ../../other.toml" in ran.stderr, ran


def test_a_package_that_the_spec_requires_is_missing(user: User) -> None:
    shutil.rmtree(user.lock)
    user.wants(as_of="2026-06-01T00:00:00Z")
    succeeded(user.locks())
    empty = user.document()
    user.wants("app", as_of="2026-06-01T00:00:00Z")
    succeeded(user.locks())
    hashes = (user.document()["input_sha256"], empty["input_sha256"])
    text = (user.lock / "envspec.lock").read_text(encoding="utf-8")
    start, end = text.index("\n[[resolution.package]]"), len(text)
    forge(user.lock, replacing((text[start:end], "\n")))
    assert hashes[0] != hashes[1]
    ran = user.locks("--check")
    assert ran.status == 3 and "linux-64: the spec requires app, which is not in it" in ran.stderr, ran


def test_the_lock_that_was_made_here_is_not_computed_again(user: User) -> None:
    """A program that can't import pydantic checks it; one with another cache needs pydantic."""
    code = "import sys; sys.modules['pydantic'] = None; from envspec.cli.main import main; main()"
    assert run_code(user, code, user.cache) == 0
    assert run_code(user, code, user.folder / "another") != 0


def run_code(user: User, code: str, cache: Path) -> int:
    import subprocess
    import sys

    environ = {**user.environ, "ENVSPEC_CACHE_DIR": str(cache)}
    words = [sys.executable, "-c", code, "lock", user.spec.name, "--check"]
    return subprocess.run(words, cwd=user.folder, env=environ, capture_output=True, check=False).returncode


@pytest.mark.parametrize(("text", "checked"), [("[[variants]]", 3), ("[variants]\nx = 3", 2)])
def test_no_lock_is_up_to_date_beside_variants_of_another_type(user: User, text: str, checked: int) -> None:
    user.spec.write_text(f"{user.spec.read_text()}\n{text}\n")
    assert user.locks("--check").status == checked
    assert "variants" in refused(user.locks(), 2)
