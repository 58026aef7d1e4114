"""What two receipts say that they do not share, where one of them was asked for less, or computed the same."""

from __future__ import annotations

from envspec.receipt.baseline import against
from envspec.receipt.compare import compare
from envspec.receipt.comparison import Weight
from tests.support.receipts import check, fingerprint, informs, made, within


def test_a_version_that_only_one_of_them_has_loaded_is_no_other_stack() -> None:
    whole = made(check("matmul", ran={"cuDNN": "9.10.2"}), check("pyg", ran={"torch": "2.9.1"}))
    part = made(check("pyg", ran={"torch": "2.9.1"}))
    other = made(check("matmul", ran={"cuDNN": "9.1.0"}), check("pyg", ran={"torch": "2.9.1"}))
    weights = [line.weight for one in (part, other) for line in compare([("whole", whole), ("one", one)]).versions]
    assert weights == [Weight.INFORMS, Weight.DIFFERS]


def test_the_same_bits_are_the_same_whatever_their_keys_say() -> None:
    one, other = (made(check("matmul", fingerprints=[fingerprint("fp32", "a1", key)])) for key in ("cpu", "gpu"))
    assert not compare([("one", one), ("other", other)]).fingerprints


def test_how_far_numbers_are_apart_is_said_in_words_that_fit() -> None:
    found = [made(check("matmul", findings=[within("fp32", value, "matmul.fp32", 64)])) for value in (1e-8, 1.001e-8)]
    (line,) = compare(list(zip(("one", "other"), found, strict=True))).findings
    assert line.told == "0.1 % apart"


def test_checks_that_were_not_asked_for_are_told_of_once() -> None:
    speeds = [informs("fp32's speed", 1.0, "TFLOP/s"), informs("fp16's speed", 1.0, "TFLOP/s")]
    recorded = made(check("matmul", findings=speeds), check("amp", findings=speeds))
    found = against(made(check("amp", findings=speeds[:1])), recorded)
    assert found.missing[0] == "matmul, not asked for"
    assert [what for what in found.missing if "matmul" in what] == ["matmul, not asked for"]
    assert "amp: fp16's speed" in found.missing
