"""A fleet of nodes as text, Markdown, HTML and JSON: what to drain first, then what differs, then all nodes."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from statistics import median
from typing import Final

from envspec.context import counted
from envspec.escaping import markdown, one_line
from envspec.receipts.compare import columns
from envspec.receipts.fleet import Difference, Fleet, NodeReport, NodeVerdict, OddNumber, hostlist
from envspec.receipts.metrics import Better, devices, kind
from envspec.receipts.model import Verdict
from envspec.report import page
from envspec.report.format import (
    Column,
    Dots,
    Kind,
    Row,
    Table,
    amount,
    document,
    first_rows,
    listing,
    markdown_lines,
    percent,
    row,
    short_hashes,
    shortened,
    text,
)

#: Longest list of names in the headline, and of odd numbers in text and on the first screen.
_NAMED: Final = 4
_SHOWN: Final = 20
#: Characters of a reason: each receipt has all of it. Slurm's own limit is longer.
_REASON: Final = 240
#: A name that Slurm takes for one node, and a shell for a word: `n[1-9]` would drain nine.
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Of a plot, in units of the drawing: its width, the margin on both sides, the height for stacked dots, the size of a
#: dot, and the height of a label.
_WIDTH: Final = 440.0
_EDGE: Final = 10.0
_STACK: Final = 56.0
_DOT: Final = 5.0
_LINE: Final = 14.0
#: How many nodes that stand out have their name and value in a plot.
_LABELS: Final = 3


def as_text(fleet: Fleet, width: int) -> str:
    nodes = _nodes(fleet)
    heads = Row(tuple(column.title for column in nodes.columns))
    first = (listing("On all nodes", (row(each) for each in fleet.shared)), _reasons(fleet, NodeVerdict.DRAIN))
    odd = first_rows(_odd(fleet.odd), _SHOWN, "--format json has all of them")
    rest = (odd, _watched(fleet), replace(nodes, rows=(heads, *nodes.rows)), _few(fleet))
    # A command that is broken into lines can't be copied.
    commands = [f"  {each}" for each in drain_commands(fleet)]
    blocks = (
        text([one_line(headline(fleet))], first, width),
        text(["To drain them in Slurm", *commands] if commands else [], (), width),
        text((), rest, width),
    )
    return "\n".join(filter(None, blocks))


def as_markdown(fleet: Fleet) -> str:
    tables = (
        listing("On all nodes", (row(each) for each in fleet.shared), "what"),
        _reasons(fleet, NodeVerdict.DRAIN),
        _odd(fleet.odd),
        _watched(fleet),
        _nodes(fleet),
        _differences(fleet.differences),
        _few(fleet),
    )
    lines = [f"## {markdown(headline(fleet))}", "", *(line for each in tables for line in markdown_lines(each))]
    return "\n".join(lines).rstrip("\n") + "\n"


def as_html(fleet: Fleet) -> str:
    odd = _odd(fleet.odd)
    first = (
        listing("On all nodes", (row(each) for each in fleet.shared), "what"),
        _reasons(fleet, NodeVerdict.DRAIN),
        first_rows(odd, _SHOWN, "all of them are below"),
        _watched(fleet),
    )
    all_odd = (replace(odd, is_folded=True),) if len(odd.rows) > _SHOWN else ()
    tables = (*all_odd, _nodes(fleet), _differences(fleet.differences), _few(fleet))
    return page.render(
        "fleet.html.jinja",
        headline=headline(fleet),
        summary=_summary(fleet),
        verdict=fleet.verdict.value,
        commands=drain_commands(fleet),
        first=[table for table in first if table.rows],
        plots=list(_plots(fleet)),
        tables=[table for table in tables if table.rows],
    )


def as_json(fleet: Fleet) -> str:
    """Nodes with verdicts and reasons, odd numbers, differences, and what fails on all nodes."""
    return document(
        {
            "headline": headline(fleet),
            "verdict": fleet.verdict,
            "drain": [each.name for each in fleet.of(NodeVerdict.DRAIN)],
            "watch": [each.name for each in fleet.of(NodeVerdict.WATCH)],
            "not_known": fleet.not_known,
            "shared": fleet.shared,
            "nodes": [{"name": each.name, "verdict": each.verdict, "reasons": each.reasons} for each in fleet.nodes],
            "odd": fleet.odd,
            "differences": fleet.differences,
            "few": fleet.few,
        }
    )


def headline(fleet: Fleet) -> str:
    """What to do, in one sentence."""
    drain, watch = (fleet.of(each) for each in (NodeVerdict.DRAIN, NodeVerdict.WATCH))
    actions = [f"{verb} {_names(found)}" for verb, found in (("drain", drain), ("watch", watch)) if found]
    count = counted(len(fleet.nodes), "node")
    if fleet.shared:
        return "; ".join((f"{count}: the stack fails on all of them", *actions))
    if fleet.verdict is Verdict.NOT_KNOWN:
        on = "all of them" if len(fleet.not_known) == len(fleet.nodes) else hostlist(fleet.not_known)
        return "; ".join((f"{count}: whether the stack works is not known on {on}", *actions))
    if not actions:
        return f"{count}: none differs from the others"
    odd = len(drain) + len(watch)
    return f"{odd} of {count} {'is' if odd == 1 else 'are'} odd: {', '.join(actions)}"


def _names(nodes: Sequence[NodeReport]) -> str:
    names = hostlist(each.name for each in nodes[:_NAMED])
    return names if len(nodes) <= _NAMED else f"{names} and {len(nodes) - _NAMED} more"


def _summary(fleet: Fleet) -> str:
    kinds: dict[str, int] = {}
    for each in fleet.nodes:
        name = devices(each.receipt) if each.receipt else "lost"
        kinds[name] = kinds.get(name, 0) + 1
    return "; ".join(
        f"{counted(count, 'node')}: {name}" for name, count in sorted(kinds.items(), key=lambda each: -each[1])
    )


def drain_commands(fleet: Fleet) -> list[str]:
    """Slurm's command for each reason that nodes are to be drained for; a comment for names that Slurm doesn't take."""
    groups: dict[str, list[str]] = {}
    for each in fleet.of(NodeVerdict.DRAIN):
        groups.setdefault(f"envspec: {_short(each.reasons[0])}", []).append(each.name)
    commands = []
    for why, names in groups.items():
        if taken := [name for name in names if _NODE.fullmatch(name)]:
            nodes = shlex.quote(f"NodeName={hostlist(taken)}")
            commands.append(f"scontrol update {nodes} State=DRAIN Reason={shlex.quote(why)}")
        commands += [f"# not the name of a node: {one_line(name)}" for name in names if name not in taken]
    return commands


def _short(reason: str) -> str:
    return shortened(one_line(reason), _REASON)


def _watched(fleet: Fleet) -> Table:
    """The nodes to watch for other reasons than their numbers, which have a table."""
    return _reasons(fleet, NodeVerdict.WATCH, {(each.node, each.text) for each in fleet.odd})


def _reasons(fleet: Fleet, verdict: NodeVerdict, known: Set[tuple[str, str]] = frozenset()) -> Table:
    """Nodes with the same reasons are one row. known: nodes and reasons that are shown elsewhere."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in fleet.of(verdict):
        if reasons := tuple(_short(reason) for reason in each.reasons if (each.name, reason) not in known):
            groups.setdefault(reasons, []).append(each.name)
    rows = (row(hostlist(names), why[0], notes=why[1:]) for why, names in groups.items())
    return listing(f"To {verdict.value}", rows, "node|why", notes="also")


