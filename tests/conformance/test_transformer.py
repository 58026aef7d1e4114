"""The check `transformer` on real stacks: right ones pass; without a compiler or with wrong attention they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.stack import spoiled
from tests.support.machines.suite import make_request, run

pytestmark = pytest.mark.stack

_ONE = {"OMP_NUM_THREADS": "1"}
_NO_COMPILER = ("/usr/bin/env", "-u", "CC", "-u", "CXX")


def test_a_right_stack_passes_and_says_which_kernels_ran(torch_any: Path, tmp_path: Path) -> None:
    requested = make_request("transformer", price_per_hour=2.0, currency="EUR")
    kept = tmp_path / "kept"
    # Somebody's cache, in which a graph that was compiled elsewhere would be found.
    environ = _ONE | {"TORCHINDUCTOR_CACHE_DIR": str(kept), "TRITON_CACHE_DIR": str(kept)}
    output = run(torch_any, requested, tmp_path / "run", environ=environ)
    result, findings = output.results["transformer"], output.findings("transformer")
    assert result["status"] == "passed", result
    assert not kept.exists()
    assert "flash in bf16" in findings["attention's kernels that ran"]["detail"]
    kernels = ("efficient", "cuDNN")
    left_out = {f"{name} attention in {dtype}" for name in kernels for dtype in ("fp32", "bf16", "fp16")}
    assert {name for name, each in findings.items() if each["kind"] == "not run"} == left_out
    assert findings["torch.compile runs"]["detail"] == "1 graphs were compiled"
    price = findings["tokens for the price"]
    fastest = max(each["value"] for name, each in findings.items() if name.startswith("tokens a second"))
    assert price["unit"] == "1/EUR"
    assert price["value"] == pytest.approx(fastest * 3600 / 2)


def test_without_a_compiler_it_says_so_and_what_to_do(torch_any: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    environ = _ONE | {"PATH": str(tmp_path / "bin")}
    requested = make_request("transformer", price_per_hour=2.5)
    output = run(torch_any, requested, tmp_path / "run", environ=environ, before=_NO_COMPILER)
    result = output.results["transformer"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert [name for name, each in output.findings("transformer").items() if each["ok"] is False] == [
        "torch.compile runs"
    ]
    price = output.findings("transformer")["tokens for the price"]
    assert (price["unit"], price["detail"]) == ("1/currency unit", "2.5 an hour"), "a price needs no currency"
    assert '[image] compiler = "auto"' in result["hint"]
    assert "InvalidCxxCompiler: No working C++ compiler found" in result["reason"]


def test_a_compiler_that_fails_is_reported_with_its_own_message(torch_29: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    compiler = folder / "g++"
    script = 'case "$*" in *--version*) echo "g++ (GCC) 12.2.0";; *) echo "as: error: no assembler" >&2; exit 1;; esac'
    compiler.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    compiler.chmod(0o755)
    environ = _ONE | {"PATH": str(folder)}
    output = run(torch_29, make_request("transformer"), tmp_path / "run", environ=environ, before=_NO_COMPILER)
    result = output.results["transformer"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert "as: error: no assembler" in result["reason"]


def test_compiling_that_is_switched_off_is_not_taken_for_compiling(torch_29: Path, tmp_path: Path) -> None:
    output = run(torch_29, make_request("transformer"), tmp_path, environ=_ONE | {"TORCHDYNAMO_DISABLE": "1"})
    finding = output.findings("transformer")["torch.compile runs"]
    assert finding["ok"] is False
    assert finding["detail"] == "0 graphs were compiled"
    assert output.results["transformer"]["status"] == "failed"


def test_attention_without_its_scale_is_found_in_every_kernel(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    attend = torch.nn.functional.scaled_dot_product_attention
    wrong = lambda *inputs, **words: attend(*inputs, **{**words, "scale": 1.0})
    torch.nn.functional.scaled_dot_product_attention = wrong
    """
    # What is compiled plays no part here, and takes the longest.
    environ = _ONE | spoiled(tmp_path / "fault", fault) | {"TORCHDYNAMO_DISABLE": "1"}
    output = run(torch_29, make_request("transformer"), tmp_path / "run", environ=environ)
    result = output.results["transformer"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    wrong = output.wrong("transformer")
    cases = {f"{kernel} attention in {dtype}" for kernel in ("math", "flash") for dtype in ("fp32", "bf16", "fp16")}
    assert {f"{case}, {part}" for case in cases for part in ("output", "gradient")} <= wrong


def test_a_kernel_that_is_wrong_in_one_type_alone_is_named(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    attend = torch.nn.functional.scaled_dot_product_attention

    def wrong(query, key, value, *more, **words):
        output = attend(query, key, value, *more, **words)
        return output * 1.05 if query.dtype == torch.bfloat16 else output

    torch.nn.functional.scaled_dot_product_attention = wrong
    """
    environ = _ONE | spoiled(tmp_path / "fault", fault) | {"TORCHDYNAMO_DISABLE": "1"}
    output = run(torch_29, make_request("transformer"), tmp_path / "run", environ=environ)
    wrong = output.wrong("transformer")
    assert "flash attention in bf16, output" in wrong
    assert not any("fp32" in name or "fp16" in name for name in wrong)
