"""The suite's frame against processes that hang, crash, are killed and leave others behind.

The stack is a package named torch that does it on import: real processes, without 8 GB of a real one.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envspec.conformance.checks import CHECKS, limit_of
from envspec.conformance.request import LockedStack, SuiteRequest
from envspec.conformance.results import Driver, Gpu
from tests.support.machines import suite
from tests.support.machines.suite import (
    GOOD,
    LIMIT_S,
    PATIENCE_S,
    RUN,
    SECOND_HANGS,
    assert_nothing_stays,
    fake_torch,
    make_request,
    started,
    worker_of,
)
from tests.support.waits import wait_for

HERE = Path(sys.executable)
#: Leads a session of its own, ignores SIGTERM and has lost its parent: as torchrun's workers do, and worse.
_ORPHAN = """
    import os, signal, time
    ready, done = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(done, b"x")
            time.sleep(600)
        os._exit(0)
    os.wait()
    os.read(ready, 1)
"""


def _device(folder: Path, *bodies: str, **more: Any) -> dict[str, Any]:
    output = suite.run(
        HERE, make_request("device", **more), folder / "run", environ=fake_torch(folder / "bad", *bodies)
    )
    assert output.status == 0 and output.document["is_whole"]
    return output.results["device"]


def test_a_check_that_is_not_run_says_why(tmp_path: Path) -> None:
    result = _device(tmp_path, GOOD)
    assert (result["status"], result["cause"], result["reason"]) == ("not run", None, "no GPU is requested")
    assert [each["name"] for each in result["phases"]] == ["import torch", "CUDA libraries in memory"]
    assert result["log"] == ""


def test_variables_that_change_cuda_and_torch_are_in_the_results(tmp_path: Path) -> None:
    given = {
        "NCCL_P2P_DISABLE": "1",
        "TORCH_HOME": "/models",
        "NVIDIA_TF32_OVERRIDE": "1",
        "CUBLAS_WORKSPACE_CONFIG": "",
    }
    others = {"TORCHX": "1", "MY_CUDA_TOKEN": "secret", "NVIDIA_TF32_OVERRIDES": "1", "cuda_home": "/cuda"}
    environ = {**fake_torch(tmp_path / "stack", GOOD), **given, **others}
    document = suite.run(HERE, make_request("device"), tmp_path / "run", environ=environ).document
    # This test's own environment may have more.
    found = document["machine"]["environment"]
    assert given.items() <= found.items() and not others.keys() & found.keys()


def test_a_torch_that_is_locked_and_not_there_is_reported_alike_by_every_check(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    checks = [name for name, check in CHECKS.items() if check.needs]
    requested = make_request(*checks, locked={"name": "x", "packages": {"torch": "2.9.1"}, "code": []})
    output = suite.run(tmp_path / "bare" / "bin" / "python", requested, tmp_path / "run")
    said = {name: (result["status"], result["reason"]) for name, result in output.results.items()}
    assert said.pop("family") == ("not run", "torchvision or torchaudio is not in the lock")
    assert said.pop("extensions") == ("not run", "no extension is in the lock")
    assert {"coldstart", "ddp", "fsdp", "memory"} < set(said)
    assert set(said.values()) == {
        ("failed", "in the phase 'import torch': ModuleNotFoundError: No module named 'torch'")
    }


def test_packages_that_are_neither_locked_nor_installed_are_not_run_and_locked_ones_fail(tmp_path: Path) -> None:
    environ = fake_torch(tmp_path / "bad", GOOD, "def set_num_threads(count): pass")
    output = suite.run(HERE, make_request("family", "pyg", "widedeep"), tmp_path / "run", environ=environ)
    assert {name: (each["status"], each["reason"]) for name, each in output.results.items()} == {
        "family": ("not run", "torchvision or torchaudio is not installed"),
        "pyg": ("not run", "torch_geometric is not installed"),
        "widedeep": ("not run", "pytorch_widedeep is not installed"),
    }
    requested = make_request("family", locked={"name": "x", "packages": {"torchaudio": "2.9.1"}, "code": []})
    result = suite.run(HERE, requested, tmp_path / "locked", environ=environ).results["family"]
    assert (result["status"], result["cause"]) == ("failed", "raised")
    assert "No module named 'torchaudio'" in result["reason"]


def test_a_torch_without_metadata_is_imported_for_its_release(tmp_path: Path) -> None:
    environ = fake_torch(tmp_path / "bad", '__version__ = "2.6.0"')
    output = suite.run(HERE, make_request("fsdp"), tmp_path / "run", environ=environ)
    assert "with torch 2.6: it requires streams" in output.findings("fsdp")["FSDP2, gloo, 2 ranks"]["detail"]


def test_a_hang_ends_at_the_limit_with_its_phase_and_its_stacks(tmp_path: Path) -> None:
    body = """
        import threading, time
        def waits_for_ever():
            time.sleep(600)
        threading.Thread(target=waits_for_ever, daemon=True).start()
        time.sleep(600)
    """
    result = _device(tmp_path, body, limits={"device": 2})
    assert (result["status"], result["cause"]) == ("failed", "over its limit")
    assert result["reason"] == "still running after 2 s, in the phase 'import torch'"
    assert "in waits_for_ever" in result["log"] and "torch/__init__.py" in result["log"]
    assert 2 <= result["seconds"] < PATIENCE_S


def test_a_hang_that_holds_python_and_ignores_signals_ends_too(tmp_path: Path) -> None:
    """In C, with the interpreter's lock held: no handler of Python's runs."""
    body = """
        import ctypes, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(600)
    """
    result = _device(tmp_path, body, limits={"device": 2})
    assert (result["status"], result["cause"]) == ("failed", "over its limit")
    assert "torch/__init__.py" in result["log"]


#: Uses a CPU for as long.
_BUSY = """
    import time
    began = time.process_time()
    while time.process_time() - began < {seconds}:
        pass
