"""A receipt as JUnit XML: a test case for each check, and one for every other reason why a run did not pass.

A check that is not known is an error. A run that did not pass always has a failed test case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from envspec.conformance.results import CheckFinding, CheckOutcome, Status
from envspec.escaping import one_line, visible
from envspec.receipts.metrics import devices
from envspec.receipts.model import Baseline, BaselineRow, Receipt, Verdict
from envspec.report.findings import bound, outcome
from envspec.report.format import amount, optional
from envspec.report.receipt import names_and_values, reason
from envspec.spec.dates import utc_text


def as_junit(receipt: Receipt) -> str:
    """One suite. Times are seconds."""
    found_cases = list(cases(receipt))
    root = Element("testsuites")
    suite = _child(
        root,
        "testsuite",
        name=f"envspec conformance: {receipt.subject}",
        timestamp=utc_text(receipt.made_at),
        hostname=devices(receipt),
        tests=str(len(found_cases)),
        errors=_count(found_cases, "error"),
        failures=_count(found_cases, "failure"),
        skipped=_count(found_cases, "skipped"),
        time=f"{sum(float(case.get('time', 0)) for case in found_cases):.3f}",
    )
    found = SubElement(suite, "properties")
    head = (("envspec", receipt.envspec), ("verdict", receipt.verdict.value), ("seed", str(receipt.seed)))
    for name, value in (*head, *names_and_values(receipt)):
        _child(found, "property", name=name, value=value)
    suite.extend(found_cases)
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'


def _child(parent: Element, tag: str, **attributes: str) -> Element:
    """An element whose attributes hold only characters that XML allows."""
    return SubElement(parent, tag, {name: one_line(value) for name, value in attributes.items()})


def _count(found: Iterable[Element], tag: str) -> str:
    return str(sum(case.find(tag) is not None for case in found))


def cases(receipt: Receipt) -> Iterator[Element]:
    """The test cases; one of them fails unless the verdict is `passed`."""
    has_failed = False
    lock = receipt.subject
    for check in receipt.checks:
        yield _check(check, lock)
        has_failed |= check.status is Status.FAILED or _is_missed(check)
    if receipt.baseline:
        worse = receipt.baseline.worse_rows()
        yield _compared(receipt.baseline, worse, lock)
        has_failed |= bool(worse)
    if receipt.verdict is not Verdict.PASSED and not has_failed:
        yield _failed(_case("verdict", lock), receipt.verdict.value, "; ".join(receipt.reasons))


def _is_missed(check: CheckOutcome) -> bool:
    return check.required and check.status is Status.NOT_RUN


def _check(check: CheckOutcome, lock: str) -> Element:
    case = _case(check.check, lock, check.seconds)
    numbers = [each for each in check.findings if each.value is not None]
    if numbers:
        found = SubElement(case, "properties")
        for each in numbers:
            _child(found, "property", name=each.name, value=f"{each.value!r} {each.unit}")
    why = reason(check)
    details = why + optional("\nhint: {}", check.hint)
    cause = check.cause.value if check.cause else check.status.value
    if check.status is Status.FAILED:
        _failed(case, cause, why, f"{details}\n\n{check.log}")
    elif _is_missed(check):
        _failed(case, "required and not run", why, details)
    elif check.status is Status.NOT_KNOWN:
        error = _child(case, "error", message=why, type=cause)
        error.text = visible(f"{details}\n\n{check.log}").rstrip("\n")
    elif check.status is Status.NOT_RUN:
        _child(case, "skipped", message=details)
    SubElement(case, "system-out").text = visible("\n".join(map(_line, check.findings)))
    return case


def _line(finding: CheckFinding) -> str:
    parts = [finding.name]
    if finding.value is not None:
        parts.append(amount(finding.value, finding.unit))
    parts += bound(finding), finding.detail
    return f"{outcome(finding)}: {': '.join(map(one_line, filter(None, parts)))}"


def _compared(baseline: Baseline, worse: Sequence[BaselineRow], lock: str) -> Element:
    case = _case("baseline", lock)
    lines = []
    for each in worse:
        change = f"{amount(each.recorded, each.unit)} -> {amount(each.now, each.unit)}"
        lines.append(f"{each.check}: {each.name}: {change}")
    if baseline.not_compared:
        _child(case, "skipped", message=baseline.not_compared)
    elif worse:
        message = f"{len(worse)} of {len(baseline.rows)} numbers are worse than their tolerance"
        _failed(case, "worse", message, "\n".join(lines))
    return case


def _case(name: str, lock: str, seconds: float = 0.0) -> Element:
    return Element("testcase", {"name": one_line(name), "classname": one_line(lock), "time": f"{seconds:.3f}"})


def _failed(case: Element, cause: str, message: str, details: str = "") -> Element:
    _child(case, "failure", message=message, type=cause).text = visible(details).rstrip("\n")
    return case
