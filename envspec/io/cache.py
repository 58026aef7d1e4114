"""The cache folder, and JSON entries by key.

What is in a cache is used without another look where nothing but envspec could have written it: answers of resolvers,
pages, lists, unpacked Pythons, and what uv and rattler keep. So the folder is this user's and closed to all others,
which is seen to once, where a command asks for it; below it, no file needs a mode of its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envspec.errors import EnvspecError, UnfitMachine
from envspec.io.files import FULL, write_file

if TYPE_CHECKING:
    from envspec.models import GpuCodeFound

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})
#: As many links on one way as Linux follows.
_MOST_LINKS: Final = 40
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
#: Holds a folder for each image, which its containers write to, as users of their own where the engine maps them.
COMPILED: Final = "compiled"
#: rattler's. Packages bring modes of their own, and rattler checks the hash of every file before it links one.
CONDA_PACKAGES: Final = "conda-packages"


class CacheError(EnvspecError):
    """The cache can't be written: no space, no permission, a disk that fails. folder: the part of it."""

    exit_code = 6

    def __init__(self, folder: Path, fault: OSError) -> None:
        if fault.errno in FULL:
            super().__init__(
                f"no space left in envspec's cache, {folder}: {fault.strerror}",
                hint="make room, or name another place by ENVSPEC_CACHE_DIR; what was made so far is kept",
            )
            return
        super().__init__(
            f"envspec's cache can't be used: {fault.filename or folder}: {fault.strerror or fault}",
            hint="make it readable and writable, or name another place by ENVSPEC_CACHE_DIR",
        )


class UnsafeCache(UnfitMachine):
    """Other users could have written to the cache, or could put another folder in its place."""

    def __init__(self, root: Path, what: str, advice: str) -> None:
        super().__init__(
            f"envspec's cache {root} is not safe from other users: {what}",
            hint=f"{advice}; or set ENVSPEC_CACHE_DIR to a folder of yours, in folders that only you and root write to",
        )


@contextlib.contextmanager
def as_cache_error(folder: Path) -> Iterator[None]:
    """Turns what the system says of a full disk or of missing rights, while `folder` is written, into CannotKeep.

    Other faults come as they are: what reads and writes much beside the cache meets some that are not the cache's.
    """
    try:
        yield
    except OSError as fault:
        if fault.errno in FULL | _FORBIDDEN:
            raise CacheError(folder, fault) from fault
        raise


def cache_path(environ: Mapping[str, str]) -> Path:
    """Where envspec's caches are or will be: `ENVSPEC_CACHE_DIR`, else the system's own place for caches."""
    named = environ.get("ENVSPEC_CACHE_DIR")
    if named:
        return Path(named).absolute()
    # 20 ms that most commands need not spend
    import platformdirs

    return Path(platformdirs.user_cache_dir("envspec", appauthor=False)).absolute()


def cache_root(environ: Mapping[str, str]) -> Path:
    """The folder of envspec's caches, made where it is not there, and closed to other users.

    One that can't be made is left to whoever writes there: many commands do without.

    Raises:
        OpenCache: others could have written to it. CacheError: no space for it.
    """
    root = cache_path(environ)
    if sys.platform == "win32":
        # Folders of a user's profile are closed to others there, and modes say nothing.
        return root
    try:
        folder, missing = _real(root)
        while missing:
            # Anew from the start: whatever came there meanwhile is looked at like all else.
            with contextlib.suppress(FileExistsError):
                (folder / missing[0]).mkdir(mode=0o755 if len(missing) > 1 else 0o700)
            folder, missing = _real(root)
        _close(root, folder)
    except OSError as fault:
        if fault.errno not in _FORBIDDEN:
            raise CacheError(root, fault) from fault
    return root


def cache_problem(root: Path) -> UnsafeCache | None:
    """What `cache_root` would refuse a cache for; nothing is changed."""
    if sys.platform == "win32":
        return None
    try:
        folder, missing = _real(root)
        if not missing:
            _check(root, folder, folder.lstat())
    except UnsafeCache as fault:
        return fault
    except OSError:
        return None
    return None


def _real(root: Path) -> tuple[Path, list[str]]:
    """The folder that a path leads to by its links, and the parts of it that are not there yet.

    Raises:
        OpenCache: on the way is a folder or a link in whose place other users could put another.
    """
    folder, rest, links = Path(root.anchor), list(root.parts[1:]), 0
    _check_above(root, folder, folder.lstat())
    while rest:
        if rest[0] == "..":
            folder, rest = folder.parent, rest[1:]
            continue
        path = folder / rest[0]
        try:
            status = path.lstat()
        except FileNotFoundError:
            return folder, rest
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            _check_owner(root, path, status)
            target = path.readlink()
            folder = Path(target.anchor) if target.is_absolute() else folder
            rest = [*target.parts[1 if target.is_absolute() else 0 :], *rest[1:]]
            continue
        if len(rest) > 1:
            _check_above(root, path, status)
        folder, rest = path, rest[1:]
    return folder, []


def _check_above(root: Path, path: Path, status: os.stat_result) -> None:
    """Refuse a folder above the cache in which others could rename what is in it."""
    _check_owner(root, path, status)
    # In a sticky folder everybody renames what is theirs alone.
    if _others_write(path, status) and not status.st_mode & stat.S_ISVTX:
        raise UnsafeCache(
            root,
            f"{path}, which it is in, can be written by them ({_told(status)})",
            f"run `chmod go-w {_quoted(path)}` if nobody else has to write there",
        )


def _check_owner(root: Path, path: Path, status: os.stat_result) -> None:
    if status.st_uid not in {0, os.geteuid()} and not _is_unknown(status.st_uid):
        raise UnsafeCache(
            root,
            f"{path}, on the way to it, belongs to another user ({_told(status)})",
            f"run `chown {os.geteuid()} {_quoted(path)}` if it should be yours",
        )


