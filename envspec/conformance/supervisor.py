"""Start, time limit and verdict of a check's processes: one, or one for each GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from envspec.conformance import isolation
from envspec.conformance.checks import CHECKS, limit_of
from envspec.conformance.events import EventWriter, ProcessEvents
from envspec.conformance.isolation import Overrun
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import (
    Cause,
    CheckFinding,
    CheckOutcome,
    Fingerprint,
    Kind,
    Level,
    Peak,
    Status,
    dumps,
)

#: Hints if neither the check itself nor its definition has one.
_HINTS = {
    Cause.CRASHED: "see the checks `family` and `lock`: a package that was built for another one crashes like this",
    Cause.OVER_LIMIT: "see the stacks at the end of its log; --limit NAME=SECONDS gives it more time",
    Cause.OUT_OF_TIME: "run it again when the machine does nothing else, or with --limit-factor 4",
    Cause.OUT_OF_MEMORY: "give the machine or the container more memory, or end other programs that use this GPU",
}
_UNKILLABLE = "see the system log, and restart the machine: a process that waits in the kernel ends with its wait only"
_ODD_GPU = "run the suite again: if the same GPU differs, it computes wrong results"
#: Variables that decide whether, and where, Python keeps bytecode.
_BYTECODE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
#: A check is what the worst of its processes is.
_WORST_FIRST = (Status.FAILED, Status.NOT_KNOWN, Status.PASSED, Status.NOT_RUN)
#: Characters of a check's output that the receipt includes, from its end.
LOG_CHARACTERS = 6000


def verdict(name: str, events: ProcessEvents, exited: int | None, overrun: Overrun | None = None) -> CheckOutcome:
    """The outcome of a process of a check, without its times and its log.

    exited: its status, negative for a signal; None if it can't be killed. overrun: if it was ended at its limit.
    """
    status, cause, reason, hint = Status.NOT_RUN, None, "", ""
    failed = isolation.failure(events, exited, overrun)
    if failed:
        cause, reason = failed
        status = Status.NOT_KNOWN if cause is Cause.OUT_OF_TIME else Status.FAILED
        hint = _HINTS.get(cause, "")
        # A check's own hints are about its findings, not about its time limit or memory.
        if cause not in (Cause.OVER_LIMIT, Cause.OUT_OF_TIME, Cause.OUT_OF_MEMORY):
            hint = next(iter(events.hints), CHECKS[name].advice or hint)
    elif events.not_run:
        reason, hint = events.not_run
    elif any(each.ok for each in events.findings):
        status = Status.PASSED
    else:
        reasons = (each.detail for each in events.findings if each.kind is Kind.NOT_RUN)
        reason = next(reasons, "nothing was tested")
    return CheckOutcome(
        name,
        status,
        cause,
        reason,
        hint,
        phases=tuple(events.phases),
        preimports=tuple(events.preimports),
        findings=tuple(events.findings),
        fingerprints=tuple(events.fingerprints),
        ran=events.ran,
        peak=events.peak,
    )


def merged(outcomes: Mapping[int, CheckOutcome]) -> CheckOutcome:
    """The outcome of a check from those of its processes, by the number of their GPU.

    Its status is the first of `failed`, `not known`, `passed` and `not run` that one of them has. Times are those of
    the slowest. Hashes that all GPUs have in common are listed once; GPUs of a kind that have different ones are a
    finding that fails.
    """
    if len(outcomes) == 1:
        return next(iter(outcomes.values()))
    findings: list[CheckFinding] = []
    ran: dict[str, str] = {}
    for gpu, one in outcomes.items():
        findings += [replace(found, name=f"GPU {gpu}: {found.name}") for found in one.findings]
        ran.update(one.ran)
    fingerprints, compared = _compared(outcomes)
    different = [found for found in compared if not found.ok]
    base = min(outcomes.values(), key=lambda one: _WORST_FIRST.index(one.status))
    if different and base.status is not Status.FAILED:
        base = replace(base, status=Status.FAILED, cause=Cause.FOUND, hint=_ODD_GPU)
    reasons = []
    if base.status in (Status.FAILED, Status.NOT_KNOWN):
        reasons = [f"GPU {gpu}: {one.reason}" for gpu, one in outcomes.items() if one.status is base.status]
    reasons += map(str, different)
    slowest = max(outcomes.values(), key=lambda one: sum(phase.seconds for phase in one.phases))
    return replace(
        base,
        reason="; ".join(reasons) or base.reason,
        phases=slowest.phases,
        preimports=slowest.preimports,
        findings=(*findings, *compared),
        fingerprints=fingerprints,
        ran=ran,
        peak=Peak.largest(one.peak for one in outcomes.values()),
    )


def _compared(outcomes: Mapping[int, CheckOutcome]) -> tuple[tuple[Fingerprint, ...], list[CheckFinding]]:
    """The fingerprints of a check, and whether GPUs with equal keys have equal ones."""
    by_name: dict[str, dict[int, Fingerprint]] = {}
    for gpu, one in outcomes.items():
        for each in one.fingerprints:
            by_name.setdefault(each.name, {})[gpu] = each
    fingerprints: list[Fingerprint] = []
    findings = []
    for name, found in by_name.items():
        if len(set(found.values())) == 1:
            fingerprints.append(next(iter(found.values())))
        else:
            fingerprints += (replace(each, name=f"GPU {gpu}: {name}") for gpu, each in found.items())
        like = _like_gpus(found)
        if like:
            ok = all(len(digests) == 1 for digests in like)
            kinds = [" | ".join(map(", ".join, digests)) for digests in like]
            detail = f"{'the same' if ok else 'different'} bits on GPUs {'; '.join(kinds)}"
            findings.append(CheckFinding(f"{name}: equal on like GPUs", Kind.EXACT, ok=ok, detail=detail))
    return tuple(fingerprints), findings


def _like_gpus(found: Mapping[int, Fingerprint]) -> list[list[list[str]]]:
    """For each key that several GPUs have: the numbers of the GPUs that have the same digest."""
    by_key: dict[tuple[Level, str], dict[str, list[str]]] = {}
    for gpu, each in found.items():
        by_key.setdefault((each.level, each.key), {}).setdefault(each.digest, []).append(str(gpu))
    groups = [list(digests.values()) for digests in by_key.values()]
    return [each for each in groups if sum(map(len, each)) > 1]


@dataclass(frozen=True)
class SuiteRun:
    """What all checks of a run share.

    request_path: of the request as the checks read it. folder: for their folders. bytecode: folder in which processes
    keep compiled Python for each other; None if the stack has its own. lasting: PIDs of processes that run beside all
    checks.
    """

    request: SuiteRequest
    request_path: Path
    folder: Path
    bytecode: Path | None = None
    lasting: tuple[int, ...] = ()


@dataclass(frozen=True)
class CheckProcess:
    """A process of a check, which imports and then waits. turn: the pipe that starts its turn."""

    folder: Path
    process: subprocess.Popen[bytes]
    turn: BinaryIO

    def remove(self) -> None:
        """Remove the files of a process that has ended."""
        self.turn.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(check: str, run: SuiteRun) -> list[CheckProcess]:
    """Start the processes of a check, in its turn or before: one, or one for each GPU.

    Raises:
        OSError: no more processes or files can be created.
    """
    numbers: Iterable[int | None] = [None]
    if CHECKS[check].each_gpu and run.request.gpus:
        numbers = range(len(run.request.gpus))
    with contextlib.ExitStack() as failed:
        processes = []
        for gpu in numbers:
            one = _start(check, run, gpu)
            for undo in (one.remove, one.process.wait, one.process.kill):
                failed.callback(undo)
            processes.append(one)
        failed.pop_all()
    return processes


def _start(check: str, run: SuiteRun, gpu: int | None) -> CheckProcess:
    folder = Path(tempfile.mkdtemp(prefix="envspec-check-", dir=run.folder))
    reader, writer = os.pipe()
    try:
        words = (check, reader, "" if gpu is None else gpu)
        environ = _environ(folder, run, gpu)
        process = isolation.start("--check", run.request_path, folder, *words, env=environ, pass_fds=[reader])
        return CheckProcess(folder, process, os.fdopen(writer, "wb", buffering=0))
    except OSError:
        os.close(writer)
        raise
    finally:
        os.close(reader)


def run_turn(
    check: str,
    started: Sequence[CheckProcess],
    began: float,
    run: SuiteRun,
    peaks: Mapping[str, Peak],
    waiting: Collection[int],
) -> tuple[CheckOutcome, tuple[str, ...]]:
    """Run a check until it ends or reaches its limit; none of its processes is left, but those that can't be killed.

    began: when its turn began, in seconds of the monotonic clock. peaks: of the checks before it. waiting: PIDs of
    checks whose turn is later; they keep running. Returns its outcome, and descriptions of processes that can't be
    killed.
    """
    limit_s = limit_of(check, run.request)
    outcomes: dict[int, CheckOutcome] = {}
    logs: list[str] = []
    try:
        for each in started:
            _begin(each, began, peaks)
        ended = isolation.wait([each.process for each in started], limit_s, waiting)
        for number, each in enumerate(started):
            events = ProcessEvents.read(each.folder / isolation.EVENTS)
            overrun = ended.overruns.get(each.process.pid)
            outcomes[number] = verdict(check, events, each.process.poll(), overrun)
            if outcomes[number].status in (Status.FAILED, Status.NOT_KNOWN):
                log = (each.folder / isolation.LOG).read_text(encoding="utf-8", errors="replace").strip()
                if len(started) > 1:
                    log = f"GPU {number}: {log}"
                logs.append(log)
    finally:
        for each in started:
            each.remove()
    outcome = merged(outcomes)
    if ended.unkillable:
        outcome = replace(outcome, reason="; ".join([outcome.reason, *ended.unkillable]), hint=_UNKILLABLE)
    required = check in run.request.required
    log = "\n".join(_ends(logs))
    seconds = time.monotonic() - began
    outcome = replace(outcome, required=required, seconds=seconds, waited_s=ended.waited_s, limit_s=limit_s, log=log)
    return outcome, ended.unkillable


def _ends(logs: Collection[str]) -> list[str]:
    """The ends of the logs that the receipt includes, as long together as that of one."""
    room = LOG_CHARACTERS // max(1, len(logs))
    ends = []
    for each in logs:
        ends.append(each if len(each) <= room else f"[...] {each[-room:]}")
    return ends


def _begin(each: CheckProcess, began: float, peaks: Mapping[str, Peak]) -> None:
    # Between the events of the process itself: its phases end before the turn or after.
    with (each.folder / isolation.EVENTS).open("a", encoding="utf-8") as lines:
        EventWriter(lines).write("turn", began)
    # A process that has ended reads no more; its outcome is reported in its turn.
    with contextlib.suppress(BrokenPipeError):
        each.turn.write(dumps(peaks).encode())
    each.turn.close()


def _environ(folder: Path, run: SuiteRun, gpu: int | None) -> dict[str, str]:
    scratch = folder / isolation.SCRATCH
    environ = {
        **{name: value for name, value in os.environ.items() if name not in _BYTECODE},
        # Before any CUDA context: cuBLAS chooses its workspace when it is loaded.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        # Code compiled in an earlier run would hide a missing compiler.
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
    }
    # The tested environment is not changed.
    if run.bytecode:
        environ |= {"PYTHONPYCACHEPREFIX": str(run.bytecode)}
    else:
        environ |= {"PYTHONDONTWRITEBYTECODE": "1"}
    if gpu is not None:
        environ["CUDA_VISIBLE_DEVICES"] = _visible(gpu)
        if len(run.request.gpus) > 1:
            # All of them run at the same time.
            threads = max(1, len(os.sched_getaffinity(0)) // len(run.request.gpus))
            environ.setdefault("OMP_NUM_THREADS", str(threads))
    return environ


def _visible(gpu: int) -> str:
    """CUDA_VISIBLE_DEVICES for one of the GPUs that CUDA shows now."""
    chosen = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return chosen[gpu] if gpu < len(chosen) and chosen[gpu] else str(gpu)
