"""`as_of`, the memory on disk, and what may move when: by the user's own commands, against an index that counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from uv import find_uv_bin

from envspec import documents
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import compiled, release
from tests.support.builders.images import ImageUser, RegistryInThread
from tests.support.builders.projects import MIRROR, PLAIN, Dialect, File
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import PushRegistry
from tests.support.user import ROOT, User, a_second_later, refused, routed, succeeded

MARCH, JUNE, DECEMBER = "2025-03-15T00:00:00Z", "2025-06-15T00:00:00Z", "2025-12-15T00:00:00Z"


def now_file(name: str, version: str, requires: tuple[str, ...] = ()) -> File:
    """A release that is uploaded at this moment."""
    return File(wheel(name, version, requires=requires), datetime.now(timezone.utc))


@pytest.fixture
def index() -> Iterator[IndexServer]:
    files = [*ecosystem.dated(), *ecosystem.diamond(), *ecosystem.markers()]
    with IndexServer(files) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url)


def test_every_as_of_gets_its_own_answer_whatever_the_cache_has(user: User) -> None:
    """Releases up to the very second of `as_of` count, in any time zone."""
    for as_of, version in (
        (JUNE, "1.6.0"),
        (DECEMBER, "1.12.0"),
        (MARCH, "1.3.0"),
        (DECEMBER, "1.12.0"),
        ("2025-06-01T12:00:00Z", "1.6.0"),
        ("2025-06-01T11:59:59Z", "1.5.0"),
        ("2025-06-01T13:59:59+02:00", "1.5.0"),
    ):
        assert user.pins_of("weekly", as_of=as_of) == {"weekly": version}


@pytest.mark.parametrize("dialect", [Dialect(), MIRROR], ids=["etags", "html"])
def test_a_cache_filled_for_an_earlier_moment_gives_no_older_answer(tmp_path: Path, dialect: Dialect) -> None:
    with IndexServer([release("lib", "1.0.0")], dialect) as index:
        user = User(tmp_path, index.url)
        user.wants("lib")
        assert user.locks().status == 0
        index.add(now_file("lib", "2.0.0"))
        a_second_later()
        assert user.locked_pins("--upgrade") == {"lib": "2.0.0"}
        # And the other way round: the newer page is good for the older moment, and shows nothing newer than it.
        index.forget()
        assert user.pins_of("lib", as_of="2025-01-01T00:00:00Z") == {"lib": "1.0.0"}
        assert index.requests_for("/simple/*") == []


def test_a_name_that_was_not_there_is_requested_again(user: User, index: IndexServer) -> None:
    user.wants("late")
    assert "no such package: late" in refused(user.locks(), 2)
    index.add(now_file("late", "1.0.0"))
    a_second_later()
    assert user.locked_pins() == {"late": "1.0.0"}


def test_offline_after_online_needs_no_server(user: User, index: IndexServer) -> None:
    user.wants("app", "weekly", as_of=DECEMBER)
    assert user.locks().status == 0
    online = user.files()
    shutil.rmtree(user.lock)
    index.forget()
    assert user.locks("--offline").status == 0
    assert user.files() == online
    assert index.requests == []


def test_offline_never_gives_older_answers(user: User, index: IndexServer) -> None:
    user.wants("weekly")
    user.locked()
    before = user.files()
    index.forget()
    a_second_later()
    assert "offline, and the page of weekly at index default" in refused(user.locks("--offline", "--upgrade"), 5)
    user.wants("weekly", "portable", as_of=DECEMBER)
    error = refused(user.locks("--offline"), 5)
    assert error.startswith("offline, and the page of portable at index default is not in the cache")
    assert "run once with a network" in error
    assert user.files() == before
    assert index.requests == []


def test_nothing_is_fetched_twice_for_one_moment(user: User, index: IndexServer) -> None:
    user.wants("app", as_of=DECEMBER)
    assert user.locks().status == 0
    first = len(index.requests)
    assert first > 0
    user.wants("app", "portable", as_of=DECEMBER)
    assert user.locks().status == 0
    user.wants("app", "portable", as_of=DECEMBER, platforms=["linux-64", "win-64"])
    assert user.locks().status == 0
    assert index.fetched_twice() == []
    index.forget()
    shutil.rmtree(user.lock)
    assert user.locks().status == 0
    shutil.rmtree(user.lock)
    user.wants("app", as_of=DECEMBER)
    assert user.locks().status == 0
    assert index.requests == []


def test_another_environment_shares_what_was_fetched(tmp_path: Path, index: IndexServer) -> None:
    """Two specs of one `as_of`, another Python and platform: only what is new is fetched."""
    cache = str(tmp_path / "cache")
    one, other = (User(tmp_path / name, index.url, ENVSPEC_CACHE_DIR=cache) for name in ("one", "other"))
    one.wants("portable", as_of=DECEMBER)
    other.wants("portable", as_of=DECEMBER, python="3.10.13", platforms=["linux-aarch64"])
    assert one.locks().status == other.locks().status == 0
    assert index.fetched_twice() == []
    assert set(other.pins("linux-aarch64")) == {"portable", "posix-lib", "arm-lib", "backport"}


def test_without_as_of_a_lock_keeps_its_moment_until_upgrade(user: User, index: IndexServer) -> None:
    user.wants("base")
    assert user.locks().status == 0
    moment = user.document()["as_of"]
    index.add(now_file("base", "3.0.0"), now_file("fresh", "1.0.0"))
    a_second_later()
    assert user.pins_of("base", "weekly") == {"base": "2.0.0", "weekly": "1.12.0"}
    assert user.document()["as_of"] == moment
    # A package that was uploaded since can't be added without moving.
    kept = user.files()
    user.wants("base", "weekly", "fresh")
    error = refused(user.locks(), 2)
    assert "spec.toml:7: pip.dependencies[2]: no release of fresh was uploaded by" in error and "--upgrade" in error
    assert user.files() == kept
    assert user.locked_pins("--upgrade") == {"base": "3.0.0", "weekly": "1.12.0", "fresh": "1.0.0"}
    assert user.document()["as_of"] > moment


def test_nothing_to_do_is_done_without_a_request(user: User, index: IndexServer) -> None:
    user.wants("app")
    assert user.locks().status == 0
    before = user.files()
    index.forget()
    ran = user.locks()
    assert (ran.status, ran.stdout) == (0, "")
    assert "nothing changed" in ran.stderr
    assert index.requests == []
    assert user.files() == before


def chain() -> list[File]:
    """`top` 1 takes `mid` 1, which caps `low` below 2. Of all of them there is more, also by the lock's moment."""
    return [
        release("top", "1.0.0", requires=["mid<2"]),
        release("mid", "1.0.0", requires=["low<2"]),
        release("mid", "2.0.0", requires=["low"]),
        release("low", "1.0.0"),
        release("low", "2.0.0"),
        release("other", "1.0.0"),
    ]


