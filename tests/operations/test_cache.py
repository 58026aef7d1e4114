"""`envspec cache`: sizes, what prune chooses, and that nothing is removed while another envspec runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from envspec.cli.main import run
from envspec.context import Context
from envspec.io.cache import CacheInUse, FolderInUse
from envspec.operations.cache import KINDS, CacheEntry, choose, entries, remove, usage

NOW = datetime(2026, 11, 23, tzinfo=timezone.utc)


def entry(name: str, days: int, size: int = 10, shared: int = 0, kind: str = "archives") -> CacheEntry:
    return CacheEntry(kind, Path(name), size, shared, NOW - timedelta(days=days))


FOUND = [
    entry("new", 1),
    entry("old", 40),
    entry("older", 50, kind="images"),
    entry("in-an-environment", 60, 5, 1000),
]


@pytest.mark.parametrize(
    ("days", "max_bytes", "kinds", "chosen"),
    [
        (None, None, (), ["new", "old", "older", "in-an-environment"]),
        (None, None, ("images",), ["older"]),
        (30, None, (), ["older", "old"]),
        (45, None, (), ["older"]),
        (30, None, ("archives",), ["old"]),
        (None, 35, (), []),
        (None, 34, (), ["older"]),
        (None, 20, (), ["older", "old"]),
        (None, 0, (), ["older", "old", "new"]),
        (45, 25, (), ["older"]),
        (45, 24, (), ["older", "old"]),
        (None, 0, ("images",), ["older"]),
    ],
)
def test_what_is_chosen(days: int | None, max_bytes: int | None, kinds: tuple[str, ...], chosen: list[str]) -> None:
    before = NOW - timedelta(days=days) if days is not None else None
    assert [str(each.path) for each in choose(FOUND, before=before, max_bytes=max_bytes, kinds=kinds)] == chosen


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A wheel, two that are unpacked, of which an environment has links to one, and an unknown folder."""
    root = tmp_path / "cache"
    for name in (
        "archives/00ff/a.whl",
        "uv/archive-v0/used/a.py",
        "uv/archive-v0/idle/b.py",
        "uv/wheels-v7/x",
        "new/y",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * 10_000)
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "a.py").hardlink_to(root / "uv/archive-v0/used/a.py")
    root.chmod(0o700)
    return root


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_sizes_are_those_on_disk_without_what_environments_share(cache: Path) -> None:
    kinds = {each.kind: each for each in usage(entries(cache)).kinds}
    assert {kind: each.entries for kind, each in kinds.items()} == {
        "archives": 1,
        "unpacked": 2,
        "indexes": 1,
        "other": 1,
    }
    assert kinds["unpacked"].shared_bytes == (cache / "uv/archive-v0/used/a.py").stat().st_blocks * 512
    assert kinds.keys() <= KINDS.keys()


def test_prune_keeps_what_is_used(cache: Path, tmp_path: Path) -> None:
    later = datetime.now(timezone.utc) + timedelta(days=1)
    before = files(cache)
    planned = remove(cache, older_than=timedelta(0), kinds=["unpacked"], now=later, dry_run=True)
    assert files(cache) == before
    done = remove(cache, older_than=timedelta(0), kinds=["unpacked"], now=later, dry_run=False)
    assert done == planned
    assert before - files(cache) == {"uv/archive-v0/idle/b.py"}
    remove(cache, older_than=timedelta(days=2), now=later, dry_run=False)
    assert before - files(cache) == {"uv/archive-v0/idle/b.py"}
    remove(cache, now=later, dry_run=False)
    assert files(cache) == set()
    assert (tmp_path / "env" / "a.py").read_bytes() == b"x" * 10_000


def test_what_another_version_stored_of_indexes_is_an_entry_of_its_own(cache: Path) -> None:
    for name in ("v3.sqlite", "v4/store.sqlite", "v4/store.sqlite-wal"):
        path = cache / "index" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10_000)
    found = [each for each in entries(cache) if each.path.is_relative_to(cache / "index")]
    assert [(each.kind, each.path.name) for each in found] == [("indexes", "v3.sqlite"), ("indexes", "v4")]


def test_a_folder_without_write_permission_is_removed(cache: Path) -> None:
    (cache / "uv/archive-v0/idle").chmod(0o555)
    remove(cache, now=NOW, dry_run=False)
    assert files(cache) == set()


@pytest.mark.skipif(sys.platform == "win32", reason="flock is POSIX's")
def test_nothing_is_removed_while_another_envspec_runs(cache: Path) -> None:
    environ = {"ENVSPEC_CACHE_DIR": str(cache), "HOME": str(cache.parent)}
    code = "import sys; from envspec.context import Context; c = Context.from_environment(); print('on'); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "on\n"
        with pytest.raises(CacheInUse):
            remove(cache, now=NOW, dry_run=False)
        other.communicate("\n")
    context = Context.from_environment(environ)
    with pytest.raises(CacheInUse):
        remove(cache, now=NOW, dry_run=False)
    assert len(files(cache)) == 5
    del context
    assert remove(cache, now=NOW, dry_run=False).kept.kinds == ()


@pytest.mark.skipif(sys.platform == "win32", reason="flock is POSIX's")
def test_what_a_container_compiles_into_is_kept(cache: Path) -> None:
    for name in ("one", "two"):
        (cache / "compiled" / name).mkdir(parents=True)
    in_use = FolderInUse(cache / "compiled" / "one")
    done = remove(cache, now=NOW, dry_run=False)
    assert [path.name for path in (cache / "compiled").iterdir()] == ["one"]
    assert done.failed == (f"{cache}/compiled/one: a container uses it",)
    in_use.end()


def test_the_command(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ENVSPEC_CACHE_DIR", str(cache))
    assert run(["cache", "prune", "--max-size", "0", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would remove ")
    assert run(["cache", "prune", "--older-than", "soon"]) == 2
    assert "--older-than soon: not an age" in capsys.readouterr().err
    assert run(["cache", "clear", "archives", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in found["removed"]] == ["archives"]
    assert run(["cache", "size", "--format", "json"]) == 0
    sizes = json.loads(capsys.readouterr().out)
    assert sizes["size_bytes"] == found["size_bytes"] == sum(each["size_bytes"] for each in sizes["kinds"])
