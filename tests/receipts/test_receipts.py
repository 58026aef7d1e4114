"""Receipts: built from results, written and read, compared; and `envspec receipts`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from envspec.conformance import hardware as suite_machine
from envspec.conformance.receipt import FORMAT, exit_code
from envspec.conformance.results import Cause, Status, dumps
from envspec.receipts import model
from envspec.receipts.build import BadResults, receipt
from envspec.receipts.compare import Comparison, Weight, against, columns, compare
from envspec.receipts.fleet import FleetNode, fleet
from envspec.receipts.metrics import HOST_MEMORY_TOLERANCE, numbers
from envspec.receipts.model import BadReceipt, Receipt, Verdict, dump, load, read
from envspec.report import COMPARISON, FLEET, RECEIPT, write_receipt
from envspec.report.comparison import answers
from tests.support.builders.receipts import (
    IMAGE,
    LOCAL,
    check,
    eight_gpus,
    exact,
    fingerprint,
    info,
    known,
    machine,
    made,
    not_run,
    results,
    within,
)
from tests.support.user import ROOT, envspec

PEAK = {"allocated_bytes": 1_000_000_000, "reserved_bytes": 1_200_000_000, "host_bytes": 900_000_000}


def skipped(name: str, **more: Any) -> dict[str, Any]:
    return check(name, status="not run", reason="there is none", **more)


def failed(name: str, **more: Any) -> dict[str, Any]:
    return check(name, **{"status": "failed", "cause": "found", "reason": "wrong", **more})


def late(name: str, **more: Any) -> dict[str, Any]:
    return check(name, status="not known", cause="ran out of time", reason="ran out of time", **more)


@pytest.mark.parametrize(
    ("rows", "required", "reasons"),
    [
        ([check("matmul"), check("amp")], (), ()),
        ([check("matmul"), failed("amp")], (), ("amp failed",)),
        ([check("matmul"), skipped("pyg")], (), ()),
        ([check("matmul"), skipped("pyg")], ("matmul", "pyg"), ("pyg is required and was not run",)),
    ],
    ids=["passed", "failed", "not run", "required and not run"],
)
def test_a_verdict(rows: list[dict[str, Any]], required: tuple[str, ...], reasons: tuple[str, ...]) -> None:
    found = made(*rows, required=required)
    assert (found.verdict, found.reasons) == (Verdict.FAILED if reasons else Verdict.PASSED, reasons)


TRAINED = [check("device"), check("matmul"), check("amp"), check("transformer")]
NO_TORCH = "the suite tests torch, which is not in this stack: only "


@pytest.mark.parametrize(
    ("rows", "named", "device", "reasons"),
    [
        # What is asked of a run without names is training.
        (TRAINED, (), "cuda", ()),
        ([skipped("device"), *TRAINED[1:]], (), "cpu", ()),
        ([skipped("device"), *TRAINED[1:]], (), "cuda", ("device did not run",)),
        ([*TRAINED[:2], skipped("amp"), skipped("transformer")], (), "cuda", ("amp, transformer did not run",)),
        ([check("lock"), *map(skipped, ("device", "matmul"))], (), "cpu", ("matmul, amp, transformer did not run",)),
        ([*TRAINED, late("inference")], (), "cuda", ("inference ran out of time",)),
        ([*TRAINED[:3], late("transformer"), skipped("pyg")], (), "cuda", ("transformer ran out of time",)),
        # With names it is the named checks.
        ([check("device")], ("device",), "cuda", ()),
        ([skipped("device")], ("device",), "cpu", ("device did not run",)),
        ([check("device"), skipped("pyg")], ("device", "pyg"), "cuda", ("pyg did not run",)),
        ([check("device"), late("amp"), failed("pyg")], ("device", "amp", "pyg"), "cuda", ("pyg failed",)),
    ],
)
def test_what_was_not_tested_is_not_known(
    rows: list[dict[str, Any]], named: tuple[str, ...], device: str, reasons: tuple[str, ...]
) -> None:
    found = made(*rows, named=named, device=device)
    failed_ones = any(row["status"] == "failed" for row in rows)
    verdict = Verdict.FAILED if failed_ones else Verdict.NOT_KNOWN if reasons else Verdict.PASSED
    assert (found.verdict, found.reasons) == (verdict, reasons)
    assert bool(found.summary.unanswered) is any(each in str(reasons) for each in ("run", "time")) or failed_ones
    assert exit_code(found.model_dump(mode="json")) == (7 if reasons else 0)


def test_a_lock_without_torch_has_nothing_to_test() -> None:
    found = receipt(
        results(check("lock"), skipped("device"), skipped("matmul"), has_torch=False),
        known("lock", "device", "matmul", named=()),
    )
    assert (found.verdict, found.reasons) == (Verdict.NOT_KNOWN, (f"{NO_TORCH}lock was tested",))
    assert (found.summary.question, exit_code(found.model_dump(mode="json"))) == ((), 6)
    named = receipt(results(check("lock"), has_torch=False), known("lock"))
    assert (named.verdict, exit_code(named.model_dump(mode="json"))) == (Verdict.PASSED, 0)


def test_a_baseline_makes_no_unknown_run_pass() -> None:
    rows = [check("matmul", findings=[info("bf16", rate, "TFLOP/s")]) for rate in (700, 700, 500)]
    recorded = made(rows[0], named=(), device="cuda")
    found = [made(each, named=(), device="cuda", baseline=recorded) for each in rows[1:]]
    assert [each.verdict for each in found] == [Verdict.NOT_KNOWN, Verdict.FAILED]
    assert len(found[1].reasons) == 1 and "worse than the baseline's" in found[1].reasons[0]


@pytest.mark.parametrize("found", [made(*TRAINED[:2], named=()), made(late("matmul"))], ids=["not run", "late"])
def test_every_report_of_what_is_not_known_agrees(found: Receipt) -> None:
    reports = {form: RECEIPT.render(form, found) for form in RECEIPT}
    assert '<header class="not known">' in reports["html"] and "Not known: " in reports["html"]
    assert reports["markdown"].startswith("## ❔ made-up: not known on ")
    assert reports["text"].startswith("made-up: not known on ")
    assert json.loads(reports["json"])["verdict"] == "not known"
    suite = ElementTree.fromstring(reports["junit"]).find("testsuite")
    assert suite is not None and suite.get("failures") == "1"
    late_ones = found.summary.checks.not_known
    assert int(suite.get("errors", 0)) == late_ones
    nodes = fleet([FleetNode(name, found) for name in "ab"])
    assert nodes.verdict is Verdict.NOT_KNOWN and nodes.not_known == ("a", "b")
    assert "whether the stack works is not known on all of them" in FLEET.render("text", nodes)
    assert '<header class="not known">' in FLEET.render("html", nodes)


def test_main_numbers_are_of_checks_that_passed() -> None:
    """What it took to find that there is no torch was the best first kernel."""
    cold = {"ran": check("coldstart", seconds=9.0), "not": skipped("coldstart", seconds=0.1)}
    receipts = [made(each, check("matmul")) for each in cold.values()]
    (first,) = [each.values for each in columns(receipts) if each.title == "first kernel"]
    assert first == (9.0, None)


COUNTS = {"passed": 1, "failed": 0, "not_run": 1, "not_known": 0, "info": 0}


def test_outcomes_are_counted_once() -> None:
    found = made(check("matmul", findings=[exact("integers"), not_run("fp8", "no GPU")]), skipped("pyg"))
    assert (found.image, found.local) == (IMAGE, None)
    assert found.summary.checks.model_dump() == COUNTS
    assert found.summary.findings.model_dump() == COUNTS


@pytest.mark.parametrize(
    ("is_whole", "reason"), [(False, "the suite ended before it"), (True, "the suite reported no result for it")]
)
def test_checks_without_a_result_are_not_known(is_whole: bool, reason: str) -> None:
    found = receipt(results(check("matmul"), is_whole=is_whole), known("matmul", "amp", "ddp", required=("ddp",)))
    assert [(each.check, each.status, each.cause, each.reason) for each in found.checks] == [
        ("matmul", Status.PASSED, None, ""),
        ("amp", Status.NOT_KNOWN, Cause.CRASHED, reason),
        ("ddp", Status.NOT_KNOWN, Cause.CRASHED, reason),
    ]
    assert (found.verdict, found.reasons) == (Verdict.NOT_KNOWN, ("amp, ddp ended without a result",))


@pytest.mark.parametrize(
    ("row", "is_locked"),
    [
        (check("lock"), True),
        (failed("lock"), False),
        (failed("lock", cause="crashed"), None),
        (skipped("lock"), None),
        (check("matmul"), None),
    ],
    ids=["passed", "drifted", "crashed", "not run", "not requested"],
)
def test_whether_the_environment_is_the_locks(row: dict[str, Any], is_locked: bool | None) -> None:
    found = made(row, check("amp"), local=LOCAL.model_dump())
    assert found.local is not None
    assert found.local.is_locked is is_locked
    assert found.image is None


def test_versions_of_all_checks() -> None:
    found = made(check("a", ran={"torch": "2.9.1", "cuDNN": "9.1"}), check("b", ran={"torch": "2.9.0", "NCCL": "2.27"}))
    assert found.ran == {"NCCL": "2.27", "cuDNN": "9.1", "torch": "2.9.1, 2.9.0"}


def test_halves_of_surrogate_pairs_become_escapes() -> None:
    found = made(check("matmul", log="name: \udce9", findings=[exact("a \ud800 b")]))
    assert found.checks[0].log == "name: \\udce9"
    assert found.checks[0].findings[0].name == "a \\ud800 b"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99"),
        ({"seed": "twenty"}, "seed: "),
        ({"machine": {**machine("cpu"), "colour": "red"}}, "colour: is unknown"),
        ({"results": [{**check("matmul"), "status": "maybe"}]}, "status: "),
        ({"results": [{**check("matmul"), "seconds": float("nan")}]}, "seconds: "),
        ({"is_whole": None}, "is_whole"),
    ],
)
def test_invalid_results(change: dict[str, Any], message: str) -> None:
    document = {**results(check("matmul")), **change}
    with pytest.raises(BadResults, match=message):
        receipt({key: value for key, value in document.items() if value is not None}, known())


def speed(rate: float, memory: int = 1_000_000_000, baseline: Receipt | None = None, **more: Any) -> Receipt:
    row = check("amp", findings=[info("speed", rate, "1/s")], peak={**PEAK, "allocated_bytes": memory})
    return receipt(results(row, device="cuda", **more), known("amp", baseline=baseline))


@pytest.mark.parametrize(
    ("rate", "memory", "worse"),
    [
        (100.0, 1_000_000_000, ()),
        (94.5, 1_000_000_000, ()),
        (93.5, 1_000_000_000, ("amp: speed is 6 % worse than the baseline's",)),
        (200.0, 1_000_000_000, ()),
        (100.0, 1_040_000_000, ()),
        (100.0, 1_100_000_000, ("amp: allocated on the device is 10 % worse than the baseline's",)),
        (100.0, 500_000_000, ()),
    ],
    ids=["same", "in tolerance", "slower", "faster", "memory in tolerance", "more memory", "less memory"],
)
def test_a_baseline(rate: float, memory: int, worse: tuple[str, ...]) -> None:
    found = speed(rate, memory, speed(100.0))
    assert found.baseline is not None
    assert not found.baseline.not_compared
    assert found.reasons == worse
    assert found.verdict is (Verdict.FAILED if worse else Verdict.PASSED)


def rate(value: float, spread: float | None, device: str = "cuda", name: str = "speed") -> Receipt:
    findings = [info(name, value, "1/s", spread=spread), info("the loader's", 100.0, "1/s", spread=None)]
    return receipt(results(check("amp", findings=findings), device=device), known("amp"))


@pytest.mark.parametrize(
    ("recorded", "now", "device", "tolerance"),
    [
        (0.0, 0.0, "cuda", 0.05),
        (0.0, 0.0, "cpu", 0.10),
        (0.04, 0.06, "cuda", 0.15),
        (0.0, 0.4, "cpu", 0.60),
    ],
)
def test_the_tolerance_of_a_rate_is_that_of_both_spreads(
    recorded: float, now: float, device: str, tolerance: float
) -> None:
    (row,) = (each for each in against(rate(80, now, device), rate(100, recorded, device)).rows if each.unit == "1/s")
    assert row.tolerance == pytest.approx(tolerance)
    assert row.is_worse == (tolerance < 0.2)


@pytest.mark.parametrize(("recorded", "now"), [(0.0, 0.7), (0.9, 0.0)])
def test_a_rate_of_a_busy_machine_is_not_compared(recorded: float, now: float) -> None:
    """It could not be worse by its tolerance: that is no success."""
    found = against(rate(5, now), rate(100, recorded))
    assert [each for each in found.rows if each.unit == "1/s"] == []
    assert found.missing == ("amp: speed, its times were too far apart: other programs ran",)


def test_rates_that_no_run_has_a_spread_for_are_not_judged() -> None:
    """Gloo's: their memory is compared."""
    found = against(rate(80, None), rate(100, None))
    assert not found.not_compared
    assert {each.unit for each in found.rows} <= {"bytes"} and not found.missing


