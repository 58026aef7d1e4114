"""What `envspec init` did, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from envspec.conformance.text import counted
from envspec.escaping import cut
from envspec.importers.types import Outcome
from envspec.report.format import Row, Table, document, first_rows, listing, row, text

if TYPE_CHECKING:
    from envspec.importers.result import Imported, Moved
    from envspec.importers.types import LedgerEntry

#: Rows of a table on a terminal.
_MOST: Final = 40
#: Of a line that concerns no environment, in characters.
_LONGEST: Final = 120


def as_text(found: Imported, width: int) -> str:
    """The answer first, then what needs attention, then the ledger."""
    return text((), (_answer(found), *_attention(found), *_ledger(found)), width)


def as_json(found: Imported) -> str:
    """Everything, whole."""
    return document(
        {
            "name": found.name,
            "spec": str(found.spec),
            "lock": found.lock and str(found.lock),
            "counts": _counts(found),
            "decisions": [
                {"what": each.what, "value": each.value, "why": each.why, "source": each.source}
                for each in found.decisions
            ],
            "compared": found.compared,
            "moved": found.moved and list(map(_move, found.moved)),
            "proofs": [{"prefix": str(each.prefix), **each.result.as_json()} for each in found.proofs],
            "ledger": list(map(_entry, found.ledger)),
        }
    )


def _entry(each: LedgerEntry) -> dict[str, Any]:
    return {
        "file": each.source.file,
        "line": each.source.line or None,
        "text": each.text,
        "outcome": each.outcome.value,
        "reason": each.reason,
    }


def _move(moved: Moved) -> dict[str, Any]:
    return {"name": moved.name, "before": moved.before, "now": moved.now or None, "why": moved.why}


def _counts(found: Imported) -> dict[str, int]:
    counts = {}
    for outcome in Outcome:
        counts[outcome.value] = 0
    for entry in found.ledger:
        counts[entry.outcome.value] += 1
    return counts


def _answer(found: Imported) -> Table:
    counts = []
    for outcome, count in _counts(found).items():
        if count or outcome not in (Outcome.OUTSIDE.value, Outcome.NOT_DECIDED.value):
            counts.append(f"{count} {outcome}")
    rows = [row("spec", str(found.spec))]
    if found.lock is not None:
        rows.append(row("lock", str(found.lock)))
    rows.append(row("lines", ", ".join(counts)))
    if found.moved is not None and found.compared:
        same = found.compared - len(found.moved)
        rows.append(row("versions", f"{same} of {found.compared} as in the sources"))
    for each in found.proofs:
        differences = counted(len(each.result.findings), "difference")
        files = f"{each.result.counts.files:,} files"
        rows.append(row("environment", f"{each.prefix}: {differences} from the lock ({files} compared)"))
    return listing("", rows)


def _attention(found: Imported) -> Iterator[Table]:
    # Settings after packages and indexes.
    lost = []
    for each in sorted(found.lost, key=lambda each: each.text.startswith("ENV ")):
        lost.append(row(_line(each), notes=[f"{each.outcome.value}: {each.reason}"]))
    yield _shortened("not in the spec", lost)
    moved = []
    for version in found.moved or ():
        change = f"{version.before} -> {version.now or 'not locked'}"
        moved.append(row(f"{version.name} {change}", notes=[version.why]))
    yield _shortened("versions that moved", moved)
    decisions = [
        row(f"{each.what} = {each.value}", notes=[_with_source(each.why, each.source)]) for each in found.decisions
    ]
    yield listing("decided by envspec", decisions)


def _with_source(why: str, source: str) -> str:
    if source and source not in why:
        return f"{why} ({source})"
    return why


def _ledger(found: Imported) -> Iterator[Table]:
    """Lines of files; what is installed or locked is counted alone, since versions that moved are listed above."""
    rows = list(_by_reason(found, Outcome.TRANSLATED))
    others = sum(each.outcome is Outcome.TRANSLATED and not each.source.line for each in found.ledger)
    if others:
        rows.append(row(f"{counted(others, 'package')} and settings of environments (--format json has them)"))
    yield _shortened("translated", rows)
    yield _shortened(Outcome.OUTSIDE.value, _by_reason(found, Outcome.OUTSIDE))


def _shortened(title: str, rows: Iterable[Row]) -> Table:
    return first_rows(listing(title, rows), _MOST, "--format json has them")


def _line(each: LedgerEntry) -> str:
    return f"{each.source}: {each.text}"


def _by_reason(found: Imported, outcome: Outcome) -> Iterator[Row]:
    """A row for each reason, with the first of its lines."""
    reasons: dict[str, list[LedgerEntry]] = {}
    for each in found.ledger:
        if each.outcome is outcome and (each.source.line or outcome is Outcome.OUTSIDE):
            reasons.setdefault(each.reason, []).append(each)
    for reason, entries in reasons.items():
        line = cut(_line(entries[0]), _LONGEST)
        if len(entries) > 1:
            line += f" (and {counted(len(entries) - 1, 'more line')})"
        yield row(line, notes=[reason])
