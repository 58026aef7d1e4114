"""Dockerfiles -> instructions, each with its lines: continued lines, comments between them, and here-documents.

Source: Dockerfile reference, "Parser directives" and "Here-Documents".
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

from envspec.importers.types import Import, Unreadable

#: Docker takes 127 layers; a file beyond these bounds is no Dockerfile, and reading it could take minutes.
MAX_CHARACTERS: Final = 1 << 19
MAX_INSTRUCTIONS: Final = 5_000

_DIRECTIVE: Final = re.compile(r"\s*#\s*(?P<name>\w+)\s*=\s*(?P<value>.*?)\s*")
#: A here-document, or a quoted text in which none begins.
_HERE_DOCUMENT: Final = re.compile(
    r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'|(?<![<\w])\d*<<(?P<strips>-?)(?P<quote>["']?)(?P<name>[^\s<>"'|;&()]+)(?P=quote)"""
)
_WITH_HERE_DOCUMENTS: Final = frozenset({"RUN", "COPY", "ADD"})
#: A word with its quotes.
_WORD: Final = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|\S)+""", re.DOTALL)


class Instruction(NamedTuple):
    """One instruction.

    name: in upper case.
    text: as it is written, in one line.
    line: of the file, where it begins.
    value: in one line, without the name.
    parts: number and text of each of its lines, without the name and the marks that join them; the last has a line end.
    documents: number and text of each line of its here-documents, with those that end them.
    """

    name: str
    text: str
    line: int
    value: str
    parts: tuple[tuple[int, str], ...]
    documents: tuple[tuple[int, str], ...] = ()

    @property
    def words(self) -> list[str]:
        """The words of the value, with their quotes."""
        return _WORD.findall(self.value)

    @property
    def json_words(self) -> list[str]:
        """The words of the form `["a", "b"]`; empty for the shell's form."""
        if not self.value.startswith("["):
            return []
        try:
            words = json.loads(self.value)
        except (ValueError, RecursionError):
            return []
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return words
        return []


def read_instructions(path: Path, imported: Import) -> list[Instruction]:
    """The instructions of a Dockerfile; a line that is none is one with its first word as the name.

    Raises:
        Unreadable: as `Import.read`; it is beyond the bounds, or a here-document has no end.
    """
    name = imported.shown(path)
    text = imported.read(path)
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"{name} has more than {MAX_CHARACTERS >> 10} kB")
    lines = re.split(r"\r?\n", text)
    escape = _escape(lines)
    found: list[Instruction] = []
    at = 0
    while at < len(lines):
        if _is_blank(lines[at]):
            at += 1
            continue
        if len(found) == MAX_INSTRUCTIONS:
            raise Unreadable(f"{name} has more than {MAX_INSTRUCTIONS} instructions")
        instruction, at = _instruction(name, lines, at, escape)
        found.append(instruction)
    return found


def _instruction(file: str, lines: list[str], at: int, escape: str) -> tuple[Instruction, int]:
    """The instruction that begins at an index, and the index behind it."""
    first = at + 1
    parts, at = _joined(lines, at, escape)
    text = parts[0][1].lstrip()
    word = re.split(r"\s", text, maxsplit=1)[0]
    parts[0] = (first, text[len(word) + 1 :])
    value = " ".join(part.strip() for _, part in parts).strip()
    documents: list[tuple[int, str]] = []
    for start in _HERE_DOCUMENT.finditer(value):
        if not start["name"] or word.upper() not in _WITH_HERE_DOCUMENTS:
            continue
        body, at = _here_document(lines, at, start)
        if body is None:
            raise Unreadable(f"{file}:{first}: the here-document {start['name']} has no end")
        documents += body
    return Instruction(word.upper(), f"{word} {value}", first, value, tuple(parts), tuple(documents)), at


def _is_blank(line: str) -> bool:
    """Whether a line is empty or a comment; both may stand between the lines of an instruction."""
    return not line.strip() or line.lstrip().startswith("#")


def _joined(lines: list[str], at: int, escape: str) -> tuple[list[tuple[int, str]], int]:
    """The lines of the instruction that begins at an index, and the index behind them."""
    parts: list[tuple[int, str]] = []
    while at < len(lines):
        line = lines[at]
        at += 1
        if parts and _is_blank(line):
            continue
        stripped = line.rstrip()
        if not stripped.endswith(escape):
            parts.append((at, line))
            break
        parts.append((at, stripped[:-1]))
    last, text = parts[-1]
    parts[-1] = (last, f"{text}\n")
    return parts, at


def _here_document(lines: list[str], at: int, start: re.Match[str]) -> tuple[list[tuple[int, str]] | None, int]:
    """The lines of the here-document at an index, None if it has no end; and the index behind it."""
    body: list[tuple[int, str]] = []
    while at < len(lines):
        line = lines[at].lstrip("\t") if start["strips"] else lines[at]
        at += 1
        body.append((at, f"{line}\n"))
        if line == start["name"]:
            return body, at
    return None, at


def _escape(lines: list[str]) -> str:
    """The mark that continues a line, as a directive at the top of the file may say."""
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            break
        if directive["name"].lower() == "escape" and directive["value"] in ("\\", "`"):
            return directive["value"]
    return "\\"
