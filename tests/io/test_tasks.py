"""Ctrl-C in a loop that computes and at the end of one; errors of work beside a running one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Final

import pytest

from envspec.io.tasks import run_interruptible

_ENDS: Final = """
import asyncio
import os
import time
from envspec.io.tasks import run_interruptible

def last():
    time.sleep(0.2)
    print("ready", flush=True)
    time.sleep(60)

async def work():
    asyncio.get_running_loop().run_in_executor(None, last)

try:
    run_interruptible(work())
except KeyboardInterrupt:
    os._exit(130)
"""

_COMPUTES: Final = """
import asyncio
from envspec.io.tasks import run_interruptible

def compute(ready):
    print(ready, flush=True)
    while True:
        pass

async def at_once():
    compute("ready")

async def once_it_was_cancelled():
    # Of a task that the interrupted one does not wait for, such as a request that a server answers.
    asyncio.get_running_loop().call_later(0.2, compute, "")
    try:
        print("ready", flush=True)
        await asyncio.sleep(10)
    finally:
        await asyncio.sleep(10)

try:
    run_interruptible({}())
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def interrupted(program: str) -> int:
    """The exit status of a program that gets Ctrl-C once it has printed `ready`; it would go on for a minute."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(30)
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no handlers of signals on Windows")
def test_ctrl_c_counts_while_threads_of_finished_work_end() -> None:
    assert interrupted(_ENDS) == 130


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no handlers of signals on Windows")
@pytest.mark.parametrize("name", ["at_once", "once_it_was_cancelled"])
def test_ctrl_c_ends_a_loop_that_computes(name: str) -> None:
    assert interrupted(_COMPUTES.replace("{}", name)) == 130


def test_an_error_beside_a_running_loop_is_that_of_the_work() -> None:
    async def work() -> None:
        raise RuntimeError("of the work")

    async def cell() -> None:
        run_interruptible(work())

    with pytest.raises(RuntimeError, match="of the work"):
        asyncio.run(cell())
