"""Reading pages: in a process beside this one where that can be, for the pages of one stack are 30 MB of HTML.

This process answers the engines; while it takes a large page apart, they wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from envspec.resolve.index.page import parse_page
from envspec.resolve.index.select import Selection, TagRanks, Taste, select
from envspec.resolve.index.store import StoredPage

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

#: A smaller page is read sooner than it is handed over.
_HANDED_OVER_BYTES: Final = 24 * 1024

_ranks: dict[str, TagRanks] = {}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one view wants of a page: the fields of its Taste, its tags by the view's key."""

    view: str
    cut: datetime | None
    sdists: bool


class Reader:
    """Takes pages apart for several views at once. ranks: the views' tags, by their keys."""

    def __init__(self, ranks: Mapping[str, TagRanks]) -> None:
        self._ranks = ranks
        self._pool: ProcessPoolExecutor | None = None

    def start(self) -> None:
        """Start the process beside this one, if that is cheap and safe: a fork, and no other thread yet."""
        if not hasattr(os, "fork") or threading.active_count() > 1 or (os.cpu_count() or 1) < 2:
            return
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        self._pool = ProcessPoolExecutor(1, get_context("fork"), _ranks.update, (dict(self._ranks),))
        self._pool.submit(bool)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def read(self, page: StoredPage, wanted: Sequence[Wanted]) -> dict[str, Selection]:
        """What each view selects of a page.

        Raises:
            BadPage: it is none, or a row that counts can't be read.
        """
        if self._pool is None or len(page.body) < _HANDED_OVER_BYTES:
            return _read(page.body, page.content_type, page.url, wanted, self._ranks)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, _beside, page.body, page.content_type, page.url, wanted)


def _beside(body: bytes, content_type: str, url: str, wanted: Sequence[Wanted]) -> dict[str, Selection]:
    return _read(body, content_type, url, wanted, _ranks)


def _read(
    body: bytes, content_type: str, url: str, wanted: Sequence[Wanted], ranks: Mapping[str, TagRanks]
) -> dict[str, Selection]:
    listing = parse_page(body, content_type, url)
    return {each.view: select(listing, Taste(ranks[each.view], each.cut, each.sdists)) for each in wanted}
