"""Progress of stages and checks on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final

from envspec.cli import terminal
from envspec.escaping import visible
from envspec.operations.conformance import Begun, Ended

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as Bars
    from rich.progress import TaskID
    from rich.status import Status

    from envspec.fetch.types import Step


class StageProgress:
    """Shows what each platform is at. Warnings go above the live lines; stdout is never touched."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at: dict[str, str] = {}
        self._live: Status | None = None

    def __enter__(self) -> StageProgress:
        self._live = _live({self._name: "reading the spec"})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, platform: str, what: str) -> None:
        """What a platform is at now."""
        self._at[platform] = what
        if self._live is not None:
            self._live.update(_lines({f"{self._name}: {at}": doing for at, doing in self._at.items()}))
        else:
            terminal.tell(f"{self._name}: {platform}: {what}")

    def warn(self, text: str) -> None:
        """One warning, at once."""
        if self._live is not None:
            told = terminal.rich_text(f"warning: {text}", style="yellow", styled=len("warning:"))
            self._live.console.print(told, highlight=False)
        else:
            terminal.tell(f"warning: {text}")


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on a terminal what is waited for, as long as it lasts; says nothing elsewhere."""
    live = _live({what: ""})
    try:
        yield
    finally:
        if live is not None:
            live.stop()


def _live(at: Mapping[str, str]) -> Status | None:
    """Live lines on stderr, where that is a terminal that can move its cursor."""
    if not terminal.can_redraw(sys.stderr):
        return None
    from rich.console import Console

    status = Console(stderr=True).status(_lines(at))
    status.start()
    return status


def _lines(at: Mapping[str, str]) -> RenderableType:
    """One line each, cut at the terminal's edge: a live line that wraps leaves its traces behind."""
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, doing in at.items():
        table.add_row(terminal.rich_text(name), terminal.rich_text(doing))
    return table


class DownloadProgress:
    """Shows what a run is at. Warnings go above the bars; stdout is never touched."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bars: Bars | None = None
        self._rows: dict[str, TaskID] = {}
        self._told: set[str] = set()

    def __enter__(self) -> DownloadProgress:
        if terminal.can_redraw(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bars

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[count]}"),
            )
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def report(self, step: Step) -> None:
        """How far a stage is; may be called by any thread."""
        what = step.stage.value
        if self._bars is None:
            # Stages may be under way at once: each is told of when it begins.
            line = f"{self._name}: {what}{_size(step)}"
            if line not in self._told:
                self._told.add(line)
                terminal.tell(line)
            return
        if what not in self._rows:
            self._rows[what] = self._bars.add_task(visible(f"{self._name}: {what}"), total=None, count="")
        if not step.done and not step.bytes_done:
            # Some stages never tell how far they are (uv's): the bar moves without an end.
            self._bars.update(self._rows[what], count=_size(step).strip(" ()"))
            return
        done, total = (step.bytes_done, step.bytes_total) if step.bytes_total else (step.done, step.total)
        self._bars.update(self._rows[what], completed=done, total=total or None, count=_count(step))

    def warn(self, text: str) -> None:
        """One warning, at once."""
        if self._bars is None:
            terminal.tell(f"warning: {text}")
            return
        told = terminal.rich_text(f"warning: {text}", style="yellow", styled=len("warning:"))
        self._bars.console.print(told, highlight=False)


def _size(step: Step) -> str:
    """What is to be done in all, for a line that is written once."""
    if not step.total:
        return ""
    size = f", {step.bytes_total / 1e6:,.0f} MB" if step.bytes_total else ""
    return f" ({step.total}{size})"


def _count(step: Step) -> str:
    count = f"{step.done}/{step.total}" if step.total else ""
    if not step.bytes_total:
        return count
    return f"{count}  {step.bytes_done / 1e6:,.0f} of {step.bytes_total / 1e6:,.0f} MB"


_GREEN, _RED, _YELLOW, _PLAIN = "\x1b[32m", "\x1b[1;31m", "\x1b[33m", "\x1b[0m"
_COLOURS: Final = {"passed": _GREEN, "failed": _RED, "not run": _YELLOW}
_WORD: Final = max(map(len, _COLOURS))
_REASON: Final = 200


class SuiteProgress:
    """Shows what a run of the suite is at; stdout is never touched."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._status: Status | None = None

    def __enter__(self) -> SuiteProgress:
        if terminal.can_redraw(sys.stderr):
            from rich.console import Console

            self._status = Console(stderr=True).status(terminal.rich_text(f"{self._name}: starting the suite"))
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def told(self, said: Begun | Ended) -> None:
        """What the suite says of a check."""
        if isinstance(said, Begun):
            if self._status is not None:
                self._status.update(terminal.rich_text(f"{self._name}: {said.check}"))
            return
        reason = said.reason.splitlines()[0][:_REASON] if said.reason else ""
        word = said.status.ljust(_WORD)
        if terminal.wants_colours(sys.stderr):
            word = f"{_COLOURS.get(said.status, '')}{word}{_PLAIN}"
        terminal.tell(f"  {said.check:<12} {said.seconds:6.1f} s{'  ' + reason if reason else ''}", lead=word)
