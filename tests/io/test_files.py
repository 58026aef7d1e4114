"""Files that are written as one step, and what a cache says when it can't be written."""

from __future__ import annotations

import errno
import os
import signal
from multiprocessing import get_context
from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.io.cache import CacheError, JsonCache, as_cache_error
from envspec.io.files import (
    is_unfinished,
    open_replacing,
    remove_leftovers,
    replace_content,
    replace_user_file,
    replacing,
    write_file,
)

FORK = get_context("fork")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_small_file_and_the_folders_that_it_is_in(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "it.json"
    for content in (b"one", b"another"):
        write_file(path, content)
        assert path.read_bytes() == content
        assert names(path.parent) == ["it.json"]


def test_what_is_written_has_its_name_in_the_end_alone(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_text("old")
    with replacing(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
        assert is_unfinished(new) and not is_unfinished(path)
    assert path.read_text() == "new"
    assert names(tmp_path) == ["it"]


def test_a_fault_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_text("old")
    with pytest.raises(KeyError), replacing(path) as new:
        new.write_text("half")
        raise KeyError
    with pytest.raises(KeyError), open_replacing(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["it"]


def test_another_file_with_the_same_mode(tmp_path: Path) -> None:
    path, shared = tmp_path / "it", tmp_path / "of somebody's cache"
    shared.write_text("old")
    shared.chmod(0o751)
    path.hardlink_to(shared)
    replace_content(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"new", 0o751)
    assert shared.read_text() == "old"


def test_a_link_of_the_users_stays_one(tmp_path: Path) -> None:
    spec, link = tmp_path / "spec.toml", tmp_path / "link.toml"
    spec.write_text("old")
    spec.chmod(0o640)
    link.symlink_to(spec.name)
    replace_user_file(link, b"new")
    assert link.is_symlink()
    assert (spec.read_bytes(), spec.stat().st_mode & 0o7777) == (b"new", 0o640)
    with pytest.raises(UsageError, match="written: "):
        replace_user_file(spec / "new.toml", b"")
    replace_user_file(tmp_path / "new" / "spec.toml", b"first")
    assert (tmp_path / "new" / "spec.toml").read_bytes() == b"first"
    assert names(tmp_path) == ["link.toml", "new", "spec.toml"]


def _dies_while_it_writes(path: Path) -> None:
    with open_replacing(path) as file:
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_run_left_is_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    path, other = tmp_path / "image[1].tar", tmp_path / "image1.tar"
    for each in (path, other):
        child = FORK.Process(target=_dies_while_it_writes, args=(each,))
        child.start()
        child.join()
    assert len(names(tmp_path)) == 2 and all(map(is_unfinished, tmp_path.iterdir()))
    with open_replacing(path) as file:
        file.write(b"whole")
        remove_leftovers(tmp_path, path.name)
        assert len(names(tmp_path)) == 2
    assert path.read_bytes() == b"whole"
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [path.name]


def test_notes(tmp_path: Path) -> None:
    notes = JsonCache(tmp_path / "kind")
    assert notes.read("key") is None
    notes.write("key", {"of": ("a", 1)})
    assert notes.read("key") == {"of": ["a", 1]}
    # As after a power cut.
    (tmp_path / "kind" / "key.json").write_bytes(b"")
    assert notes.read("key") is None


def test_notes_that_can_not_be_kept(tmp_path: Path) -> None:
    (tmp_path / "kind").write_text("a file in the way")
    with pytest.raises(CacheError, match="envspec's cache can't be used") as refused:
        JsonCache(tmp_path / "kind").write("key", 1)
    assert refused.value.exit_code == 6
    assert "ENVSPEC_CACHE_DIR" in str(refused.value)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, r"no space left in envspec's cache, .*/cache: No space left on device\n  hint: free space"),
        (errno.EDQUOT, "no space left in envspec's cache"),
        (errno.EROFS, r"envspec's cache can't be used: .*/cache: Read-only file system"),
    ],
)
def test_faults_of_the_cache(tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(CacheError, match=words), as_cache_error(tmp_path / "cache"):
        raise OSError(number, os.strerror(number))


def test_faults_of_something_else_come_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), as_cache_error(tmp_path / "cache"):
        (tmp_path / "wheel").read_bytes()
