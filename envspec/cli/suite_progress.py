"""The suite's progress on stderr: a line for each check that is over, and on a terminal what runs now."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Final

from envspec.cli import terminal
from envspec.proof.watching import Begun, Ended

if TYPE_CHECKING:
    from rich.status import Status

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
