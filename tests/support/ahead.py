"""Slow work of parametrised tests, done for all of them at the same time: each test waits for its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")


@contextmanager
def ahead(
    request: pytest.FixtureRequest, work: Callable[[str], T], argument: str = "case"
) -> Iterator[Callable[[str], T]]:
    """For a fixture of module scope: yields what gives a case its result, or raises what its work raised.

    Starts `work(case)` for every test of the module that was selected, as `argument` of `parametrize` names its case.
    """
    calls = (getattr(item, "callspec", None) for item in request.session.items if _module(item) is request.module)
    cases = dict.fromkeys(call.params[argument] for call in calls if call is not None and argument in call.params)
    # Twice the cores of a small machine: most of the work is waiting for servers that misbehave.
    with ThreadPoolExecutor(4) as pool:
        running: dict[str, Future[T]] = {case: pool.submit(work, case) for case in cases}
        yield lambda case: running[case].result()
        for future in running.values():
            future.cancel()


def _module(item: pytest.Item) -> object:
    return getattr(item, "module", None)
