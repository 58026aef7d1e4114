"""The single file of the conformance suite on releases of torch and Python, with nothing else installed.

    python -m bench.suite_file 2.6:3.9 2.6:3.10 newest:3.13 [--device cpu] [--output FILE]

For each pair, torch:Python, an environment is made with uv and removed afterwards (8 GB of disk). Prints a row of
Markdown for each; exit status 1 if one of them did not pass.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.harness import describe
from envspec.conformance.results import Status
from envspec.errors import EnvspecError
from envspec.operations.fleet import write_suite_file
from envspec.receipts.model import read
from tests.support.machines.stack import interpreter, run_uv

_LIMIT_S: Final = 900
_NEWEST: Final = "newest"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.suite_file", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="+", metavar="TORCH:PYTHON")
    parser.add_argument("--device", default="cpu", choices=("cuda", "cpu"))
    parser.add_argument("--output", type=Path, help="a Markdown file")
    options = parser.parse_args(words)
    facts = describe()
    lines = [
        f"{facts['date']}, {facts['cpu']}, {facts['cores']} cores, `--device {options.device}`.",
        "",
        "| torch | Python | verdict | passed | not run | s |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for pair in options.pairs:
        torch, _, python = pair.partition(":")
        with tempfile.TemporaryDirectory(prefix="envspec-bench-") as folder:
            lines.append(_row(torch, python, options.device, Path(folder)))
        print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if all("| passed |" in line for line in lines[4:]) else 1


def _row(torch: str, series: str, device: str, folder: Path) -> str:
    python = folder / "env/bin/python"
    subprocess.run([interpreter(series), "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    requirement = "torch" if torch == _NEWEST else f"torch=={torch}.*"
    done = run_uv("pip", "install", "--quiet", "--python", str(python), requirement)
    if done.returncode:
        return f"| {torch} | {series} | not installed: {' '.join(done.stderr.split())[-200:]} | | | |"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    began = time.monotonic()
    suite = [python, write_suite_file(folder / "suite.pyz"), "--device", device]
    done = subprocess.run(
        [*map(str, suite), "--report", str(folder / "report")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    seconds = time.monotonic() - began
    try:
        receipt = read(folder / "report")
    except EnvspecError as error:
        return f"| {torch} | {series} | {error.message}; {done.stderr[-200:]} | | | |"
    not_run = [each.check for each in receipt.checks if each.status is Status.NOT_RUN]
    reasons = "; ".join(f"{each.check}: {each.reason}" for each in receipt.checks if each.status is Status.FAILED)
    verdict = receipt.verdict.value if not reasons else f"{receipt.verdict.value}: {' '.join(reasons.split())[:300]}"
    ran = f"{receipt.ran.get('torch')} | {receipt.machine.python}"
    return f"| {ran} | {verdict} | {receipt.summary.checks.passed} | {', '.join(not_run)} | {seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