@pytest.mark.parametrize(
    "other",
    [machine("cuda", gpu="NVIDIA A100-SXM4-80GB"), machine("cuda", gpus=4)],
    ids=["another GPU", "another world size"],
)
def test_a_baseline_of_another_kind_of_machine_is_not_compared(other: dict[str, Any]) -> None:
    found = speed(10.0, baseline=speed(100.0), machine=other)
    assert found.baseline is not None
    assert found.baseline.rows == ()
    assert "the machines are of different kinds" in found.baseline.not_compared
    assert found.verdict is Verdict.PASSED


def test_a_number_that_is_missing_now_is_listed() -> None:
    found = receipt(results(check("amp"), device="cuda"), known("amp", baseline=speed(100.0)))
    assert found.baseline is not None
    assert found.baseline.missing == ("amp: speed", "amp: allocated on the device", "amp: reserved on the device")


def test_a_bounded_finding_keeps_its_bound_and_source() -> None:
    row = within("fp32, K = 64", 1e-7, "matmul.fp32", 64)
    (found,) = made(check("matmul", findings=[row])).checks[0].findings
    assert json.loads(dumps(found)) == {**row, "unit": "", "spread": None}


@pytest.mark.parametrize("change", [{"seed": 7}, {"envspec": "0.2.0"}], ids=["another seed", "another suite"])
def test_results_of_other_inputs_are_no_fault(change: dict[str, Any]) -> None:
    one = made(check("matmul", findings=[exact("a")], fingerprints=[fingerprint("integers", "11" * 32)]))
    other = made(check("matmul", findings=[exact("a")], fingerprints=[fingerprint("integers", "22" * 32)]))
    assert compare([("one", one), ("other", other)]).faults
    found = compare([("one", one), ("other", other.model_copy(update=change))])
    assert found.faults == ()
    assert "not compared: the keys differ" in found.sections["Fingerprints"][0].note


