"""The checks' own lines for GPUs, on a CPU that is a GPU (`tests.support.machines.cpu_as_gpu`): they run, and judge.

The numbers are a CPU's and right, so every check has to pass. It says nothing of CUDA, of a driver or of a card.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from envspec.conformance.checks import CHECKS
from tests.support.machines import cpu_as_gpu, suite
from tests.support.machines import driver as made_driver
from tests.support.machines.stack import spoiled

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(not made_driver.CAN, reason="a driver is made with gcc"),
]
_LOCKED = {
    "name": "x",
    "packages": {},
    "code": [{"package": "torch", "version": "2.9.1", "sm": ["sm_80", "sm_90"], "ptx": []}],
    "minimum_driver": "525.60.13",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which the driver is found."""
    return made_driver.made(tmp_path_factory.mktemp("driver"))


def _run(
    python: Path, driver: Mapping[str, str], folder: Path, *checks: str, gpus: int = 1, fault: str = ""
) -> suite.SuiteOutput:
    hook = spoiled(folder / "hook", f"{cpu_as_gpu.LOADED}\n{textwrap.dedent(fault)}")
    requested = suite.make_request(*checks, device="cuda", locked=_LOCKED)
    return suite.run(python, requested, folder / "run", environ={**made_driver.says(gpus), **driver, **hook})


def test_every_check_passes_and_says_what_one_gpu_cannot(
    torch_29: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    output = _run(torch_29, driver, tmp_path, *CHECKS)
    assert {name: each["reason"] for name, each in output.results.items() if each["status"] != "passed"} == {
        "extensions": "no extension is in the lock",
        "lock": "no lock is given",
    }
    assert set(output.results) == set(CHECKS)
    assert [each["name"] for each in output.document["machine"]["gpus"]] == ["NVIDIA H100 80GB HBM3"]
    products = output.findings("matmul")
    assert all(products[f"integers in {name}"]["ok"] for name in ("fp32", "tf32", "fp16", "bf16", "fp8"))
    assert output.findings("amp")["fp16's memory"]["value"] > 0
    assert output.findings("ddp")["NCCL between ranks"]["kind"] == "not run"
    assert output.findings("ddp")["gloo, 2 ranks: gradient against one process"]["ok"]
    assert output.findings("fsdp")["FSDP2, nccl, 1 rank: gradient against one process"]["ok"]
    loader = output.findings("dataloader")
    assert loader["2 workers, pinned, epoch 1, pinned"]["ok"]
    assert loader["GPU busy while training"]["value"] == 87
    assert loader["the loader's pace"]["value"] > 0
    sustained = output.findings("sustained")
    for name in ("fp32", "tf32", "fp16", "bf16", "fp8"):
        assert products[f"{name}'s speed"]["spread"] >= 0 and sustained[name]["spread"] >= 0
        assert sustained[f"the first product in {name}"]["ok"] and sustained[f"products in {name}"]["ok"]
    prints = output.results["sustained"]["fingerprints"]
    assert len(prints) == 5 and {each["level"] for each in prints} == {"universal"}
    assert len({each["digest"] for each in prints}) == 1
    memory = output.findings("memory")
    assert memory["allocated for what is held"]["ok"] and memory["the card's memory"]["value"] == 85e9
    assert "runs: yes; can be fine-tuned: no" in memory["a model of 7 billion parameters"]["detail"]
    assert memory["peak of amp"]["value"] > 0


def test_two_gpus_are_two_ranks_of_nccl(torch_29: Path, driver: dict[str, str], tmp_path: Path) -> None:
    output = _run(torch_29, driver, tmp_path, "device", "ddp", "fsdp", gpus=2)
    assert {each["status"] for each in output.results.values()} == {"passed"}, output.results
    exact = output.findings("ddp")["nccl, 2 ranks: collectives of integers are exact"]["detail"]
    assert "all-reduce of bfloat16" in exact and "reduce-scatter of float16" in exact
    assert output.findings("ddp")["nccl, 2 ranks: bus bandwidth of all-reduce"]["value"] > 0
    assert "NCCL between ranks" not in output.findings("fsdp")


def test_an_older_card_has_fewer_types(torch_26: Path, driver: dict[str, str], tmp_path: Path) -> None:
    turing = {"TORCH_GPU": "Tesla T4, 75", "TORCH_GPU_BYTES": "16000000000"}
    output = _run(torch_26, {**driver, **turing}, tmp_path, "matmul", "amp", "memory")
    assert {each["status"] for each in output.results.values()} == {"passed"}, output.results
    lacking = {name for name, each in output.findings("matmul").items() if each["kind"] == "not run"}
    assert lacking == {"tf32", "bf16", "fp8"}
    assert output.findings("amp")["bf16"]["kind"] == "not run"
    assert output.findings("memory")["a model of 7 billion parameters"]["detail"].startswith("runs: no")


_LENGTHS = (64, 1024, 4096, 16384)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( ltHandle, ... )`",
            "exact",
        ),
        ("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9", "not run"),
    ],
)
def test_a_product_that_a_gpu_refuses_costs_its_own_cases_only(
    torch_29: Path, driver: dict[str, str], tmp_path: Path, text: str, kind: str
) -> None:
    fault = f"""
    def refused(*given, **named):
        raise RuntimeError({text!r})
    torch._scaled_mm = refused
    """
    output = _run(torch_29, driver, tmp_path, "matmul", "sustained", fault=fault)
    products, sustained = output.findings("matmul"), output.findings("sustained")
    parts = ["integers in {}", *(f"{{}}, K = {length}" for length in _LENGTHS), "{}'s speed"]
    expected = {part.format("fp8"): f"RuntimeError: {text}" for part in parts}
    assert {name: each["detail"] for name, each in products.items() if "fp8" in name} == expected
    assert {each["kind"] for name, each in {**products, **sustained}.items() if "fp8" in name} == {kind}
    assert "products in fp8" in sustained
    for name in ("fp32", "tf32", "fp16", "bf16"):
        assert {part.format(name) for part in parts} <= set(products)
        assert sustained[f"products in {name}"]["ok"]
    assert products["a convolution in fp32"]["ok"]
    assert output.results["matmul"]["ran"]["cuDNN"] == "9.10.2"
    keys = {each["key"] for each in output.results["matmul"]["fingerprints"] if each["level"] == "keyed"}
    assert keys and all("cuDNN 9.10.2" in each for each in keys)
    assert output.wrong("matmul") == (set(expected) if kind == "exact" else set())


@pytest.mark.parametrize(
    ("check", "fault", "words"),
    [
        (
            "memory",
            """
            keep, update = [], torch.optim.AdamW.step
            def greedy(optimizer, *given):
                keep.append([torch.zeros_like(each) for group in optimizer.param_groups for each in group["params"]])
                return update(optimizer, *given)
            torch.optim.AdamW.step = greedy
            """,
            "allocated for what is held: 1.4",
        ),
        (
            "matmul",
            """
            exact = torch._scaled_mm
            torch._scaled_mm = lambda left, right, **named: exact(left, right, **named) * 1.1
            """,
            "integers in fp8",
        ),
        ("dataloader", "torch.Tensor.is_pinned = lambda each: False", "pinned: 0 of 24 batches"),
    ],
)
def test_what_is_wrong_on_a_gpu_alone_is_found(
    torch_29: Path, driver: dict[str, str], tmp_path: Path, check: str, fault: str, words: str
) -> None:
    result = _run(torch_29, driver, tmp_path, check, fault=fault).results[check]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert words in result["reason"]
