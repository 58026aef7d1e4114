"""Standard output and error: colours, width, signals.

All that commands print goes through here: `escaping.visible` keeps the characters of others' text from being commands
to the terminal, and colours are put around it afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from envspec.errors import EnvspecError
from envspec.escaping import visible, visible_json

if TYPE_CHECKING:
    import click
    from rich.text import Text


#: Of text that goes to a file or a pipe.
WIDTH: Final = 100
_NARROWEST: Final = 40
#: Longer lines of prose are hard to read.
_WIDEST: Final = 132
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[1;31m", "\x1b[0m"


class CannotAnswer(EnvspecError):
    """Standard output takes nothing, because its disk is full, say."""


def leave(code: int) -> NoReturn:
    """End the process at once, with all that was written, and without the interpreter's own end."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sees what is written there; False for a stream that is closed."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def can_redraw(stream: TextIO | None) -> bool:
    """A terminal that can go back and write over a line."""
    return is_terminal(stream) and os.environ.get("TERM") not in ("dumb", "unknown")


def wants_colours(stream: TextIO | None) -> bool:
    """A terminal that knows colours, of a user who has not said otherwise (no-color.org)."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def width() -> int:
    """Characters on a line of the answer: COLUMNS, else the terminal's, else WIDTH."""
    import shutil

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def answer(text: str) -> None:
    """Write a command's answer to stdout, whatever its encoding: what that lacks is written as an escape.

    Raises:
        BrokenPipeError: whoever read it has gone.
        CannotAnswer: stdout takes nothing.
    """
    _write(visible(text))


def _write(text: str) -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as fault:
        drop_stdout()
        raise CannotAnswer(
            f"the answer can't be written to standard output: {fault.strerror}",
            hint="make room, or send it elsewhere",
        ) from fault


def answer_sections(text: str) -> None:
    """`answer`, and on a terminal that wants colours the lines that begin at the margin stand out: the headings."""
    text = visible(text)
    if wants_colours(sys.stdout):
        text = "".join(
            line if line[:1] in ("", " ", "\n") else f"{_BOLD}{line.rstrip()}{_PLAIN}\n"
            for line in text.splitlines(keepends=True)
        )
    _write(text)


def answer_json(text: str) -> None:
    """`answer` with a JSON document; in ASCII alone where stdout is not UTF-8."""
    if not text.isascii() and not _is_utf8(sys.stdout):
        import json

        text = json.dumps(json.loads(text), indent=2) + "\n"
    _write(visible_json(text))


def answer_report(form: str, text: str) -> None:
    """`answer` with a report in a format of `envspec.report`."""
    {"json": answer_json, "text": answer_sections}.get(form, answer)(text)


def _is_utf8(stream: TextIO | None) -> bool:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"


def tell_error(text: str) -> None:
    """`error: ...` on stderr, its first word in red where stderr wants colours."""
    tell(f" {text}", lead=f"{_RED}error:{_PLAIN}" if wants_colours(sys.stderr) else "error:")


def tell(line: str, *, lead: str = "") -> None:
    """One line for the user on stderr, which may be closed. lead: what stands before it, as it is, with its colours."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"{lead}{visible(line)}\n")
            sys.stderr.flush()
        except OSError:
            # Nobody reads it, and there is nowhere else to say so.
            return


def rich_text(text: str, *, style: str = "", styled: int = 0) -> Text:
    """Text for rich, which reads no markup in it. style: of the first `styled` characters."""
    from rich.text import Text

    shown = Text(visible(text))
    shown.stylize(style, 0, styled)
    return shown


def soften_streams() -> None:
    """Streams whose encoding lacks a character write it as an escape, where they would raise UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        soften = getattr(stream, "reconfigure", None)
        # "surrogateescape" is the C locale's: in UTF-8 it writes file names as they are, in ASCII it refuses letters.
        hard = ("strict",) if _is_utf8(stream) else ("strict", "surrogateescape")
        if soften is not None and getattr(stream, "errors", None) in hard:
            soften(errors="backslashreplace")


def drop_stdout() -> None:
    """Let what is still buffered for stdout go nowhere, so that Python's end has nothing to complain of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        return
    finally:
        os.close(nowhere)


def complete_lock(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 (click's)
    """Names under `locks/`, for the shell's completion."""
    from pathlib import Path

    from envspec.lockfile.folder import names_of_locks

    return [name for name in names_of_locks(Path()) if name.startswith(incomplete)]


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
