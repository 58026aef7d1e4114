"""What `envspec audit-project` found, as text, JSON, annotations of a GitHub workflow, and SARIF."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envspec.conformance.text import counted
from envspec.diagnostics.audit import RULES
from envspec.diagnostics.audit.types import AuditReport, Finding, Severity
from envspec.escaping import one_line
from envspec.report.format import block, document, listing, optional, row, text
from envspec.version import VERSION

_NUMBER: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
#: SARIF 2.1.0, section 3.27.10: `level`; GitHub's workflow commands have the same three words, `notice` for the last.
_GITHUB: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def as_text(report: AuditReport, width: int) -> str:
    """A line for each finding, as compilers write them, with reason and advice below; then what was not run."""
    head = f"{', '.join(report.sources)} for Python {report.python} on {report.platform}, as of {report.as_of}"
    findings = []
    for each in report.findings:
        what = f"{each.source}: {each.rule.severity.value} {each.rule.code}: {each.what}"
        findings.append(row(what, notes=_why_and_todo(each)))
    counts = []
    for severity in Severity:
        if count := report.count(severity):
            counts.append(counted(count, _NUMBER[severity]))
    if report.ignored:
        counts.append(f"{report.ignored} ignored")
    end = f"{', '.join(counts) or 'nothing found'}; {counted(len(report.examined), 'check')} run"
    if report.not_run:
        end += f", {len(report.not_run)} not run"
    not_run = [row(f"{each.what}: {each.reason}") for each in report.not_run]
    tables = (listing("findings", findings), listing("not run", not_run), listing("", [row(end)]))
    return text([head], tables, width)


def _why_and_todo(each: Finding) -> tuple[str, str]:
    return each.why + optional(" [{}]", each.fact), optional("-> {}", each.todo)


def as_json(report: AuditReport) -> str:
    """Findings with code, severity, file and line; line 0: the file as a whole."""
    return document(
        {
            "findings": list(map(_finding, report.findings)),
            "not_run": [{"what": each.what, "reason": each.reason} for each in report.not_run],
            "examined": report.examined,
            "sources": report.sources,
            "python": report.python,
            "platform": report.platform,
            "as_of": report.as_of,
            "ignored": report.ignored,
        }
    )


def _finding(each: Finding) -> dict[str, object]:
    return {
        "code": each.rule.code,
        "severity": each.rule.severity.value,
        "file": each.source.file,
        "line": each.source.line,
        "what": each.what,
        "why": each.why,
        "source": each.fact,
        "todo": each.todo,
    }


def as_github(report: AuditReport) -> str:
    """Workflow commands, which GitHub shows at the lines (docs.github.com, Workflow commands)."""
    return block(_commands(report))


def _commands(report: AuditReport) -> Iterator[str]:
    for each in report.findings:
        place = {"file": each.source.file, "line": str(each.source.line or 1), "title": each.rule.code}
        values = ",".join(f"{key}={_property(value)}" for key, value in place.items())
        message = "\n".join(filter(None, (each.what, *_why_and_todo(each))))
        yield f"::{_GITHUB[each.rule.severity]} {values}::{_data(message)}"
    for missing in report.not_run:
        yield f"::notice title=not run::{_data(f'{missing.what}: {missing.reason}')}"


def _data(message: str) -> str:
    """As actions/toolkit escapes it (packages/core/src/command.ts)."""
    lines = map(one_line, message.split("\n"))
    return "\n".join(lines).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def as_sarif(report: AuditReport) -> str:
    """SARIF 2.1.0, which GitHub's code scanning reads."""
    rules = []
    for code, rule in RULES.items():
        level = {"level": _NUMBER[rule.severity]}
        rules.append({"id": code, "shortDescription": {"text": rule.title}, "defaultConfiguration": level})
    notes = [{"level": "note", "message": {"text": f"not run: {each.what}: {each.reason}"}} for each in report.not_run]
    driver = {"name": "envspec audit-project", "version": VERSION, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "results": list(map(_sarif_result, report.findings)),
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
    }
    return document({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]})


def _sarif_result(each: Finding) -> dict[str, object]:
    place = {"artifactLocation": {"uri": each.source.file}, "region": {"startLine": each.source.line or 1}}
    return {
        "ruleId": each.rule.code,
        "level": _NUMBER[each.rule.severity],
        "message": {"text": f"{each.what}. {each.why}. {each.todo}"},
        "locations": [{"physicalLocation": place}],
    }
