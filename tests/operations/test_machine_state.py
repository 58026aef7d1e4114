"""Disk, cache, limits, network and signals in a state in which a command can't work: one message with what, where and
what to do, and an exit code of the table in `docs/reference/exit-codes.md`, which is not 1.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support import preloaded
from tests.support.builders.ecosystem import release
from tests.support.builders.projects import File
from tests.support.builders.wheels import padding, wheel
from tests.support.machines.small_disk import in_namespace, needs_mounts
from tests.support.servers.faults import Stall
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

pytestmark = [
    pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="mounts and limits as on Linux"),
    needs_mounts,
]

LOCK: Final = ("lock", "spec.toml", "--output", "locks/new")
INSTALL: Final = ("install", "locks/small", "--prefix", "env", "--python", sys.executable)
#: A disk of this size at `disk`, of this user alone.
DISK: Final = 'mkdir -p disk; mount -t tmpfs -o mode=700,size={} tmpfs disk || exit 99; {}"$@"'
READ_ONLY: Final = (
    "mkdir -p disk; mount -t tmpfs -o mode=700 tmpfs disk || exit 99; {}mount -o remount,ro disk || exit 99; "
)
#: Files are linked into and out of the cache: it is filled by nothing else.
FILL: Final = "head -c 64m /dev/zero > disk/full 2>/dev/null; "


@dataclass(frozen=True, slots=True)
class Change:
    """A changed machine. script: of the shell, before the run. says: in the message, beside what to do."""

    words: tuple[str, ...]
    status: int
    code: str
    says: str
    script: str = '"$@"'
    environ: Mapping[str, str] = field(default_factory=dict)
    network: bool = True


CACHE_ON_DISK: Final = {"ENVSPEC_CACHE_DIR": "disk"}
CACHE_IS_FILE: Final = {"ENVSPEC_CACHE_DIR": "file"}
NEW_CACHE: Final = {"ENVSPEC_CACHE_DIR": "new-cache"}

CHANGES: Final[dict[str, Change]] = {
    # Disks
    "the cache's disk is full, lock": Change(LOCK, 6, "disk-full", "disk", DISK.format("40k", ""), CACHE_ON_DISK),
    "the cache's disk is full, install": Change(INSTALL, 6, "disk-full", "disk", DISK.format("1m", ""), CACHE_ON_DISK),
    "the environment's disk is full": Change(
        ("install", "locks/small", "--prefix", "disk/env", "--python", sys.executable),
        # uv, which may find it first, does not always name the path; the warning before does.
        *(6, "disk-full", "no space left while", DISK.format("200k", "")),
    ),
    "the lock's disk is full": Change(
        ("lock", "spec.toml", "--output", "disk/new"), 2, "lock-not-writable", "disk/new", DISK.format("12k", FILL)
    ),
    "the result's disk is full": Change(
        ("explain", "locks/small"), 6, "output-not-writable", "standard output", '"$@" > /dev/full'
    ),
    "the disk of an export is full": Change(
        ("export", "locks/small", "--format", "pylock", "--output", "disk"),
        *(2, "usage", "disk/", DISK.format("4k", FILL)),
    ),
    "the spec's disk is full": Change(
        ("init", "requirements.txt", "--no-lock", "--output", "disk/spec.toml"),
        *(2, "usage", "disk/spec.toml can't be written", DISK.format("4k", FILL)),
    ),
    "the lock's folder is read-only": Change(
        ("lock", "spec.toml", "--output", "disk/new"), 2, "lock-not-writable", "disk/new", READ_ONLY.format("") + '"$@"'
    ),
    "the environment's folder is read-only": Change(
        ("install", "locks/small", "--prefix", "disk/env", "--python", sys.executable),
        *(2, "usage", "disk/env", READ_ONLY.format("") + '"$@"'),
    ),
    "the spec is read-only": Change(
        ("add", "disk/spec.toml", "big"),
        2,
        "usage",
        "disk/spec.toml",
        READ_ONLY.format("cp spec.toml disk/; ") + '"$@"',
    ),
    "nothing can be written": Change(LOCK, 6, "file-refused", "temporary files", 'ulimit -f 0; "$@"'),
    # The cache
    "the cache is read-only": Change(
        INSTALL, 6, "cache", "disk: Read-only file system", READ_ONLY.format("") + '"$@"', CACHE_ON_DISK
    ),
    "the cache can't be made": Change(
        INSTALL,
        *(6, "cache", "Read-only file system", READ_ONLY.format("") + '"$@"', {"ENVSPEC_CACHE_DIR": "disk/a/b"}),
    ),
    "the cache is a file, lock": Change(LOCK, 6, "cache", "file: Not a directory", environ=CACHE_IS_FILE),
    "the cache is a file, install": Change(INSTALL, 6, "cache", "file: Not a directory", environ=CACHE_IS_FILE),
    "the cache is a file, size": Change(("cache", "size"), 6, "cache", "file: Not a directory", environ=CACHE_IS_FILE),
    "the cache is a link to itself": Change(
        LOCK, 6, "cache", "Too many levels of symbolic links", 'ln -s loop loop; "$@"', {"ENVSPEC_CACHE_DIR": "loop"}
    ),
    "others may write to the cache": Change(
        LOCK, 6, "unsafe-cache", "writable by others", 'mkdir open; chmod 777 open; "$@"', {"ENVSPEC_CACHE_DIR": "open"}
    ),
    "a part of the cache is a file": Change(
        INSTALL, 6, "file-refused", "new-cache/uv", 'mkdir -m 700 new-cache; touch new-cache/uv; "$@"', NEW_CACHE
    ),
    # Limits
    "few open files": Change(LOCK, 6, "too-many-open-files", "limit is 12", 'ulimit -n 12; "$@"', NEW_CACHE),
    # The network
    "nobody listens at the index": Change(
        LOCK, 5, "unreachable", "127.0.0.1:9", environ={"ENVSPEC_DEFAULT_INDEX": "http://127.0.0.1:9/", **NEW_CACHE}
    ),
    "no network but loopback": Change(
        LOCK,
        *(5, "unreachable", "192.0.2.1", 'ip link set lo up || exit 99; "$@"'),
        {"ENVSPEC_DEFAULT_INDEX": "http://192.0.2.1/simple/", "HTTP_PROXY": "", **NEW_CACHE},
        network=False,
    ),
    "the index's host has no address": Change(
        LOCK,
        *(5, "unreachable", "index.invalid"),
        environ={"ENVSPEC_DEFAULT_INDEX": "http://index.invalid/simple/", "HTTP_PROXY": "", **NEW_CACHE},
    ),
    "the proxy does not run": Change(
        LOCK, 5, "network", "index.example", environ={"ENVSPEC_DEFAULT_INDEX": "http://index.example/", **NEW_CACHE}
    ),
    "offline without a cache": Change(
        (*LOCK, "--offline"), 5, "offline-miss", "is not in the cache", environ=NEW_CACHE
    ),
    "offline without files": Change(
        (*INSTALL, "--offline"), 5, "offline-miss", "is not in the cache", environ=NEW_CACHE
    ),
    "the CA bundle is missing": Change(
        LOCK,
        *(2, "usage", "/nowhere/ca.pem"),
        environ={"ENVSPEC_DEFAULT_INDEX": "https://127.0.0.1:9/", "SSL_CERT_FILE": "/nowhere/ca.pem", **NEW_CACHE},
    ),
    "the CA bundle is another file": Change(
        LOCK,
        *(2, "usage", "/etc/passwd: not a bundle"),
        environ={"ENVSPEC_DEFAULT_INDEX": "https://127.0.0.1:9/", "SSL_CERT_FILE": "/etc/passwd", **NEW_CACHE},
    ),
}


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    big = wheel("big", "1.0", files={"big/__init__.py": b"", "big/data.bin": padding(2_000_000)})
    with IndexServer([release("app", "1.0.0", requires=["big"]), File(big)]) as server:
        yield server


@pytest.fixture(scope="module")
def locked(index: IndexServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec and its lock."""
    user = User(tmp_path_factory.mktemp("locked"), index.url)
    user.wants("app", as_of="2026-06-01T00:00:00Z", python="3.11.7")
    user.locked()
    return user.folder


