"""The `envspec` command, and `python -m envspec`: Ctrl-C and SIGTERM end it with one line from its first import on."""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


class _Terminated(KeyboardInterrupt):
    """SIGTERM, before or after the command line handles it itself."""


def main() -> None:
    """Run the command line.

    Imports take most of a short run. A signal that arrives meanwhile has no other handler.
    """
    # A command ends in seconds, and most of its objects live until then: a cold lock spends 8 % of its CPU time on
    # Python's default of looking for cycles after 700 new objects, `--help` 5 %. To look once takes 40 ms.
    gc.set_threshold(500_000, 20, 100)
    try:
        if sys.argv[1:2] == ["lock"]:
            _end_if_up_to_date()
        import signal

        signal.signal(signal.SIGTERM, _terminate)
        from envspec.cli.main import main as run

        run()
    except _Terminated:
        _end("ended by SIGTERM", 143)
    except KeyboardInterrupt:
        _end("interrupted", 130)
    finally:
        _stop_handling()


def _end_if_up_to_date() -> None:
    """End the process if the last run of the same words found nothing to do, and nothing has changed since."""
    import os

    from envspec.operations.lock.up_to_date import known_message

    message = known_message(sys.argv[1:])
    if message is None:
        return
    if sys.stderr is not None:
        try:
            sys.stderr.write(message)
            sys.stderr.flush()
        except OSError:
            # Nobody reads it.
            pass
    # The interpreter's own end takes as long as all of this.
    os._exit(0)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 (the signal module's signature)
    raise _Terminated


def _end(text: str, code: int) -> NoReturn:
    _stop_handling()
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
    sys.exit(code)


def _stop_handling() -> None:
    """Let the system end the process by itself: Python would print a traceback while it exits."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
