"""A receipt as CTRF, the Common Test Report Format, for dashboards that read JSON: the test cases of the JUnit XML.

Source: ctrf.io, specification and `ctrf.schema.json`, version 0.1.0. Read 2026-11.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from xml.etree.ElementTree import Element

from envspec.receipts.model import Receipt
from envspec.report.format import document, utc
from envspec.report.junit import cases
from envspec.report.receipt import properties

_VERSION: Final = "0.1.0"
#: Section 4.6.1: keys of `extra` begin with a namespace and a delimiter.
_EXTRA: Final = "envspec.receipt"
#: JUnit's element in a test case -> status; CTRF has none for errors.
_TAGS: Final = {"failure": "failed", "error": "other", "skipped": "skipped"}
_STATUSES: Final = ("passed", "failed", "skipped", "pending", "other")


def as_ctrf(receipt: Receipt) -> str:
    """A test for each case; what was not run is `skipped`, what is not known `other`.

    Times are milliseconds; `start` and `stop` are of Unix.
    """
    tests = [_test(case, receipt.subject) for case in cases(receipt)]
    counts = Counter(each["status"] for each in tests)
    stop = round(1000 * receipt.made_at.timestamp())
    return document(
        {
            "reportFormat": "CTRF",
            "specVersion": _VERSION,
            "timestamp": utc(receipt.made_at),
            "generatedBy": f"envspec {receipt.envspec}",
            "results": {
                "tool": {"name": "envspec conformance", "version": receipt.envspec},
                "summary": {
                    "tests": len(tests),
                    **{status: counts[status] for status in _STATUSES},
                    "start": stop - round(1000 * receipt.seconds),
                    "stop": stop,
                },
                "tests": tests,
                "extra": {
                    _EXTRA: {"verdict": receipt.verdict.value, "reasons": receipt.reasons, **dict(properties(receipt))}
                },
            },
        }
    )


def _test(case: Element, suite: str) -> dict[str, Any]:
    output = case.find("system-out")
    status, found = "passed", None
    for tag, each in _TAGS.items():
        if (element := case.find(tag)) is not None:
            status, found = each, element
    texts = {}
    if found is not None:
        texts = {"message": found.get("message"), "rawStatus": found.get("type"), "trace": found.text}
    return {
        "name": case.get("name", ""),
        "status": status,
        "duration": round(1000 * float(case.get("time", 0))),
        "suite": [suite],
        **{name: text for name, text in texts.items() if text},
        **({"stdout": output.text.splitlines()} if output is not None and output.text else {}),
    }
