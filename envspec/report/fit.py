"""Whether a machine can run a lock, as text and JSON."""

from __future__ import annotations

from collections import Counter
from typing import Final

from envspec.diagnostics.fit import FitReport, FitVerdict
from envspec.diagnostics.machine import Machine, MachineSource
from envspec.report.format import document, hanging, listing, row, text, wrapped

_CONCLUSIONS: Final = {
    FitVerdict.FITS: "{machine} can run {lock}",
    FitVerdict.DOES_NOT_FIT: "{machine} can't run {lock}",
    FitVerdict.UNKNOWN: "it is unknown whether {machine} can run {lock}",
}


def as_text(report: FitReport, width: int) -> str:
    """The verdict, the machine, each different finding once, and what to change."""
    name = "this machine" if report.machine.source is MachineSource.READ else "the described machine"
    head = [
        *wrapped(_CONCLUSIONS[report.verdict].format(machine=name, lock=report.lock), width),
        *hanging("  ", _machine(report.machine), width),
    ]
    findings = dict.fromkeys((each.verdict.value, each.what, each.why) for each in report.findings)
    changes = [report.change] if report.change else list(dict.fromkeys(each.change for each in report.findings))
    tables = [listing("", (row(*finding) for finding in findings))]
    return "\n".join(
        [
            text(head, tables, width),
            *(f"{line}\n" for change in filter(None, changes) for line in hanging("smallest change: ", change, width)),
        ]
    )


def as_json(report: FitReport) -> str:
    machine = report.machine
    return document(
        {
            "lock": report.lock,
            "verdict": report.verdict,
            "machine": {
                "source": machine.source,
                "platform": machine.platform,
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
            "findings": report.findings,
            "change": report.change,
        }
    )


def _machine(machine: Machine) -> str:
    read = machine.source is MachineSource.READ
    driver = f"driver {machine.driver}" if machine.driver else "no NVIDIA driver" if read else "any driver"
    counts = Counter(gpu.name for gpu in machine.gpus)
    gpus = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return ", ".join((machine.platform.value, driver, *(gpus or ["no NVIDIA GPU" if read else "any GPU"])))
