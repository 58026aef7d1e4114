"""The process of one check: imports what the check needs, waits for its turn, runs it and reports how it ended."""

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
from typing import Callable

from envspec.conformance.checks import CHECKS, CheckDefinition
from envspec.conformance.events import CheckContext
from envspec.conformance.processes import adopt_orphans, die_with_parent
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Cause, NotRun, Peak, error_chain

#: Exit statuses; neither of the last two is one of Python's own (1, 2).
DONE, NOT_RUN, RAISED = 0, 75, 70
#: In the folder of a check; the second one is its folder for temporary files.
EVENTS, SCRATCH, LOG = "events.jsonl", "scratch", "log.txt"


def main(name: str, parent: int, request: Path, folder: Path, turn: int) -> int:
    """Run a check.

    parent: PID of the suite. folder: of the check, prepared by the suite. turn: descriptor of a pipe; the peaks of the
    checks before it, as JSON, start the check's turn.
    """
    die_with_parent(parent)
    # Orphans of an import stay below this process, and end with it, not with the check that runs meanwhile.
    adopt_orphans()
    faulthandler.enable()
    # At the limit the suite requests the stacks by this signal before it ends the process.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with (folder / EVENTS).open("a", encoding="utf-8") as events:
        context = CheckContext(SuiteRequest.read(request), folder / SCRATCH, events)
        status = _run(name, context, lambda: _wait_for(turn, context))
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries that crash at exit do not count: every event is written.
    os._exit(status)


def _wait_for(turn: int, context: CheckContext) -> None:
    with os.fdopen(turn, "rb") as pipe:
        peaks = pipe.read()
    if not peaks:
        # The suite has ended: this process is about to be killed.
        os._exit(RAISED)
    context.peaks.update((check, Peak(**peak)) for check, peak in json.loads(peaks).items())


def _run(name: str, context: CheckContext, wait_for_turn: Callable[[], None]) -> int:
    try:
        _preimport(context, CHECKS[name])
        wait_for_turn()
        CheckDefinition.function(name)(context)
    except NotRun as error:
        context.write("not_run", [error.reason, error.hint])
        return NOT_RUN
    except BaseException as error:
        traceback.print_exc()
        names = {each.__name__ for each in type(error).__mro__}
        cause = Cause.OUT_OF_MEMORY if names & {"OutOfMemoryError", "MemoryError"} else Cause.RAISED
        texts = [": ".join(filter(None, [type(each).__name__, str(each).strip()])) for each in error_chain(error)]
        context.write("raised", [cause.value, "\n  because of ".join(texts)])
        return RAISED
    context.peak(_peak())
    context.write("done", value=True)
    return DONE


def _preimport(context: CheckContext, check: CheckDefinition) -> None:
    """Raises NotRun if the stack has nothing that the check tests."""
    if check.needs and not any(context.has(module) for module in check.needs):
        raise NotRun(context.absence(" or ".join(check.needs)))
    for module in check.preimports:
        if context.has(module):
            context.load(module)


def _peak() -> Peak:
    host = 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), host)
    return Peak(host_bytes=host)
