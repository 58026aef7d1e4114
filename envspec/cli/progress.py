"""Progress on stderr: one live line for each platform on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from envspec.cli import terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status


class Progress:
    """Shows what each platform is at. Warnings go above the live lines; stdout is never touched."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at: dict[str, str] = {}
        self._live: Status | None = None

    def __enter__(self) -> Progress:
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
