"""Projects' pages as the views of one run see them: fetched once, read once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from envspec.resolve.index.page import parse_page
from envspec.resolve.index.rules import Rules
from envspec.resolve.index.select import Selection, TagRanks, Taste, own, select
from envspec.resolve.index.upstream import Index, Upstream


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
        index, cut = self._rules[view].index_of(name), self._rules[view].cut_of(name)
        key = ("selections", index.name, name, cut)
        selections = await self._upstream.once(key, lambda: self._read(index, name, cut))
        return selections[view]

    async def _read(self, index: Index, name: str, cut: datetime) -> dict[str, Selection]:
        page = await self._upstream.page(index, name, cut)
        listing = own(parse_page(page.body, page.content_type, page.url), name)
        return {
            view: select(listing, Taste(self.ranks[view], cut if index.dated else None, name in rules.sdists))
            for view, rules in self._rules.items()
            if name not in rules.direct and rules.index_of(name) == index and rules.cut_of(name) == cut
        }
