"""The check `ddp` on real stacks: right ones pass, and each way in which ranks go wrong is found and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.stack import at_loss, spoiled, spoiled_ddp
from tests.support.machines.suite import SuiteOutput, make_request, run

pytestmark = pytest.mark.stack

_GRADIENT = "gloo, 2 ranks: gradient against one process"
_NORM = "gloo, 2 ranks: gradient norm against one process"
_CLIPPING = {f"gloo, 2 ranks: norm by torch's clipping, rank {rank}" for rank in (0, 1)}
_PARAMETERS = "gloo, 2 ranks: parameters against one process"
_INTEGERS = "gloo, 2 ranks: collectives of integers are exact"
_EQUAL = {what: f"gloo, 2 ranks: {what} are equal bit by bit across ranks" for what in ("gradients", "parameters")}


def _broken(python: Path, folder: Path, fault: dict[str, str], **more: Any) -> SuiteOutput:
    output = run(python, make_request("ddp", **more), folder / "run", environ=fault)
    assert output.results["ddp"]["status"] == "failed"
    return output


def test_a_right_stack_passes_and_reports_its_bandwidth(torch_any: Path, tmp_path: Path) -> None:
    output = run(torch_any, make_request("ddp"), tmp_path)
    result, findings = output.results["ddp"], output.findings("ddp")
    assert result["status"] == "passed", result
    assert {_GRADIENT, _NORM, _PARAMETERS, _INTEGERS, *_CLIPPING, *_EQUAL.values()} <= findings.keys()
    assert findings[_GRADIENT]["value"] <= findings[_GRADIENT]["bound"] == 1e-5
    assert findings["gloo, 2 ranks: bus bandwidth of all-reduce"]["unit"] == "GB/s"
    levels = {each["name"]: each["level"] for each in result["fingerprints"]}
    assert levels == {"sum of integers over 2 ranks": "universal", "gloo, 2 ranks: gradients": "keyed"}


def test_three_ranks_where_three_are_requested(torch_29: Path, tmp_path: Path) -> None:
    output = run(torch_29, make_request("ddp", world_size=3), tmp_path)
    assert output.results["ddp"]["status"] == "passed"
    assert "gloo, 3 ranks: norm by torch's clipping, rank 2" in output.findings("ddp")


def test_a_sum_that_nobody_divides_doubles_the_norm(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    def summed(_, bucket):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    replica.register_comm_hook(None, summed)
    """
    output = _broken(torch_29, tmp_path, spoiled_ddp(tmp_path / "fault", fault))
    # Ranks that are wrong in the same way are equal bit by bit, and no cosine shows a factor.
    assert output.wrong("ddp") == {_GRADIENT, _NORM, _PARAMETERS, *_CLIPPING}
    assert output.findings("ddp")[_NORM]["value"] == pytest.approx(1, abs=0.1)


def test_a_gradient_16_times_too_large_is_found(torch_26: Path, tmp_path: Path) -> None:
    fault = """
    def scaled(_, inputs, output):
        output.register_hook(lambda gradient: 16 * gradient)

    replica.module[-1].register_forward_hook(scaled)
    """
    output = _broken(torch_26, tmp_path, spoiled_ddp(tmp_path / "fault", fault))
    assert output.wrong("ddp") == {_GRADIENT, _NORM, _PARAMETERS, *_CLIPPING}
    assert output.findings("ddp")[_NORM]["value"] > 10


def test_a_sum_of_integers_that_is_wrong_by_one_is_found_and_named(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    import os
    reduce = torch.distributed.all_reduce

    def wrong(tensor, *others, **named):
        work = reduce(tensor, *others, **named)
        if os.environ["RANK"] == "1" and tensor.dtype == torch.int64:
            tensor[-1] += 1
        return work

    torch.distributed.all_reduce = wrong
    """
    output = _broken(torch_29, tmp_path, spoiled(tmp_path / "fault", fault))
    assert output.wrong("ddp") == {_INTEGERS}
    assert output.findings("ddp")[_INTEGERS]["detail"] == "all-reduce of int64 at rank 1"


def test_a_rank_out_of_step_is_found_and_named(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    import gc
    weight = next(each for each in gc.get_objects() if type(each) is torch.nn.Linear).weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    """
    output = _broken(torch_29, tmp_path, at_loss(tmp_path / "fault", fault))
    # One bit: within every bound, and yet these replicas go apart.
    assert output.wrong("ddp") == {_EQUAL["parameters"]}
    assert "rank 1 differs from rank 0" in output.results["ddp"]["reason"]


def test_a_killed_rank_is_named_with_its_signal_and_its_place(torch_any: Path, tmp_path: Path) -> None:
    output = _broken(torch_any, tmp_path, at_loss(tmp_path / "fault", "os.kill(os.getpid(), 9)"))
    assert "rank 1 was killed by signal 9 (SIGKILL) in the phase 'step 2'" in output.results["ddp"]["reason"]
    assert output.results["ddp"]["seconds"] < 100


def test_a_rank_that_raises_is_named_with_its_error(torch_29: Path, tmp_path: Path) -> None:
    output = _broken(torch_29, tmp_path, at_loss(tmp_path / "fault", "raise ArithmeticError('no loss today')"))
    assert "rank 1 raised in the phase 'step 2': ArithmeticError: no loss today" in output.results["ddp"]["reason"]


def test_a_rank_that_hangs_is_over_the_limit_and_the_log_shows_where(torch_29: Path, tmp_path: Path) -> None:
    fault = at_loss(tmp_path / "fault", "import time; time.sleep(3600)")
    # Well before the other rank's own patience ends (`distributed.timeout_s`).
    output = _broken(torch_29, tmp_path, fault, limits={"ddp": 30})
    assert output.results["ddp"]["cause"] == "over its limit"
    assert "still running after 30 s, in the phase 'ranks of gloo, 2 ranks'" in output.results["ddp"]["reason"]
    assert "sitecustomize.py" in output.results["ddp"]["log"]
