"""A receipt as text, Markdown, HTML and JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from envspec.conformance.receipt import TRAINING
from envspec.conformance.results import CheckOutcome, Status
from envspec.conformance.text import counted
from envspec.escaping import cut, markdown
from envspec.receipts.compare import columns
from envspec.receipts.metrics import devices
from envspec.receipts.model import Baseline, BaselineRow, Counts, Machine, Receipt, Verdict, dump
from envspec.report import findings, page
from envspec.report.format import (
    Row,
    Table,
    amount,
    folded,
    heads,
    listing,
    markdown_lines,
    markdown_page,
    not_empty,
    optional,
    percent,
    properties,
    row,
    share,
    sign_of,
    size,
    text,
    verbatim,
)
from envspec.structs import replace

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
_BASELINE: Final = "number|recorded:number|now:number|change:number|tolerance:number|outcome:outcome"
_IS_LOCKED: Final = {
    True: "environment matches the lock",
    False: "environment differs from the lock",
    None: "not compared with the lock",
}


def answer(receipt: Receipt) -> str:
    """Whether one can train with this stack on this machine, in a sentence."""
    if receipt.verdict is Verdict.FAILED:
        return _why_not(receipt)
    if receipt.verdict is Verdict.NOT_KNOWN:
        return f"Not known: {'; '.join(receipt.reasons)}."
    is_gpu = receipt.device == "cuda"
    needed: Sequence[str] = TRAINING
    if not is_gpu:
        needed = TRAINING[1:]
    if lacking := _lacking(receipt, needed):
        return f"Nothing that ran failed. Whether training works is not known: {lacking} did not run."
    if not is_gpu:
        return "What ran works on this CPU; no GPU was tested."
    is_several = len(receipt.machine.gpus) > 1 or receipt.nodes.count > 1
    lacking = _lacking(receipt, _SEVERAL)
    if is_several and lacking:
        only_one = f"Yes, on one GPU: training works on each of {devices(receipt)}."
        return f"{only_one} On several it is not known: {lacking} did not run."
    return f"Yes: training works on {devices(receipt)}."


def _why_not(receipt: Receipt) -> str:
    why = others = ""
    failed = receipt.checks_of(Status.FAILED)
    if len(failed) == 1:
        why = cut(" ".join(reason(failed[0]).split()), _SENTENCE)
    if len(receipt.reasons) > 1:
        others = f", and {counted(len(receipt.reasons) - 1, 'more reason')}"
    return f"No: {receipt.reasons[0]}{optional(' ({})', why)}{others}."


def _lacking(receipt: Receipt, needed: Sequence[str]) -> str:
    """Those of the needed checks that did not pass, as text."""
    passed = receipt.names_of(Status.PASSED)
    return ", ".join(f"`{name}`" for name in needed if name not in passed)


def _first_screen(receipt: Receipt) -> Table:
    """What to do first, what the run was on, its main numbers, and what it leaves open."""
    hints = [each.hint for each in receipt.checks_of(*_WITH_LOG)]
    gpus = ""
    if receipt.device == "cuda":
        gpus = "; ".join(_gpus(receipt))
    main = [f"{each.title} {amount(each.values[0], each.unit)}" for each in columns([receipt])]
    return properties(
        "",
        (
            ("do first", next(filter(None, hints), "")),
            ("ran on", gpus or devices(receipt)),
            ("driver", _driver(receipt.machine)),
            ("main numbers", "; ".join(main)),
            ("not run", ", ".join(receipt.names_of(Status.NOT_RUN))),
            ("checks", counts(receipt.summary.checks)),
        ),
    )


def as_json(receipt: Receipt) -> str:
    return dump(receipt)


def as_text(receipt: Receipt, width: int) -> str:
    summary = receipt.summary
    head = (
        ("training", answer(receipt)),
        ("checks", counts(summary.checks)),
        ("findings", f"{counts(summary.findings)}, {summary.findings.info} info"),
        *_place(receipt)[:1],
        ("driver", receipt.machine.driver),
        ("versions", ", ".join(map(" ".join, receipt.ran.items()))),
        ("time", amount(receipt.seconds, "s")),
        *(("reason", reason) for reason in receipt.reasons),
    )
    tables = (
        properties(f"{receipt.subject}: {receipt.verdict.value} on {devices(receipt)}", head),
        _checks_as_text(receipt),
        listing("Parts that were not run", findings.parts_not_run(receipt)),
        _baseline_as_text(receipt),
    )
    return text((), tables, width)


def _checks_as_text(receipt: Receipt) -> Table:
    """The outcome first, and no count of findings."""
    checks = _checks(receipt)
    rows = []
    for each in checks.rows:
        name, outcome, seconds, _, why = each.cells
        rows.append(row(outcome, name, seconds, why, notes=each.notes))
    return listing(checks.title, rows, "||:number|")


def as_markdown(receipt: Receipt) -> str:
    """In GitHub's form, for the summary of a job: the verdict first, details folded."""
    return markdown_page(_markdown_head(receipt), _markdown_details(receipt))


