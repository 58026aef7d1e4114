"""results.json of a run and what is known about it -> the receipt, as values of JSON. Pure.

With the standard library alone, since the single file of the suite writes receipts, too. `envspec.receipts` has the
types of the document, and its schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Cause, Kind, Status
from envspec.conformance.text import lines_of

#: Format of the receipt; readers refuse newer ones.
FORMAT = 1
PASSED, FAILED, NOT_KNOWN = "passed", "failed", "not known"
#: Checks without which nothing is known about training; the first one is about GPUs.
TRAINING = ("device", "matmul", "amp", "transformer")
#: Begins the line of stdout that is a receipt, in JSON: the log of a container is all that is left of some runs.
RECEIPT_MARK = "envspec-receipt: "


@dataclass(frozen=True)
class ReceiptInputs:
    """What is known of a run besides its results: values of JSON, or of the receipt's types.

    made_at: with a time zone.
    lock: that the stack has to be.
    as_if: the lock that the stack was compared with.
    image, local: where the suite ran, one of them.
    ended: why the suite did not run to its end, see `why_ended`.
    baseline: a recorded receipt to compare with.
    """

    envspec: str
    made_at: Any
    request: SuiteRequest
    lock: Any = None
    as_if: Any = None
    image: Any = None
    local: Mapping[str, Any] | None = None
    ended: str = ""
    baseline: Any = None


def document(results: Mapping[str, Any], inputs: ReceiptInputs) -> dict[str, Any]:
    """The receipt of a run. results: the document that the suite wrote, possibly incomplete.

    Raises:
        KeyError, TypeError, AttributeError: keys are missing or wrong.
    """
    request = inputs.request
    checks = [*results["results"], *_lost(results, request)]
    summary = _summary(checks, request.required, _question(results, request.named))
    verdict, reasons = judge(checks, summary)
    if inputs.ended:
        reasons.append(inputs.ended)
        if verdict == PASSED:
            verdict = NOT_KNOWN
    local = inputs.local
    if local:
        is_locked = _is_locked(checks) if inputs.lock else None
        local = {**local, "is_locked": is_locked}
    return {
        "format": FORMAT,
        "envspec": inputs.envspec,
        "made_at": inputs.made_at,
        "verdict": verdict,
        "reasons": reasons,
        "summary": summary,
        "lock": inputs.lock,
        "as_if": inputs.as_if,
        "image": inputs.image,
        "local": local,
        "device": results["device"],
        "seed": results["seed"],
        "nodes": asdict(request.nodes),
        "world_size": request.world_size,
        "seconds": results["seconds"],
        "machine": {**results["machine"], "toolkit": ""},
        "ran": _ran(checks),
        "checks": checks,
    }


def why_ended(status: int, stderr: str) -> str:
    """Why the suite did not run to its end, by its exit status and its output; empty if it did."""
    if status == 0:
        return ""
    lines = lines_of(stderr) or ["no output"]
    return f"the suite exited with status {status}: {lines[-1]}"


def _lost(results: Mapping[str, Any], request: SuiteRequest) -> list[dict[str, Any]]:
    """Requested checks without a result."""
    names = {each["check"] for each in results["results"]}
    reason = "the suite reported no result for it" if results["is_whole"] else "the suite ended before it"
    lost = []
    for name in request.checks:
        if name not in names:
            outcome = {
                "check": name,
                "status": Status.NOT_KNOWN.value,
                "cause": Cause.CRASHED.value,
                "reason": reason,
                "hint": "look for the cause in the output of the suite and the container, and in the system log",
                "required": name in request.required,
            }
            lost.append(outcome)
    return lost


def _question(results: Mapping[str, Any], named: tuple[str, ...]) -> tuple[str, ...]:
    """The checks that must have run for an answer: the named ones, else those about training; none without torch."""
    if named:
        return named
    if not results["has_torch"]:
        return ()
    return TRAINING if results["device"] == "cuda" else TRAINING[1:]


def _summary(checks: Sequence[Mapping[str, Any]], required: Sequence[str], question: Sequence[str]) -> dict[str, Any]:
    kinds, results = [], []
    for check in checks:
        for finding in check.get("findings", ()):
            kinds.append(finding["kind"])
            results.append(finding.get("ok"))
    passed = _with_status(checks, Status.PASSED)
    failed = _with_status(checks, Status.FAILED)
    not_known = _with_status(checks, Status.NOT_KNOWN)
    has_begun = {*passed, *failed, *not_known}
    not_begun = [name for name in question if name not in has_begun]
    return {
        "checks": {
            "passed": len(passed),
            "failed": len(failed),
            "not_run": len(_with_status(checks, Status.NOT_RUN)),
            "not_known": len(not_known),
        },
        "findings": {
            "passed": results.count(True),
            "failed": results.count(False),
            "not_run": kinds.count(Kind.NOT_RUN.value),
            "info": kinds.count(Kind.INFO.value),
        },
        "required_not_run": [name for name in required if name not in has_begun],
        "question": list(question),
        "unanswered": [*not_begun, *not_known],
    }


def _with_status(checks: Sequence[Mapping[str, Any]], status: Status) -> list[str]:
    return [check["check"] for check in checks if check["status"] == status.value]


def judge(checks: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The verdict of a run and its reasons, for everything that reports it. summary: of the receipt.

    `failed` if a check failed or a required one was not run. Else `not known` if a check has no result, if one of the
    run's question was not run, or if there is no question, since the suite tests torch. Else `passed`.
    """
    failed = _with_status(checks, Status.FAILED)
    reasons = [f"{name} is required and was not run" for name in summary["required_not_run"]]
    if failed:
        reasons.insert(0, f"{', '.join(failed)} failed")
    if reasons:
        return FAILED, reasons
    not_known = _with_status(checks, Status.NOT_KNOWN)
    late = [check["check"] for check in checks if check.get("cause") == Cause.OUT_OF_TIME.value]
    not_begun = [name for name in summary["unanswered"] if name not in not_known]
    crashed = [name for name in not_known if name not in late]
    for names, how in ((not_begun, "did not run"), (late, "ran out of time"), (crashed, "ended without a result")):
        if names:
            reasons.append(f"{', '.join(names)} {how}")
    if not summary["question"]:
        passed = ", ".join(_with_status(checks, Status.PASSED)) or "nothing"
        reasons.append(f"the suite tests torch, which is not in this stack: only {passed} was tested")
    return NOT_KNOWN if reasons else PASSED, reasons


def exit_code(receipt: Mapping[str, Any]) -> int:
    """Of a run: 0 if it passed, 6 if there is no torch to test, else 7. receipt: the document."""
    if receipt["verdict"] == PASSED:
        return 0
    has_no_torch = receipt["verdict"] == NOT_KNOWN and not receipt["summary"]["question"]
    return 6 if has_no_torch else 7


def _is_locked(checks: Sequence[Mapping[str, Any]]) -> bool | None:
    """Result of the check `lock`; None if it crashed or did not run."""
    lock = next((check for check in checks if check["check"] == "lock"), None)
    if lock is None or not (lock["status"] == Status.PASSED.value or lock.get("cause") == Cause.FOUND.value):
        return None
    return bool(lock["status"] == Status.PASSED.value)


def _ran(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    versions: dict[str, list[str]] = {}
    for check in checks:
        for what, version in check.get("ran", {}).items():
            found = versions.setdefault(what, [])
            if version not in found:
                found.append(version)
    return {what: ", ".join(versions[what]) for what in sorted(versions)}
