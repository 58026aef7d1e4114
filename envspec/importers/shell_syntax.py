"""Shell scripts -> the commands in them, each with its line, and with why it may not run.

A reader of scripts, no shell: nothing is run and no condition is evaluated. shlex splits a command into words.
Source: POSIX, Shell Command Language; bash's manual for `[[`, `|&` and `&>`.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

#: In characters: of what variables may make of one text. Values that contain each other grow without a bound.
MAX_EXPANDED: Final = 1 << 16

_BRACKETS: Final = r"\((?:[^()]|\([^()]*\))*\)"
_COMPUTED: Final = rf"[$<>]{_BRACKETS}|`[^`]*`"
_DOUBLE: Final = rf"""\"(?:\\.|\${_BRACKETS}|\$(?!{_BRACKETS})|[^"\\$])*\""""
_QUOTED: Final = rf"'[^']*'|{_DOUBLE}"
_TOKEN: Final = re.compile(
    rf"""(?P<blank>[ \t\r]+|\\\n)
    | (?P<comment>(?<![^\s;&|()])\#[^\n]*)
    | (?P<here>(?<!<)<<(?!<)(?P<strips>-?)[ \t]*["']?(?P<name>[^\s<>"'|;&()]+)["']?)
    | (?P<function>(?<![^\s;&|(])(?:function[ \t]+[\w.-]+(?:[ \t]*\([ \t]*\))?|[\w.-]+[ \t]*\([ \t]*\)))
    | (?P<reserved>(?<![^\s;&|()])
        (?:if|then|elif|else|fi|while|until|do|done|esac|time|!|[{{}}])(?=[\s;&|()]|$))
    | (?P<operator>&&|\|\|?&?|;;?&?|\n|(?<![<>])&(?!>)|[()])
    | (?P<word>{_QUOTED}|{_COMPUTED}|\\.|[^\s'"\\$<>`;&|()\#]+|.)""",
    re.VERBOSE | re.DOTALL,
)


class Piece(NamedTuple):
    """A simple command, the head of a `for` or `case`, or a parenthesis.

    text: as it is written.
    line: of the source.
    before: the operator in front of it: `&&`, `||`, `|`, `;`, a line end; empty for the first.
    doubt: why it may not run, for a sentence: `in a branch`; empty if it runs.
    body: the lines of its here-documents, each with its number.
    grammar: `operator` for a parenthesis, `reserved` for a word such as `then`, `function` for the name of one.
    """

    text: str
    line: int
    before: str = ""
    doubt: str = ""
    body: tuple[tuple[int, str], ...] = ()
    grammar: str = ""


def commands(parts: Sequence[tuple[int, str]]) -> Iterator[Piece]:
    """The commands of a script, without the words of the shell's grammar in front of them.

    parts: line in the source, and text: with a line end, unless the next part continues its line.
    """
    flow = _Flow()
    for piece in _split(parts):
        if (command := flow.enter(piece)) is not None:
            yield command


def _split(parts: Sequence[tuple[int, str]]) -> Iterator[Piece]:
    """A script, split at its operators. Parentheses are pieces."""
    line_of = _line_of(parts)
    script = "".join(part for _, part in parts) + "\n"
    before, start, end = "", -1, 0
    for token, documents in _tokens(script):
        operator = token["operator"]
        if start < 0 and token.lastgroup in ("function", "reserved"):
            yield Piece(token[0], line_of(token.start()), before, grammar=token.lastgroup)
            if token[0] not in ("!", "time"):
                before = ""
        elif operator is None and token.lastgroup not in ("blank", "comment"):
            if start < 0:
                start = token.start()
            end = token.end()
        elif operator is not None:
            if start >= 0:
                body = tuple((line_of(offset), line) for offset, line in documents)
                yield Piece(script[start:end], line_of(start), before, body=body)
            if operator in ("(", ")"):
                yield Piece(operator, line_of(token.start()), before, grammar="operator")
            # The end of a line behind an operator continues the list: `a &&` and `b` on the next line.
            if operator != "\n" or start >= 0:
                before = operator
            start = -1


def _line_of(parts: Sequence[tuple[int, str]]) -> Callable[[int], int]:
    """The line in the source of an offset in the parts."""
    offsets: list[int] = []
    size = 0
    for _, part in parts:
        offsets.append(size)
        size += len(part)
    return lambda offset: parts[bisect_right(offsets, offset) - 1][0]


def _tokens(script: str) -> Iterator[tuple[re.Match[str], list[tuple[int, str]]]]:
    """The tokens of a script; at the end of a line, the lines of the here-documents behind it, with their offsets."""
    at = 0
    waiting: list[re.Match[str]] = []
    while at < len(script):
        token = next(_TOKEN.finditer(script, at))
        at = token.end()
        if token["here"]:
            waiting.append(token)
        body: list[tuple[int, str]] = []
        if token["operator"] == "\n":
            for each in waiting:
                at = _read_here_document(script, at, each, body)
            waiting = []
        yield token, body


def _read_here_document(script: str, at: int, start: re.Match[str], body: list[tuple[int, str]]) -> int:
    """Add the lines of a here-document; the offset behind it. One without an end takes all lines."""
    while at < len(script):
        begin, at = at, script.find("\n", at) + 1 or len(script)
        line = script[begin:at]
        if start["strips"]:
            line = line.lstrip("\t")
        if line.rstrip("\r\n") == start["name"]:
            break
        body.append((begin, line))
    return at


_DOUBTS: Final = {
    **dict.fromkeys(("if", "case"), "in a branch"),
    **dict.fromkeys(("for", "select", "while", "until"), "in a loop"),
}
_CLOSING: Final = frozenset({"fi", "done", "esac", "}"})
#: Commands whose failure does not end a build, since it decides whether others run.
_TESTS: Final = re.compile(
    r"(\[\[?|test|which|type|hash|command -v|nvidia-smi)(\s|$)|!\s|grep\b.*(\s-\w*q|/dev/null)|dpkg -[sl]", re.DOTALL
)
#: Behind `||`: what follows their `&&` runs whatever came before, or nothing does.
_SETTLES: Final = re.compile(r"(true|:|exit|return|false)(\s|$)")


class _Group(NamedTuple):
    """A construct that is not closed yet.

    word: that opens it.
    before: the operator in front of it.
    inner: why its commands may not run, also by the groups around it.
    outer: why the construct itself may not run, by the list that it is in.
    """

    word: str
    before: str
    inner: str
    outer: str


class _Flow:
    """Follows the constructs of a script.

    groups: that are open.
    doubt: why the rest of a list may not run, which `&&` and `||` join.
    last: the last command or group of the list, of which only `before` and `text` count.
    """

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.doubt = ""
        self.last = Piece("", 0)
        self._is_pattern = self._is_function = self._is_negated = False

    def enter(self, piece: Piece) -> Piece | None:
        """A command, or a parenthesis of a subshell; None for other words of the grammar."""
        if piece.before.startswith(";;"):
            self._is_pattern = True
        self._continue(piece.before)
        if piece.grammar:
            return self._enter_grammar(piece)
        if self._is_pattern:
            return None
        self.last = piece
        if self._is_negated:
            self.last = piece._replace(text=f"! {piece.text}")
            self._is_negated = False
        command = piece._replace(doubt=self._around() or self.doubt)
        if head := re.match(r"(for|select|case)\s", piece.text):
            # Its own words are names, lists and patterns.
            self._open(head[1], piece.before)
            self._is_pattern = head[1] == "case"
            return command._replace(doubt=self._around())
        return command

    def _enter_grammar(self, piece: Piece) -> Piece | None:
        word = piece.text
        if piece.grammar == "function":
            self._is_function = True
        elif word == "!":
            self._is_negated = True
        elif word in _DOUBTS or word in ("{", "("):
            self._open(word, piece.before)
        elif word in _CLOSING:
            self._close()
        elif word == ")":
            self._is_pattern = False
            if not self.groups or self.groups[-1].word != "(":
                return None
            self._close()
        return piece if word in ("(", ")") else None

    def _around(self) -> str:
        return self.groups[-1].inner if self.groups else ""

    def _continue(self, before: str) -> None:
        """Whether a command runs that follows an operator."""
        is_settled = self.last.before == "||" and _SETTLES.match(self.last.text)
        if before == "||" or (before == "&&" and _TESTS.match(self.last.text)):
            self.doubt = "after a condition"
        elif before not in ("&&", "|", "|&") or is_settled:
            self.doubt = ""

    def _open(self, word: str, before: str) -> None:
        inner = _DOUBTS.get(word, "")
        if word == "{" and self._is_function:
            inner = "in a function"
        self.groups.append(_Group(word, before, self._around() or inner or self.doubt, self.doubt))
        self.doubt, self._is_function = "", False

    def _close(self) -> None:
        self._is_pattern = False
        if self.groups:
            group = self.groups.pop()
            self.doubt = group.outer
            # A group ends as its last command does, and stands behind the operator in front of it.
            self.last = self.last._replace(before=group.before)


# Words


class Expanded(NamedTuple):
    """Words with the values of variables and without quotes.

    unknown: what no value is known of, as it is written; it stays in the words.
    outputs: files that a command writes.
    """

    words: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Why the words can't be read, for the ledger; empty if they can."""
        text = " ".join(self.words)
        unknown = [each for each in self.unknown if each in text]
        if _TOO_LONG in unknown:
            return f"it is longer than {MAX_EXPANDED} characters with the values of its variables"
        if unknown:
            return f"the value of {', '.join(unknown)} is not in this file"
        return ""


_TOO_LONG: Final = "..."
_REDIRECTION: Final = re.compile(
    rf"(?P<kept>{_QUOTED}|{_COMPUTED}|\\.)|[\d&]?(?:<<?<?-?|(?P<writes>>>?))[&|]?\s*(?P<target>(?:{_QUOTED}|[^\s<>])+)",
    re.DOTALL,
)
_PARAMETER: Final = (
    r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)(?:(?P<how>:?[-+])(?P<other>[^{}$`]*))?\})"
    rf"|(?P<computed>{_COMPUTED}|\$\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\$[\d@*#?$!-])"
)
_OUTSIDE: Final = re.compile(rf"""(?P<kept>'[^']*'|\\.)|(?P<quoted>{_DOUBLE})|{_PARAMETER}""", re.DOTALL | re.ASCII)
_INSIDE: Final = re.compile(rf"(?P<kept>\\.)|{_PARAMETER}", re.DOTALL | re.ASCII)


#: What is in quotes, or behind a backslash.
_KEPT_TOGETHER: Final = re.compile(rf"{_QUOTED}|\\.", re.DOTALL)


def _without_continuation(found: re.Match[str]) -> str:
    """Without the end of a continued line: single quotes keep it."""
    return found[0] if found[0].startswith("'") else found[0].replace("\\\n", "")


def expand(text: str, variables: Mapping[str, str | None]) -> Expanded:
    """The words of a command; a value outside of quotes may be several words.

    variables: of None and of those that are not in there, the value is not known.
    """
    outputs: list[str] = []

    def without_redirection(found: re.Match[str]) -> str:
        if found["kept"]:
            return found[0]
        if found["writes"]:
            outputs.append(found["target"])
        return " "

    values = _Values(variables)
    plain = values.put_into(_REDIRECTION.sub(without_redirection, _KEPT_TOGETHER.sub(_without_continuation, text)))
    targets = [values.put_into(each).strip("\"'") for each in outputs]
    try:
        words = shlex.split(plain)
    except ValueError:
        words = plain.split()
    return Expanded(tuple(words), tuple(dict.fromkeys(values.unknown)), tuple(targets))


def expand_text(text: str, variables: Mapping[str, str | None]) -> Expanded:
    """A text as one word, as Docker reads its instructions."""
    values = _Values(variables)
    plain = values.put_into(text)
    lexer = shlex.shlex(plain, posix=True)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = "", "", True
    try:
        word = lexer.get_token() or ""
    except ValueError:
        word = plain
    return Expanded((word,), tuple(dict.fromkeys(values.unknown)))


class _Values:
    """Puts values of variables into texts. unknown: what no value is known of."""

    def __init__(self, variables: Mapping[str, str | None]) -> None:
        self.variables = variables
        self.unknown: list[str] = []
        self.size = 0

    def put_into(self, text: str) -> str:
        """A text with values; their own quotes are escaped, so that shlex keeps them."""
        found = _OUTSIDE.sub(self._outside, text)
        return _TOO_LONG if _TOO_LONG in self.unknown else found

    def _outside(self, found: re.Match[str]) -> str:
        if found["quoted"]:
            return _INSIDE.sub(self._inside, found["quoted"])
        return found["kept"] or self._value(found, is_quoted=False)

    def _inside(self, found: re.Match[str]) -> str:
        return found["kept"] or self._value(found, is_quoted=True)

    def _value(self, found: re.Match[str], *, is_quoted: bool) -> str:
        name = found["name"] or found["braced"]
        how, other = found["how"] or "", found["other"] or ""
        value = self.variables.get(name) if name else None
        is_set = value is not None and (value != "" or ":" not in how)
        if how.endswith("+"):
            # Of a name without a known value, the base image may have one.
            value = other if is_set else (value and "")
        elif how and not is_set:
            value = other
        if value is None:
            self.unknown.append(found[0])
            value = found[0]
            if not is_quoted:
                return shlex.quote(value)
        self.size += len(value)
        if self.size > MAX_EXPANDED:
            self.unknown.append(_TOO_LONG)
            return ""
        return re.sub(r"[\\\"]" if is_quoted else r"[\\\"']", r"\\\g<0>", value)
