"""The check `extensions`: right operators pass, each kind of wrong one fails alone and with its message.

Stand-ins have the names and signatures of real extensions and are plain torch (`extensions.toml`); the GPU is a CPU
(`tests.support.machines.cpu_as_gpu`). Real extensions run with their code for the CPU.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.conformance.extensions.table import EXTENSIONS
from envspec.documents import parse_toml
from tests.support.machines import cpu_as_gpu, suite
from tests.support.machines import driver as made_driver
from tests.support.machines.stack import cpu_torch, install, spoiled

HERE: Final = Path(sys.executable)
_ROWS: Final = parse_toml(Path(__file__).with_name("extensions.toml").read_text(encoding="utf-8"))
STAND_INS: Final = {each["name"]: each for each in _ROWS["extension"]}
#: Those whose index gives wheels or sources that run on a CPU.
REAL: Final = ["bitsandbytes", "torch-scatter", "torch-sparse"]
_GPU_CODE: Final = {"package": "flash-attn", "version": "2.8.3", "sm": ["sm_80"], "ptx": []}
needs_gcc = pytest.mark.skipif(not made_driver.CAN, reason="a driver is made with gcc")


def stand_in(folder: Path, name: str, fault: str = "") -> dict[str, str]:
    """The variables under which an extension is installed. fault: statements after its last module."""
    row = STAND_INS[name]
    for number, (path, content) in enumerate(reversed(list(row["modules"].items()))):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n{textwrap.dedent(fault) if not number else ''}\n", encoding="utf-8")
    distribution = row.get("distribution", name)
    info = folder / f"{distribution.replace('-', '_')}-{row['version']}.dist-info"
    info.mkdir()
    lines = [f"Name: {distribution}", f"Version: {row['version']}"]
    lines += [f"Requires-Dist: {each}" for each in row.get("requires", [])]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]), encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def _result(output: suite.SuiteOutput) -> dict[str, Any]:
    assert (output.status, output.document["is_whole"]) == (0, True), output.stderr
    return output.results["extensions"]


def _imported(folder: Path, *bodies: tuple[str, str], **more: Any) -> suite.SuiteOutput:
    """A run without torch and without a GPU, which only imports: (extension, what its import does) for each."""
    environ = suite.fake_torch(folder / "site", '__version__ = "2.9.1"')
    for name, body in bodies:
        stand_in(folder / "site", name)
        module = folder / "site" / list(STAND_INS[name]["modules"])[-1]
        module.write_text(textwrap.dedent(body), encoding="utf-8")
    return suite.run(HERE, suite.make_request("extensions", **more), folder / "run", environ=environ)


def _locked(*names: str, code: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    packages = {"torch": "2.9.1", **{name: STAND_INS[name]["version"] for name in names}}
    return {"name": "x", "packages": packages, "code": list(code)}


@pytest.mark.parametrize(
    ("locked", "reason"), [(None, "no extension is installed"), (_locked(), "no extension is in the lock")]
)
def test_without_an_extension_the_check_is_not_run(tmp_path: Path, locked: dict[str, Any] | None, reason: str) -> None:
    result = _result(_imported(tmp_path, locked=locked))
    assert (result["status"], result["reason"]) == ("not run", reason)


def test_a_locked_extension_that_is_not_installed_fails(tmp_path: Path) -> None:
    result = _result(_imported(tmp_path, locked=_locked("flash-attn")))
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert "flash-attn on the CPU: import: flash-attn 2.8.3+cu12torch2.8cxx11abiTRUE" in result["reason"]
    assert "No module named 'flash_attn'" in result["reason"]


@pytest.mark.parametrize(
    ("name", "error", "words", "hint"),
    [
        (
            "flash-attn",
            "flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E",
            "_ZN3c105ErrorC2E; it was built for torch 2.8 and torch 2.9.1 is installed",
            "lock torch 2.8, or a wheel of flash-attn for torch 2.9.1",
        ),
        (
            "xformers",
            "_C.so: undefined symbol: _ZN2at4",
            "it was built for torch 2.8.0 and torch 2.9.1 is installed",
            "lock torch 2.8.0,",
        ),
        (
            "pyg-lib",
            "libpyg.so: undefined symbol: _ZN2at4",
            "it was built for torch 2.8 and torch 2.9.1 is installed",
            "lock torch 2.8,",
        ),
        (
            "causal-conv1d",
            "libc10_cuda.so: cannot open shared object file",
            "it was built for another torch than 2.9.1",
            "lock a wheel of causal-conv1d for torch 2.9.1, or build it",
        ),
        ("natten", "libcudart.so.12: cannot open shared object file", "libcudart.so.12", "natten from one lock"),
    ],
)
def test_an_import_that_fails_says_for_which_torch_it_was_built(
    tmp_path: Path, name: str, error: str, words: str, hint: str
) -> None:
    result = _result(_imported(tmp_path, (name, f"raise ImportError({error!r})")))
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert f"{name} on the CPU: import: {name} {STAND_INS[name]['version']}" in result["reason"]
    assert words in result["reason"] and hint in result["hint"]


def test_what_needs_a_gpu_to_be_imported_is_not_run_without_one(tmp_path: Path) -> None:
    bodies = [
        ("mamba-ssm", "raise RuntimeError('0 active drivers ([]). There should only be one.')"),
        ("natten", "raise OSError('libcuda.so.1: cannot open shared object file')"),
    ]
    result = _result(_imported(tmp_path, *bodies))
    assert result["status"] == "not run"
    assert [each["detail"] for each in result["findings"]] == [
        "natten 0.21.7 does not import without a GPU: OSError: libcuda.so.1: cannot open shared object file",
        "mamba-ssm 2.3.2 does not import without a GPU: RuntimeError: 0 active drivers ([]). There should only be one.",
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import time; time.sleep(600)", r"still running after 4\.\d s, in the phase 'import flash_attn'"),
        ("import ctypes; ctypes.string_at(0)", "crashed in the phase 'import flash_attn', by signal 11 \\(SIGSEGV\\)"),
        ("import os; os._exit(0)", "exited in the phase 'import flash_attn' with status 0 without a result"),
    ],
    ids=["hang", "crash", "exit"],
)
def test_a_hang_or_a_crash_costs_that_extension_alone(tmp_path: Path, body: str, reason: str) -> None:
    output = _imported(tmp_path, ("flash-attn", body), ("natten", ""), limits={"extensions": 12})
    result, findings = _result(output), output.findings("extensions")
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert output.wrong("extensions") == {"flash-attn on the CPU"}
    assert re.fullmatch(reason, findings["flash-attn on the CPU"]["detail"])
    assert findings["natten on the CPU: import"]["ok"] is True
    assert findings["natten on the CPU"]["detail"] == "natten 0.21.7: its operator has code for GPUs only"


def test_an_extension_that_still_works_at_its_limit_is_not_known(tmp_path: Path) -> None:
    bodies = ("flash-attn", "while True: pass"), ("natten", "")
    output = _imported(tmp_path, *bodies, limits={"extensions": 6})
    result = _result(output)
    assert (result["status"], result["cause"]) == ("not known", "ran out of time")
    assert "flash-attn on the CPU: ran out of time in the phase 'import flash_attn'" in result["reason"]
    assert output.findings("extensions")["natten on the CPU: import"]["ok"] is True


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which a driver is found."""
    return made_driver.made(tmp_path_factory.mktemp("driver"))


