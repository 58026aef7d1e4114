"""Any text in a receipt: every form takes it, and gives back what can be shown of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import groupby
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.escaping import one_line, visible
from envspec.receipts.build import receipt
from envspec.receipts.compare import compare
from envspec.receipts.model import Receipt, dump, load
from envspec.report import COMPARISON, RECEIPT
from tests.support.builders.receipts import LOCK, check, exact, info, known, not_run, results

#: What some form gives a meaning to, and what no encoding has.
MARKS = (
    *"<>&\"'`|\\*_[]()#\x00\x1b\x7f\x85\r\n\t\u202e\ufeff\ufffe\ud800\udce9{}$%",
    *("<b>", "</pre>", "</td>", "<script>alert(1)</script>", "&amp;", "&#x1b;", "]]>", "<!--", "{{ 1 }}", "http://a.b"),
)
TEXT = st.lists(st.sampled_from(MARKS) | st.characters(), max_size=12).map("".join)


def made(name: str, log: str) -> Receipt:
    rows = [
        check(
            name,
            status="failed",
            cause="raised",
            reason=log,
            hint=name,
            log=log,
            findings=[exact(name, ok=False, detail=log), info(log, 1.0, "s", name), not_run(name, log)],
            ran={name: log},
            phases=[[name, 1.0]],
        ),
        check("pyg", status="not run", reason=log),
    ]
    return receipt(results(*rows), known(lock=LOCK.model_copy(update={"name": visible(name)})))


class Page(HTMLParser):
    """The words of a page's cells and of what it shows verbatim, and which elements it has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.verbatim: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        if tag == "pre":
            self._inside = tag
            self.verbatim.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.verbatim[-1] += data


#: Of a page without any text of the receipt's.
ELEMENTS = Page()
ELEMENTS.feed(RECEIPT.render("html", made("name", "log")))


@given(TEXT, TEXT)
def test_json_gives_back_every_character(name: str, log: str) -> None:
    found = made(name, log)
    again = load(dump(found), "receipt.json")
    assert again == found
    assert again.checks[0].log == log.encode("utf-8", "backslashreplace").decode()


@given(TEXT, TEXT)
def test_junit_gives_back_what_xml_can_hold(name: str, log: str) -> None:
    (suite,) = ElementTree.fromstring(RECEIPT.render("junit", made(name, log)))
    failed, skipped = suite.findall("testcase")
    failure, skip = failed.find("failure"), skipped.find("skipped")
    assert failure is not None
    assert skip is not None
    assert failed.get("name") == one_line(escaped(name))
    assert failure.get("message") == one_line(escaped(log)) or not one_line(log)
    assert visible(escaped(log)).strip() in (failure.text or "")
    assert skip.get("message") == one_line(escaped(log)) or not one_line(log)


@settings(deadline=None, max_examples=40)
@given(TEXT, TEXT.filter(lambda text: bool(text.strip())))
def test_a_page_shows_every_character_and_takes_none_for_markup(name: str, log: str) -> None:
    page = Page()
    page.feed(RECEIPT.render("html", made(name, log)))
    assert page.elements <= ELEMENTS.elements
    # A line feed after <pre> is the element's, not its text's.
    assert [shown.removeprefix("\n") for shown in page.verbatim] == [visible(escaped(log))]


@given(TEXT, TEXT)
def test_markdown_has_no_markup_of_the_receipts(name: str, log: str) -> None:
    rendered = RECEIPT.render("markdown", made(name, log))
    assert set(re.findall(r"</?([a-z]*)[^>]*>", rendered)) <= {"details", "summary", "pre", "br"}
    assert rendered.count("<pre>") == rendered.count("</pre>") <= 1
    for is_table, rows in groupby(rendered.splitlines(), lambda line: line.startswith("|")):
        assert not is_table or len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1


@given(TEXT, TEXT)
def test_a_terminal_gets_nothing_but_text(name: str, log: str) -> None:
    found = made(name, log)
    for rendered in (
        RECEIPT.render("text", found),
        COMPARISON.render("text", compare([(one_line(name), found), ("b", made("b", "b"))])),
    ):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", rendered)


@given(TEXT)
def test_visible_text_is_not_changed(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    json.dumps(shown).encode()
    shown.encode("utf-8")


def escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
