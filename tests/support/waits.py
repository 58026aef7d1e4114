"""Waiting for other processes, and ports for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def wait_for(what: Callable[[], object], limit_s: float = 120.0, poll_s: float = 0.02) -> None:
    """Return when `what` returns something true; fail if that takes longer than limit_s."""
    until = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < until, f"it did not happen within {limit_s} s"
        time.sleep(poll_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
