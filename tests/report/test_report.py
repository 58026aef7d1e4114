"""Reports: every folder of golden/{receipt,receipts,diff,explain}, widths, numbers, the page, files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envspec import report
from envspec.base_image.cuda import SharedLibrary
from envspec.diagnostics.explain import explain_lock, explain_package
from envspec.diagnostics.fit import FitFinding, FitReport, FitVerdict
from envspec.diagnostics.machine import Machine, MachineGpu
from envspec.errors import UsageError
from envspec.facts.gpu import ComputeCapability
from envspec.lockfile.diff import diff_locks
from envspec.lockfile.document import load
from envspec.models import GpuCodeFound, Lock, Platform
from envspec.operations.fleet import read_fleet
from envspec.receipts.build import receipt
from envspec.receipts.compare import compare
from envspec.receipts.model import read
from envspec.report.format import CellKind, Column, Table, amount, hanging, percent, row, share, size, text_lines
from tests.support.builders.locks import example, sealed
from tests.support.builders.receipts import check, eight_gpus, known, made
from tests.support.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"
#: Formats whose files have another suffix than their name.
FORMS = {".txt": "text", ".md": "markdown", ".xml": "junit"}


def form_of(path: Path) -> str:
    return FORMS.get(path.suffix, path.suffix[1:])


def lock_of(path: Path) -> Lock:
    return load(sealed(path.read_text(encoding="utf-8")), path.name)


def rows_of(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def comparison_of(case: Path) -> Any:
    paths = sorted(case.glob("node-*.json"))
    return compare([(path.stem, read(path)) for path in paths])


def explanation_of(expected: Path) -> Any:
    case, (kind, _, name) = expected.parent, expected.stem.partition(".")
    seen = {
        key: GpuCodeFound(tuple(each["sm"]), tuple(each["ptx"])) for key, each in rows_of(case / "seen.json").items()
    }
    if kind == "package":
        return explain_package(lock_of(case / "lock.toml"), name, seen.get)
    shared = {
        Platform(name): [SharedLibrary(**each) for each in found]
        for name, found in rows_of(case / "shared.json").items()
    }
    return explain_lock(lock_of(case / "lock.toml"), shared, seen.get)


#: Folder -> its expected files, their formats, and how a value is made of a file's folder.
KINDS: dict[str, tuple[str, report.Formats[Any], Callable[[Path], Any]]] = {
    "receipt": ("expected.*", report.RECEIPT, lambda path: read(path.parent)),
    "receipts": ("expected.*", report.COMPARISON, lambda path: comparison_of(path.parent)),
    "fleet": ("expected.*", report.FLEET, lambda path: read_fleet(path.parent)),
    "diff": (
        "expected.*",
        report.LOCK_DIFF,
        lambda path: diff_locks(lock_of(path.parent / "old.toml"), lock_of(path.parent / "new.toml")),
    ),
    "explain": ("[lp]*[ke]*.[tj][xs]*", report.EXPLANATION, explanation_of),
}
CASES = [
    (kind, path)
    for kind, (pattern, _, _) in KINDS.items()
    for path in sorted((GOLDEN / kind).glob(f"*/{pattern}"))
    if kind != "receipts" or form_of(path) in report.COMPARISON
]


def test_there_are_cases_of_every_format() -> None:
    for kind, (_, formats, _) in KINDS.items():
        forms = {form_of(path) for found, path in CASES if found == kind}
        assert forms | {"json", "html"} == set(formats) | {"json", "html"}


@pytest.mark.parametrize(("kind", "path"), CASES, ids=lambda value: str(value).removeprefix(f"{GOLDEN}/"))
def test_golden(kind: str, path: Path) -> None:
    _, formats, value_of = KINDS[kind]
    form = form_of(path)
    rendered = formats.render(form, value_of(path))
    assert_golden(rendered, path)
    assert form != "text" or all(line == line.rstrip() for line in rendered.splitlines())


@pytest.mark.parametrize("path", sorted((GOLDEN / "explain").glob("*/error.*.txt")), ids=lambda path: path.stem)
def test_unknown_package(path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        explain_package(lock_of(path.parent / "lock.toml"), path.stem.partition(".")[2])
    assert_golden(f"{caught.value}\n", path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("case", sorted(path.parent for path in (GOLDEN / "receipt").glob("*/receipt.json")))
def test_json_is_the_receipt_itself(case: Path) -> None:
    assert_golden(report.RECEIPT.render("json", read(case)), case / "receipt.json")


@pytest.mark.parametrize("width", [80, 120])
def test_prose_fits_the_width(width: int) -> None:
    """Hashes, URLs and tables are not broken; sentences are."""
    for value in (explain_lock(example()), explain_package(example(), "numpy")):
        for line in report.EXPLANATION.render("text", value, width).splitlines():
            assert len(line) <= width or any(sign in line for sign in ("sha256:", "://", "sm_"))


@pytest.mark.parametrize(
    ("cells", "lines"),
    [
        (("a", "up", "1", "2", ""), ["  a   up  1 -> 2"]),
        (("a", "up", "1", "2", "linux-64"), ["  a   up  1 -> 2  linux-64"]),
        (("a", "up", "", "2", ""), ["  a   up  2"]),
        (("a", "up", "2", "2", ""), ["  a   up  2"]),
        (("a", "up", "1" * 30, "2" * 30, "x"), ["  a   up  x", "         " + "1" * 30, "      -> " + "2" * 30]),
        (("a", "", "1", "\x1b[1m\n2", ""), ["  a       1 -> \\x1b[1m 2"]),
    ],
    ids=["change", "platform", "added", "same", "too long", "escapes"],
)
def test_a_change_is_one_cell_of_text(cells: tuple[str, ...], lines: list[str]) -> None:
    columns = (Column("name"), Column("move"), Column("old", CellKind.OLD), Column("new", CellKind.NEW), Column("on"))
    table = Table("", columns, (row(*cells), row("bb", "up", "1", "2", "y")))
    assert list(text_lines(table, 60))[: len(lines)] == lines


def test_what_is_new_is_not_joined_with_what_was_done() -> None:
    columns = (Column("name"), Column("change"), Column("old", CellKind.OLD), Column("new", CellKind.NEW))
    table = Table("", columns, (row("a", "added", "", "1"), row("bb", "added", "", "2")))
    assert list(text_lines(table, 60)) == ["  a   added  1", "  bb  added  2"]


@pytest.mark.parametrize("width", [20, 30])
@pytest.mark.parametrize("head", [" " * 30, "a name: ", "a very long name of something: "])
def test_a_sentence_has_room_below_a_wide_head(head: str, width: int) -> None:
    sentence = "some words that fill several lines"
    lines = list(hanging(head, sentence, width))
    assert " ".join(lines).split() == f"{head} {sentence}".split()
    assert all(len(line) <= max(width, 22, len(head.rstrip())) for line in lines)


H100 = MachineGpu("NVIDIA H100 80GB HBM3", ComputeCapability(9, 0), 81559)
T4 = MachineGpu("Tesla T4", ComputeCapability(7, 5), 15360)
RUNS = FitFinding("gpu", FitVerdict.FITS, "NVIDIA H100 80GB HBM3 (sm_90): torch 2.9.1 cu128 has code for it")
OLD = FitFinding(
    "driver",
    FitVerdict.DOES_NOT_FIT,
    "the driver is 470.57.02, the lock needs 525.60.13 or newer",
    "update the NVIDIA driver to 525.60.13 or newer",
)
UNKNOWN = FitFinding(
    "gpu", FitVerdict.UNKNOWN, "Tesla T5: its compute capability is not known here", "name it: --gpu 9.0"
)
fit_text = partial(report.FIT.render, "text")


def machine(*gpus: MachineGpu, driver: str | None = "570.124.06", is_described: bool = False) -> Machine:
    return Machine(Platform.LINUX_64, driver, gpus, is_described=is_described)


@pytest.mark.parametrize(
    ("fit", "lines"),
    [
        (
            FitReport("llm", machine(*[H100] * 8, T4), (*[RUNS] * 8,)),
            [
                "this machine can run llm",
                "  linux-64, driver 570.124.06, 8 x NVIDIA H100 80GB HBM3, Tesla T4",
                "",
                "  fits  gpu  NVIDIA H100 80GB HBM3 (sm_90): torch 2.9.1 cu128 has code for it",
            ],
        ),
        (
            FitReport("llm", machine(H100), (OLD, RUNS), "lock torch 2.7.1 cu118"),
            [
                "this machine can't run llm",
                "  linux-64, driver 570.124.06, NVIDIA H100 80GB HBM3",
                "",
                "  does not fit  driver  the driver is 470.57.02, the lock needs 525.60.13 or newer",
                "  fits          gpu     NVIDIA H100 80GB HBM3 (sm_90): torch 2.9.1 cu128 has code for it",
                "",
                "smallest change: lock torch 2.7.1 cu118",
            ],
        ),
        (
            FitReport("llm", machine(driver=None, is_described=True), (UNKNOWN, UNKNOWN)),
            [
                "it is unknown whether the described machine can run llm",
                "  linux-64, any driver, any GPU",
                "",
                "  unknown  gpu  Tesla T5: its compute capability is not known here",
                "",
                "smallest change: name it: --gpu 9.0",
            ],
        ),
        (
            FitReport("llm", machine(driver=None), ()),
            ["this machine can run llm", "  linux-64, no NVIDIA driver, no NVIDIA GPU"],
        ),
    ],
    ids=["equal GPUs once", "the smallest change", "a finding's change", "no GPU"],
)
def test_fit(fit: FitReport, lines: list[str]) -> None:
    assert fit_text(fit).splitlines() == lines


@pytest.mark.parametrize("width", [40, 60])
def test_sentences_of_fit_hang_below_their_first_line(width: int) -> None:
    lines = fit_text(FitReport("llm", machine(H100), (OLD, RUNS), OLD.change), width).splitlines()
    assert max(map(len, lines)) <= width
    first = next(place for place, line in enumerate(lines) if line.startswith("  does not fit"))
    assert re.match(r" {24}\S", lines[first + 1])
    change = next(place for place, line in enumerate(lines) if line.startswith("smallest change: "))
    assert len(lines) > change + 1 and all(re.match(r" {17}\S", line) for line in lines[change + 1 :])


def test_json_of_fit_has_every_gpu_and_finding() -> None:
    found = json.loads(report.FIT.render("json", FitReport("llm", machine(H100, H100), (OLD, RUNS, RUNS), OLD.change)))
    assert [gpu["memory_mib"] for gpu in found["machine"]["gpus"]] == [81559, 81559]
    assert [finding["verdict"] for finding in found["findings"]] == ["does not fit", "fits", "fits"]
    assert (found["verdict"], found["change"]) == ("does not fit", OLD.change)


@pytest.mark.parametrize(
    ("render", "value", "expected"),
    [
        *((amount, value, text) for value, text in [(None, "-"), (0.0, "0"), (0.0009, "0.0009"), (0.99951, "1.00")]),
        *((amount, value, text) for value, text in [(99.96, "100"), (999.4, "999"), (999.5, "1,000")]),
        *((amount, value, text) for value, text in [(-999.96, "-1,000"), (1000.0, "1,000"), (1e15, "1e+15")]),
        *((share, part, text) for part, text in [(0.0, "0 %"), (0.125, "12.5 %"), (9.99, "999 %")]),
        *((share, part, text) for part, text in [(9.996, "10 times"), (450.2, "450 times")]),
        *((size, count, text) for count, text in [(0, "0 bytes"), (999, "999 bytes"), (999_600, "1.00 MB")]),
        *((size, count, text) for count, text in [(899_755_466, "900 MB"), (5e18, "5,000 PB")]),
        *((percent, change, text) for change, text in [(0.0, "+0.0 %"), (-0.104, "-10 %"), (4.5, "+450 %")]),
    ],
)
def test_numbers(render: Callable[[Any], str], value: Any, expected: str) -> None:
    assert render(value) == expected


@pytest.mark.parametrize("form", ["text", "junit", "markdown", "html"])
def test_a_very_long_reason_is_shortened(form: str) -> None:
    """A compiler's output: GitHub accepts summaries of at most 1 MiB."""
    reason = f"C++ compile error: {'many words ' * 200_000}collect2: ld returned 1"
    found = made(check("transformer", status="failed", cause="raised", reason=reason))
    rendered = report.RECEIPT.render(form, found)
    assert len(rendered) < 200_000
    for part in ("C++ compile error", "[...]", "ld returned 1"):
        assert part in " ".join(rendered.replace("\\", "").split())
    assert reason in report.RECEIPT.render("json", found)


