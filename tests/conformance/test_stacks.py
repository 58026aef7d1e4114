"""Checks on real stacks: right ones pass, and stacks with a package that is not the locked one do not."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from envspec.lockfile.folder import read_lock
from envspec.operations.environment import expected_of
from tests.support.machines import suite
from tests.support.machines.stack import (
    copied,
    install,
    replace,
    site_packages,
    spoiled,
)
from tests.support.user import ROOT

pytestmark = pytest.mark.stack


def passed(
    python: Path, folder: Path, *checks: str, environ: dict[str, str] | None = None, **more: Any
) -> suite.SuiteOutput:
    output = suite.run(python, suite.make_request(*checks, **more), folder, environ=environ)
    assert {name: each["reason"] for name, each in output.results.items() if each["status"] != "passed"} == {}
    return output


def not_run(output: suite.SuiteOutput, check: str) -> set[str]:
    return {name for name, each in output.findings(check).items() if each["kind"] == "not run"}


def prints(output: suite.SuiteOutput, check: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in output.results[check]["fingerprints"]}


def test_the_parts_of_a_start_add_up(torch_any: Path, tmp_path: Path) -> None:
    began = time.time()
    findings = passed(torch_any, tmp_path, "coldstart").findings("coldstart")
    seconds = time.time() - began
    parts = ("Python's start", "import torch", "the device's start", "the first kernel")
    whole = findings["in all"]["value"]
    assert sum(findings[part]["value"] for part in parts) == pytest.approx(whole, abs=0.05)
    assert 0 < whole < seconds
    assert findings["the container's start"]["kind"] == "not run"


def test_imports_before_their_turn(torch_any: Path, tmp_path: Path) -> None:
    output = passed(torch_any, tmp_path, "coldstart", "matmul", "dataloader", "memory", preimports=2)
    early = {name: {each["name"] for each in result["preimports"]} for name, result in output.results.items()}
    assert not early["coldstart"] | early["matmul"]
    assert "import torch" in early["dataloader"]
    assert {"import torch", "import torch._dynamo"} == early["memory"]
    for result in output.results.values():
        assert sum(each["seconds"] for each in result["phases"]) <= result["seconds"]
    findings = output.findings("memory")
    # A process that has imported torch needs some 100 MB at least, and this machine has less than a terabyte.
    assert 1e8 < findings["peak of dataloader on the host"]["value"] < os.sysconf("SC_PHYS_PAGES") * 4096
    assert findings["models against the card"]["kind"] == "not run"


def test_family(torch_any: Path, tmp_path: Path) -> None:
    result = passed(torch_any, tmp_path, "family").results["family"]
    assert set(result["ran"]) == {"torch", "torchvision", "torchaudio"}
    assert all(each["ok"] for each in result["findings"])


def test_amp(torch_any: Path, tmp_path: Path) -> None:
    # Many small steps: one thread is not slower, and the same wherever the tests run.
    output = passed(torch_any, tmp_path, "amp", environ={"OMP_NUM_THREADS": "1"})
    findings = output.findings("amp")
    assert not_run(output, "amp") == {"memory against fp32"}
    assert int(findings["parameters"]["detail"]) >= 10_000_000
    assert findings["the output's type in fp16"]["detail"] == "torch.float16"
    assert findings["the first gradient in fp16"]["bound"] == 4 * 2**-11
    assert "60 steps" in findings["the loss in bf16"]["detail"]


def test_results_with_one_fingerprint_on_every_torch(torch_29: Path, torch_26: Path, tmp_path: Path) -> None:
    digests: dict[str, set[str]] = {}
    for python in (torch_29, torch_26):
        output = passed(python, tmp_path / python.parents[1].name, "matmul", "dataloader")
        integers = {f"integers in {name}": "integers" for name in ("fp32", "fp16", "bf16")}
        found = prints(output, "matmul") | prints(output, "dataloader")
        for name, group in {**integers, "pictures": "pictures"}.items():
            digests.setdefault(group, set()).add(found[name]["digest"])
            assert found[name]["level"] == "universal"
        assert found["random numbers in fp32"]["level"] == "keyed"
        assert "threads" in found["random numbers in fp32"]["key"]
        findings = output.findings("matmul")
        assert not_run(output, "matmul") == {"tf32", "fp8"}
        assert findings["bf16, K = 16384"]["value"] <= findings["bf16, K = 16384"]["bound"] == 1.5 * 2**-8
        assert {each["unit"] for name, each in findings.items() if name.endswith("speed")} == {"TFLOP/s"}
    assert {group: len(found) for group, found in digests.items()} == {"integers": 1, "pictures": 1}


@pytest.mark.parametrize(("stack", "world_size"), [("torch_29", None), ("torch_26", None), ("torch_29", 3)])
def test_ddp(stack: str, world_size: int | None, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    output = passed(request.getfixturevalue(stack), tmp_path, "ddp", world_size=world_size)
    ranks = world_size or 2
    findings, name = output.findings("ddp"), f"gloo, {ranks} ranks"
    gradient = findings[f"{name}: gradient against one process"]
    assert gradient["value"] <= gradient["bound"] == 1e-5
    assert f"{name}: norm by torch's clipping, rank {ranks - 1}" in findings
    bandwidth = findings[f"{name}: bus bandwidth of all-reduce"]
    # gloo's is not judged.
    assert (bandwidth["unit"], bandwidth["spread"]) == ("GB/s", None)
    levels = {name: each["level"] for name, each in prints(output, "ddp").items()}
    assert levels == {f"sum of 10007 integers over {ranks} ranks": "universal", f"{name}: gradients": "keyed"}


def test_a_rank_that_computes_slowly_stands_out_of_four(torch_any: Path, tmp_path: Path) -> None:
    slow = """
    import os, time
    product = torch.matmul

    def slow(left, right):
        time.sleep(0.05 if os.environ.get("RANK") == "2" else 0)
        return product(left, right)

    torch.matmul = slow
    """
    hook = spoiled(tmp_path / "hook", slow)
    findings = passed(torch_any, tmp_path / "run", "ddp", world_size=4, environ=hook).findings("ddp")
    odd = findings["gloo, 4 ranks: stragglers"]
    assert odd["kind"] == "info"
    assert re.match(r"a product: rank 2 \((2\d\d|300) % more than the mean\)", odd["detail"]), odd["detail"]
    times = findings["gloo, 4 ranks: times of the ranks"]["detail"]
    kinds = ("all-reduce", "reduce-scatter", "all-to-all", "send/recv")
    assert all(f"{kind} of {size} KiB" in times for kind in kinds for size in (1024, 64))


@pytest.mark.parametrize(
    ("stack", "kind", "reason"),
    [("torch_29", "FSDP2", ""), ("torch_26", "FSDP1", "torch 2.6: it requires streams")],
)
def test_fsdp2_if_torch_is_right_on_the_cpu_else_fsdp1(
    stack: str, kind: str, reason: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    output = passed(request.getfixturevalue(stack), tmp_path, "fsdp")
    findings, name = output.findings("fsdp"), f"{kind}, gloo, 2 ranks"
    assert findings[f"{name}: gradient against one process"]["value"] <= 1e-5
    assert findings[f"{name}: gradients are equal bit by bit across ranks"]["ok"]
    assert findings[f"{name}: rank 1 has its share"]["ok"]
    assert not_run(output, "fsdp") == ({"FSDP2, gloo, 2 ranks"} if reason else set())
    assert not reason or reason in findings["FSDP2, gloo, 2 ranks"]["detail"]


def test_dataloader(torch_any: Path, tmp_path: Path) -> None:
    output = passed(torch_any, tmp_path, "dataloader")
    findings = output.findings("dataloader")
    assert {name for name, each in findings.items() if each["kind"] == "exact"} == {
        "no worker, epoch 1",
        "2 workers, epoch 1",
        "4 workers, prefetch 4, epoch 1",
        "2 persistent workers, epoch 1",
        "2 persistent workers, epoch 2",
        "shared memory, free",
        "shared memory, used",
    }
    pinned = {"2 workers, pinned", "4 persistent workers, prefetch 4, pinned"}
    assert not_run(output, "dataloader") == {*pinned, "GPU busy while training"}
    assert findings["the loader's pace"]["value"] > 0


def _can_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.skipif(not _can_mount(), reason="a /dev/shm of its own needs root")
def test_64_mb_of_shared_memory_are_too_few_for_many_workers(torch_any: Path, tmp_path: Path) -> None:
    """The default of containers."""
    script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    output = suite.run(torch_any, suite.make_request("dataloader"), tmp_path, before=before)
    result, findings = output.results["dataloader"], output.findings("dataloader")
    assert (result["status"], result["cause"]) == ("failed", "found")
    free, used = findings["shared memory, free"], findings["shared memory, used"]
    assert free["ok"] is False and "308 MB; 67 MB are free in /dev/shm" in free["detail"]
    assert used["ok"] is False and "out of shared memory: " in used["detail"]
    assert "--shm-size" in result["hint"]
    # Small batches have room in it.
    assert findings["4 workers, prefetch 4, epoch 1"]["ok"] is True


def test_transformer(torch_any: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    # Somebody's cache, in which a graph that was compiled elsewhere would be found.
    environ = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache)}
    output = passed(torch_any, tmp_path / "run", "transformer", environ=environ)
    findings = output.findings("transformer")
    assert not cache.exists()
    assert "flash in bf16" in findings["attention's kernels that ran"]["detail"]
    kernels = ("efficient", "cuDNN")
    lacking = {f"{name} attention in {dtype}" for name in kernels for dtype in ("fp32", "bf16", "fp16")}
    assert not_run(output, "transformer") == lacking
    assert findings["torch.compile runs"]["detail"] == "1 graphs were compiled"
    assert any(name.startswith("tokens a second") and each["value"] > 0 for name, each in findings.items())


def test_inference_chooses_the_same_tokens_on_every_torch(torch_29: Path, torch_26: Path, tmp_path: Path) -> None:
    digests = set()
    for python in (torch_29, torch_26):
        output = passed(python, tmp_path / python.parents[1].name, "inference", environ={"OMP_NUM_THREADS": "1"})
        findings = output.findings("inference")
        ways = ("without a cache", "with a cache", "in a batch")
        for name in [f"tokens {way} in fp32" for way in ways]:
            assert findings[name]["detail"] == "128 of 128 choices are beyond rounding"
            found = prints(output, "inference")[name]
            assert found["level"] == "universal"
            digests.add(found["digest"])
        for name in ("fp32", "fp16", "bf16"):
            assert all(findings[f"logits {way} in {name}"]["ok"] for way in ways)
            assert findings[f"prefill in {name}"]["value"] > 0 and findings[f"decoding in {name}"]["value"] > 0
    assert len(digests) == 1


def test_bandwidth_of_a_machine_without_a_gpu(torch_any: Path, tmp_path: Path) -> None:
    output = passed(torch_any, tmp_path, "bandwidth")
    assert not_run(output, "bandwidth") == {"pinned memory to a GPU and back", "copies between GPUs"}
    rate = output.findings("bandwidth")["a copy in memory"]
    assert rate["value"] > 0 and rate["spread"] >= 0 and rate["unit"] == "GB/s"


def test_pyg_and_widedeep(torch_any: Path, tmp_path: Path) -> None:
    output = passed(torch_any, tmp_path, "pyg", "widedeep")
    assert output.findings("pyg")["accuracy on nodes not trained on"]["value"] >= 0.95
    # It needs a compiled extension, and the locks have none.
    assert not_run(output, "pyg") == {"NeighborLoader"}
    assert output.findings("widedeep")["accuracy above the baseline"]["value"] >= 0.35
    assert "pytorch_widedeep" in output.results["widedeep"]["ran"]


def test_an_extension_that_is_locked_and_broken_fails(torch_29: Path, tmp_path: Path) -> None:
    """Its library is of another torch: what PyG's own index gives to a wrong pair."""
    python = copied(torch_29, tmp_path / "stack")
    package = site_packages(python) / "torch_scatter"
    package.mkdir()
    (package / "_version_cpu.so").write_bytes(b"\x7fELF")
    (package / "__init__.py").write_text(
        "import os, torch\ntorch.ops.load_library(os.path.join(os.path.dirname(__file__), '_version_cpu.so'))\n"
    )
    locked = _locked(torch_scatter="2.1.2")
    result = suite.run(python, suite.make_request("extensions", locked=locked), tmp_path / "run").results["extensions"]
    assert result["status"] == "failed"
    assert "torch-scatter on the CPU: import" in result["reason"] and "_version_cpu.so" in result["reason"]