def _markdown_head(receipt: Receipt) -> Iterator[str]:
    sign = sign_of(receipt.verdict.value)
    yield f"## {sign} {markdown(receipt.subject)}: {receipt.verdict.value} on {markdown(devices(receipt))}"
    yield ""
    yield f"**Can I train here?** {markdown(answer(receipt))}"
    yield ""
    yield f"Checks: {counts(receipt.summary.checks)}. Findings: {counts(receipt.summary.findings)}."
    yield ""
    if receipt.reasons:
        for reason in receipt.reasons:
            yield f"- {markdown(reason)}"
        yield ""
    for table in (_checks(receipt), _failed(receipt)):
        yield from markdown_lines(table)
    if logs := _logs(receipt):
        yield from folded("End of the output of checks", _log_lines(logs))


def _logs(receipt: Receipt) -> list[CheckOutcome]:
    return [check for check in receipt.checks_of(*_WITH_LOG) if check.log]


def _log_lines(checks: Iterable[CheckOutcome]) -> Iterator[str]:
    for check in checks:
        yield f"{markdown(check.check)}:"
        yield ""
        yield verbatim(check.log)
        yield ""


def _markdown_details(receipt: Receipt) -> Iterator[Table]:
    yield _not_run(receipt)
    yield _baseline(receipt)
    yield findings.table("Numbers and bounds", receipt, findings.has_number)
    where = itertools.starmap(row, (*_stack(receipt), *_machine(receipt), *receipt.ran.items()))
    yield listing("Stack, machine and versions", where, is_folded=True)


def as_html(receipt: Receipt) -> str:
    tables = (
        _checks(receipt),
        _failed(receipt),
        _not_run(receipt),
        replace(findings.table("Numbers and bounds", receipt, findings.has_number), plot=page.bounds(receipt)),
        _phases(receipt),
        Table("Peak memory", (), (), plot=page.memory(receipt)),
        findings.table("Other findings", receipt, lambda each: not findings.has_number(each)),
        _fingerprints(receipt),
        _baseline(receipt),
        listing("Machine", itertools.starmap(row, _machine(receipt))),
        listing("Stack", itertools.starmap(row, _stack(receipt))),
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
        logs=_logs(receipt),
        tables=not_empty(tables),
    )


def _checks(receipt: Receipt) -> Table:
    rows = []
    for check in receipt.checks:
        judged = [finding.ok for finding in check.findings if finding.ok is not None]
        status = check.status.value
        if check.required:
            status += " (required)"
        why = reason(check)
        if check.cause:
            why = ": ".join(filter(None, (check.cause.value, why)))
        seconds = optional("{:.1f} s", check.seconds)
        passed = f"{sum(judged)} of {len(judged)}" if judged else ""
        rows.append(row(check.check, status, seconds, passed, why, notes=(optional("hint: {}", check.hint),)))
    return listing("Checks", rows, "check|outcome:outcome|time:number|findings:number|reason", notes="")


def _failed(receipt: Receipt) -> Table:
    return findings.table("Failed findings", receipt, lambda each: each.ok is False, is_folded=False)


def _not_run(receipt: Receipt) -> Table:
    whole = [row(check.check, "", reason(check)) for check in receipt.checks_of(Status.NOT_RUN)]
    return listing("Not run", (*whole, *findings.parts_not_run(receipt)), "check|part|reason")


def _phases(receipt: Receipt) -> Table:
    rows: list[Row] = []
    for check in receipt.checks:
        times = []
        for each in check.preimports:
            times.append((f"{each.name}, before its start", each.seconds))
        for each in check.phases:
            times.append((each.name, each.seconds))
        if check.waited_s >= _WAITED_S:
            times.append(("waited for a CPU, within the phases", check.waited_s))
        times.append((f"total (limit: {check.limit_s:g})", check.seconds))
        for name, seconds in times:
            rows.append(row(check.check, name, f"{seconds:.3f}"))
    table = listing("Time of each check, by phase", rows, "check|phase|seconds:number", is_folded=True)
    return replace(table, plot=page.times(receipt))


def _fingerprints(receipt: Receipt) -> Table:
    rows = []
    for check in receipt.checks:
        for each in check.fingerprints:
            rows.append(row(check.check, each.name, each.level.value, each.digest, each.key))
    return listing("Fingerprints of results", rows, "check|fingerprint|level|SHA-256|key", is_folded=True)


def _baseline(receipt: Receipt) -> Table:
    baseline = receipt.baseline
    if baseline is None:
        return listing("", ())
    title = f"Compared with the receipt of {baseline.lock}, {baseline.made_at:%Y-%m-%d %H:%M} UTC"
    if baseline.not_compared:
        return listing(title, [row(f"not compared: {baseline.not_compared}")], "result")
    return listing(title, (*map(_baseline_row, baseline.rows), *_not_measured(baseline)), _BASELINE)


def _not_measured(baseline: Baseline) -> list[Row]:
    return [row(f"not measured: {what}") for what in baseline.missing]