def test_upgrade_package_moves_it_and_what_it_must_and_nothing_else(tmp_path: Path) -> None:
    with IndexServer(chain()) as index:
        user = User(tmp_path, index.url)
        user.wants("top", "other")
        assert user.locks().status == 0
        old = {"top": "1.0.0", "mid": "1.0.0", "low": "1.0.0", "other": "1.0.0"}
        assert user.pins() == old
        moment = user.document()["as_of"]
        # top 2 takes any mid from 3 on: a release of later than the lock's moment, which needs a newcomer.
        index.add(
            now_file("top", "2.0.0", ("mid>=3",)),
            now_file("mid", "3.0.0", ("low", "newcomer")),
            now_file("newcomer", "1.0.0"),
            now_file("low", "3.0.0"),
            now_file("other", "2.0.0"),
        )
        a_second_later()
        assert user.locks("--upgrade-package", "Top").status == 0
        moved = {"top": "2.0.0", "mid": "3.0.0", "newcomer": "1.0.0"}
        assert user.pins() == {**old, **moved}
        document = user.document()
        assert document["as_of"] == moment
        assert {row["name"] for row in document["package_as_of"]} == set(moved)
        # The lock keeps to that when something is added, and in a folder without memory.
        user.wants("top", "other", "extra-lib")
        index.add(release("extra-lib", "1.0.0"))
        shutil.rmtree(user.cache)
        assert user.locked_pins() == {**old, **moved, "extra-lib": "1.0.0"}


