"""What moves in a lock with two halves, and what stays: by `--upgrade-package`, by `--upgrade`, and by nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.reasons import words
from tests.support.builders.conda_channel import Row, row, write_channel
from tests.support.builders.ecosystem import release
from tests.support.golden_locks import read_why
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, a_second_later, refused

#: The first lock is of this day: half of what the channel and the index have is newer.
AS_OF: Final = "2025-09-01T00:00:00Z"
OLD, NEW = date(2025, 1, 1), date(2026, 1, 1)
PYTHON: Final = "python >=3.12,<3.13.0a0"
NATIVE: Final = ("linux-64", "linux-aarch64")


def built(name: str, version: str, day: date, *depends: str, **more: Any) -> list[Row]:
    """A row for each platform."""
    moment = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    return [row(name, version, "h0_0", depends=depends, built=moment, subdir=subdir, **more) for subdir in NATIVE]


def rows() -> list[Row]:
    """Of each package an old and a new version; alpha and zeta need a beta and an eta of their own version."""
    needs = {"alpha": "beta", "zeta": "eta"}
    found = [*built("python", "3.12.11", OLD), *built("python", "3.12.12", NEW)]
    for name in ("alpha", "beta", "gamma", "epsilon", "zeta", "eta"):
        for version, day in (("1", OLD), ("2", NEW)):
            depends = [f"{needs[name]} {version}.*"] if name in needs else []
            found += built(name, f"{version}.0", day, *depends)
    for name, old, new, need in (("delta", "1.0", "2.0", "epsilon"), ("msgpack-python", "1.0.8", "1.1.2", PYTHON)):
        found += [*built(name, old, OLD, need), *built(name, new, NEW, need)]
    return found


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    wheels = [
        release("tool", "1.0.0", requires=["helper", "msgpack"]),
        release("tool", "2.0.0", "2026-01-01", requires=["helper>=2", "msgpack"]),
        release("helper", "1.0.0"),
        release("helper", "2.0.0", "2026-01-01"),
        release("other", "1.0.0"),
        release("other", "2.0.0", "2026-01-01"),
        release("strict", "1.0.0", requires=["msgpack<1.1"]),
        release("strict", "2.0.0", "2026-01-01", requires=["msgpack"]),
    ]
    with IndexServer(wheels) as running:
        yield running


class Locked:
    """A lock of AS_OF whose spec has no `as_of` any more."""

    def __init__(self, folder: Path, index: IndexServer, channel: str, *wheels: str) -> None:
        self.user = User(folder, index.url)
        self.index, self.channel, self.wheels = index, channel, wheels
        if not self.user.lock.exists():
            self.writes_spec(as_of=AS_OF)
            self.runs()
            self.writes_spec()
            self.runs()
        self.first = self.pins()

    def copied(self, folder: Path) -> Locked:
        shutil.copytree(self.user.folder, folder, dirs_exist_ok=True)
        return Locked(folder, self.index, self.channel, *self.wheels)

    def writes_spec(self, *conda: str, wheels: tuple[str, ...] = (), as_of: str | None = None) -> None:
        """A spec that asks for these besides. wheels: all of them."""
        asked = ["alpha", "gamma", "msgpack-python", *conda]
        self.user.wants(
            *(wheels or self.wheels),
            as_of=as_of,
            python="3.12",
            platforms=NATIVE,
            rest=f"[conda]\nchannels = ['{self.channel}']\ndependencies = {asked}\n",
        )

    def runs(self, *words: str) -> Ran:
        return self.user.locked(*words)

    def pins(self, platform: str = "linux-64") -> dict[str, str]:
        """Versions of both halves: wheels by their names, conda's packages by theirs with a colon before."""
        found = {}
        for resolution in self.user.document()["resolution"]:
            if resolution["platform"] == platform:
                found = {package["name"]: package["version"] for package in resolution.get("package", ())}
                found |= {f":{package['name']}": package["version"] for package in resolution["conda"]}
        return found

    def moved(self) -> dict[str, str]:
        """What is another version now than in the first lock, or is new; the same on both platforms."""
        one, two = (self.pins(platform) for platform in NATIVE)
        assert one == two
        assert self.first.keys() <= one.keys()
        return {name: version for name, version in one.items() if self.first.get(name) != version}

    def stays(self) -> None:
        """A later plain lock changes nothing, also where it has to be made anew."""
        before = self.user.files()
        (self.user.lock / "conda-linux-64.lock").write_bytes(b"")
        self.runs()
        assert self.user.files() == before


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_channel(tmp_path_factory.mktemp("channels") / "forge", rows()).as_uri()


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory, index: IndexServer, channel: str) -> Locked:
    return Locked(tmp_path_factory.mktemp("first"), index, channel, "tool", "other")


