"""Every folder of tests/golden/receipt and tests/golden/receipts: see the READMEs there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envspec.receipt.compare import compare
from envspec.receipt.files import read
from envspec.report import REPORTS, fleet, text

GOLDEN = Path(__file__).parents[1] / "golden"
ONE = sorted(path.parent for path in (GOLDEN / "receipt").glob("*/receipt.json"))
SEVERAL = sorted(path for path in (GOLDEN / "receipts").iterdir() if path.is_dir())


def test_there_are_cases() -> None:
    assert ONE
    assert SEVERAL


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
@pytest.mark.parametrize(
    ("form", "file"),
    [("text", "expected.txt"), ("junit", "expected.xml"), ("markdown", "expected.md"), ("html", "expected.html")],
)
def test_a_receipt(case: Path, form: str, file: str) -> None:
    receipt = read(case)
    told = text.render(receipt) if form == "text" else REPORTS[form].render(receipt)
    assert without_plots(told) == (case / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
def test_json_is_the_receipt_itself(case: Path) -> None:
    assert REPORTS["json"].render(read(case)) == (case / "receipt.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
def test_the_same_receipt_is_the_same_page(case: Path) -> None:
    receipt = read(case)
    assert REPORTS["html"].render(receipt) == REPORTS["html"].render(receipt)


@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case.name)
@pytest.mark.parametrize(
    ("form", "file"), [("text", "expected.txt"), ("markdown", "expected.md"), ("json", "expected.json")]
)
def test_receipts(case: Path, form: str, file: str) -> None:
    paths = sorted(path for path in case.glob("*.json") if not path.name.startswith("expected"))
    found = compare([(path.stem, read(path)) for path in paths])
    assert fleet.render(form, found) == (case / file).read_text(encoding="utf-8")


def without_plots(page: str) -> str:
    return re.sub(r"<svg .*?</svg>", "<svg/>", page, flags=re.DOTALL)
