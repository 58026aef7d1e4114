"""Receipts of different checks beside each other: what was not compared is not said to be the same."""

from __future__ import annotations

import pytest

from envspec.receipt.build import receipt
from envspec.receipt.compare import compare
from envspec.receipt.comparison import Comparison
from envspec.receipt.values import Receipt
from envspec.report import fleet
from tests.support.receipts import check, exact, fingerprint, informs, known, machine, made, results


def beside(*receipts: Receipt) -> Comparison:
    return compare([(f"node-{place}", each) for place, each in enumerate(receipts)])


def answer(found: Comparison, question: str) -> str:
    return dict(fleet.answers(found))[question]


def hashed(name: str) -> Receipt:
    return made(check(name, findings=[exact("a")], fingerprints=[fingerprint("integers", "11" * 32)]))


def test_results_that_no_two_have_are_not_said_to_be_the_same() -> None:
    assert answer(beside(hashed("matmul"), hashed("matmul")), "same results, bit by bit") == "yes"
    told = "not known: no fingerprint is in all of them"
    assert answer(beside(hashed("matmul"), hashed("ddp")), "same results, bit by bit") == told
    assert answer(beside(hashed("matmul"), made(check("matmul"))), "same results, bit by bit") == told


def test_times_alone_say_nothing_of_speed() -> None:
    one, other = (made(check("matmul", seconds=seconds, peak={})) for seconds in (2.0, 9.0))
    assert answer(beside(one, other), "same speed and memory").startswith("not known")
    rate = made(check("matmul", findings=[informs("speed", 100.0, "1/s")]))
    assert answer(beside(rate, rate), "same speed and memory") == "yes, within the tolerances"


@pytest.mark.parametrize("speeds", [(100.0, 50.0), (100.0, 100.0)])
def test_machines_whose_gpus_are_not_known_are_of_no_kind(speeds: tuple[float, float]) -> None:
    """Without NVML two of them may be any two: a slower one is no fault, and no proof either."""
    unseen = {**machine("cuda"), "gpus": []}
    now, recorded = (
        results(check("amp", findings=[informs("speed", speed, "1/s")]), device="cuda", machine=unseen)
        for speed in speeds
    )
    found = beside(receipt(recorded, known("amp")), receipt(now, known("amp")))
    assert answer(found, "same speed and memory").startswith("not compared")
    held = receipt(now, known("amp", baseline=receipt(recorded, known("amp"))))
    assert held.baseline is not None
    assert not held.baseline.rows
    assert "NVML does not show" in held.baseline.not_compared
    assert held.reasons == ()