"""


def test_what_still_works_at_its_limit_is_not_known(tmp_path: Path) -> None:
    result = _device(tmp_path, _BUSY.format(seconds=600), limits={"device": 1})
    assert (result["status"], result["cause"]) == ("not known", "ran out of time")
    assert result["reason"].startswith("ran out of time in the phase 'import torch': its limit is 1 s, and it took ")
    assert "torch/__init__.py" in result["log"] and "--limit-factor" in result["hint"]


def test_a_limit_does_not_count_the_time_that_others_use(tmp_path: Path) -> None:
    """Nine processes and one CPU, on which this one takes several times as long as it needs."""
    one_cpu = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    environ = fake_torch(tmp_path / "bad", _BUSY.format(seconds=1), GOOD)
    with contextlib.ExitStack() as others:
        for _ in range(8):
            other = subprocess.Popen([*one_cpu, "timeout", str(LIMIT_S), "sh", "-c", "while :; do :; done"])
            others.callback(other.wait)
            others.callback(other.terminate)
        requested = make_request("device", limits={"device": 2})
        output = suite.run(HERE, requested, tmp_path / "run", environ=environ, before=one_cpu)
    result = output.results["device"]
    assert (result["status"], result["cause"]) == ("not run", None)
    assert result["waited_s"] > 0 and result["seconds"] > result["limit_s"]
    assert all(each > 0 for each in output.document["machine"]["load"])


def _accelerator_error(text: str, symbol: str) -> str:
    """A torch that raises an error of CUDA on its import, with all that torch 2.11 adds to it."""
    lines = (
        f"CUDA error: {text}",
        f"Search for `{symbol}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
        "information.",
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "",
    )
    whole = "\n".join(lines)
    return f"class AcceleratorError(RuntimeError): pass\nraise AcceleratorError({whole!r})"


@pytest.mark.parametrize(
    ("body", "cause", "reason"),
    [
        (
            "import ctypes; ctypes.string_at(0)",
            "crashed",
            "crashed in the phase 'import torch', by signal 11 (SIGSEGV)",
        ),
        ("import os; os.abort()", "crashed", "crashed in the phase 'import torch', by signal 6 (SIGABRT)"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "out of memory",
            "killed in the phase 'import torch': most often because the system or container is out of memory",
        ),
        ("x = bytearray(1 << 62)", "out of memory", "in the phase 'import torch': MemoryError"),
        (
            _accelerator_error("out of memory", "cudaErrorMemoryAllocation"),
            "out of memory",
            "in the phase 'import torch': AcceleratorError: CUDA error: out of memory",
        ),
        (
            _accelerator_error("an illegal memory access was encountered", "cudaErrorIllegalAddress"),
            "raised",
            "in the phase 'import torch': AcceleratorError: CUDA error: an illegal memory access was encountered",
        ),
        # Each is a status that something means elsewhere: the check's own word is what counts.
        ("import os; os._exit(0)", "crashed", "exited in the phase 'import torch' with status 0 without a result"),
        ("import os; os._exit(75)", "crashed", "exited in the phase 'import torch' with status 75 without a result"),
        ("raise SystemExit(0)", "raised", "in the phase 'import torch': SystemExit: 0"),
        (
            "raise ImportError('torch') from OSError('undefined symbol: x')",
            "raised",
            "in the phase 'import torch': ImportError: torch\n  because of OSError: undefined symbol: x",
        ),
    ],
    ids=[
        *("segfault", "abort", "killed", "memory", "memory of a GPU", "CUDA error"),
        *("exit 0", "exit 75", "SystemExit", "cause"),
    ],
)
def test_an_end_that_is_no_end_is_reported(tmp_path: Path, body: str, cause: str, reason: str) -> None:
    result = _device(tmp_path, body)
    assert (result["status"], result["cause"], result["reason"]) == ("failed", cause, reason)


def test_another_check_goes_on_after_a_crash(tmp_path: Path) -> None:
    bad = fake_torch(tmp_path / "bad", "import ctypes; ctypes.string_at(0)")
    output = suite.run(HERE, make_request("pyg", "device"), tmp_path / "run", environ=bad)
    assert output.status == 0
    assert [(name, each["cause"]) for name, each in output.results.items()] == [
        ("device", "crashed"),
        ("pyg", "crashed"),
    ]


@pytest.mark.parametrize(
    ("target", "number", "status"),
    [
        *(("suite", number, 128 + signal.SIGTERM) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        ("suite", signal.SIGKILL, -signal.SIGKILL),
        # What the system kills for its memory is not always the check's own process.
        ("worker", signal.SIGKILL, 128 + signal.SIGKILL),
        ("suite, twice", signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_a_suite_that_is_ended_leaves_its_results_and_no_process(
    tmp_path: Path, target: str, number: signal.Signals, status: int
) -> None:
    bad = fake_torch(tmp_path / "bad", _ORPHAN, SECOND_HANGS, GOOD)
    with started(HERE, make_request("device", "pyg"), tmp_path / "run", bad) as process:
        wait_for((tmp_path / "bad" / "torch" / "hangs").exists)
        os.kill(worker_of(process) if target == "worker" else process.pid, number)
        # Within the time that the orphan is given: later, Python itself is ending and takes no more signals.
        for _ in range(5 if target == "suite, twice" else 0):
            time.sleep(0.03)
            process.terminate()
        assert process.wait(PATIENCE_S) == status
        assert target == "worker" or (process.stderr is not None and process.stderr.read() == "")
    assert_nothing_stays(tmp_path / "run")
    document = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert not document["is_whole"]
    assert [each["check"] for each in document["results"]] == ["device"]


def test_orphans_are_ended_after_their_check_and_another_suite_is_left_alone(tmp_path: Path) -> None:
    slow = fake_torch(tmp_path / "slow", SECOND_HANGS.replace("600", "2"), GOOD)
    (tmp_path / "slow" / "torch" / "begun").touch()
    with started(HERE, make_request("device"), tmp_path / "run", slow) as process:
        wait_for((tmp_path / "slow" / "torch" / "hangs").exists)
        assert _device(tmp_path / "other", _ORPHAN, GOOD)["status"] == "not run"
        assert process.wait(PATIENCE_S) == 0
    (result,) = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["results"]
    assert (result["status"], result["cause"]) == ("not run", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        (json.dumps({**make_request("device"), "format": 99}), "its format is 99, this suite reads 1"),
        (json.dumps({**make_request("device"), "colour": 1}), "colour"),
        (json.dumps({key: value for key, value in make_request("device").items() if key != "nodes"}), "nodes"),
        (json.dumps(make_request("device", "divice")), "unknown check 'divice'"),
        (json.dumps(make_request("device", required=["gpu"])), "unknown check 'gpu'"),
    ],
)
def test_a_damaged_request_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in _refused(tmp_path, text, tmp_path / "results.json", 2, "cannot read the request: ")


@pytest.mark.parametrize("name", ["request.json/results.json", "no/results.json"])
def test_results_that_can_not_be_written_end_the_suite_in_one_line(tmp_path: Path, name: str) -> None:
    _refused(tmp_path, json.dumps(make_request("device")), tmp_path / name, 3, "the suite cannot continue: ")


def _refused(folder: Path, text: str, results: Path, status: int, begin: str) -> str:
    (folder / "request.json").write_text(text, encoding="utf-8")
    command = [str(HERE), str(RUN), str(folder / "request.json"), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, results.exists()) == (status, "", False)
    assert done.stderr.startswith(begin) and len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_log_that_never_ends_is_cut(tmp_path: Path) -> None:
    result = _device(tmp_path, "print('x' * 100_000); raise ImportError('torch')")
    assert result["cause"] == "raised"
    assert result["log"].startswith("[...] ") and len(result["log"]) < 10_000 and "ImportError" in result["log"]


def test_processes_share_compiled_python_if_the_stack_has_none(tmp_path: Path) -> None:
    body = """
        import os, pathlib, sys
        cached = os.stat(__spec__.cached)
        note = pathlib.Path(__file__).with_name("bytecode of " + sys.argv[sys.argv.index("--check") + 4])
        note.write_text(f"{cached.st_ino} {cached.st_mtime_ns}")
    """
    environ = fake_torch(tmp_path / "stack", body, GOOD)
    suite.run(HERE, make_request("device", "pyg"), tmp_path / "run", environ=environ)
    notes = {path.name: path.read_text() for path in (tmp_path / "stack" / "torch").glob("bytecode of *")}
    assert len(notes) == 2 and len(set(notes.values())) == 1
    assert list((tmp_path / "stack").rglob("__pycache__")) == []
    # One that was installed with its bytecode keeps it: a second copy would have to be compiled first.
    compileall.compile_dir(tmp_path / "stack", quiet=1)
    suite.run(HERE, make_request("device"), tmp_path / "compiled", environ=environ)
    (path,) = (tmp_path / "stack").rglob("__init__.*.pyc")
    inode = (tmp_path / "stack" / "torch" / "bytecode of device").read_text().partition(" ")[0]
    assert inode == str(path.stat().st_ino)


@pytest.mark.parametrize(
    ("gpus", "gigabytes", "limits"),
    [
        (0, 0, {"matmul": 120, "lock": 120, "transformer": 180}),
        (1, 3, {"matmul": 120, "lock": 240, "transformer": 180}),
        (8, 3, {"matmul": 190, "lock": 240, "transformer": 285}),
    ],
)
def test_limits_grow_with_gpus_and_bytes(gpus: int, gigabytes: int, limits: dict[str, float]) -> None:
    shown = tuple(Gpu(number, "H100", "", "9.0", 0) for number in range(gpus))
    locked = LockedStack("x", size_bytes=gigabytes * 10**9)
    request = SuiteRequest("cuda", (), locked=locked, driver=Driver(gpus=shown), limits={"amp": 7})
    assert {name: limit_of(name, request) for name in limits} == limits
    assert limit_of("amp", request) == 7
    assert limit_of("sustained", replace(request, burn_s=600)) == limit_of("sustained", request) + 720
