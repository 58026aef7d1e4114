"""Runs the conformance suite in some Python, as it stands in the checkout, and reads what it says."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import envspec.conformance.run
from envspec.conformance.order import Nodes, Order, Start
from envspec.conformance.values import FORMAT

RUN: Final = Path(envspec.conformance.run.__file__)
#: A suite that takes longer has hung: its own limits have failed.
LIMIT_S: Final = 600
#: Every process of a run has the run's folder in this variable.
MARK: Final = "TESTS_SUITE_RUN"


@dataclass(frozen=True)
class Told:
    """What a run of the suite left. results: check -> its object of results.json."""

    status: int
    stderr: str
    document: dict[str, Any]
    results: dict[str, dict[str, Any]]

    def findings(self, check: str) -> dict[str, dict[str, Any]]:
        """name -> finding of a check."""
        return {each["name"]: each for each in self.results[check]["findings"]}


def order(*checks: str, device: str = "cpu", **more: Any) -> dict[str, Any]:
    """An order as envspec writes it; more: further fields."""
    nodes, start = Nodes(), Start()
    return {
        "format": FORMAT,
        "device": device,
        "checks": list(checks),
        "required": [],
        "world_size": None,
        "nodes": {"count": nodes.count, "rank": nodes.rank, "rendezvous": nodes.rendezvous},
        "locked": None,
        "start": vars(start),
        "price_per_hour": None,
        "currency": "",
        "limits": {},
        "seed": Order("cpu", ()).seed,
        **more,
    }


def run(
    python: Path,
    asked: Mapping[str, Any],
    folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> Told:
    """Run it to its end. folder: empty. environ: further variables. before: words of a command that starts it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "order.json").write_text(json.dumps(asked), encoding="utf-8")
    results = folder / "results.json"
    command = [*before, str(python), str(RUN), str(folder / "order.json"), str(results)]
    done = subprocess.run(
        command,
        env={**os.environ, **(environ or {}), MARK: str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    document = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    rows = {each["check"]: each for each in document.get("results", [])}
    return Told(done.returncode, done.stderr, document, rows)


def processes(folder: Path) -> set[int]:
    """The processes of a run in `folder`, those that it left too."""
    mark = f"{MARK}={folder}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def left(folder: Path) -> list[str]:
    """The command lines of the processes that a run in `folder` has left; zombies have none and do not count."""
    found = []
    for process in processes(folder):
        with contextlib.suppress(OSError):
            words = Path("/proc", str(process), "cmdline").read_bytes()
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def assert_nothing_left(folder: Path) -> None:
    """No process of a run in `folder` is there any more."""
    assert left(folder) == []
