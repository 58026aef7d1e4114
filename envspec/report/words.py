"""What every form says in the same words: sizes, times, numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from envspec.conformance.results import Kind
from envspec.receipt.values import CheckRow, Counts, FindingRow, Receipt

_SIZES: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
#: Characters of a long reason that are told of its beginning, and of its end.
_PART: Final = 2000


def size(count: float) -> str:
    """Bytes in powers of 1000: `8.05 GB`."""
    step = 0
    while abs(count) >= 999.5 and step < len(_SIZES) - 1:
        count, step = count / 1000, step + 1
    return f"{count:.0f} bytes" if not step else f"{_three(count)} {_SIZES[step]}"


def amount(value: float | None, unit: str = "") -> str:
    """A number with its unit, three digits of it; `-` where there is none."""
    if value is None:
        return "-"
    if unit == "bytes":
        return size(value)
    return f"{_three(value)} {unit}".rstrip()


def _three(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    if 999.5 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if 0.001 <= abs(value) < 1000 else f"{value:.3g}"


def percent(change: float) -> str:
    """A change with its sign: `+12 %`."""
    return f"{change:+.1%}".replace("%", " %") if abs(change) < 0.1 else f"{change:+.0%}".replace("%", " %")


def share(part: float) -> str:
    """A part of a whole: `10 %`; what is many times the whole, as `450 times`."""
    return f"{100 * part:.3g} %" if part < 9.995 else f"{part:,.0f} times"


def counted(counts: Counts) -> str:
    """`9 passed, 0 failed, 3 not run`: each kind apart."""
    return f"{counts.passed} passed, {counts.failed} failed, {counts.not_run} not run"


def held(finding: FindingRow) -> str:
    """What a finding's number is held against: `<= 3.9e-3 (4 u, u = 2^-10)`."""
    if finding.bound is None:
        return ""
    text = f"{finding.relation} {amount(finding.bound, finding.unit)}"
    # A bound that is its own formula is said once.
    return f"{text} ({finding.formula})" if finding.formula and " " in finding.formula.strip() else text


def outcome(finding: FindingRow) -> str:
    """`passed`, `failed`, `not run`, or nothing for what only informs."""
    if finding.kind is Kind.NOT_RUN:
        return "not run"
    return {True: "passed", False: "failed", None: ""}[finding.ok]


def cause(check: CheckRow) -> str:
    """Why a check failed: its cause and reason in one text."""
    words, why = check.cause.value if check.cause else "", reason(check)
    return f"{words}: {why}" if words and why else words or why


def reason(check: CheckRow) -> str:
    """What a check says of its outcome: of a compiler's whole output the beginning and the end; the JSON has it all."""
    text = check.reason
    return text if len(text) <= 2 * _PART else f"{text[:_PART]} [...] {text[-_PART:]}"


def place(receipt: Receipt) -> str:
    """Where the suite ran, in one line."""
    if receipt.image:
        return f"image {receipt.image.reference}"
    if receipt.here is None:
        return "unknown"
    is_locked = {
        True: "the lock's environment",
        False: "not the lock's environment",
        None: "not compared with the lock",
    }
    return f"{receipt.here.python}, {is_locked[receipt.here.is_locked]}"


def facts(receipt: Receipt) -> list[tuple[str, str]]:
    """The machine as rows of a table; what is not known is left out."""
    machine = receipt.machine
    rows = [("GPU", gpu) for gpu in _gpus(receipt)]
    joined = _joined(machine.topology)
    cpus = f"{machine.cpus} CPUs" if machine.cpus else ""
    rows += [
        ("topology", joined),
        ("driver", machine.driver),
        ("container toolkit", machine.toolkit),
        ("system", machine.system),
        ("kernel", machine.kernel),
        ("CPU", ", ".join(filter(None, [machine.cpu, machine.architecture, cpus]))),
        ("memory", size(machine.memory_bytes) if machine.memory_bytes is not None else ""),
        ("shared memory", size(machine.shm_bytes) if machine.shm_bytes is not None else ""),
        ("Python", machine.python),
        ("C library", machine.libc),
    ]
    return [(what, text) for what, text in rows if text]


def _gpus(receipt: Receipt) -> list[str]:
    """One line for all that are the same."""
    alike: dict[str, list[str]] = {}
    for gpu in receipt.machine.gpus:
        text = f"{gpu.name}, {size(gpu.memory_bytes)}, compute capability {gpu.compute_capability}"
        alike.setdefault(text, []).append(str(gpu.index))
    if len(alike) == 1:
        return [f"{len(found)} x {text}" for text, found in alike.items()]
    return [f"{', '.join(found)}: {text}" for text, found in alike.items()]


def _joined(topology: Mapping[str, str]) -> str:
    ways = set(topology.values())
    if len(ways) == 1 and len(topology) > 1:
        return f"{ways.pop()} between all of them"
    return ", ".join(f"{pair}: {how}" for pair, how in topology.items())


def stack(receipt: Receipt) -> list[tuple[str, str]]:
    """What was tested, as rows of a table."""
    rows = [
        ("lock", f"{receipt.lock.name}, envspec.lock sha256:{receipt.lock.sha256}"),
        ("identity", f"sha256:{receipt.lock.identity}"),
    ]
    if receipt.image:
        pulled = receipt.image.pulled_bytes
        took = f", {amount(receipt.image.pull_s, 's')}" if receipt.image.pull_s is not None else ""
        rows += [
            ("image", receipt.image.reference),
            ("image ID", receipt.image.id),
            ("pulled", "nothing, it was there" if pulled is None else f"{size(pulled)}{took}"),
        ]
    if receipt.here:
        rows += [("Python", place(receipt)), ("prefix", receipt.here.prefix)]
    nodes = receipt.nodes
    if nodes.count > 1:
        rows.append(("node", f"{nodes.rank} of {nodes.count}, rendezvous {nodes.rendezvous or '-'}"))
    return rows
