"""Which files are selected, and which selections no late upload time can change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

import pytest
from packaging.tags import Tag

from envspec.resolve.pypi.index.page import ListedFile, PageListing
from envspec.resolve.pypi.index.selection import FILLED_IN_WITHIN, Sdists, Selection, SelectionPolicy, TagRanks, select

ASKED = datetime(2026, 11, 20, 11, 17, tzinfo=timezone.utc)
OLD, NEW = "2025-01-01T00:00:00Z", "2026-11-19T00:00:00Z"
A_SECOND = timedelta(seconds=1)
PURE = TagRanks((Tag("py3", "none", "any"),))


def selection(
    files: Mapping[str, str | None], cut: datetime | None = ASKED, sdists: Sdists = Sdists.WITHOUT_WHEEL
) -> Selection:
    """files: upload times by name."""
    names = tuple(files)
    rows = [ListedFile(name, f"https://x/{name}", None, None, files[name], None, None, None) for name in names]
    listing = PageListing(names, rows.__getitem__)
    return select(listing, "lib", SelectionPolicy(cut, ASKED, sdists), PURE.loadable(listing))


def pure(version: str) -> str:
    return f"lib-{version}-py3-none-any.whl"


@pytest.mark.parametrize("version", ["2.0", "1.0", "0.5", "2.0rc1", "1.0.post1"])
def test_whatever_its_version_a_file_without_a_time_may_come_to_count(version: str) -> None:
    found = selection({"lib-1.0-1-py3-none-any.whl": OLD, pure(version): None})
    assert found.pending == (version,)
    assert not found.is_final
    assert list(found.files) == ["lib-1.0-1-py3-none-any.whl"]


def test_a_moment_further_back_than_times_are_filled_in_is_final() -> None:
    files = {pure("1.0"): OLD, pure("2.0"): None}
    assert not selection(files, ASKED - FILLED_IN_WITHIN).is_final
    assert selection(files, ASKED - FILLED_IN_WITHIN - A_SECOND).is_final


def test_a_late_release_of_an_extension_is_named_with_its_label_alone() -> None:
    late = ListedFile("lib-2.0+cu121-py3-none-any.whl", "https://x/lib")
    policy = SelectionPolicy(ASKED, ASKED, fits=lambda _: True)
    older = ListedFile(pure("1.0"), "https://x/old", uploaded=OLD)
    listing = PageListing((older.filename, late.filename), (older, late).__getitem__)
    assert select(listing, "lib", policy, PURE.loadable(listing)).pending == ("2.0+cu121",)


def test_an_index_without_times() -> None:
    found = selection({pure("1.0"): None, pure("2.0"): OLD}, None)
    assert found.is_final and len(found.files) == 2
    undated = selection({pure("1.0"): None})
    assert undated.undated and not undated.is_final


@pytest.mark.parametrize(
    ("files", "unloadable", "late"),
    [
        ({"lib-2.0-py2-none-any.whl": None}, None, ("2.0",)),
        ({"lib-2.0-py2-none-any.whl": OLD}, "2.0", ()),
        ({"lib-2.0-py2-none-any.whl": OLD, "lib-2.0.exe": OLD}, "2.0", ()),
        ({"lib-2.0-py2-none-any.whl": OLD, "lib-2.0.tar.gz": OLD}, None, ()),
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
    assert (found.unloadable, found.pending) == (unloadable, late)


def test_equal_versions_are_spelled_the_same_in_every_run() -> None:
    # In a set, their order is that of hashes, which differ between processes.
    for major in range(2, 22):
        names = f"lib-{major}.0.0-py2-none-any.whl", f"lib-{major}.0-py2-none-any.whl"
        assert selection({pure("1.0"): OLD, **dict.fromkeys(names, OLD)}).unloadable == f"{major}.0"
        assert selection({pure("1.0"): OLD, **dict.fromkeys(names)}).pending == (f"{major}.0",)


def test_an_sdist_counts_beside_releases_that_have_wheels() -> None:
    files = {pure("1.0"): OLD, "lib-0.9.tar.gz": None}
    assert selection(files, sdists=Sdists.NONE).is_final
    assert selection(files).pending == ("0.9",)


def test_an_sdist_is_a_candidate_if_its_release_has_no_wheel_for_the_target() -> None:
    files = [pure("1.0"), "lib-1.0.tar.gz", "lib-1.1.tar.gz", "lib-1.1.zip", "lib-2.0-py2-none-any.whl", "lib-2.0.zip"]
    dated = dict.fromkeys(files, OLD)
    assert list(selection(dated).files) == [pure("1.0"), "lib-1.1.tar.gz", "lib-1.1.zip", "lib-2.0.zip"]
    assert list(selection(dated, sdists=Sdists.NONE).files) == [pure("1.0")]


@pytest.mark.parametrize(
    "name", ["lib-1.0-1.tar.gz", "lib-x-1.0.tar.gz", "lib-1.0-beta.tar.gz", "lib.tar.gz", "1.0.zip"]
)
def test_an_sdist_of_another_project_or_without_a_version_is_no_candidate(name: str) -> None:
    for sdists in Sdists:
        found = selection({pure("0.1"): OLD, name: OLD}, sdists=sdists)
        assert list(found.files) == [pure("0.1")]
        assert found.unloadable is None


def test_a_wheel_that_came_later_than_the_cut_does_not_stand_for_its_release() -> None:
    files = {pure("1.0"): OLD, pure("2.0"): NEW, "lib-2.0.tar.gz": OLD}
    assert list(selection(files, ASKED - timedelta(days=30)).files) == [pure("1.0"), "lib-2.0.tar.gz"]


@pytest.mark.parametrize("cut", [ASKED, ASKED - timedelta(days=30)])
def test_a_selection_of_dated_files_is_final(cut: datetime) -> None:
    assert selection({pure("1.0"): OLD, pure("2.0"): NEW}, cut).is_final


def test_a_selection_is_stored_and_what_is_none_counts_as_absent() -> None:
    found = selection(
        {pure("1.0"): "2024-01-01T00:00:00Z", "lib-2.0-cp39-cp39-win32.whl": "2024-01-02T00:00:00Z"}, ASKED
    )
    assert found.files and found.unloadable == "2.0"
    assert Selection.decode(found.encode()) == found
    for stored in (b"", b"[]", b'[{"lib-1.0.zip": ["lib-1.0.zip", 5]}]', found.encode()[:-1], b"\xff"):
        assert Selection.decode(stored) is None
