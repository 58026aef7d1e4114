"""Shell scripts -> their commands, each with its line and its words.

A reader of scripts, no shell: nothing is run. Every pass is linear in the script's length, and nothing recurses. Words
stay as they are written until `expand` gives variables their values, since commands before may set them.
Source: POSIX, Shell Command Language; bash's manual for `[[`, `|&`, `&>` and `<<<`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

#: In characters: of what variables may make of one word. Values that contain each other grow without a bound.
MAX_EXPANDED: Final = 1 << 16

_OPERATOR: Final = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|()\n]")
_REDIRECTION: Final = re.compile(r"(?:\d*|\{\w+\})(<<<|<<-?|>>|>&|<&|<>|>\||&>>?|[<>](?!\())")
_PARAMETER: Final = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)(?:(?P<how>:?[-+])(?P<other>[^{}$`]*))?\})", re.ASCII
)
# Parts of a word, outside of and between double quotes.
_UNQUOTED: Final = re.compile(
    r"""(?P<plain>[^\\"'$`]+)|(?P<single>'[^']*')|(?P<double>")|(?P<escape>\\.)|(?P<parameter>[$`])|(?P<rest>.)""",
    re.DOTALL,
)
_QUOTED: Final = re.compile(
    r"""(?P<plain>[^\\"$`]+)|(?P<double>")|(?P<escape>\\.)|(?P<parameter>[$`])|(?P<rest>.)""", re.DOTALL
)
_OPENING: Final = {"$(": ")", "${": "}", "<(": ")", ">(": ")"}


class BadScript(ValueError):
    """A script that no shell reads. line: where what has no end begins."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


class Script(NamedTuple):
    """text, and (offset, line in the source) for each part of it, in ascending order."""

    text: str
    lines: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[int, str]]) -> Script:
        """parts: line in the source, and text, with its line end unless the next part continues its line."""
        lines, at = [], 0
        for line, text in parts:
            lines.append((at, line))
            at += len(text)
        return cls("".join(text for _, text in parts), tuple(lines))

    def line(self, offset: int) -> int:
        """The line in the source of a character."""
        at = bisect_right(self.lines, (offset, 1 << 62)) - 1
        return self.lines[at][1] if at >= 0 else 0


class Redirection(NamedTuple):
    """operator: `>`, `>>`, `<`, `<<`, ... target: a word as it is written. body: the lines of a here-document."""

    operator: str
    target: str
    body: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A simple command, or a word of the shell's grammar such as `then`.

    before: the operator that separates it from the one before (`&&`, `||`, `|`, `;`, `(`, ...), empty for the first.
    after: the operator behind it. words: as they are written. text: as it is written. line: of the source.
    """

    before: str
    after: str
    words: tuple[str, ...]
    text: str
    line: int
    redirections: tuple[Redirection, ...] = ()


def steps(script: Script) -> list[Step]:
    """The steps of a script.

    Raises:
        BadScript: a quote, a bracket or a here-document has no end.
    """
    return _Reader(script).steps()


class _Reader:
    """One pass over a script."""

    def __init__(self, script: Script) -> None:
        self.script, self.text, self.at = script, script.text, 0
        self.found: list[tuple[Step, list[Redirection]]] = []
        self.before = ""
        self.words: list[str] = []
        self.redirections: list[Redirection] = []
        self.start = self.end = 0
        # Here-documents whose bodies begin on the next line, each as its list and its index in there.
        self.waiting: list[tuple[list[Redirection], int]] = []

    def steps(self) -> list[Step]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char == "#":
                self.at = self._line_end()
            elif found := _REDIRECTION.match(self.text, self.at):
                self._redirection(found)
            elif found := _OPERATOR.match(self.text, self.at):
                self._operator(found[0])
            else:
                self._word()
        self._step("")
        self._bodies()
        return [replace(step, redirections=tuple(own)) for step, own in self.found]

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _take_word(self) -> str:
        begin, self.at = self.at, word_end(self.script, self.at)
        self.end = self.at
        return self.text[begin : self.at]

    def _mark(self) -> None:
        if not self.words and not self.redirections:
            self.start = self.at

    def _word(self) -> None:
        self._mark()
        self.words.append(self._take_word())

    def _redirection(self, found: re.Match[str]) -> None:
        self._mark()
        self.at = found.end()
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        each = Redirection(found[1], self._take_word())
        if each.operator in ("<<", "<<-"):
            self.waiting.append((self.redirections, len(self.redirections)))
        self.redirections.append(each)

    def _operator(self, operator: str) -> None:
        is_empty = not self._step(operator)
        self.at += len(operator)
        if operator in ("(", ")"):
            line = self.script.line(self.at - 1)
            self.found.append((Step(self.before, "", (operator,), operator, line), []))
        if operator == "\n":
            self._bodies()
        # The end of a line behind an operator continues the list: `a &&` and `b` on the next line.
        if operator != "\n" or not is_empty:
            self.before = operator

    def _step(self, after: str) -> bool:
        """What was read up to an operator; False if there is nothing."""
        if not self.words and not self.redirections:
            return False
        text = self.text[self.start : self.end]
        step = Step(self.before, after, tuple(self.words), text, self.script.line(self.start))
        self.found.append((step, self.redirections))
        self.words, self.redirections = [], []
        return True

    def _bodies(self) -> None:
        for own, index in self.waiting:
            each = own[index]
            delimiter, body = re.sub(r"[\"'\\]", "", each.target), []
            first = self.script.line(self.at - 1)
            while True:
                if self.at >= len(self.text):
                    raise BadScript(first, f"the here-document {delimiter} has no end")
                end, number = self._line_end(), self.script.line(self.at)
                line, self.at = self.text[self.at : end].rstrip("\r"), end + 1
                line = line.lstrip("\t") if each.operator == "<<-" else line
                if line == delimiter:
                    break
                body.append((number, line + "\n"))
            own[index] = each._replace(body=tuple(body))
        self.waiting = []


def word_end(script: Script, at: int) -> int:
    """Where the word ends that begins at a character: quotes, `$(...)` and `${...}` belong to it.

    Raises:
        BadScript: one of them has no end.
    """
    text, opened, begins = script.text, [""], [at]
    while at < len(text):
        char, top, width = text[at], opened[-1], 1
        if top == "'":
            end = text.find("'", at)
            if end < 0:
                break
            at, width = end, 1
            opened.pop(), begins.pop()
        elif char == "\\":
            width = 2
        elif char == top:
            opened.pop(), begins.pop()
        elif closing := _opens(text, at, top):
            opened.append(closing)
            begins.append(at)
            width = 2 if text[at : at + 2] in _OPENING else 1
        elif not top and char in " \t\r\n;&|<>()":
            return at
        at += width
    if opened[-1]:
        raise BadScript(script.line(begins[-1]), f"{text[begins[-1]]} has no end")
    return len(text)


def _opens(text: str, at: int, top: str) -> str:
    """What closes the quote or bracket that opens at a character; empty if none does. top: what closes the last one."""
    pair, char = text[at : at + 2], text[at]
    if pair in _OPENING and (top != '"' or pair[0] == "$"):
        return _OPENING[pair]
    if char in '"`' or (char == "'" and top != '"'):
        return char
    return ")" if char == "(" and top == ")" else ""


#: In place of what a word of more than MAX_EXPANDED characters has.
TOO_LONG: Final = "..."


class Expanded(NamedTuple):
    """words: with values and without quotes. unknown: what no value is known of, as it is written; it stays there.

    A word that becomes longer than MAX_EXPANDED is TOO_LONG, and TOO_LONG is unknown.
    """

    words: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Why a command or an instruction with these words can't be read, for the ledger; empty if it can."""
        if TOO_LONG in self.unknown:
            return f"it is longer than {MAX_EXPANDED} characters with the values of its variables"
        return f"the value of {', '.join(self.unknown)} is not in this file" if self.unknown else ""


def expand(words: Sequence[str], variables: Mapping[str, str | None]) -> Expanded:
    """The words of a command with the values of variables; a value outside of quotes may be several words.

    variables: of None and of those that are not in there, the value is not known.
    """
    found: list[str] = []
    unknown: list[str] = []
    for word in words:
        pieces = _pieces(word, variables, unknown)
        own = [""]
        for piece in pieces:
            own = [*own[:-1], *_joined(own[-1], piece)]
        found += [each for each in own if each] or ([] if all(piece.splits for piece in pieces) else [""])
    return Expanded(tuple(found), tuple(dict.fromkeys(unknown)))


def expand_text(text: str, variables: Mapping[str, str | None]) -> Expanded:
    """A text with the values of variables and without quotes, as one word: as Docker reads its instructions."""
    unknown: list[str] = []
    pieces = _pieces(text, variables, unknown)
    return Expanded(("".join(piece.text for piece in pieces),), tuple(dict.fromkeys(unknown)))


class _Piece(NamedTuple):
    """A part of a word. splits: whether blanks in it separate words."""

    text: str
    splits: bool = False


def _joined(last: str, piece: _Piece) -> list[str]:
    if not piece.splits:
        return [last + piece.text]
    words = piece.text.split()
    before = [last, ""] if piece.text[:1].isspace() else [last]
    after = [""] if words and piece.text[-1:].isspace() else []
    return [*before[:-1], before[-1] + words[0], *words[1:], *after] if words else before


def _pieces(word: str, variables: Mapping[str, str | None], unknown: list[str]) -> list[_Piece]:
    pieces: list[_Piece] = []
    at, size, is_quoted = 0, 0, False
    while at < len(word):
        found = next((_QUOTED if is_quoted else _UNQUOTED).finditer(word, at))
        kind, text, step = found.lastgroup, found[0], len(found[0])
        piece = _Piece(text)
        if kind == "single":
            piece = _Piece(text[1:-1])
        elif kind == "double":
            piece, is_quoted = _Piece(""), not is_quoted
        elif kind == "escape":
            kept = "\\" if is_quoted and text[1] not in '$`"\\\n' else ""
            piece = _Piece(kept + text[1].replace("\n", ""))
        elif kind == "parameter":
            value, step, is_known = _parameter(word, at, variables)
            unknown += [] if is_known else [value]
            piece = _Piece(value, splits=is_known and not is_quoted)
        pieces.append(piece)
        size, at = size + len(piece.text), at + step
        if size > MAX_EXPANDED:
            unknown.append(TOO_LONG)
            return [_Piece(TOO_LONG)]
    return pieces


def _parameter(word: str, at: int, variables: Mapping[str, str | None]) -> tuple[str, int, bool]:
    """Value, length in the word, and whether the value is known, of what begins with `$` or a backquote."""
    if found := _PARAMETER.match(word, at):
        name = found["name"] or found["braced"]
        value, how, other = variables.get(name), found["how"] or "", found["other"] or ""
        is_set = value is not None and (value != "" or ":" not in how)
        if how.endswith("+"):
            # Of a name without a known value, the base image may have one.
            return (other if is_set else "", len(found[0]), value is not None)
        if is_set and value is not None:
            return value, len(found[0]), True
        return (other if how else found[0]), len(found[0]), bool(how)
    if word[at : at + 2] in _OPENING or word[at] == "`":
        end = _closing(word, at)
    else:
        end = at + 2
        if not re.match(r"\$[\w@*#?$!-]", word[at:end], re.ASCII):
            return "$", 1, True
    return word[at:end], end - at, False


def _closing(word: str, at: int) -> int:
    """Where a substitution ends that begins at a character."""
    depth, opened = 0, word[at : at + 2]
    pair = {"$(": "()", "${": "{}"}.get(opened)
    if pair is None:
        return (word.find("`", at + 1) + 1) or len(word)
    for end in range(at + 1, len(word)):
        depth += (word[end] == pair[0]) - (word[end] == pair[1])
        if not depth:
            return end + 1
    return len(word)
