"""Reasons and their words."""

from __future__ import annotations

import ast
from string import Formatter

import pytest

from envspec.reasons import WORDS, Reason, has_code, reason, words
from tests.support.user import ROOT

#: Keys of a reason in a lock and in JSON that are no values.
RESERVED = {"code", "because", "text"}


def codes_in_source() -> set[str]:
    """Every text in envspec/ that could be a code."""
    found: set[str] = set()
    for path in (ROOT / "envspec").rglob("*.py"):
        if path.name != "reasons.py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found.update(
                each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
    return found


def test_values_have_keys_of_their_own() -> None:
    for code in WORDS:
        assert not placeholders(code) & RESERVED, code


def test_each_row_is_used() -> None:
    # These codes are made of two parts.
    parts = {
        *(f"digest-{source}" for source in ("recorded", "registry", "spec", "unresolved")),
        *(f"{what}-{packages}" for what in ("not-in", "image-brings") for packages in ("wheels", "packages")),
        *(f"no-cuda-{kind}" for kind in ("wheel", "package")),
        *(f"image-{which}-minor-cudnn" for which in ("nearest", "newest")),
    }
    assert WORDS.keys() - codes_in_source() - parts == set()


def placeholders(code: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(WORDS[code]) if name is not None}


def test_each_call_gives_the_values_of_its_words() -> None:
    for path in (ROOT / "envspec").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "reason" or not call.args:
                continue
            code, names = call.args[0], {each.arg for each in call.keywords}
            if isinstance(code, ast.Constant) and None not in names:
                assert names == placeholders(str(code.value)), (path, call.lineno)


def test_words() -> None:
    why = (
        reason("in-spec"),
        reason("years-old", (reason("yanked"),), package="x", version="1", month="2020-01", newer=2),
    )
    assert words(why) == "set in the spec; x 1 is from 2020-01; 2 was not selected: it was yanked"
    assert has_code(why, "yanked", "in-spec") and not has_code(why, "yanked")


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Reason("of-a-newer-envspec", (("package", "x"),)), "of-a-newer-envspec package=x"),
        (Reason("is-cuda", (("package", "x"),)), "is-cuda package=x"),
        (reason("is-cuda", package="{cuda}", cuda="{0}"), "{cuda} is CUDA {0}"),
    ],
    ids=["unknown code", "a value is missing", "braces"],
)
def test_words_of_a_lock_that_somebody_else_wrote(one: Reason, text: str) -> None:
    assert str(one) == text
