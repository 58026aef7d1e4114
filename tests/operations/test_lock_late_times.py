"""Upload times that an index fills in late: a machine that locked before them gets the same lock as a new one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec.structs import replace
from tests.support.builders.ecosystem import release
from tests.support.builders.projects import MIRROR, Dialect, File
from tests.support.builders.wheels import sdist, wheel
from tests.support.machines.confinement import confined
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.user import Ran, User, refused

#: Before this time an index may yet fill in upload times.
YESTERDAY = f"{datetime.now(timezone.utc) - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
LAST_YEAR = f"{datetime.now(timezone.utc) - timedelta(days=300):%Y-%m-%dT%H:%M:%SZ}"
BEFORE_YESTERDAY = datetime.now(timezone.utc) - timedelta(days=16)


def late(name: str, version: str, tag: str = "py3-none-any") -> File:
    """A release of before yesterday without an upload time yet."""
    return File(wheel(name, version, tag=tag), None)


def fill_in(index: IndexServer, *files: File) -> None:
    """Tell the times of late files."""
    held = {file.filename: file for file in files}
    name = files[0].name
    kept = [file for file in index.files_of(name) if file.filename not in held]
    index.remove(name)
    index.add(*kept, *(replace(file, uploaded=BEFORE_YESTERDAY) for file in files))


def cold(user: User, folder: Path, *words: str) -> dict[str, bytes]:
    """What the same spec gives on a machine without a memory."""
    other = User(folder, user.environ["ENVSPEC_DEFAULT_INDEX"])
    other.writes(user.spec.read_text(encoding="utf-8"))
    assert other.locks(*words).status == 0
    return other.files()


def late_warnings(ran: Ran) -> list[str]:
    assert ran.status == 0, ran
    return [text for text in ran.warnings if "no upload time yet" in text]


def forget_the_lock(user: User) -> None:
    shutil.rmtree(user.lock)


def ask_for_more(user: User) -> None:
    """Another question about the same pages."""
    user.wants("app", "other", as_of=YESTERDAY)
    forget_the_lock(user)


@pytest.mark.parametrize("dialect", [FRIENDLY, MIRROR], ids=["etags", "html"])
@pytest.mark.parametrize("then", [forget_the_lock, ask_for_more])
def test_a_time_that_comes_late_counts_for_who_asked_early(
    tmp_path: Path, dialect: Dialect, then: Callable[[User], None]
) -> None:
    release_2 = late("lib", "2.0.0")
    files = [release("app", "1.0.0", requires=["lib"]), release("lib", "1.0.0"), release("other", "1.0.0"), release_2]
    with IndexServer(files, dialect) as index:
        user = User(tmp_path / "warm", index.url)
        user.wants("app", as_of=YESTERDAY)
        [text] = late_warnings(user.locks())
        assert text.startswith("lib 2.0.0 has no upload time yet: left out; ")
        assert user.pins()["lib"] == "1.0.0"
        assert not any(b"upload time" in content for content in user.files().values())
        fill_in(index, release_2)
        then(user)
        assert late_warnings(user.locks()) == []
        assert user.pins()["lib"] == "2.0.0"
        assert user.files() == cold(user, tmp_path / "cold")
        # From now on all of it is remembered.
        forget_the_lock(user)
        index.forget()
        assert late_warnings(user.locks()) == []
        assert index.requests == []


def test_a_time_that_does_not_come_is_requested_in_each_run(tmp_path: Path) -> None:
    with IndexServer([release("lib", "1.0.0"), late("lib", "2.0.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=YESTERDAY)
        first = user.locks()
        before = user.files()
        index.forget()
        forget_the_lock(user)
        assert late_warnings(user.locks()) == late_warnings(first) != []
        assert user.files() == before
        # The page alone, and as long as it is the same, without its body.
        assert [(request.path, request.status) for request in index.requests] == [("/simple/lib/", 304)]


NEWER = late("lib", "2.0.0")
PIP_TOOLS = ("--resolver", "pip-tools")


@pytest.mark.parametrize(
    ("file", "asked", "words", "after"),
    [
        # A fix for an older series: its version does not show that it is new.
        pytest.param(late("lib", "1.5.1"), "lib<2", (), "1.5.1", id="older than the newest"),
        pytest.param(File(sdist("lib", "2.0.0"), None), "lib", (), "2.0.0", id="an sdist", marks=confined),
        pytest.param(NEWER, "lib", ("--upgrade",), "2.0.0", id="by --upgrade"),
        # Why nothing newer was taken is part of a lock.
        pytest.param(late("lib", "2.0.0", "cp311-cp311-win_amd64"), "lib", (), "1.0.0", id="not loadable"),
        pytest.param(NEWER, "lib", PIP_TOOLS, "2.0.0", id="pip-tools"),
    ],
)
def test_a_late_release_counts_once_it_has_a_time(
    tmp_path: Path, file: File, asked: str, words: tuple[str, ...], after: str
) -> None:
    with IndexServer([release("lib", "1.0.0"), release("unrelated", "1.0.0"), file]) as index:
        user = User(tmp_path / "warm", index.url)
        user.wants(asked, as_of=YESTERDAY, pip='build.packages = ["lib"]')
        texts = late_warnings(user.locks(*words))
        assert len(texts) == 1
        assert all("`envspec lock --upgrade`" in text for text in texts)
        early = user.files()
        assert user.pins() == {"lib": "1.0.0"}
        fill_in(index, file)
        if "--upgrade" not in words:
            forget_the_lock(user)
        assert late_warnings(user.locks(*words)) == []
        assert user.pins() == {"lib": after}
        assert user.files() == cold(user, tmp_path / "cold", *words) != early


def test_a_project_of_which_nothing_had_a_time_is_requested_again(tmp_path: Path) -> None:
    first = late("lib", "1.0.0")
    with IndexServer([first]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=YESTERDAY)
        assert "index default gives no upload times for lib" in refused(user.locks(), 5)
        fill_in(index, first)
        assert user.locked_pins() == {"lib": "1.0.0"}


def test_an_old_moment_is_remembered_whatever_has_no_time(tmp_path: Path) -> None:
    """No index fills in a time after most of a year: an old file without one never counts, and nobody waits for it."""
    ancient = [late("lib", f"0.{number}.0") for number in range(5)]
    with IndexServer([*ancient, release("lib", "1.0.0"), late("lib", "2.0.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=LAST_YEAR)
        assert late_warnings(user.locks()) == []
        assert user.pins() == {"lib": "1.0.0"}
        index.forget()
        for forget in (lambda: forget_the_lock(user), lambda: user.wants("lib>=0.5", as_of=LAST_YEAR)):
            forget()
            assert late_warnings(user.locks()) == []
        assert index.requests == []


def test_what_is_older_than_the_pin_is_not_reported(tmp_path: Path) -> None:
    with IndexServer([late("lib", "0.9.0"), release("lib", "1.0.0"), late("lib", "2.0.0rc1")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=YESTERDAY)
        assert late_warnings(user.locks()) == []
        assert user.pins() == {"lib": "1.0.0"}


def test_a_package_is_reported_once_for_all_platforms(tmp_path: Path) -> None:
    files = [release("lib", "1.0.0"), *(late("lib", f"2.{number}.0") for number in range(5)), release("mid", "1.0.0")]
    with IndexServer([*files, late("mid", "3.0.0", "cp311-cp311-win_amd64")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", "mid", as_of=YESTERDAY, platforms=["linux-64", "linux-aarch64", "win-64"])
        texts = late_warnings(user.locks())
        assert [text.partition(" no upload")[0] for text in texts] == [
            "lib 2.2.0, 2.3.0, 2.4.0 (and 2 older) have",
            "mid 3.0.0 has",
        ]
        assert len(index.requests_for("/simple/lib/")) == 1


def test_where_nothing_satisfies_the_spec_what_was_left_out_is_reported(tmp_path: Path) -> None:
    with IndexServer([release("lib", "1.0.0"), late("lib", "2.0.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib>=2", as_of=YESTERDAY)
        ran = user.locks()
        assert "pip.dependencies[0]: lib 2.0.0 has no upload time yet" in refused(ran, 2)
        assert [text for text in ran.warnings if text.startswith("lib 2.0.0 has no upload time yet: left out")]


def test_offline_a_page_that_may_have_changed_is_not_taken(tmp_path: Path) -> None:
    release_2 = late("lib", "2.0.0")
    with IndexServer([release("lib", "1.0.0"), release_2]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=YESTERDAY)
        assert late_warnings(user.locks()) != []
        forget_the_lock(user)
        index.forget()
        error = refused(user.locks("--offline"), 5)
        assert error.startswith("offline, and the upload time of lib 2.0.0 at index default is not in the cache")
        assert index.requests == []
        fill_in(index, release_2)
        assert user.locks().status == 0
        forget_the_lock(user)
        assert user.locked_pins("--offline") == {"lib": "2.0.0"}
