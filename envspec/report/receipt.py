"""A receipt as text, Markdown, HTML and JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from envspec.conformance.receipt import TRAINING
from envspec.conformance.results import CheckOutcome, Status
from envspec.context import counted
from envspec.escaping import markdown
from envspec.receipts.compare import columns
from envspec.receipts.metrics import devices
from envspec.receipts.model import Counts, Receipt, Verdict, dump
from envspec.report import findings, page
from envspec.report.format import (
    Column,
    Kind,
    Row,
    Table,
    amount,
    folded,
    listing,
    markdown_lines,
    percent,
    row,
    share,
    shortened,
    sign_of,
    size,
    text,
    verbatim,
)

#: A longer reason is shortened to this many characters of its beginning and of its end; the JSON has all of it.
_PART: Final = 2000
#: Characters of a reason in the answer.
_SENTENCE: Final = 160
#: Checks without which nothing is known about training on several GPUs.
_SEVERAL: Final = ("ddp",)
#: Seconds of waiting for a CPU that are worth a row.
_WAITED_S: Final = 1.0
#: Checks that have a log, and a hint that says what to do.
_WITH_LOG: Final = (Status.FAILED, Status.NOT_KNOWN)
_CHECK: Final = Column("check")
_OUTCOME: Final = Column("outcome", Kind.OUTCOME)


def answer(receipt: Receipt) -> str:
    """Whether one can train with this stack on this machine, in a sentence."""
    if receipt.verdict is Verdict.FAILED:
        more = len(receipt.reasons) - 1
        others = f", and {counted(more, 'more reason')}" if more > 0 else ""
        failed = [each for each in receipt.checks if each.status is Status.FAILED]
        why = reason(failed[0]) if len(failed) == 1 else ""
        why = shortened(" ".join(why.split()), _SENTENCE)
        return f"No: {receipt.reasons[0]}{f' ({why})' if why else ''}{others}."
    if receipt.verdict is Verdict.NOT_KNOWN:
        return f"Not known: {'; '.join(receipt.reasons)}."
    passed = {each.check for each in receipt.checks if each.status is Status.PASSED}
    is_gpu = receipt.device == "cuda"
    lacking = [each for each in TRAINING if each not in passed and (is_gpu or each != TRAINING[0])]
    if lacking:
        return f"Nothing that ran failed. Whether training works is not known: {_listed(lacking)} did not run."
    if not is_gpu:
        return "What ran works on this CPU; no GPU was tested."
    is_several = len(receipt.machine.gpus) > 1 or receipt.nodes.count > 1
    lacking = [each for each in _SEVERAL if is_several and each not in passed]
    if lacking:
        open_ = f"On several it is not known: {_listed(lacking)} did not run."
        return f"Yes, on one GPU: training works on each of {devices(receipt)}. {open_}"
    return f"Yes: training works on {devices(receipt)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _first_screen(receipt: Receipt) -> Table:
    """What to do first, what the run was on, its main numbers, and what it leaves open."""
    hints = [each.hint for each in receipt.checks if each.status in _WITH_LOG and each.hint]
    driver = ", ".join(filter(None, [receipt.machine.driver, f"CUDA {receipt.machine.cuda_driver}"]))
    on = "; ".join(_gpus(receipt)) if receipt.device == "cuda" else devices(receipt)
    main = "; ".join(f"{each.title} {amount(each.values[0], each.unit)}" for each in columns([receipt]))
    not_run = [each.check for each in receipt.checks if each.status is Status.NOT_RUN]
    rows = (
        row("do first", hints[0] if hints else ""),
        row("ran on", on or devices(receipt)),
        row("driver", driver if receipt.machine.driver else ""),
        row("main numbers", main),
        row("not run", ", ".join(not_run)),
        row("checks", counts(receipt.summary.checks)),
    )
    return listing("", (each for each in rows if each.cells[1]))


def as_json(receipt: Receipt) -> str:
    return dump(receipt)


def as_text(receipt: Receipt, width: int) -> str:
    summary = receipt.summary
    head = [
        row("training", answer(receipt)),
        row("checks", counts(summary.checks)),
        row("findings", f"{counts(summary.findings)}, {summary.findings.info} info"),
        *_place(receipt)[:1],
        row("driver", receipt.machine.driver),
        row("versions", ", ".join(f"{what} {version}" for what, version in receipt.ran.items())),
        row("time", amount(receipt.seconds, "s")),
        *(row("reason", reason) for reason in receipt.reasons),
    ]
    title = f"{receipt.subject}: {receipt.verdict.value} on {devices(receipt)}"
    checks = _checks(receipt)
    rows = tuple(
        Row((each.cells[1], each.cells[0], *each.cells[2:3], each.cells[4]), each.notes) for each in checks.rows
    )
    columns = (Column(), Column(), Column("", Kind.NUMBER), Column())
    return text(
        (),
        (
            listing(title, (each for each in head if each.cells[1])),
            replace(checks, columns=columns, rows=rows),
            listing("Parts that were not run", _parts_not_run(receipt)),
            _baseline(receipt, only_worse=True),
        ),
        width,
    )


def as_markdown(receipt: Receipt) -> str:
    """In GitHub's form, for the summary of a job: the verdict first, details folded."""
    return "\n".join(_markdown(receipt)).rstrip("\n") + "\n"


