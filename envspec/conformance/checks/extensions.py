"""Compiled extensions of torch: one operator of each against plain torch, on every GPU and on the CPU.

Each extension on each device is a process with its own limit: a crash, a hang or a broken CUDA context is the result of
that one alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from envspec.conformance import isolation
from envspec.conformance.bounds import SIZES
from envspec.conformance.checks import limit_of
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.extensions.case import CPU, place
from envspec.conformance.extensions.table import EXTENSIONS
from envspec.conformance.isolation import Overrun
from envspec.conformance.results import Cause, NotRun, dumps

_NAME = "extensions"
#: Of the check's own limit, for all extensions: if each of them hangs, the check still reports it.
_SHARE = 0.8


def check(context: CheckContext) -> None:
    """Raises NotRun if the stack has no extension that the table knows."""
    found = [name for name, each in EXTENSIONS.items() if context.has(each.top, name, *each.packages)]
    if not found:
        raise NotRun(f"no extension is {'in the lock' if context.request.locked else 'installed'}")
    gpus = [str(each.index) for each in context.request.gpus]
    rounds = []
    for name in found:
        rounds += [(name, devices) for devices in _rounds(name, gpus)]
    left_s = _SHARE * limit_of(_NAME, context.request)
    request = context.scratch / "request.json"
    locked = context.request.locked
    # The files of the lock are many, and no case compares them.
    request.write_text(
        dumps(replace(context.request, locked=locked and replace(locked, expected=None))), encoding="utf-8"
    )
    for left, (name, devices) in zip(range(len(rounds), 0, -1), rounds):
        limit_s = round(min(SIZES["extensions.case_s"] * context.request.limit_factor, left_s / left), 1)
        with context.phase(name):
            # In the check's own log at once: the check may end before the case.
            sys.stdout.flush()
            output = sys.stdout.buffer
            processes = {}
            for device in devices:
                folder = _folder(context, name, device)
                processes[device] = isolation.start("--case", request, folder, name, device, output=output)
            ended = isolation.wait(processes.values(), limit_s)
            left_s -= ended.counted_s
            for device, process in processes.items():
                _report(context, name, device, process.returncode, ended.overruns.get(process.pid))


def _rounds(name: str, gpus: list[str]) -> Iterator[list[str]]:
    """Devices that run an extension at the same time; without GPUs, one without code for the CPU is only imported."""
    if gpus:
        yield gpus
    if EXTENSIONS[name].on_cpu or not gpus:
        yield [CPU]


def _folder(context: CheckContext, name: str, device: str) -> Path:
    return context.scratch / f"{name}-{device}"


def _report(context: CheckContext, name: str, device: str, exited: int | None, overrun: Overrun | None) -> None:
    """Add a process's findings to the check's, and how it failed."""
    folder = _folder(context, name, device)
    events = ProcessEvents.read(folder / isolation.EVENTS)
    for finding in events.findings:
        context.write("findings", finding)
    for hint in events.hints:
        context.write("hints", hint)
    for what, version in events.ran.items():
        context.ran(what, version)
    for peak in events.peaks:
        context.peak(peak)
    if events.not_run:
        context.not_run(place(name, device), ": ".join(filter(None, events.not_run)))
        return
    events.findings.clear()
    failed = isolation.failure(events, exited, overrun)
    if failed and failed[0] is Cause.OUT_OF_TIME:
        context.write("raised", [Cause.OUT_OF_TIME, f"{place(name, device)}: {failed[1]}"])
    elif failed:
        context.exact(place(name, device), ok=False, detail=failed[1])
