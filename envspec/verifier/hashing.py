"""Hashes of files, and bytecode compared with its source.

Source: PEP 552. Python compares a source hash in bytecode only if a flag is set; a time always.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Final

from envspec.verifier.record import from_hex
from envspec.verifier.types import Drift

#: Bytes per read.
_CHUNK: Final = 1 << 20
#: Fewer files than this are handed out one by one, so that no thread gets all large ones.
_FEW: Final = 1000


@dataclass
class ExpectedFile:
    """A file and its allowed hashes: (algorithm, URL-safe base64 without padding), in the order of the lists.

    path: relative to the environment, separated by `/`. size_bytes: as listed; the largest files are read first.
    """

    path: str
    hashes: dict[tuple[str, str], None]
    size_bytes: int = 0


@dataclass(frozen=True)
class HashedFile:
    """drift: None if a hash is the expected one. size_bytes: how much was read. link: its target if it is a link."""

    path: str
    drift: Drift | None
    size_bytes: int = 0
    found: str = ""
    link: str = ""


def from_record(digest: str) -> bytes:
    """A hash in RECORD's form; empty if it is invalid."""
    try:
        return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
    except (binascii.Error, ValueError):
        return b""


def _resolve(path: str, root: str, parent_of: Callable[[str], str]) -> tuple[str, bool, str]:
    """The real path of a file, whether it is in the environment, and its target if it is a link.

    parent_of: gives the real path of a folder.

    Raises:
        OSError: it does not exist.
    """
    folder, name = os.path.split(os.path.join(root, path))  # noqa: PTH118 (40,000 times)
    file = os.path.join(parent_of(folder), name)  # noqa: PTH118
    link = ""
    if stat.S_ISLNK(os.lstat(file).st_mode):
        link = os.readlink(file)  # noqa: PTH115 (of a string)
        file = os.path.realpath(file)
    return file, file.startswith(root + os.sep), link


def hash_all(expected: Iterable[ExpectedFile], root: str) -> list[HashedFile]:
    """Compare files with their hashes, on all processors; sorted by path. root: the environment's real path."""
    files = sorted(expected, key=lambda each: (-each.size_bytes, each.path))
    queue, resolve = iter(files), partial(_resolve, root=root, parent_of=cache(os.path.realpath))
    lock, size = threading.Lock(), 1 if len(files) < _FEW else 8

    def take() -> Iterator[ExpectedFile]:
        while True:
            with lock:
                batch = list(islice(queue, size))
            if not batch:
                return
            yield from batch

    def work() -> list[HashedFile]:
        buffer = bytearray(_CHUNK)
        return [_compare(each, resolve, buffer) for each in take()]

    workers = max(1, min(32, os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(work) for _ in range(workers)]
    hashed: list[HashedFile] = []
    for job in jobs:
        hashed += job.result()
    return sorted(hashed, key=lambda each: each.path)


def _compare(expected: ExpectedFile, resolve: Callable[[str], tuple[str, bool, str]], buffer: bytearray) -> HashedFile:
    descriptor = -1
    try:
        file, is_inside, link = resolve(expected.path)
        if not is_inside:
            return HashedFile(expected.path, Drift.LEADS_OUT, found=file)
        # A link created meanwhile does not lead out, and a pipe does not block.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(file, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return HashedFile(expected.path, Drift.UNREADABLE, found="it is not a regular file")
        size, digests = _read(descriptor, {algorithm for algorithm, _ in expected.hashes}, buffer)
    except (FileNotFoundError, NotADirectoryError):
        return HashedFile(expected.path, Drift.FILE_MISSING)
    except OSError as error:
        return HashedFile(expected.path, Drift.UNREADABLE, found=error.strerror or str(error))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    if any(digests[algorithm] == from_record(digest) for algorithm, digest in expected.hashes):
        return HashedFile(expected.path, None, size, link=link)
    first = next(iter(expected.hashes))[0]
    return HashedFile(expected.path, Drift.CHANGED, size, f"{first}={from_hex(digests[first].hex())}")


def _read(descriptor: int, algorithms: set[str], buffer: bytearray) -> tuple[int, dict[str, bytes]]:
    digests = {name: hashlib.new(name) for name in algorithms}
    view, size = memoryview(buffer), 0
    with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
        while count := file.readinto(view):
            size += count
            for digest in digests.values():
                digest.update(view[:count])
    return size, {name: digest.digest() for name, digest in digests.items()}


_CHECKED_BY_HASH: Final = 0b1
_HEADER_BYTES: Final = 16


class BytecodeState(Enum):
    """How bytecode was compared with its source."""

    BY_SOURCE = "by source"
    BY_TIME = "by time"
    OTHER_PYTHON = "other Python"
    DIFFERS = "differs"
    WITHOUT_SOURCE = "without source"


def is_bytecode(path: str) -> bool:
    """Whether a path, relative to the environment, is bytecode that Python stores beside its source."""
    return path.endswith(".pyc") and os.path.basename(os.path.dirname(path)) == "__pycache__"  # noqa: PTH119, PTH120


def source_of(path: Path) -> Path | None:
    """`a/__pycache__/b.cpython-311.opt-1.pyc` -> `a/b.py`; None for a path that Python would not read."""
    if path.parent.name != "__pycache__" or not path.name.endswith(".pyc"):
        return None
    return path.parent.parent / f"{path.name.split('.')[0]}.py"


def _compare_bytecode(path: Path) -> BytecodeState:
    source = source_of(path)
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if head[:4] != importlib.util.MAGIC_NUMBER or len(head) < _HEADER_BYTES:
        return BytecodeState.OTHER_PYTHON
    if not int.from_bytes(head[4:8], "little") & _CHECKED_BY_HASH:
        return BytecodeState.BY_TIME
    if source is None or not source.is_file():
        # Python does not import it: below __pycache__ it needs its source.
        return BytecodeState.WITHOUT_SOURCE
    if importlib.util.source_hash(source.read_bytes()) == head[8:16]:
        return BytecodeState.BY_SOURCE
    return BytecodeState.DIFFERS


def compare_bytecode(paths: Iterable[Path]) -> tuple[Counter[BytecodeState], list[tuple[Path, str]]]:
    """How many files were compared in which way; those that differ ("") or can't be read, with the reason."""
    counts: Counter[BytecodeState] = Counter()
    wrong: list[tuple[Path, str]] = []
    for path in sorted(paths):
        try:
            how = _compare_bytecode(path)
        except OSError as error:
            wrong.append((path, error.strerror or str(error)))
            continue
        counts[how] += 1
        if how is BytecodeState.DIFFERS:
            wrong.append((path, ""))
    return counts, wrong