def _markdown(receipt: Receipt) -> Iterator[str]:
    sign = sign_of(receipt.verdict.value)
    yield f"## {sign} {markdown(receipt.subject)}: {receipt.verdict.value} on {markdown(devices(receipt))}"
    yield ""
    yield f"**Can I train here?** {markdown(answer(receipt))}"
    yield ""
    yield f"Checks: {counts(receipt.summary.checks)}. Findings: {counts(receipt.summary.findings)}."
    yield ""
    yield from (f"- {markdown(reason)}" for reason in receipt.reasons)
    yield from [""] if receipt.reasons else []
    logs = [check for check in receipt.checks if check.status in _WITH_LOG and check.log]
    for table in (_checks(receipt), _failed(receipt)):
        yield from markdown_lines(table)
    if logs:
        lines = (line for each in logs for line in (f"{markdown(each.check)}:", "", verbatim(each.log), ""))
        yield from folded("End of the output of checks", lines)
    where = (*_stack(receipt), *_machine(receipt), *itertools.starmap(row, receipt.ran.items()))
    for table in (
        _not_run(receipt),
        _baseline(receipt),
        findings.table("Numbers and bounds", receipt, findings.has_number),
        replace(listing("Stack, machine and versions", where), is_folded=True),
    ):
        yield from markdown_lines(table)


def as_html(receipt: Receipt) -> str:
    tables = (
        _checks(receipt),
        _failed(receipt),
        _not_run(receipt),
        findings.table("Numbers and bounds", receipt, findings.has_number, page.bounds(receipt)),
        _phases(receipt),
        Table("Peak memory", (), (), plot=page.memory(receipt)),
        findings.table("Other findings", receipt, lambda each: not findings.has_number(each)),
        _fingerprints(receipt),
        _baseline(receipt),
        listing("Machine", _machine(receipt)),
        listing("Stack", _stack(receipt)),
        listing("Versions that ran", itertools.starmap(row, receipt.ran.items())),
    )
    return page.render(
        "receipt.html.jinja",
        receipt=receipt,
        answer=answer(receipt),
        first=_first_screen(receipt),
        made_at=f"{receipt.made_at:%Y-%m-%d %H:%M} UTC",
        seconds=amount(receipt.seconds, "s"),
        findings=counts(receipt.summary.findings),
        logs=[check for check in receipt.checks if check.status in _WITH_LOG and check.log],
        tables=[table for table in tables if table.rows or table.plot],
    )


