"""Variants of a spec: locked together, with the versions of the spec's own lock where they can have them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

import envspec
from envspec import documents
from tests.support.builders.ecosystem import release
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer
from tests.support.user import User, a_second_later, refused

SPEC = """\
[env]
name = "small"
python = "3.11.7"
{as_of}

[pip]
dependencies = ["one"]

[variants.more]
pip.dependencies = ["two"]
"""


@pytest.fixture
def index() -> Iterator[IndexServer]:
    files = [release("one", "1.0.0", requires=["base"]), release("two", "1.0.0", requires=["base"])]
    with IndexServer([*files, release("base", "1.0.0")]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    user = User(tmp_path, index.url)
    user.writes(SPEC.format(as_of=""))
    user.locked()
    return user


def pins(user: User) -> dict[str, dict[str, str]]:
    """Lock -> package -> version."""
    found = {}
    for path in sorted(user.folder.glob("locks/*/envspec.lock")):
        lock = documents.parse_toml(path.read_text(encoding="utf-8"))
        packages = lock["resolution"][0]["package"]
        found[path.parent.name] = {each["name"]: each["version"] for each in packages}
    return found


def files(user: User) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(user.folder.glob("locks/*/*"))}


FIRST = {"small": {"base": "1.0.0", "one": "1.0.0"}, "small-more": {"base": "1.0.0", "one": "1.0.0", "two": "1.0.0"}}


def newer(name: str, version: str, *requires: str) -> File:
    return File(wheel(name, version, requires=requires), datetime.now(timezone.utc))


def test_one_run_locks_them_all_and_every_mode_knows_them(user: User) -> None:
    assert pins(user) == FIRST
    before = files(user)
    assert "nothing changed" in user.locked().stderr
    user.locked("--check")
    user.locked("--verify")
    found = json.loads(user.locked("--dry-run", "--format", "json").stdout)["locks"]
    assert [(each["directory"], each.get("variant"), each["changed"]) for each in found] == [
        ("locks/small", None, []),
        ("locks/small-more", "more", []),
    ]
    assert files(user) == before
    user.locked("--output", "out")
    assert {path.name for path in user.folder.iterdir()} >= {"out", "out-more"}


def test_a_variant_is_added_at_the_date_and_with_the_versions_of_the_spec(user: User, index: IndexServer) -> None:
    index.add(newer("base", "2.0.0"))
    a_second_later()
    before = files(user)
    user.spec.write_text(user.spec.read_text() + '[variants.third]\nenv.python = "3.10.13"\n')
    assert "small-third" in user.locks("--check").stderr
    user.locked()
    assert pins(user) == {**FIRST, "small-third": {"base": "1.0.0", "one": "1.0.0"}}
    # The others are not stale by it.
    assert before.items() <= files(user).items()


def test_upgrades_move_all(user: User, index: IndexServer) -> None:
    index.add(newer("base", "2.0.0"), newer("one", "2.0.0", "base"), newer("two", "2.0.0", "base"))
    a_second_later()
    user.locked("--upgrade-package", "one")
    one = {"small": {**FIRST["small"], "one": "2.0.0"}, "small-more": {**FIRST["small-more"], "one": "2.0.0"}}
    assert pins(user) == one
    # Of a package that only the variant has, too.
    user.locked("--upgrade-package", "two")
    assert pins(user) == {**one, "small-more": {**one["small-more"], "two": "2.0.0"}}
    assert "did you mean two?" in user.locks("--upgrade-package", "twoo").stderr
    user.locked("--check")
    assert user.locked("--verify").stdout == ""
    user.locked("--upgrade")
    assert {version for lock in pins(user).values() for version in lock.values()} == {"2.0.0"}


def test_beside_a_date_a_variants_own_package_gets_one_in_the_spec(user: User, index: IndexServer) -> None:
    user.writes(SPEC.format(as_of="as_of = 2025-06-15"))
    user.locked()
    index.add(newer("two", "2.0.0", "base"), newer("one", "2.0.0", "base"))
    a_second_later()
    user.locked("--upgrade-package", "two")
    moved = {**FIRST, "small-more": {**FIRST["small-more"], "two": "2.0.0"}}
    assert pins(user) == moved
    assert "package_as_of = { two = 20" in user.spec.read_text()
    user.locked("--check")
    user.locked("--upgrade-package", "one")
    assert pins(user)["small"]["one"] == pins(user)["small-more"]["one"] == "2.0.0"
    before = files(user)
    shutil.rmtree(user.folder / "locks")
    user.locked()
    assert files(user) == before


def test_a_lock_that_changes_alone_makes_its_variants_stale(user: User, index: IndexServer) -> None:
    index.add(newer("base", "2.0.0"))
    a_second_later()
    shutil.copytree(user.folder / "locks" / "small-more", user.folder / "kept")
    user.locked("--upgrade")
    shutil.rmtree(user.folder / "locks" / "small-more")
    shutil.move(user.folder / "kept", user.folder / "locks" / "small-more")
    ran = user.locks("--check")
    assert ran.status == 3 and "locks/small has changed since locks/small-more was locked to match it" in ran.stderr
    user.locked()
    assert pins(user)["small-more"]["base"] == "2.0.0"


TOGETHER = "spec.toml: no lock is written: a spec and its variants are locked together"


@pytest.mark.parametrize("words", [(), ("--upgrade",), ("--upgrade-package", "one")])
def test_if_a_variant_cannot_be_locked_no_lock_is_written(
    user: User, index: IndexServer, words: tuple[str, ...]
) -> None:
    index.add(newer("one", "2.0.0", "base"))
    a_second_later()
    broken = '[variants.third]\npip.dependencies = ["missing"]\n[variants.fourth]\npip.dependencies = ["absent"]\n'
    user.spec.write_text(user.spec.read_text().replace('["one"]', '["one", "base"]') + broken)
    before, spec = files(user), user.spec.read_text()
    ran = user.locks(*words, "--format", "json")
    assert ran.status == 2 and TOGETHER in ran.stderr
    # Every error at once.
    assert "variants.third.pip.dependencies[0]: no such package: missing" in ran.stderr
    assert "variants.fourth.pip.dependencies[0]: no such package: absent" in ran.stderr
    reported = [(each.get("variant"), each.get("changed"), "error" in each) for each in json.loads(ran.stdout)["locks"]]
    assert reported == [(None, [], False), ("more", [], False), ("third", None, True), ("fourth", None, True)]
    assert (files(user), user.spec.read_text()) == (before, spec)
    user.spec.write_text(spec.replace("missing", "two").replace("absent", "two"))
    user.locked(*words)
    user.locked("--check")
    assert pins(user).keys() == {"small", "small-more", "small-third", "small-fourth"}


def test_without_the_spec_itself_no_variant_is_locked(user: User) -> None:
    before = files(user)
    user.writes(SPEC.format(as_of="").replace('"one"', '"missing"'))
    for words in ((), ("--dry-run",)):
        ran = user.locks(*words)
        assert ran.status == 2 and ran.stderr.count("error: ") == 1 and TOGETHER in ran.stderr
    assert files(user) == before


@pytest.mark.parametrize(("name", "other"), [("small", "small-more"), ("small-more", "small")])
def test_what_is_in_the_way_of_one_lock_keeps_all(user: User, name: str, other: str) -> None:
    user.spec.write_text(user.spec.read_text().replace('["one"]', '["one", "base"]'))
    shutil.rmtree(user.folder / "locks" / name)
    (user.folder / "locks" / name).write_text("mine")
    before = (user.folder / "locks" / other / "envspec.lock").read_bytes()
    ran = user.locks()
    assert ran.status == 2 and TOGETHER in ran.stderr and f"locks/{name} is a file, not a folder" in ran.stderr
    assert (user.folder / "locks" / other / "envspec.lock").read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="no one may write below Linux's /proc")
def test_if_the_second_lock_cannot_be_written_the_first_is_reported(user: User) -> None:
    user.spec.write_text(user.spec.read_text().replace('["one"]', '["one", "base"]'))
    shutil.rmtree(user.folder / "locks" / "small-more")
    (user.folder / "locks" / "small-more").symlink_to("/proc/envspec")
    before = (user.folder / "locks" / "small" / "envspec.lock").read_bytes()
    ran = user.locks("--format", "json")
    assert ran.status == 2 and TOGETHER not in ran.stderr
    assert "locks/small-more can't be written" in ran.stderr
    assert "spec.toml: only locks/small is written: `envspec lock spec.toml` writes the rest" in ran.stderr
    assert (user.folder / "locks" / "small" / "envspec.lock").read_bytes() != before
    first, second = json.loads(ran.stdout)["locks"]
    assert "locks/small/envspec.lock" in first["changed"] and second["variant"] == "more" and "error" in second


def test_dates_that_a_variant_gives_to_packages_are_in_every_lock(user: User, index: IndexServer) -> None:
    more = '[variants.another]\npip.dependencies = ["two<2"]\n[variants.zero]\npip.dependencies = ["two"]\n'
    user.writes(SPEC.format(as_of="as_of = 2025-06-15").replace("[variants.more]", f"{more}[variants.more]"))
    user.locked()
    index.add(newer("two", "2.0.0", "base"))
    a_second_later()
    user.locked("--upgrade-package", "two")
    assert {name: each.get("two") for name, each in pins(user).items()} == {
        "small": None,
        "small-another": "1.0.0",
        "small-more": "2.0.0",
        "small-zero": "2.0.0",
    }
    user.locked("--check")
    assert "nothing changed" in user.locked().stderr


def test_a_spec_called_like_a_variant_is_refused(user: User) -> None:
    other = user.folder / "other.toml"
    other.write_text('[env]\nname = "small-more"\npython = "3.11.7"\n[pip]\ndependencies = ["one"]\n')
    assert "small-more is the lock of spec.toml" in refused(user.runs("lock", "other.toml"), 2)


def test_the_python_api(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(user.folder)
    for name, value in user.environ.items():
        monkeypatch.setenv(name, value)
    spec = Path("spec.toml")
    assert envspec.lock(spec).name == "small"
    assert envspec.lock(spec, variant="more").name == "small-more"
    assert envspec.check(spec).is_fresh
    (user.folder / "locks" / "small-more" / "requirements.linux-64.txt").unlink()
    assert not envspec.check(spec).is_fresh
