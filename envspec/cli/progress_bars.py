"""Progress of installations and images on stderr: bars on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from envspec.cli import terminal
from envspec.escaping import visible

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from envspec.fetch.values import Step


class Progress:
    """Shows what a run is at. Warnings go above the bars; stdout is never touched."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bars: Bars | None = None
        self._rows: dict[str, TaskID] = {}
        self._told: set[str] = set()

    def __enter__(self) -> Progress:
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

    def tell(self, line: str) -> None:
        """One line of a log that the user wants to see: above the bars."""
        if self._bars is None:
            terminal.tell(line)
            return
        self._bars.console.print(terminal.rich_text(line), highlight=False, soft_wrap=True)

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