PAIR = [release("core", "1.0.0"), release("vision", "1.0.0", requires=["core==1.0.0"])]
NEW_PAIR = [("core", "2.0.0", ()), ("vision", "2.0.0", ("core==2.0.0",))]


@pytest.mark.parametrize(
    ("files", "asked", "newer", "package", "pins"),
    [
        # The new release lifts a cap: what it capped stays, although a newer release of that fits by the lock's time.
        pytest.param(
            [release("top", "1.0.0", requires=["low<2"]), *chain()[3:]],
            *("top", [("top", "2.0.0", ("low",))], "top", {"top": "2.0.0", "low": "1.0.0"}),
            id="lifts a cap",
        ),
        pytest.param(PAIR, "vision core", NEW_PAIR, "core", {"core": "2.0.0", "vision": "2.0.0"}, id="pinned"),
        pytest.param(PAIR, "vision core", NEW_PAIR, "vision", {"core": "2.0.0", "vision": "2.0.0"}, id="pins"),
        # The spec itself caps it: not an error, the newest that fits is already locked.
        pytest.param(
            [release("low", "1.0.0")], "low<2", [("low", "2.0.0", ())], "low", {"low": "1.0.0"}, id="is capped"
        ),
    ],
)
def test_upgrade_package(
    tmp_path: Path,
    files: list[File],
    asked: str,
    newer: list[tuple[str, str, tuple[str, ...]]],
    package: str,
    pins: dict[str, str],
) -> None:
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        assert set(user.pins_of(*asked.split()).values()) == {"1.0.0"}
        index.add(*(now_file(*each) for each in newer))
        a_second_later()
        assert user.locked_pins("--upgrade-package", package) == pins
        index.add(release("another", "1.0.0"))
        assert user.pins_of(*asked.split(), "another") == {**pins, "another": "1.0.0"}


def test_with_as_of_in_the_spec_upgrade_moves_nothing_and_says_so(user: User) -> None:
    user.wants("weekly", as_of=JUNE)
    assert user.locks().status == 0
    before = user.files()
    [warning] = user.locked("--upgrade").warnings
    assert "as_of = 2025-06-15T00:00:00Z" in warning and "--as-of now" in warning
    assert user.files() == before
    # What the command itself does is not what it advises.
    assert user.locked("--upgrade", "--as-of", DECEMBER).warnings == []
    assert user.pins() == {"weekly": "1.12.0"}


