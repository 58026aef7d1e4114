"""The process of one check: imports what the check needs, waits for its turn and runs it."""

from __future__ import annotations

import json
import os

from envspec.conformance import isolation
from envspec.conformance.checks import CHECKS, CheckDefinition
from envspec.conformance.events import CheckContext
from envspec.conformance.results import NotRun, Peak


def work(context: CheckContext, name: str, turn: str, gpu: str) -> None:
    """Run a check.

    turn: descriptor of a pipe; the peaks of the checks before it, as JSON, start the check's turn. gpu: number of the
    only GPU that this process sees, empty for all.
    """
    context.gpu = int(gpu) if gpu else None
    _preimport(context, CHECKS[name])
    _wait_for(int(turn), context)
    CheckDefinition.function(name)(context)


def _wait_for(turn: int, context: CheckContext) -> None:
    with os.fdopen(turn, "rb") as pipe:
        peaks = pipe.read()
    if not peaks:
        # The suite has ended: this process is about to be killed.
        os._exit(isolation.RAISED)
    context.peaks.update((check, Peak(**peak)) for check, peak in json.loads(peaks).items())


def _preimport(context: CheckContext, check: CheckDefinition) -> None:
    """Raises NotRun if the stack has nothing that the check tests."""
    if check.needs and not any(context.has(module) for module in check.needs):
        raise NotRun(context.absence(" or ".join(check.needs)))
    for module in check.preimports:
        if context.has(module):
            context.load(module)