def _checks(receipt: Receipt) -> Table:
    columns = (_CHECK, _OUTCOME, Column("time", Kind.NUMBER), Column("findings", Kind.NUMBER), Column("reason"))
    rows = []
    for check in receipt.checks:
        judged = [finding.ok for finding in check.findings if finding.ok is not None]
        causes = (check.cause.value if check.cause else "", reason(check))
        cells = (
            check.check,
            check.status.value + (" (required)" if check.required else ""),
            f"{check.seconds:.1f} s" if check.seconds else "",
            f"{sum(judged)} of {len(judged)}" if judged else "",
            ": ".join(filter(None, causes)),
        )
        rows.append(row(*cells, notes=(f"hint: {check.hint}" if check.hint else "",)))
    return Table("Checks", columns, tuple(rows), notes="")


def _failed(receipt: Receipt) -> Table:
    return findings.table("Failed findings", receipt, lambda each: each.ok is False, is_folded=False)


def _not_run(receipt: Receipt) -> Table:
    whole = (row(check.check, "", reason(check)) for check in receipt.checks if check.status is Status.NOT_RUN)
    return listing("Not run", (*whole, *_parts_not_run(receipt)), "check|part|reason")


def _parts_not_run(receipt: Receipt) -> Iterator[Row]:
    return (row(*part) for part in findings.parts_not_run(receipt))


def _phases(receipt: Receipt) -> Table:
    rows: list[Row] = []
    for check in receipt.checks:
        rows += (row(check.check, f"{each.name}, before its start", f"{each.seconds:.3f}") for each in check.preimports)
        rows += (row(check.check, each.name, f"{each.seconds:.3f}") for each in check.phases)
        if check.waited_s >= _WAITED_S:
            rows.append(row(check.check, "waited for a CPU, within the phases", f"{check.waited_s:.3f}"))
        rows.append(row(check.check, f"total (limit: {check.limit_s:g})", f"{check.seconds:.3f}"))
    columns = (_CHECK, Column("phase"), Column("seconds", Kind.NUMBER))
    return Table("Time of each check, by phase", columns, tuple(rows), is_folded=True, plot=page.times(receipt))


def _fingerprints(receipt: Receipt) -> Table:
    rows = (
        row(check.check, each.name, each.level.value, each.digest, each.key)
        for check in receipt.checks
        for each in check.fingerprints
    )
    return replace(listing("Fingerprints of results", rows, "check|fingerprint|level|SHA-256|key"), is_folded=True)


def _baseline(receipt: Receipt, *, only_worse: bool = False) -> Table:
    baseline = receipt.baseline
    if baseline is None:
        return Table("", (), ())
    title = f"Compared with the receipt of {baseline.lock}, {baseline.made_at:%Y-%m-%d %H:%M} UTC"
    if baseline.not_compared:
        return listing(title, [row(f"not compared: {baseline.not_compared}")], "result")
    worse = sum(each.is_worse for each in baseline.rows)
    columns = (
        Column("number"),
        Column("recorded", Kind.NUMBER),
        Column("now", Kind.NUMBER),
        Column("change", Kind.NUMBER),
        Column("tolerance", Kind.NUMBER),
        _OUTCOME,
    )
    rows = [
        row(
            f"{each.check}: {each.name}",
            amount(each.recorded, each.unit),
            amount(each.now, each.unit),
            percent(each.change),
            share(each.tolerance),
            "worse" if each.is_worse else "passed",
        )
        for each in baseline.rows
        if each.is_worse or not only_worse
    ]
    if only_worse:
        summary = f"{counted(len(baseline.rows), 'number')} compared, {worse} worse than the tolerance"
        heads = row(*(column.title for column in columns))
        rows = [row(summary), *([heads, *rows] if rows else [])]
    rows += [row(f"not measured: {what}") for what in baseline.missing]
    return Table(title, columns, tuple(rows))


