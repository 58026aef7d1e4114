"""results.json of a run and what is known about it -> the receipt, as values of JSON. Pure.

With the standard library alone, since the single file of the suite writes receipts, too. `envspec.receipts` has the
types of the document, and its schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envspec.conformance.results import Cause, Kind, Status

#: Format of the receipt; readers refuse newer ones.
FORMAT = 1
PASSED, FAILED = "passed", "failed"
#: Reasons of requested checks without a result: of a suite that ran to its end, and of one that did not.
LOST = ("the suite reported no result for it", "the suite ended before it")
#: Begins the line of stdout that is a receipt, in JSON: the log of a container is all that is left of some runs.
RECEIPT_MARK = "envspec-receipt: "


def document(results: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of a run.

    results: the document that the suite wrote, possibly incomplete. known: `envspec`, `made_at`, `lock`, `as_if`,
    `image`, `local`, `nodes` and `world_size` of the receipt; `toolkit` of its machine; and the names `requested` and
    `required` of checks.

    The verdict is `failed` if a check failed, a required one was not run, the suite ended before a requested check, or
    nothing was tested.

    Raises:
        KeyError, TypeError, AttributeError: keys are missing or wrong.
    """
    required = known["required"]
    checks = [*results["results"], *_lost(results, known)]
    summary = _summary(checks, required)
    reasons = list(_reasons(checks, summary))
    local = known["local"]
    return {
        "format": FORMAT,
        "envspec": known["envspec"],
        "made_at": known["made_at"],
        "verdict": FAILED if reasons else PASSED,
        "reasons": reasons,
        "summary": summary,
        "lock": known["lock"],
        "as_if": known["as_if"],
        "image": known["image"],
        "local": local and {**local, "is_locked": _is_locked(checks) if known["lock"] else None},
        "device": results["device"],
        "seed": results["seed"],
        "nodes": known["nodes"],
        "world_size": known["world_size"],
        "seconds": results["seconds"],
        "machine": {**results["machine"], "toolkit": known["toolkit"]},
        "ran": _ran(checks),
        "checks": checks,
    }


def _lost(results: Mapping[str, Any], known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Requested checks without a result."""
    names = {each["check"] for each in results["results"]}
    whole, interrupted = LOST
    reason = whole if results["is_whole"] else interrupted
    return [
        {
            "check": name,
            "status": Status.FAILED.value,
            "cause": Cause.CRASHED.value,
            "reason": reason,
            "hint": "look for the cause in the output of the suite and the container, and in the system log",
            "required": name in known["required"],
        }
        for name in known["requested"]
        if name not in names
    ]


def _summary(checks: Sequence[Mapping[str, Any]], required: Sequence[str]) -> dict[str, Any]:
    findings = [finding for check in checks for finding in check.get("findings", ())]
    status = [check["status"] for check in checks]
    not_run = {check["check"] for check in checks if check["status"] == Status.NOT_RUN.value}
    missing = set(required) - {check["check"] for check in checks}
    kinds = [finding["kind"] for finding in findings]
    return {
        "checks": {
            "passed": status.count(Status.PASSED.value),
            "failed": status.count(Status.FAILED.value),
            "not_run": status.count(Status.NOT_RUN.value),
        },
        "findings": {
            "passed": sum(finding.get("ok") is True for finding in findings),
            "failed": sum(finding.get("ok") is False for finding in findings),
            "not_run": kinds.count(Kind.NOT_RUN.value),
            "info": kinds.count(Kind.INFO.value),
        },
        "required_not_run": [name for name in required if name in not_run | missing],
    }


def _reasons(checks: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> Iterator[str]:
    failed = [check["check"] for check in checks if check["status"] == Status.FAILED.value]
    if failed:
        yield f"{', '.join(failed)} failed"
    for name in summary["required_not_run"]:
        yield f"{name} is required and was not run"
    if not summary["checks"]["passed"] and not failed:
        yield "no check was run"


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