@pytest.fixture
def beside(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The Python of a copy of a stack with one other package: (the stack's fixture, the requirement)."""
    stack, requirement = request.param
    python = copied(request.getfixturevalue(stack), tmp_path / "stack")
    install(python, requirement)
    return python


@pytest.mark.parametrize("beside", [("torch_29", "torchaudio==2.11.0")], indirect=True)
def test_a_newer_torchaudio_says_which_symbol_is_missing(beside: Path, tmp_path: Path) -> None:
    """The solution that resolvers find, since torchaudio names no torch: only `__cause__` names the symbol."""
    output = suite.run(beside, suite.make_request("family"), tmp_path / "run")
    result = output.results["family"]
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert "in the phase 'import torchaudio'" in result["reason"]
    assert "because of OSError" in result["reason"]
    assert "undefined symbol: torch_library_impl" in result["reason"]
    assert "from one lock" in result["hint"]
    assert output.findings("family")["torchvision.ops.nms"]["ok"] is True


@pytest.mark.parametrize("preimports", [0, 1])
@pytest.mark.parametrize("beside", [("torch_29", "torchvision==0.23.0")], indirect=True)
def test_an_older_torchvision_that_crashes(beside: Path, preimports: int, tmp_path: Path) -> None:
    output = suite.run(beside, suite.make_request("device", "family", preimports=preimports), tmp_path / "run")
    result = output.results["family"]
    assert (result["status"], result["cause"]) == ("failed", "crashed")
    # It writes to wrong addresses: mostly the kernel ends it, and sometimes glibc, which finds its heap damaged.
    assert re.fullmatch(
        r"crashed in the phase 'import torchvision', by signal (11 \(SIGSEGV\)|6 \(SIGABRT\))", result["reason"]
    )
    assert "torchvision/extension.py" in result["log"]
    assert "from one lock" in result["hint"]
    assert output.status == 0 and output.document["is_whole"]
    assert output.results["device"]["status"] == "not run"


def _no_operators(result: dict[str, Any], module: str) -> None:
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert f"in the phase 'import {module}'" in result["reason"]
    assert "operator torchvision::nms does not exist" in result["reason"]


@pytest.mark.parametrize("beside", [("torch_26", "torchvision==0.20.1")], indirect=True)
def test_a_torchvision_without_its_operators_fails_itself_and_its_dependents(beside: Path, tmp_path: Path) -> None:
    results = suite.run(beside, suite.make_request("family", "widedeep"), tmp_path / "run").results
    _no_operators(results["family"], "torchvision")
    _no_operators(results["widedeep"], "pytorch_widedeep")


def _locked(**packages: str) -> dict[str, Any]:
    return {"name": "x", "packages": {name.replace("_", "-"): each for name, each in packages.items()}, "code": []}


_RIGHT = {"nvidia_cuda_runtime_cu12": "12.8.90", "nvidia_cudnn_cu12": "9.10.2.21", "nvidia_nccl_cu12": "2.27.5"}


def _device(python: Path, folder: Path, packages: dict[str, str]) -> dict[str, Any]:
    return suite.run(python, suite.make_request("device", locked=_locked(**packages)), folder).results["device"]


def test_without_a_gpu_device_reports_what_is_loaded(torch_29: Path, tmp_path: Path) -> None:
    result = _device(torch_29, tmp_path, _RIGHT)
    assert (result["status"], result["reason"]) == ("not run", "no GPU is requested")
    expected = {"CUDA runtime": "12.8", "cuDNN": "9.10.2", "NCCL": "2.27.5", "CUDA of torch's build": "12.8"}
    assert expected.items() <= result["ran"].items()
    assert [each["ok"] for each in result["findings"]] == [True, True, True]


def test_a_library_that_is_not_the_locked_one_fails(torch_29: Path, tmp_path: Path) -> None:
    others = {"nvidia_cudnn_cu12": "9.1.0.70", "nvidia_cuda_runtime_cu12": "12.6.77"}
    result = _device(torch_29, tmp_path, {**_RIGHT, **others})
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert "cuDNN = locked: 9.10.2 runs" in result["reason"] and "locked is 9.1.0.70" in result["reason"]
    wrong = [each for each in result["findings"] if not each["ok"]]
    assert sorted(each["name"] for each in wrong) == ["CUDA runtime = locked", "cuDNN = locked"]


def test_another_nccl_instead_of_the_locked_one_is_found(torch_29: Path, torch_26: Path, tmp_path: Path) -> None:
    """torch's own `nccl.version()` would still return the version of its build."""
    python = copied(torch_29, tmp_path / "stack")
    name = "nvidia/nccl/lib/libnccl.so.2"
    (site_packages(python) / name).unlink()
    shutil.copyfile(site_packages(torch_26) / name, site_packages(python) / name)
    result = _device(python, tmp_path / "run", _RIGHT)
    # 2.9.1 calls what 2.21.5 does not have: whichever comes first, the stack does not pass.
    assert result["status"] == "failed"
    assert "NCCL = locked: 2.21.5 runs" in result["reason"] or "undefined symbol: nccl" in result["reason"]


def test_without_a_gpu_nothing_is_compiled_or_captured(torch_any: Path, tmp_path: Path) -> None:
    result = suite.run(torch_any, suite.make_request("runtime"), tmp_path).results["runtime"]
    assert (result["status"], result["reason"], result["findings"]) == ("not run", "no GPU is requested", [])


def run_lock(python: Path, folder: Path, name: str = "pytorch-2.9", **environ: str) -> suite.SuiteOutput:
    """The check `lock` with the committed lock, as in the request of the suite."""
    (part,) = read_lock(ROOT / "locks" / name).resolutions
    packages = {each.name: each.version for each in part.packages}
    locked = {"name": name, "packages": packages, "expected": asdict(expected_of(part)), "code": []}
    return suite.run(python, suite.make_request("lock", locked=locked), folder, environ=environ)


@pytest.mark.parametrize(("name", "stack"), [("pytorch-2.9", "torch_29"), ("pytorch-2.6", "torch_26")])
def test_the_locked_stack_passes(name: str, stack: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    output = run_lock(request.getfixturevalue(stack), tmp_path, name)
    assert output.results["lock"]["status"] == "passed", output.results["lock"]["reason"]
    findings = output.findings("lock")
    assert "lists of files against the lock" not in findings, "every package is anchored"
    assert findings["files"]["value"] > 6e9


def test_the_lock_of_as_if_only_informs(torch_29: Path, tmp_path: Path) -> None:
    (part,) = read_lock(ROOT / "locks" / "pytorch-2.6").resolutions
    locked = {"name": "other", "packages": {"nvidia-cudnn-cu12": "9.1.0.70"}, "expected": asdict(expected_of(part))}
    output = suite.run(torch_29, suite.make_request("device", "lock", as_if={**locked, "code": []}), tmp_path)
    assert {each["status"] for each in output.results.values()} == {"not run"}
    notes = {name for name, each in output.findings("device").items() if each["kind"] == "info"}
    assert notes == {"cuDNN = locked: differs from the lock"}
    assert any(name.endswith(": differs from the lock") for name in output.findings("lock"))
    assert "differences: they only inform" in output.results["lock"]["reason"]


def test_a_byte_of_a_file_and_its_line_in_record_are_found(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    site = site_packages(python)
    path = site / "torch" / "nn" / "functional.py"
    changed = path.read_bytes().replace(b"Applies", b"applies", 1)
    replace(path, changed)
    result = run_lock(python, tmp_path / "one").results["lock"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert "torch/nn/functional.py was changed" in result["reason"]
    assert "envspec install" in result["hint"]

    (record,) = site.glob("torch-2.9.1*.dist-info/RECORD")
    rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"))))
    digest = base64.urlsafe_b64encode(hashlib.sha256(changed).digest()).rstrip(b"=").decode()
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(
        [row[0], f"sha256={digest}", row[2]] if row[0] == "torch/nn/functional.py" else row for row in rows
    )
    replace(record, written.getvalue().encode())
    result = run_lock(python, tmp_path / "two").results["lock"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert result["reason"].startswith("torch: ") and "list of files is not the locked wheel's" in result["reason"]


def test_a_package_added_by_hand_is_found(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    info = site_packages(python) / "byhand-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: byhand\nVersion: 1.0\n")
    (info / "RECORD").write_text("byhand-1.0.dist-info/METADATA,,\nbyhand-1.0.dist-info/RECORD,,\n")
    (info.parent / "loose.pth").write_text("import sys\n")
    result = run_lock(python, tmp_path / "run").results["lock"]
    assert result["status"] == "failed"
    assert "byhand: 1.0 is installed and is not in the lock" in result["reason"]
    assert "loose.pth belongs to no package" in result["reason"]


def run_libraries(python: Path, folder: Path, **environ: str) -> suite.SuiteOutput:
    return suite.run(python, suite.make_request("libraries"), folder, environ=environ)


def test_without_a_lock_the_stack_says_what_its_libraries_are(torch_any: Path, tmp_path: Path) -> None:
    output = run_libraries(torch_any, tmp_path)
    assert output.results["libraries"]["status"] == "passed", output.results["libraries"]["reason"]
    findings = output.findings("libraries")
    assert findings["nvidia-cudnn-cu12 is torch's"]["ok"] and findings["nvidia-nccl-cu12 is torch's"]["ok"]
    assert findings["cuDNN is its package's"]["ok"] and findings["NCCL is its package's"]["ok"]
    found, of_packages = map(int, re.findall(r"\d+", findings["one copy of each CUDA library"]["detail"]))
    assert found == of_packages > 15
    assert findings["hashed"]["value"] > 2e9


def _wrong(output: suite.SuiteOutput) -> str:
    result = output.results["libraries"]
    assert (result["status"], result["cause"]) == ("failed", "found"), result["reason"]
    return str(result["reason"])


def test_another_cudnn_before_torchs_own_is_found(torch_29: Path, tmp_path: Path) -> None:
    """The same bytes in another folder: what is in memory still belongs to no package.

    torch's own RPATH leads to its libcudnn.so.9; its parts are looked for on LD_LIBRARY_PATH first.
    """
    other = tmp_path / "other"
    other.mkdir()
    for path in (site_packages(torch_29) / "nvidia" / "cudnn" / "lib").glob("libcudnn*.so.9"):
        shutil.copyfile(path, other / path.name)
    reason = _wrong(run_libraries(torch_29, tmp_path / "run", LD_LIBRARY_PATH=str(other)))
    assert f"{other}/libcudnn" in reason and "belongs to no installed package" in reason


def test_a_second_nccl_in_memory_is_found(torch_29: Path, torch_26: Path, tmp_path: Path) -> None:
    """Loaded by another package, here by a hook: each of them has its own state of the GPU."""
    second = site_packages(torch_26) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    hook = spoiled(tmp_path / "hook", f"import ctypes\nctypes.CDLL({str(second)!r})")
    reason = _wrong(run_libraries(torch_29, tmp_path / "run", **hook))
    assert "one copy of libnccl: in memory: " in reason and str(second) in reason


def test_a_changed_cuda_library_is_found(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    path = site_packages(python) / "nvidia" / "cufft" / "lib" / "libcufft.so.11"
    content = bytearray(path.read_bytes())
    # Behind all sections: it loads and runs as before.
    replace(path, bytes(content + b"x"))
    reason = _wrong(run_libraries(python, tmp_path / "run"))
    assert reason.startswith("libcufft.so.11: nvidia/cufft/lib/libcufft.so.11 is not the file that nvidia-cufft-cu12")


def test_a_release_that_torch_was_not_built_with_is_found(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    (info,) = site_packages(python).glob("nvidia_nccl_cu12-*.dist-info")
    older = info.with_name("nvidia_nccl_cu12-2.21.5.dist-info")
    info.rename(older)
    replace(older / "METADATA", b"Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.21.5\n")
    replace(older / "RECORD", (older / "RECORD").read_bytes().replace(info.name.encode(), older.name.encode()))
    reason = _wrong(run_libraries(python, tmp_path / "run"))
    assert "nvidia-nccl-cu12 is torch's: torch 2.9.1+cu128 requires 2.27.5; 2.21.5 is installed" in reason
    assert "NCCL is its package's: 2.27.5 runs; nvidia-nccl-cu12 is 2.21.5" in reason