def _check(root: Path, folder: Path, status: os.stat_result) -> None:
    """Refuse a cache that others own, or may have written to before it was closed to them."""
    if status.st_uid != os.geteuid():
        raise UnsafeCache(
            root,
            f"{folder} belongs to another user ({_told(status)})",
            f"remove it: `rm -r {_quoted(folder)}`, as that user",
        )
    if _others_write(folder, status):
        raise UnsafeCache(
            root,
            f"{folder} can be written by them ({_told(status)})",
            f"remove it with all that is in it: `rm -r {_quoted(folder)}`",
        )


def _close(root: Path, folder: Path) -> None:
    """Close a checked cache to others; one that was open to them before is searched for what they left there."""
    _check_owner(root, folder, folder.lstat())
    # Nobody else can rename a part of its path: it is the folder that was found there.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _check(root, folder, status)
        if not status.st_mode & _OTHERS:
            return
        if found := _foreign(folder):
            raise UnsafeCache(root, found, f"remove it with all that is in it: `rm -r {_quoted(folder)}`")
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_OTHERS)
        if os.fstat(descriptor).st_mode & _OTHERS:
            raise UnsafeCache(root, f"its disk keeps no modes ({_told(status)})", "use a disk that does")
    finally:
        os.close(descriptor)


def _foreign(folder: Path) -> str | None:
    """What is in a folder that others put there, or could have changed."""
    for parent, names, files in os.walk(folder):
        inner = Path(parent).relative_to(folder).parts
        if len(inner) == 2 and inner[0] == COMPILED:
            names.clear()
            continue
        for path in (Path(parent, name) for name in (*names, *files)):
            try:
                status = path.lstat()
            except FileNotFoundError:
                # Another run's, which has ended with it.
                continue
            if status.st_uid != os.geteuid():
                return f"{path} in it belongs to another user ({_told(status)})"
            is_checked = stat.S_ISLNK(status.st_mode) or inner[:1] == (CONDA_PACKAGES,)
            if not is_checked and _others_write(path, status):
                return f"{path} in it can be written by them ({_told(status)})"
    return None


def _quoted(path: Path) -> str:
    """A path as a shell takes it."""
    import shlex

    return shlex.quote(str(path))


def _others_write(path: Path, status: os.stat_result) -> bool:
    """Whether other users write there. A group that is its owner's alone is nobody else."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_alone_in(status.st_gid, path)


def _is_alone_in(group: int, path: Path) -> bool:
    """Whether a group has this user alone, as systems make one for each, and `path` has no list of further users."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        members = {*grp.getgrgid(group).gr_mem, *(each.pw_name for each in pwd.getpwall() if each.pw_gid == group)}
    except KeyError:
        return False
    return members == {user.pw_name} and not _has_list(path)


def _has_list(path: Path) -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError):
        return "system.posix_acl_access" in os.listxattr(path, follow_symlinks=False)
    return False


def _is_unknown(user: int) -> bool:
    """Whether a user has no number in this user namespace, as the host's root has none in a sandbox of a user's."""
    try:
        rows = [line.split() for line in Path("/proc/self/uid_map").read_text("ascii").splitlines()]
        unknown = int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
    except (OSError, ValueError):
        return False
    return user == unknown and not any(int(first) <= user < int(first) + int(count) for first, _, count in rows)


def _told(status: os.stat_result) -> str:
    """`owner alice, mode 0755`."""
    import pwd

    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    return f"owner {owner}, mode {stat.S_IMODE(status.st_mode):04o}"


@dataclass(frozen=True, slots=True)
class JsonCache:
    """One kind of them, each in a file of its own: `<folder>/<key>.json`. Keys are names that files can have."""

    folder: Path

    def read(self, key: str) -> Any:
        """What was written last, as JSON gives it back; None where nothing was, or nothing that can be read."""
        with suppress(OSError, ValueError):
            return json.loads(self._path(key).read_bytes())
        return None

    def write(self, key: str, value: object) -> None:
        """Remember a value.

        Raises:
            CannotKeep: the cache can't be written.
        """
        try:
            write_file(self._path(key), json.dumps(value).encode())
        except OSError as fault:
            raise CacheError(self.folder, fault) from fault

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def read_gpu_code(cache: Path, sha256: str) -> GpuCodeFound | None:
    """The GPU code of the wheel with this hash; None where none was found, or nobody has looked.

    What can't be read, or was damaged, counts as not seen: it is for the eye alone, and written anew by the next build.
    """
    # Most commands use no model, and its dataclasses take 10 ms.
    from envspec.models import GpuCodeFound

    try:
        told = _notes(cache, sha256).read(sha256)
        return GpuCodeFound(_names(told["sm"], "sm_"), _names(told["ptx"], "compute_"))
    except (ValueError, KeyError, TypeError):
        return None


def write_gpu_code(cache: Path, sha256: str, found: GpuCodeFound) -> None:
    """Remember it.

    Raises:
        CannotKeep: the cache can't be written.
    """
    if read_gpu_code(cache, sha256) != found:
        _notes(cache, sha256).write(sha256, {"sm": found.sm, "ptx": found.ptx})


def _notes(cache: Path, sha256: str) -> JsonCache:
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    return JsonCache(cache / "gpu-code" / sha256[:2])


def _names(told: object, prefix: str) -> tuple[str, ...]:
    names = told if isinstance(told, list) else []
    if not all(isinstance(name, str) and name.startswith(prefix) for name in names):
        raise ValueError("not a list of architectures")
    return tuple(names)
