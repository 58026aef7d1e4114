"""From what a check's process has said, and how it ended, to the check's result: pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from envspec.conformance import child
from envspec.conformance.checks import CHECKS
from envspec.conformance.heard import Heard
from envspec.conformance.values import Cause, Finding, Kind, Result, Status

#: What to do where neither the check itself nor its row in the table says it.
_HINTS = {
    Cause.CRASHED: "a package that was built for another one crashes like this: see what `family` and `lock` say",
    Cause.OVER_LIMIT: "the end of its log says where every thread stood; --limit NAME=SECONDS gives it more time",
    Cause.OUT_OF_MEMORY: "give the machine or the container more memory, or end what else uses this GPU",
}
#: So many findings stand in a reason; all of them are among the findings.
_TOLD = 8


@dataclass(frozen=True)
class End:
    """How a process ended. status: negative for a signal. is_over: whether it was ended at its limit."""

    status: int
    is_over: bool
    limit_s: float


def judged(name: str, heard: Heard, end: End) -> Result:
    """What came of a check; its times and its log are the caller's to add."""
    result = Result(
        name,
        phases=heard.phases,
        ahead=heard.ahead,
        findings=heard.findings,
        fingerprints=heard.fingerprints,
        ran=heard.ran,
        peak=heard.peak,
    )
    failure = _failure(heard, end)
    if failure:
        result.status = Status.FAILED
        result.cause, result.reason = failure
        of_its_end = _HINTS.get(result.cause, "")
        # What a check says was about what it found, and not about its limit or the machine's memory.
        is_its_own = result.cause not in (Cause.OVER_LIMIT, Cause.OUT_OF_MEMORY)
        result.hint = next(iter(heard.hints), CHECKS[name].advice or of_its_end) if is_its_own else of_its_end
    elif heard.not_run:
        result.reason, result.hint = heard.not_run
    elif not any(each.ok for each in heard.findings):
        # Nothing was held against anything.
        result.reason = next((each.told for each in heard.findings if each.kind is Kind.NOT_RUN), "nothing was tested")
    else:
        result.status = Status.PASSED
    return result


def _failure(heard: Heard, end: End) -> tuple[Cause, str] | None:
    wrong = [each for each in heard.findings if each.ok is False]
    if end.is_over:
        return Cause.OVER_LIMIT, f"still running after {end.limit_s:g} s, {heard.place}"
    if heard.raised:
        cause = Cause.OUT_OF_MEMORY if heard.raised[0] == Cause.OUT_OF_MEMORY.value else Cause.RAISED
        return cause, f"{heard.place}: {heard.raised[1]}"
    if end.status not in (child.DONE, child.NOT_RUN) or not (heard.done or heard.not_run):
        return _ended(end.status, heard.place)
    if wrong:
        more = [f"and {len(wrong) - _TOLD} more"] if len(wrong) > _TOLD else []
        return Cause.FOUND, "; ".join([*map(told, wrong[:_TOLD]), *more])
    return None


def _ended(status: int, place: str) -> tuple[Cause, str]:
    if status == -signal.SIGKILL:
        return Cause.OUT_OF_MEMORY, f"killed {place}: most often the system or the container has run out of memory"
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        return Cause.CRASHED, f"crashed {place}, by signal {number} ({name})"
    return Cause.CRASHED, f"ended {place} with status {status} and without a word"


def told(finding: Finding) -> str:
    """A finding in one line."""
    if finding.value is not None and finding.bound is not None:
        unit = f" {finding.unit}" if finding.unit else ""
        text = f"{finding.name}: {finding.value:.3g}{unit} where {finding.relation} {finding.bound:.3g}{unit} is asked"
        return f"{text} ({finding.told})" if finding.told else text
    return f"{finding.name}: {finding.told}" if finding.told else finding.name
