"""What a target sees: tags as packaging ranks them, times as datetime compares them, routes, corrections."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envspec.models import Platform, Python, Target
from envspec.resolve.pypi.index.page import ListedFile, PageListing
from envspec.resolve.pypi.index.routing import Correction, PackageIndex, Route, Rules
from envspec.resolve.pypi.index.selection import TagRanks, not_after, own_files, upload_time, version_of, version_text
from envspec.resolve.pypi.index.view import with_corrections
from envspec.resolve.pypi.resolver import read_pins
from envspec.spec.targets import wheel_tags

TARGETS = [
    Target(Platform.LINUX_64, Python("3.11.7", "spec"), glibc=(2, 35)),
    Target(Platform.LINUX_AARCH64, Python("3.13.1", "spec"), glibc=(2, 39)),
    Target(Platform.OSX_ARM64, Python("3.10.4", "spec"), macos=(14, 0)),
    Target(Platform.WIN_64, Python("3.12.0", "spec")),
]
INTERPRETERS = "cp311 cp310 cp313 cp39 cp312 py3 py311 py2 pp310"
ABIS = "none abi3 cp311 cp313 cp310 cp312 cp313t"
PLATFORMS = (
    "any manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux_2_35_x86_64 manylinux_2_36_x86_64 manylinux_2_39_aarch64 "
    "linux_x86_64 musllinux_1_2_x86_64 macosx_11_0_arm64 macosx_14_0_universal2 macosx_15_0_arm64 win_amd64 win32"
)


def some(values: str) -> st.SearchStrategy[str]:
    """Up to three of them, compressed as in a file name."""
    return st.lists(st.sampled_from(values.split()), min_size=1, max_size=3, unique=True).map(".".join)


tags = st.builds(lambda *parts: "-".join(parts), some(INTERPRETERS), some(ABIS), some(PLATFORMS))


@given(st.sampled_from(TARGETS), st.lists(tags, min_size=1, max_size=8))
def test_ranks_are_packagings_own_preference(target: Target, wheels: list[str]) -> None:
    supported = wheel_tags(target)
    places = {tag: place for place, tag in reversed(list(enumerate(supported)))}
    ranks = TagRanks(tuple(supported))
    for tag in wheels:
        wanted = min((places[one] for one in parse_tag(tag) if one in places), default=None)
        assert ranks.rank(f"lib-1.0-{tag}.whl") == wanted
        assert ranks.rank(f"lib-1.0-3-{tag}.whl") == wanted
    names = [f"lib-{number}.0-{tag}.whl" for number, tag in enumerate(wheels)]
    rows = [ListedFile(name, f"https://x/{name}") for name in (*names, "lib-9.tar.gz")]
    listing = PageListing(tuple(row.filename for row in rows), rows.__getitem__)
    assert ranks.loadable(listing) == tuple(number for number, name in enumerate(names) if ranks.rank(name) is not None)


@given(st.sampled_from(TARGETS), st.lists(tags, min_size=2, max_size=6))
def test_the_best_wheel_is_the_one_that_packaging_would_take(target: Target, wheels: list[str]) -> None:
    ranks = TagRanks(tuple(wheel_tags(target)))
    names = [f"lib-1.0-{tag}.whl" for tag in wheels]
    loadable = [name for name in names if ranks.rank(name) is not None]
    best = min(loadable, key=lambda name: ranks.rank(name) or 0, default=None)
    for tag in wheel_tags(target):
        holding = [name for name in names if tag in parse_wheel_filename(name)[3]]
        if holding:
            assert best is not None and ranks.rank(best) == ranks.rank(holding[0])
            return
    assert best is None


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
moments = st.integers(0, 4 * 10**15).map(lambda microseconds: EPOCH + timedelta(microseconds=microseconds))
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@st.composite
def written(draw: st.DrawFn) -> tuple[str, datetime]:
    """A upload_time, and a way in which an index writes it."""
    at = draw(moments)
    form = draw(st.sampled_from(["Z", "z", "", "offset", "colonless"]))
    if form in ("offset", "colonless"):
        at = at.astimezone(draw(offsets))
    digits = draw(st.integers(0, 9))
    at = at.replace(microsecond=at.microsecond // 10 ** max(0, 6 - digits) * 10 ** max(0, 6 - digits))
    text = at.strftime("%Y-%m-%dT%H:%M:%S")
    if digits:
        text += f".{at.microsecond:06d}"[: digits + 1].ljust(digits + 1, "0")
    zone = at.strftime("%z")
    return text + {"offset": f"{zone[:3]}:{zone[3:]}", "colonless": zone}.get(form, form), at


@given(written(), moments, offsets)
def test_upload_times_are_read_and_compared(case: tuple[str, datetime], cut: datetime, zone: timezone) -> None:
    text, at = case
    assert upload_time(text) == at
    assert upload_time(text).tzinfo is timezone.utc
    assert not_after(text, cut) is (at <= cut)
    assert not_after(text, cut.astimezone(zone)) is (at <= cut)
    # The upload_time itself, and the least that is later and earlier.
    assert not_after(text, at)
    assert not not_after(text, at - timedelta(microseconds=1))
    assert not_after(text, at + timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("filename", "version"),
    [
        ("lib-1.0-py3-none-any.whl", "1.0"),
        ("lib-1.0-2cu118-py3-none-any.whl", "1.0"),
        ("lib-1.0+cu126-cp311-cp311-win_amd64.whl", "1.0+cu126"),
        ("lib-1!2.0.post1-py3-none-any.whl", "1!2.0.post1"),
        ("my-lib-1.0.tar.gz", "1.0"),
        ("my-lib-1.0rc1.zip", "1.0rc1"),
        ("lib-1.0", "1.0"),
    ],
)
def test_versions_in_file_names(filename: str, version: str) -> None:
    assert version_text(filename) == version
    assert version_of(filename) == Version(version)


@pytest.mark.parametrize("filename", ["lib.whl", "lib-one-py3-none-any.whl", "README", "lib-.tar.gz", ""])
def test_names_without_a_version(filename: str) -> None:
    assert version_of(filename) is None


def test_the_first_route_that_fits_decides() -> None:
    default, corp, other = (PackageIndex(name, f"https://{name}.example/simple/") for name in ("d", "corp", "other"))
    rules = Rules(EPOCH, (), default, routes=(Route("corp-core", other), Route("corp-*", corp)))
    found = [rules.index_of(name) for name in ("corp-core", "corp-app", "corp", "xcorp-app")]
    assert found == [other, corp, default, default]


@given(st.binary(max_size=100), st.booleans())
def test_a_correction_adds_lines_to_the_head_and_nothing_else(description: bytes, windows: bool) -> None:
    end = b"\r\n" if windows else b"\n"
    metadata = end.join([b"Metadata-Version: 2.1", b"Name: lib", b"Version: 1.0", b"", description])
    corrections = (Correction(lambda version: version >= Version("1"), ("torch>=2.11",), "its reason"),)
    found = with_corrections(metadata, corrections, "lib-1.0-py3-none-any.whl")
    assert found.replace(b"Requires-Dist: torch>=2.11\n", b"") == metadata
    assert with_corrections(metadata, corrections, "lib-0.9-py3-none-any.whl") == metadata


names = st.text("aB1-_.", max_size=8).map(lambda middle: f"x{middle}9")
pin_versions = st.sampled_from(["1.0", "2.0.0rc1", "1!3.0", "2.9.1+cu126", "0.1.dev0", "1.0.post2"])
endings = st.sampled_from(["", " \\", " ; sys_platform == 'linux'", "; python_version < '4'"])


@given(st.lists(st.tuples(names, pin_versions, endings), max_size=6))
def test_pins_are_read_from_what_resolvers_write(pins: list[tuple[str, str, str]]) -> None:
    lines = ["#", "# This file was made", "--index-url http://127.0.0.1/simple/", ""]
    for name, version, ending in pins:
        lines += [f"{name}=={version}{ending}", "    --hash=sha256:" + "a" * 64, "    # via something==9.9"]
    assert read_pins("\n".join(lines)) == {canonicalize_name(name): version for name, version, _ in pins}
    assert read_pins("kit[fast,web]==2.0.0 \\\n") == {"kit": "2.0.0"}


@pytest.mark.parametrize(
    ("project", "kept", "left"),
    [
        ("lib", ["lib-1.0-py3-none-any.whl", "Lib-1.0.tar.gz", "lib-1.0-beta.zip"], ["libs-1.0-py3-none-any.whl"]),
        ("my-lib", ["my_lib-1.0-py3-none-any.whl", "My.Lib-1.0-py3-none-any.whl", "my-lib-1.0.tar.gz"], ["my-1.0.zip"]),
        ("my", ["my-1.0-py3-none-any.whl"], ["my_lib-1.0-py3-none-any.whl", "mylib-1.0.tar.gz"]),
        ("x", [], ["lib-1.0-py3-none-any.whl"]),
    ],
)
def test_a_page_is_of_one_project(project: str, kept: list[str], left: list[str]) -> None:
    names = [*left, *kept]
    rows = {name: ListedFile(name, f"https://x/{name}", None, None, None, None, None, None) for name in names}
    found = own_files(PageListing(tuple(names), lambda number: rows[names[number]]), project)
    assert list(found.names) == kept
    assert [found.file(number).filename for number in range(len(kept))] == kept
