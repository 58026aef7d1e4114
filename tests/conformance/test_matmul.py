"""The check `matmul` on real stacks: right ones pass, and a stack that multiplies wrongly does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.stack import spoiled_product
from tests.support.machines.suite import SuiteOutput, make_request, run

pytestmark = pytest.mark.stack

_INTEGERS = {f"integers in {name}" for name in ("fp32", "fp16", "bf16")}


def _with(python: Path, folder: Path, fault: str) -> SuiteOutput:
    output = run(python, make_request("matmul"), folder / "run", environ=spoiled_product(folder / "fault", fault))
    assert output.status == 0
    assert output.results["matmul"]["status"] == "failed"
    assert output.results["matmul"]["cause"] == "found"
    return output


def test_a_right_stack_passes_and_reports_what_it_could_not_run(torch_any: Path, tmp_path: Path) -> None:
    output = run(torch_any, make_request("matmul"), tmp_path)
    result, findings = output.results["matmul"], output.findings("matmul")
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
        output = run(python, make_request("matmul"), tmp_path / python.parents[1].name)
        rows = {each["name"]: each for each in output.results["matmul"]["fingerprints"]}
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
    output = _with(torch_29, tmp_path, fault)
    assert output.wrong("matmul") >= _INTEGERS | {"fp32, K = 64", "fp32, K = 16384", "fp16, K = 1024", "bf16, K = 64"}
    assert "differ from the product in int64" in output.results["matmul"]["reason"]


def test_one_element_that_is_zero_is_found_and_named(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    found = product(left, right)
    found[3, 5] = 0
    return found
    """
    output = _with(torch_29, tmp_path, fault)
    assert output.wrong("matmul") >= _INTEGERS | {"fp32, K = 64, by element", "fp32, K = 16384, by element"}
    assert output.findings("matmul")["fp32, K = 1024, by element"]["detail"] == "the worst is row 3, column 5"


def test_a_flipped_low_bit_is_found_by_the_integers_alone(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    found = product(left, right)
    if found.dtype == torch.bfloat16:
        found.view(torch.int16)[100, 100] ^= 1
    return found
    """
    assert _with(torch_29, tmp_path, fault).wrong("matmul") == {"integers in bf16"}


def test_fp32_that_is_computed_in_tf32_is_reported_as_such(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    if left.dtype != torch.float32:
        return product(left, right)
    cut = [(each.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (left, right)]
    return product(*cut)
    """
    output = _with(torch_29, tmp_path, fault)
    assert "fp32 is not TF32" in output.wrong("matmul")
    # Integers are as exact in TF32, and other types are not touched.
    assert all(name.startswith("fp32") for name in output.wrong("matmul"))
    assert "fp32 is computed in TF32" in output.results["matmul"]["reason"]
