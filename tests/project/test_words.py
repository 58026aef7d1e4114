"""Texts for people are plain technical English: phrases that cost a reader a second look stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from envspec.cli.main import cli
from tests.support.user import ROOT

PHRASES: Final = ("told", "is asked", "has not", "goes with", "where left out", "what becomes of")
_PHRASE: Final = re.compile("|".join(rf"\b{phrase}\b" for phrase in PHRASES).replace(" ", r"\s+"), re.IGNORECASE)
#: Output of commands, as they print it.
_OUTPUT: Final = re.compile(r"^(`{3,})(?:console|text|markdown)$.*?^\1$", re.MULTILINE | re.DOTALL)
_PATTERNS: Final = ("*.md", "docs/**/*.md", "specs/*.toml", "pyproject.toml", ".ci/*", ".github/**/*.*")
TEXTS: Final = sorted({path for pattern in _PATTERNS for path in ROOT.glob(pattern) if path.suffix != ".cjs"})

#: Packages and modules of envspec/ whose texts and docstrings are in plain words already.
PLAIN: Final = (
    *("base_image", "facts", "lockfile", "receipts", "spec", "diagnostics/explain.py"),
    *("credentials.py", "documents.py", "errors.py", "escaping.py", "models.py", "names.py", "origins.py"),
)
MODULES: Final = sorted(
    path
    for name in PLAIN
    for path in ((ROOT / "envspec" / name).rglob("*.py") if "." not in name else [ROOT / "envspec" / name])
)


def found(text: str) -> list[str]:
    return [" ".join(match.split()) for match in _PHRASE.findall(text)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_is_in_plain_words(path: Path) -> None:
    assert found(_OUTPUT.sub("", path.read_text(encoding="utf-8"))) == []


def texts_of(source: str) -> list[str]:
    """The string literals of a module, docstrings and the texts of f-strings among them."""
    nodes = ast.walk(ast.parse(source))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_in_plain_words(path: Path) -> None:
    assert {text: words for text in texts_of(path.read_text(encoding="utf-8")) if (words := found(text))} == {}


def helps(command: click.Command, *names: str) -> Iterator[tuple[str, str]]:
    """Each command with its help text."""
    context = click.Context(command, info_name=" ".join(names))
    yield context.info_name or "", command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below, *names, name)


def test_help_is_in_plain_words() -> None:
    assert {name: words for name, text in helps(cli, "envspec") if (words := found(text))} == {}
