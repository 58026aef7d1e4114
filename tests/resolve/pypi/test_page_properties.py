"""A project page is the same in HTML and in JSON; what is no page is refused."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from envspec.resolve.pypi.index.page import (
    BadPage,
    ListedFile,
    PageListing,
    parse_any_json,
    parse_page,
    parse_typed_json,
)
from tests.support.builders.projects import Dialect, File, Hashes, Hrefs, MetadataFiles, Pages, Sizes, Times
from tests.support.builders.wheels import Artifact
from tests.support.servers import pages

URL = "http://127.0.0.1:1234/simple/lib/"
ROOT = "http://127.0.0.1:1234"

texts = st.text(string.printable + "äßµ漢", max_size=20)
digits = st.integers(0, 99).map(str)
versions = st.builds(".".join, st.lists(digits, min_size=1, max_size=3))
local = st.sampled_from(["", "+cu126", ".post1", "rc1", ".dev0"])


@st.composite
def files(draw: st.DrawFn) -> File:
    version = draw(versions) + draw(local)
    name = draw(st.sampled_from([f"lib-{version}-py3-none-any.whl", f"lib-{version}.tar.gz", f"lib-{version}.zip"]))
    data = draw(st.binary(max_size=20))
    python = draw(st.none() | st.sampled_from([">=3.8", ">=3.8,<4", '>=3.9,!=3.9.7,<"4"']))
    moments = st.integers(946_684_800, 1_900_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, timezone.utc))
    return File(Artifact("lib", version, name, data, data, python), draw(moments), draw(st.none() | texts))


@st.composite
def dialects(draw: st.DrawFn) -> Dialect:
    return Dialect(
        times=draw(st.sampled_from(Times)),
        hashes=draw(st.sampled_from(Hashes)),
        sizes=draw(st.sampled_from(Sizes)),
        hrefs=draw(st.sampled_from([Hrefs.RELATIVE, Hrefs.ROOTED, Hrefs.ABSOLUTE, Hrefs.BASE])),
        metadata=draw(st.sampled_from(MetadataFiles)),
    )


def listing(project: list[File], dialect: Dialect) -> PageListing:
    kind, body = pages.project_page("lib", project, dialect, "", ROOT)
    return parse_page(body, kind, URL)


def rows(found: PageListing) -> list[ListedFile]:
    return [found.file(number) for number in range(len(found.names))]


@given(st.lists(files(), max_size=6), dialects())
def test_html_and_json_say_the_same(project: list[File], dialect: Dialect) -> None:
    in_json = rows(listing(project, replace(dialect, pages=Pages.JSON)))
    in_html = rows(listing(project, replace(dialect, pages=Pages.HTML)))
    # HTML has no sizes.
    assert in_html == [structs.replace(row, size_bytes=None) for row in in_json]
    assert [row.filename for row in in_json] == [file.filename for file in project]
    for row, file in zip(in_json, project, strict=True):
        assert row.url == f"{ROOT}{pages.file_path(file)}"
        assert row.sha256 == (file.sha256 if dialect.hashes is Hashes.SHA256 else None)
        assert row.yanked == file.yanked
        assert row.requires_python == file.artifact.requires_python
        assert (row.uploaded is None) is (dialect.times is Times.HIDDEN)
        assert row.size_bytes == (file.artifact.size_bytes if dialect.sizes is Sizes.SHOWN else None)


@given(st.binary(max_size=300), st.sampled_from(["text/html", "application/vnd.pypi.simple.v1+json"]))
def test_any_bytes_are_a_page_or_refused(body: bytes, kind: str) -> None:
    try:
        found = parse_page(body, kind, URL)
    except BadPage:
        return
    for number in range(len(found.names)):
        try:
            found.file(number)
        except BadPage:
            continue


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
NAME = "lib-1-py3-none-any.whl"
ROW = {
    "filename": NAME,
    "url": NAME,
    "hashes": {"sha256": "a" * 64},
    "upload-time": "2024-01-01T00:00:00Z",
    "size": 5,
    "yanked": False,
    "requires-python": ">=3.8",
    "core-metadata": {"sha256": "b" * 64},
}


@given(st.sampled_from([*ROW, "whole row"]), json_values)
def test_a_row_of_another_form_is_refused_or_read_as_what_it_says(key: str, value: object) -> None:
    row = value if key == "whole row" else {**ROW, key: value}
    body = json.dumps({"meta": {"api-version": "1.0"}, "name": "lib", "files": [row]}).encode()
    try:
        page = parse_page(body, "application/json", URL)
        if not page.names:
            return
        read = page.file(0)
    except BadPage:
        return
    assert isinstance(read.filename, str)
    assert read.url.startswith(("http://", "https://"))
    assert read.sha256 is None or len(read.sha256) == 64
    assert read.size_bytes is None or (isinstance(read.size_bytes, int) and read.size_bytes >= 0)
    assert read.uploaded is None or datetime.fromisoformat(read.uploaded[:19])
    assert read.yanked is None or isinstance(read.yanked, str)
    assert read.requires_python is None or isinstance(read.requires_python, str)
    assert read.metadata_sha256 is None or isinstance(read.metadata_sha256, str)


hashes = st.sampled_from([{}, {"sha256": "A" * 64}, {"sha256": None}, {"sha256": 5}, {"md5": "a"}, None])
metadata = hashes | st.booleans() | json_values
fields = st.one_of(
    *(st.tuples(st.just(key), st.just(value) | json_values) for key, value in ROW.items()),
    st.tuples(st.just("hashes"), hashes),
    st.tuples(st.sampled_from(["core-metadata", "dist-info-metadata", "data-dist-info-metadata"]), metadata),
    st.tuples(st.just("size"), st.sampled_from([0, -1, 5.0, 1e300, 10**30, True])),
    st.tuples(st.just("yanked"), st.sampled_from(["", "broken", True, None, 0])),
    st.tuples(st.sampled_from(["provenance", "filenam\u0065"]), json_values),
)
metas = st.sampled_from([{}, {"api-version": "1.4"}, {"api-version": 1.0}, {"api-version": "2.0"}, None]) | json_values


def pairs(values: list[tuple[str, object]]) -> str:
    """A JSON object, also with several values of one key."""
    return "{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in values) + "}"


@st.composite
def json_pages(draw: st.DrawFn) -> bytes:
    entries = [pairs([*ROW.items(), *draw(st.lists(fields, max_size=3))]) for _ in range(draw(st.integers(0, 3)))]
    if draw(st.booleans()):
        entries.append(pairs(draw(st.lists(fields, max_size=4))))
    body = f'{{"meta":{json.dumps(draw(metas))},"files":[{",".join(entries)}]}}'.encode()
    start = draw(st.integers(0, len(body)))
    damage = draw(
        st.none() | st.binary(max_size=2) | st.sampled_from([b'"', b"}", b",", b"NaN", b"\\ud800", b"\\u00e9"])
    )
    if damage is None:
        return body
    return body[:start] + damage + body[start + draw(st.integers(0, 2)) :]


def read_by(parse: Callable[[bytes, str], tuple[tuple[str, ...], Callable[[int], ListedFile]]], body: bytes) -> object:
    malformed = (ValueError, KeyError, TypeError, AttributeError)
    try:
        names, file = parse(body, URL)
    except malformed as error:
        return str(error)
    found: list[ListedFile | str] = []
    for number in range(len(names)):
        try:
            found.append(file(number))
        except malformed as error:
            found.append(str(error))
    return names, found


@given(json_pages())
def test_both_readers_of_json_read_the_same(body: bytes) -> None:
    assert read_by(parse_typed_json, body) == read_by(parse_any_json, body)


@pytest.mark.parametrize(
    "row",
    [
        1,
        {"url": NAME},
        {"filename": NAME},
        {**ROW, "url": None},
        {**ROW, "hashes": {"sha256": "abc"}},
        {**ROW, "upload-time": "yesterday"},
        {**ROW, "size": "970 bytes"},
        {**ROW, "url": "http://[bad/"},
        {**ROW, "url": "file:///etc/passwd"},
    ],
)
def test_a_row_that_no_lock_may_have_is_refused(row: object) -> None:
    body = json.dumps({"meta": {"api-version": "1.1"}, "name": "lib", "files": [row]}).encode()
    with pytest.raises(BadPage):
        parse_page(body, "application/json", URL).file(0)


@pytest.mark.parametrize("body", [b"[]", b'{"meta": {"api-version": "1.0"}}', b'{"files": ['])
def test_json_that_is_no_page_is_refused(body: bytes) -> None:
    with pytest.raises(BadPage):
        parse_page(body, "application/json", URL)


@pytest.mark.parametrize("body", [b"", bytes(range(256)), b'<html><body><a href="lib-1.0.whl">lib-1.0.whl</a><br/>'])
def test_html_that_is_no_page_is_refused(body: bytes) -> None:
    with pytest.raises(BadPage):
        parse_page(body, "text/html", URL)


@given(st.lists(files(), min_size=1, max_size=4), st.sampled_from([Pages.HTML, Pages.JSON]), st.data())
def test_a_page_that_is_cut_short_is_refused(project: list[File], form: Pages, data: st.DataObject) -> None:
    kind, body = pages.project_page("lib", project, Dialect(pages=form), "", ROOT)
    # What follows the last file closes elements that HTML need not close.
    length = len(body.rstrip()) - len(b"</body></html>" if form is Pages.HTML else b"")
    cut = body[: data.draw(st.integers(0, length - 1))]
    with pytest.raises(BadPage):
        parse_page(cut, kind, URL)


def html(text: str) -> PageListing:
    return parse_page(text.encode(), "text/html; charset=utf-8", URL)


@pytest.mark.parametrize(
    "anchor",
    [
        '<a href="../../files/NAME">NAME</a>',
        "<A HREF='../../files/NAME' >NAME</A >",
        "<a href=../../files/NAME>NAME</a>",
        '<a rel="internal" href="../../files/NAME"\n  title="a > b">\n NAME </a>',
        '<a href="../../files/NAME"><span>NAME</span></a>',
        '<a href="../../files/NAME"><code>lib</code>-1-py3-none-any.whl<br></a>',
        '<a href="../../files/NAME">Download</a>',
        '<a data-dist-info-metadata=true href="../../files/NAME">NAME</a>',
    ],
)
def test_ways_to_write_a_link(anchor: str) -> None:
    found = html(f"<!doctype html><html><body>{anchor.replace('NAME', NAME)}</body></html>")
    assert found.names == (NAME,)
    assert found.file(0).url == f"{ROOT}/files/{NAME}"


@pytest.mark.parametrize("fragment", ["AB" * 32, "ab" * 32 + "&egg=lib", "ab" * 32])
def test_hashes_in_links(fragment: str) -> None:
    assert html(f'<a href="{NAME}#sha256={fragment}">{NAME}</a>').file(0).sha256 == "ab" * 32


def test_html_without_its_outer_elements_is_a_page() -> None:
    assert html(f'<a href="{NAME}">{NAME}</a>').names == (NAME,)
    with pytest.raises(BadPage, match="it ends in the middle"):
        html(f'<a href="{NAME}">{NAME}</a>\n<a href="lib-1.1.whl">lib-1.1')


def test_a_page_without_files_must_state_that_it_is_of_an_index() -> None:
    mark = '<meta content="1.0" name="pypi:repository-version">'
    assert html(f"<html><head>{mark}</head><body><h1>Links for lib</h1></body></html>").names == ()
    assert parse_page(b'{"meta": {"api-version": "1.0"}, "files": []}', "application/json", URL).names == ()
    for body in ("<h1>Back soon</h1>", '<a href="/login">Log in</a>', "<!-- pypi:repository-version -->"):
        with pytest.raises(BadPage, match="lists no file"):
            html(f"<!DOCTYPE html><html><body>{body}</body></html>")
    with pytest.raises(BadPage, match="lists no file"):
        parse_page(b'{"files": []}', "application/json", URL)
    # Files of formats of the past: the project has releases, none for an installer of today.
    assert html('<html><a href="lib-1.0-py2.4.egg">lib-1.0-py2.4.egg</a></html>').names == ("lib-1.0-py2.4.egg",)


def test_a_later_minor_version_of_json_is_read_and_a_major_one_is_not() -> None:
    def page(version: str) -> bytes:
        return json.dumps({"meta": {"api-version": version}, "files": [ROW]}).encode()

    assert parse_page(page("1.99"), "application/vnd.pypi.simple.v1+json", URL).file(0).size_bytes == 5
    with pytest.raises(BadPage, match=r"index API version 2\.0"):
        parse_page(page("2.0"), "application/vnd.pypi.simple.v1+json", URL)


@given(st.integers(0, 10**6))
def test_upload_times_keep_their_text(microseconds: int) -> None:
    moment = datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=microseconds)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = json.dumps({"files": [{**ROW, "upload-time": text}]}).encode()
    assert parse_page(body, "application/json", URL).file(0).uploaded == text