@pytest.mark.parametrize(
    ("layout", "edited"),
    [
        ("as_of = {time}", "as_of = {time}\npackage_as_of = {{ {own} }}"),
        ("as_of = {time} # now\n[env.package_as_of]\n", "as_of = {time} # now\n[env.package_as_of]\n{lines}\n"),
        ("as_of = {time}\npackage_as_of = {{}}", "as_of = {time}\npackage_as_of = {{ {own} }}"),
        ("as_of = {time}\npackage_as_of.Top = 2024-06-01", "as_of = {time}\npackage_as_of.Top = {date}\n{dotted}"),
    ],
    ids=["no key", "table", "empty", "dotted"],
)
def test_upgrade_package_beside_as_of_writes_dates_into_the_spec(tmp_path: Path, layout: str, edited: str) -> None:
    """Of what the package needs, only what was uploaded after the spec's date gets a date too."""
    older = [release("top", "0.9.0"), release("capped", "1.0.0"), release("capped", "2.0.0")]
    new = [
        File(wheel("top", "2.0.0", requires=("mid>=3", "low>=2")), datetime(2025, 9, 1, tzinfo=timezone.utc)),
        File(wheel("mid", "3.0.0", requires=("low",)), datetime(2025, 9, 1, tzinfo=timezone.utc)),
        File(wheel("other", "2.0.0"), datetime(2025, 9, 1, tzinfo=timezone.utc)),
        File(wheel("top", "3.0.0"), datetime(2025, 12, 31, tzinfo=timezone.utc)),
    ]
    top = release("top", "1.0.0", requires=["mid<2", "capped<2"])
    with IndexServer([*chain()[1:], *older, top, *new]) as index:
        user = User(tmp_path, index.url)
        begin = '[env]\nname = "small"\npython = "3.11.7"\n'
        end = '\n[pip]\ndependencies = ["top", "other", "capped"]\n'
        user.writes(begin + layout.format(time=JUNE) + end)
        old = {"top": "1.0.0", "mid": "1.0.0", "low": "1.0.0", "other": "1.0.0", "capped": "1.0.0"}
        assert user.locked_pins() == old
        ran = user.locked("--upgrade-package", "Top", "--as-of", "2025-12-15")
        assert ran.warnings == []
        # `low` moves by the spec's own date; what held back `capped` is gone, and it stays all the same.
        assert user.pins() == {**old, "top": "2.0.0", "mid": "3.0.0", "low": "2.0.0"}
        date = "2025-12-15T00:00:00Z"
        own, lines = f"mid = {date}, top = {date}", f"mid = {date}\ntop = {date}"
        dotted = f"package_as_of.mid = {date}"
        expected = edited.format(time=JUNE, own=own, lines=lines, date=date, dotted=dotted)
        assert user.spec.read_text() == begin + expected + end
        document = user.document()
        assert document["as_of"] == datetime(2025, 6, 15, tzinfo=timezone.utc)
        assert {row["name"] for row in document["package_as_of"]} == {"top", "mid"}
        # A lock is still a function of its spec.
        before = user.files()
        user.locked("--check")
        assert user.locked("--verify").stdout == ""
        shutil.rmtree(user.lock)
        shutil.rmtree(user.cache)
        user.locked()
        assert user.files() == before
        # The later date of the two counts.
        assert user.locked_pins("--as-of", "now") == {"top": "3.0.0", "other": "2.0.0", "capped": "2.0.0"}
        assert "package_as_of" not in user.document()


def counting_uv(folder: Path) -> Path:
    """A package `uv` to import before the real one, whose program notes its runs; the file of the notes."""
    runs, program = folder / "runs", folder / "uv" / "program"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho run >> '{runs}'\nexec '{find_uv_bin()}' \"$@\"\n", encoding="utf-8")
    program.chmod(0o755)
    init = f"def find_uv_bin() -> str:\n    return {str(program)!r}\n"
    (program.parent / "__init__.py").write_text(init, encoding="utf-8")
    return runs


def test_upgrade_package_beside_as_of_resolves_twice_and_assembles_once(tmp_path: Path) -> None:
    september = datetime(2025, 9, 1, tzinfo=timezone.utc)
    new = [File(wheel("top", "2.0.0", requires=("mid>=3",)), september), File(wheel("mid", "3.0.0"), september)]
    runs = counting_uv(tmp_path)
    with IndexServer([*chain(), *new]) as index, RegistryInThread(PushRegistry()) as registry:
        user = ImageUser(tmp_path, index.url, registry.host, PYTHONPATH=f"{tmp_path}:{ROOT}")
        # The registry does not have that tag: the lock has no digest of it, and each new lock looks for one.
        base = '[image]\nbase = "docker.io/team/base:1"\nglibc = "2.36"\npython = "3.11.2"\ncompiler = "none"\n'
        user.wants("top", "other", as_of=JUNE, python="3.11", rest=base)
        succeeded(user.runs_anew("lock", user.spec))
        assert set(user.pins().values()) == {"1.0.0"}
        assert runs.read_text() == "run\n"
        looked_up = list(registry.held.asked)
        assert looked_up
        registry.forget()
        runs.unlink()
        succeeded(user.runs_anew("lock", user.spec, "--upgrade-package", "top"))
        assert user.pins() == {"top": "2.0.0", "mid": "3.0.0", "other": "1.0.0"}
        assert runs.read_text() == "run\nrun\n"
        assert len(registry.held.asked) == len(looked_up)


