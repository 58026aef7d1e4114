"""The pages of the real indexes, each read once for all targets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from typing import Final

from envspec.errors import OfflineMiss
from envspec.io.store import StoredPage
from envspec.io.tasks import run_in_thread
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex, Rules
from envspec.resolve.pypi.index.selection import Selection, SelectionPolicy, TagRanks, own_files, select

_LARGE_BYTES: Final = 8 << 20
#: By view.
_Selections = Mapping[str, Selection]


class Pages:
    """What each view selects of each page. rules: each view's, by its key. ranks: of the wheels that it loads."""

    def __init__(self, client: IndexClient, rules: Mapping[str, Rules]) -> None:
        self.client = client
        self.rules = rules
        self.ranks = {view: TagRanks(each.tags) for view, each in rules.items()}

    async def read(self, view: str, name: str) -> tuple[StoredPage, Selection]:
        """A project's page on its index, packed, and what one view selects of it; raises as `View.selection`."""
        index, cutoff = self.rules[view].index_of(name), self.rules[view].cutoff_of(name)
        key = ("selections", index.name, name, cutoff)
        page, selections = await self.client.once(key, lambda: self._read(index, name, cutoff))
        return page, selections[view]

    async def _read(self, index: PackageIndex, name: str, cutoff: datetime) -> tuple[StoredPage, _Selections]:
        """The page, and what all views with this index and cutoff select of it."""

        async def read(page: StoredPage) -> tuple[StoredPage, _Selections]:
            return page.packed(), await self._select(page, index, name, cutoff)

        page, selections = await self.client.page(index, name, cutoff, read)
        if page.asked < self.client.began and not all(each.is_final for each in selections.values()):
            # The page is of an earlier run: what had no upload time then may have one by now.
            if self.client.http is None:
                pending = set[str]().union(*(each.pending for each in selections.values()))
                what = f"{name} {', '.join(sorted(pending)[-3:])}".rstrip()
                raise OfflineMiss(
                    f"the upload time of {what} at index {index.name}",
                    hint="lock without --offline, or with an older as_of: the index adds upload times late",
                )
            page, selections = await self.client.page(index, name, self.client.began, read)
        return page, selections

    async def _select(self, page: StoredPage, index: PackageIndex, name: str, cutoff: datetime) -> _Selections:
        def select_all() -> _Selections:
            listing = own_files(parse_page(page.body, page.content_type, page.url), name)
            if index.is_page and not listing.names:
                raise NotListed(name)
            bound = cutoff if index.dated else None
            # Views mostly load the same files.
            selected = cache(partial(select, listing, name))
            selections: dict[str, Selection] = {}
            for view, rules in self.rules.items():
                if name in rules.direct or rules.index_of(name) != index or rules.cutoff_of(name) != cutoff:
                    continue
                fits = partial(rules.extensions.fits, name) if name in rules.extensions else None
                policy = SelectionPolicy(bound, page.asked, rules.sdists, fits)
                selections[view] = selected(policy, self.ranks[view].loadable(listing))
            return selections

        # A page of 10 MB takes 0.1 s, and ten times as long if it was made to: Ctrl-C must not wait for it.
        if len(page.body) > _LARGE_BYTES:
            return await run_in_thread(select_all)
        return select_all()
