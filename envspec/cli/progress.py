"""Progress of operations on a terminal: one reporter."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final

from envspec.cli import output, terminal
from envspec.escaping import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from envspec.context import Step
    from envspec.operations.conformance import CheckEvent

_GREEN, _RED, _YELLOW, _PLAIN = "\x1b[32m", "\x1b[1;31m", "\x1b[33m", "\x1b[0m"
_COLOURS: Final = {"passed": _GREEN, "failed": _RED, "not run": _YELLOW, "not known": _YELLOW}
_WORD: Final = max(map(len, _COLOURS))
_REASON: Final = 200


class TerminalReporter:
    """Shows how far an operation is, on stderr; warnings go above the live lines, which start with the first stage.

    name: what the operation works on.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._can_redraw = terminal.can_redraw(sys.stderr) and output.SETTINGS.quiet < output.QUIET
        self._live: Progress | None = None
        self._rows: dict[str, TaskID] = {}
        self._printed: set[str] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> TerminalReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def progress(self, step: Step, /) -> None:
        text = ": ".join(filter(None, (self._name, step.of, str(step.stage))))
        if self._can_redraw:
            self.show(step.of or step.stage, text, step)
            return
        # Stages may run at once, and again to move one package: each is printed when it first begins.
        line = f"{text}{_size(step)}"
        with self._lock:
            is_new = line not in self._printed
            self._printed.add(line)
        if is_new:
            output.info(line)

    def show(self, key: str, text: str, step: Step | None = None) -> None:
        if not self._can_redraw:
            return
        with self._lock:
            if self._live is None:
                self._live = _started()
            if key not in self._rows:
                self._rows[key] = self._live.add_task(visible(text), total=None, count="")
        done, total, count = 0, 0, ""
        if step is not None and (step.done or step.bytes_done):
            done, total = step.done, step.total
            if step.bytes_total:
                done, total = step.bytes_done, step.bytes_total
            count = _count(step)
        elif step is not None:
            # Some stages never report how far they are (uv's).
            count = _size(step).strip(" ()")
        self._live.update(self._rows[key], description=visible(text), completed=done, total=total or None, count=count)

    def _show_only(self, key: str, text: str) -> None:
        if self._live is not None:
            for other in [each for each in self._rows if each != key]:
                self._live.remove_task(self._rows.pop(other))
        self.show(key, text)

    def warning(self, text: str, /) -> None:
        output.warn(text, terminal.report_warning if self._live is None else self._print_above)

    def _print_above(self, text: str) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text.assemble(("warning:", "yellow"), " ", visible(text)), highlight=False)

    def check(self, event: CheckEvent) -> None:
        """Show a check of the conformance suite that begins, or print one that ended."""
        if not event.status:
            self._show_only("check", f"{self._name}: {event.check}")
            return
        line = f"  {event.check:<12} {event.seconds:6.1f} s"
        if reason := "".join(event.reason.splitlines()[:1])[:_REASON]:
            line += f"  {reason}"
        word = event.status.ljust(_WORD)
        if terminal.wants_colours(sys.stderr):
            word = f"{_COLOURS.get(event.status, '')}{word}{_PLAIN}"
        if output.SETTINGS.quiet < output.QUIET:
            terminal.report(line, lead=word)


def _started() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # A live line that wraps leaves traces: it is cut at the terminal's edge.
    whole = Column(no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", markup=False, table_column=whole),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
    )
    live = Progress(*columns, console=Console(stderr=True), transient=True)
    live.start()
    return live


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what is waited for; elsewhere nothing."""
    with TerminalReporter(what) as reporter:
        reporter.show("waiting", what)
        yield


def _size(step: Step) -> str:
    """What is to be done in all, for a line that is written once: not one of several of a platform or package."""
    if not step.total or step.of:
        return ""
    size = f", {step.bytes_total / 1e6:,.0f} MB" if step.bytes_total else ""
    return f" ({step.total}{size})"


def _count(step: Step) -> str:
    count = f"{step.done}/{step.total}" if step.total else ""
    if not step.bytes_total:
        return count
    return f"{count}  {step.bytes_done / 1e6:,.0f} of {step.bytes_total / 1e6:,.0f} MB"
