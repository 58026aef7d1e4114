"""Whole runs of `envspec lock` that are killed at any moment, and runs at the same time: a lock is whole, always.

What the writing alone does is in tests/lockfile/test_folder_killed.py; here it is the command, with engine and cache.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from envspec.lockfile.check import check
from tests.support import preloaded
from tests.support.builders import ecosystem
from tests.support.servers.faults import Stall
from tests.support.servers.index import IndexServer
from tests.support.tries import tries
from tests.support.user import Running, User

MOMENTS: Final = tries(50)
SEED: Final = 20261120
JUNE, DECEMBER = "2025-06-15T00:00:00Z", "2025-12-15T00:00:00Z"

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.dated(), *ecosystem.diamond()]) as running:
        yield running


def wants(user: User, as_of: str, number: int = 0) -> None:
    """number: makes a question that was not asked before, so that an engine has to answer it."""
    platforms = ("linux-64",) if as_of == JUNE else ("linux-64", "win-64")
    user.wants("weekly", "app", as_of=as_of, platforms=platforms, pip=f'constraints = ["unused<{number}"]')


def until_resolved(run: Running) -> None:
    """Wait until the run says that it has its packages: what follows is making the lock, and writing it."""
    until_said(run, b" packages\n")


def until_said(run: Running, words: bytes) -> None:
    until = time.monotonic() + 5
    while words not in os.pread(run.stderr.fileno(), 10_000, 0):
        assert time.monotonic() < until, run.ends()
        time.sleep(0.001)


def test_killed_at_any_moment(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url, TMPDIR=str(tmp_path))
    wants(user, JUNE)
    assert user.locks().status == 0
    wants(user, DECEMBER)
    begin = time.monotonic()
    run = user.starts()
    until_resolved(run)
    resolved = time.monotonic()
    assert run.ends().status == 0
    # What the machine at hand needs, at its load.
    longest_s, end_s = time.monotonic() - begin, time.monotonic() - resolved
    moments = random.Random(SEED)
    outcomes = {"old": 0, "new": 0}
    for number in range(1, MOMENTS + 1):
        before = user.files()
        wants(user, JUNE if "requirements.win-64.txt" in before else DECEMBER, number)
        run = user.starts()
        if number % 2:
            until_resolved(run)
            time.sleep(moments.uniform(0, 2 * end_s))
        else:
            time.sleep(moments.uniform(0, longest_s))
        if number % 4 < 2:
            run.child.kill()
        else:
            # Alone, and its engine outlives it.
            run.child.signal(signal.SIGKILL)
        run.ends()
        if user.files() == before:
            outcomes["old"] += 1
            continue
        # Whole, and of the new spec: the head's seal, its input and the hash of every file.
        assert check(user.spec, user.lock).is_fresh, number
        assert len(user.files()) == (2 if "requirements.win-64.txt" in before else 3)
        outcomes["new"] += 1
    # Otherwise the moments prove nothing.
    assert min(outcomes.values()) >= 2, outcomes
    wants(user, DECEMBER)
    assert user.locks().status == 0
    assert user.pins("win-64")["weekly"] == "1.12.0"
    assert [path.name for path in user.lock.parent.iterdir()] == [user.lock.name]


def test_killed_before_there_is_a_lock(tmp_path: Path, index: IndexServer) -> None:
    moments = random.Random(SEED)
    for number in range(6):
        user = User(tmp_path / str(number), index.url)
        wants(user, DECEMBER)
        run = user.starts()
        if number % 2:
            until_resolved(run)
        time.sleep(moments.uniform(0, 0.03))
        run.child.kill()
        run.ends()
        assert set(user.files()) in (set(), {"envspec.lock", "requirements.linux-64.txt", "requirements.win-64.txt"})
        assert user.locks().status == 0
        assert user.pins("win-64")["weekly"] == "1.12.0"


def test_two_at_once_end_in_one_whole_lock(tmp_path: Path, index: IndexServer) -> None:
    """A spec that changes while it is locked, and is locked again: one folder, one cache, which is empty at first."""
    user = User(tmp_path, index.url)
    seen = []
    for _ in range(4):
        shutil.rmtree(user.cache, ignore_errors=True)
        runs = []
        for as_of in (JUNE, DECEMBER):
            wants(user, as_of)
            runs.append(user.starts("--upgrade"))
            until_said(runs[-1], b": resolving\n")
        done = [run.ends() for run in runs]
        assert [ran.status for ran in done] == [0, 0], [ran.stderr for ran in done]
        seen.append(user.files())
    versions = []
    for as_of in (JUNE, DECEMBER):
        wants(user, as_of)
        assert user.locks("--upgrade").status == 0
        versions.append(user.files())
    assert all(found in versions for found in seen)
    assert versions[0] != versions[1]


@pytest.mark.parametrize(
    ("number", "status", "message"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_a_signal_ends_it_and_its_engine(
    tmp_path: Path, index: IndexServer, number: signal.Signals, status: int, message: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    user = User(tmp_path, index.url, ENVSPEC_HTTP_STALL_S="60", ENVSPEC_HTTP_TOTAL_S="60", TMPDIR=str(temporary))
    wants(user, JUNE)
    assert user.locks().status == 0
    before = user.files()
    index.add(ecosystem.release("late", "1.0.0"))
    index.fail("/simple/late/", Stall())
    user.wants("weekly", "late", as_of=JUNE)
    run = user.starts()
    until = time.monotonic() + 10
    while not index.requests_for("/simple/late/"):
        assert time.monotonic() < until
        time.sleep(0.005)
    run.child.signal(number)
    begin = time.monotonic()
    ran = run.ends()
    assert time.monotonic() - begin < 30
    assert ran.status == status
    assert "Traceback" not in ran.stderr and message in ran.stderr
    assert list(temporary.iterdir()) == []
    assert user.files() == before
    # The engine was of the same process group: there is none left.
    with pytest.raises(ProcessLookupError):
        os.killpg(run.child.pid, 0)


def test_what_a_kill_left_beside_a_lock_goes_also_where_nothing_is_to_do(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url)
    wants(user, JUNE)
    assert user.locks().status == 0
    before = user.files()
    left = user.lock.with_name(f".{user.lock.name}.envspec-new-0f3fz4vl")
    shutil.copytree(user.lock, left)
    assert "nothing changed" in user.locks().stderr
    assert [path.name for path in user.lock.parent.iterdir()] == [user.lock.name]
    assert user.files() == before
