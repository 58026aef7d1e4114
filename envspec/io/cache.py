"""The cache folder, and JSON entries by key.

Some cached data is used unchecked: resolutions, pages, lists, unpacked Pythons, and the caches of uv and rattler. So
the folder must belong to this user and be closed to all others, which a command ensures when it requests the path;
files below it need no mode of their own.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

from msgspec import Meta, Struct, convert, to_builtins
from msgspec.structs import astuple

from envspec.errors import EnvspecError, UnfitMachine
from envspec.io.file_locks import try_lock
from envspec.io.files import FULL, write_file

if TYPE_CHECKING:
    from envspec.models import WheelContent

T = TypeVar("T")
_NOT_PERMITTED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FORBIDDEN: Final = _NOT_PERMITTED | {errno.ENOTDIR, errno.EEXIST}
#: As many links in one path as Linux follows.
_MOST_LINKS: Final = 40
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
#: Has a folder for each image, which its containers write to, as users of their own if the engine maps them.
COMPILED: Final = "compiled"
#: rattler's. Packages set modes of their own, and rattler checks the hash of every file before it links one.
CONDA_PACKAGES: Final = "conda-packages"
#: What was read of base images' layers.
BASE_CONTENTS: Final = "base-contents"
#: The accounts of images, for users of containers.
IMAGE_ACCOUNTS: Final = "image-accounts"


class CacheError(EnvspecError, exit_code=6, code="cache"):
    """The cache can't be written: no space, no permission, a failing disk."""


class CacheFull(CacheError, code="disk-full"):
    """No space is left for the cache."""


def cache_error(folder: Path, error: OSError) -> CacheError:
    """The system's error as envspec's own."""
    if error.errno in FULL:
        return CacheFull(
            f"no space left in envspec's cache, {folder}: {error.strerror}",
            hint="free space, or set ENVSPEC_CACHE_DIR to another folder; finished work is kept",
        )
    advice = "make it readable and writable"
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        advice = "move the file away"
    return CacheError(
        f"envspec's cache can't be used: {error.filename or folder}: {error.strerror or error}",
        hint=f"{advice}, or set ENVSPEC_CACHE_DIR to another folder",
    )


class DamagedCache(EnvspecError, exit_code=5, code="damaged-cache"):
    """A file of the cache was changed or removed after it was written."""


class UnsafeCache(UnfitMachine, code="unsafe-cache"):
    """Other users can have written to the cache, or can replace its folder."""

    def __init__(self, root: Path, what: str, advice: str) -> None:
        super().__init__(
            f"envspec's cache {root} is not safe from other users: {what}",
            hint=f"{advice}; or set ENVSPEC_CACHE_DIR to your own folder, below folders of you and root only",
        )


