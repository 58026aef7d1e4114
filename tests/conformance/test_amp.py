"""The check `amp` on real stacks: right ones pass, and a stack whose mixed precision is broken does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.stack import spoiled
from tests.support.machines.suite import SuiteOutput, make_request, run

pytestmark = pytest.mark.stack

#: Many small steps: one thread is not slower, and the same wherever the tests run.
_ONE = {"OMP_NUM_THREADS": "1"}


def _with(python: Path, folder: Path, fault: str) -> SuiteOutput:
    output = run(python, make_request("amp"), folder / "run", environ=_ONE | spoiled(folder / "fault", fault))
    assert output.status == 0
    assert output.results["amp"]["status"] == "failed"
    assert output.results["amp"]["cause"] == "found"
    return output


def test_a_right_stack_passes_and_reports_what_it_could_not_run(torch_any: Path, tmp_path: Path) -> None:
    output = run(torch_any, make_request("amp"), tmp_path, environ=_ONE)
    result, findings = output.results["amp"], output.findings("amp")
    assert result["status"] == "passed", result
    assert [name for name, each in findings.items() if each["kind"] == "not run"] == ["memory against fp32"]
    assert int(findings["parameters"]["detail"]) >= 10_000_000
    assert findings["the output's type in fp16"]["detail"] == "torch.float16"
    assert findings["the first gradient in fp16"]["bound"] == 4 * 2**-11
    assert "60 steps" in findings["the loss in bf16"]["detail"]


def test_a_gradient_that_is_16_times_too_large_is_found(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    unscale = torch.amp.GradScaler.unscale_

    def wrong(self, optimizer):
        unscale(self, optimizer)
        for group in optimizer.param_groups if self.is_enabled() else []:
            for parameter in group["params"]:
                parameter.grad.mul_(16)

    torch.amp.GradScaler.unscale_ = wrong
    """
    output = _with(torch_29, tmp_path, fault)
    finding = output.findings("amp")["the first gradient in fp16"]
    assert finding["ok"] is False
    assert finding["value"] == pytest.approx(15, rel=1e-2)
    assert "its norm is 16 times fp32's" in output.results["amp"]["reason"]
    assert "the first gradient in bf16" not in output.wrong("amp")


def test_a_gradient_that_is_halved_is_found(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    scale = torch.amp.GradScaler.scale
    torch.amp.GradScaler.scale = lambda self, loss: scale(self, loss) / (2 if self.is_enabled() else 1)
    """
    output = _with(torch_29, tmp_path, fault)
    assert output.findings("amp")["the first gradient in fp16"]["value"] == pytest.approx(0.5, rel=1e-2)
    assert "the first gradient in fp16" in output.wrong("amp")


def test_a_scaler_that_never_skips_is_found(torch_any: Path, tmp_path: Path) -> None:
    fault = """
    torch.amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *more, **words: optimizer.step(*more, **words)
    """
    output = _with(torch_any, tmp_path, fault)
    assert output.wrong("amp") == {"a step that overflows is skipped", "training goes on after an overflow"}


def test_a_scale_that_stays_is_found(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    update = torch.amp.GradScaler.update

    def wrong(self, new_scale=None):
        before = self.get_scale()
        update(self, new_scale)
        if self.is_enabled():
            self._scale.fill_(before)

    torch.amp.GradScaler.update = wrong
    """
    output = _with(torch_29, tmp_path, fault)
    assert output.wrong("amp") == {
        "the scale grows after its interval",
        "a step that overflows halves the scale",
        "training goes on after an overflow",
    }


def test_autocast_and_a_scaler_that_are_off_are_found(torch_29: Path, tmp_path: Path) -> None:
    fault = """
    cast, start = torch.amp.autocast.__init__, torch.amp.GradScaler.__init__

    def without(self, device, dtype=None, enabled=True, cache_enabled=None):
        cast(self, device, dtype, False, cache_enabled)

    def off(self, *more, **words):
        start(self, *more, **{**words, "enabled": False})

    torch.amp.autocast.__init__, torch.amp.GradScaler.__init__ = without, off
    """
    output = _with(torch_29, tmp_path, fault)
    assert output.wrong("amp") >= {"the output's type in bf16", "the output's type in fp16", "GradScaler is enabled"}
    assert output.findings("amp")["the output's type in bf16"]["detail"] == "torch.float32"
