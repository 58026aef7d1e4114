"""`envspec receipts` as a user runs it: its exit codes, forms and refusals; and a receipt's files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.receipt.build import receipt
from envspec.report import REPORTS, write
from tests.support.command import envspec
from tests.support.receipts import eight_gpus, known, made

CASES = Path(__file__).parents[1] / "golden" / "receipts"


def paths(case: str) -> list[str]:
    return [str(path) for path in sorted((CASES / case).glob("node-*.json"))]


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_the_exit_code_says_whether_they_differ(tmp_path: Path, case: str) -> None:
    ran = envspec(tmp_path, "receipts", *paths(case))
    differs = json.loads((CASES / case / "expected.json").read_text(encoding="utf-8"))["differs"]
    assert (ran.status, ran.stderr) == (10 if differs else 0, "")


def test_folders_are_named_by_their_own_names(tmp_path: Path) -> None:
    for name in ("node-a", "node-b"):
        write(receipt(eight_gpus(), known()), tmp_path / name)
    ran = envspec(tmp_path, "receipts", "node-a", "node-b/receipt.json", "--format", "json")
    assert (ran.status, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["receipts"] == ["node-a", "node-b"]


def test_two_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("one/r", "two/r"):
        write(receipt(eight_gpus(), known()), tmp_path / name)
    ran = envspec(tmp_path, "receipts", "one/r", "two/r", "two/r", "--format", "json")
    assert json.loads(ran.stdout)["receipts"] == ["one/r", "two/r (2)", "two/r (3)"]


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_output_is_a_file(tmp_path: Path, form: str) -> None:
    case = paths("one-is-slow")
    told = envspec(tmp_path, "receipts", *case, "--format", form)
    ran = envspec(tmp_path, "receipts", *case, "--format", form, "--output", "told/it")
    assert (ran.status, ran.stdout, ran.stderr) == (10, "", "wrote told/it\n")
    assert (tmp_path / "told/it").read_text(encoding="utf-8") == told.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing argument 'RECEIPT RECEIPT...'"),
        (("one",), "one receipt can't be compared"),
        (("one", "two"), "one can't be read: No such file or directory"),
        (("one", "two", "--format", "xml"), "'xml' is not one of"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ran = envspec(tmp_path, "receipts", *words)
    assert (ran.status, ran.stdout) == (2, "")
    assert said in ran.stderr


def test_every_form_is_written(tmp_path: Path) -> None:
    written = write(receipt(eight_gpus(), known()), tmp_path / "a" / "b")
    assert [path.name for path in written] == [report.file for report in REPORTS.values()]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(path.name for path in written)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"taken/receipt.json can't be written"):
        write(made(), tmp_path / "taken")


def test_a_page_holds_all_that_it_shows() -> None:
    page = REPORTS["html"].render(receipt(eight_gpus(), known()))
    assert page.count("<svg ") == 3
    assert not re.search(r"<(?:script|link(?! rel=\"icon\" href=\"data:,\")|img|iframe|object|embed)\b", page)
    assert not re.search(r"@import|url\((?!#)", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_colours_follow_the_page() -> None:
    page = REPORTS["html"].render(receipt(eight_gpus(), known()))
    plots = "".join(re.findall(r"<svg .*?</svg>", page, re.DOTALL))
    assert not re.search(r"(?:fill|stroke): #", plots)
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", plots)) <= set(re.findall(r"(--[a-z0-9-]+):", page))


def test_a_receipt_is_told_on_any_terminal(tmp_path: Path) -> None:
    """Also where stdout is ASCII alone, and where nobody reads on."""
    environ = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    ran = envspec(tmp_path, "receipts", *paths("one-is-slow"), "--format", "markdown", environ=environ)
    assert ran.status == 10
    assert ran.stdout.isascii()
