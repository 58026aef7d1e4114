"""Which check, line of a receipt and bound has run on which GPU, and which never has: gpu-coverage.md.

    python -m bench.gpu_coverage [--stand-in PYTHON]

GPUs are those of the receipts in docs/measurements/receipts. The lines that a GPU has come from these receipts, and
from a run of all checks on the stand-in for a GPU of the tests, at the sizes of a GPU; --stand-in makes it again, with
the Python of a torch stack (six minutes on two cores), and writes bench/results/gpu-stand-in.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from envspec.conformance.bounds import BOUNDS
from envspec.conformance.checks import CHECKS
from envspec.conformance.results import CheckFinding, Kind
from envspec.receipts.model import Receipt, read

ROOT: Final = Path(__file__).parents[1]
RECEIPTS: Final = ROOT / "docs/measurements/receipts"
STAND_IN: Final = ROOT / "bench/results/gpu-stand-in.json"
PAGE: Final = ROOT / "docs/measurements/gpu-coverage.md"
_HEAD: Final = """\
# Coverage of conformance checks

Which checks, findings and bounds of the [conformance suite](../reference/conformance.md) have run on which GPU.
`python -m bench.gpu_coverage` writes this page from the receipts in [receipts/](receipts/README.md). A line is a
finding of a check on one GPU. The list of lines is from these receipts and from a run on the stand-in for a GPU: torch
2.9 reports a GPU, the suite uses the sizes of a GPU, and the tensors are on the CPU. It shows that a line runs, not
that a GPU computes correctly.
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_coverage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stand-in", type=Path, metavar="PYTHON")
    options = parser.parse_args(words)
    if options.stand_in:
        _write_stand_in(options.stand_in)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page(checks: Iterable[str] = tuple(CHECKS)) -> str:
    """The text of docs/measurements/gpu-coverage.md."""
    from tests.support.machines.cpu_as_gpu import SHORTCUTS

    stand_in: dict[str, Any] = json.loads(STAND_IN.read_text(encoding="utf-8"))
    receipts = [each for each in map(read, sorted(RECEIPTS.glob("*.json"))) if each.device == "cuda"]
    lines = [_HEAD]
    gpus = sorted({gpu.name for each in receipts for gpu in each.machine.gpus})
    lines.append(f"GPUs: {', '.join(gpus) or 'none. No check, line or bound has run on a GPU yet'}.\n")
    lines.append(f"Stand-in: {stand_in['made']}, {stand_in['torch']}.\n")
    lines += ["## Checks and their lines\n", "| check | line | bound | GPUs |", "|---|---|---|---|"]
    seen = [
        (each["check"], CheckFinding(**{**each["finding"], "kind": Kind(each["finding"]["kind"])}))
        for each in stand_in["lines"]
    ]
    for receipt in receipts:
        for ran in receipt.checks:
            seen += [(ran.check, finding) for finding in ran.findings if finding.kind is not Kind.NOT_RUN]
    for check in checks:
        rows: dict[tuple[str, str], None] = {}
        for name, finding in seen:
            if name == check:
                rows[_line(finding.name), _kind(finding)] = None
        if not rows:
            why = _why_no_line(check, stand_in["checks"])
            lines.append(f"| `{check}` | ({why}) | | {_ran(receipts, check, None)} |")
        for line, kind in rows:
            # What the stand-in lacks, and a GPU has run: its lines begin with this one.
            if kind == Kind.NOT_RUN.value and any(other.startswith(f"{line},") for other, _ in rows):
                continue
            lines.append(f"| `{check}` | {line} | {kind} | {_ran(receipts, check, line)} |")
    lines += ["", "## Bounds\n", "| bound | formula, K = 1024 | GPUs |", "|---|---|---|"]
    for name, bound in BOUNDS.items():
        limit = bound(1024)
        used = [each for each in receipts if any(_has(each, name, limit.formula))]
        formula = limit.formula.replace("|", "\\|")
        lines.append(f"| {name} | {formula} | {_names(used)} |")
    lines += ["", "## Shortcuts of the stand-in\n", "| what | how |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in SHORTCUTS.items()]
    return "\n".join(map(str, lines)) + "\n"


def _why_no_line(check: str, ran: Iterable[str]) -> str:
    """Why the stand-in has no line of a check. ran: the checks of its run."""
    return "not supported by the stand-in" if check in ran else "not run yet: `--stand-in`"


def _line(name: str) -> str:
    """A finding's name without its numbers, which depend on the machine: `GPU N, memory`; packages without `-cu12`."""
    common = re.sub(r"-cu\d\d\b", "", name)
    return re.sub(r"\b\d+(\.\d+)?\b", "N", common).replace("|", "\\|")


def _kind(finding: CheckFinding) -> str:
    if finding.kind is Kind.BOUNDED:
        return finding.formula.replace("|", "\\|")
    return str(finding.kind.value)


def _ran(receipts: Iterable[Receipt], check: str, line: str | None) -> str:
    used = [
        each
        for each in receipts
        for found in each.checks
        if found.check == check
        and any(
            line in (None, _line(one.name), _line(re.sub(r"^GPU \d+: ", "", one.name))) and one.kind is not Kind.NOT_RUN
            for one in found.findings
        )
    ]
    return _names(used)


#: First part of a bound's name -> the checks that have it, if it is not the name of one.
_CHECKS_OF: Final = {"distributed": ("ddp", "fsdp"), "loader": ("dataloader",)}


def _has(receipt: Receipt, bound: str, formula: str) -> Iterable[bool]:
    """Whether each finding of a bound's checks has its formula. Not its source: that changes with each measurement."""
    subject = bound.partition(".")[0]
    checks = _CHECKS_OF.get(subject, (subject,))
    return (one.formula == formula for each in receipt.checks if each.check in checks for one in each.findings)


def _names(receipts: Iterable[Receipt]) -> str:
    return ", ".join(sorted({gpu.name for each in receipts for gpu in each.machine.gpus})) or "never"


def _write_stand_in(python: Path) -> None:
    from tests.support.machines import cpu_as_gpu, driver, suite
    from tests.support.machines.stack import spoiled

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = {**driver.made(folder / "driver"), **driver.says(1), **spoiled(folder / "hook", cpu_as_gpu.LOADED)}
        requested = suite.make_request(*CHECKS, device="cuda", limits=dict.fromkeys(CHECKS, 600))
        output = suite.run(python, requested, folder / "run", environ=environ)
    rows: list[dict[str, Any]] = [
        {"check": check, "finding": {"name": each["name"], "kind": each["kind"], "formula": each["formula"]}}
        for check, result in output.results.items()
        for each in result["findings"]
    ]
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    torch = f"torch {output.results['matmul']['ran']['torch']}"
    document = {"made": made, "torch": torch, "checks": list(output.results), "lines": rows}
    STAND_IN.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
