"""What a step takes of memory and disk while it runs, with the engine that works for it. Linux only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from bench.conda_memory import descendants, is_program

_SAMPLE_S: Final = 0.1
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """The peaks while it is entered.

    peak_bytes: of the sum of resident sets of all processes below this one, but for those in `but` and what is below
    them; pages that two share count twice. disk_bytes: what the disk's file system holds more than `from_bytes`,
    without what `apart` says that lies there, too; others who write there count.
    """

    def __init__(self, disk: Path, from_bytes: int, but: frozenset[int], apart: Callable[[], int]) -> None:
        self.peak_bytes = 0
        self.disk_bytes = 0
        self._disk = disk
        self._from_bytes = from_bytes
        self._but = but
        self._apart = apart
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._watcher.join()
        self._look()

    def _watch(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        resident = sum(map(_resident_bytes, descendants(os.getpid(), but=self._but)))
        self.peak_bytes = max(self.peak_bytes, resident)
        held = used_bytes(self._disk) - self._from_bytes - self._apart()
        self.disk_bytes = max(self.disk_bytes, held)


def used_bytes(path: Path) -> int:
    """What the file system at a path holds, blocks that are not yet written with it."""
    about = os.statvfs(path)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process and those children that it waited for have taken."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    try:
        if not is_program(pid):
            return 0
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
