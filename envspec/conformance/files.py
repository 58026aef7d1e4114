"""Where a check's process and the suite meet: the files of one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Files:
    """The folder of one check. order: the run's. peaks: of the checks before it. log: what its processes print."""

    folder: Path

    @property
    def order(self) -> Path:
        return self.folder / "order.json"

    @property
    def peaks(self) -> Path:
        return self.folder / "peaks.json"

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"