def _baseline_row(each: BaselineRow) -> Row:
    return row(
        f"{each.check}: {each.name}",
        amount(each.recorded, each.unit),
        amount(each.now, each.unit),
        percent(each.change),
        share(each.tolerance),
        "worse" if each.is_worse else "passed",
    )


def _baseline_as_text(receipt: Receipt) -> Table:
    """A summary, and of the numbers those that are worse."""
    table = _baseline(receipt)
    baseline = receipt.baseline
    if baseline is None or baseline.not_compared:
        return table
    count = len(baseline.rows)
    worse = list(map(_baseline_row, baseline.worse_rows()))
    rows = [row(f"{counted(count, 'number')} compared, {len(worse)} worse than the tolerance")]
    if worse:
        rows.append(heads(table))
    return replace(table, rows=(*rows, *worse, *_not_measured(baseline)))


def _place(receipt: Receipt) -> list[tuple[str, str]]:
    if receipt.image:
        pulled = "nothing: the image was present"
        if receipt.image.pulled_bytes is not None:
            pulled = size(receipt.image.pulled_bytes)
            if receipt.image.pull_s is not None:
                pulled += f" in {amount(receipt.image.pull_s, 's')}"
        return [("image", receipt.image.reference), ("image ID", receipt.image.id), ("pulled", pulled)]
    if receipt.local is None:
        return []
    compared = "no lock"
    if receipt.lock:
        compared = _IS_LOCKED[receipt.local.is_locked]
    return [("Python", f"{receipt.local.python}, {compared}"), ("prefix", receipt.local.prefix)]


def names_and_values(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """Of stack, machine and versions."""
    yield from _stack(receipt)
    yield from _machine(receipt)
    for what, version in receipt.ran.items():
        yield f"version of {what}", version


def _machine(receipt: Receipt) -> list[tuple[str, str]]:
    """Without what is unknown."""
    machine = receipt.machine
    cpus = optional("{} CPUs", machine.cpus)
    pairs = [
        *(("GPU", gpu) for gpu in _gpus(receipt)),
        ("topology", _topology(machine.topology)),
        ("driver", _driver(machine)),
        ("container toolkit", machine.toolkit),
        ("system", machine.system),
        ("environment variables", ", ".join(map("=".join, machine.environment.items()))),
        ("kernel", machine.kernel),
        ("CPU", ", ".join(filter(None, [machine.cpu, machine.architecture, cpus]))),
        ("load", " to ".join(f"{each:.1f}" for each in machine.load)),
        ("memory", _known_size(machine.memory_bytes)),
        ("shared memory", _known_size(machine.shm_bytes)),
        ("Python", machine.python),
        ("C library", machine.libc),
    ]
    return [(name, value) for name, value in pairs if value]


def _driver(machine: Machine) -> str:
    return ", ".join(filter(None, [machine.driver, optional("CUDA {}", machine.cuda_driver)]))


def _known_size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return ""
    return size(size_bytes)


def _gpus(receipt: Receipt) -> list[str]:
    """Equal GPUs together: by their count if all are equal, else by their numbers."""
    equal: dict[str, list[str]] = {}
    for gpu in receipt.machine.gpus:
        line = f"{gpu.name}, {size(gpu.memory_bytes)}, compute capability {gpu.compute_capability}"
        equal.setdefault(line, []).append(str(gpu.index))
    lines = []
    for line, numbers in equal.items():
        if len(equal) == 1:
            lines.append(f"{len(numbers)} x {line}")
        else:
            lines.append(f"{', '.join(numbers)}: {line}")
    return lines


def _topology(topology: Mapping[str, str]) -> str:
    links = set(topology.values())
    if len(links) == 1 and len(topology) > 1:
        return f"{links.pop()} between all of them"
    return ", ".join(map(": ".join, topology.items()))


def _lock(receipt: Receipt) -> Iterator[tuple[str, str]]:
    if receipt.lock is None:
        yield "lock", "none: the stack was tested as it is"
    for what, lock in (("lock", receipt.lock), ("compared with the lock", receipt.as_if)):
        if lock:
            yield what, f"{lock.name}, envspec.lock sha256:{lock.sha256}"
            yield "identity", f"sha256:{lock.identity}"


def _stack(receipt: Receipt) -> Iterator[tuple[str, str]]:
    yield from _lock(receipt)
    yield from _place(receipt)
    nodes = receipt.nodes
    if nodes.count > 1:
        yield "node", f"{nodes.rank} of {nodes.count}, rendezvous {nodes.rendezvous or '-'}"


def counts(found: Counts) -> str:
    not_known = optional(", {} not known", found.not_known)
    return f"{found.passed} passed, {found.failed} failed, {found.not_run} not run{not_known}"


def brief_counts(found: Counts) -> str:
    return f"{found.passed} / {found.failed} / {found.not_run}"


def reason(check: CheckOutcome) -> str:
    """A check's reason; of a compiler's whole output the beginning and the end."""
    found = check.reason
    if len(found) <= 2 * _PART:
        return found
    return f"{found[:_PART]} [...] {found[-_PART:]}"