WHOLE = receipt(eight_gpus(), known("coldstart", "lost", baseline=receipt(eight_gpus(1.3), known())))


def test_a_receipt_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "receipt.json").write_text(dump(WHOLE), encoding="utf-8")
    assert read(tmp_path) == WHOLE
    assert read(tmp_path / "receipt.json") == WHOLE
    assert dump(read(tmp_path)) == dump(WHOLE)


def changed(**keys: Any) -> str:
    return json.dumps({**json.loads(dump(WHOLE)), **keys})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "one.json is not JSON"),
        ("[" * 100_000, "one.json is not JSON"),
        ("[]", "one.json is not a receipt"),
        ('{"format": 1}', "one.json is not a receipt"),
        ('{"format": true, "checks": "none"}', "checks: "),
        (changed(seed="many"), r"one.json is not a valid receipt: seed: "),
        (changed(colour="red"), "colour: is unknown"),
        (changed(format=0), "format: "),
        (changed(made_at="2026-11-22T10:00:00"), "made_at: .*timezone"),
        (changed(checks=[{"status": "passed"}]), r"checks\[0\].check: is missing"),
        (changed(verdict="perhaps", seed=None), r"verdict: .*; seed: "),
    ],
)
def test_files_that_are_not_receipts(text: str, message: str) -> None:
    with pytest.raises(BadReceipt, match=message):
        load(text, "one.json")


