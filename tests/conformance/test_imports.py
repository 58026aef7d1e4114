"""Processes that import before their check's turn, against imports that hang, crash, are killed and begin others.

The stack is a package named torch that does it on import, as in `test_suite_frame`. `device` runs, `matmul` is next.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines import suite
from tests.support.machines.suite import (
    PATIENCE_S,
    assert_nothing_stays,
    fake_torch,
    make_request,
    started,
    worker_of,
)
from tests.support.waits import wait_for

HERE = Path(sys.executable)
#: Whoever imports it says so by files of its check's name. The process that waits has no other files to be known by.
_TORCH = """
    import os, pathlib, signal, subprocess, sys, time
    class version:
        cuda = None
    __version__ = "2.9.1"
    check = sys.argv[sys.argv.index("--check") + 4]
    def at(name):
        return pathlib.Path(__file__).with_name(name)
    def say(name, text=""):
        at("part of " + check).write_text(text)
        at("part of " + check).rename(at(name))
    def wait_for(name):
        while not at(name).exists():
            time.sleep(0.01)
"""


def _run(folder: Path, body: str, *checks: str, **more: Any) -> suite.SuiteOutput:
    environ = fake_torch(folder / "fake", _TORCH, body)
    output = suite.run(HERE, make_request(*checks, **{"preimports": 1, **more}), folder / "run", environ=environ)
    assert output.status == 0 and output.document["is_whole"]
    return output


def _names(phases: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in phases]


#: Only one that begins before `device` is done lets it be done.
_DEVICE_WAITS = """
    if check == "device":
        wait_for("matmul")
    say(check)
"""


def test_the_next_check_imports_while_one_runs(tmp_path: Path) -> None:
    output = _run(tmp_path, _DEVICE_WAITS, "device", "matmul")
    assert list(output.results) == ["device", "matmul"]
    device, matmul = output.results.values()
    assert device["status"] == "not run"
    assert (device["preimports"], _names(device["phases"])[0]) == ([], "import torch")
    assert _names(matmul["preimports"]) == ["import torch"]
    # The made-up torch has nothing to multiply: what the check itself does begins in its turn.
    assert "has no attribute" in matmul["reason"]
    assert matmul["ran"] == {"torch": "2.9.1"}


def test_so_many_at_once_as_requested(tmp_path: Path) -> None:
    body = """
        if check == "device":
            wait_for("matmul"), wait_for("amp")
        say(check)
    """
    output = _run(tmp_path, body, "device", "matmul", "amp", preimports=2)
    assert list(output.results) == ["device", "matmul", "amp"]
    assert [_names(each["preimports"]) for each in output.results.values()] == [[], ["import torch"], ["import torch"]]


def test_none_where_none_is_requested(tmp_path: Path) -> None:
    output = _run(tmp_path, "", "device", "matmul", "amp", preimports=0)
    assert [each["preimports"] for each in output.results.values()] == [[], [], []]
    assert [_names(each["phases"])[0] for each in output.results.values()] == ["import torch"] * 3


def test_coldstart_is_alone(tmp_path: Path) -> None:
    body = """
        if check == "coldstart":
            time.sleep(1)
            say("is beside", str(at("matmul").exists()))
        say(check)
    """
    output = _run(tmp_path, body, "coldstart", "matmul", preimports=2)
    assert list(output.results) == ["coldstart", "matmul"]
    assert output.results["matmul"]["preimports"] == []
    assert (tmp_path / "fake" / "torch" / "is beside").read_text(encoding="utf-8") == "False"


@pytest.mark.parametrize(
    ("body", "cause", "reason"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "out of memory",
            "killed in the phase 'import torch': most often because the system or container is out of memory",
        ),
        (
            "print('its log'); raise ImportError('x') from OSError('y')",
            "raised",
            "in the phase 'import torch': ImportError: x\n  because of OSError: y",
        ),
    ],
    ids=["killed", "raised"],
)
def test_an_end_before_its_turn_is_that_checks_own_result(tmp_path: Path, body: str, cause: str, reason: str) -> None:
    ends = f"""
        say(check)
        if check == "matmul":
            {body}
        wait_for("matmul")
        time.sleep(0.5)
    """
    output = _run(tmp_path, ends, "device", "matmul", "amp")
    device, matmul, after = output.results.values()
    assert (device["status"], device["cause"], device["log"]) == ("not run", None, "")
    assert (matmul["status"], matmul["cause"], matmul["reason"]) == ("failed", cause, reason)
    assert ("its log" in matmul["log"]) == ("its log" in body)
    assert "has no attribute" in after["reason"]


def test_a_hang_before_its_turn_has_its_limit_from_its_turn_on(tmp_path: Path) -> None:
    body = """
        say(check)
        def waits_for_ever():
            time.sleep(600)
        if check == "matmul":
            waits_for_ever()
        wait_for("matmul")
        time.sleep(1.5)
    """
    output = _run(tmp_path, body, "device", "matmul", limits={"matmul": 1})
    result = output.results["matmul"]
    assert output.results["device"]["status"] == "not run"
    assert (result["cause"], result["reason"]) == (
        "over its limit",
        "still running after 1 s, in the phase 'import torch'",
    )
    assert 1 <= result["seconds"] < PATIENCE_S
    assert "in waits_for_ever" in result["log"]


def test_an_import_that_its_turn_finds_at_work_is_in_both_times(tmp_path: Path) -> None:
    body = """
        say(check)
        if check == "matmul":
            time.sleep(4)
        wait_for("matmul")
    """
    result = _run(tmp_path, body, "device", "matmul").results["matmul"]
    (early,), late = result["preimports"], result["phases"][0]
    assert early["name"] == late["name"] == "import torch"
    assert early["seconds"] + late["seconds"] >= 4
    assert late["seconds"] <= result["seconds"]


def test_what_a_waiting_process_has_begun_is_there_in_its_turn(tmp_path: Path) -> None:
    """Its child, and one that has lost its parent: the end of the check that runs ends neither."""
    body = """
        if check == "matmul":
            child = subprocess.Popen(["sleep", "600"])
            shell = subprocess.run(["sh", "-c", "sleep 600 >&- & echo $!"], stdout=subprocess.PIPE)
            orphan = int(shell.stdout)
            def __getattr__(name):
                if name.startswith("__"):
                    raise AttributeError(name)
                os.kill(orphan, 0)
                raise LookupError("the child's status: " + str(child.poll()))
        say(check)
        wait_for("matmul")
    """
    output = _run(tmp_path, body, "device", "matmul")
    assert _names(output.results["matmul"]["preimports"]) == ["import torch"]
    assert "LookupError: the child's status: None" in output.results["matmul"]["reason"]


#: `device` ends the process that waits.
_KILLS = """
    if check == "matmul" and not at("matmul").exists():
        say(check, str(os.getpid()))
    if check == "device":
        wait_for("matmul")
        time.sleep(0.5)
        os.kill(int(at("matmul").read_text()), signal.{signal})
