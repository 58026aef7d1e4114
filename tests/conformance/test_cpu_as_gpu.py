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
    python: Path,
    driver: Mapping[str, str],
    folder: Path,
    *checks: str,
    gpus: int = 1,
    fault: str = "",
    sizes: str = "cpu",
) -> suite.SuiteOutput:
    """sizes: `cpu` for tests of something else."""
    hook = spoiled(folder / "hook", f"{cpu_as_gpu.LOADED}\n{textwrap.dedent(fault)}")
    requested = suite.make_request(*checks, device="cuda", locked=_LOCKED, limits=dict.fromkeys(checks, 500))
    environ = {**made_driver.says(gpus), **driver, **hook, "CARD_SIZES": sizes}
    return suite.run(python, requested, folder / "run", environ=environ)


def test_every_check_passes_at_a_gpu_s_sizes_and_says_what_one_gpu_cannot(
    torch_29: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    output = _run(torch_29, driver, tmp_path, *CHECKS, sizes="cuda")
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
    inference = output.findings("inference")
    assert all(inference[f"tokens {way} in fp32"]["ok"] for way in ("without a cache", "with a cache", "in a batch"))
    assert len({each["digest"] for each in output.results["inference"]["fingerprints"]}) == 1
    copies = output.findings("bandwidth")
    assert copies["on GPU 0"]["detail"] == "256 MiB, read and written"
    assert {name for name, each in copies.items() if each["kind"] == "not run"} == {"copies between GPUs", "stragglers"}
    assert output.findings("runtime")["a CUDA graph's replay equals eager"]["ok"]
    memory = output.findings("memory")
    assert memory["memory patterns"]["detail"] == "0 wrong words in 2 blocks of 256 MiB, two patterns"
    assert memory["allocated for live tensors"]["ok"] and memory["the card's memory"]["value"] == 80 << 30
    assert "runs: yes; can be fine-tuned: no" in memory["a model of 7 billion parameters"]["detail"]
    assert memory["peak of amp"]["value"] > 0


def test_two_gpus_are_two_ranks_of_nccl(torch_29: Path, driver: dict[str, str], tmp_path: Path) -> None:
    output = _run(torch_29, driver, tmp_path, "device", "ddp", "fsdp", gpus=2)
    assert {each["status"] for each in output.results.values()} == {"passed"}, output.results
    exact = output.findings("ddp")["nccl, 2 ranks: collectives of integers are exact"]["detail"]
    assert exact.startswith("all-reduce, broadcast, all-gather, reduce-scatter of int64 (80056 bytes), int32")
    assert exact.endswith("float16 (20014 bytes), bfloat16 (20014, 528340, 8388608 bytes)")
    bandwidth = output.findings("ddp")["nccl, 2 ranks: bus bandwidth of all-reduce"]
    assert bandwidth["value"] > 0 and 0 <= bandwidth["spread"] < 1
    assert output.results["ddp"]["ran"]["NCCL"] == output.results["device"]["ran"]["NCCL"] == "2.27.5"
    for check, name in (("ddp", "nccl, 2 ranks"), ("fsdp", "FSDP2, nccl, 2 ranks")):
        transport = output.findings(check)[f"{name}: transport"]
        assert (transport["kind"], transport["detail"]) == ("not run", "NCCL wrote no log")
    assert "NCCL between ranks" not in output.findings("fsdp")


def test_two_gpus_with_different_releases_of_nccl_are_named(
    torch_29: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    """Before NCCL is called, where the ranks would hang or crash."""
    fault = """
    import os
    from envspec.conformance.libraries import CudaLibrary
    if os.environ.get("RANK") == "1":
        CudaLibrary.version = lambda library, path: (2, 21, 5)
        with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "w") as log:
            print("\\nnode0:7:9 [0] misc/socket.cc:483 NCCL WARN a warning", file=log)
    """
    result = _run(torch_29, driver, tmp_path, "ddp", gpus=2, fault=fault).results["ddp"]
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert (
        "ranks 0, 1 raised in the phase 'join': DifferentNccl: NCCL 2.21.5 at rank 1; NCCL 2.27.5 at rank 0: all ranks "
        "must load the same one" in result["reason"]
    )
    assert "NCCL WARN a warning" in result["log"]


#: Copies take the same time, but those of one GPU: they are counted, not measured.
_SLOW_GPU = """
import importlib
numerics = importlib.import_module("envspec.conformance.numerics")
choose, chosen = torch.cuda.set_device, [0]

def set_device(index):
    chosen[0] = index

def best_time(torch, device, work):
    work()
    return (0.02 if chosen[0] == 2 else 0.01), 0.0

torch.cuda.set_device, numerics.best_time = set_device, best_time
"""


def test_a_gpu_with_slow_copies_stands_out(torch_29: Path, driver: dict[str, str], tmp_path: Path) -> None:
    output = _run(torch_29, driver, tmp_path, "bandwidth", gpus=4, fault=_SLOW_GPU)
    assert output.results["bandwidth"]["status"] == "passed", output.results
    findings = output.findings("bandwidth")
    assert findings["stragglers"]["kind"] == "info"
    assert findings["stragglers"]["detail"] == "; ".join(
        f"{name} (43 % less than the mean)" for name in ("pinned memory to GPU 2", "GPU 2 to pinned memory", "on GPU 2")
    ) + "".join(f"; GPU 2 to GPU {other} (43 % less than the mean)" for other in (0, 1, 3))
    pairs = [f"GPU {one} to GPU {other}" for one in range(4) for other in range(4) if one != other]
    assert all(findings[f"{name} is exact"]["ok"] for name in pairs)
    assert findings["GPU 1 to GPU 2"]["value"] == pytest.approx(2**24 / 0.01 / 1e9)
    assert findings["on GPU 2"]["value"] == pytest.approx(2 * 2**24 / 0.02 / 1e9)
    assert "NV4; direct" in findings["GPU 1 to GPU 2"]["detail"]
    uneven = {name: each["detail"] for name, each in findings.items() if name.endswith("the directions differ")}
    assert set(uneven) == {f"GPUs {pair}: the directions differ" for pair in ("0 and 2", "1 and 2", "2 and 3")}


def test_the_log_that_nccl_writes_is_read(torch_29: Path, driver: dict[str, str], tmp_path: Path) -> None:
    """Written by the hook to where NCCL_DEBUG_FILE leads, as NCCL would."""
    fault = """
    import os
    rank = os.environ.get("RANK")
    if rank:
        assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET,GRAPH")
        with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "w") as log:
            begin = f"node0:7:9 [{rank}] NCCL INFO "
            print(f"{begin}Using network Socket", file=log)
            print(f"{begin}Channel 00/0 : {rank}[{rank}] -> {1 - int(rank)}[{1 - int(rank)}] via P2P/CUMEM", file=log)
    """
    output = _run(torch_29, driver, tmp_path, "ddp", gpus=2, fault=fault)
    transport = output.findings("ddp")["nccl, 2 ranks: transport"]["detail"]
    assert transport == "P2P between 2 pairs; network Socket"


def test_an_older_card_has_fewer_types(torch_26: Path, driver: dict[str, str], tmp_path: Path) -> None:
    turing = {"CARD": "Tesla T4", "CARD_SM": "75", "CARD_UNITS": "40", "CARD_BYTES": "16000000000"}
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
            "allocated for live tensors: 1.4",
        ),
        (
            "matmul",
            """
            exact = torch._scaled_mm
            torch._scaled_mm = lambda left, right, **named: exact(left, right, **named) * 1.1
            """,
            "integers in fp8",
        ),
        (
            "memory",
            """
            copy = torch.Tensor.copy_
            def wrong(target, source, non_blocking=False):
                copy(target, source)
                if target.numel() == 2**25:
                    target[5] = 0
            torch.Tensor.copy_ = wrong
            """,
            "memory patterns: 4 wrong words in 2 blocks of 256 MiB, two patterns; the first: word 5 of block 0",
        ),
        ("runtime", "torch.gcd = lambda one, other: one", "a kernel compiled by NVRTC: 3950 of 4096"),
        (
            "runtime",
            """
            def stale(torch):
                graph = made(torch)
                replay, times = graph.replay, []
                def twice():
                    times.append(None)
                    if len(times) <= 2:
                        replay()
                graph.replay = twice
                return graph
            made, sys.modules["cpu_as_gpu"]._graph = sys.modules["cpu_as_gpu"]._graph, stale
            """,
            "a CUDA graph's replay equals eager: replay 3: 24",
        ),
        (
            "runtime",
            """
            def missing(one, other):
                raise RuntimeError("nvrtc: error: failed to open libnvrtc-builtins.so.12.8.\\n  Make sure")
            torch.gcd = missing
            """,
            "a kernel compiled by NVRTC: RuntimeError: nvrtc: error: failed to open libnvrtc-builtins.so.12.8.",
        ),
        (
            "bandwidth",
            """
            copy = torch.Tensor.copy_
            def wrong(target, source, non_blocking=False):
                copy(target, source)
                target[5] += 1
            torch.Tensor.copy_ = wrong
            """,
            "pinned memory to GPU 0 is exact: 1 of 2097152 words differ",
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


def test_every_gpu_is_tested_by_a_process_that_sees_no_other(
    torch_29: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    output = _run(torch_29, driver, tmp_path, "matmul", "dataloader", "runtime", "memory", gpus=2)
    assert {each["status"] for each in output.results.values()} == {"passed"}, output.results
    products = output.findings("matmul")
    for gpu in (0, 1):
        assert products[f"GPU {gpu}: integers in fp8"]["ok"] and products[f"GPU {gpu}: bf16, K = 16384"]["ok"]
    assert products["random numbers in bf16: equal on like GPUs"]["detail"] == "the same bits on GPUs 0, 1"
    prints = [each["name"] for each in output.results["matmul"]["fingerprints"]]
    assert sorted(set(prints)) == sorted(prints) and "random numbers in bf16" in prints
    runtime = output.findings("runtime")
    for gpu in (0, 1):
        assert runtime[f"GPU {gpu}: a kernel compiled by NVRTC"]["ok"]
        assert runtime[f"GPU {gpu}: a CUDA graph's replay equals eager"]["ok"]
        assert output.findings("memory")[f"GPU {gpu}: memory patterns"]["ok"]
    # What needs no GPU is tested once: two processes at a time would need twice the shared memory.
    loader = output.findings("dataloader")
    assert loader["GPU 1: 2 workers, pinned, epoch 1, pinned"]["ok"]
    assert {name for name in loader if name.startswith("GPU 1: shared memory")} == set()
    assert "GPU 0: no worker, epoch 1" in loader and "GPU 1: no worker, epoch 1" not in loader
    assert output.results["memory"]["peak"]["allocated_bytes"] > 0


_SECOND_GPU = "import os\nif os.environ.get('CUDA_VISIBLE_DEVICES') == '1':\n"


@pytest.mark.parametrize(
    ("check", "fault", "words"),
    [
        ("matmul", "    torch._scaled_mm = lambda *given, **named: 1 / 0", "GPU 1: in the phase"),
        (
            "matmul",
            """
                product = torch.Tensor.__matmul__
                torch.Tensor.__matmul__ = lambda left, right: product(left, right) * 1.001
            """,
            "random numbers in fp16: equal on like GPUs: different bits on GPUs 0 | 1",
        ),
        ("memory", "    import time; time.sleep(600)", "GPU 1: still running after 25 s"),
    ],
    ids=["raises", "other bits", "hangs"],
)
def test_a_second_gpu_that_is_wrong_is_found(
    torch_29: Path, driver: dict[str, str], tmp_path: Path, check: str, fault: str, words: str
) -> None:
    hook = spoiled(tmp_path / "hook", f"{cpu_as_gpu.LOADED}\n{_SECOND_GPU}{fault}")
    requested = suite.make_request(check, device="cuda", locked=_LOCKED, limits={"memory": 25})
    output = suite.run(
        torch_29, requested, tmp_path / "run", environ={**made_driver.says(2), **driver, **hook, "CARD_SIZES": "cpu"}
    )
    result = output.results[check]
    assert result["status"] == "failed" and words in result["reason"], result["reason"]
    assert "GPU 0:" not in result["reason"]
    # The other GPU's findings are there, however this one ended.
    assert any(each["name"].startswith("GPU 0: ") and each["ok"] for each in result["findings"])
