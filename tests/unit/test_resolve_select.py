"""Which selections are good for ever: those that no upload time which comes late can change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

import pytest
from packaging.tags import Tag

from envspec.resolve.index.page import ListedFile, Listing
from envspec.resolve.index.select import FILLED_IN_WITHIN, Selection, TagRanks, Taste, select

ASKED = datetime(2026, 11, 20, 11, 17, tzinfo=timezone.utc)
OLD, NEW = "2025-01-01T00:00:00Z", "2026-11-19T00:00:00Z"
A_SECOND = timedelta(seconds=1)


def selection(
    files: Mapping[str, str | None], cut: datetime | None = ASKED, *, sdists: tuple[str, ...] = ()
) -> Selection:
    """files: upload times by name."""
    names = tuple(files)
    rows = [ListedFile(name, f"https://x/{name}", None, None, files[name], None, None, None) for name in names]
    ranks = TagRanks((Tag("py3", "none", "any"),))
    return select(Listing(names, rows.__getitem__), Taste(ranks, cut, ASKED, "lib" in sdists))


def pure(version: str) -> str:
    return f"lib-{version}-py3-none-any.whl"


@pytest.mark.parametrize("version", ["2.0", "1.0", "0.5", "2.0rc1", "1.0.post1"])
def test_whatever_its_version_a_file_without_a_time_may_come_to_count(version: str) -> None:
    found = selection({"lib-1.0-1-py3-none-any.whl": OLD, pure(version): None})
    assert found.late == (version,)
    assert not found.is_settled
    assert list(found.files) == ["lib-1.0-1-py3-none-any.whl"]


def test_a_moment_further_back_than_times_are_filled_in_is_settled() -> None:
    files = {pure("1.0"): OLD, pure("2.0"): None}
    assert not selection(files, ASKED - FILLED_IN_WITHIN).is_settled
    assert selection(files, ASKED - FILLED_IN_WITHIN - A_SECOND).is_settled


def test_an_index_without_times_is_taken_as_it_is() -> None:
    found = selection({pure("1.0"): None, pure("2.0"): OLD}, None)
    assert found.is_settled
    assert len(found.files) == 2


def test_nothing_dated_is_nothing_for_ever() -> None:
    found = selection({pure("1.0"): None})
    assert found.undated
    assert not found.is_settled


@pytest.mark.parametrize(
    ("files", "unloadable", "late"),
    [
        ({"lib-2.0-py2-none-any.whl": None}, None, ("2.0",)),
        ({"lib-2.0-py2-none-any.whl": OLD}, "2.0", ()),
        ({"lib-2.0-py2-none-any.whl": None, "lib-2.0.tar.gz": OLD}, "2.0", ()),
        ({"lib-3.0-py2-none-any.whl": None, "lib-2.0-py2-none-any.whl": OLD}, "2.0", ("3.0",)),
        ({"lib-3.0-py2-none-any.whl": OLD, "lib-2.0-py2-none-any.whl": None}, "3.0", ()),
        ({"lib-0.9-py2-none-any.whl": None}, None, ()),
        ({"lib-2.0rc1-py2-none-any.whl": None}, None, ()),
    ],
)
def test_what_can_not_be_loaded_counts_where_it_would_be_the_newest(
    files: dict[str, str | None], unloadable: str | None, late: tuple[str, ...]
) -> None:
    found = selection({pure("1.0"): OLD, **files})
    assert (found.unloadable, found.late) == (unloadable, late)


def test_an_sdist_counts_where_it_may_be_built() -> None:
    files = {pure("1.0"): OLD, "lib-0.9.tar.gz": None}
    assert selection(files).is_settled
    assert selection(files, sdists=("lib",)).late == ("0.9",)


def test_all_dated_is_settled_at_any_moment() -> None:
    files = {pure("1.0"): OLD, pure("2.0"): NEW}
    assert selection(files).is_settled
    assert selection(files, ASKED - timedelta(days=30)).is_settled
