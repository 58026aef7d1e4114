"""What moves in a lock with two halves, and what stays: by `--upgrade-package`, by `--upgrade`, and by nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.builders.conda_channel import Row, row, write_channel
from tests.support.builders.ecosystem import release
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, refused

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
    return [
        *built("python", "3.12.11", OLD),
        *built("python", "3.12.12", NEW),
        # alpha needs its own beta, and an old alpha holds beta back.
        *built("alpha", "1.0", OLD, "beta 1.*"),
        *built("alpha", "2.0", NEW, "beta 2.*"),
        *built("beta", "1.0", OLD),
        *built("beta", "2.0", NEW),
        *built("gamma", "1.0", OLD),
        *built("gamma", "2.0", NEW),
        *built("delta", "1.0", OLD, "epsilon"),
        *built("delta", "2.0", NEW, "epsilon"),
        *built("epsilon", "1.0", OLD),
        *built("epsilon", "2.0", NEW),
        # zeta needs its own eta, as alpha its beta
        *built("zeta", "1.0", OLD, "eta 1.*"),
        *built("zeta", "2.0", NEW, "eta 2.*"),
        *built("eta", "1.0", OLD),
        *built("eta", "2.0", NEW),
        *built("msgpack-python", "1.0.8", OLD, PYTHON),
        *built("msgpack-python", "1.1.2", NEW, PYTHON),
    ]


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
        self.index = index
        self.channel = channel
        self.wheels = wheels
        if not self.user.lock.exists():
            self.asks(as_of=AS_OF)
            self.runs()
            self.asks()
            self.runs()
        self.first = self.pins()

    def copied(self, folder: Path) -> Locked:
        shutil.copytree(self.user.folder, folder, dirs_exist_ok=True)
        return Locked(folder, self.index, self.channel, *self.wheels)

    def asks(self, *conda: str, wheels: tuple[str, ...] = (), as_of: str | None = None) -> None:
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
        ran = self.user.locks(*words)
        assert ran.status == 0, ran.stderr
        return ran

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


def test_a_package_and_what_it_must(locked: Locked) -> None:
    locked.runs("--upgrade-package", "alpha")
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0"}
    locked.stays()
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0"}


def test_what_holds_it_back_moves_too(locked: Locked) -> None:
    locked.runs("--upgrade-package", "beta")
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0"}
    locked.stays()


def test_two_that_are_held_back(locked: Locked) -> None:
    locked.asks("zeta")
    locked.runs()
    locked.runs("--upgrade-package", "beta", "--upgrade-package", "eta")
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0", ":zeta": "2.0", ":eta": "2.0"}


def test_what_the_spec_asks_only_by_now(locked: Locked) -> None:
    """The lock's own day has no gamma 2: the name makes it possible."""
    locked.asks("gamma >=2")
    error = refused(locked.user.locks(), 4)
    assert "gamma >=2" in error and "after as_of" in error
    locked.runs("--upgrade-package", "gamma")
    assert locked.moved() == {":gamma": "2.0"}
    locked.stays()


@pytest.mark.parametrize("name", ["msgpack-python", "msgpack", "MsgPack_Python"])
def test_by_condas_name_and_by_pypis(locked: Locked, name: str) -> None:
    locked.runs("--upgrade-package", name)
    assert locked.moved() == {":msgpack-python": "1.1.2"}
    locked.stays()


def test_python_too(locked: Locked) -> None:
    locked.runs("--upgrade-package", "python")
    assert locked.moved() == {":python": "3.12.12"}
    assert {r["python"]["version"] for r in locked.user.document()["resolution"]} == {"3.12.12"}
    locked.stays()


def test_a_wheel_keeps_condas_rows(locked: Locked) -> None:
    before = {name: data for name, data in locked.user.files().items() if name.startswith("conda-")}
    locked.runs("--upgrade-package", "tool")
    assert locked.moved() == {"tool": "2.0.0", "helper": "2.0.0"}
    assert {name: data for name, data in locked.user.files().items() if name.startswith("conda-")} == before
    locked.stays()