def test_no_way_out_is_looked_for_if_the_upgrade_has_a_solution(tmp_path: Path) -> None:
    """Without the upgrade, nothing satisfies the changed spec: nobody sees that error."""
    september = datetime(2025, 9, 1, tzinfo=timezone.utc)
    runs = counting_uv(tmp_path)
    needy = release("needy", "1.0.0", requires=["top>=2"])
    with IndexServer([*chain(), needy, File(wheel("top", "2.0.0"), september)]) as index:
        user = User(tmp_path, index.url, PYTHONPATH=f"{tmp_path}:{ROOT}")
        user.wants("top>=1", "other", as_of=JUNE)
        succeeded(user.runs_anew("lock", user.spec))
        user.wants("top>=1", "other", "needy>=1", as_of=JUNE)
        runs.unlink()
        succeeded(user.runs_anew("lock", user.spec, "--upgrade-package", "top"))
        assert user.pins() == {"top": "2.0.0", "other": "1.0.0", "needy": "1.0.0"}
        assert runs.read_text() == 4 * "run\n"


def test_upgrade_package_that_finds_nothing_newer_says_so_and_leaves_the_spec(user: User) -> None:
    user.wants("weekly", "base<2", as_of=JUNE)
    user.locked()
    before, text = user.files(), user.spec.read_text()
    [warning] = user.locked("--upgrade-package", "base", "--as-of", DECEMBER).warnings
    assert warning == "base stays as it is: nothing newer of it, up to 2025-12-15T00:00:00Z, fits the spec"
    assert (user.files(), user.spec.read_text()) == (before, text)


@pytest.mark.parametrize("damaged", [False, True])
def test_upgrade_package_without_a_usable_lock(tmp_path: Path, damaged: bool) -> None:
    september = datetime(2025, 9, 1, tzinfo=timezone.utc)
    new = [File(wheel("top", "2.0.0", requires=("mid>=3",)), september), File(wheel("mid", "3.0.0"), september)]
    with IndexServer([*chain(), *new, File(wheel("other", "2.0.0"), september)]) as index:
        user = User(tmp_path, index.url)
        user.wants("top", "other", as_of=JUNE)
        if damaged:
            user.locked()
            (user.lock / "envspec.lock").write_text("damaged")
        before, text = user.files(), user.spec.read_text()
        assert "did you mean top?" in refused(user.locks("--upgrade-package", "toop"), 2)
        assert "--as-of 2025-03-15T00:00:00Z" in refused(user.locks("--upgrade-package", "mid", "--as-of", MARCH), 2)
        assert (user.files(), user.spec.read_text()) == (before, text)
        moved = {"top": "2.0.0", "mid": "3.0.0", "other": "1.0.0"}
        assert (
            user.locked_pins("--upgrade-package", "mid", "--upgrade-package", "top", "--as-of", "2025-10-01") == moved
        )
        assert "package_as_of = { mid = 2025-10-01T00:00:00Z, top = 2025-10-01T00:00:00Z }" in user.spec.read_text()
        # Without a date in the spec, the others have that of the run.
        shutil.rmtree(user.lock)
        user.wants("top", "other")
        assert "--as-of 2025-10-01T00:00:00Z" in refused(
            user.locks("--upgrade-package", "top", "--as-of", "2025-10-01"), 2
        )
        assert user.locked_pins("--upgrade-package", "top") == {**moved, "other": "2.0.0"}


def test_upgrade_and_upgrade_package_exclude_each_other(user: User) -> None:
    user.wants("weekly")
    error = refused(user.locks("--upgrade", "--upgrade-package", "weekly"), 2)
    assert error.startswith("--upgrade and --upgrade-package exclude each other")