@pytest.mark.parametrize(("cuda", "shown"), [("12.8", "570.124.06, CUDA 12.8"), ("", "570.124.06")])
def test_a_driver_whose_cuda_is_unknown(cuda: str, shown: str) -> None:
    found = receipt(eight_gpus(), known())
    machine = found.machine.model_copy(update={"cuda_driver": cuda})
    page = report.RECEIPT.render("html", found.model_copy(update={"machine": machine}))
    assert page.count(f"<td>{shown}</td>") == 2, re.findall("<td>570.*", page)


def test_a_page_of_zeros() -> None:
    nothing = {"allocated_bytes": 0, "reserved_bytes": 0, "host_bytes": 0}
    page = report.RECEIPT.render("html", made(check("matmul", seconds=0, phases=[], peak=nothing)))
    assert "0 bytes" in page and "width: 0.00%" in page


def test_a_page_is_complete_without_anything_else() -> None:
    page = report.RECEIPT.render("html", receipt(eight_gpus(), known()))
    assert page.count('<div class="bars">') == 3
    assert not re.search(r"<(?:script|link(?! rel=\"icon\" href=\"data:,\")|img|iframe|object|embed)\b", page)
    assert not re.search(r"@import|url\(", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) == {each for each in ids if each.startswith("section")}
    used = {name for names in re.findall(r'class="(part-[a-z0-9]+)"', page) for name in names.split()}
    assert used <= set(re.findall(r"\.(part-[a-z0-9]+) \{", page))
    assert all(0 <= float(width) <= 100 for width in re.findall(r"(?:width|left): ([0-9.-]+)%;?\"", page))


def test_every_file_is_written(tmp_path: Path) -> None:
    written = report.write_receipt(receipt(eight_gpus(), known()), tmp_path / "a" / "b")
    assert {"receipt.json", "receipt.xml", "receipt.md", "receipt.html"} == {path.name for path in written}
    assert [path.name for path in written] == list(report.RECEIPT_FILES)
    assert sorted((tmp_path / "a" / "b").iterdir()) == sorted(written)


def test_a_folder_is_checked_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "receipt.json").write_text("{}")
    report.check_writable(tmp_path / "there" / "new" / "deep")
    report.check_writable(tmp_path / "there")
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "receipt.json"]


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="taken/receipts can't be written: Not a directory"):
        report.check_writable(tmp_path / "taken" / "receipts")
    with pytest.raises(UsageError, match=r"taken/receipt.json can't be written"):
        report.write_receipt(made(), tmp_path / "taken")
