"""What a rank says, as lines of JSON in a file of its own: gloo prints to stdout, and a killed rank can't answer."""

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
class Task:
    """What every rank of a launch is asked for.

    program: `ddp` or `fsdp`. device: `cuda` or `cpu`. backend: `nccl` or `gloo`. nodes: machines. sharding: `fsdp2` or
    `fsdp1`, where it counts.
    """

    program: str
    device: str
    backend: str
    seed: int
    nodes: int = 1
    sharding: str = ""

    def write(self, folder: Path) -> None:
        """Into the folder of a launch."""
        (folder / "task.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Task:
        """From the folder of a launch."""
        return Task(**json.loads((folder / "task.json").read_text(encoding="utf-8")))


def path_of(folder: Path, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"rank-{rank}.jsonl"


class Words:
    """The writing end. place: the phase that runs now."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self.place = "start"

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the rank's work, timed."""
        self.place = name
        self._say({"begin": name})
        began = time.perf_counter()
        yield
        self._say({"phase": [name, time.perf_counter() - began]})

    def value(self, name: str, value: Any) -> None:
        """Something that the check judges; JSON."""
        self._say({"value": [name, value]})

    def lost(self, nodes: Mapping[int, str]) -> None:
        """The nodes without a sign of life -> what is known of each; in place of what was said of that before."""
        self._say({"lost": {str(node): what for node, what in nodes.items()}})

    def raised(self, text: str) -> None:
        """The last word of a rank that fails."""
        self._say({"raised": text})

    def done(self) -> None:
        """The last word of a rank that has done its work."""
        self._say({"done": True})

    def _say(self, line: dict[str, Any]) -> None:
        # The roll of the nodes speaks from a thread of its own.
        with self._lock:
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()


@dataclass
class Said:
    """The reading end: one rank's words, summed up. place: the last phase that it began. phases: (name, seconds)."""

    rank: int
    place: str = "start"
    phases: list[tuple[str, float]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    raised: str = ""
    lost: dict[int, str] = field(default_factory=dict)
    done: bool = False

    @staticmethod
    def read(folder: Path, rank: int) -> Said:
        """What a rank has said; of one that never began, nothing."""
        said = Said(rank)
        with contextlib.suppress(FileNotFoundError):
            for line in path_of(folder, rank).read_text(encoding="utf-8").splitlines():
                # The last line of a rank that was killed may be cut.
                with contextlib.suppress(ValueError):
                    said._hear(json.loads(line))
        return said

    def _hear(self, line: dict[str, Any]) -> None:
        if "begin" in line:
            self.place = line["begin"]
        elif "phase" in line:
            self.phases.append((line["phase"][0], line["phase"][1]))
        elif "value" in line:
            self.values[line["value"][0]] = line["value"][1]
        elif "raised" in line:
            self.raised = line["raised"]
        elif "lost" in line:
            self.lost = {int(node): what for node, what in line["lost"].items()}
        else:
            self.done = True
