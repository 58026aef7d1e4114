"""The suite's rule of what a card runs is the lock's: it stands on both sides of a container's wall."""

from __future__ import annotations

import itertools

import pytest

from envspec.conformance.hardware import runs_any
from envspec.facts.gpu import ComputeCapability, Runs, runs

_CAPABILITIES = [
    (5, 0),
    (5, 3),
    (7, 0),
    (7, 2),
    (7, 5),
    (8, 0),
    (8, 6),
    (8, 7),
    (8, 9),
    (9, 0),
    (10, 0),
    (10, 3),
    (12, 0),
]


@pytest.mark.parametrize("suffix", ["", "a", "f"])
def test_it_agrees_with_the_locks_rule(suffix: str) -> None:
    for built, card in itertools.product(_CAPABILITIES, _CAPABILITIES):
        sm, ptx = (f"{kind}_{built[0]}{built[1]}{suffix}" for kind in ("sm", "compute"))
        here = ComputeCapability(*card)
        assert runs_any([sm], card) is (runs(here, [sm]) is Runs.SASS), (sm, card)
        assert runs_any([ptx], card) is (runs(here, [], [ptx]) is Runs.PTX), (ptx, card)


def test_what_is_no_architecture_runs_nowhere() -> None:
    assert not runs_any(["", "gfx942", "sm_", "sm_9"], (9, 0))
    assert runs_any(["gfx942", "sm_90"], (9, 0))
