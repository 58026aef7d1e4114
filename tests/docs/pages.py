"""The blocks of code on a page of the documentation, and what runs them.

A page is run from top to bottom in one folder. HTML comments on the lines before a block say how:

    <!-- file: specs/train.toml -->    write the block to that file
    <!-- exit: 4 -->                   the exit code that its last command ends with
    <!-- needs: engine -->             run it only with a container engine, or `stack`: with a torch stack
    <!-- not run: REASON -->           do not run it
    <!-- command: NAME -->             do not run it: `.ci/run` does
    <!-- servers: stop -->             stop the page's servers first; `start`: start new ones, at other addresses

`console` blocks have commands (`$ ...`, continued by `> ...`) and their output. `sh` blocks have commands that must
succeed. `python` blocks are run by the interpreter of the tests. A block of another language needs `file` or
`not run`. Commands that readers need not see are in a comment of several lines, whose first is `<!-- run`.

In an expected output, `…` stands for any text. Durations and where lines are broken do not count.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import pytest

from tests.support import preloaded

_FENCE: Final = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w-]*)(?P<info>[^`\n]*)$")
_DIRECTIVE: Final = re.compile(r"^\s*<!-- (?P<key>file|exit|needs|not run|command|servers): (?P<value>.*?) -->$")
_DURATION: Final = re.compile(r"\b\d+(?:\.\d+)?(?= (?:ms|s|min|seconds?|minutes?)\b)")
#: What a shell would do more with than start a program with words.
_SHELL: Final = re.compile(r"[|<>;&$`*?~(){}\[\]]|^\w+=")
COLUMNS: Final = 100
RUNNABLE: Final = ("console", "sh", "python")


@dataclass
class Block:
    """line: of its fence, counted from 1. end: of the closing fence. is_hidden: a comment with commands."""

    language: str
    text: str
    line: int
    end: int
    directives: dict[str, str] = field(default_factory=dict)
    is_hidden: bool = False

    @property
    def needs(self) -> str:
        return self.directives.get("needs", "")

    @property
    def is_run(self) -> bool:
        return not {"not run", "command"} & set(self.directives)

    @property
    def problem(self) -> str | None:
        """Why a test can't decide about it."""
        if self.is_hidden or self.language in RUNNABLE or "file" in self.directives or not self.is_run:
            return None
        return f"line {self.line}: a block of {self.language or 'no language'} is neither a file nor marked `not run`"


def blocks(text: str) -> list[Block]:
    """All blocks of a page, in order; directives of Sphinx (`{toctree}`) are none."""
    found: list[Block] = []
    directives: dict[str, str] = {}
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        if match := _DIRECTIVE.match(line):
            directives[match["key"]] = match["value"]
        elif line.strip() == "<!-- run":
            body, end = _until(lines, "-->")
            found.append(Block("sh", body, number, end, directives, is_hidden=True))
            directives = {}
        elif match := _FENCE.match(line):
            body, end = _until(lines, match["fence"])
            if match["info"].startswith("{"):
                continue
            found.append(Block(match["language"], textwrap.dedent(body), number, end, directives))
            directives = {}
        elif line.strip():
            directives = {}
    return found


def _until(lines: Iterator[tuple[int, str]], closing: str) -> tuple[str, int]:
    body: list[str] = []
    for number, line in lines:
        if line.strip() == closing:
            return "".join(f"{each}\n" for each in body), number
        body.append(line)
    raise ValueError(f"no {closing!r} until the end of the page")


@dataclass
class Command:
    """One command of a `console` block. output: as the page has it."""

    text: str
    output: str


def commands(console: str) -> list[Command]:
    """The commands of a block with their outputs."""
    found: list[Command] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        elif line.startswith("> ") and found and not found[-1].output and found[-1].text.endswith("\\"):
            found[-1].text += "\n" + line[2:]
        elif found:
            found[-1].output += line + "\n"
        else:
            raise ValueError(f"output without a command: {line!r}")
    return found


