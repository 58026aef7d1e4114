"""Everything that lies in a site-packages folder, links not followed."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Walked:
    """Paths, each with the environment's folder before it.

    files: all but bytecode below `__pycache__`, and links to folders, which are not gone into. bytecode: the rest.
    unreadable: folders, with why.
    """

    files: tuple[str, ...]
    bytecode: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]


def walk(folder: str) -> Walked:
    files: list[str] = []
    bytecode: list[str] = []
    unreadable: list[tuple[str, str]] = []
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        cached = os.path.basename(here) == "__pycache__"  # noqa: PTH119 (30,000 times)
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif cached and entry.name.endswith(".pyc"):
                        bytecode.append(entry.path)
                    elif not cached:
                        files.append(entry.path)
        except OSError as fault:
            unreadable.append((here, fault.strerror or str(fault)))
    return Walked(tuple(files), tuple(bytecode), tuple(unreadable))
