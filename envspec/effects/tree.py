"""A project's folder as what is built of it: its files, without what tools leave there. Imports next to nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

#: What a build, a test or an editor leaves, and no build reads.
_LEFT: Final = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.egg-info", ".venv", "venv", ".tox", ".nox", "node_modules"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".idea", ".vscode", ".DS_Store"),
)
#: The same at the top alone.
_LEFT_AT_TOP: Final = ("build", "dist")
#: A folder with this is a lock: it follows from the project, and not the other way round.
_OF_LOCKS: Final = "envspec.lock"


def files_of(root: Path) -> Iterator[str]:
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
    for name in files_of(root):
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
        return Path(url2pathname(urlsplit(address).path))
    return folder / Path(address).expanduser()


def _is_left(name: str, folder: str) -> bool:
    patterns = (*_LEFT, *_LEFT_AT_TOP) if folder == "." else _LEFT
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_lock(folder: str, name: str) -> bool:
    return Path(folder, name, _OF_LOCKS).exists()