def test_a_refused_upgrade_leaves_spec_and_lock(user: User) -> None:
    user.wants("weekly", as_of=JUNE)
    user.locked()
    before, text = user.files(), user.spec.read_text()
    assert "did you mean weekly?" in refused(user.locks("--upgrade-package", "weakly", "--as-of", DECEMBER), 2)
    assert "no release of weekly was uploaded by" in refused(user.locks("--as-of", "2019-01-01"), 2)
    assert (user.files(), user.spec.read_text()) == (before, text)


def test_an_age_is_resolved_to_a_date_when_locked(tmp_path: Path) -> None:
    """It counts until `--upgrade`, or until the spec has another."""
    now = datetime.now(timezone.utc)
    days = {"1.0.0": 30, "1.1.0": 12, "1.2.0": 3}
    with IndexServer([File(wheel("lib", v), now - timedelta(days=age)) for v, age in days.items()]) as index:
        user = User(tmp_path, index.url)
        assert user.pins_of("lib", as_of='"7 days ago"') == {"lib": "1.1.0"}
        first = user.document()
        assert first["as_of_spec"] == "7 days ago"
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        assert first["as_of"] in {midnight - timedelta(days=each) for each in (6, 7)}
        user.locked("--check")
        user.locked("--verify")
        # The lock's date counts while the age is the same.
        index.add(File(wheel("lib", "1.1.1"), now - timedelta(days=11)), release("more", "1.0.0"))
        a_second_later()
        assert user.document()["as_of"] == first["as_of"]
        assert user.pins_of("lib", as_of='"2 weeks ago"') == {"lib": "1.0.0"}
        assert user.document()["as_of_spec"] == "2 weeks ago"
        # `--upgrade-package` keeps to the age as well.
        assert user.locked_pins("--upgrade-package", "lib") == {"lib": "1.0.0"}
        # Without `as_of`, the lock's date counts.
        assert user.pins_of("lib") == {"lib": "1.0.0"}
        assert "as_of_spec" not in user.document()
        assert user.locked_pins("--as-of", "1 day ago") == {"lib": "1.2.0"}
        assert 'as_of = "1 day ago"' in user.spec.read_text()


def test_an_age_moves_on_with_upgrade(tmp_path: Path) -> None:
    now = datetime.now(timezone.utc)
    with IndexServer([File(wheel("lib", "1.0.0"), now - timedelta(days=30))]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of='"24 hours ago"')
        user.locked()
        first = user.document()["as_of"]
        a_second_later()
        user.locked()
        assert user.document()["as_of"] == first
        user.locked("--upgrade")
        assert user.document()["as_of"] > first


def dated(user: User, as_of: str, package_as_of: str, rest: str = "") -> None:
    """A spec of `lib` and `other`. package_as_of: lines of the table."""
    moment = f"as_of = {as_of}\n" if as_of else ""
    user.writes(
        f'[env]\nname = "small"\npython = "3.11.7"\n{moment}[env.package_as_of]\n{package_as_of}\n'
        f'[pip]\ndependencies = ["lib", "other"]\n{rest}'
    )


@pytest.mark.parametrize("as_of", ["2025-12-15", '"7 days ago"', ""])
def test_an_age_of_a_package_is_resolved_to_a_date_when_locked(tmp_path: Path, as_of: str) -> None:
    """It counts until `--upgrade` or `--upgrade-package`, or until the spec has another."""
    with IndexServer([release("lib", "1.0.0"), release("other", "1.0.0")]) as index:
        user = User(tmp_path, index.url)
        dated(user, as_of, 'Lib = "0 hours ago"')
        old = {"lib": "1.0.0", "other": "1.0.0"}
        assert user.locked_pins() == old
        [first] = user.document()["package_age"]
        assert (first["name"], first["age"]) == ("lib", "0 hours ago")
        assert datetime.now(timezone.utc) - first["as_of"] < timedelta(minutes=1)
        index.add(now_file("lib", "2.0.0"), now_file("other", "2.0.0"))
        a_second_later()
        before, text = user.files(), user.spec.read_text()
        shutil.rmtree(user.cache)
        user.locked()
        user.locked("--check")
        user.locked("--verify")
        assert user.files() == before
        # `--upgrade-package` keeps to the age, and leaves it in the spec.
        assert user.locked_pins("--upgrade-package", "lib") == {"lib": "2.0.0", "other": "1.0.0"}
        assert user.spec.read_text() == text
        assert user.document()["package_age"][0]["as_of"] > first["as_of"]
        user.locked("--check")
        user.locked("--verify")
        dated(user, as_of, 'Lib = "1 hour ago"')
        assert user.locks("--check").status == 3
        assert user.locked_pins("--upgrade-package", "lib") == old
        dated(user, as_of, 'Lib = "0 hours ago"')
        assert user.locked_pins() == {"lib": "2.0.0", "other": "1.0.0"}
        index.add(now_file("lib", "3.0.0"))
        a_second_later()
        assert user.locked_pins("--upgrade")["lib"] == "3.0.0"


