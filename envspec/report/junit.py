"""The receipt as JUnit XML: a test for each check, and for what a check does not say of itself."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from envspec.conformance.results import Kind, Status
from envspec.escaping import one_line, visible
from envspec.receipt.numbers import devices
from envspec.receipt.values import Baseline, CheckRow, FindingRow, Receipt, Verdict
from envspec.report import words

if TYPE_CHECKING:
    from junitparser.xunit2 import TestCase

_REQUIRED = "required and not run"


def render(receipt: Receipt) -> str:
    """The XML: one suite; a failed receipt has a failed test, whatever failed it. Times are seconds."""
    from junitparser import JUnitXml, TestSuite

    suite = TestSuite(one_line(f"envspec conformance: {receipt.lock.name}"))
    suite.timestamp = receipt.made_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    suite.hostname = one_line(devices(receipt))
    for name, value in _properties(receipt):
        suite.add_property(one_line(name), visible(value))
    for case in _cases(receipt):
        suite.add_testcase(case)
    xml = JUnitXml()
    xml.add_testsuite(suite)
    # junitparser writes by lxml where that is installed: read once more, the bytes are the same everywhere.
    written = io.BytesIO()
    xml.write(written)
    tree = ElementTree.fromstring(written.getvalue())  # noqa: S314 (written two lines above)
    ElementTree.indent(tree)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(tree, encoding="unicode")}\n'


def _properties(receipt: Receipt) -> list[tuple[str, str]]:
    ran = [(f"ran {what}", version) for what, version in receipt.ran.items()]
    head = [("envspec", receipt.envspec), ("verdict", receipt.verdict.value), ("seed", str(receipt.seed))]
    return [*head, *words.stack(receipt), *words.facts(receipt), *ran]


def _cases(receipt: Receipt) -> Iterator[TestCase]:
    has_failed = False
    lock = receipt.lock.name
    told = {check.check for check in receipt.checks}
    for check in receipt.checks:
        yield _case(check, lock)
        has_failed |= check.status is Status.FAILED or _is_missed(check)
    for name in receipt.summary.required_not_run:
        if name not in told:
            yield _failed(name, lock, _REQUIRED, "it was not asked for", "")
            has_failed = True
    if receipt.baseline:
        yield _beside(receipt.baseline, lock)
        has_failed |= any(row.is_worse for row in receipt.baseline.rows)
    if receipt.verdict is Verdict.FAILED and not has_failed:
        yield _failed("verdict", lock, "verdict", "; ".join(receipt.reasons), "")


def _is_missed(check: CheckRow) -> bool:
    return check.required and check.status is Status.NOT_RUN


def _case(check: CheckRow, lock: str) -> TestCase:
    why, hint = words.reason(check), f"\nhint: {check.hint}" if check.hint else ""
    if check.status is Status.FAILED:
        cause = check.cause.value if check.cause else Status.FAILED.value
        case = _failed(check.check, lock, cause, why, f"{why}{hint}\n\n{check.log}")
    elif _is_missed(check):
        case = _failed(check.check, lock, _REQUIRED, why, f"{why}{hint}")
    elif check.status is Status.NOT_RUN:
        case = _skipped(check.check, lock, f"{why}{hint}")
    else:
        case = _passed(check.check, lock)
    case.time = round(check.seconds, 3)
    for finding in check.findings:
        if finding.value is not None:
            case.add_property(one_line(finding.name), f"{finding.value!r} {finding.unit}".rstrip())
    case.system_out = visible("\n".join(map(_line, check.findings)))
    return case


def _line(finding: FindingRow) -> str:
    number = "" if finding.value is None else words.amount(finding.value, finding.unit)
    kind = words.outcome(finding) or Kind.INFORMING.value
    parts = (finding.name, number, words.held(finding), finding.told)
    return f"{kind}: {': '.join(one_line(part) for part in parts if part)}"


def _beside(baseline: Baseline, lock: str) -> TestCase:
    if baseline.not_compared:
        return _skipped("baseline", lock, baseline.not_compared)
    worse = [
        f"{row.check}: {row.name}: {words.amount(row.recorded, row.unit)} -> {words.amount(row.now, row.unit)}"
        for row in baseline.rows
        if row.is_worse
    ]
    if worse:
        message = f"{len(worse)} of {len(baseline.rows)} numbers are worse than their tolerance"
        return _failed("baseline", lock, "worse", message, "\n".join(worse))
    return _passed("baseline", lock)


def _passed(name: str, lock: str) -> TestCase:
    from junitparser.xunit2 import TestCase

    return TestCase(one_line(name), one_line(lock), 0.0)


def _failed(name: str, lock: str, cause: str, message: str, text: str) -> TestCase:
    from junitparser import Failure

    case = _passed(name, lock)
    failure = Failure(one_line(message), one_line(cause))
    failure.text = visible(text).rstrip("\n")
    case.result = [failure]
    return case


def _skipped(name: str, lock: str, why: str) -> TestCase:
    from junitparser import Skipped

    case = _passed(name, lock)
    case.result = [Skipped(one_line(why))]
    return case