def _place(receipt: Receipt) -> list[Row]:
    if receipt.image:
        pulled = receipt.image.pulled_bytes
        took = f" in {amount(receipt.image.pull_s, 's')}" if receipt.image.pull_s is not None else ""
        return [
            row("image", receipt.image.reference),
            row("image ID", receipt.image.id),
            row("pulled", "nothing: the image was present" if pulled is None else f"{size(pulled)}{took}"),
        ]
    if receipt.local is None:
        return []
    is_locked = {
        True: "environment matches the lock",
        False: "environment differs from the lock",
        None: "not compared with the lock",
    }
    where = f"{receipt.local.python}, {is_locked[receipt.local.is_locked] if receipt.lock else 'no lock'}"
    return [row("Python", where), row("prefix", receipt.local.prefix)]


def properties(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """Names and values of stack, machine and versions."""
    yield from ((each.cells[0], each.cells[1]) for each in (*_stack(receipt), *_machine(receipt)))
    yield from ((f"version of {what}", version) for what, version in receipt.ran.items())


def _machine(receipt: Receipt) -> list[Row]:
    """Without what is unknown."""
    machine = receipt.machine
    cpus = f"{machine.cpus} CPUs" if machine.cpus else ""
    pairs = [
        *(("GPU", gpu) for gpu in _gpus(receipt)),
        ("topology", _topology(machine.topology)),
        ("driver", ", ".join(filter(None, [machine.driver, machine.cuda_driver and f"CUDA {machine.cuda_driver}"]))),
        ("container toolkit", machine.toolkit),
        ("system", machine.system),
        ("environment variables", ", ".join(f"{name}={value}" for name, value in machine.environment.items())),
        ("kernel", machine.kernel),
        ("CPU", ", ".join(filter(None, [machine.cpu, machine.architecture, cpus]))),
        ("load", " to ".join(f"{each:.1f}" for each in machine.load)),
        ("memory", "" if machine.memory_bytes is None else size(machine.memory_bytes)),
        ("shared memory", "" if machine.shm_bytes is None else size(machine.shm_bytes)),
        ("Python", machine.python),
        ("C library", machine.libc),
    ]
    return [row(*pair) for pair in pairs if pair[1]]


def _gpus(receipt: Receipt) -> list[str]:
    equal: dict[str, list[str]] = {}
    for gpu in receipt.machine.gpus:
        line = f"{gpu.name}, {size(gpu.memory_bytes)}, compute capability {gpu.compute_capability}"
        equal.setdefault(line, []).append(str(gpu.index))
    return [
        f"{len(found)} x {line}" if len(equal) == 1 else f"{', '.join(found)}: {line}" for line, found in equal.items()
    ]


def _topology(topology: Mapping[str, str]) -> str:
    links = set(topology.values())
    if len(links) == 1 and len(topology) > 1:
        return f"{links.pop()} between all of them"
    return ", ".join(f"{pair}: {link}" for pair, link in topology.items())


def _lock(receipt: Receipt) -> Iterator[Row]:
    for what, lock in (("lock", receipt.lock), ("compared with the lock", receipt.as_if)):
        if lock:
            yield row(what, f"{lock.name}, envspec.lock sha256:{lock.sha256}")
            yield row("identity", f"sha256:{lock.identity}")
        elif what == "lock":
            yield row(what, "none: the stack was tested as it is")


def _stack(receipt: Receipt) -> list[Row]:
    rows = [*_lock(receipt), *_place(receipt)]
    nodes = receipt.nodes
    if nodes.count > 1:
        rows.append(row("node", f"{nodes.rank} of {nodes.count}, rendezvous {nodes.rendezvous or '-'}"))
    return rows


def counts(found: Counts) -> str:
    not_known = f", {found.not_known} not known" if found.not_known else ""
    return f"{found.passed} passed, {found.failed} failed, {found.not_run} not run{not_known}"


def reason(check: CheckOutcome) -> str:
    """A check's reason; of a compiler's whole output the beginning and the end."""
    found = check.reason
    return found if len(found) <= 2 * _PART else f"{found[:_PART]} [...] {found[-_PART:]}"
