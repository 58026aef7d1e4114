"""A lock's folder: finding it, reading it, and writing all of its files as one step.

A new folder is written beside the old one, and the two are exchanged by one system call: whoever kills a run at any
moment leaves the old lock or the new one. If that is impossible (a mount point, the current directory, folders of the
user's inside, no such call), each file is renamed to its place, envspec.lock last. A kill then leaves the old
envspec.lock with some of the new files beside it, which `--check` reports and the next run writes again.

Commands that read nothing but a header import this: what is heavy is imported where it is needed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from envspec.errors import StaleLock, UsageError
from envspec.io.file_locks import try_lock
from envspec.io.files import FULL, make_directories, sync_directory
from envspec.lockfile.header import LOCK_FILE, DamagedLock, verify_checksum
from envspec.names import FILE_NAME
from envspec.spec.owner import LOCKS
from envspec.verifier.regular import read_regular

if TYPE_CHECKING:
    from envspec.models import Lock

#: Swaps two directories of one file system atomically; OSError if that can't be done.
Exchange: TypeAlias = Callable[[Path, Path], None]
#: A lock, its folder, its `envspec.lock`, or a name under `locks/`.
NamedLock: TypeAlias = "Lock | str | Path"

# The first bytes of every file that envspec makes contain this.
_SIGNATURE: Final = b"written by `envspec"
_SIGNED_WITHIN: Final = 400
_POLL_S: Final = 0.01
# linux/fcntl.h and linux/fs.h; glibc has renameat2 since 2.28, kernels since 3.15.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LockNotWritable(UsageError, code="lock-not-writable"):
    """The lock's folder can't be written; what was there is untouched."""


def find_lock(argument: str, cwd: Path) -> Path:
    """The folder that LOCK names: a folder, its `envspec.lock`, or a name under `locks/`.

    Raises:
        UsageError: no such lock; names those that look alike.
    """
    given = Path(argument)
    folder = given.parent if given.name == LOCK_FILE else given
    for candidate in (folder, Path(LOCKS) / argument):
        if (cwd / candidate / LOCK_FILE).is_file():
            return cwd / candidate
    if (cwd / given).is_file():
        raise _not_a_lock(argument, cwd)
    problem = f"there is no lock {argument}"
    hint = _other_locks(given.name, names_of_locks(cwd))
    if (cwd / given).is_dir():
        problem = f"there is no {LOCK_FILE} in {argument}"
        if found := foreign_locks(cwd / given):
            hint = f"name the file: {' or '.join((given / name).as_posix() for name in found)}"
    elif _is_missing_foreign(given):
        hint = f"write it with the tool that {given.name} is of"
        if above := _above(cwd / given):
            hint = f"name that of the workspace: {os.path.relpath(above, cwd.resolve())}"
    raise UsageError(problem, hint=hint)


def _is_missing_foreign(given: Path) -> bool:
    from envspec.adopt import is_foreign

    return given.name != LOCK_FILE and is_foreign(given)


def _above(path: Path) -> Path | None:
    """The nearest file of a path's name in the folders above it."""
    for folder in path.resolve().parent.parents:
        if (folder / path.name).is_file():
            return folder / path.name
    return None


def foreign_locks(folder: Path) -> list[str]:
    """The names of locks of other tools in a folder; of a requirements file, only its content would show it."""
    from envspec.adopt import is_foreign

    return sorted(path.name for path in folder.iterdir() if path.suffix != ".txt" and is_foreign(path))


def named_lock(lock: NamedLock) -> Lock:
    """The lock itself, or the one in the folder that `find_lock` finds; raises as that and `read_lock`."""
    return read_lock(find_lock(str(lock), Path())) if isinstance(lock, (str, Path)) else lock


