"""The check `fsdp` on real stacks: what torch does right passes, what it cannot is reported, a wrong step is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.stack import at_loss, spoiled
from tests.support.machines.suite import make_request, run

pytestmark = pytest.mark.stack


def test_fsdp2_passes_where_torch_does_it_right_on_the_cpu(torch_29: Path, tmp_path: Path) -> None:
    output = run(torch_29, make_request("fsdp"), tmp_path)
    findings = output.findings("fsdp")
    assert output.results["fsdp"]["status"] == "passed", output.results["fsdp"]
    assert findings["FSDP2, gloo, 2 ranks: gradient against one process"]["value"] <= 1e-5
    assert findings["FSDP2, gloo, 2 ranks: gradients are equal bit by bit across ranks"]["ok"]
    assert findings["FSDP2, gloo, 2 ranks: rank 0 holds its share"]["ok"]
    assert not [each for each in findings.values() if each["kind"] == "not run"]


def test_where_it_does_not_the_reason_is_reported_and_fsdp1_runs(torch_26: Path, tmp_path: Path) -> None:
    output = run(torch_26, make_request("fsdp"), tmp_path)
    findings = output.findings("fsdp")
    assert output.results["fsdp"]["status"] == "passed", output.results["fsdp"]
    assert findings["FSDP2, gloo, 2 ranks"]["kind"] == "not run"
    assert "with torch 2.6: it requires streams" in findings["FSDP2, gloo, 2 ranks"]["detail"]
    assert findings["FSDP1, gloo, 2 ranks: gradient norm against one process"]["value"] <= 1e-5
    assert findings["FSDP1, gloo, 2 ranks: rank 1 holds its share"]["ok"]


_UNDIVIDED = """
    scatter, ReduceOp = torch.distributed.reduce_scatter_tensor, torch.distributed.ReduceOp

    def summed(output, input, op=ReduceOp.SUM, **named):
        return scatter(output, input, op=ReduceOp.SUM if op == ReduceOp.AVG else op, **named)

    torch.distributed.reduce_scatter_tensor = summed
"""
_DOUBLED = """
    scatter = torch.distributed.reduce_scatter_tensor

    def doubled(output, input, **named):
        work = scatter(output, input.mul(2), **named)
        return work

    torch.distributed.reduce_scatter_tensor = doubled
"""


@pytest.mark.parametrize(
    ("stack", "sharding", "fault"), [("torch_29", "FSDP2", _UNDIVIDED), ("torch_26", "FSDP1", _DOUBLED)]
)
def test_a_norm_that_is_doubled_across_ranks_is_found(
    stack: str, sharding: str, fault: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    python: Path = request.getfixturevalue(stack)
    output = run(python, make_request("fsdp"), tmp_path / "run", environ=spoiled(tmp_path / "fault", fault))
    findings, name = output.findings("fsdp"), f"{sharding}, gloo, 2 ranks"
    assert output.results["fsdp"]["status"] == "failed"
    assert {each for each, finding in findings.items() if finding["ok"] is False} == {
        f"{name}: gradient against one process",
        f"{name}: parameters against one process",
        f"{name}: gradient norm against one process",
        f"{name}: norm by torch's clipping, rank 0",
        f"{name}: norm by torch's clipping, rank 1",
    }
    assert findings[f"{name}: gradient norm against one process"]["value"] == pytest.approx(1, abs=0.1)


def test_a_killed_rank_is_named(torch_any: Path, tmp_path: Path) -> None:
    fault = at_loss(tmp_path / "fault", "os.kill(os.getpid(), 9)", rank=0)
    output = run(torch_any, make_request("fsdp"), tmp_path / "run", environ=fault)
    assert output.results["fsdp"]["status"] == "failed"
    assert "rank 0 was killed by signal 9 (SIGKILL) in the phase 'step 2'" in output.results["fsdp"]["reason"]
