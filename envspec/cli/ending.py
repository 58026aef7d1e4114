"""How commands that make something end when they are told to."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from envspec.errors import EnvspecError


class Terminated(EnvspecError):
    """Somebody ended the run by SIGTERM; the exit code is what a shell tells of that."""

    exit_code = 143


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: what it was doing is stopped and what it made is removed.

    Also in the background of a script, where a shell has programs ignore SIGINT from their start.
    """
    ended = False

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signal module's signature)
        nonlocal ended
        ended = True
        signal.raise_signal(signal.SIGINT)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        if ended:
            raise Terminated(
                "ended by SIGTERM", hint="run the same command again: what is whole is kept, and nothing else is left"
            ) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
