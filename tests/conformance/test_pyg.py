"""A torch_geometric that does not pass messages, or does not import."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines import suite
from tests.support.machines.stack import copied, replace, site_packages, spoiled

pytestmark = pytest.mark.stack

_EXTENSIONS = ("pyg_lib", "torch_scatter", "torch_sparse", "torch_cluster", "torch_spline_conv")


def test_a_gcn_learns(torch_any: Path, tmp_path: Path) -> None:
    output = suite.run(torch_any, suite.make_request("pyg"), tmp_path)
    result = output.results["pyg"]
    assert result["status"] == "passed", result
    findings = output.findings("pyg")
    assert findings["accuracy on nodes not trained on"]["value"] >= 0.95
    # The locks hold none of the compiled extensions.
    assert {name for name, each in findings.items() if each["kind"] == "not run"} == {
        "NeighborLoader",
        *(f"{name}'s operator" for name in _EXTENSIONS),
    }


@pytest.mark.parametrize(
    ("module", "body"),
    [
        (
            "torch_geometric.nn.conv.message_passing",
            """
            def aggregate(self, inputs, index, ptr=None, dim_size=None):
                return inputs.new_zeros(dim_size, inputs.shape[-1])
            message_passing.MessagePassing.aggregate = aggregate
            """,
        ),
        (
            "torch_geometric.utils._scatter",
            """
            summed = _scatter.scatter
            _scatter.scatter = lambda src, index, *more, **named: summed(src, index.flip(0), *more, **named)
            """,
        ),
    ],
    ids=["no message arrives", "messages arrive elsewhere"],
)
def test_broken_message_passing_does_not_learn(torch_any: Path, tmp_path: Path, module: str, body: str) -> None:
    output = suite.run(
        torch_any, suite.make_request("pyg"), tmp_path / "run", environ=spoiled(tmp_path / "bad", body, module)
    )
    result = output.results["pyg"]
    assert (result["status"], result["cause"]) == ("failed", "found"), result["reason"]
    assert "accuracy on nodes not trained on: " in result["reason"] and "must be >= 0.95" in result["reason"]


def test_a_torch_geometric_that_does_not_import_fails(torch_29: Path, tmp_path: Path) -> None:
    """A file of its that is empty, as a disk that was full leaves it."""
    python = copied(torch_29, tmp_path / "stack")
    replace(site_packages(python) / "torch_geometric" / "typing.py", b"")
    result = suite.run(python, suite.make_request("pyg"), tmp_path / "run").results["pyg"]
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert result["reason"].startswith("in the phase 'import torch_geometric': ")


def test_an_extension_that_is_locked_and_broken_fails(torch_29: Path, tmp_path: Path) -> None:
    """Installed, and its library is of another torch: what PyG's own index gives to a wrong pair."""
    python = copied(torch_29, tmp_path / "stack")
    package = site_packages(python) / "torch_scatter"
    package.mkdir()
    (package / "_version_cpu.so").write_bytes(b"\x7fELF")
    (package / "__init__.py").write_text(
        "import os, torch\ntorch.ops.load_library(os.path.join(os.path.dirname(__file__), '_version_cpu.so'))\n"
    )
    locked = {"name": "x", "packages": {"torch-geometric": "2.8.1", "torch-scatter": "2.1.2"}, "code": []}
    result = suite.run(python, suite.make_request("pyg", locked=locked), tmp_path / "run").results["pyg"]
    assert result["status"] == "failed"
    assert "torch_scatter" in result["reason"] and "_version_cpu.so" in result["reason"]


def test_without_torch_geometric_it_is_not_run(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    (site_packages(python) / "torch_geometric").rename(tmp_path / "torch_geometric")
    locked = {"name": "x", "packages": {"torch": "2.9.1"}, "code": []}
    result = suite.run(python, suite.make_request("pyg", locked=locked), tmp_path / "run").results["pyg"]
    assert (result["status"], result["reason"]) == ("not run", "torch_geometric is not in the lock")
