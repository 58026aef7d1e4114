"""Atomic writes, foreign files and hashes of trees.

Only the spec and the lock are synced to the disk before they get their names: nothing can generate them again. Cached
files are checked when they are read, so that a power cut costs a file, and no run pays for syncing. See
`docs/explanation/cache.md` for each check.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple
from urllib.parse import urlsplit

from envspec.errors import EnvspecError, UsageError
from envspec.io.file_locks import try_lock
from envspec.verifier.regular import open_regular, read_regular

#: Errors of a full disk.
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Errors of systems without fsync for directories (some network shares).
_NO_SYNC: Final = frozenset({errno.EBADF, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class DiskFull(EnvspecError, exit_code=6, code="disk-full"):
    """No space is left."""


#: How programs in Rust (uv, rattler) and in Python write the number of a system's error, and paths before it.
_ERROR_NUMBER: Final = re.compile(r"\(os error (\d+)\)|\[Errno (\d+)\]")
_QUOTED_PATH: Final = re.compile(r"[`'\"](/[^`'\"]+)[`'\"]")


class SystemFault(NamedTuple):
    """An error of the system in another program's text. path: of the file; empty if the text names none."""

    number: int
    path: str


def system_faults(text: str) -> Iterator[SystemFault]:
    """Those in a text such as "failed to write to file `/a/b`: No space left on device (os error 28)"."""
    for found in _ERROR_NUMBER.finditer(text):
        paths = _QUOTED_PATH.findall(text, 0, found.start())
        yield SystemFault(int(found[1] or found[2]), next(reversed(paths), ""))


_MARK: Final = ".envspec-"
_NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_BUFFER: Final = 1 << 20


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name, which is renamed to `path` at the end, or removed after an error."""
    new = _new_name(path)
    try:
        yield new
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_file(path: Path, data: bytes) -> None:
    """Write a small file atomically, and its folders.

    Raises:
        OSError: it can't be written; the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        new.write_bytes(data)


def replace_content(path: Path, data: bytes) -> None:
    """Replace a file by one with the same mode; the old one, which may be a hard link, is not written to.

    Raises:
        OSError: it can't be written; the old file is untouched.
    """
    with replacing(path) as new, new.open("xb") as file:
        new.chmod(path.stat().st_mode & 0o7777)
        file.write(data)


