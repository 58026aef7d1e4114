"""Hashes of files and bytecode.

Source: PEP 552. Where a hash is kept, Python does not always compare it; a time it always does.
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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Final

from envspec.verifier.types import Drift

#: What is read at once, in bytes.
_CHUNK: Final = 1 << 20
#: Fewer files are taken one by one: a thread that takes several is not to be left with all that are big.
_FEW: Final = 1000
#: No other says enough: whoever wants to can make two files of one MD5 or SHA-1.
STRONG: Final = ("sha256", "sha384", "sha512")


@dataclass(frozen=True)
class Wanted:
    """A file and the hashes of which it must have one: (algorithm, URL-safe base64 without padding).

    path: from the environment's folder, `/` between its parts. size_bytes: what is told of its size; the biggest are
    read first.
    """

    path: str
    hashes: tuple[tuple[str, str], ...]
    size_bytes: int = 0


@dataclass(frozen=True)
class Hashed:
    """What came of a file. drift: None where it is as it should be. size_bytes: how much was read."""

    path: str
    drift: Drift | None
    size_bytes: int = 0
    found: str = ""


def from_hex(digest: str) -> str:
    """A hexadecimal digest as RECORD writes it; empty for what is none."""
    try:
        return base64.urlsafe_b64encode(binascii.unhexlify(digest)).rstrip(b"=").decode()
    except (binascii.Error, ValueError):
        return ""


class Inside:
    """Paths of an environment, none of which leads out of it. root: its folder, without links on its way."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._parents: dict[str, str] = {}

    def place(self, path: str) -> tuple[str, str]:
        """Where a file really is, and where it leads to when that is elsewhere, else nothing.

        Raises:
            OSError: it is not there.
        """
        folder, name = os.path.split(os.path.join(self._root, path))  # noqa: PTH118 (40,000 times)
        real = self._parents.get(folder)
        if real is None:
            real = self._parents[folder] = os.path.realpath(folder)
        file = os.path.join(real, name)  # noqa: PTH118
        if stat.S_ISLNK(os.lstat(file).st_mode):
            file = os.path.realpath(file)
        return file, "" if self.has(file) else file

    def has(self, file: str) -> bool:
        return file.startswith(self._root + os.sep)


def hash_all(wanted: Iterable[Wanted], root: str) -> list[Hashed]:
    """Compare files with their hashes, on all processors; the answers in the order of their paths."""
    ordered = sorted(wanted, key=lambda each: (-each.size_bytes, each.path))
    turns, inside, found = iter(ordered), Inside(root), []
    lock, size = threading.Lock(), 1 if len(ordered) < _FEW else 8

    def take() -> Iterator[Wanted]:
        while True:
            with lock:
                batch = list(islice(turns, size))
            if not batch:
                return
            yield from batch

    def work() -> list[Hashed]:
        buffer = bytearray(_CHUNK)
        return [_compare(each, inside, buffer) for each in take()]

    workers = max(1, min(32, os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        for job in [pool.submit(work) for _ in range(workers)]:
            found += job.result()
    return sorted(found, key=lambda each: each.path)


def _compare(wanted: Wanted, inside: Inside, buffer: bytearray) -> Hashed:
    try:
        file, elsewhere = inside.place(wanted.path)
        if elsewhere:
            return Hashed(wanted.path, Drift.LEADS_OUT, found=elsewhere)
        # Whoever puts a link there in this moment does not lead us out, and a pipe would be waited for for ever.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(file, flags)
    except (FileNotFoundError, NotADirectoryError):
        return Hashed(wanted.path, Drift.FILE_MISSING)
    except OSError as fault:
        return Hashed(wanted.path, Drift.UNREADABLE, found=fault.strerror or str(fault))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Hashed(wanted.path, Drift.UNREADABLE, found="it is no file")
        size, digests = _read(descriptor, {algorithm for algorithm, _ in wanted.hashes}, buffer)
    except OSError as fault:
        return Hashed(wanted.path, Drift.UNREADABLE, found=fault.strerror or str(fault))
    finally:
        os.close(descriptor)
    if any(digests[algorithm] == from_record(digest) for algorithm, digest in wanted.hashes):
        return Hashed(wanted.path, None, size)
    first = wanted.hashes[0][0]
    return Hashed(wanted.path, Drift.CHANGED, size, f"{first}={from_hex(digests[first].hex())}")


def from_record(digest: str) -> bytes:
    """A hash as RECORD writes it; empty for what is none."""
    try:
        return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
    except (binascii.Error, ValueError):
        return b""


def _read(descriptor: int, algorithms: Sequence[str] | set[str], buffer: bytearray) -> tuple[int, dict[str, bytes]]:
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


class Compared(Enum):
    """How bytecode was compared with its source."""

    BY_SOURCE = "by source"
    BY_TIME = "by time"
    OTHER_PYTHON = "other Python"
    DIFFERS = "differs"
    WITHOUT_SOURCE = "without source"


def is_bytecode(path: str) -> bool:
    """Whether a path, from an environment's folder on, is of bytecode that Python keeps beside its source."""
    return path.endswith(".pyc") and "/__pycache__/" in path


def source_of(path: Path) -> Path | None:
    """`a/__pycache__/b.cpython-311.opt-1.pyc` -> `a/b.py`; None for what Python would not look for."""
    if path.parent.name != "__pycache__" or not path.name.endswith(".pyc"):
        return None
    return path.parent.parent / f"{path.name.split('.')[0]}.py"


def compare(path: Path) -> Compared:
    """How bytecode goes with its source.

    Raises:
        OSError: it can't be read.
    """
    source = source_of(path)
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if head[:4] != importlib.util.MAGIC_NUMBER or len(head) < _HEADER_BYTES:
        return Compared.OTHER_PYTHON
    if not int.from_bytes(head[4:8], "little") & _CHECKED_BY_HASH:
        return Compared.BY_TIME
    if source is None or not source.is_file():
        # Below __pycache__ it is imported for its source alone.
        return Compared.WITHOUT_SOURCE
    return Compared.BY_SOURCE if importlib.util.source_hash(source.read_bytes()) == head[8:16] else Compared.DIFFERS


def compare_all(paths: Iterable[Path]) -> tuple[Counter[Compared], list[tuple[Path, str]]]:
    """How many were compared in which way, and those that differ or can't be read, with why."""
    counted: Counter[Compared] = Counter()
    wrong: list[tuple[Path, str]] = []
    for path in sorted(paths):
        try:
            how = compare(path)
        except OSError as fault:
            wrong.append((path, fault.strerror or str(fault)))
            continue
        counted[how] += 1
        if how is Compared.DIFFERS:
            wrong.append((path, ""))
    return counted, wrong