@pytest.fixture
def locked(tmp_path: Path, lock: Locked) -> Locked:
    return lock.copied(tmp_path)


def test_without_as_of_in_the_spec_the_locks_own_holds(locked: Locked) -> None:
    assert locked.first == {
        ":python": "3.12.11",
        ":alpha": "1.0",
        ":beta": "1.0",
        ":gamma": "1.0",
        ":msgpack-python": "1.0.8",
        "tool": "1.0.0",
        "helper": "1.0.0",
        "other": "1.0.0",
    }
    assert locked.user.document()["as_of"] == datetime(2025, 9, 1, tzinfo=timezone.utc)
    assert "nothing changed" in locked.runs().stderr
    locked.stays()


PAIR: Final = {":alpha": "2.0", ":beta": "2.0"}
TOOL: Final = {"tool": "2.0.0", "helper": "2.0.0"}
ALL: Final = {":python": "3.12.12", **PAIR, ":gamma": "2.0", ":msgpack-python": "1.1.2", **TOOL, "other": "2.0.0"}


@pytest.mark.parametrize(
    ("names", "moved"),
    [
        ("alpha", PAIR),
        ("beta", PAIR),
        ("msgpack-python", {":msgpack-python": "1.1.2"}),
        ("msgpack", {":msgpack-python": "1.1.2"}),
        ("MsgPack_Python", {":msgpack-python": "1.1.2"}),
        ("python", {":python": "3.12.12"}),
        ("tool", TOOL),
        ("gamma helper", {":gamma": "2.0", "helper": "2.0.0"}),
        ("", ALL),
    ],
)
def test_what_moves(locked: Locked, names: str, moved: dict[str, str]) -> None:
    """By --upgrade-package of these names, or --upgrade."""
    words = [word for name in names.split() for word in ("--upgrade-package", name)] or ["--upgrade"]
    conda = {name: data for name, data in locked.user.files().items() if name.startswith("conda-")}
    locked.runs(*words)
    assert locked.moved() == moved
    after = locked.user.files()
    assert (conda.items() <= after.items()) is not any(name.startswith(":") for name in moved)
    pythons = {resolution["python"]["version"] for resolution in locked.user.document()["resolution"]}
    assert pythons == {moved.get(":python", "3.12.11")}
    if names:
        assert "nothing changed" in locked.runs(*words).stderr
        assert locked.user.files() == after
    locked.stays()


def test_upgrades_and_additions_one_after_the_other(locked: Locked) -> None:
    locked.writes_spec("zeta", "delta")
    locked.runs("--upgrade-package", "gamma")
    moved = {":gamma": "2.0", ":delta": "1.0", ":epsilon": "1.0", ":zeta": "1.0", ":eta": "1.0"}
    assert locked.moved() == moved
    # Two that others hold back.
    locked.runs("--upgrade-package", "beta", "--upgrade-package", "eta")
    moved |= {**PAIR, ":zeta": "2.0", ":eta": "2.0"}
    assert locked.moved() == moved
    locked.runs("--upgrade-package", "tool")
    assert locked.moved() == {**moved, **TOOL}
    locked.stays()


def test_what_the_spec_asks_only_by_now(locked: Locked) -> None:
    """The lock's own day has no gamma 2: the name makes it possible."""
    locked.writes_spec("gamma >=2")
    error = refused(locked.user.locks(), 4)
    assert "gamma >=2" in error and "after as_of" in error
    locked.runs("--upgrade-package", "gamma")
    assert locked.moved() == {":gamma": "2.0"}
    locked.stays()


