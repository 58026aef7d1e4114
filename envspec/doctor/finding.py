"""One line of the doctor's report, and the report as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How a thing stands."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """what: the thing looked at. found: what is there. todo: what to do about it, empty where nothing is to be done."""

    what: str
    state: State
    found: str
    todo: str = ""


def render_text(findings: Sequence[Finding]) -> str:
    """A plain table, what is to be done below its line; ends without a newline."""
    states = max((len(finding.state.value) for finding in findings), default=0)
    names = max((len(finding.what) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state.value:<{states}}  {finding.what:<{names}}  {finding.found}".rstrip())
        if finding.todo:
            lines.append(f"{'':<{states}}  {'':<{names}}  -> {finding.todo}")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> str:
    """A list of objects with the keys what, state, found and todo; ends without a newline."""
    rows = [{"what": f.what, "state": f.state.value, "found": f.found, "todo": f.todo} for f in findings]
    return json.dumps(rows, indent=2, ensure_ascii=False)
