"""Nothing of the suite outlives its limit by much: what hangs, ignores signals or waits in the kernel.

It is ten seconds on a machine that does nothing else. Here the ceiling is one of a busy machine, and far below the time
of what hangs.
State D is real: a file system that does not answer (`tests.support.machines.stuck`). The driver and torch are made up.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.machines import driver as made_driver
from tests.support.machines import suite
from tests.support.machines.stuck import stuck_file
from tests.support.tries import tries

pytestmark = pytest.mark.skipif(not made_driver.CAN, reason="a driver is made with gcc")

HERE: Final = Path(sys.executable)
_LIMIT_S: Final = 1.0
_MARGIN_S: Final = 100.0
#: What an import of torch does, by name.
_TORCH: Final = {
    "hangs": "time.sleep(600)",
    "hangs in C": "ctypes.PyDLL(None).sleep(600)",
    "ignores signals": "[signal.signal(number, signal.SIG_IGN) for number in (1, 2, 10, 15)]; time.sleep(600)",
    "blocks signals": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(600)",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
    "crashes": "ctypes.string_at(0)",
    "exits": "os._exit(0)",
    "leaves ten that ignore SIGTERM": """
        for number in range(10):
            if not os.fork():
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(600)
        time.sleep(600)
    """,
    "waits in the kernel": "os.stat(os.environ['STUCK'])",
    "a child waits in the kernel": "os.fork() and time.sleep(600); os.stat(os.environ['STUCK'])",
}
_START: Final = "import ctypes, os, signal, time"
_FUNCTIONS: Final = (
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGetName@1",
    "cuDeviceGetUuid_v2@0",
    "nvmlInit_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2@1",
    "nvmlDeviceGetName@0",
    "nvmlDeviceGetNvLinkState@1",
)
_SEEDS: Final = tries(10)
_KINDS: Final = ("hang", "ignore", "crash", "exit", "leave", "kernel", "15", "999")


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that nobody gets an answer about."""
    with stuck_file(tmp_path_factory.mktemp("stuck")) as path:
        yield path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which the driver is found."""
    return {**made_driver.made(tmp_path_factory.mktemp("driver")), **made_driver.says(2)}


def _run(folder: Path, environ: dict[str, str], *checks: str, device: str) -> tuple[dict[str, Any], list[str]]:
    """results.json, and the states of the processes that the suite left."""
    limits = dict.fromkeys((*checks, "driver"), _LIMIT_S)
    requested = suite.make_request(*checks, device=device, limits=limits)
    # The grace that processes have in real runs.
    with suite.started(HERE, requested, folder, {**environ, "ENVSPEC_SUITE_GRACE_S": "2"}) as process:
        assert process.wait(suite.PATIENCE_S) == 0
    document: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert document["is_whole"]
    late = [each["seconds"] - each["waited_s"] - each["limit_s"] for each in document["results"]]
    assert max(late) < _MARGIN_S
    return document, [_state(each) for each in suite.processes(folder)]


def _state(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return "gone"


def _torch(folder: Path, name: str) -> dict[str, str]:
    return suite.fake_torch(folder, _START, _TORCH[name])


def test_a_process_that_can_not_be_killed_is_reported_and_left(stuck: Path, tmp_path: Path) -> None:
    environ = {**_torch(tmp_path / "torch", "waits in the kernel"), "STUCK": str(stuck)}
    document, left = _run(tmp_path / "run", environ, "device", "pyg", device="cpu")
    device, pyg = document["results"]
    assert (device["status"], device["cause"]) == ("failed", "over its limit")
    assert device["reason"].startswith("still running after 1 s, in the phase 'import torch'; process ")
    assert "cannot be killed: state D" in device["reason"] and "system log" in device["hint"]
    # The next one is started and gets stuck, too: on the CPU nothing says that it will.
    assert pyg["cause"] == "over its limit"
    assert set(left) == {"D"} and len(left) == 2


def test_no_check_uses_a_gpu_that_a_process_may_hold(stuck: Path, driver: dict[str, str], tmp_path: Path) -> None:
    environ = {**driver, **_torch(tmp_path / "torch", "waits in the kernel"), "STUCK": str(stuck)}
    document, left = _run(tmp_path / "run", environ, "device", "matmul", "pyg", device="cuda")
    assert [each["status"] for each in document["results"]] == ["failed", "not run", "not run"]
    assert "cannot be killed: state D" in document["results"][2]["reason"]
    assert left == ["D"]


@pytest.mark.parametrize("function", ["cuInit", "nvmlDeviceGetName@1"])
def test_a_driver_that_waits_in_the_kernel_is_a_failure(
    stuck: Path, driver: dict[str, str], tmp_path: Path, function: str
) -> None:
    environ = {**driver, "FAULTS": f"{function}=kernel", "STUCK": str(stuck), **_torch(tmp_path / "torch", "exits")}
    document, left = _run(tmp_path / "run", environ, "device", "matmul", device="cuda")
    device, matmul = document["results"]
    assert (device["status"], matmul["status"]) == ("failed", "not run")
    assert "does not work: still running after 1 s" in device["reason"] and "state D" in device["reason"]
    assert left == ["D"]


def test_a_driver_that_still_works_at_its_limit_is_not_known(driver: dict[str, str], tmp_path: Path) -> None:
    environ = {**driver, "FAULTS": "cuInit=spin", **_torch(tmp_path / "torch", "exits")}
    document, left = _run(tmp_path / "run", environ, "device", "matmul", device="cuda")
    device, matmul = document["results"]
    assert (device["status"], device["cause"], matmul["status"]) == ("not known", "ran out of time", "not run")
    assert device["reason"].startswith("CUDA is too slow: ran out of time ") and left == []


def _faults(seed: int) -> tuple[str, str]:
    """A fault of the driver and one of torch; at least one of them."""
    choose = random.Random(seed)
    faults = [f"{choose.choice(_FUNCTIONS)}={choose.choice(_KINDS)}" for _ in range(choose.choice((0, 1, 1, 2)))]
    return ",".join(faults), choose.choice(sorted(_TORCH))


def _seeded(seed: int, folder: Path, driver: dict[str, str], stuck: Path) -> str:
    """What is wrong with the suite's end under the faults of a seed; empty if nothing is."""
    faults, torch = _faults(seed)
    environ = {**driver, **_torch(folder / "torch", torch), "STUCK": str(stuck), "FAULTS": faults}
    document, left = _run(folder / "run", environ, "device", "pyg", device="cuda")
    statuses = [each["status"] for each in document["results"]]
    wrong = []
    if set(left) - {"D", "gone"} or ("D" in left and "kernel" not in faults + torch):
        wrong.append(f"left {left}")
    if "failed" not in statuses or "passed" in statuses:
        wrong.append(f"{statuses}")
    return f"seed {seed}, {faults!r}, torch {torch}: {', '.join(wrong)}" if wrong else ""


@pytest.mark.parametrize("part", range(4))
def test_seeded_faults_end_in_time_and_are_failures(
    part: int, driver: dict[str, str], stuck: Path, tmp_path: Path
) -> None:
    """Several at a time: most of their time is spent waiting."""
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        seeds = range(_SEEDS * part, _SEEDS * (part + 1))
        wrong = list(pool.map(lambda seed: _seeded(seed, tmp_path / str(seed), driver, stuck), seeds))
    assert [each for each in wrong if each] == []