def _not_a_lock(argument: str, cwd: Path) -> UsageError:
    from envspec.adopt import is_foreign
    from envspec.spec.document import read_spec

    if is_foreign(Path(argument)) and not argument.endswith(".txt"):
        return UsageError(
            f"{argument} is a lock of another tool, and envspec's own locks are needed here",
            hint=f'write one: a spec with `from = "{Path(argument).name}"` in [pip], and `envspec lock`',
        )
    hint = (
        f"name a folder with an {LOCK_FILE}, a name under {LOCKS}/, or a uv.lock, pylock.toml, poetry.lock, pixi.lock, "
        "conda-lock.yml or requirements.txt with hashes, which other tools export"
    )
    try:
        name = str(read_spec(cwd / argument)["env"]["name"])
    except (OSError, ValueError, LookupError, TypeError):
        return UsageError(f"{argument} is not a lock that envspec reads", hint=hint)
    hint = f"lock it: `envspec lock {argument}`; then name its lock, {name}"
    if name in names_of_locks(cwd):
        hint = f"name its lock: {name}"
    return UsageError(f"{argument} is a spec, not a lock", hint=hint)


def names_of_locks(cwd: Path) -> list[str]:
    """The names under `locks/`, sorted."""
    folder = cwd / LOCKS
    if not folder.is_dir():
        return []
    return sorted(item.name for item in folder.iterdir() if (item / LOCK_FILE).is_file())


def _other_locks(name: str, existing: list[str]) -> str:
    import difflib

    if close := difflib.get_close_matches(name, existing, n=3, cutoff=0.5):
        return f"did you mean {' or '.join(close)}?"
    return f"locks under {LOCKS}/: {', '.join(existing)}" if existing else "`envspec lock SPEC` writes one"


def read_lock(directory: Path, content: bytes | None = None) -> Lock:
    """The lock in a folder.

    content: of its envspec.lock, if that is read already.
    Raises:
        UsageError: there is none, or it can't be read.
        StaleLock: it is not what envspec wrote, or has another format.
    """
    return read_with_digest(directory, content)[0]


def read_with_digest(directory: Path, content: bytes | None = None) -> tuple[Lock, str]:
    """The lock in a folder, and the SHA-256 of its envspec.lock; see `read_lock`."""
    # Imported here: `lock --check` has a small budget.
    from envspec.lockfile.document import load
    from envspec.structs import replace

    document = directory / LOCK_FILE
    try:
        if content is None:
            content = read_current(directory, LOCK_FILE)
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DamagedLock(f"{document} is not text", hint="restore it from version control, or lock again") from error
    except OSError as error:
        raise UsageError(f"{document} can't be read: {error.strerror}", hint="`envspec lock SPEC` writes it") from error
    return replace(load(text, str(document)), directory=directory), hashlib.sha256(content).hexdigest()


def read_current(directory: Path, name: str) -> bytes:
    """The bytes of one file of a lock; OSError if it can't be read."""
    return read_regular(directory / name)


def state(directory: Path, name: str) -> tuple[int, int] | None:
    """A value that is the same until the file is written again; None without the file."""
    try:
        found = (directory / name).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class _FolderChanges(NamedTuple):
    """written: new bytes of the files whose bytes differ. removed: files of the old lock that the new one lacks."""

    written: Mapping[str, bytes]
    removed: frozenset[str] = frozenset()

    def paths(self, directory: Path) -> tuple[Path, ...]:
        return tuple(map(directory.joinpath, sorted((*self.written, *self.removed))))


def write_folder(
    directory: Path, files: Mapping[str, bytes], *, exchange: Exchange | None = None, wait_s: float = 60.0
) -> tuple[Path, ...]:
    """Make `directory` hold `files` (envspec.lock among them) as one step; the paths that changed, sorted.

    Files of the old lock that are not in `files` are removed; the user's own files stay. A file whose bytes are equal
    is left untouched, down to its times; if all are, nothing is written at all.

    exchange: how to swap two directories; by default the system's way.
    wait_s: how long to wait for another run that is writing beside `directory`.
    Raises:
        LockNotWritable: not a folder, not allowed, no space, or another's file in the way. envspec.lock is intact.
        ValueError: a name in `files` that can't be a lock's file.
    """
    for name in files:
        if not FILE_NAME.fits(name):
            raise ValueError(f"not a name for a file of a lock: {name!r}")
    real = Path(os.path.realpath(directory))
    try:
        make_directories(real.parent)
        with _exclusive(real.parent, wait_s):
            _remove_leftovers(real)
            changes = _changes(real, files)
            if changes.written or changes.removed:
                _carry_out(real, changes, exchange or rename_exchange)
    except OSError as error:
        raise _cannot_write(directory, error) from error
    return changes.paths(directory)