def test_what_is_added_later_leaves_the_rest(locked: Locked) -> None:
    """A new dependency is of the lock's own day, and so is what it brings."""
    locked.runs("--upgrade-package", "alpha")
    locked.writes_spec("delta")
    locked.runs()
    assert locked.moved() == {**PAIR, ":delta": "1.0", ":epsilon": "1.0"}
    locked.writes_spec("delta", wheels=("tool", "other", "strict"))
    locked.runs()
    assert locked.moved() == {**PAIR, ":delta": "1.0", ":epsilon": "1.0", "strict": "1.0.0"}
    locked.stays()


def test_what_is_no_longer_required_takes_its_moment_along(locked: Locked) -> None:
    locked.writes_spec("delta")
    locked.runs("--upgrade-package", "delta")
    assert {":delta": "2.0"}.items() <= locked.moved().items()
    locked.writes_spec()
    locked.runs()
    assert locked.moved() == {}
    locked.writes_spec("delta")
    locked.runs()
    assert locked.moved() == {":delta": "1.0", ":epsilon": "1.0"}


def test_a_wheels_moment_goes_with_it_too(locked: Locked) -> None:
    locked.runs("--upgrade-package", "other")
    assert locked.moved() == {"other": "2.0.0"}
    locked.writes_spec(wheels=("tool",))
    locked.runs()
    assert "package_as_of" not in locked.user.document()
    locked.writes_spec()
    locked.runs()
    assert locked.moved() == {}


def test_a_requirement_that_was_loosened_moves_nothing(locked: Locked) -> None:
    locked.writes_spec("epsilon 1.*")
    locked.runs("--upgrade-package", "alpha")
    assert locked.moved() == {**PAIR, ":epsilon": "1.0"}
    locked.writes_spec("epsilon")
    locked.runs()
    assert locked.moved() == {**PAIR, ":epsilon": "1.0"}


def test_a_name_that_neither_half_has(locked: Locked) -> None:
    before = locked.user.files()
    error = refused(locked.user.locks("--upgrade-package", "gama"), 2)
    assert error.startswith("--upgrade-package gama: no such package in the lock or the spec")
    assert "did you mean gamma?" in error
    assert locked.user.files() == before


def test_a_package_of_a_named_channel(tmp_path: Path, index: IndexServer) -> None:
    parts = [
        f"conda-forge={write_channel(tmp_path / 'forge', rows())}",
        f"corp={write_channel(tmp_path / 'corp', rows())}",
    ]
    words = [word for part in parts for word in ("--channel-repodata", part)]
    user = User(tmp_path / "user", index.url)
    rest = "[conda]\nchannels = ['corp', 'conda-forge']\ndependencies = ['conda-forge::gamma', 'alpha']\n"

    def locks(*more: str, as_of: str | None = None) -> dict[str, tuple[str, str]]:
        user.wants(as_of=as_of, python="3.12", rest=rest)
        user.locked(*words, *more)
        return {row["name"]: (row["version"], row["channel"]) for row in user.document()["resolution"][0]["conda"]}

    first = locks(as_of=AS_OF)
    assert (first["gamma"], first["alpha"]) == (("1.0", "conda-forge"), ("1.0", "corp"))
    moved = locks("--upgrade-package", "gamma")
    assert moved == {**first, "gamma": ("2.0", "conda-forge")}
    assert locks() == moved


def test_beside_a_date_in_the_spec_dates_of_both_ecosystems_are_written_into_it(locked: Locked) -> None:
    locked.writes_spec(as_of=AS_OF)
    ran = locked.runs("--upgrade")
    assert len(ran.warnings) == 1 and "as_of = 2025-09-01T00:00:00Z excludes every newer release" in ran.warnings[0]
    assert locked.moved() == {}
    assert locked.runs("--upgrade-package", "alpha", "--upgrade-package", "tool").warnings == ran.warnings[1:]
    assert locked.moved() == {**PAIR, **TOOL}
    assert re.findall(r"(\w+) = 20", locked.user.spec.read_text()) == ["as_of", "alpha", "beta", "helper", "tool"]
    locked.stays()
    shutil.rmtree(locked.user.lock)
    locked.runs()
    assert locked.moved() == {**PAIR, **TOOL}


