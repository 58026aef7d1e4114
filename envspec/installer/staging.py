"""Build beside, rename when whole."""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from envspec.errors import EnvspecError, UsageError
from envspec.installer.types import InstallRequest
from envspec.io.file_locks import is_same_file, try_lock
from envspec.io.files import FULL, make_directories, replace_content, sync_directory

#: envspec's own folder in an environment.
FOLDER: Final = ".envspec"
_FILE: Final = "installed.json"


def record_of(order: InstallRequest) -> dict[str, str]:
    """The record of an environment that is made by `order`."""
    return {
        "name": order.lock.name,
        "platform": order.platform.value,
        "input_sha256": order.lock.input_sha256,
        "lock_sha256": order.lock_sha256,
        "prefix": str(order.prefix),
    }


def write_record(folder: Path, record: dict[str, str]) -> None:
    """Write the record of the environment that lies in `folder`."""
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / FOLDER / _FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_record(prefix: Path) -> dict[str, str] | None:
    """The record of the environment in `prefix`; None where there is none that can be read."""
    try:
        data = json.loads((prefix / FOLDER / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    return {str(key): value for key, value in data.items() if isinstance(value, str)}


_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_POLL_S: Final = 0.1


class PrefixState(Enum):
    """What is in the environment's folder."""

    NOTHING = "nothing"
    SAME = "the same environment"


class PrefixOccupied(UsageError):
    """The environment's folder holds something else."""


class DiskFull(EnvspecError):
    """The disk is full, or will be."""

    exit_code = 6


class CannotCreate(UsageError):
    """The environment's folder can't be made where it is asked for."""


@dataclass(frozen=True, slots=True)
class StagingFolder:
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


def staging_path(prefix: Path) -> Path:
    """Where the environment of `prefix` is built."""
    return prefix.with_name(f".{prefix.name}.envspec-partial")


def inspect_prefix(prefix: Path, wanted: dict[str, str]) -> PrefixState:
    """What is in `prefix`. wanted: the record of what is to be installed.

    Raises:
        Occupied: something that is not to be overwritten.
        CannotMake: a mount point or the current directory, which another folder can't replace.
    """
    try:
        is_empty = not any(prefix.iterdir())
    except FileNotFoundError:
        return PrefixState.NOTHING
    except OSError as fault:
        if fault.errno == errno.ENOTDIR and os.path.lexists(prefix):
            raise _occupied(prefix, "it is a file") from fault
        raise creation_error(prefix, fault) from fault
    if is_empty:
        _refuse_fixed(prefix)
        return PrefixState.NOTHING
    there = read_record(prefix)
    if there == wanted:
        return PrefixState.SAME
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
        raise CannotCreate(
            f"{prefix} is a mount point, and an environment is moved to its place as a whole",
            hint=f"name a folder inside it: --prefix {prefix / 'env'}",
        )
    if _is_here(prefix):
        raise CannotCreate(
            f"{prefix} is the current directory, and another folder is moved to its place",
            hint="run it from another directory, or name a folder inside: --prefix env",
        )


def _is_here(prefix: Path) -> bool:
    try:
        return prefix.samefile(Path.cwd())
    except OSError:
        return False


def _occupied(prefix: Path, why: str) -> PrefixOccupied:
    return PrefixOccupied(
        f"{prefix}: {why}; nothing was changed",
        hint="name a folder that is not there yet, or remove this one first: environments are made anew, never changed",
    )


@contextlib.contextmanager
def staging(prefix: Path, waits: Callable[[], None]) -> Iterator[StagingFolder]:
    """A folder to build the environment of `prefix` in, held against other runs until the end.

    What a killed run left there goes first; what this one leaves there when it does not finish goes last. waits: called
    once if another run holds the folder; it is waited for without an end, since the system lets go of its lock however
    it ends.

    Raises:
        CannotMake: the folder can't be made, or is another user's.
    """
    path = staging_path(prefix)
    made = [folder for folder in prefix.parents if not folder.exists()]
    try:
        make_directories(prefix.parent)
        descriptor = _hold(path, waits)
    except OSError as fault:
        _take_back(made)
        raise creation_error(prefix, fault) from fault
    try:
        _empty(path)
        yield StagingFolder(path, prefix, descriptor)
    except OSError as fault:
        raise creation_error(prefix, fault) from fault
    finally:
        # After the rename nothing of that name is there, and nothing may be removed that another run made since.
        if is_same_file(path, descriptor):
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
            raise CannotCreate(
                f"{path}, where the environment is to be built, belongs to another user",
                hint="have it removed, or choose a folder of your own by --prefix",
            )
        return descriptor

    told = False
    while (descriptor := try_lock(path, opened)) is None:
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


def creation_error(prefix: Path, fault: OSError) -> EnvspecError:
    """The user's message for what the system said while `prefix` was made."""
    if fault.errno in FULL:
        return DiskFull(
            f"no space left while {prefix} was made: {fault.strerror}",
            hint="make room and run the same command again; what was fetched is kept, nothing else is left",
        )
    where = fault.filename or prefix
    if fault.errno in _FORBIDDEN:
        return CannotCreate(
            f"{prefix} can't be made: {where}: {fault.strerror}",
            hint=f"make {prefix.parent} writable, or choose another folder by --prefix",
        )
    if fault.errno in {errno.ENOTDIR, errno.EEXIST}:
        return CannotCreate(
            f"{prefix} can't be made: a part of that path is a file", hint="choose another folder by --prefix"
        )
    return CannotCreate(
        f"{prefix} can't be made: {where}: {fault.strerror or fault}", hint="choose another folder by --prefix"
    )


# The folder's name between slashes, however a shell or a script quotes what stands around it or in it.
_PARTIAL: Final = re.compile(rb"/\.([^/\n\0]{1,400}?)\.envspec-partial")
_MARK: Final = b".envspec-partial"


class NotMovable(EnvspecError):
    """A file has the place where it was built inside, in a form that can't be changed."""


def relocate(site: Path) -> tuple[Path, ...]:
    """Make scripts, links and pyvenv.cfg in `site` name the environment's own folder; the files that changed.

    The rows of RECORD that hold a changed file's hash and size are corrected. Files are replaced, never written to:
    they may be hard links into a cache.

    Raises:
        NotMovable: a program that is no text names the site.
    """
    changed = tuple(path for path in _candidates(site) if _rewrite(path, site))
    for folder in site_packages(site):
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            _correct(record, folder, frozenset(map(os.path.normpath, changed)))
    return changed


def site_packages(site: Path) -> tuple[Path, ...]:
    """The folders that wheels are installed into."""
    return tuple(sorted(path for path in site.glob("lib/python3.*/site-packages") if path.is_dir()))


def _candidates(site: Path) -> Iterator[Path]:
    if (site / "pyvenv.cfg").is_file():
        yield site / "pyvenv.cfg"
    if (site / "bin").is_dir():
        yield from sorted((site / "bin").iterdir())


def _rewrite(path: Path, site: Path) -> bool:
    if path.is_symlink():
        target = path.readlink()
        if target.is_absolute() and target.is_relative_to(site):
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))
        return False
    if not path.is_file():
        return False
    data = path.read_bytes()
    if _MARK not in data:
        return False
    if b"\0" in data:
        raise NotMovable(
            f"bin/{path.name} has the folder where it was built inside, and is no text",
            hint="report this: the package's name and version matter",
        )
    replace_content(path, _PARTIAL.sub(rb"/\1", data))
    return True


def _correct(record: Path, folder: Path, changed: frozenset[str]) -> None:
    rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"))))
    wrong = [row for row in rows if row and os.path.normpath(folder / row[0]) in changed]
    if not wrong:
        return
    for row in wrong:
        data = (folder / row[0]).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        row[1:] = [f"sha256={digest}", str(len(data))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    replace_content(record, text.getvalue().encode())
