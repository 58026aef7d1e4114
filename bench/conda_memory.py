"""How much of what a child holds is its own: a mapped file counts as resident, and the system can take it back."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

_SAMPLE_S: Final = 0.02
# PF_FORKNOEXEC of Linux, include/linux/sched.h.
_NOT_YET_A_PROGRAM: Final = 0x40


class OwnMemory:
    """The largest sum of anonymous memory in the trees of this process's children, while it is entered. Linux only.

    Children that were there before do not count.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._before: frozenset[int] = frozenset()
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> OwnMemory:
        self._before = frozenset(descendants(os.getpid()))
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            now = descendants(os.getpid(), but=self._before)
            self.peak_bytes = max(self.peak_bytes, sum(map(_own_bytes, now)))


def descendants(pid: int, but: frozenset[int] = frozenset()) -> list[int]:
    """Children, their children and so on; without those in `but`, and what is below them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        try:
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = [int(word) for word in (task / "children").read_text().split()]
                waiting += (new := [child for child in children if child not in but])
                found += new
        except OSError:
            continue
    return found


def is_program(pid: int) -> bool:
    """Whether a process has become a program of its own; until then it shows its parent's memory."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return not int(after_name[6]) & _NOT_YET_A_PROGRAM


def _own_bytes(pid: int) -> int:
    """RssAnon of a process; nothing for one that has ended or is no program yet."""
    try:
        if not is_program(pid):
            return 0
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