@dataclass
class Reader:
    """Somebody who runs a page's blocks. names: text on pages -> text on this machine. limit_s: of a command."""

    folder: Path
    environ: Mapping[str, str]
    names: Mapping[str, str]
    limit_s: float = 120

    def local(self, text: str) -> str:
        """Addresses of the page as those of this machine."""
        for public, here in self.names.items():
            text = text.replace(public, here)
        return text

    def public(self, text: str) -> str:
        """Addresses of this machine as those of the page."""
        for public, here in self.names.items():
            text = text.replace(here, public)
        return text

    def runs(self, command: str) -> tuple[int, str]:
        """Exit code and output, stderr and stdout together."""
        text = self.local(command)
        with TemporaryFile() as output:
            words = _words(text)
            if words and words[0] == "envspec" and preloaded.can_run(self.environ):
                status = preloaded.start(words[1:], self.environ, self.folder, output, output).wait(self.limit_s)
            else:
                status = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", text],
                    cwd=self.folder,
                    env=dict(self.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    check=False,
                ).returncode
            output.seek(0)
            return status, self.public(output.read().decode("utf-8", "replace"))

    def run_block(self, block: Block) -> str | None:
        """Run a block. Returns the text that it has instead; None if it is right."""
        if "file" in block.directives:
            path = self.folder / block.directives["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.local(block.text), encoding="utf-8")
            return None
        if block.language == "console":
            return self._console(block)
        if block.language == "python":
            text = f"{shlex.quote(sys.executable)} - <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK"
            self._must_end(text, self.runs(text), block)
            return None
        for command in _lines(block.text):
            self._must_end(command, self.runs(command), block)
        return None

    def _console(self, block: Block) -> str | None:
        found = commands(block.text)
        text = ""
        for number, command in enumerate(found, 1):
            ended = self.runs(command.text)
            self._must_end(command.text, ended, block, is_last=number == len(found))
            output = command.output if is_same(command.output, ended[1]) else wrapped(ended[1])
            text += f"$ {command.text}\n".replace("\\\n", "\\\n> ") + output
        return None if text == block.text else text

    def _must_end(self, command: str, ended: tuple[int, str], block: Block, *, is_last: bool = True) -> None:
        expected = int(block.directives.get("exit", "0")) if is_last else 0
        status, output = ended
        assert status == expected, f"line {block.line}: `{command}` ended with {status}, not {expected}:\n{output}"


def _words(text: str) -> list[str]:
    """The words of a command that needs no shell; empty if it does."""
    if "\n" in text.replace("\\\n", ""):
        return []
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    return [] if _SHELL.search(re.sub(r"'[^']*'|\"[^\"$`]*\"", "", text.partition(" #")[0])) else words


def _lines(text: str) -> list[str]:
    """The commands of an `sh` block: one each line if all of them start envspec, else the whole."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    return lines if all(_words(line)[:1] == ["envspec"] for line in lines) else [text]


def is_same(expected: str, actual: str) -> bool:
    """Whether an output is the expected one."""
    pattern = re.escape(_normal(expected)).replace(re.escape("…"), ".*?")
    return re.fullmatch(pattern, _normal(actual)) is not None


def _normal(text: str) -> str:
    return " ".join(_DURATION.sub("0", text).split())


def wrapped(output: str) -> str:
    """An output with lines that a page has room for."""
    lines = []
    for line in output.rstrip().splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(
            line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "".join(f"{line}\n" for line in lines)


def rewritten(text: str, changed: Mapping[int, str]) -> str:
    """The page with other texts in blocks. changed: line of the fence -> text."""
    lines = text.split("\n")
    for block in reversed(blocks(text)):
        if block.line in changed:
            indent = " " * (len(lines[block.line - 1]) - len(lines[block.line - 1].lstrip()))
            lines[block.line : block.end - 1] = [f"{indent}{line}" for line in changed[block.line].splitlines()]
    return "\n".join(lines)


def tiers(pages: Mapping[str, Path]) -> list[object]:
    """Parameters of a test: each page, by its name, with each of the machines that its blocks need."""
    found: list[object] = []
    for name, path in pages.items():
        for needs in sorted({block.needs for block in blocks(path.read_text(encoding="utf-8")) if block.is_run}):
            marks = [getattr(pytest.mark, needs)] if needs else []
            found.append(pytest.param(name, needs, id=f"{name}-{needs}" if needs else name, marks=marks))
    return found


def is_writing() -> bool:
    """Whether outputs that differ are written into the pages."""
    return bool(os.environ.get("ENVSPEC_WRITE_DOCS"))
