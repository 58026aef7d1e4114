"""Dockerfiles -> stages and instructions, each with its lines.

dockerfile-parse splits the instructions. It does not know here-documents, and ends an instruction at an empty line:
both are masked as comments before, so that lines keep their numbers, and the here-documents are attached again.
Source: Dockerfile reference; for here-documents, moby/buildkit, frontend/dockerfile/parser.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from envspec.importers.types import Import, Outcome, Source, Unreadable

#: Docker takes 127 layers; a file beyond these bounds is no Dockerfile, and reading it could take minutes.
MAX_CHARACTERS: Final = 1 << 19
MAX_INSTRUCTIONS: Final = 5_000
#: Of one instruction, without its here-documents: the parser's time grows by their square.
MAX_CONTINUED: Final = 5_000

_DIRECTIVE: Final = re.compile(r"\s*#\s*(?P<name>\w+)\s*=\s*(?P<value>.*?)\s*")
#: A here-document, or a quoted text in which none begins.
_HERE_DOCUMENT: Final = re.compile(
    r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'|(?<![<\w])\d*<<(?P<strips>-?)(?P<quote>["']?)(?P<name>[^\s<>"'|;&()]+)(?P=quote)"""
)
_WITH_HERE_DOCUMENTS: Final = frozenset({"RUN", "COPY", "ADD"})


class Instruction(NamedTuple):
    """name: in upper case. value: in one line, without the name. parts: line and text of each of its lines, without the
    name and the marks that join them; the last part has a line end. bodies: of its here-documents, each with its name.
    text: as it is written.
    """

    name: str
    line: int
    value: str
    parts: tuple[tuple[int, str], ...]
    bodies: tuple[tuple[str, tuple[tuple[int, str], ...]], ...]
    text: str


class _HereDocument(NamedTuple):
    name: str
    lines: tuple[tuple[int, str], ...]


def read_instructions(path: Path, imported: Import) -> list[Instruction]:
    """The instructions of a Dockerfile. Lines that are none get their entries here.

    Raises:
        Unreadable: as `Import.read`; it is beyond the bounds, or a here-document has no end.
    """
    name = imported.shown(path)
    text = imported.read(path)
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"{name} has more than {MAX_CHARACTERS >> 10} kB")
    lines = re.split(r"\r?\n", text)
    masked, documents = _Masking(name, lines).run()
    return _parsed(masked, documents, name, imported)


def _parsed(
    masked: list[str], documents: dict[int, list[_HereDocument]], name: str, imported: Import
) -> list[Instruction]:
    from dockerfile_parse import DockerfileParser

    # An empty line ends an instruction whose last line is continued.
    masked = [*masked, ""]
    content = "\n".join([*masked, ""]).encode()
    structure = [
        each for each in DockerfileParser(fileobj=io.BytesIO(content)).structure if each["instruction"] != "COMMENT"
    ]
    if len(structure) > MAX_INSTRUCTIONS:
        raise Unreadable(f"{name} has more than {MAX_INSTRUCTIONS} instructions")
    escape = _escape(masked)
    found: list[Instruction] = []
    covered: set[int] = set()
    for each in structure:
        first, last = each["startline"], each["endline"]
        covered.update(range(first, last + 1))
        parts = _parts(masked, first, last, escape)
        bodies = tuple((body.name, body.lines) for body in documents.get(first, ()))
        shown = " ".join(text.strip() for _, text in parts)
        text = f"{masked[first].split(maxsplit=1)[0]} {shown}"
        found.append(Instruction(each["instruction"], first + 1, shown, parts, bodies, text))
    for number, line in enumerate(masked):
        if number not in covered and line.strip() and not line.lstrip().startswith("#"):
            imported.add(Source(name, number + 1), line, Outcome.NOT_UNDERSTOOD, "no instruction of a Dockerfile")
    return found


def _parts(masked: Sequence[str], first: int, last: int, escape: str) -> tuple[tuple[int, str], ...]:
    parts: list[tuple[int, str]] = []
    for number in range(first, last + 1):
        line = masked[number]
        if number == first:
            line = re.sub(r"^\s*\S+\s?", "", line, count=1)
        elif line.lstrip().startswith("#"):
            continue
        stripped = line.rstrip()
        parts.append((number + 1, stripped[:-1] if stripped.endswith(escape) else line))
    last_line, text = parts[-1]
    return (*parts[:-1], (last_line, f"{text}\n"))


def _escape(lines: Sequence[str]) -> str:
    """The mark that continues a line, as a directive at the top of the file may say."""
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            break
        if directive["name"].lower() == "escape" and directive["value"] in ("\\", "`"):
            return directive["value"]
    return "\\"


class _Masking:
    """One pass over the lines."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name, self.lines, self.at = name, lines, 0
        self.escape = _escape(lines)
        self.documents: dict[int, list[_HereDocument]] = {}

    def run(self) -> tuple[list[str], dict[int, list[_HereDocument]]]:
        """The lines without here-documents, and these, by the index of their instruction's first line."""
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line and not line.startswith("#"):
                self._instruction()
            else:
                self.at += 1
        return self.lines, self.documents

    def _instruction(self) -> None:
        first = self.at
        parts: list[str] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if parts and not line.strip():
                self.lines[self.at] = "#"
            elif not parts or not line.lstrip().startswith("#"):
                parts.append(line)
                if not line.rstrip().endswith(self.escape):
                    self.at += 1
                    break
            self.at += 1
        if len(parts) > MAX_CONTINUED:
            raise Unreadable(f"{self.name}:{first + 1}: an instruction of more than {MAX_CONTINUED} lines")
        if parts[0].split(maxsplit=1)[0].upper() in _WITH_HERE_DOCUMENTS:
            self._here_documents(first, "\n".join(parts))

    def _here_documents(self, first: int, text: str) -> None:
        if "<<" not in text:
            return
        for found in _HERE_DOCUMENT.finditer(text):
            if not found["name"]:
                continue
            body = []
            while True:
                if self.at >= len(self.lines):
                    raise Unreadable(f"{self.name}:{first + 1}: the here-document {found['name']} has no end")
                line = self.lines[self.at]
                self.lines[self.at] = "#"
                self.at += 1
                line = line.lstrip("\t") if found["strips"] else line
                if line == found["name"]:
                    break
                body.append((self.at, f"{line}\n"))
            self.documents.setdefault(first, []).append(_HereDocument(found["name"], tuple(body)))
