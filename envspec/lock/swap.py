"""Changing several files of a folder by exchanging the whole folder with one written beside it: one step for everyone.

Beside `NAME` stands `.NAME.envspec-*` while that lasts: `ours` lists the names that envspec answers for, `new` is the
folder that is coming, and after the exchange the one that was. Files that envspec does not answer for are in both, as
hard links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from envspec.lock.disk import sync_directory, write_synced
from envspec.lock.names import stage_prefix
from envspec.lock.plan import Plan

#: Swaps two directories of one file system atomically; OSError where that can't be done.
Exchange: TypeAlias = Callable[[Path, Path], None]

# linux/fcntl.h and linux/fs.h; glibc has the function since 2.28, kernels since 3.15.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange(one: Path, other: Path) -> None:
    """Linux's renameat2(RENAME_EXCHANGE). OSError elsewhere, and on file systems without it."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as fault:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from fault
    renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


def create(target: Path, work: Plan) -> None:
    """Put the files of `work` into `target`, which does not exist, by one rename."""
    with _beside(target, work) as new:
        new.chmod(0o755)
        new.rename(target)
    sync_directory(target.parent)


def can_replace(target: Path, work: Plan) -> bool:
    """Whether another folder may take the place of `target`.

    Not where that would pull it from under someone: a mount point, this run's own directory, or a folder that holds
    folders (a whole project, say), which can't be linked into another.
    """
    if os.path.ismount(target):
        return False
    with contextlib.suppress(OSError):
        if target in (here := Path.cwd().resolve()).parents or target == here:
            return False
    with os.scandir(target) as entries:
        return not any(entry.is_dir(follow_symlinks=False) for entry in entries if entry.name not in work.ours)


def replace(target: Path, work: Plan, exchange: Exchange) -> None:
    """Put a folder that holds the files of `work` in the place of `target`. OSError leaves everything as it was."""
    there = target.stat()
    with _beside(target, work) as new:
        mine = new.stat()
        if (mine.st_uid, mine.st_gid) != (there.st_uid, there.st_gid):
            raise PermissionError(errno.EPERM, "the folder belongs to someone else", str(target))
        new.chmod(stat.S_IMODE(there.st_mode))
        with os.scandir(target) as entries:
            for entry in entries:
                if entry.name in work.kept or entry.name not in work.ours:
                    os.link(entry.path, new / entry.name, follow_symlinks=False)
        sync_directory(new)
        exchange(target, new)
    sync_directory(target.parent)


@contextlib.contextmanager
def _beside(target: Path, work: Plan) -> Iterator[Path]:
    """A folder with the files that `work` writes, beside `target`; taken away if what is done with it fails."""
    stage = Path(tempfile.mkdtemp(prefix=stage_prefix(target), dir=target.parent))
    try:
        # Before `new` exists, so that whoever finds `new` knows what in it is whose.
        write_synced(stage / "ours", "\n".join(sorted(work.ours)).encode())
        new = stage / "new"
        new.mkdir()
        for name, data in work.written.items():
            write_synced(new / name, data)
        sync_directory(new)
        yield new
    except BaseException:
        with contextlib.suppress(OSError):
            _discard(stage)
        raise


def clean_up(target: Path) -> None:
    """Take away what stands beside `target` of this run or of a killed one; to be called while no other run writes.

    A file of someone else's that came into the old folder at the last moment moves to the new one.
    """
    with contextlib.suppress(OSError):
        for item in target.parent.iterdir():
            # What can't be taken away now is in nobody's way, and the next run tries again.
            with contextlib.suppress(OSError):
                if item.name.startswith(stage_prefix(target)) and item.is_dir():
                    _keep_foreign(item, target)
                    _discard(item)


def _discard(stage: Path) -> None:
    """Take the folder away, what says whose its files are last: a run may be killed here as well."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(stage / "new")
    shutil.rmtree(stage)


def _keep_foreign(stage: Path, target: Path) -> None:
    old = stage / "new"
    if not old.is_dir() or not target.is_dir():
        return
    ours = frozenset((stage / "ours").read_text(encoding="utf-8").splitlines())
    for item in old.iterdir():
        if item.name not in ours and _is_later(item, target / item.name):
            item.replace(target / item.name)


def _is_later(item: Path, there: Path) -> bool:
    try:
        known = there.lstat()
    except FileNotFoundError:
        return True
    found = item.lstat()
    return not os.path.samestat(found, known) and found.st_mtime_ns > known.st_mtime_ns
