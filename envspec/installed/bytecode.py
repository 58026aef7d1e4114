"""Bytecode beside its sources: what Python would run instead of a module must have been compiled from it.

Source: PEP 552. Where a hash is kept, Python does not always compare it; a time it always does.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Final

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


def magic_of() -> str:
    """Whose bytecode this Python can compare, for people."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor}"
