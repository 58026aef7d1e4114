"""results.json of a run and what the host knows about it -> Receipt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from envspec.conformance.request import Nodes
from envspec.conformance.results import FORMAT as RESULTS_FORMAT
from envspec.conformance.results import Cause, CheckOutcome, Kind, Status
from envspec.errors import EnvspecError
from envspec.receipts.compare import against
from envspec.receipts.model import Counts, Here, Image, LockName, Machine, Receipt, Summary, Verdict, problems


class BadResults(EnvspecError):
    """Results that this version's suite does not write."""


@dataclass(frozen=True, slots=True)
class ReceiptInputs:
    """What the host knows about a run and the suite in the container does not.

    made_at: with a time zone. where: the image, or the Python that ran the suite; `is_locked` is set from the check
    `lock`. requested: names of the checks to run; required: those that must not be `not run`.
    toolkit: version of NVIDIA's container toolkit. baseline: a recorded receipt to compare with.
    """

    envspec: str
    made_at: datetime
    lock: LockName
    where: Image | Here
    requested: tuple[str, ...]
    required: tuple[str, ...] = ()
    nodes: Nodes = field(default_factory=Nodes)
    world_size: int | None = None
    toolkit: str = ""
    baseline: Receipt | None = None


def receipt(results: Mapping[str, Any], inputs: ReceiptInputs) -> Receipt:
    """The receipt of a run. results: the document that the suite wrote, possibly incomplete.

    The verdict is `failed` if a check failed, a required one was not run, the suite ended before a requested check, or
    a number is worse than the baseline's by more than its tolerance.

    Raises:
        BadResults: the document has another format, or keys are missing or wrong; the message names them.
    """
    if results.get("format") != RESULTS_FORMAT:
        raise BadResults(f"the results are of format {results.get('format')!r}, this envspec reads {RESULTS_FORMAT}")
    try:
        return _receipt(_plain(results), inputs)
    except KeyError as error:
        raise BadResults(f"the suite's results lack {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        why = "; ".join(problems(error)) if isinstance(error, ValidationError) else "a value has the wrong type"
        hint = "run the suite of this envspec version"
        raise BadResults(f"the suite's results can't be read: {why}", hint=hint) from error


def _receipt(results: Mapping[str, Any], inputs: ReceiptInputs) -> Receipt:
    found = TypeAdapter(tuple[CheckOutcome, ...]).validate_python(results["results"])
    checks = (*found, *_lost(found, inputs, is_whole=results["is_whole"]))
    summary = _summary(checks, inputs.required)
    image = inputs.where if isinstance(inputs.where, Image) else None
    here = inputs.where.model_copy(update={"is_locked": _is_locked(checks)}) if isinstance(inputs.where, Here) else None
    reasons = tuple(_reasons(checks, summary))
    built = Receipt(
        envspec=inputs.envspec,
        made_at=inputs.made_at,
        verdict=Verdict.FAILED if reasons else Verdict.PASSED,
        reasons=reasons,
        summary=summary,
        lock=inputs.lock,
        image=image,
        here=here,
        device=results["device"],
        seed=results["seed"],
        nodes=inputs.nodes,
        world_size=inputs.world_size,
        seconds=results["seconds"],
        machine=Machine.model_validate({**results["machine"], "toolkit": inputs.toolkit}),
        ran=_ran(checks),
        checks=checks,
    )
    return _with_baseline(built, inputs.baseline) if inputs.baseline else built


def _lost(found: Sequence[CheckOutcome], inputs: ReceiptInputs, *, is_whole: bool) -> list[CheckOutcome]:
    """Requested checks without a result."""
    names = {check.check for check in found}
    reason = "the suite reported no result for it" if is_whole else "the suite ended before it"
    return [
        CheckOutcome(
            check=name,
            status=Status.FAILED,
            cause=Cause.CRASHED,
            reason=reason,
            hint="look for the cause in the output of the suite and the container, and in the system log",
            required=name in inputs.required,
        )
        for name in inputs.requested
        if name not in names
    ]


def _summary(checks: Sequence[CheckOutcome], required: Sequence[str]) -> Summary:
    findings = [finding for check in checks for finding in check.findings]
    status = [check.status for check in checks]
    not_run = {check.check for check in checks if check.status is Status.NOT_RUN}
    missing = set(required) - {check.check for check in checks}
    return Summary(
        checks=Counts(
            passed=status.count(Status.PASSED),
            failed=status.count(Status.FAILED),
            not_run=status.count(Status.NOT_RUN),
        ),
        findings=Counts(
            passed=sum(finding.ok is True for finding in findings),
            failed=sum(finding.ok is False for finding in findings),
            not_run=sum(finding.kind is Kind.NOT_RUN for finding in findings),
            informing=sum(finding.kind is Kind.INFORMING for finding in findings),
        ),
        required_not_run=tuple(name for name in required if name in not_run | missing),
    )


def _reasons(checks: Sequence[CheckOutcome], summary: Summary) -> Iterable[str]:
    failed = [check.check for check in checks if check.status is Status.FAILED]
    if failed:
        yield f"{', '.join(failed)} failed"
    for name in summary.required_not_run:
        yield f"{name} is required and was not run"
    if not summary.checks.passed and not summary.checks.failed:
        yield "no check was run"


def _is_locked(checks: Iterable[CheckOutcome]) -> bool | None:
    """Result of the check `lock`; None if it crashed or did not run."""
    lock = next((check for check in checks if check.check == "lock"), None)
    if lock is None or not (lock.status is Status.PASSED or lock.cause is Cause.FOUND):
        return None
    return lock.status is Status.PASSED


def _ran(checks: Iterable[CheckOutcome]) -> dict[str, str]:
    versions: dict[str, list[str]] = {}
    for check in checks:
        for what, version in check.ran.items():
            found = versions.setdefault(what, [])
            if version not in found:
                found.append(version)
    return {what: ", ".join(versions[what]) for what in sorted(versions)}


def _with_baseline(built: Receipt, recorded: Receipt) -> Receipt:
    baseline = against(built, recorded)
    worse = [
        f"{row.check}: {row.name} is {100 * abs(row.change):.0f} % worse than the baseline's"
        for row in baseline.rows
        if row.is_worse
    ]
    reasons = (*built.reasons, *worse)
    verdict = Verdict.FAILED if reasons else Verdict.PASSED
    return built.model_copy(update={"baseline": baseline, "reasons": reasons, "verdict": verdict})


def _plain(value: Any) -> Any:
    """The document without lone surrogates (from file names), which can't be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
