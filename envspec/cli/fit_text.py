"""The report of `envspec fit` as text for a terminal, and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Final

from envspec.diagnostics.fit import FitFinding, FitReport, FitVerdict
from envspec.diagnostics.machine import Machine, MachineSource

_CONCLUSIONS: Final = {
    FitVerdict.FITS: "{machine} can run {lock}",
    FitVerdict.DOES_NOT_FIT: "{machine} can't run {lock}",
    FitVerdict.UNKNOWN: "nobody can tell whether {machine} runs {lock}",
}


def as_text(report: FitReport, width: int = 100) -> str:
    """The verdict, the machine, every finding and what to change; at most `width` wide; ends with a line feed."""
    name = "this machine" if report.machine.source is MachineSource.READ else "the machine described"
    lines = [
        *textwrap.wrap(_CONCLUSIONS[report.verdict].format(machine=name, lock=report.lock), width),
        *_hanging("  ", _machine(report.machine), width),
        "",
        *_findings(report.findings, width),
    ]
    for place, change in enumerate(_changes(report)):
        lines += ["", *_hanging("smallest change: " if place == 0 else "", change, width)]
    return "\n".join(lines) + "\n"


def as_json(report: FitReport) -> str:
    """One object: `lock`, `verdict`, `machine`, `findings`, `change`; ends with a line feed."""
    machine = report.machine
    data = {
        "lock": report.lock,
        "verdict": report.verdict.value,
        "machine": {
            "source": machine.source.value,
            "platform": machine.platform.value,
            "driver": machine.driver,
            "gpus": [
                {
                    "name": gpu.name,
                    "compute_capability": str(gpu.capability) if gpu.capability else None,
                    "memory_mib": gpu.memory_mib,
                }
                for gpu in machine.gpus
            ],
            "problem": machine.problem,
        },
        "findings": [
            {"what": finding.what, "verdict": finding.verdict.value, "why": finding.why, "change": finding.change}
            for finding in report.findings
        ],
        "change": report.change,
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _machine(machine: Machine) -> str:
    read = machine.source is MachineSource.READ
    driver = f"driver {machine.driver}" if machine.driver else "no NVIDIA driver" if read else "any driver"
    counts: dict[str, int] = {}
    for gpu in machine.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    gpus = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return ", ".join((machine.platform.value, driver, *(gpus or ["no NVIDIA GPU" if read else "any GPU"])))


def _findings(findings: Sequence[FitFinding], width: int) -> list[str]:
    """One for each question; eight equal GPUs are told once."""
    told = list(dict.fromkeys(findings))
    verdicts = max(len(finding.verdict.value) for finding in told)
    names = max(len(finding.what) for finding in told)
    return [
        line
        for finding in told
        for line in _hanging(f"  {finding.verdict.value:<{verdicts}}  {finding.what:<{names}}  ", finding.why, width)
    ]


def _changes(report: FitReport) -> list[str]:
    """The report's own, else what the findings ask for."""
    if report.change:
        return [report.change]
    return list(dict.fromkeys(finding.change for finding in report.findings if finding.change))


def _hanging(head: str, text: str, width: int) -> list[str]:
    """`head`, then `text` broken at `width`, its other lines below its first."""
    indent = " " * len(head)
    return textwrap.wrap(
        text,
        width,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