"""


def test_one_that_is_killed_in_anothers_turn_begins_anew_in_its_own(tmp_path: Path) -> None:
    """What takes too much memory is mostly the check that runs, and what the system kills for it another."""
    output = _run(tmp_path, _KILLS.format(signal="SIGKILL"), "device", "matmul")
    assert output.results["device"]["status"] == "not run"
    result = output.results["matmul"]
    assert (result["preimports"], _names(result["phases"])[0]) == ([], "import torch")
    assert "has no attribute" in result["reason"]


def test_one_that_crashes_while_it_waits_is_reported_in_its_turn(tmp_path: Path) -> None:
    output = _run(tmp_path, _KILLS.format(signal="SIGSEGV"), "device", "matmul")
    assert output.results["device"]["status"] == "not run"
    result = output.results["matmul"]
    assert result["cause"] == "crashed"
    assert re.fullmatch(r"crashed (in the phase 'import torch'|between two phases), by signal 11.*", result["reason"])


@pytest.mark.parametrize("target", ["suite", "worker"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_suite_that_is_ended_leaves_none_that_waits(tmp_path: Path, number: signal.Signals, target: str) -> None:
    body = """
        if check == "amp":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        subprocess.Popen(["sleep", "600"])
        if check == "device":
            wait_for("matmul")
            say("hangs")
            time.sleep(600)
        say(check)
    """
    environ = fake_torch(tmp_path / "fake", _TORCH, body)
    requested = make_request("device", "matmul", "amp", preimports=2)
    with started(HERE, requested, tmp_path / "run", environ) as process:
        wait_for((tmp_path / "fake" / "torch" / "hangs").exists)
        os.kill(worker_of(process) if target == "worker" else process.pid, number)
        process.wait(PATIENCE_S)
    assert_nothing_stays(tmp_path / "run")
    assert not json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["is_whole"]
