"""How often a registry is asked again: until patience ends, and anew wherever something came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

from envspec.credentials import shown
from envspec.effects.http_faults import RequestFault, Stalled, is_passing, retry_after_s
from envspec.effects.http_values import Patience, Response
from envspec.errors import NetworkError

#: Not implemented, and a version of HTTP that the server doesn't speak: these stay.
_LASTING: Final = frozenset({501, 505})
#: The longest pause between two tries that nobody asked for, in seconds.
_LONGEST_PAUSE_S: Final = 30.0
_T = TypeVar("_T")


class TryAgain(Exception):
    """An answer that another try may better.

    fault: what to tell where none does. wait_s: what the registry asks to wait.
    """

    def __init__(self, fault: NetworkError, wait_s: float | None = None) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.wait_s = wait_s


def passes(status: int) -> bool:
    """Whether a status may be another one a little later: 408, 429, most of 5xx."""
    return status in {408, 429} or (status >= 500 and status not in _LASTING)


def refuse(answer: Response, fault: NetworkError) -> NoReturn:
    """Raise `fault` for an answer that is a refusal, as TryAgain where it may pass."""
    if passes(answer.status):
        raise TryAgain(fault, retry_after_s(answer.headers.get("Retry-After")))
    raise fault


@dataclass(slots=True)
class Tries:
    """Counts tries in a row that brought nothing on.

    url: what is asked, for messages. notice: told of every pause, one line.
    """

    patience: Patience
    notice: Callable[[str], None]
    url: str
    _failed: int = 0
    _stalls: int = 0
    _furthest: int = 0

    async def after(self, fault: NetworkError | TryAgain, reached: int = 0) -> None:
        """Wait as long as is due; raises the fault where it is none that passes, or patience has ended.

        reached: how far the work is, in bytes. A try that came further than all before starts the count anew.
        """
        if reached > self._furthest:
            self._furthest, self._failed, self._stalls = reached, 0, 0
        self._failed += 1
        self._stalls += isinstance(fault, Stalled)
        pause = self.patience.pause_s(self.url, self._failed)
        if isinstance(fault, TryAgain):
            known, lasting = fault.fault, (fault.wait_s or 0) > self.patience.retry_after_s
            pause = pause if fault.wait_s is None else fault.wait_s
        else:
            known = fault
            lasting = not isinstance(fault, RequestFault) or fault.__cause__ is None or not is_passing(fault.__cause__)
        if lasting or self._failed >= self.patience.attempts or self._stalls >= 2:
            raise known
        pause = min(pause, max(_LONGEST_PAUSE_S, self.patience.retry_after_s))
        self.notice(f"{known.message}; trying again in {pause:.1f} s")
        await asyncio.sleep(pause)


async def persist(
    patience: Patience, notice: Callable[[str], None], url: str, action: Callable[[], Awaitable[_T]]
) -> _T:
    """What `action` gives, after as many tries as patience has. It has to be one that may happen twice."""
    tries = Tries(patience, notice, shown(url))
    while True:
        try:
            return await action()
        except (NetworkError, TryAgain) as fault:
            await tries.after(fault)
