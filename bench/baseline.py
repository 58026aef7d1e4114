"""Does `--baseline` pass a machine that is merely busy, and find one that is 15 % slower?

    python -m bench.baseline LOCK --python ENVIRONMENT/bin/python --runs 20 --check matmul --check amp

A quiet run is recorded. Then as many runs as requested, each beside two or three programs that use the CPU for changing
parts of the time, are compared with it: no rate may be worse. At last, on a quiet machine, a run with products that do
15 % more work: one of matmul's rates has to be worse.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.harness import run, table
from tests.support.machines import cpu_as_gpu, driver
from tests.support.machines.stack import spoiled

_LIMIT_S: Final = 900
#: Attempts at a run on a quiet machine, and the median of its spreads at most.
_ATTEMPTS: Final = 20
_SMALL: Final = 0.05
_CHECKS: Final = ("matmul", "amp", "transformer", "memory", "ddp", "dataloader")
#: Uses a core for random parts of short and long periods; ends by itself, or when its parent does.
_HOG: Final = """
import os, random, sys, time
numbers, parent, end = random.Random(sys.argv[1]), os.getppid(), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.getppid() == parent:
    period, part = numbers.choice((0.01, 0.1, 1.0)), numbers.random()
    until = time.monotonic() + part * period
    while time.monotonic() < until:
        pass
    time.sleep((1 - part) * period)
"""
#: Every product of matrices takes 15 % longer, by products of a few rows.
_SLOW: Final = """
product = torch.Tensor.__matmul__
def slow(left, right):
    began = time.perf_counter()
    found = product(left, right)
    end = began + 1.15 * (time.perf_counter() - began)
    while time.perf_counter() < end:
        product(left[:2], right[:, :2])
    return found
import time
torch.Tensor.__matmul__ = slow
"""


def main(words: Sequence[str] | None = None) -> int:
    """1 if a busy run was worse, or if the slower one was not."""
    parser = argparse.ArgumentParser(prog="python -m bench.baseline", description=__doc__)
    parser.add_argument("lock")
    parser.add_argument("--python", type=Path, required=True, help="of an environment that was made from the lock")
    parser.add_argument("--check", action="append", choices=_CHECKS, help=f"default: {', '.join(_CHECKS)}")
    parser.add_argument("--runs", type=int, default=20, help="beside other programs")
    parser.add_argument("--slow", type=int, default=1, help="runs with slower products")
    parser.add_argument("--stand-in", action="store_true", help="as a GPU: a torch that computes its work on the CPU")
    options = parser.parse_args(words)
    rows: list[list[str]] = []
    is_right = True
    with tempfile.TemporaryDirectory(prefix="envspec-bench-") as name:
        folder = Path(name)
        checks = options.check or _CHECKS
        card = {**driver.says(1), **driver.made(folder)} if options.stand_in else {}
        right = {**card, **spoiled(folder / "right", cpu_as_gpu.LOADED if options.stand_in else "pass")}
        slow = {**card, **spoiled(folder / "slow", f"{cpu_as_gpu.LOADED if options.stand_in else ''}{_SLOW}")}
        _quiet(options, folder / "recorded", checks, right)
        baseline = ["--baseline", folder / "recorded"]
        for number in range(options.runs):
            with _busy(2 + number % 2, number):
                found = _conformance(options, folder / f"busy-{number}", checks, right, *baseline)
            rows.append(_row(f"busy, {2 + number % 2} programs", found))
            print(rows[-1], file=sys.stderr, flush=True)
            is_right = is_right and not _worse(found)
        for number in range(options.slow):
            found = _quiet(options, folder / f"slow-{number}", ["matmul"], slow, *baseline)
            rows.append(_row("products 15 % slower", found))
            is_right = is_right and bool(_worse(found))
    print("\n".join(table(["run", "change of the tolerance, %", "rates not measured", "worse"], rows)))
    return 0 if is_right else 1


def _quiet(
    options: argparse.Namespace, path: Path, checks: Sequence[str], environ: Mapping[str, str], *more: Any
) -> Any:
    """The receipt of a run of which no other program took much, in `path`: half of the spreads are small."""
    for _ in range(_ATTEMPTS):
        receipt = _conformance(options, path, checks, environ, *more)
        spreads = [each["spread"] for check in receipt["checks"] for each in check["findings"] if each["spread"]]
        print("spreads:", *(f"{each:.3f}" for each in spreads), file=sys.stderr, flush=True)
        if statistics.median(spreads) < _SMALL:
            return receipt
    raise SystemExit(f"the machine was not quiet in any of {_ATTEMPTS} runs")


def _conformance(
    options: argparse.Namespace, report: Path, checks: Sequence[str], environ: Mapping[str, str], *more: Any
) -> dict[str, Any]:
    """The receipt of a run."""
    command = [sys.executable, "-m", "envspec", "conformance", options.lock, "--local", "--python", options.python]
    command += ["--device", "cuda" if options.stand_in else "cpu", "--report", report, *more]
    command += [word for check in checks for word in ("--check", check)]
    cost = run(command, cwd=Path(), env={**os.environ, "NO_COLOR": "1", **environ}, limit_s=_LIMIT_S)
    receipt = report / "receipt.json"
    if not receipt.exists():
        raise SystemExit(f"no receipt: {cost.output}")
    found: dict[str, Any] = json.loads(receipt.read_text(encoding="utf-8"))
    return found


@contextlib.contextmanager
def _busy(count: int, seed: int) -> Iterator[None]:
    """So many programs beside the block."""
    commands = [[sys.executable, "-c", _HOG, f"{seed} {number}", str(_LIMIT_S)] for number in range(count)]
    hogs = [subprocess.Popen(command) for command in commands]
    time.sleep(0.1)
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def _worse(receipt: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['check']}: {row['name']} {100 * row['change']:+.0f} %, tolerance {100 * row['tolerance']:.0f} %"
        for row in receipt["baseline"]["rows"]
        if row["is_worse"]
    ]


def _row(name: str, receipt: Mapping[str, Any]) -> list[str]:
    compared = [row for row in receipt["baseline"]["rows"] if row["unit"].endswith("/s")]
    changes = ", ".join(f"{100 * row['change']:+.0f} of {100 * row['tolerance']:.0f}" for row in compared)
    missing = str(len(receipt["baseline"]["missing"]))
    return [name, changes, missing, "; ".join(_worse(receipt)) or "none"]


if __name__ == "__main__":
    sys.exit(main())