def replace_user_file(path: Path, data: bytes) -> None:
    """As `replace_content`, for a file of the user's: synced, and a link stays one while its target is replaced. The
    file and its folders need not exist.

    Raises:
        UsageError: the file can't be written; what stood there is untouched.
    """
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        with replacing(real) as new, new.open("xb") as file:
            if real.exists():
                new.chmod(real.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(
            f"{path} can't be written: {error.strerror}", hint="make room, or make it and its folder writable"
        ) from error


@contextlib.contextmanager
def open_replacing(path: Path) -> Iterator[IO[bytes]]:
    """Like `replacing`, for a large file in a folder of the user; locked while it is written.

    `remove_leftovers` removes the unlocked ones of killed runs.

    Raises:
        OSError: it can't be written.
    """
    descriptor = None
    while descriptor is None:
        new = _new_name(path)
        # 0666 minus the umask, like any file of the user.
        descriptor = try_lock(new, partial(os.open, new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    try:
        with os.fdopen(descriptor, "wb", buffering=_BUFFER) as file:
            yield file
            file.flush()
            new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def make_directories(directory: Path) -> None:
    """Create `directory` and its missing parents, mode 0755 whatever the umask."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    # Another run may have made it since.
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        directory.chmod(0o755)
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))


def remove_tree(path: Path) -> None:
    """Remove a folder with its contents, or a file, also in folders without write permission.

    Raises:
        OSError: it can't be removed.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    for root, names, _ in os.walk(path):
        for each in (Path(root), *(Path(root, name) for name in names)):
            if not each.is_symlink() and not os.access(each, os.W_OK | os.X_OK):
                each.chmod(stat.S_IRWXU)
    shutil.rmtree(path)


def sync_directory(directory: Path) -> None:
    """Have the names in `directory` on the disk; nothing on systems that can't (Windows, some network shares)."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as fault:
        if fault.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def read_untrusted(path: Path, most_bytes: int) -> bytes:
    """The content of a file in a folder that containers or engines write to.

    Raises:
        OSError: there is none, or it is a link, a pipe, a device or a folder.
        FileTooLarge: it has more than `most_bytes`.
    """
    return read_regular(path, most_bytes, _NO_LINK)


def write_all(file: IO[bytes], data: bytes | bytearray) -> None:
    """Write to an unbuffered file: on an almost full disk, one call may write a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def is_unfinished(path: Path) -> bool:
    """Whether a file is a temporary one of `replacing`, of a running or killed process."""
    return path.name.startswith(".") and _MARK in path.name


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove temporary files of killed runs of `open_replacing`. name: of the final file, by default any."""
    from glob import escape

    pattern = name if name == "*" else escape(name)
    for left in folder.glob(f".{pattern}{_MARK}*"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = try_lock(left, partial(os.open, left, os.O_RDWR | os.O_CLOEXEC))
            if descriptor is not None:
                left.unlink()
                os.close(descriptor)


def _new_name(path: Path) -> Path:
    return path.with_name(f".{path.name}{_MARK}{os.urandom(6).hex()}")


#: Files of builds, tests and editors, which no build reads.
_GENERATED: Final = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.egg-info", ".venv", "venv", ".tox", ".nox", "node_modules"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".idea", ".vscode", ".DS_Store"),
)
#: The same at the top only.
_GENERATED_AT_TOP: Final = ("build", "dist")
#: A folder with this file is a lock, which depends on the project.
_OF_LOCKS: Final = "envspec.lock"


def project_files(root: Path, start: str = ".") -> Iterator[str]:
    """The files and links below a folder of a project, as paths relative to its root with `/`, in order.

    Raises:
        OSError: a folder can't be read.
    """
    found: list[str] = []
    for folder, names, files in os.walk(root / start, onerror=_raise):
        inner = os.path.relpath(folder, root).replace(os.sep, "/")
        names[:] = [name for name in names if not _is_generated(name, inner)]
        names[:] = [name for name in names if not _is_lock(folder, name)]
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        included = [name for name in (*files, *links) if not _is_generated(name, inner)]
        if inner != ".":
            included = [f"{inner}/{name}" for name in included]
        found += included
    yield from sorted(found)


def _raise(error: OSError) -> None:
    raise error


def tree_sha256(root: Path) -> str:
    """SHA-256 (hexadecimal) over the names, contents and executable bits of a project's files; of a file, its content.

    Raises:
        UsageError: a file can't be read, or is a pipe or a device.
    """
    digest = hashlib.sha256()
    try:
        if root.is_file():
            _add_content(digest, root)
            return digest.hexdigest()
        for name in project_files(root):
            path = root / name
            if path.is_symlink():
                target = os.fsencode(path.readlink())
                digest.update(_head("link", len(target), name) + target)
            else:
                kind = "runs" if os.access(path, os.X_OK) else "file"
                digest.update(_head(kind, path.lstat().st_size, name))
                _add_content(digest, path)
    except OSError as error:
        raise UsageError(
            f"{error.filename or root} can't be read: {error.strerror}",
            hint="make it a readable file, or move it out of the project",
        ) from error
    return digest.hexdigest()


def _head(kind: str, size_bytes: int, name: str) -> bytes:
    return f"{kind} {size_bytes} {name}\n".encode("utf-8", "surrogateescape")


def _add_content(digest: hashlib._Hash, path: Path) -> None:
    with open_regular(path) as file:
        while data := file.read(_BUFFER):
            digest.update(data)


def local_path(address: str, folder: Path) -> Path:
    """The path of a local project: from a `file:` URL, or relative to the spec's folder."""
    if address.startswith("file:"):
        from urllib.request import url2pathname  # imports email, http and ssl: 15 ms

        return Path(url2pathname(urlsplit(address).path))
    return folder / Path(address).expanduser()


def _is_generated(name: str, folder: str) -> bool:
    patterns = (*_GENERATED, *_GENERATED_AT_TOP) if folder == "." else _GENERATED
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_lock(folder: str, name: str) -> bool:
    return Path(folder, name, _OF_LOCKS).exists()
