"""Whether a node may take a job, in one line and within a second: its last receipt, and NVML now.

For a scheduler's prolog or its health check: nothing is computed, and CUDA is not initialised.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from envspec.conformance import driver, isolation
from envspec.conformance.checks import health
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.receipt import NOT_KNOWN, PASSED
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Cause, dumps
from envspec.conformance.text import first_of, named_texts
from envspec.verifier.regular import read_regular

#: Exit statuses, those of Nagios plugins: healthy; odd; take it out of use; not known.
OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
#: Beside the folders of nodes, if they were compared with each other.
_FLEET = "fleet.json"
#: Of the process that queries NVML, seconds. Without the persistence daemon a GPU takes one.
_LIMIT_S = 20.0
#: Reasons in the line.
_REASONS = 3


def node(receipt: Path | None, most_age: timedelta | None) -> tuple[int, str]:
    """The exit status, and the line.

    receipt: of this node's last run of the suite; None to query NVML alone. most_age: of the receipt.
    """
    found: dict[str, Any] = {}
    faults: list[str] = []
    odd: list[str] = []
    problem = ""
    if receipt:
        found, problem = _receipt(receipt)
        if found:
            faults, odd = _recorded(receipt, found)
    gpus = (found.get("machine") or {}).get("gpus") or []
    with tempfile.TemporaryDirectory(prefix="envspec-node-") as folder:
        now, notes, missing, late = _now(Path(folder), {each["uuid"]: each["name"] for each in gpus})
    faults += now
    if faults:
        return CRITICAL, "; ".join(first_of(faults, _REASONS))
    if problem or late or (missing and not receipt):
        return UNKNOWN, problem or late or missing
    texts = odd[:_REASONS]
    if found:
        age = datetime.now(timezone.utc) - _time(found["made_at"])
        if most_age is not None and age > most_age:
            return UNKNOWN, f"the receipt is {_text(age)} old: run the suite on this node again"
        texts.append(f"receipt of {_text(age)} ago")
    return WARNING if odd else OK, "; ".join([*texts, *notes])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _text(age: timedelta) -> str:
    hours = age.total_seconds() / 3600
    return f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} h"


def _read(path: Path) -> Any:
    """Raises OSError, ValueError."""
    return json.loads(read_regular(path).decode("utf-8"))


def _receipt(path: Path) -> tuple[dict[str, Any], str]:
    """A receipt, or why there is none."""
    path = path / "receipt.json" if path.is_dir() else path
    try:
        found = _read(path)
        _time(found["made_at"])
        return {name: found[name] for name in ("made_at", "verdict", "reasons", "machine")}, ""
    except FileNotFoundError:
        return {}, f"this node has no receipt ({path}): run the suite on it"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return {}, f"{path} is no receipt: {' '.join(str(error).split())}"


def _recorded(path: Path, receipt: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Faults and oddities of the last run.

    If the nodes were compared, that decides: what fails on all of them is no fault of this one.
    """
    # Not through links: `fleet report` names a node by its link.
    node = Path(os.path.abspath(path))  # noqa: PTH100
    if not node.is_dir():
        node = node.parent
    try:
        for each in _read(node.parent / _FLEET)["nodes"]:
            if each["name"] == node.name:
                reasons = [str(reason) for reason in each["reasons"]]
                return {"drain": (reasons, []), "watch": ([], reasons)}.get(each["verdict"], ([], []))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    if receipt["verdict"] == PASSED:
        return [], []
    first = "; ".join(map(str, receipt["reasons"][:1]))
    if receipt["verdict"] == NOT_KNOWN:
        return [], [f"not known since the suite of {receipt['made_at'][:10]}: {first}"]
    return [f"the suite failed on {receipt['made_at'][:10]}: {first}"], []


def _now(folder: Path, recorded: Mapping[str, str]) -> tuple[list[str], list[str], str, str]:
    """Faults that NVML reports now, what else belongs into the line, why there is no NVML, and why it is too slow.

    recorded: UUID of a GPU -> its name.
    """
    request = folder / "request.json"
    request.write_text(dumps(SuiteRequest(device="cuda", checks=())), encoding="utf-8")
    process = isolation.start("--node", request, folder / "nvml")
    ended = isolation.wait([process], _LIMIT_S)
    events = ProcessEvents.read(folder / "nvml" / isolation.EVENTS)
    faults = []
    if missing := events.values.get("missing"):
        if recorded:
            faults.append(f"{missing}, and the receipt has {len(recorded)} GPUs")
        return faults, [], str(missing), ""
    wrong = [str(each) for each in events.findings if each.ok is False]
    events.findings.clear()
    failed = isolation.failure(events, process.poll(), ended.overruns.get(process.pid))
    if failed and failed[0] is Cause.OUT_OF_TIME:
        return wrong, [], "", f"NVML is too slow: {failed[1]}"
    faults += ended.unkillable
    if failed:
        faults.append(f"NVML does not work: {failed[1]}")
    if "error" in events.values:
        faults.append(str(events.values["error"]))
    boards = [each for each in events.values.get("boards", ()) if not each["hidden"]]
    there = {each["uuid"] for each in boards}
    # A slice of a GPU (MIG) has a UUID that NVML lists elsewhere.
    gone = [name for uuid, name in recorded.items() if uuid.startswith("GPU-") and uuid not in there]
    if gone and there:
        faults.append(f"{len(gone)} of {len(recorded)} GPUs of the receipt are gone ({gone[0]})")
    return [*faults, *wrong], [f"{len(boards)} GPUs without a fault"], "", ""


def work(context: CheckContext) -> None:
    """Report what `driver` reports of NVML, and the findings of the check `health` that need no work before."""
    boards = driver.read_nvml(context)
    for board in boards:
        errors = named_texts(board.errors)
        context.exact(f"GPU {board.index}", ok=not errors, detail=errors or board.name)
    if boards:
        health.report(context, boards, {})
