"""The check `matmul` on real stacks: right ones pass, and a stack that multiplies wrongly does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broken_stack import spoiled_product
from tests.support.suite import Told, assert_nothing_left, order, run

pytestmark = pytest.mark.stack

_INTEGERS = {f"integers in {name}" for name in ("fp32", "fp16", "bf16")}


def _with(python: Path, folder: Path, fault: str) -> Told:
    told = run(python, order("matmul"), folder / "run", environ=spoiled_product(folder / "fault", fault))
    assert_nothing_left(folder / "run")
    assert told.status == 0
    assert told.results["matmul"]["status"] == "failed"
    assert told.results["matmul"]["cause"] == "found"
    return told


def _wrong(told: Told) -> set[str]:
    return {name for name, finding in told.findings("matmul").items() if finding["ok"] is False}


def test_a_right_stack_passes_and_says_what_it_could_not_try(torch_any: Path, tmp_path: Path) -> None:
    told = run(torch_any, order("matmul"), tmp_path)
    assert_nothing_left(tmp_path)
    result, findings = told.results["matmul"], told.findings("matmul")
    assert result["status"] == "passed", result
    assert {name for name, each in findings.items() if each["kind"] == "not run"} == {"tf32", "fp8"}
    assert findings["bf16, K = 16384"]["value"] <= findings["bf16, K = 16384"]["bound"] == 1.5 * 2**-8
    assert {each["unit"] for name, each in findings.items() if name.endswith("speed")} == {"TFLOP/s"}
    assert result["ran"]["torch"].startswith("2.")


def test_integers_have_one_fingerprint_in_every_type_and_on_every_torch(
    torch_29: Path, torch_26: Path, tmp_path: Path
) -> None:
    digests = set()
    for python in (torch_29, torch_26):
        told = run(python, order("matmul"), tmp_path / python.parents[1].name)
        rows = {each["name"]: each for each in told.results["matmul"]["fingerprints"]}
        digests |= {rows[name]["digest"] for name in _INTEGERS}
        assert {rows[name]["level"] for name in _INTEGERS} == {"universal"}
        keyed = rows["random numbers in fp32"]
        assert keyed["level"] == "keyed"
        assert "threads" in keyed["key"]
    assert len(digests) == 1


def test_a_dropped_k_is_found(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    kept = torch.ones(left.shape[1], dtype=torch.bool)
    kept[7] = False
    return product(left[:, kept], right[kept])
    """
    told = _with(torch_29, tmp_path, fault)
    assert _wrong(told) >= _INTEGERS | {"fp32, K = 64", "fp32, K = 16384", "fp16, K = 1024", "bf16, K = 64"}
    assert "differ from the product in int64" in told.results["matmul"]["reason"]


def test_one_element_that_is_zero_is_found_and_named(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    found = product(left, right)
    found[3, 5] = 0
    return found
    """
    told = _with(torch_29, tmp_path, fault)
    assert _wrong(told) >= _INTEGERS | {"fp32, K = 64, by element", "fp32, K = 16384, by element"}
    assert told.findings("matmul")["fp32, K = 1024, by element"]["detail"] == "the worst is row 3, column 5"


def test_a_flipped_low_bit_is_found_by_the_integers_alone(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    found = product(left, right)
    if found.dtype == torch.bfloat16:
        found.view(torch.int16)[100, 100] ^= 1
    return found
    """
    assert _wrong(_with(torch_29, tmp_path, fault)) == {"integers in bf16"}


def test_fp32_that_is_computed_in_tf32_is_told_as_that(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    if left.dtype != torch.float32:
        return product(left, right)
    cut = [(each.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (left, right)]
    return product(*cut)
    """
    told = _with(torch_29, tmp_path, fault)
    assert "fp32 is not TF32" in _wrong(told)
    # Integers are as exact in TF32, and other types are not touched.
    assert all(name.startswith("fp32") for name in _wrong(told))
    assert "fp32 is computed in TF32" in told.results["matmul"]["reason"]
