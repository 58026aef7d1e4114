"""results.json and what the host knows become a receipt: the verdict, what was lost, the environment, the baseline."""

from __future__ import annotations

from typing import Any

import pytest

from envspec.conformance.results import Cause, Status
from envspec.receipt.build import BadResults, receipt
from envspec.receipt.compare import compare
from envspec.receipt.values import Receipt, Verdict
from tests.support.receipts import (
    HERE,
    IMAGE,
    check,
    eight_gpus,
    exact,
    fingerprint,
    informs,
    known,
    machine,
    made,
    not_run,
    results,
    within,
)

PEAK = {"allocated_bytes": 1_000_000_000, "reserved_bytes": 1_200_000_000, "host_bytes": 900_000_000}


def skipped(name: str, **more: Any) -> dict[str, Any]:
    return check(name, status="not run", reason="there is none", **more)


def failed(name: str, **more: Any) -> dict[str, Any]:
    return check(name, **{"status": "failed", "cause": "found", "reason": "wrong", **more})


def test_all_passed() -> None:
    found = made(check("matmul", findings=[exact("integers"), not_run("fp8", "no GPU")]), check("amp"))
    assert (found.verdict, found.reasons) == (Verdict.PASSED, ())
    assert (found.image, found.here) == (IMAGE, None)
    assert found.summary.checks.model_dump() == {"passed": 2, "failed": 0, "not_run": 0, "informing": 0}
    assert found.summary.findings.model_dump() == {"passed": 1, "failed": 0, "not_run": 1, "informing": 0}


def test_a_failed_check_fails_the_run() -> None:
    found = made(check("matmul"), failed("amp"))
    assert (found.verdict, found.reasons) == (Verdict.FAILED, ("amp failed",))


def test_what_was_not_run_is_no_pass_and_fails_nothing_by_itself() -> None:
    found = made(check("matmul"), skipped("pyg"))
    assert found.verdict is Verdict.PASSED
    assert (found.summary.checks.passed, found.summary.checks.not_run) == (1, 1)


def test_a_required_check_that_was_not_run_fails_the_run() -> None:
    found = made(check("matmul"), skipped("pyg"), required=("matmul", "pyg"))
    assert found.reasons == ("pyg is required and was not run",)
    assert found.summary.required_not_run == ("pyg",)


def test_a_required_check_that_nobody_asked_for_fails_the_run() -> None:
    found = made(check("matmul"), required=("fsdp",))
    assert found.reasons == ("fsdp is required and was not run",)


def test_a_run_of_nothing_proves_nothing() -> None:
    found = made(skipped("matmul"))
    assert (found.verdict, found.reasons) == (Verdict.FAILED, ("no check was run",))


def test_checks_that_the_suite_did_not_reach_failed() -> None:
    found = receipt(results(check("matmul"), is_whole=False), known("matmul", "amp", "ddp", required=("ddp",)))
    assert [(each.check, each.status) for each in found.checks] == [
        ("matmul", Status.PASSED),
        ("amp", Status.FAILED),
        ("ddp", Status.FAILED),
    ]
    assert {(each.cause, each.reason) for each in found.checks[1:]} == {(Cause.CRASHED, "the suite ended before it")}
    assert found.reasons == ("amp, ddp failed",)


def test_a_check_that_a_whole_run_does_not_tell_of_failed() -> None:
    found = receipt(results(check("matmul")), known("matmul", "amp"))
    assert found.checks[1].reason == "the suite told nothing of it"


@pytest.mark.parametrize(
    ("row", "is_locked"),
    [
        (check("lock"), True),
        (failed("lock"), False),
        (failed("lock", cause="crashed"), None),
        (skipped("lock"), None),
        (check("matmul"), None),
    ],
    ids=["passed", "drifted", "crashed", "not run", "not asked for"],
)
def test_whether_the_environment_is_the_locks(row: dict[str, Any], is_locked: bool | None) -> None:
    found = made(row, check("amp"), where=HERE)
    assert found.here is not None
    assert found.here.is_locked is is_locked
    assert found.image is None


def test_versions_of_all_checks() -> None:
    found = made(check("a", ran={"torch": "2.9.1", "cuDNN": "9.1"}), check("b", ran={"torch": "2.9.0", "NCCL": "2.27"}))
    assert found.ran == {"NCCL": "2.27", "cuDNN": "9.1", "torch": "2.9.1, 2.9.0"}


def test_the_machine_and_what_the_host_adds() -> None:
    found = receipt(eight_gpus(), known(toolkit="1.17.4"))
    assert (len(found.machine.gpus), found.machine.driver, found.machine.toolkit) == (8, "570.124.06", "1.17.4")