def folder_changes(directory: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """The paths that `write_folder` would write or remove; changes nothing.

    Raises:
        LockNotWritable: as `write_folder`.
    """
    try:
        return _changes(Path(os.path.realpath(directory)), files).paths(directory)
    except OSError as error:
        raise _cannot_write(directory, error) from error


def tidy(directory: Path) -> None:
    """Remove what a killed run left of a lock that is complete; does nothing while another run writes there."""
    real = Path(os.path.realpath(directory))
    with contextlib.suppress(OSError, LockNotWritable), _exclusive(real.parent, wait_s=0):
        _remove_leftovers(real)


def rename_exchange(one: Path, other: Path) -> None:
    """Linux's renameat2(RENAME_EXCHANGE). OSError elsewhere, and on file systems without it."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        # Some Pythons are built without it.
        import ctypes

        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, AttributeError) as error:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


def _changes(directory: Path, files: Mapping[str, bytes]) -> _FolderChanges:
    """Compare `files` with what is in `directory`. LockNotWritable if something there is in the way."""
    if not directory.exists():
        return _FolderChanges(files)
    if not directory.is_dir():
        raise LockNotWritable(
            f"{directory} is a file, not a folder", hint="move it away, or choose another folder by `--output DIR`"
        )
    listed = _listed(directory)
    written = {name: data for name, data in files.items() if not _contains(directory / name, data)}
    for name in written:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            raise LockNotWritable(f"{path} is a folder, but the lock has a file of that name", hint="move it away")
        if path.name not in {*listed, LOCK_FILE} and path.exists() and not _is_signed(path):
            raise LockNotWritable(
                f"{path} exists and was not written by envspec",
                hint="move it away, or choose another folder by `--output DIR`",
            )
    removed = frozenset(name for name in listed - files.keys() if _is_file(directory / name))
    return _FolderChanges(written, removed)


def _listed(directory: Path) -> frozenset[str]:
    """The files that the lock in `directory` lists as its own, without envspec.lock itself."""
    document = directory / LOCK_FILE
    if not document.is_file():
        return frozenset()
    try:
        header, _ = verify_checksum(read_regular(document), str(document))
    except StaleLock:
        from envspec.lockfile.export import is_exported

        # A damaged document can't say which files belong to it.
        return frozenset(item.name for item in directory.iterdir() if is_exported(item.name) and _is_signed(item))
    return frozenset(filter(FILE_NAME.fits, header.files))


def _contains(path: Path, data: bytes) -> bool:
    return _is_file(path) and path.stat().st_size == len(data) and path.read_bytes() == data


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_signed(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _SIGNATURE in file.read(_SIGNED_WITHIN)


def _carry_out(directory: Path, changes: _FolderChanges, exchange: Exchange) -> None:
    if not directory.exists():
        with _new_folder(directory.parent, directory.name, changes.written) as new:
            new.rename(directory)
            sync_directory(directory.parent)
        return
    if _is_replaceable(directory):
        try:
            _exchange_folders(directory, changes, exchange)
        except OSError as error:
            if error.errno in FULL:
                raise
        else:
            return
    _rename_files(directory, changes)


def _is_replaceable(directory: Path) -> bool:
    """Whether another folder may take the place of `directory`.

    Not if something depends on that very folder: a mount, this run's own directory, or folders inside (a whole project,
    say), which can't be linked into another.
    """
    if os.path.ismount(directory):
        return False
    with contextlib.suppress(OSError):
        cwd = Path.cwd().resolve()
        if directory == cwd or directory in cwd.parents:
            return False
    with os.scandir(directory) as entries:
        return not any(entry.is_dir(follow_symlinks=False) for entry in entries)


def _exchange_folders(directory: Path, changes: _FolderChanges, exchange: Exchange) -> None:
    """Write a new folder with hard links of the files that stay, and exchange the two. OSError leaves all as it was."""
    with _new_folder(directory.parent, directory.name, changes.written) as new:
        old, own = directory.stat(), new.stat()
        if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
            raise PermissionError(errno.EPERM, "the folder belongs to someone else", str(directory))
        for item in directory.iterdir():
            if item.name not in changes.written and item.name not in changes.removed:
                os.link(item, new / item.name, follow_symlinks=False)
        new.chmod(stat.S_IMODE(old.st_mode))
        sync_directory(new)
        exchange(new, directory)
        sync_directory(directory.parent)
        # `new` is the old folder now. Somebody may have added a file to it, or changed one, at the last moment.
        for item in new.iterdir():
            is_own = item.name in changes.written or item.name in changes.removed
            if not is_own and _is_newer(item, directory / item.name):
                item.replace(directory / item.name)


def _rename_files(directory: Path, changes: _FolderChanges) -> None:
    """Rename each file to its place: envspec.lock, which has the hashes of the others, last."""
    with _new_folder(directory, directory.name, changes.written) as new:
        for name in changes.removed:
            (directory / name).unlink()
        for name in sorted(changes.written, key=lambda name: name == LOCK_FILE):
            (new / name).replace(directory / name)
        sync_directory(directory)


@contextlib.contextmanager
def _new_folder(parent: Path, name: str, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder with files, modes 0755 and 0644 whatever the umask; they are on the disk. It is removed at the end.

    name: of the lock's folder.
    """
    folder = parent / f"{_prefix(name)}{os.urandom(6).hex()}"
    folder.mkdir()
    try:
        folder.chmod(0o755)
        for filename, data in files.items():
            with (folder / filename).open("xb") as file:
                file.write(data)
                (folder / filename).chmod(0o644)
                file.flush()
                os.fsync(file.fileno())
        sync_directory(folder)
        yield folder
    finally:
        _remove(folder)


