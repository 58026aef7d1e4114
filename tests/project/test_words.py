"""Texts for people are plain technical English: phrases that cost a reader a second look stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from envspec.cli.main import cli
from tests.support.user import ROOT

#: In no text: documents, help texts, docstrings, messages, comments of configuration.
PHRASES: Final = ("told", "is asked", "has not", "goes with", "where left out", "what becomes of")
#: In no document, message and help text. A regular expression each; a blank stands for any white space.
READER_PHRASES: Final = (
    *PHRASES,
    r"tells?|telling|asks?|asked|asking|hears?|heard",
    r"holds?|held|holding|lies?|lay",
    r"becomes? of|go(es)? with|but for|nothing but|let go|at hand|to be had|without a word",
    r"whoever|whence|thereof|anew|mend(s|ed)?",
    r"doors?|workshops?|wards?|conveyors?|houses?|halves|(conda|pypi) half",
    r"worlds?(?![ -]size)",
)
#: Written by programs, with names of findings, cases and projects as they are.
GENERATED: Final = ("gpu-coverage.md", "hostile-archives.md", "extensions.md", "cuda-extensions.md")
#: Output of commands, as they print it.
_OUTPUT: Final = re.compile(r"^(`{3,})(?:console|text|markdown)$.*?^\1$", re.MULTILINE | re.DOTALL)
#: Code in blocks and lines.
_CODE: Final = re.compile(r"^ *(`{3,}).*?^ *\1$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_PAGES: Final = ("*.md", "docs/**/*.md", "envspec/data/errors/*.md", "bench/**/README.md")
_TEXTS: Final = (
    *("*.md", "docs/**/*.md", "specs/*.toml", "pyproject.toml", ".ci/*", ".github/**/*.*"),
    *("tests/**/*.toml", "tests/**/*.txtar"),
)
_MODULES: Final = ("envspec/**/*.py", "tests/**/*.py", "bench/**/*.py")


def found(text: str, phrases: Iterable[str] = PHRASES) -> list[str]:
    pattern = "|".join(rf"\b(?:{phrase})\b" for phrase in phrases).replace(" ", r"\s+")
    return [" ".join(match[0].split()) for match in re.finditer(pattern, text, re.IGNORECASE)]


def files(*patterns: str) -> dict[str, str]:
    """Path -> text of the project's files; this one has the phrases."""
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)} - {Path(__file__).resolve()}
    return {str(path.relative_to(ROOT)): path.read_text("utf-8", "replace") for path in sorted(paths) if path.is_file()}


def test_documents_are_in_plain_words() -> None:
    assert {path: words for path, text in files(*_TEXTS).items() if (words := found(_OUTPUT.sub("", text)))} == {}


def test_pages_are_in_plain_words() -> None:
    pages = {path: _CODE.sub("", text) for path, text in files(*_PAGES).items() if Path(path).name not in GENERATED}
    assert {path: words for path, text in pages.items() if (words := found(text, READER_PHRASES))} == {}


def texts_of(source: str, *, docstrings: bool = True) -> str:
    """The string literals of a module, the texts of f-strings among them."""
    nodes = list(ast.walk(ast.parse(source)))
    left_out = set() if docstrings else {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in left_out]
    return "\n\n".join(node.value for node in texts if isinstance(node.value, str))


def test_modules_are_in_plain_words() -> None:
    assert {path: words for path, source in files(*_MODULES).items() if (words := found(texts_of(source)))} == {}


def test_messages_are_in_plain_words() -> None:
    """Reasons in locks and names of findings too. A scale is halved: that is what the word means."""
    sources = files("envspec/**/*.py").items()
    texts = {path: texts_of(source, docstrings=False).replace("halves the scale", "") for path, source in sources}
    assert {path: words for path, text in texts.items() if (words := found(text, READER_PHRASES))} == {}


def test_facts_are_in_plain_words() -> None:
    tables = files("envspec/data/*.toml").items()
    assert {path: words for path, text in tables if (words := found(text, READER_PHRASES))} == {}


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
    assert {name: words for name, text in helps(cli, "envspec") if (words := found(text, READER_PHRASES))} == {}
