"""Atomic writes, foreign files and hashes of trees.

Synced are the spec and the lock, which nothing can make again: they are on the disk before they get their names. All
else follows from them: whoever reads a file of a cache checks it, so that a power cut costs that file, where syncing
would cost every run. `docs/design.md` says how each is checked.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from envspec.errors import UsageError
from envspec.io.file_locks import try_lock

#: No room: another way of writing would not find any either.
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: What systems without fsync for directories answer (some network shares).
_NO_SYNC: Final = frozenset({errno.EBADF, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_MARK: Final = ".envspec-"
_BUFFER: Final = 1 << 20


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write a file under, which becomes `path` when this is left, and goes where that is by a fault."""
    new = _new_name(path)
    try:
        yield new
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_file(path: Path, data: bytes) -> None:
    """Write a small file, with the folders that it is in.

    Raises:
        OSError: it can't be written; what stood there is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        new.write_bytes(data)


def replace_content(path: Path, data: bytes) -> None:
    """Put another file with the same mode where one is. The old one is not written to: it may be a hard link.

    Raises:
        OSError: it can't be written; what stood there is untouched.
    """
    with replacing(path) as new, new.open("xb") as file:
        new.chmod(path.stat().st_mode & 0o7777)
        file.write(data)


def replace_user_file(path: Path, data: bytes) -> None:
    """As `replace_content`, for a file of the user's: synced, and a link stays one while its target is replaced.

    Raises:
        UsageError: the file can't be written; what stood there is untouched.
    """
    real = Path(os.path.realpath(path))
    try:
        with replacing(real) as new, new.open("xb") as file:
            new.chmod(real.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as fault:
        raise UsageError(
            f"{path} can't be written: {fault.strerror}", hint="make it and its folder writable"
        ) from fault


@contextlib.contextmanager
def open_replacing(path: Path) -> Iterator[IO[bytes]]:
    """As `replacing`, for a large file in a folder of the user's: it is held against other processes while it is written.

    What a killed run left is then held by nobody, and `remove_leftovers` takes it away.

    Raises:
        OSError: it can't be written.
    """
    descriptor = None
    while descriptor is None:
        new = _new_name(path)
        # 0666 less the umask: it is a file of the user's as any.
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


def open_untrusted(path: Path) -> IO[bytes]:
    """A file where others may write, a container or an engine: nothing but a file of that folder, and never waiting.

    Raises:
        OSError: there is none, or it is a link, a pipe, a device or a folder.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return os.fdopen(descriptor, "rb")


def read_untrusted(path: Path, most_bytes: int) -> bytes:
    """The whole of such a file.

    Raises:
        OSError: as `open_untrusted`; or it is larger than this.
    """
    with open_untrusted(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return data


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file: the system may take less than it is given, on a disk that is almost full."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def is_unfinished(path: Path) -> bool:
    """Whether a file is one that is written beside its place here, or was when its writer was killed."""
    return path.name.startswith(".") and _MARK in path.name


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what killed runs left of `open_replacing` in a folder. name: of the file that was to be, any where left out."""
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


#: What a build, a test or an editor leaves, and no build reads.
_LEFT: Final = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.egg-info", ".venv", "venv", ".tox", ".nox", "node_modules"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".idea", ".vscode", ".DS_Store"),
)
#: The same at the top alone.
_LEFT_AT_TOP: Final = ("build", "dist")
#: A folder with this is a lock: it follows from the project, and not the other way round.
_OF_LOCKS: Final = "envspec.lock"


def project_files(root: Path) -> Iterator[str]:
    """The files and links below `root`, as paths relative to it with `/`, in order."""
    found: list[str] = []
    for folder, names, files in os.walk(root):
        inner = os.path.relpath(folder, root).replace(os.sep, "/")
        names[:] = [name for name in names if not _is_left(name, inner) and not _is_lock(folder, name)]
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        kept = [name for name in (*files, *links) if not _is_left(name, inner)]
        found += kept if inner == "." else [f"{inner}/{name}" for name in kept]
    yield from sorted(found)


def tree_sha256(root: Path) -> str:
    """SHA-256 (hexadecimal) over the names, contents and rights to run of a project's files; of a file, its content's.

    Raises:
        OSError: a file can't be read.
    """
    if root.is_file():
        return hashlib.sha256(root.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for name in project_files(root):
        path = root / name
        if path.is_symlink():
            kind, content = "link", os.fsencode(path.readlink())
        else:
            kind, content = "runs" if os.access(path, os.X_OK) else "file", path.read_bytes()
        digest.update(f"{kind} {len(content)} {name}\n".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def local_path(address: str, folder: Path) -> Path:
    """Where a local project is: by a `file:` URL, or by a path as seen from the spec's folder."""
    if address.startswith("file:"):
        from urllib.request import url2pathname  # imports email, http and ssl: 15 ms

        return Path(url2pathname(urlsplit(address).path))
    return folder / Path(address).expanduser()


def _is_left(name: str, folder: str) -> bool:
    patterns = (*_LEFT, *_LEFT_AT_TOP) if folder == "." else _LEFT
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_lock(folder: str, name: str) -> bool:
    return Path(folder, name, _OF_LOCKS).exists()
