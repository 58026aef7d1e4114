"""A pytorch_widedeep that does not learn; test_family.py has a torchvision that keeps it from being imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines import suite
from tests.support.machines.stack import copied, site_packages, spoiled

pytestmark = pytest.mark.stack


def test_wide_and_deep_learns(torch_any: Path, tmp_path: Path) -> None:
    output = suite.run(torch_any, suite.make_request("widedeep"), tmp_path)
    result = output.results["widedeep"]
    assert result["status"] == "passed", result
    assert output.findings("widedeep")["accuracy above the baseline"]["value"] >= 0.35
    assert "pytorch_widedeep" in result["ran"]


@pytest.mark.parametrize(
    ("module", "body"),
    [
        ("torch.optim.adam", "adam.Adam.step = lambda self, closure=None: None"),
        (
            "pytorch_widedeep.training.trainer",
            """
            fit = trainer.Trainer.fit
            def mixed(self, *more, target, **named):
                import numpy
                return fit(self, *more, target=numpy.random.RandomState(0).permutation(target), **named)
            trainer.Trainer.fit = mixed
            """,
        ),
    ],
    ids=["the optimizer does nothing", "labels of other rows"],
)
def test_what_does_not_learn_is_found(torch_29: Path, tmp_path: Path, module: str, body: str) -> None:
    bad = spoiled(tmp_path / "bad", body, module)
    output = suite.run(torch_29, suite.make_request("widedeep"), tmp_path / "run", environ=bad)
    result = output.results["widedeep"]
    assert (result["status"], result["cause"]) == ("failed", "found"), result["reason"]
    assert "accuracy above the baseline: " in result["reason"] and "must be >= 0.35" in result["reason"]


def test_without_it_it_is_not_run(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    (site_packages(python) / "pytorch_widedeep").rename(tmp_path / "pytorch_widedeep")
    result = suite.run(python, suite.make_request("widedeep"), tmp_path / "run").results["widedeep"]
    assert (result["status"], result["reason"]) == ("not run", "pytorch_widedeep is not installed")
