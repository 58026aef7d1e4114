"""Whether a machine can run a lock, and what a machine lacks, as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from envspec.diagnostics.doctor.types import DoctorFinding, FindingState
from envspec.diagnostics.fit import FitFinding, FitReport, FitVerdict
from envspec.diagnostics.machine import Machine, MachineGpu
from envspec.report.format import Row, block, document, hanging, listing, optional, row, text, wrapped

_CONCLUSIONS: Final = {
    FitVerdict.FITS: "{machine} can run {lock}",
    FitVerdict.DOES_NOT_FIT: "{machine} can't run {lock}",
    FitVerdict.UNKNOWN: "it is unknown whether {machine} can run {lock}",
}


def fit_as_text(report: FitReport, width: int) -> str:
    """The verdict, the machine, each different finding once, and what to change."""
    name = "the described machine" if report.machine.is_described else "this machine"
    head = [
        *wrapped(_CONCLUSIONS[report.verdict].format(machine=name, lock=report.lock), width),
        *hanging("  ", _machine(report.machine), width),
    ]
    findings = listing("", dict.fromkeys(map(_fit_finding, report.findings)))
    parts = [text(head, [findings], width)]
    for change in _changes(report):
        parts.append(block(hanging("smallest change: ", change, width)))
    return "\n".join(parts)


def _changes(report: FitReport) -> list[str]:
    """The change that makes the machine fit; if none is known, those of what is missing."""
    if report.change:
        return [report.change]
    missing = [each.change for each in report.findings if each.verdict is not FitVerdict.FITS]
    return list(filter(None, dict.fromkeys(missing)))


def _fit_finding(found: FitFinding) -> Row:
    # What is missing has its change below all findings.
    change = found.change if found.verdict is FitVerdict.FITS else ""
    return row(found.verdict.value, found.what, found.why, notes=[change])


def doctor_as_text(findings: Sequence[DoctorFinding], width: int) -> str:
    """A row for each finding, and below it what to do."""
    rows = []
    for each in findings:
        state = each.state.value
        if each.state is FindingState.NOT_APPLICABLE:
            state = "-"
        rows.append(row(state, each.what, each.found + optional("\n-> {}", each.todo)))
    return text((), [listing("", rows)], width)


def doctor_as_json(findings: Sequence[DoctorFinding]) -> str:
    return document({"findings": findings})


def fit_as_json(report: FitReport) -> str:
    machine = report.machine
    return document(
        {
            "lock": report.lock,
            "verdict": report.verdict,
            "machine": {
                "source": "described" if machine.is_described else "read",
                "platform": machine.platform,
                "driver": machine.driver,
                "gpus": list(map(_fit_gpu, machine.gpus)),
                "problem": machine.problem,
            },
            "findings": report.findings,
            "change": report.change,
        }
    )


def _fit_gpu(gpu: MachineGpu) -> dict[str, object]:
    capability = str(gpu.capability) if gpu.capability else None
    return {"name": gpu.name, "compute_capability": capability, "memory_mib": gpu.memory_mib}


def _machine(machine: Machine) -> str:
    driver, no_gpu = "any driver", "any GPU"
    if not machine.is_described:
        driver, no_gpu = "no NVIDIA driver", "no NVIDIA GPU"
    if machine.driver:
        driver = f"driver {machine.driver}"
    parts = [machine.platform.value, driver]
    for name, count in Counter(gpu.name for gpu in machine.gpus).items():
        parts.append(name if count == 1 else f"{count} x {name}")
    if not machine.gpus:
        parts.append(no_gpu)
    return ", ".join(parts)