def test_beside_a_date_a_name_of_pypi_alone_moves_nothing_of_conda(locked: Locked) -> None:
    locked.writes_spec(as_of=AS_OF)
    locked.runs("--upgrade")
    locked.runs("--upgrade-package", "tool")
    assert locked.moved() == TOOL
    assert re.findall(r"(\w+) = 20", locked.user.spec.read_text()) == ["as_of", "helper", "tool"]
    locked.stays()


def test_beside_a_date_what_the_spec_asks_only_by_now(locked: Locked) -> None:
    locked.writes_spec("gamma >=2", as_of=AS_OF)
    assert "after as_of" in refused(locked.user.locks(), 4)
    locked.runs("--upgrade-package", "gamma")
    assert locked.moved() == {":gamma": "2.0"}
    locked.stays()


def test_a_wheel_that_conda_leaves_behind_is_reported(tmp_path: Path, index: IndexServer, channel: str) -> None:
    """strict 1.0.0 needs the old msgpack: whoever moves conda's has to let it move, too."""
    locked = Locked(tmp_path, index, channel, "strict")
    before = locked.user.files()
    error = refused(locked.user.locks("--upgrade-package", "msgpack"), 4)
    assert "msgpack 1.1.2 comes from" in error and "strict" in error
    assert locked.user.files() == before
    locked.runs("--upgrade-package", "msgpack", "--upgrade-package", "strict")
    assert locked.moved() == {":msgpack-python": "1.1.2", "strict": "2.0.0"}
    locked.stays()


def test_a_row_that_comes_late_and_says_it_was_built_early(tmp_path: Path, index: IndexServer) -> None:
    folder = tmp_path / "forge"
    write_channel(folder, rows())
    found = Locked(tmp_path / "user", index, folder.as_uri(), "tool")
    shutil.rmtree(folder)
    write_channel(folder, [*rows(), *built("gamma", "1.5", OLD)])
    (found.user.lock / "conda-linux-64.lock").write_bytes(b"")
    found.runs()
    assert found.moved() == {}
    found.stays()
    [message] = {
        words(read_why(p["rejected"]["why"]))
        for r in found.user.document()["resolution"]
        for p in r["conda"]
        if p["name"] == "gamma"
    }
    assert message == "the lock keeps 1.0; `--upgrade-package gamma` moves it"
    found.writes_spec("epsilon")
    found.runs()
    assert found.moved() == {":epsilon": "1.0"}
    found.runs("--upgrade")
    assert found.pins()[":gamma"] == "2.0"


@pytest.mark.parametrize("as_of", [AS_OF, None])
def test_an_age_of_a_package_moves_it_in_both_ecosystems(locked: Locked, as_of: str | None) -> None:
    """What it means is in the lock, until `--upgrade-package`, which leaves it in the spec."""
    ages = '[env.package_as_of]\ngamma = "0 hours ago"\nmsgpack-python = "1 week ago"\nother = "1 day ago"\n'
    locked.writes_spec(as_of=as_of)
    locked.user.spec.write_text(locked.user.spec.read_text() + ages)
    locked.runs()
    moved = {":gamma": "2.0", ":msgpack-python": "1.1.2", "other": "2.0.0"}
    assert locked.moved() == moved
    first = {each["name"]: each["as_of"] for each in locked.user.document()["package_age"]}
    locked.stays()
    locked.user.locked("--check")
    locked.user.locked("--verify")
    a_second_later()
    locked.runs("--upgrade-package", "gamma")
    assert locked.moved() == moved and locked.user.spec.read_text().endswith(ages)
    later = {each["name"]: each["as_of"] for each in locked.user.document()["package_age"]}
    assert later.pop("gamma") > first.pop("gamma") and later == first
