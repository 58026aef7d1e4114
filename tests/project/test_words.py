"""Texts for people are plain technical English: phrases that cost a reader a second look stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from envspec.cli.main import cli
from tests.support.user import ROOT

PHRASES: Final = ("told", "is asked", "has not", "goes with", "where left out", "what becomes of")
_PHRASE: Final = re.compile("|".join(rf"\b{phrase}\b" for phrase in PHRASES).replace(" ", r"\s+"), re.IGNORECASE)
#: Output of commands, as they print it.
_OUTPUT: Final = re.compile(r"^(`{3,})(?:console|text|markdown)$.*?^\1$", re.MULTILINE | re.DOTALL)
_TEXTS: Final = ("*.md", "docs/**/*.md", "specs/*.toml", "pyproject.toml", ".ci/*", ".github/**/*.*", "tests/**/*.toml")
_MODULES: Final = ("envspec/**/*.py", "tests/**/*.py", "bench/**/*.py")


def found(text: str) -> list[str]:
    return [" ".join(match.split()) for match in _PHRASE.findall(text)]


def files(*patterns: str) -> dict[str, str]:
    """Path -> text of the project's files; this one has the phrases."""
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)} - {Path(__file__).resolve()}
    return {str(path.relative_to(ROOT)): path.read_text("utf-8", "replace") for path in sorted(paths) if path.is_file()}


def test_documents_are_in_plain_words() -> None:
    assert {path: words for path, text in files(*_TEXTS).items() if (words := found(_OUTPUT.sub("", text)))} == {}


def texts_of(source: str) -> str:
    """The string literals of a module: docstrings and the texts of f-strings among them."""
    nodes = ast.walk(ast.parse(source))
    return "\n\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_modules_are_in_plain_words() -> None:
    assert {path: words for path, source in files(*_MODULES).items() if (words := found(texts_of(source)))} == {}


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
