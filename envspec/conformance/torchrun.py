"""torchrun itself, in a process that says in a file which of its ranks failed, and how.

torchrun tells a rank's end by a signal only in its log. Its own function raises that with the exit statuses.
Source: `torch.distributed.elastic.multiprocessing.errors.ChildFailedError`, torch 2.4 to 2.9.
"""

from __future__ import annotations

import importlib
import json
import os
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envspec.conformance.processes import die_with_parent

FAILED = 1


@dataclass(frozen=True)
class Failures:
    """How a torchrun ended. ranks: of those that failed first -> exit status, negative for a signal. raised: what ended
    torchrun itself; empty where nothing did.
    """

    ranks: dict[int, int] = field(default_factory=dict)
    raised: str = ""


def main(parent: int, path: Path, words: list[str]) -> int:
    """Run torchrun. parent: the check's process. path: where the failures go. words: torchrun's, up to its script, to
    whose words this process adds its own number at the end.
    """
    die_with_parent(parent)
    run: Any = importlib.import_module("torch.distributed.run")
    errors: Any = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    try:
        run.main([*words, str(os.getpid()), str(path.parent)])
    except errors.ChildFailedError as error:
        _write(path, Failures(ranks={rank: failure.exitcode for rank, failure in error.failures.items()}))
        return FAILED
    except Exception as error:
        traceback.print_exc()
        _write(path, Failures(raised=f"{type(error).__name__}: {error}"))
        return FAILED
    return 0


def read(path: Path) -> Failures:
    """The failures in a file; none where there is no file, as after a torchrun that was killed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Failures()
    return Failures({int(rank): status for rank, status in data["ranks"].items()}, data["raised"])


def _write(path: Path, failures: Failures) -> None:
    path.write_text(json.dumps(asdict(failures)), encoding="utf-8")