def _on_gpus(
    python: Path, driver: dict[str, str], folder: Path, *names: str, fault: str = "", gpus: int = 1
) -> suite.SuiteOutput:
    """A run with stand-ins, the first of which has a fault."""
    for number, name in enumerate(names):
        stand_in(folder / "site", name, "" if number else fault)
    hook = spoiled(folder / "hook", cpu_as_gpu.LOADED)["PYTHONPATH"]
    environ = {**made_driver.says(gpus), **driver, "PYTHONPATH": f"{hook}:{folder / 'site'}", "OMP_NUM_THREADS": "1"}
    requested = suite.make_request("extensions", device="cuda", locked=_locked(*names, code=[_GPU_CODE]))
    return suite.run(python, requested, folder / "run", environ=environ)


@pytest.mark.stack
@needs_gcc
def test_every_right_operator_passes(torch_cpu: Path, driver: dict[str, str], tmp_path: Path) -> None:
    output = _on_gpus(torch_cpu, driver, tmp_path, *STAND_INS)
    result, findings = _result(output), output.findings("extensions")
    assert result["status"] == "passed", result["reason"]
    assert {each["kind"] for each in findings.values()} == {"exact", "bounded"}
    places = {f"{name} on GPU 0" for name in STAND_INS} | {
        f"{name} on the CPU" for name in STAND_INS if EXTENSIONS[name].on_cpu
    }
    assert {each.partition(":")[0] for each in findings} == places


def test_every_operator_has_a_stand_in() -> None:
    assert set(STAND_INS) == set(EXTENSIONS)


@pytest.mark.stack
@needs_gcc
def test_an_operator_runs_on_every_gpu(torch_cpu: Path, driver: dict[str, str], tmp_path: Path) -> None:
    output = _on_gpus(torch_cpu, driver, tmp_path, "flash-attn", gpus=2)
    result, findings = _result(output), output.findings("extensions")
    assert result["status"] == "passed", result["reason"]
    assert {each.partition(":")[0] for each in findings} == {"flash-attn on GPU 0", "flash-attn on GPU 1"}
    # A bound that no error comes near finds nothing.
    name = "flash-attn on GPU 1: attention in bf16, causal, head size 128, length 131"
    assert findings[name]["bound"] / 8 < findings[name]["value"] <= findings[name]["bound"]
    assert "flash-attn 2.8.3" in findings[name]["detail"] and "H100 80GB HBM3 (sm_90)" in findings[name]["detail"]


