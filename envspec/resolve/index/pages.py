"""Projects' pages as the views of one run see them: fetched once, read once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from envspec.effects.event_loop import apart
from envspec.resolve.index.page import parse_page
from envspec.resolve.index.rules import Rules
from envspec.resolve.index.select import Selection, TagRanks, Taste, own, select
from envspec.resolve.index.store import StoredPage
from envspec.resolve.index.upstream import Index, OfflineMiss, Upstream

_LARGE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class _Read:
    """A page, and what each view selects of it."""

    page: StoredPage
    selections: Mapping[str, Selection]


class Pages:
    """What each view selects of a page.

    rules: of every view, by its key. ranks: what each of them loads, likewise.
    """

    def __init__(self, upstream: Upstream, rules: Mapping[str, Rules]) -> None:
        self._upstream = upstream
        self._rules = rules
        self.ranks = {view: TagRanks(each.tags) for view, each in rules.items()}

    async def selection(self, view: str, name: str) -> Selection:
        """What one view may see of a project, by its index's page.

        Raises:
            NotListed: its index does not know the project.
            BadPage, NetworkError: its index can't be used.
        """
        return (await self._of(view, name)).selections[view]

    async def page(self, view: str, name: str) -> StoredPage:
        """The page that `selection` is made of.

        Raises:
            As `selection`.
        """
        return (await self._of(view, name)).page

    async def _of(self, view: str, name: str) -> _Read:
        index, cut = self._rules[view].index_of(name), self._rules[view].cut_of(name)
        key = ("selections", index.name, name, cut)
        return await self._upstream.once(key, lambda: self._read(index, name, cut))

    async def _read(self, index: Index, name: str, cut: datetime) -> _Read:
        found = await self._selected(await self._upstream.page(index, name, cut), index, name, cut)
        began = self._upstream.began
        if found.page.asked >= began or all(each.is_settled for each in found.selections.values()):
            return found
        # An earlier run asked for it: what had no upload time then may have one by now.
        if self._upstream.http is None:
            late = sorted({version for each in found.selections.values() for version in each.late})
            raise OfflineMiss(
                f"the upload time of {name}{' ' if late else ''}{', '.join(late[-3:])} at index {index.name}",
                hint="its index fills it in late: lock without --offline, or with an older as_of",
            )
        return await self._selected(await self._upstream.page(index, name, began), index, name, cut)

    async def _selected(self, page: StoredPage, index: Index, name: str, cut: datetime) -> _Read:
        # A page of 10 MB takes 0.1 s, and ten times as long if it was made to: Ctrl-C must not wait for it.
        if len(page.body) > _LARGE_BYTES:
            return await apart(self._select, page, index, name, cut)
        return self._select(page, index, name, cut)

    def _select(self, page: StoredPage, index: Index, name: str, cut: datetime) -> _Read:
        listing = own(parse_page(page.body, page.content_type, page.url), name)
        bound = cut if index.dated else None
        return _Read(
            page,
            {
                view: select(listing, name, Taste(self.ranks[view], bound, page.asked, rules.sdists_of(name)))
                for view, rules in self._rules.items()
                if name not in rules.direct and rules.index_of(name) == index and rules.cut_of(name) == cut
            },
        )
