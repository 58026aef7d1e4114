"""A fleet of nodes as text, Markdown, HTML and JSON: what to drain first, then what differs, then all nodes."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from statistics import median
from typing import Final

from envspec.conformance.text import counted
from envspec.escaping import cut, markdown, one_line
from envspec.receipts.compare import ComparisonColumn, columns
from envspec.receipts.fleet import Fleet, NodeDifference, NodeReport, NodeVerdict, OddNumber, hostlist
from envspec.receipts.metrics import devices, kind
from envspec.receipts.model import Receipt, Verdict
from envspec.report import page
from envspec.report.format import (
    Row,
    Table,
    amount,
    block,
    document,
    first_rows,
    listing,
    markdown_page,
    not_empty,
    optional,
    percent,
    row,
    short_hashes,
    text,
    with_heads,
)
from envspec.report.receipt import brief_counts
from envspec.structs import replace

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
    first = (_shared(fleet), _reasons(fleet, NodeVerdict.DRAIN))
    odd = first_rows(_odd(fleet.odd), _SHOWN, "--format json has all of them")
    rest = (odd, _watched(fleet), with_heads(_nodes(fleet)), _few(fleet))
    blocks = [text([one_line(headline(fleet))], first, width)]
    if commands := drain_commands(fleet):
        # A command that is broken into lines can't be copied.
        blocks.append(block(["To drain them in Slurm", *map("  {}".format, commands)]))
    blocks.append(text((), rest, width))
    return "\n".join(filter(None, blocks))


def as_markdown(fleet: Fleet) -> str:
    tables = (
        _shared(fleet),
        _reasons(fleet, NodeVerdict.DRAIN),
        _odd(fleet.odd),
        _watched(fleet),
        _nodes(fleet),
        _differences(fleet.differences),
        _few(fleet),
    )
    return markdown_page((f"## {markdown(headline(fleet))}", ""), tables)


def as_html(fleet: Fleet) -> str:
    odd = _odd(fleet.odd)
    first = (
        _shared(fleet),
        _reasons(fleet, NodeVerdict.DRAIN),
        first_rows(odd, _SHOWN, "all of them are below"),
        _watched(fleet),
    )
    tables = [_nodes(fleet), _differences(fleet.differences), _few(fleet)]
    if len(odd.rows) > _SHOWN:
        tables.insert(0, replace(odd, is_folded=True))
    return page.render(
        "fleet.html.jinja",
        headline=headline(fleet),
        summary=_summary(fleet),
        verdict=fleet.verdict.value,
        commands=drain_commands(fleet),
        first=not_empty(first),
        plots=list(_plots(fleet)),
        tables=not_empty(tables),
    )


def as_json(fleet: Fleet) -> str:
    """Nodes with verdicts and reasons, odd numbers, differences, and what fails on all nodes."""
    return document(
        {
            "headline": headline(fleet),
            "verdict": fleet.verdict,
            "drain": fleet.names_of(NodeVerdict.DRAIN),
            "watch": fleet.names_of(NodeVerdict.WATCH),
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
    actions = []
    odd = 0
    for verdict in (NodeVerdict.DRAIN, NodeVerdict.WATCH):
        if names := fleet.names_of(verdict):
            odd += len(names)
            actions.append(f"{verdict.value} {_short_list(names)}")
    count = counted(len(fleet.nodes), "node")
    if fleet.shared:
        return "; ".join((f"{count}: the stack fails on all of them", *actions))
    if fleet.verdict is Verdict.NOT_KNOWN:
        on = "all of them"
        if len(fleet.not_known) < len(fleet.nodes):
            on = hostlist(fleet.not_known)
        return "; ".join((f"{count}: whether the stack works is not known on {on}", *actions))
    if not actions:
        return f"{count}: none differs from the others"
    return f"{odd} of {count} {'is' if odd == 1 else 'are'} odd: {', '.join(actions)}"


def _short_list(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return hostlist(names[:_NAMED]) + optional(" and {} more", max(0, more))


def _summary(fleet: Fleet) -> str:
    kinds: Counter[str] = Counter()
    for each in fleet.nodes:
        name = "lost"
        if each.receipt:
            name = devices(each.receipt)
        kinds[name] += 1
    return "; ".join(f"{counted(count, 'node')}: {name}" for name, count in kinds.most_common())


def drain_commands(fleet: Fleet) -> list[str]:
    """Slurm's command for each reason that nodes are to be drained for; a comment for names that Slurm doesn't take."""
    groups: dict[str, list[str]] = {}
    for each in fleet.of(NodeVerdict.DRAIN):
        groups.setdefault(f"envspec: {_short(each.reasons[0])}", []).append(each.name)
    commands = []
    for why, names in groups.items():
        taken = list(filter(_NODE.fullmatch, names))
        if taken:
            nodes = shlex.quote(f"NodeName={hostlist(taken)}")
            commands.append(f"scontrol update {nodes} State=DRAIN Reason={shlex.quote(why)}")
        for name in names:
            if name not in taken:
                commands.append(f"# not the name of a node: {one_line(name)}")
    return commands


def _short(reason: str) -> str:
    return cut(one_line(reason), _REASON)


def _watched(fleet: Fleet) -> Table:
    """The nodes to watch for other reasons than their numbers, which have a table."""
    return _reasons(fleet, NodeVerdict.WATCH, {(each.node, each.text) for each in fleet.odd})


def _shared(fleet: Fleet) -> Table:
    return listing("On all nodes", map(row, fleet.shared), "what")


def _reasons(fleet: Fleet, verdict: NodeVerdict, known: Set[tuple[str, str]] = frozenset()) -> Table:
    """Nodes with the same reasons are one row. known: nodes and reasons that are shown elsewhere."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in fleet.of(verdict):
        reasons = tuple(_short(reason) for reason in each.reasons if (each.name, reason) not in known)
        if reasons:
            groups.setdefault(reasons, []).append(each.name)
    rows = []
    for (first, *others), names in groups.items():
        rows.append(row(hostlist(names), first, notes=others))
    return listing(f"To {verdict.value}", rows, "node|why", notes="also")