def test_a_moment_of_another_zone_is_one_of_utc() -> None:
    found = load(changed(made_at="2026-11-22T10:00:00+09:00"), "one.json").made_at
    assert found.isoformat() == "2026-11-22T01:00:00+00:00"


@pytest.mark.parametrize("more", [{"something_new": 1}, {"checks": None}])
def test_a_newer_receipt_is_refused_and_named(more: dict[str, Any]) -> None:
    document = json.loads(changed(format=FORMAT + 1, envspec="9.0", **more))
    text = json.dumps({key: value for key, value in document.items() if value is not None})
    with pytest.raises(BadReceipt, match=f"of format {FORMAT + 1}, this envspec reads up to {FORMAT}") as refused:
        load(text, "one.json")
    assert refused.value.hint == "envspec 9.0 wrote it: update envspec"


@pytest.mark.parametrize(
    ("content", "message"), [(None, r"receipt.json can't be read: No such file"), (b"\xff\xfe", "not UTF-8")]
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "receipt.json").write_bytes(content)
    with pytest.raises(BadReceipt, match=message):
        read(tmp_path)


def test_the_committed_schema_is_the_receipts(tmp_path: Path) -> None:
    ran = envspec(tmp_path, "schema", "receipt")
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout == (ROOT / "envspec-receipt.schema.json").read_text(encoding="utf-8"), (
        "envspec schema receipt > envspec-receipt.schema.json"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the suite runs on Linux only")
def test_a_machine_is_described_in_the_receipts_words() -> None:
    found = suite_machine.describe()
    of_a_gpu = {"driver", "cuda_driver", "gpus", "topology"}
    assert set(found) <= set(model.Machine.model_fields) - {"toolkit"}
    assert set(found) >= set(model.Machine.model_fields) - {"toolkit", "load", *of_a_gpu, "cpu"}
    assert model.Machine.model_validate(found).kernel == found["kernel"]


def test_other_variables_are_a_difference_that_counts() -> None:
    one = made(check("matmul"))
    variables = {"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    other = one.model_copy(update={"machine": one.machine.model_copy(update={"environment": variables})})
    (line,) = compare([("one", one), ("other", other)]).sections["Machine"]
    assert (line.what, line.weight) == ("environment variables", Weight.DIFFERS)
    assert line.values == ("", "CUDA_VISIBLE_DEVICES=0, NCCL_P2P_DISABLE=1")


def test_a_version_that_only_one_of_them_has_loaded_is_no_other_stack() -> None:
    whole = made(check("matmul", ran={"cuDNN": "9.10.2"}), check("pyg", ran={"torch": "2.9.1"}))
    part = made(check("pyg", ran={"torch": "2.9.1"}))
    other = made(check("matmul", ran={"cuDNN": "9.1.0"}), check("pyg", ran={"torch": "2.9.1"}))
    weights = [
        line.weight
        for one in (part, other)
        for line in compare([("whole", whole), ("one", one)]).sections["Versions that ran"]
    ]
    assert weights == [Weight.INFO, Weight.DIFFERS]


def test_the_same_bits_are_the_same_whatever_their_keys_say() -> None:
    one, other = (made(check("matmul", fingerprints=[fingerprint("fp32", "a1", key)])) for key in ("cpu", "gpu"))
    assert not compare([("one", one), ("other", other)]).lines


def test_the_distance_of_numbers() -> None:
    found = [made(check("matmul", findings=[within("fp32", value, "matmul.fp32", 64)])) for value in (1e-8, 1.001e-8)]
    (line,) = compare(list(zip(("one", "other"), found, strict=True))).sections["Findings"]
    assert line.note == "0.1 % apart"


def test_checks_that_were_not_requested_are_listed_once() -> None:
    speeds = [info("fp32's speed", 1.0, "TFLOP/s"), info("fp16's speed", 1.0, "TFLOP/s")]
    recorded = made(check("matmul", findings=speeds), check("amp", findings=speeds))
    found = against(made(check("amp", findings=speeds[:1])), recorded)
    assert found.missing[0] == "matmul, not requested"
    assert [what for what in found.missing if "matmul" in what] == ["matmul, not requested"]
    assert "amp: fp16's speed" in found.missing


def compared(*receipts: Receipt) -> Comparison:
    return compare([(f"node-{place}", each) for place, each in enumerate(receipts)])


def answer(found: Comparison, question: str) -> str:
    return dict(answers(found))[question]


def hashed(name: str) -> Receipt:
    return made(check(name, findings=[exact("a")], fingerprints=[fingerprint("integers", "11" * 32)]))


def test_results_that_no_two_share_are_unknown() -> None:
    assert answer(compared(hashed("matmul"), hashed("matmul")), "same results, bit by bit") == "yes"
    unknown = "unknown: no fingerprint is in all receipts"
    assert answer(compared(hashed("matmul"), hashed("ddp")), "same results, bit by bit") == unknown
    assert answer(compared(hashed("matmul"), made(check("matmul"))), "same results, bit by bit") == unknown


def test_times_alone_say_nothing_of_speed() -> None:
    one, other = (made(check("matmul", seconds=seconds, peak={})) for seconds in (2.0, 9.0))
    assert answer(compared(one, other), "same speed and memory").startswith("unknown")
    rate = made(check("matmul", findings=[info("speed", 100.0, "1/s")]))
    assert answer(compared(rate, rate), "same speed and memory") == "yes, within the tolerances"


@pytest.mark.parametrize("speeds", [(100.0, 50.0), (100.0, 100.0)])
def test_machines_whose_gpus_are_not_known_are_of_no_kind(speeds: tuple[float, float]) -> None:
    """Without NVML two of them may be any two: a slower one is no fault, and no proof either."""
    unseen = {**machine("cuda"), "gpus": []}
    now, recorded = (
        results(check("amp", findings=[info("speed", speed, "1/s")]), device="cuda", machine=unseen) for speed in speeds
    )
    found = compared(receipt(recorded, known("amp")), receipt(now, known("amp")))
    assert answer(found, "same speed and memory").startswith("not compared")
    held = receipt(now, known("amp", baseline=receipt(recorded, known("amp"))))
    assert held.baseline is not None
    assert not held.baseline.rows
    assert "CUDA does not show" in held.baseline.not_compared
    assert held.reasons == ()


GOLDEN = Path(__file__).parents[1] / "report" / "golden" / "receipts"


def paths(case: str) -> list[str]:
    return [str(path) for path in sorted((GOLDEN / case).glob("node-*.json"))]


def test_receipts_that_do_not_differ(tmp_path: Path) -> None:
    ran = envspec(tmp_path, "receipts", *paths("same"))
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout.startswith("2 receipts: ")


@pytest.mark.parametrize(
    ("folders", "given", "names"),
    [
        (("node-a", "node-b"), ("node-a", "node-b/receipt.json"), ["node-a", "node-b"]),
        (("one/r", "two/r"), ("one/r", "two/r", "two/r"), ["one/r", "two/r (2)", "two/r (3)"]),
    ],
)
def test_unique_names(tmp_path: Path, folders: tuple[str, ...], given: tuple[str, ...], names: list[str]) -> None:
    for folder in folders:
        write_receipt(made(check("matmul")), tmp_path / folder)
    ran = envspec(tmp_path, "receipts", *given, "--format", "json")
    assert (ran.status, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["receipts"] == names


def test_output_is_a_file(tmp_path: Path) -> None:
    given = paths("one-is-slow")
    ran = envspec(tmp_path, "receipts", *given, "--format", "html", "--output", "new/report")
    assert (ran.status, ran.stdout, ran.stderr) == (10, "", "wrote new/report\n")
    expected = COMPARISON.render("html", compare([(Path(each).name, read(Path(each))) for each in given]))
    assert (tmp_path / "new/report").read_text(encoding="utf-8") == expected
    ran = envspec(tmp_path, "receipts", *given, "--format", "json", "--output", "report.json")
    assert json.loads(ran.stdout) == {"output": "report.json"}, ran.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "missing argument 'RECEIPT RECEIPT...'"),
        (("one",), "one receipt can't be compared"),
        (("one", "two"), "one can't be read: No such file or directory"),
        (("one", "two", "--format", "xml"), "'xml' is not one of"),
    ],
)
def test_rejected_arguments(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    ran = envspec(tmp_path, "receipts", *words)
    assert (ran.status, ran.stdout) == (2, "")
    assert message in ran.stderr


def test_output_on_an_ascii_terminal(tmp_path: Path) -> None:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    ran = envspec(tmp_path, "receipts", *paths("one-is-slow"), "--format", "markdown", environ=environ)
    assert ran.status == 10
    assert ran.stdout.isascii()


@pytest.mark.parametrize(("host_bytes", "tolerance"), [(100_000_000, None), (900_000_000, HOST_MEMORY_TOLERANCE)])
def test_the_memory_of_a_small_process_has_no_tolerance(host_bytes: int, tolerance: float | None) -> None:
    found = [
        each
        for each in numbers(made(check("lock", peak={**PEAK, "host_bytes": host_bytes}), device="cpu"))
        if "host" in each.name
    ]
    assert {each.tolerance for each in found} == {tolerance}
