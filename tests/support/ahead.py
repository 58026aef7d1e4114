"""Slow work of parametrised tests, done for all of them at the same time: each test waits for its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
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


@contextmanager
def golden_ahead(
    request: pytest.FixtureRequest, root: Path, golden: Path, tellers: Mapping[str, Callable[[Path, Path], str]]
) -> Iterator[Callable[[str], str]]:
    """What comes of golden cases `group/name`, each in an empty folder of its own under `root`.

    golden: the folder of all groups. tellers: group -> what tells a case, by its folder and the one to work in.
    """

    def outcome(case: str) -> str:
        (root / case).mkdir(parents=True)
        return tellers[case.partition("/")[0]](golden / case, root / case)

    with ahead(request, outcome) as results:
        yield results


def _module(item: pytest.Item) -> object:
    return getattr(item, "module", None)