_LOW_BIT: Final = """
right_{0} = {0}
def {0}(*given, **named):
    found = right_{0}(*given, **named).contiguous()
    bits = found.view({{2: torch.int16, 4: torch.int32}}[found.element_size()]).flatten()
    bits[bits.numel() // 2] ^= 1
    return found
"""
_TILE: Final = """
right_{0} = {0}
def {0}(*given, **named):
    found = right_{0}(*given, **named).contiguous()
    found.view(-1)[-64:] *= 1.05
    return found
"""
_RAISES: Final = """
def {0}(*given, **named):
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
"""


@pytest.mark.stack
@needs_gcc
@pytest.mark.parametrize(
    ("name", "fault", "wrong", "words", "hint"),
    [
        *(
            (name, _LOW_BIT.format(function), finding, "elements differ from plain torch", "for this GPU")
            for name, function, finding in [
                ("flash-attn", "flash_attn_func", "chosen values in fp16, causal, head size 64"),
                ("natten", "na1d", "chosen values in bf16, not causal, head size 128"),
                ("mamba-ssm", "selective_scan_fn", "integers in fp32"),
                ("causal-conv1d", "causal_conv1d_fn", "integers in bf16"),
            ]
        ),
        *(
            (name, _TILE.format(function), finding, "must be <= ", "for this GPU")
            for name, function, finding in [
                ("flash-attn", "flash_attn_func", "attention in bf16, not causal, head size 128"),
                ("mamba-ssm", "selective_scan_fn", "selective scan in fp32"),
                ("causal-conv1d", "causal_conv1d_fn", "with SiLU in bf16"),
            ]
        ),
        (
            "flash-attn",
            _RAISES.format("flash_attn_func"),
            "kernels",
            "has no code for NVIDIA H100 80GB HBM3 (sm_90): it has code for sm_80 (no kernel image",
            "name this GPU in [cuda] gpus",
        ),
    ],
)
def test_a_wrong_operator_is_found(
    torch_cpu: Path, driver: dict[str, str], tmp_path: Path, name: str, fault: str, wrong: str, words: str, hint: str
) -> None:
    output = _on_gpus(torch_cpu, driver, tmp_path, name, fault=fault)
    result = _result(output)
    assert (result["status"], result["cause"]) == ("failed", "found")
    found = [each for each in output.wrong("extensions") if each.startswith(f"{name} on GPU 0: {wrong}")]
    assert found, output.wrong("extensions")
    text = str(output.findings("extensions")[found[0]]["detail"]) + result["reason"]
    assert words in text and f"{name} {STAND_INS[name]['version']}" in text and "sm_90" in text
    assert hint in result["hint"]


@pytest.mark.stack
@needs_gcc
@pytest.mark.parametrize(
    ("name", "fault", "reason"),
    [
        ("natten", "HAS_LIBNATTEN = False", "it was built without libnatten"),
        ("deepspeed", "import deepspeed.git_version_info as v; v.installed_ops = {}", "fused_adam is not compiled"),
        ("flash-attn", "del flash_attn_func", "this release has no flash_attn_func"),
        (
            "flashinfer",
            "def single_prefill_with_kv_cache(*given, **named): raise RuntimeError('nvcc not found')",
            "no compiled kernel for this GPU is installed",
        ),
    ],
)
def test_what_is_not_compiled_is_not_run(
    torch_cpu: Path, driver: dict[str, str], tmp_path: Path, name: str, fault: str, reason: str
) -> None:
    result = _result(_on_gpus(torch_cpu, driver, tmp_path, name, fault=fault))
    assert result["status"] == "not run"
    assert reason in result["reason"]


@pytest.mark.stack
@pytest.mark.network
@pytest.mark.parametrize("name", REAL)
def test_a_real_extension_passes_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Sources are compiled with this torch, one compiler at a time: minutes for each."""
    python = cpu_torch(tmp_path / "stack")
    install(python, "numpy", "scipy", "packaging", "setuptools", "wheel", "ninja")
    for each in (["torch-scatter"] if name == "torch-sparse" else []) + [name]:
        install(python, each, "--no-build-isolation")
    output = suite.run(python, suite.make_request("extensions"), tmp_path / "run")
    assert _result(output)["status"] == "passed", output.results["extensions"]["reason"]
    assert {each.partition(" on ")[0] for each in output.findings("extensions")} >= {name}
