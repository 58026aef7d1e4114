"""torch's companions beside a torch that they were not built for: real packages, in a copy of a real stack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.machines import suite
from tests.support.machines.stack import copied, cpu_torch_beside_the_indexs_torchvision, install, spoiled

pytestmark = pytest.mark.stack


def test_companions_of_the_same_family_pass(torch_any: Path, tmp_path: Path) -> None:
    output = suite.run(torch_any, suite.make_request("family"), tmp_path)
    result = output.results["family"]
    assert result["status"] == "passed", result
    assert set(result["ran"]) == {"torch", "torchvision", "torchaudio"}
    assert all(each["ok"] for each in result["findings"])


@pytest.fixture
def beside(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The Python of a copy of a stack with one other package: (the stack's fixture, the requirement)."""
    stack, requirement = request.param
    python = copied(request.getfixturevalue(stack), tmp_path / "stack")
    install(python, requirement)
    return python


@pytest.mark.parametrize("beside", [("torch_29", "torchaudio==2.11.0")], indirect=True)
def test_a_newer_torchaudio_says_which_symbol_is_missing(beside: Path, tmp_path: Path) -> None:
    """The solution that resolvers find, since torchaudio names no torch: the symbol stands in `__cause__` alone."""
    output = suite.run(beside, suite.make_request("family"), tmp_path / "run")
    result = output.results["family"]
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert "in the phase 'import torchaudio'" in result["reason"]
    assert "because of OSError" in result["reason"]
    assert "undefined symbol: torch_library_impl" in result["reason"]
    assert "from one lock" in result["hint"]
    assert output.findings("family")["torchvision.ops.nms"]["ok"] is True


@pytest.mark.parametrize("beside", [("torch_29", "torchvision==0.23.0")], indirect=True)
def test_an_older_torchvision_that_crashes_is_reported_with_signal_and_phase(beside: Path, tmp_path: Path) -> None:
    output = suite.run(beside, suite.make_request("family", "device"), tmp_path / "run")
    result = output.results["family"]
    assert (result["status"], result["cause"]) == ("failed", "crashed")
    # It writes where it should not: mostly the kernel ends it, and sometimes glibc, which found its heap in disorder.
    assert re.fullmatch(
        r"crashed in the phase 'import torchvision', by signal (11 \(SIGSEGV\)|6 \(SIGABRT\))", result["reason"]
    )
    assert "torchvision/extension.py" in result["log"]
    assert "from one lock" in result["hint"]
    # The crash is that check's own matter.
    assert output.status == 0 and output.document["is_whole"]
    assert output.results["device"]["status"] == "not run"


def test_a_torch_without_cuda_beside_the_indexs_torchvision_has_no_operators(tmp_path: Path) -> None:
    """Both are of one release, and resolvers find nothing wrong: torchvision's library is linked with CUDA's."""
    python = cpu_torch_beside_the_indexs_torchvision(tmp_path / "stack")
    output = suite.run(python, suite.make_request("family"), tmp_path / "run")
    result = output.results["family"]
    assert result["ran"]["torch"].endswith("+cpu")
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert "in the phase 'import torchvision'" in result["reason"]
    assert "operator torchvision::nms does not exist" in result["reason"]
    assert "from one lock" in result["hint"]


# The same error, of a torchvision whose library does not load beside this torch.
@pytest.mark.parametrize("beside", [("torch_26", "torchvision==0.20.1")], indirect=True)
def test_a_torchvision_without_its_operators_fails_itself_and_what_is_built_on_it(beside: Path, tmp_path: Path) -> None:
    output = suite.run(beside, suite.make_request("family", "widedeep"), tmp_path / "run")
    for check, module in {"family": "torchvision", "widedeep": "pytorch_widedeep"}.items():
        result = output.results[check]
        assert (result["status"], result["cause"]) == ("failed", "raised")
        assert f"in the phase 'import {module}'" in result["reason"]
        assert "operator torchvision::nms does not exist" in result["reason"]


@pytest.mark.parametrize(
    ("module", "body", "finding"),
    [
        ("torchvision.ops.boxes", "boxes.nms = lambda boxes, scores, iou: scores.argsort(descending=True)", "nms"),
        ("torchaudio.functional", "functional.lfilter = lambda heard, feedback, direct: heard", "lfilter"),
    ],
)
def test_an_operator_that_computes_wrongly_is_found(
    torch_29: Path, tmp_path: Path, module: str, body: str, finding: str
) -> None:
    output = suite.run(
        torch_29, suite.make_request("family"), tmp_path / "run", environ=spoiled(tmp_path / "bad", body, module)
    )
    result = output.results["family"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert finding in result["reason"]


def test_a_lock_without_companions_is_not_run(torch_29: Path, tmp_path: Path) -> None:
    """They are neither locked nor there: a copy of the stack without them."""
    python = copied(torch_29, tmp_path / "stack")
    for name in ("torchvision", "torchaudio"):
        (gone,) = (tmp_path / "stack" / "lib").glob(f"python3*/site-packages/{name}")
        gone.rename(tmp_path / name)
    output = suite.run(python, suite.make_request("family"), tmp_path / "run")
    result = output.results["family"]
    assert (result["status"], result["reason"]) == ("not run", "torchvision or torchaudio is not installed")


def test_what_the_lock_has_and_is_not_there_fails(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    (gone,) = (tmp_path / "stack" / "lib").glob("python3*/site-packages/torchaudio")
    gone.rename(tmp_path / "torchaudio")
    locked = {"name": "x", "packages": {"torchvision": "0.24.1", "torchaudio": "2.9.1"}, "code": []}
    output = suite.run(python, suite.make_request("family", locked=locked), tmp_path / "run")
    result = output.results["family"]
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert "No module named 'torchaudio'" in result["reason"]