def test_an_age_of_a_package_that_excludes_more_than_as_of_does_no_harm(tmp_path: Path) -> None:
    with IndexServer([release("lib", "1.0.0"), release("other", "1.0.0"), now_file("lib", "2.0.0")]) as index:
        user = User(tmp_path, index.url)
        a_second_later()
        dated(user, f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}", 'lib = "3 days ago"')
        assert user.locked_pins() == {"lib": "2.0.0", "other": "1.0.0"}
        assert "package_as_of" not in user.document()
        user.locked("--check")
        user.locked("--verify")


def test_variants_have_the_times_of_the_specs_lock(tmp_path: Path) -> None:
    with IndexServer([release("lib", "1.0.0"), release("other", "1.0.0"), release("more", "1.0.0")]) as index:
        user = User(tmp_path, index.url)
        dated(user, "2025-12-15", 'lib = "0 hours ago"', '[variants.big]\npip.dependencies = ["more"]\n')
        user.locked()
        index.add(now_file("lib", "2.0.0"))
        a_second_later()
        for words in ((), ("--upgrade",)):
            user.locked(*words)
            own = [
                documents.parse_toml(path.read_text())["package_age"]
                for path in sorted(user.folder.glob("locks/*/envspec.lock"))
            ]
            assert own[0] == own[1]
        user.locked("--check")
        user.locked("--verify")


def test_a_later_date_of_a_package_lets_it_move_without_as_of_in_the_spec(tmp_path: Path) -> None:
    with IndexServer([release("lib", "1.0.0"), release("other", "1.0.0")]) as index:
        user = User(tmp_path, index.url)
        dated(user, "", "")
        user.locked()
        index.add(now_file("lib", "2.0.0"), now_file("other", "2.0.0"))
        a_second_later()
        dated(user, "", f"lib = {datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}")
        assert user.locked_pins() == {"lib": "2.0.0", "other": "1.0.0"}


def test_as_of_edits_the_spec_and_nothing_else_of_it(user: User) -> None:
    text = (
        "# our environment\r\n[env]   # the name\r\nname = 'small'\r\npython='3.11.7'\r\n"
        "as_of=2025-06-15T00:00:00Z # June\r\n"
        '[pip]\r\ndependencies = [ "weekly",\r\n]\r\n'
    )
    user.spec.write_bytes(text.encode())
    user.spec.chmod(0o640)
    user.locked("--as-of", "2025-03-15")
    assert user.spec.read_bytes().decode() == text.replace("2025-06-15T00:00:00Z #", "2025-03-15T00:00:00Z #")
    assert user.spec.stat().st_mode & 0o777 == 0o640
    assert user.pins() == {"weekly": "1.3.0"}
    assert user.locked_pins("--exclude-newer", "now") == {"weekly": "1.12.0"}
    assert user.spec.read_bytes().decode().replace("\r\n", "").count("as_of") == 1
    assert (datetime.now(timezone.utc) - user.document()["as_of"]).total_seconds() < 60


