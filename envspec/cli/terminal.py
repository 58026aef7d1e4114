"""Standard output and error: colours, width, signals.

All output of commands passes through here: `escaping.visible` keeps foreign text from controlling the terminal;
colours are added afterwards.
"""

from __future__ import annotations

import contextlib
import os
import re
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

#: Of text that goes to a file or a pipe.
WIDTH: Final = 100
_NARROWEST: Final = 40
#: Longer lines of prose are hard to read.
_WIDEST: Final = 132
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[1;31m", "\x1b[0m"
_STATES: Final = {"ok": "\x1b[32m", "warning": "\x1b[33m", "missing": _RED}


class CannotAnswer(EnvspecError, exit_code=6, code="output-not-writable"):
    """Standard output can't be written, for example because its disk is full."""


def leave(code: int) -> NoReturn:
    """End the process at once, with all that was written, and without the interpreter's own end."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; False if it is closed."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def can_redraw(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can overwrite a line."""
    return is_terminal(stream) and os.environ.get("TERM") not in ("dumb", "unknown")


def wants_colours(stream: TextIO | None) -> bool:
    """A terminal with colours, unless the user has set NO_COLOR (no-color.org)."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def width() -> int:
    """Characters on a line of the result: COLUMNS, else the terminal's, else WIDTH."""
    import shutil

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def row_width() -> int:
    """As `width`, but without a limit if the result is not for a terminal: other programs read its lines."""
    return width() if is_terminal(sys.stdout) else sys.maxsize


def answer(text: str) -> None:
    """Write a command's result to stdout; characters that its encoding lacks are escaped.

    Raises:
        BrokenPipeError: its reader is gone.
        CannotAnswer: stdout can't be written.
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
    except OSError as error:
        drop_stdout()
        raise CannotAnswer(
            f"the result can't be written to standard output: {error.strerror}",
            hint="free space, or redirect it elsewhere",
        ) from error


def answer_sections(text: str) -> None:
    """`answer`; on a terminal with colours, headings (the lines without indentation) are bold, and the states that rows
    begin with are in colour.
    """
    text = visible(text)
    if wants_colours(sys.stdout):
        text = re.sub(r"(?m)^\S.*?(?=\s*$)", rf"{_BOLD}\g<0>{_PLAIN}", text)
        for state, colour in _STATES.items():
            text = re.sub(rf"(?m)^  {state}(?=  )", f"  {colour}{state}{_PLAIN}", text)
    _write(text)


def answer_markdown(text: str) -> None:
    """`answer`; laid out on a terminal."""
    text = visible(text)
    if sys.stdout is not None and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        with (console := Console()).capture() as laid_out:
            console.print(Markdown(text))
        text = laid_out.get()
    _write(text)


def answer_json(text: str) -> None:
    """`answer` with a JSON document; in ASCII if stdout is not UTF-8."""
    if not text.isascii() and not _is_utf8(sys.stdout):
        import json

        text = json.dumps(json.loads(text), indent=2) + "\n"
    _write(visible_json(text))


def _is_utf8(stream: TextIO | None) -> bool:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"


def report_error(text: str) -> None:
    """`error: ...` on stderr, its first word in red if stderr wants colours."""
    report(f" {text}", lead=_coloured("error:", _RED))


def report_warning(text: str) -> None:
    """`warning: ...` on stderr, its first word in yellow if stderr wants colours."""
    report(f" {text}", lead=_coloured("warning:", _STATES["warning"]))


def _coloured(word: str, colour: str) -> str:
    return f"{colour}{word}{_PLAIN}" if wants_colours(sys.stderr) else word


def report(line: str, *, lead: str = "") -> None:
    """One line for the user on stderr, which may be closed. lead: what precedes it, unescaped, with its colours."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"{lead}{visible(line)}\n")
            sys.stderr.flush()
        except OSError:
            # Nobody reads it, and nothing else is left to report it to.
            return


def soften_streams() -> None:
    """Let streams escape characters that their encoding lacks, instead of raising UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        soften = getattr(stream, "reconfigure", None)
        # "surrogateescape" is the C locale's: in UTF-8 it writes file names unchanged, in ASCII it fails on letters.
        hard = ("strict",) if _is_utf8(stream) else ("strict", "surrogateescape")
        if soften is not None and getattr(stream, "errors", None) in hard:
            soften(errors="backslashreplace")


def drop_stdout() -> None:
    """Discard what is still buffered for stdout, so that Python can exit without an error."""
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


class Terminated(EnvspecError, exit_code=143, code="terminated"):
    """The run was ended by SIGTERM; the exit code is the one that shells report."""


@contextlib.contextmanager
def handle_sigterm() -> Iterator[None]:
    """Let SIGTERM end a run like Ctrl-C: its work is stopped and its temporary files are removed.

    Also in the background of a script, where shells start programs with SIGINT ignored.
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
                "ended by SIGTERM", hint="run the same command again: it continues with what is complete"
            ) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


#: More are not needed, and some programs walk through all numbers up to the limit.
_MOST: Final = 65_536


def raise_limit() -> None:
    """Raise the limit to what this user may have: the usual one is for programs that use select(), and low on macOS."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS refuses more than kern.maxfilesperproc.
        for limit in (wanted, 10_240):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            except (OSError, ValueError):
                continue
            return


def limit_text() -> str:
    """`: the limit is 1024 for each process`; empty on systems without one."""
    try:
        import resource
    except ImportError:
        return ""
    return f": the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} for each process"
