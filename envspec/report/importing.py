"""What `envspec init` did, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from envspec.context import counted
from envspec.importers.types import Outcome
from envspec.report.format import Row, Table, document, first_rows, listing, row, shortened, text_lines

if TYPE_CHECKING:
    from envspec.importers.result import Imported, Moved
    from envspec.importers.types import LedgerEntry

#: Rows of a table on a terminal.
_MOST: Final = 40
#: Of a line that concerns no environment, in characters.
_LONGEST: Final = 120


def as_text(found: Imported, width: int) -> str:
    """The answer first, then what needs attention, then the ledger."""
    tables = [*_answer(found), *_attention(found), *_ledger(found)]
    sections = ("".join(f"{line}\n" for line in text_lines(each, width)) for each in tables)
    return "\n".join(filter(None, sections))


def as_json(found: Imported) -> str:
    """Everything, whole."""
    return document(
        {
            "name": found.name,
            "spec": str(found.spec),
            "lock": None if found.lock is None else str(found.lock),
            "counts": _counts(found),
            "decisions": [
                {"what": each.what, "value": each.value, "why": each.why, "source": each.source}
                for each in found.decisions
            ],
            "compared": found.compared,
            "moved": None if found.moved is None else [_move(each) for each in found.moved],
            "proofs": [{"prefix": str(each.prefix), **each.result.as_json()} for each in found.proofs],
            "ledger": [
                {
                    "file": each.source.file,
                    "line": each.source.line or None,
                    "text": each.text,
                    "outcome": each.outcome.value,
                    "reason": each.reason,
                }
                for each in found.ledger
            ],
        }
    )


def _move(moved: Moved) -> dict[str, Any]:
    return {"name": moved.name, "before": moved.before, "now": moved.now or None, "why": moved.why}


def _counts(found: Imported) -> dict[str, int]:
    return {each.value: sum(entry.outcome is each for entry in found.ledger) for each in Outcome}


def _answer(found: Imported) -> Iterator[Table]:
    optional = (Outcome.OUTSIDE.value, Outcome.NOT_DECIDED.value)
    shown = {name: count for name, count in _counts(found).items() if count or name not in optional}
    counts = ", ".join(f"{count} {outcome}" for outcome, count in shown.items())
    rows = [row("spec", str(found.spec)), row("lines", counts)]
    if found.lock is not None:
        rows.insert(1, row("lock", str(found.lock)))
    if found.moved is not None and found.compared:
        same = found.compared - len(found.moved)
        rows.append(row("versions", f"{same} of {found.compared} as in the sources"))
    for each in found.proofs:
        differences = counted(len(each.result.findings), "difference")
        files = f"{each.result.counts.files:,} files"
        rows.append(row("environment", f"{each.prefix}: {differences} from the lock ({files} compared)"))
    yield listing("", rows)


def _attention(found: Imported) -> Iterator[Table]:
    # Settings after packages and indexes.
    lost_lines = sorted(found.lost, key=lambda each: each.text.startswith("ENV "))
    lost = [row(f"{each.source}: {each.text}", notes=[f"{each.outcome.value}: {each.reason}"]) for each in lost_lines]
    yield first_rows(listing("not in the spec", lost), _MOST, "--format json has them")
    moved = [
        row(f"{each.name} {each.before} -> {each.now or 'not locked'}", notes=[each.why]) for each in found.moved or ()
    ]
    yield first_rows(listing("versions that moved", moved), _MOST, "--format json has them")
    decisions = [
        row(f"{each.what} = {each.value}", notes=[_with_source(each.why, each.source)]) for each in found.decisions
    ]
    yield listing("decided by envspec", decisions)


def _with_source(why: str, source: str) -> str:
    return f"{why} ({source})" if source and source not in why else why


def _ledger(found: Imported) -> Iterator[Table]:
    """Lines of files; what is installed or locked is counted alone, since versions that moved are listed above."""
    rest = [each for each in found.ledger if each.outcome is Outcome.TRANSLATED]
    rows = [row(f"{each.source}: {each.text}", notes=[each.reason]) for each in rest if each.source.line]
    if others := sum(not each.source.line for each in rest):
        rows.append(row(f"{counted(others, 'package')} and settings of environments (--format json has them)"))
    yield first_rows(listing("translated", rows), _MOST, "--format json has them")
    yield first_rows(listing(Outcome.OUTSIDE.value, [*_outside(found)]), _MOST, "--format json has them")


def _outside(found: Imported) -> Iterator[Row]:
    """A row for each reason, with the first of its lines."""
    reasons: dict[str, list[LedgerEntry]] = {}
    for each in found.ledger:
        if each.outcome is Outcome.OUTSIDE:
            reasons.setdefault(each.reason, []).append(each)
    for reason, entries in reasons.items():
        more = f" (and {counted(len(entries) - 1, 'more line')})" if len(entries) > 1 else ""
        text = f"{entries[0].source}: {entries[0].text}"
        yield row(f"{shortened(text, _LONGEST)}{more}", notes=[reason])