@pytest.mark.parametrize(
    ("moment", "message"), [("tomorrow", "not a date"), ("2999-01-01", "in the future"), ("", "not a date")]
)
def test_as_of_that_is_no_moment_leaves_the_spec(user: User, moment: str, message: str) -> None:
    user.wants("weekly", as_of=JUNE)
    before = user.spec.read_bytes()
    assert message in refused(user.locks("--as-of", moment), 2)
    assert user.spec.read_bytes() == before


def test_a_damaged_lock_is_written_anew(user: User) -> None:
    user.wants("weekly", as_of=JUNE)
    assert user.locks().status == 0
    before = user.files()
    document = before["envspec.lock"]
    for damage in (b"", b"\xff\xfe", document[:200], document.replace(b"1.6.0", b"1.7.0")):
        (user.lock / "envspec.lock").write_bytes(damage)
        assert user.locks("--check").status == 3
        assert user.locks().status == 0
        assert user.files() == before


def test_an_undated_index_keeps_to_its_memory_for_one_moment(tmp_path: Path) -> None:
    with IndexServer([release("corp-lib", "1.0.0")], PLAIN) as corp:
        user = User(tmp_path, corp.url)
        rest = routed("corp", corp.url, "corp-*", undated="accept")
        user.wants("corp-lib", as_of=DECEMBER, rest=rest)
        assert user.locks().status == 0
        corp.add(release("corp-lib", "2.0.0"))
        shutil.rmtree(user.lock)
        assert user.locked_pins() == {"corp-lib": "1.0.0"}


def test_several_platforms_share_one_moment(tmp_path: Path) -> None:
    with IndexServer(compiled("native", "1.0.0")) as index:
        user = User(tmp_path, index.url)
        platforms = ("linux-64", "linux-aarch64", "osx-arm64", "win-64")
        user.wants("native", platforms=platforms)
        assert user.locks("--jobs", "2").status == 0
        assert [user.pins(platform) for platform in platforms] == [{"native": "1.0.0"}] * 4
        assert index.fetched_twice() == []
        assert len(index.requests_for("/simple/native/")) == 1


def test_another_index_that_stands_for_the_default_one_is_another_question(tmp_path: Path) -> None:
    """What was locked by a mirror that lacks releases is not what is locked without it."""
    with (
        IndexServer([release("lib", "1.0.0")]) as poor,
        IndexServer([release("lib", "1.0.0"), release("lib", "2.0.0")]) as whole,
    ):
        user = User(tmp_path, poor.url)
        assert user.pins_of("lib", as_of=DECEMBER) == {"lib": "1.0.0"}
        shutil.rmtree(user.lock)
        assert user.locks(ENVSPEC_DEFAULT_INDEX=whole.url).status == 0
        assert user.pins() == {"lib": "2.0.0"}


def test_a_damaged_lock_without_as_of_is_locked_at_this_moment_each_time(user: User, index: IndexServer) -> None:
    user.wants("base")
    for version in ("2.0.0", "3.0.0", "4.0.0"):
        user.lock.mkdir(parents=True, exist_ok=True)
        (user.lock / "envspec.lock").write_bytes(b"")
        assert user.locked_pins() == {"base": version}
        index.add(now_file("base", f"{int(version[0]) + 1}.0.0"))
        a_second_later()


def test_upgrade_package_by_the_other_engine(tmp_path: Path) -> None:
    with IndexServer(chain()) as index:
        user = User(tmp_path, index.url)
        engine = ("--resolver", "pip-tools")
        user.wants("top", "other")
        assert user.locks(*engine).status == 0
        assert user.pins() == {"top": "1.0.0", "mid": "1.0.0", "low": "1.0.0", "other": "1.0.0"}
        index.add(now_file("top", "2.0.0", ("mid>=3",)), now_file("mid", "3.0.0", ("low",)), now_file("other", "2.0.0"))
        a_second_later()
        assert user.locks(*engine, "--upgrade-package", "top").status == 0
        assert user.pins() == {"top": "2.0.0", "mid": "3.0.0", "low": "1.0.0", "other": "1.0.0"}
