"""What holds for every requirements file and every constraint of Poetry's."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.importers import new_import
from envspec.importers.poetry import specifier_of
from envspec.importers.requirements import read_requirements
from envspec.importers.types import Import
from envspec.spec.requirements import read_constraint, read_requirement
from tests.support.tries import tries

PIECES = st.sampled_from(
    [
        *(
            "torch",
            "numpy",
            "==",
            ">=",
            "<",
            "~=",
            "1.0",
            "2.6.0+cu124",
            "[",
            "]",
            "extra",
            ";",
            "sys_platform",
            "'linux'",
        ),
        *(
            "@",
            "git+https://example.com/a/b.git",
            "https://example.com/a-1-py3-none-any.whl",
            "#egg=a",
            "./",
            "../x",
            ".",
        ),
        *(
            "-r",
            "-c",
            "-e",
            "-f",
            "-i",
            "--pre",
            "--hash=sha256:ab",
            "--no-binary",
            "--x",
            "=",
            ",",
            "\\",
            "#",
            " ",
            "${A}",
        ),
        *("'", '"', "*", "pip install", "\t", "é", "\x00", "requirements.txt", "file:///x", "~", "(", ")"),
    ]
)
LINES = st.lists(st.lists(PIECES, max_size=7).map(" ".join) | st.lists(PIECES, max_size=5).map("".join), max_size=8)


def imported(text: str, folder: Path) -> Import:
    path = folder / "requirements.txt"
    path.write_text(text, encoding="utf-8", newline="")
    found = new_import(folder)
    found.run(read_requirements, path)
    return found


def logical(text: str) -> dict[int, str]:
    """The lines with a meaning by the number of their first, as pip's documentation describes them."""
    found, parts, first = dict[int, str](), "", 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        first = first if parts else number
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            parts += line.rstrip("\\") or " "
            continue
        whole = re.sub(r"(^|\s)#.*", "", parts + line)
        if whole.strip():
            found[first] = whole
        parts = ""
    return found


@given(LINES)
@settings(max_examples=tries(300), deadline=None)
def test_no_line_is_without_an_entry_and_the_draft_is_readable(lines: list[str]) -> None:
    text = "\n".join(lines)
    with TemporaryDirectory() as scratch:
        found = imported(text, Path(scratch))
    entries = {entry.source.line for entry in found.ledger if entry.source.line}
    # Lines of blanks that were continued have no text either.
    assert entries == set(logical(text))
    for each in found.draft.dependencies:
        read_requirement(each.text.replace("{path}", "./project"))
    for each in found.draft.constraints:
        read_constraint(each.text)


NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


def upper(operator: str, numbers: list[int]) -> tuple[int, ...]:
    """The first release that is not allowed. Source: Poetry's documentation, "Dependency specification"."""
    if operator == "~":
        kept = numbers[:2]
    else:
        zeros = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
        kept = numbers[: zeros + 1]
    return (*kept[:-1], kept[-1] + 1)


@given(st.sampled_from("^~"), NUMBERS, st.lists(st.integers(0, 4), min_size=3, max_size=3))
@settings(max_examples=tries(300))
def test_carets_and_tildes(operator: str, numbers: list[int], release: list[int]) -> None:
    specifier = SpecifierSet(specifier_of(operator + ".".join(map(str, numbers))))
    lower = (*numbers, *[0] * (3 - len(numbers)))
    end = upper(operator, numbers)
    is_allowed = lower <= tuple(release) < (*end, *[0] * (3 - len(end)))
    assert specifier.contains(Version(".".join(map(str, release)))) == is_allowed


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh"), max_size=3), min_size=1))
@settings(max_examples=tries(100), deadline=None)
def test_a_compiled_file_says_what_is_required_directly(requires: dict[str, set[str]]) -> None:
    # Each package that no other one requires is from the file that was compiled.
    names = sorted(requires.keys() | {each for needs in requires.values() for each in needs})
    by = {name: sorted(one for one, needs in requires.items() if name in needs and one != name) for name in names}
    text = ""
    for number, name in enumerate(names):
        items = by[name] or ["-r requirements.in"]
        via = f"    # via {items[0]}" if len(items) == 1 else "\n".join(["    # via", *(f"    #   {x}" for x in items)])
        text += f"{name}==1.{number} \\\n    --hash=sha256:{'0' * 64}\n{via}\n"
    with TemporaryDirectory() as scratch:
        found = imported(text, Path(scratch))
    pins = {name: f"1.{number}" for number, name in enumerate(names)}
    assert [each.text for each in found.draft.dependencies] == [
        f"{each}=={pins[each]}" for each in names if not by[each]
    ]
    assert found.draft.versions == {name: pin for name, pin in pins.items() if by[name]}
