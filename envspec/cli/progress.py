"""Progress on stderr: one live line for each platform on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """Shows what each platform is at. Warnings go above the live line; stdout is never touched."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at: dict[str, str] = {}
        self._live: Status | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console

            self._live = Console(stderr=True).status(f"{self._name}: reading the spec")
            self._live.start()
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
            self._live.update(f"{self._name}: " + "; ".join(f"{at} {doing}" for at, doing in self._at.items()))
        else:
            click.echo(f"{self._name}: {platform}: {what}", err=True)

    def warn(self, text: str) -> None:
        """One warning, at once."""
        if self._live is not None:
            self._live.console.print(f"[yellow]warning:[/] {_plain(text)}", highlight=False)
        else:
            click.echo(f"warning: {text}", err=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
