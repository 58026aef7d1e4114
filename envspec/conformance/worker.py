"""The process of one check: it loads what the check needs, waits for its turn, runs it and says how it ended."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Callable, TextIO

from envspec.conformance import imports
from envspec.conformance import request as orders
from envspec.conformance.checks import CHECKS, Check
from envspec.conformance.events import Files, Trial
from envspec.conformance.processes import adopt_orphans, die_with_parent
from envspec.conformance.results import NotRun, Peak

#: As numbers, both are words of the suite's own process: neither is Python's own 1 or 2.
DONE, NOT_RUN, RAISED = 0, 75, 70


def main(name: str, parent: int, folder: Path, turn: int) -> int:
    """Run a check.

    parent: the suite's process. folder: the check's own, which the suite has made (`files.Files`). turn: the end of a
    pipe, in which a byte comes with the check's turn.
    """
    die_with_parent(parent)
    # What an import leaves behind stays below this process, and is ended with it, not with the check that runs.
    adopt_orphans()
    files = Files(folder)
    faulthandler.enable()
    # At its limit the suite asks where the process stands, before it ends it.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with files.events.open("a", encoding="utf-8") as events:
        trial = Trial(orders.read(files.order), files.scratch, events)
        code = _run(name, trial, events, lambda: _wait_for(turn, trial, files))
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries that crash while they are taken down have done their work: what counts is said.
    os._exit(code)


def _wait_for(turn: int, trial: Trial, files: Files) -> None:
    if not os.read(turn, 1):
        # The suite is gone, and this process with it in a moment.
        os._exit(RAISED)
    os.close(turn)
    before = json.loads(files.peaks.read_text(encoding="utf-8"))
    trial.peaks.update((check, Peak(**peak)) for check, peak in before.items())


def _run(name: str, trial: Trial, events: TextIO, wait_for_turn: Callable[[], None]) -> int:
    try:
        _load(trial, CHECKS[name])
        wait_for_turn()
        Check.function(name)(trial)
    except NotRun as reason:
        _say(events, "not_run", [reason.reason, reason.hint])
        return NOT_RUN
    except BaseException as error:
        traceback.print_exc()
        _say(events, "raised", [_kind(error), _told(error)])
        return RAISED
    trial.peak(_peak())
    _say(events, "done", value=True)
    return DONE


def _load(trial: Trial, check: Check) -> None:
    """Raises NotRun where nothing is there that the check could test."""
    if check.needs and not any(imports.is_to_run(trial, module) for module in check.needs):
        raise NotRun(imports.why_not(trial, " or ".join(check.needs)))
    for module in check.ahead:
        if imports.is_to_run(trial, module):
            imports.load(trial, module)


def _say(events: TextIO, what: str, value: object) -> None:
    events.write(json.dumps({what: value}) + "\n")
    events.flush()


def _kind(error: BaseException) -> str:
    names = {each.__name__ for each in type(error).__mro__}
    return "out of memory" if names & {"OutOfMemoryError", "MemoryError"} else "raised"


def _told(error: BaseException) -> str:
    """The error with those behind it: torch 2.9 hides in `__cause__` which symbol is missing."""
    told = []
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        text = str(each).strip()
        told.append(f"{type(each).__name__}: {text}" if text else type(each).__name__)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return "\n  because of ".join(told)


def _peak() -> Peak:
    host = 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), host)
    return Peak(host_bytes=host)
