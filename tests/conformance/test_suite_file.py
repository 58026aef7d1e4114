"""The suite as one file: on any Python, without envspec and without a lock, to a receipt that envspec reads."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import venv
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from envspec.conformance.receipt import RECEIPT_MARK
from envspec.conformance.request import LockedStack, SuiteRequest
from envspec.operations.fleet import suite_file, write_suite_file
from envspec.receipts.model import LockName, load, read
from envspec.report import RECEIPT, RECEIPT_FILES
from envspec.verifier.types import Expected
from envspec.version import VERSION
from tests.support.machines import NotRun, interpreters, suite
from tests.support.machines.stack import spoiled
from tests.support.machines.suite import GOOD, PATIENCE_S, SECOND_HANGS, fake_torch
from tests.support.user import User
from tests.support.waits import wait_for


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file."""
    return write_suite_file(tmp_path_factory.mktemp("suite") / "suite.pyz")


def _environ(folder: Path, environ: dict[str, str]) -> dict[str, str]:
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    return {**os.environ, **environ, "TMPDIR": str(folder / "tmp"), suite.MARK: str(folder)}


def _run(
    archive: Path, folder: Path, *words: str, python: str = sys.executable, **environ: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [python, str(archive), *words],
        env=_environ(folder, environ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=suite.LIMIT_S,
        check=False,
    )
    assert suite.left(folder) == [] and list((folder / "tmp").iterdir()) == []
    return done


def _receipt(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
    return found


def test_the_same_suite_is_the_same_file(archive: Path) -> None:
    assert archive.read_bytes() == suite_file() == suite_file()
    assert archive.stat().st_mode & 0o111 and archive.stat().st_size < 1_000_000


def test_it_is_written_by_the_command(tmp_path: Path) -> None:
    user = User(tmp_path / "user", "")
    ran = user.runs("conformance", "--write-suite", "suite.pyz")
    assert (ran.status, ran.stdout) == (0, ""), ran.stderr
    assert (user.folder / "suite.pyz").read_bytes() == suite_file()
    ran = user.runs("conformance", "--write-suite", "suite.pyz", "--format", "json")
    assert (ran.status, json.loads(ran.stdout)) == (0, {"suite": "suite.pyz"})
    assert user.runs("conformance", "lock", "--write-suite", "suite.pyz").status == 2


@pytest.mark.parametrize("series", ["3.9", "3.13"])
def test_any_python_runs_it_and_envspec_reads_its_receipt(archive: Path, tmp_path: Path, series: str) -> None:
    for found in interpreters(series).values():
        python = str(found)
        break
    else:
        raise NotRun(f"no Python {series}")
    words = ("--device", "cpu", "--check", "device", "--check", "family", "--report", "receipt")
    done = _run(archive, tmp_path, *words, python=python, **fake_torch(tmp_path / "stack", GOOD))
    # Nothing of it needs no GPU, and there is no torchvision.
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.splitlines()[-2:] == [
        "not known: 0 passed, 0 failed, 2 not run, 0 not known",
        "  device, family did not run",
    ]
    receipt = read(tmp_path / "receipt")
    assert (receipt.envspec, receipt.lock, receipt.subject) == (VERSION, None, "torch 2.9.1, no lock")
    assert receipt.local and receipt.local.is_locked is None
    assert receipt.machine.python.startswith(series)
    for form in RECEIPT_FILES.values():
        assert "torch 2.9.1, no lock" in RECEIPT.render(form, receipt, 80) or form == "json"


def _request_file(folder: Path, request: SuiteRequest, lock: LockName) -> str:
    path = folder / "request.json"
    path.write_text(json.dumps({"request": asdict(request), "lock": lock.model_dump()}), encoding="utf-8")
    return str(path)


def _printed(text: str) -> list[str]:
    return [line.removeprefix(RECEIPT_MARK) for line in text.splitlines() if line.startswith(RECEIPT_MARK)]


LOCK = LockName(name="träning", sha256="1" * 64, input_sha256="2" * 64, identity="3" * 64)


def test_a_request_with_a_lock_is_compared_and_printed(archive: Path, tmp_path: Path) -> None:
    request = SuiteRequest(
        device="cpu",
        checks=("lock", "family", "memory"),
        required=("memory",),
        limits={"lock": 30},
        locked=LockedStack("träning", packages={"torch": "2.8.0"}, expected=asdict(Expected(()))),
    )
    words = ("--request", _request_file(tmp_path, request, LOCK), "--check", "lock", "--print-receipt")
    # The locale has no UTF-8: the line is UTF-8 all the same.
    stack = {**fake_torch(tmp_path / "stack", GOOD), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    # An environment of its own: the check hashes every file, and that of the tests has many.
    venv.create(tmp_path / "env", symlinks=True)
    (site_packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site_packages / "extra-1.0.dist-info").mkdir()
    (site_packages / "extra-1.0.dist-info" / "METADATA").write_text("Name: extra\nVersion: 1.0\n", encoding="utf-8")
    done = _run(archive, tmp_path, *words, python=str(tmp_path / "env" / "bin" / "python"), **stack)
    assert (done.returncode, done.stderr) == (7, "")
    (line,) = _printed(done.stdout)
    receipt = load(line, "the log")
    # A package is not in the lock, what is required has been deselected, and nothing else was run.
    assert (receipt.lock, receipt.reasons) == (LOCK, ("lock failed",))
    assert receipt.local and receipt.local.is_locked is False
    assert [each.check for each in receipt.checks] == ["lock"] and receipt.device == "cpu"
    assert done.stdout.endswith(f"{line}\n")


@pytest.mark.parametrize("text", ["{}", "[]", '{"request": {"format": 99}, "lock": null}', "no JSON"])
def test_a_file_that_is_no_request_is_refused(archive: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "request.json").write_text(text, encoding="utf-8")
    done = _run(archive, tmp_path, "--request", "request.json")
    assert done.returncode == 2 and "--request request.json: it can't be read" in done.stderr


def test_it_waits_after_its_receipt_until_it_is_ended(archive: Path, tmp_path: Path) -> None:
    words = ("--device", "cpu", "--check", "device", "--print-receipt", "--wait")
    stack = _environ(tmp_path, fake_torch(tmp_path / "stack", GOOD))
    with subprocess.Popen(
        [sys.executable, str(archive), *words], env=stack, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        lines = iter(process.stdout.readline, "")
        assert load(next(line for line in map(str.strip, lines) if _printed(line))[len(RECEIPT_MARK) :], "it")
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 7
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_stack_without_torch_has_nothing_to_test(archive: Path, tmp_path: Path) -> None:
    done = _run(archive, tmp_path, "--device", "cpu", "--report", "receipt")
    assert (done.returncode, done.stderr) == (6, "")
    receipt = _receipt(tmp_path / "receipt")
    assert (receipt["verdict"], receipt["summary"]["question"]) == ("not known", [])


def test_what_fails_and_what_is_no_gpu_are_different(archive: Path, tmp_path: Path) -> None:
    crashing = fake_torch(tmp_path / "bad", "import ctypes; ctypes.string_at(0)")
    done = _run(archive, tmp_path, "--device", "cpu", "--check", "device", "--report", "receipt", **crashing)
    assert done.returncode == 7 and "crashed in the phase 'import torch', by signal 11 (SIGSEGV)" in done.stdout
    assert _receipt(tmp_path / "receipt")["reasons"] == ["device failed"]
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        done = _run(archive, tmp_path, "--check", "device", "--report", "none", LD_LIBRARY_PATH="")
        assert done.returncode == 6 and "--device cpu" in done.stderr
        assert list((tmp_path / "none").iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--check", "matmull"),
        ("--limit", "matmul=0"),
        ("--nodes", "2", "--node-rank", "2"),
        ("--report", "/dev/null/receipts"),
        ("lock",),
    ],
)
def test_wrong_words_are_refused(archive: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = _run(archive, tmp_path, *words)
    assert done.returncode == 2 and done.stderr.startswith("usage: suite.pyz")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_writes_what_it_has(archive: Path, tmp_path: Path, number: signal.Signals) -> None:
    stack = fake_torch(tmp_path / "stack", SECOND_HANGS, GOOD)
    words = ("--device", "cpu", "--check", "device", "--check", "pyg", "--check", "memory", "--report", "receipt")
    command = [sys.executable, str(archive), *words]
    with subprocess.Popen(
        command, env=_environ(tmp_path, stack), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        wait_for((tmp_path / "stack" / "torch" / "hangs").exists)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    deadline = time.monotonic() + PATIENCE_S
    while suite.left(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list((tmp_path / "tmp").iterdir()) == []
    checks = {each["check"]: each["reason"] for each in _receipt(tmp_path / "receipt")["checks"]}
    assert checks["memory"] == "the suite ended before it"


#: Every thousandth product, in whatever type, has one low bit that is wrong. Small ones, for thousands in seconds.
_LOW_BITS = """
import importlib
importlib.import_module("envspec.conformance.bounds").SIZES["sustained.side.cpu"] = 64
product, products = torch.Tensor.__matmul__, []

def wrong(left, right):
    found = product(left, right)
    if found.dtype != torch.float64:
        products.append(None)
        if len(products) % 1000 == 0:
            found.view({2: torch.int16, 4: torch.int32}[found.element_size()])[9, 11] ^= 1
    return found

torch.Tensor.__matmul__ = wrong
"""


@pytest.mark.stack
def test_a_burn_finds_each_product_with_a_wrong_bit(archive: Path, torch_29: Path, tmp_path: Path) -> None:
    words = ("--device", "cpu", "--burn", "0.1", "--report", "receipt")
    hook = spoiled(tmp_path / "hook", _LOW_BITS)
    began = time.monotonic()
    done = _run(archive, tmp_path, *words, python=str(torch_29), OMP_NUM_THREADS="1", **hook)
    assert done.returncode == 7 and time.monotonic() - began > 6, done.stdout
    checks = {each["check"]: each for each in _receipt(tmp_path / "receipt")["checks"]}
    assert set(checks) == {"device", "sustained", "health"}
    sustained = checks["sustained"]
    assert sustained["status"] == "failed"
    findings = {each["name"]: each for each in sustained["findings"]}
    assert findings["burn"]["detail"] == "6 s, in 2 turns of each type"
    counts = [
        tuple(map(int, re.findall(r"\d+", findings[f"products in {name}"]["detail"])[:2]))
        for name in ("fp32", "fp16", "bf16")
    ]
    # The first one of each type is no repetition.
    assert sum(wrong for wrong, _ in counts) == (sum(of for _, of in counts) + 3) // 1000 > 0
    # The types take turns, and each has one phase in the receipt.
    assert [each["name"] for each in sustained["phases"]].count("products in bf16") == 1


@pytest.mark.stack
def test_a_stack_without_a_lock(archive: Path, torch_any: Path, tmp_path: Path) -> None:
    """Ranks of torchrun and all other processes are started from the file, too."""
    words = ("--device", "cpu", "--check", "libraries", "--check", "matmul", "--check", "ddp", "--report", "receipt")
    done = _run(archive, tmp_path, *words, python=str(torch_any))
    assert done.returncode == 0, done.stdout
    receipt = read(tmp_path / "receipt")
    assert receipt.summary.checks.passed == 3