def test_halves_of_surrogate_pairs_become_escapes() -> None:
    found = made(check("matmul", log="name: \udce9", findings=[exact("a \ud800 b")]))
    assert found.checks[0].log == "name: \\udce9"
    assert found.checks[0].findings[0].name == "a \\ud800 b"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "format 99"),
        ({"seed": "twenty"}, "seed: "),
        ({"machine": {**machine("cpu"), "colour": "red"}}, "colour: is not known"),
        ({"results": [{**check("matmul"), "status": "maybe"}]}, "status: "),
        ({"results": [{**check("matmul"), "seconds": float("nan")}]}, "seconds: "),
    ],
)
def test_results_that_are_none(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadResults, match=said):
        receipt({**results(check("matmul")), **change}, known())


def test_results_without_a_key() -> None:
    told = results(check("matmul"))
    del told["is_whole"]
    with pytest.raises(BadResults, match="is_whole"):
        receipt(told, known())


def speed(rate: float, memory: int = 1_000_000_000, **more: Any) -> Receipt:
    row = check("amp", findings=[informs("speed", rate, "1/s")], peak={**PEAK, "allocated_bytes": memory})
    return receipt(results(row, device="cuda", **more), known("amp"))


def beside(now: Receipt, recorded: Receipt) -> Receipt:
    """`now` again, with a baseline."""
    document = {
        **results(device=now.device),
        "machine": now.machine.model_dump(exclude={"toolkit"}),
        "results": [
            {
                **each.model_dump(mode="json"),
                **{key: [(row.name, row.seconds) for row in getattr(each, key)] for key in ("phases", "ahead")},
            }
            for each in now.checks
        ],
    }
    return receipt(document, known("amp", baseline=recorded))


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        (speed(100.0), []),
        (speed(91.0), []),
        (speed(89.0), ["amp: speed is 11 % worse than the baseline's"]),
        (speed(200.0), []),
        (speed(100.0, 1_040_000_000), []),
        (speed(100.0, 1_100_000_000), ["amp: allocated on the device is 10 % worse than the baseline's"]),
        (speed(100.0, 500_000_000), []),
    ],
    ids=["same", "in tolerance", "slower", "faster", "memory in tolerance", "more memory", "less memory"],
)
def test_a_baseline(now: Receipt, worse: list[str]) -> None:
    found = beside(now, speed(100.0))
    assert found.baseline is not None
    assert not found.baseline.not_compared
    assert list(found.reasons) == worse
    assert found.verdict is (Verdict.FAILED if worse else Verdict.PASSED)


@pytest.mark.parametrize(
    "other",
    [machine("cuda", gpu="NVIDIA A100-SXM4-80GB"), machine("cuda", gpus=4)],
    ids=["another GPU", "another world size"],
)
def test_a_baseline_of_another_kind_of_machine_is_not_compared(other: dict[str, Any]) -> None:
    found = beside(speed(10.0, machine=other), speed(100.0))
    assert found.baseline is not None
    assert found.baseline.rows == ()
    assert "another kind of machine" in found.baseline.not_compared
    assert found.verdict is Verdict.PASSED


def test_a_number_that_is_not_there_any_more_is_told() -> None:
    found = receipt(results(check("amp"), device="cuda"), known("amp", baseline=speed(100.0)))
    assert found.baseline is not None
    assert found.baseline.missing == ("amp: speed", "amp: allocated on the device", "amp: reserved on the device")


def test_a_bounded_finding_keeps_its_bound_and_source() -> None:
    row = within("fp32, K = 64", 1e-7, "matmul.fp32", 64)
    (found,) = made(check("matmul", findings=[row])).checks[0].findings
    assert found.model_dump(mode="json") == {
        **{key: value for key, value in row.items() if key != "detail"},
        "unit": "",
        "told": "",
    }


@pytest.mark.parametrize("change", [{"seed": 7}, {"envspec": "0.2.0"}], ids=["another seed", "another suite"])
def test_results_of_other_inputs_are_no_fault(change: dict[str, Any]) -> None:
    one = made(check("matmul", findings=[exact("a")], fingerprints=[fingerprint("integers", "11" * 32)]))
    other = made(check("matmul", findings=[exact("a")], fingerprints=[fingerprint("integers", "22" * 32)]))
    assert compare([("one", one), ("other", other)]).faults
    found = compare([("one", one), ("other", other.model_copy(update=change))])
    assert found.faults == ()
    assert "not compared, their keys differ" in found.fingerprints[0].told