class CacheInUse(EnvspecError, exit_code=6, code="cache-in-use"):
    """Another process uses the cache, from which something is to be removed."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"another envspec is using the cache, {root}", hint="run the same command again when it has ended"
        )


class FolderInUse:
    """Keeps a folder from `envspec cache` while it exists: a shared lock of the system, which waits for a removal.

    Nothing where the system has no such locks, or if the folder can't be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if sys.platform == "win32":
            return
        import fcntl

        with suppress(OSError):
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def end(self) -> None:
        """Release it; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            self.end()


@contextmanager
def only_user_of(folder: Path) -> Iterator[None]:
    """Lock a folder against every `FolderInUse`, which then waits for the end.

    Raises:
        CacheInUse: another process has it in use.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = try_lock(folder, lambda: os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    if descriptor is None:
        raise CacheInUse(folder)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def as_cache_error(folder: Path) -> Iterator[None]:
    """Turn the system's errors of a full disk or of missing permissions into CacheError; others pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL | _FORBIDDEN:
            raise cache_error(folder, error) from error
        raise


def cache_path(environ: Mapping[str, str]) -> Path:
    """The folder of envspec's caches, which need not exist: `ENVSPEC_CACHE_DIR`, else in the system's cache folder."""
    named = environ.get("ENVSPEC_CACHE_DIR")
    if named:
        return Path(named).absolute()
    # Takes 20 ms, which most commands do not need.
    import platformdirs

    return Path(platformdirs.user_cache_dir("envspec", appauthor=False)).absolute()


def cache_root(environ: Mapping[str, str]) -> Path:
    """The folder of envspec's caches, created if necessary, and closed to other users.

    That it must not be written is no error here: many commands work without it, and others call `cache_problem`.

    Raises:
        UnsafeCache: others can have written to it. CacheError: it is not a folder; no space for it.
    """
    root = cache_path(environ)
    if sys.platform == "win32":
        # A user's profile is closed to others there, and modes have no meaning.
        return root
    try:
        folder, missing = _resolve(root)
        while missing:
            # From the start again: a folder created meanwhile by another process is checked too.
            with suppress(FileExistsError):
                (folder / missing[0]).mkdir(mode=0o755 if len(missing) > 1 else 0o700)
            folder, missing = _resolve(root)
        _close(root, folder)
    except OSError as error:
        if error.errno not in _NOT_PERMITTED:
            raise cache_error(root, error) from error
    return root


def cache_problem(root: Path) -> EnvspecError | None:
    """Why a cache can't be written, or is not safe from other users; nothing is changed."""
    if sys.platform == "win32":
        return None
    try:
        folder, missing = _resolve(root)
        if not missing:
            _check(root, folder, folder.lstat())
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if not os.access(folder, os.W_OK | os.X_OK):
            is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            number = errno.EROFS if is_read_only else errno.EACCES
            raise OSError(number, os.strerror(number), str(folder))
    except UnsafeCache as error:
        return error
    except OSError as error:
        return cache_error(root, error)
    return None


def _resolve(root: Path) -> tuple[Path, list[str]]:
    """The folder that a path resolves to, and the parts of it that do not exist yet.

    Raises:
        UnsafeCache: other users can replace a folder or a link on the way.
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
            parts = list(target.parts)
            if target.is_absolute():
                folder, parts = Path(target.anchor), parts[1:]
            rest = parts + rest[1:]
            continue
        if len(rest) > 1:
            _check_above(root, path, status)
        folder, rest = path, rest[1:]
    return folder, []


def _check_above(root: Path, path: Path, status: os.stat_result) -> None:
    """Refuse a folder above the cache in which other users can rename entries."""
    _check_owner(root, path, status)
    # In a sticky folder users can rename only their own entries.
    if _others_write(path, status) and not status.st_mode & stat.S_ISVTX:
        raise UnsafeCache(
            root,
            f"its parent {path} is writable by others ({_described(status)})",
            f"run `chmod go-w {_quoted(path)}` if nobody else needs to write there",
        )


def _check_owner(root: Path, path: Path, status: os.stat_result) -> None:
    if status.st_uid not in {0, os.geteuid()} and not _is_unmapped(status.st_uid):
        raise UnsafeCache(
            root,
            f"its parent {path} belongs to another user ({_described(status)})",
            f"run `chown {os.geteuid()} {_quoted(path)}` if it should belong to you",
        )


def _check(root: Path, folder: Path, status: os.stat_result) -> None:
    """Refuse a cache that others own, or can have written to."""
    if status.st_uid != os.geteuid():
        raise UnsafeCache(
            root,
            f"{folder} belongs to another user ({_described(status)})",
            f"remove it: `rm -r {_quoted(folder)}`, as that user",
        )
    if _others_write(folder, status):
        raise UnsafeCache(
            root,
            f"{folder} is writable by others ({_described(status)})",
            f"remove it with its contents: `rm -r {_quoted(folder)}`",
        )


def _close(root: Path, folder: Path) -> None:
    """Close a checked cache to others; search one that was readable by others for their files."""
    _check_owner(root, folder, folder.lstat())
    # Nobody else can rename a part of its path: it is still the checked folder.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _check(root, folder, status)
        if not status.st_mode & _OTHERS:
            return
        if found := _entry_of_others(folder):
            raise UnsafeCache(root, found, f"remove it with its contents: `rm -r {_quoted(folder)}`")
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_OTHERS)
        if os.fstat(descriptor).st_mode & _OTHERS:
            raise UnsafeCache(root, f"its disk does not store modes ({_described(status)})", "use a disk that does")
    finally:
        os.close(descriptor)


def _entry_of_others(folder: Path) -> str | None:
    """The first entry of a folder that others own or can have changed, as text."""
    for parent, names, files in os.walk(folder):
        inner = Path(parent).relative_to(folder).parts
        if len(inner) == 2 and inner[0] == COMPILED:
            names.clear()
            continue
        for path in (Path(parent, name) for name in (*names, *files)):
            try:
                status = path.lstat()
            except FileNotFoundError:
                # Removed by another run meanwhile.
                continue
            if status.st_uid != os.geteuid():
                return f"{path} in it belongs to another user ({_described(status)})"
            is_checked = stat.S_ISLNK(status.st_mode) or inner[:1] == (CONDA_PACKAGES,)
            if not is_checked and _others_write(path, status):
                return f"{path} in it is writable by others ({_described(status)})"
    return None


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def _others_write(path: Path, status: os.stat_result) -> bool:
    """Whether other users can write there; a group with only this user does not count."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid, path)


def _is_private_group(group: int, path: Path) -> bool:
    """Whether a group has only this user, and `path` has no ACL."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        members = set(grp.getgrgid(group).gr_mem)
        members.update(each.pw_name for each in pwd.getpwall() if each.pw_gid == group)
    except KeyError:
        return False
    attributes: list[str] = []
    if sys.platform == "linux":
        with suppress(OSError):
            attributes = os.listxattr(path, follow_symlinks=False)
    return members == {user.pw_name} and "system.posix_acl_access" not in attributes


def _is_unmapped(user: int) -> bool:
    """Whether a user is not mapped in this user namespace, such as the host's root in a user's sandbox."""
    try:
        mappings = [line.split() for line in Path("/proc/self/uid_map").read_text("ascii").splitlines()]
        unknown = int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
    except (OSError, ValueError):
        return False
    if user != unknown:
        return False
    return not any(int(first) <= user < int(first) + int(count) for first, _, count in mappings)


def _described(status: os.stat_result) -> str:
    """`owner alice, mode 0755`."""
    import pwd

    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    return f"owner {owner}, mode {stat.S_IMODE(status.st_mode):04o}"


class JsonCache(Struct, frozen=True):
    """JSON values by key, each in a file `<folder>/<key>.json`. Keys are valid file names."""

    folder: Path

    def read(self, key: str) -> Any:
        """The value of `key`; None if there is none, or none that can be read."""
        with suppress(OSError, ValueError):
            return json.loads(self._path(key).read_bytes())
        return None

    def read_as(self, key: str, kind: type[T]) -> T | None:
        """The value as a `kind`; None if there is none, or one of another form."""
        with suppress(ValueError):
            return convert(self.read(key), kind)
        return None

    def write(self, key: str, value: object) -> None:
        """Store a value. Raises CacheError if the cache can't be written."""
        try:
            write_file(self._path(key), json.dumps(to_builtins(value)).encode())
        except OSError as error:
            raise cache_error(self.folder, error) from error

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_Sass: TypeAlias = Annotated[str, Meta(pattern="^sm_[0-9]+[af]?$")]
_Ptx: TypeAlias = Annotated[str, Meta(pattern="^compute_[0-9]+[af]?$")]


def read_wheel_content(cache: Path, sha256: str) -> WheelContent | None:
    """What was read of the ELF files of the wheel with this hash; None if it is not cached.

    A damaged entry counts as none: the value is informational, and the next build writes it again.
    """
    if not _SHA256.fullmatch(sha256):
        return None
    # Most commands use no model.
    from envspec.models import GpuCodeFound, Library, WheelContent

    # Not a GpuCodeFound, whose fields have defaults: any object would be one without GPU code.
    found = JsonCache(cache / "wheel-content" / sha256[:2]).read_as(
        sha256, tuple[tuple[_Sass, ...], tuple[_Ptx, ...], tuple[Library, ...]]
    )
    return WheelContent(GpuCodeFound(*found[:2]), found[2]) if found else None


def write_wheel_content(cache: Path, sha256: str, found: WheelContent) -> None:
    """Cache what was read of a wheel. Raises CacheError if the cache can't be written."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    if read_wheel_content(cache, sha256) != found:
        JsonCache(cache / "wheel-content" / sha256[:2]).write(sha256, (*astuple(found.gpu_code), found.libraries))