def _prefix(name: str) -> str:
    """The first characters of the names of folders that are written for a lock's folder."""
    return f".{name}.envspec-new-"


def _remove_leftovers(directory: Path) -> None:
    """Remove the folders of killed runs. Call it while no other run writes."""
    for place in (directory.parent, directory):
        with contextlib.suppress(OSError):
            for folder in place.iterdir():
                if folder.name.startswith(_prefix(directory.name)):
                    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder of files. One that can't be removed now is in nobody's way, and the next run tries again."""
    with contextlib.suppress(OSError):
        for item in folder.iterdir():
            item.unlink()
        folder.rmdir()


def _is_newer(item: Path, other: Path) -> bool:
    try:
        existing = other.lstat()
    except FileNotFoundError:
        return True
    found = item.lstat()
    return not os.path.samestat(found, existing) and found.st_mtime_ns > existing.st_mtime_ns


@contextlib.contextmanager
def _exclusive(directory: Path, wait_s: float) -> Iterator[None]:
    """Hold the directory itself locked against other runs of envspec; the system unlocks it when a run is killed.

    Nothing is locked on systems without such locks (Windows, some network shares): the last run wins there.

    Raises:
        LockNotWritable: another run holds it for longer than `wait_s`.
    """
    descriptor = _lock(directory, time.monotonic() + wait_s)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(directory: Path, until: float) -> int | None:
    while True:
        try:
            descriptor = try_lock(directory, partial(os.open, directory, os.O_RDONLY))
        except (ImportError, OSError):
            return None
        if descriptor is not None:
            return descriptor
        if time.monotonic() >= until:
            raise LockNotWritable(
                f"another run of envspec is writing in {directory}", hint="wait for it to end, then try again"
            )
        time.sleep(_POLL_S)


def _cannot_write(directory: Path, error: OSError) -> LockNotWritable:
    """The user's message for an error of the system while `directory` was written."""
    problem = f"{directory} can't be written: {error.strerror or error}"
    advice = "choose another folder by `--output DIR`"
    if error.errno in FULL:
        problem = f"no space to write the lock into {directory}: {error.strerror}"
        advice = "make room and try again"
    elif error.errno in _FORBIDDEN:
        advice = f"make it writable, or {advice}"
    elif error.errno in {errno.ENOTDIR, errno.EEXIST}:
        problem = f"{directory} can't be a folder: a part of that path is a file"
        advice = f"move the file away, or {advice}"
    return LockNotWritable(problem, hint=f"{advice}; envspec.lock is untouched")
