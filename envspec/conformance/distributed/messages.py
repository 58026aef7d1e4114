"""Task and output of a rank, as files: gloo prints to stdout, and a killed rank returns nothing."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class RankTask:
    """What all ranks of a launch run.

    program: `ddp` or `fsdp`. device: `cuda` or `cpu`. backend: `nccl` or `gloo`. nodes: how many machines. sharding:
    `fsdp2` or `fsdp1`, of the program `fsdp`.
    """

    program: str
    device: str
    backend: str
    seed: int
    nodes: int = 1
    sharding: str = ""

    def write(self, folder: Path) -> None:
        (folder / "task.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> RankTask:
        return RankTask(**json.loads((folder / "task.json").read_text(encoding="utf-8")))


def path_of(folder: Path, rank: int) -> Path:
    """The output of a rank."""
    return folder / f"rank-{rank}.jsonl"


class RankLog:
    """Writes a rank's output. current: the phase that runs now."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self.current = "start"

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A timed part of the rank's work."""
        self.current = name
        self.write("begin", name)
        began = time.perf_counter()
        yield
        self.write("phase", [name, time.perf_counter() - began])

    def value(self, name: str, value: Any) -> None:
        """A result for the check; JSON."""
        self.write("value", [name, value])

    def lost(self, nodes: Mapping[int, str]) -> None:
        """The nodes that do not respond -> why; replaces earlier reports."""
        self.write("lost", {str(node): reason for node, reason in nodes.items()})

    def write(self, kind: str, value: Any) -> None:
        # The heartbeat's thread writes too.
        with self._lock:
            self._lines.write(json.dumps({kind: value}) + "\n")
            self._lines.flush()


@dataclass
class RankOutput:
    """The output of one rank. current: the phase that began last. phases: (name, seconds)."""

    rank: int
    current: str = "start"
    phases: list[tuple[str, float]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    raised: str = ""
    lost: dict[int, str] = field(default_factory=dict)
    done: bool = False

    @staticmethod
    def read(folder: Path, rank: int) -> RankOutput:
        """Empty for a rank that never started."""
        output = RankOutput(rank)
        with contextlib.suppress(FileNotFoundError):
            for line in path_of(folder, rank).read_text(encoding="utf-8").splitlines():
                # The last line of a rank that was killed may be cut.
                with contextlib.suppress(ValueError):
                    for kind, value in json.loads(line).items():
                        output._add(kind, value)
        return output

    def _add(self, kind: str, value: Any) -> None:
        if kind == "begin":
            self.current = value
        elif kind == "phase":
            self.phases.append((value[0], value[1]))
        elif kind == "value":
            self.values[value[0]] = value[1]
        elif kind == "raised":
            self.raised = value
        elif kind == "lost":
            self.lost = {int(node): reason for node, reason in value.items()}
        else:
            self.done = True