def _odd(found: Sequence[OddNumber]) -> Table:
    rows = []
    for each in found:
        value, middle = amount(each.value, each.unit), amount(each.median, each.unit)
        worse = percent(-each.worse).lstrip("+-")
        deviations = optional("{:.1f}", each.deviations)
        rows.append(row(each.node, each.what, value, middle, worse, deviations))
    titles = "node|number|value:number|median:number|worse by:number|deviations:number"
    return listing("Worse than the median of their kind", rows, titles)


def _nodes(fleet: Fleet) -> Table:
    """Equal nodes are one row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in fleet.nodes:
        cells: tuple[str, ...] = (each.verdict.value, "lost")
        if receipt := each.receipt:
            counts = brief_counts(receipt.summary.checks)
            cells = (each.verdict.value, receipt.verdict.value, counts, receipt.machine.driver or "-", devices(receipt))
        groups.setdefault(cells, []).append(each.name)
    titles = "nodes|count:number|verdict|suite:outcome|passed/failed/not run|driver|ran on"
    rows = [row(hostlist(names), str(len(names)), *cells) for cells, names in groups.items()]
    return listing("Nodes", rows, titles)


def _differences(found: Sequence[NodeDifference]) -> Table:
    rows: list[Row] = []
    for each in found:
        for value, names in sorted(each.others.items(), key=lambda other: -len(other[1])):
            rows.append(row(each.what, short_hashes(each.most) or "-", short_hashes(value) or "-", hostlist(names)))
    return listing("Differences", rows, "what|most have|others have|these nodes")


def _few(fleet: Fleet) -> Table:
    note = "too few nodes for a median: numbers were compared by their tolerances alone"
    rows = []
    for each in fleet.few:
        rows.append(row(each, note))
    return listing("Kinds of machines with few nodes", rows, "kind|note")


def _plots(fleet: Fleet) -> Iterator[tuple[str, dict[str, object]]]:
    """The main numbers of all nodes of a kind, each node a dot; those of nodes that are not `ok` stand out."""
    nodes: dict[str, list[NodeReport]] = {}
    receipts: dict[str, list[Receipt]] = {}
    for each in fleet.nodes:
        if each.receipt:
            name = kind(each.receipt)
            nodes.setdefault(name, []).append(each)
            receipts.setdefault(name, []).append(each.receipt)
    for name, found in receipts.items():
        for column in columns(found):
            if len(set(column.values) - {None}) < 2:
                continue
            title = page.plot_title(column)
            if len(receipts) > 1:
                title += f", {name}"
            yield title, _dots(nodes[name], column)


def _dots(nodes: Sequence[NodeReport], column: ComparisonColumn) -> dict[str, object]:
    """The column's values of the nodes, of which two differ, as dots that are stacked where they are close.

    Of the template: x and y from the top left corner, of `labels` with their text; `middle` is the median's x.
    """
    found: dict[str, float] = {}
    odd: list[str] = []
    others: list[str] = []
    for each, value in zip(nodes, column.values, strict=True):
        if value is None:
            continue
        found[each.name] = value
        if each.verdict is NodeVerdict.OK:
            others.append(each.name)
        else:
            odd.append(each.name)
    low, middle, high = min(found.values()), median(found.values()), max(found.values())
    room = _WIDTH - 2 * _EDGE

    def across(value: float) -> float:
        return _EDGE + room * (value - low) / (high - low)

    columns_of = {name: round(across(value) / _DOT) * _DOT for name, value in found.items()}
    step = min(_DOT, _STACK / max(Counter(columns_of.values()).values()))
    furthest = sorted(odd, key=lambda name: -abs(found[name] - middle))[:_LABELS]
    top = _LINE * len(furthest)
    labels = []
    for number, name in enumerate(furthest, 1):
        labels.append((columns_of[name], _LINE * number - 3.0, f"{name}: {amount(found[name], column.unit)}"))
    places = []
    stacked: Counter[float] = Counter()
    # Nodes that stand out are at the bottom, where their labels' lines end.
    for name in (*odd, *others):
        x = columns_of[name]
        places.append((x, top + _STACK - step * stacked[x]))
        stacked[x] += 1
    return {
        "width": _WIDTH,
        "height": top + _STACK + _DOT,
        "top": top,
        "dots": places[len(odd) :],
        "marked": places[: len(odd)],
        "labels": labels,
        "middle": across(middle),
        "low": amount(low, column.unit),
        "high": amount(high, column.unit),
        "caption": f"median {amount(middle, column.unit)}",
        "names": hostlist(odd),
    }