@pytest.fixture
def user(locked: Path, index: IndexServer, tmp_path: Path) -> User:
    shutil.copytree(locked, tmp_path, dirs_exist_ok=True)
    user = User(tmp_path, index.url)
    (tmp_path / "file").write_text("a file")
    (tmp_path / "requirements.txt").write_text("app\n")
    return user


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_machine(name: str, user: User) -> None:
    change = CHANGES[name]
    before = files_of(user)
    ran = in_namespace(user, change.script, *change.words, environ=change.environ, network=change.network)
    assert ran.status == change.status, ran
    if change.code != "output-not-writable":
        assert change.says in refused(ran, change.status)
    assert f"explain-error {change.code}\n" in ran.stderr
    assert change.says in ran.stderr and "\n  hint: " in ran.stderr
    # What was there is as it was, and nothing unfinished is left.
    assert files_of(user) == before
    assert not (user.folder / "env").exists() and not (user.folder / "locks/new").exists()


def files_of(user: User) -> dict[str, bytes]:
    """The lock and the spec."""
    return {**user.files(), "spec": user.spec.read_bytes()}


def test_a_cache_that_must_not_be_written_is_not_needed_to_lock(user: User) -> None:
    ran = in_namespace(user, READ_ONLY.format("") + '"$@"', *LOCK, environ=CACHE_ON_DISK)
    assert ran.status == 0, ran
    assert (user.folder / "locks/new/envspec.lock").read_bytes() == (user.lock / "envspec.lock").read_bytes()


@pytest.mark.parametrize(
    ("script", "environ", "says"),
    [
        ('"$@"', CACHE_IS_FILE, "file: Not a directory"),
        (READ_ONLY.format("") + '"$@"', CACHE_ON_DISK, "disk: Read-only file system"),
    ],
)
def test_doctor_reports_a_cache_that_can_not_be_used(
    script: str, environ: dict[str, str], says: str, user: User
) -> None:
    ran = in_namespace(user, script, "doctor", environ=environ)
    assert ran.status == 6, ran
    [line] = [line for line in ran.stdout.splitlines() if line.split()[:2] == ["missing", "cache"]]
    assert says in " ".join(ran.stdout[ran.stdout.index(line) :].split())
    assert not any(line.split()[1:2] == ["disk"] for line in ran.stdout.splitlines())


#: Signal, exit status, last line.
SIGNALS: Final[dict[str, tuple[signal.Signals, int, str]]] = {
    "Ctrl-C": (signal.SIGINT, 130, "interrupted"),
    "SIGTERM": (signal.SIGTERM, 143, "explain-error terminated"),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_while_it_waits_for_the_network(name: str, user: User, index: IndexServer) -> None:
    number, status, last = SIGNALS[name]
    index.forget()
    index.fail("/files/*", Stall())
    running = user.in_background(INSTALL, {**user.environ, **NEW_CACHE})
    until = time.monotonic() + 60
    while not index.requests and time.monotonic() < until:
        time.sleep(0.01)
    running.child.signal(number)
    ran = running.ends(limit_s=60)
    index.heal()
    assert ran.status == status, ran
    assert ran.stderr.rstrip().endswith(last) and "Traceback" not in ran.stderr
    assert not (user.folder / "env").exists() and not (user.folder / "locks/new").exists()
