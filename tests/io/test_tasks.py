"""Ctrl-C at the end of a loop, errors of work beside a running one; loops that compute are in test_readers."""

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


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no handlers of signals on Windows")
def test_ctrl_c_counts_while_threads_of_finished_work_end() -> None:
    with subprocess.Popen([sys.executable, "-c", _ENDS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 130
        finally:
            process.kill()


def test_an_error_beside_a_running_loop_is_that_of_the_work() -> None:
    async def work() -> None:
        raise RuntimeError("of the work")

    async def cell() -> None:
        run_interruptible(work())

    with pytest.raises(RuntimeError, match="of the work"):
        asyncio.run(cell())