def test_of_both_halves_at_once(locked: Locked) -> None:
    locked.runs("--upgrade-package", "gamma", "--upgrade-package", "helper")
    assert locked.moved() == {":gamma": "2.0", "helper": "2.0.0"}
    locked.stays()


def test_one_after_the_other(locked: Locked) -> None:
    locked.runs("--upgrade-package", "gamma")
    locked.runs("--upgrade-package", "tool")
    locked.runs("--upgrade-package", "alpha")
    assert locked.moved() == {
        ":gamma": "2.0",
        ":alpha": "2.0",
        ":beta": "2.0",
        "tool": "2.0.0",
        "helper": "2.0.0",
    }
    locked.stays()


def test_what_is_added_later_leaves_the_rest(locked: Locked) -> None:
    """A new dependency is of the lock's own day, and so is what it brings."""
    locked.runs("--upgrade-package", "alpha")
    locked.asks("delta")
    locked.runs()
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0", ":delta": "1.0", ":epsilon": "1.0"}
    locked.asks("delta", wheels=("tool", "other", "strict"))
    locked.runs()
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0", ":delta": "1.0", ":epsilon": "1.0", "strict": "1.0.0"}
    locked.stays()


def test_what_is_added_and_upgraded_at_once(locked: Locked) -> None:
    locked.asks("delta")
    locked.runs("--upgrade-package", "gamma")
    assert locked.moved() == {":gamma": "2.0", ":delta": "1.0", ":epsilon": "1.0"}
    locked.stays()


def test_what_is_no_longer_required_takes_its_moment_along(locked: Locked) -> None:
    locked.asks("delta")
    locked.runs("--upgrade-package", "delta")
    assert {":delta": "2.0"}.items() <= locked.moved().items()
    locked.asks()
    locked.runs()
    assert locked.moved() == {}
    locked.asks("delta")
    locked.runs()
    assert locked.moved() == {":delta": "1.0", ":epsilon": "1.0"}


def test_a_wheels_moment_goes_with_it_too(locked: Locked) -> None:
    locked.runs("--upgrade-package", "other")
    assert locked.moved() == {"other": "2.0.0"}
    locked.asks(wheels=("tool",))
    locked.runs()
    assert "package_as_of" not in locked.user.document()
    locked.asks()
    locked.runs()
    assert locked.moved() == {}


def test_a_requirement_that_was_loosened_moves_nothing(locked: Locked) -> None:
    locked.asks("epsilon 1.*")
    locked.runs("--upgrade-package", "alpha")
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0", ":epsilon": "1.0"}
    locked.asks("epsilon")
    locked.runs()
    assert locked.moved() == {":alpha": "2.0", ":beta": "2.0", ":epsilon": "1.0"}


def test_upgrade_moves_all(locked: Locked) -> None:
    locked.runs("--upgrade")
    assert locked.moved() == {
        ":python": "3.12.12",
        ":alpha": "2.0",
        ":beta": "2.0",
        ":gamma": "2.0",
        ":msgpack-python": "1.1.2",
        "tool": "2.0.0",
        "helper": "2.0.0",
        "other": "2.0.0",
    }
    locked.stays()


def test_what_is_the_newest_already_changes_nothing(locked: Locked) -> None:
    locked.runs("--upgrade-package", "gamma")
    before = locked.user.files()
    ran = locked.runs("--upgrade-package", "gamma")
    assert locked.user.files() == before
    assert "nothing changed" in ran.stderr


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


def test_an_as_of_in_the_spec_bounds_both_halves(locked: Locked) -> None:
    locked.asks(as_of=AS_OF)
    ran = locked.runs("--upgrade-package", "alpha", "--upgrade-package", "tool")
    assert len(ran.warnings) == 1 and "as_of = 2025-09-01T00:00:00Z excludes every newer release" in ran.warnings[0]
    assert locked.moved() == {}


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
        p["rejected"]["why"] for r in found.user.document()["resolution"] for p in r["conda"] if p["name"] == "gamma"
    }
    assert message == "the lock keeps 1.0; `--upgrade-package gamma` moves it"
    found.asks("epsilon")
    found.runs()
    assert found.moved() == {":epsilon": "1.0"}
    found.runs("--upgrade")
    assert found.pins()[":gamma"] == "2.0"
