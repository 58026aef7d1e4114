"""Each class of error has its code, and each code its page in data/errors."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import envspec
from envspec.diagnostics.error_pages import PAGES, error_page
from envspec.errors import EnvspecError
from tests.support.user import User, refused, succeeded

#: Modules of programs that run elsewhere: in an image, in a container, in another process.
ELSEWHERE: Final = re.compile(
    r"envspec\.(conformance|verifier|image\.runtime)\..*|.*\.(__main__|\w+_worker|\w+_script|confine_init)"
)
#: Classes with the code of their parent, and why.
INHERITED: Final = {
    "ArchiveMissing": "one kind of damaged-cache",
    "CondaUnsolvable": "the solver's form of no-solution",
    "LimitsRefused": "caught: the container is created again without the limits",
    "NeedsCompiler": "reported for all packages together, as needs-sdist",
    "OtherPackage": "one kind of wrong-wheel; `init` catches it and takes the name of the wheel",
    "RefusedLines": "reported with the lines of the spec, as spec",
    "RequestError": "its kinds have codes; any other is network",
    "SharedChannelError": "the error of another request of the same run",
    "UnknownPython": "reported with the line of the spec, as spec",
    "UnsafeName": "too rare for a page: network",
    "Unsolvable": "the resolver's form of no-solution",
    "WrongArchive": "one kind of wrong-hash",
}
#: Codes whose error is not printed as one.
SILENT: Final = {"interrupted"}
HEADINGS: Final = ["## Meaning", "## Example", "## What to do"]
CODES: Final = sorted(path.stem for path in PAGES.glob("*.md"))


@cache
def classes() -> tuple[type[EnvspecError], ...]:
    """All classes of errors."""
    for module in pkgutil.walk_packages(envspec.__path__, "envspec."):
        if not ELSEWHERE.fullmatch(module.name):
            importlib.import_module(module.name)
    return (EnvspecError, *_below(EnvspecError))


def _below(parent: type[EnvspecError]) -> Iterator[type[EnvspecError]]:
    for each in parent.__subclasses__():
        if each.__module__.startswith("envspec."):
            yield each
            yield from _below(each)


def text_of(code: str) -> str:
    return (PAGES / f"{code}.md").read_text(encoding="utf-8")


def test_every_class_has_a_code_and_every_code_a_page() -> None:
    assert {each.code for each in classes()} == set(CODES)


def test_classes_with_the_code_of_their_parent() -> None:
    assert {each.__name__ for each in classes() if "code" not in vars(each)} == set(INHERITED)


@pytest.mark.parametrize("code", CODES)
def test_a_page(code: str) -> None:
    text = text_of(code)
    assert text.startswith(f"# {code}\n\n")
    assert re.findall("^## .*$", text, re.MULTILINE) == HEADINGS
    page = error_page(code)
    assert page.summary.endswith(".") and "](" not in page.text
    assert {each.exit_code for each in classes() if each.code == code} == {page.exit_code}
    example = text[text.index("## Example") : text.index("## What to do")]
    assert code in SILENT or f"more: envspec explain-error {code}\n" in example
    assert re.search("^- ", text[text.index("## What to do") :], re.MULTILINE)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path, "http://127.0.0.1:9/")


def test_a_page_is_printed(user: User) -> None:
    ran = succeeded(user.runs("explain-error", "no-solution"))
    assert ran.stdout.startswith("# no-solution\n") and "<!--" not in ran.stdout and "](" not in ran.stdout
    document = json.loads(succeeded(user.runs("explain-error", "no-solution", "--format", "json")).stdout)
    assert (document["code"], document["exit_code"]) == ("no-solution", 4)
    assert document["text"].startswith("# no-solution\n")


def test_all_codes_are_listed(user: User) -> None:
    lines = succeeded(user.runs("explain-error")).stdout.splitlines()
    assert [line.split()[0] for line in lines] == CODES
    document = json.loads(succeeded(user.runs("explain-error", "--format", "json")).stdout)
    assert [each["code"] for each in document["errors"]] == CODES


def test_an_unknown_code_gets_a_suggestion(user: User) -> None:
    assert "did you mean 'no-solution'?" in refused(user.runs("explain-error", "no-solutions"), 2)
    assert "`envspec explain-error` lists all codes" in refused(user.runs("explain-error", "zzz"), 2)
