"""The documents: links lead somewhere, pages have every check, claims.md is the output of envspec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from bench import gpu_coverage
from bench.claims import PAGE, SPECS, By, names, rewritten
from envspec.conformance.checks import CHECKS
from envspec.documents import parse_toml
from envspec.receipts.model import read
from tests.support.user import ROOT

DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")])
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The names that a forge gives to a document's headings."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE.sub("", document.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_table_is_whole(document: Path) -> None:
    """A header that is no row makes text of the rows below it."""
    lines = _CODE.sub("", document.read_text(encoding="utf-8")).splitlines()
    found = {
        at: (lines[at - 1], [row for row in lines[at + 1 : at + 2] if not row.startswith("|")])
        for at, line in enumerate(lines)
        if re.fullmatch(r"\|(?:\s*:?-+:?\s*\|)+", line)
    }
    assert [(at, header) for at, (header, rest) in found.items() if not header.startswith("|") or rest] == []


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_check_is_on_its_page() -> None:
    _, _, table = page("reference/conformance.md").partition("\n## Checks\n")
    rows = re.findall(r"^\| `(\w+)` \|.*\|(?: (yes))? \|$", table, re.MULTILINE)
    assert rows == [(name, "yes" if each.each_gpu else "") for name, each in CHECKS.items()]


def test_the_claims_page_says_what_envspec_says_where_no_network_is_needed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert rewritten(text, (By.FACTS,)) == text, "run `python -m bench.claims`"
    assert sorted(names(text)) == sorted(path.stem for path in SPECS.glob("*.toml"))
    for path in SPECS.glob("*.toml"):
        _, _, spec = path.read_text(encoding="utf-8").partition("\n")
        assert f"```toml\n{spec}```\n" in text, f"{path.name}: run `python -m bench.claims`"


def test_every_dependency_has_its_reason() -> None:
    project = parse_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = sum(project["optional-dependencies"].values(), project["dependencies"])
    _, _, table = page("explanation/design.md").partition("\n## Dependencies\n")
    named = set(re.findall(r"[\w.-]+", " ".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))))
    assert {Requirement(each).name for each in required} - named == set()


def test_the_page_of_what_ran_on_which_gpu_is_that_of_the_receipts() -> None:
    """It has every check, every bound and every shortcut of the stand-in: a new one needs the page written again."""
    assert gpu_coverage.PAGE.read_text(encoding="utf-8") == gpu_coverage.page()
    assert "not run yet" not in gpu_coverage.page()


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/tour.md", "CHANGELOG.md"])
def test_pages_state_that_no_gpu_has_run_the_suite_until_a_receipt_of_one_is_committed(name: str) -> None:
    receipts = [read(path) for path in sorted(gpu_coverage.RECEIPTS.glob("*.json"))]
    has_gpu = any(each.device == "cuda" for each in receipts)
    text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    assert ("No GPU has run the suite yet" in text) is not has_gpu