def _odd(found: Sequence[OddNumber]) -> Table:
    heads = (
        *(Column("node"), Column("number")),
        *(Column(name, Kind.NUMBER) for name in ("value", "median", "worse by", "deviations")),
    )
    rows = (
        row(
            each.node,
            each.what,
            amount(each.value, each.unit),
            amount(each.median, each.unit),
            percent(-each.worse).lstrip("+-"),
            f"{each.deviations:.1f}" if each.deviations is not None else "",
        )
        for each in found
    )
    return Table("Worse than the median of their kind", heads, tuple(rows))


def _nodes(fleet: Fleet) -> Table:
    """Equal nodes are one row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in fleet.nodes:
        receipt = each.receipt
        if receipt is None:
            cells = (each.verdict.value, "lost", "", "", "")
        else:
            checks = receipt.summary.checks
            counts = f"{checks.passed} / {checks.failed} / {checks.not_run}"
            cells = (each.verdict.value, receipt.verdict.value, counts, receipt.machine.driver or "-", devices(receipt))
        groups.setdefault(cells, []).append(each.name)
    heads = (
        *(Column("nodes"), Column("count", Kind.NUMBER), Column("verdict"), Column("suite", Kind.OUTCOME)),
        *(Column("passed/failed/not run"), Column("driver"), Column("ran on")),
    )
    rows = (row(hostlist(names), str(len(names)), *cells) for cells, names in groups.items())
    return Table("Nodes", heads, tuple(rows))


def _differences(found: Sequence[Difference]) -> Table:
    rows: list[Row] = []
    for each in found:
        for value, names in sorted(each.others.items(), key=lambda other: -len(other[1])):
            rows.append(row(each.what, short_hashes(each.most) or "-", short_hashes(value) or "-", hostlist(names)))
    return listing("Differences", rows, "what|most have|others have|these nodes")


def _few(fleet: Fleet) -> Table:
    rows = (
        row(each, "too few nodes for a median: numbers were compared by their tolerances alone") for each in fleet.few
    )
    return listing("Kinds of machines with few nodes", rows, "kind|note")


def _plots(fleet: Fleet) -> Iterator[tuple[str, Dots]]:
    """The main numbers of all nodes of a kind, each node a dot; those of nodes that are not `ok` stand out."""
    kinds: dict[str, list[NodeReport]] = {}
    for each in fleet.nodes:
        if each.receipt:
            kinds.setdefault(kind(each.receipt), []).append(each)
    for name, nodes in kinds.items():
        for column in columns([each.receipt for each in nodes if each.receipt]) if len(nodes) > 1 else ():
            if len({value for value in column.values if value is not None}) < 2:
                continue
            better = "less" if column.better is Better.LOWER else "more"
            title = f"{column.title}, {column.unit} ({better} is better)" + (f", {name}" if len(kinds) > 1 else "")
            yield title, _dots(nodes, column.values, column.unit)


def _dots(nodes: Sequence[NodeReport], values: Sequence[float | None], unit: str) -> Dots:
    found = {each.name: value for each, value in zip(nodes, values, strict=True) if value is not None}
    odd = [each.name for each in nodes if each.verdict is not NodeVerdict.OK and each.name in found]
    low, middle, high = min(found.values()), median(found.values()), max(found.values())
    room = _WIDTH - 2 * _EDGE

    def across(value: float) -> float:
        return _EDGE + room * (value - low) / (high - low)

    columns_of = {name: round(across(value) / _DOT) * _DOT for name, value in found.items()}
    step = min(_DOT, _STACK / max(Counter(columns_of.values()).values()))
    furthest = sorted(odd, key=lambda name: -abs(found[name] - middle))[:_LABELS]
    top = _LINE * len(furthest)
    places: dict[str, tuple[float, float]] = {}
    stacked: Counter[float] = Counter()
    # Nodes that stand out are at the bottom, where their labels' lines end.
    for name in (*odd, *(name for name in found if name not in odd)):
        x = columns_of[name]
        places[name] = (x, top + _STACK - step * stacked[x])
        stacked[x] += 1
    return Dots(
        _WIDTH,
        top + _STACK + _DOT,
        top,
        tuple(place for name, place in places.items() if name not in odd),
        tuple(places[name] for name in odd),
        tuple(
            (columns_of[name], _LINE * number - 3.0, f"{name}: {amount(found[name], unit)}")
            for number, name in enumerate(furthest, 1)
        ),
        across(middle),
        amount(low, unit),
        amount(high, unit),
        f"median {amount(middle, unit)}",
        hostlist(odd),
    )
