"""Where an environment is built: a hidden folder beside its own, which one rename puts there when all is done."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from envspec.effects.files import FULL
from envspec.effects.held import is_still, try_hold
from envspec.errors import EnvspecError, UsageError
from envspec.install import record
from envspec.lock.disk import make_directories, sync_directory

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_POLL_S: Final = 0.1


class Found(Enum):
    """What is in the environment's folder."""

    NOTHING = "nothing"
    SAME = "the same environment"


class Occupied(UsageError):
    """The environment's folder holds something else."""


class NoSpace(EnvspecError):
    """The disk is full, or will be."""

    exit_code = 6


class CannotMake(UsageError):
    """The environment's folder can't be made where it is asked for."""


@dataclass(frozen=True, slots=True)
class Site:
    """A folder to build in. descriptor: holds it locked; programs that write there inherit it."""

    path: Path
    prefix: Path
    descriptor: int

    def finish(self) -> None:
        """Put the environment into its own folder, as one step.

        Raises:
            Occupied: something came there meanwhile.
        """
        try:
            self.path.rename(self.prefix)
        except OSError as fault:
            if fault.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise _occupied(self.prefix, "it is not empty any more") from fault
            raise
        sync_directory(self.prefix.parent)


def partial_of(prefix: Path) -> Path:
    """Where the environment of `prefix` is built."""
    return prefix.with_name(f".{prefix.name}.envspec-partial")


def look(prefix: Path, wanted: dict[str, str]) -> Found:
    """What is in `prefix`. wanted: the record of what is to be installed.

    Raises:
        Occupied: something that is not to be overwritten.
        CannotMake: a mount point or the current directory, which another folder can't replace.
    """
    try:
        is_empty = not any(prefix.iterdir())
    except FileNotFoundError:
        return Found.NOTHING
    except OSError as fault:
        if fault.errno == errno.ENOTDIR and os.path.lexists(prefix):
            raise _occupied(prefix, "it is a file") from fault
        raise cannot(prefix, fault) from fault
    if is_empty:
        _refuse_fixed(prefix)
        return Found.NOTHING
    there = record.read(prefix)
    if there == wanted:
        return Found.SAME
    if there is None:
        raise _occupied(prefix, "it is not empty")
    if there.get("prefix") != wanted["prefix"]:
        raise _occupied(prefix, f"it holds an environment that was made for {there.get('prefix')} and moved since")
    if there.get("lock_sha256") != wanted["lock_sha256"]:
        raise _occupied(prefix, f"it holds the environment of another lock ({there.get('name')})")
    raise _occupied(prefix, f"it holds the environment for {there.get('platform')}")


def _refuse_fixed(prefix: Path) -> None:
    """Refuse an empty folder in whose place no other can be moved."""
    if os.path.ismount(prefix):
        raise CannotMake(
            f"{prefix} is a mount point, and an environment is moved to its place as a whole",
            hint=f"name a folder inside it: --prefix {prefix / 'env'}",
        )
    if _is_here(prefix):
        raise CannotMake(
            f"{prefix} is the current directory, and another folder is moved to its place",
            hint="run it from another directory, or name a folder inside: --prefix env",
        )


def _is_here(prefix: Path) -> bool:
    try:
        return prefix.samefile(Path.cwd())
    except OSError:
        return False


def _occupied(prefix: Path, why: str) -> Occupied:
    return Occupied(
        f"{prefix}: {why}; nothing was changed",
        hint="name a folder that is not there yet, or remove this one first: environments are made anew, never changed",
    )


@contextlib.contextmanager
def building(prefix: Path, waits: Callable[[], None]) -> Iterator[Site]:
    """A folder to build the environment of `prefix` in, held against other runs until the end.

    What a killed run left there goes first; what this one leaves there when it does not finish goes last. waits: called
    once if another run holds the folder; it is waited for without an end, since the system lets go of its lock however
    it ends.

    Raises:
        CannotMake: the folder can't be made, or is another user's.
    """
    path = partial_of(prefix)
    made = [folder for folder in prefix.parents if not folder.exists()]
    try:
        make_directories(prefix.parent)
        descriptor = _hold(path, waits)
    except OSError as fault:
        _take_back(made)
        raise cannot(prefix, fault) from fault
    try:
        _empty(path)
        yield Site(path, prefix, descriptor)
    except OSError as fault:
        raise cannot(prefix, fault) from fault
    finally:
        # After the rename nothing of that name is there, and nothing may be removed that another run made since.
        if is_still(path, descriptor):
            _empty(path)
            _take_back([path, *made])
        os.close(descriptor)


def _take_back(folders: Iterable[Path]) -> None:
    """Remove folders that this run made, innermost first; one that has come to hold something stays."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _hold(path: Path, waits: Callable[[], None]) -> int:
    def opened() -> int:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o755)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return opened()
        if os.fstat(descriptor).st_uid != os.geteuid():
            os.close(descriptor)
            raise CannotMake(
                f"{path}, where the environment is to be built, belongs to another user",
                hint="have it removed, or choose a folder of your own by --prefix",
            )
        return descriptor

    told = False
    while (descriptor := try_hold(path, opened)) is None:
        if not told:
            waits()
            told = True
        time.sleep(_POLL_S)
    return descriptor


def _empty(folder: Path) -> None:
    """Remove all that is in `folder`, folders without write permission too."""
    for item in folder.iterdir():
        if item.is_dir() and not item.is_symlink():
            for root, names, _ in os.walk(item):
                for each in (Path(root), *(Path(root, name) for name in names)):
                    if not each.is_symlink() and not os.access(each, os.W_OK | os.X_OK):
                        each.chmod(stat.S_IRWXU)
            shutil.rmtree(item)
        else:
            item.unlink()


def cannot(prefix: Path, fault: OSError) -> EnvspecError:
    """The user's message for what the system said while `prefix` was made."""
    if fault.errno in FULL:
        return NoSpace(
            f"no space left while {prefix} was made: {fault.strerror}",
            hint="make room and run the same command again; what was fetched is kept, nothing else is left",
        )
    where = fault.filename or prefix
    if fault.errno in _FORBIDDEN:
        return CannotMake(
            f"{prefix} can't be made: {where}: {fault.strerror}",
            hint=f"make {prefix.parent} writable, or choose another folder by --prefix",
        )
    if fault.errno in {errno.ENOTDIR, errno.EEXIST}:
        return CannotMake(
            f"{prefix} can't be made: a part of that path is a file", hint="choose another folder by --prefix"
        )
    return CannotMake(
        f"{prefix} can't be made: {where}: {fault.strerror or fault}", hint="choose another folder by --prefix"
    )
