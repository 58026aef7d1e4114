"""Which commands of a shell script run, as far as it follows from the script and the values of its variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from envspec.importers.shell_syntax import Step


class Runs(Enum):
    """Whether a command runs, as far as it follows from the script and its variables."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


@dataclass(slots=True)
class _Block:
    """A construct that is open. closed_by: the word that closes it. runs: its commands; None if that is not known.
    taken: whether a branch before ran. is_pattern: the next words are a pattern of `case`. around: whether the
    construct itself runs. is_condition: the next commands are the condition of `if` or `elif`.
    """

    closed_by: str
    around: Runs
    runs: bool | None = True
    taken: bool | None = False
    is_pattern: bool = False
    is_condition: bool = False


def _both(one: Runs, other: Runs) -> Runs:
    """Whether a command runs that depends on two conditions."""
    return next((each for each in (Runs.NO, Runs.MAYBE) if each in (one, other)), Runs.YES)


_CLOSERS: Final = {"if": "fi", "case": "esac", "for": "done", "select": "done", "while": "done", "until": "done"}


class Flow:
    """Follows the constructs of a script, step by step. status: of the last command: True if it succeeds, None if that
    is not known.
    """

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.status: bool | None = True
        self._runs = Runs.YES
        self._defines = self._negates = False

    @property
    def runs(self) -> Runs:
        """Whether the last step runs."""
        return self._runs

    def enter(self, step: Step) -> Step | None:
        """The command in a step, without the words of the shell's grammar; None if nothing is left."""
        words = list(step.words)
        if self.blocks and self.blocks[-1].is_pattern and words and words[0] != "esac":
            self.blocks[-1].is_pattern = words[-1] != ")"
            return None
        if step.after == "(" and len(words) == 1:
            self._defines = True
            return None
        text, self._negates = step.text, False
        while words and self._grammar(words):
            text = text[text.find(words[0]) :] if words else ""
        if self.blocks and step.after in (";;", ";&", ";;&"):
            self.blocks[-1].is_pattern = True
        if not words and not step.redirections:
            return None
        self._runs = self._judge(step.before)
        return replace(step, words=tuple(words), text=text or step.text)

    def _grammar(self, words: list[str]) -> bool:
        """Take a reserved word from the front; False if there is none."""
        word, top = words[0], (self.blocks[-1] if self.blocks else None)
        if word in _CLOSERS:
            self._open(word, words)
        elif word in ("{", "("):
            body = self._defines and word == "{"
            self.blocks.append(_Block("}" if word == "{" else ")", self._here(), runs=None if body else True))
            self._defines = self._defines and word == "("
        elif word == "function":
            self._defines = True
            words[1:] = words[2:]
        elif top is not None and word == top.closed_by:
            self.blocks.pop()
            self.status = True if top.closed_by in ("fi", "done", "esac") else self.status
        elif top is not None and top.closed_by == "fi" and word in ("then", "elif", "else"):
            self._branch(top, word)
        elif word not in ("then", "do", "!", "time", "else", "elif", "fi", "done", "esac", "}", ")"):
            return False
        elif word == "do" and top is not None and top.closed_by == "done" and top.runs is not None:
            top.runs = True
        if word == "!":
            self._negates = True
        del words[:1]
        return True

    def _open(self, word: str, words: list[str]) -> None:
        self.blocks.append(_Block(_CLOSERS[word], self._here(), runs=True if word == "if" else None))
        self.blocks[-1].is_pattern = word == "case"
        self.blocks[-1].is_condition = word == "if"
        if word in ("for", "select", "case"):
            # Their own words are names, lists and patterns, not commands.
            del words[1:]

    def _branch(self, block: _Block, word: str) -> None:
        block.is_condition = word == "elif"
        if word == "elif":
            block.runs = True if block.taken is False else (False if block.taken else None)
            return
        condition = True if word == "else" else self.status
        if block.taken is True or condition is False:
            block.runs = False
        else:
            block.runs = True if condition and block.taken is False else None
        block.taken = (
            True if block.runs or block.taken else (None if block.runs is None or block.taken is None else False)
        )

    def _here(self) -> Runs:
        """Whether the commands of the innermost construct run."""
        if not self.blocks:
            return Runs.YES
        top = self.blocks[-1]
        return _both(top.around, {True: Runs.YES, False: Runs.NO, None: Runs.MAYBE}[top.runs])

    def _judge(self, before: str) -> Runs:
        if before not in ("&&", "||") or self.status is None:
            return _both(self._here(), Runs.MAYBE if before in ("&&", "||") else Runs.YES)
        return _both(self._here(), Runs.YES if self.status == (before == "&&") else Runs.NO)

    def end(self, result: Runs | None = None) -> None:
        """The result of the command that was entered: whether it succeeds. One that does not run leaves the last's.

        result: None for a command whose failure ends the build, unless it is a condition.
        """
        if self._runs is Runs.NO:
            return
        is_condition = self._negates or bool(self.blocks and self.blocks[-1].is_condition)
        known = {Runs.YES: True, Runs.NO: False, Runs.MAYBE: None, None: None if is_condition else True}[result]
        if self._negates and known is not None:
            known = not known
        self.status = known if self._runs is Runs.YES else None


def result_of_test(words: Sequence[str], unknown: Sequence[str]) -> Runs:
    """Whether `test`, `[` and `[[` succeed where it follows from the words; MAYBE if it depends on the machine."""
    inner = [word for word in words[1:] if word not in ("]", "]]")]
    is_negated = inner[:1] == ["!"]
    result = None if unknown else _test(inner[1:] if is_negated else inner, has_patterns=words[0] == "[[")
    if result is None:
        return Runs.MAYBE
    return Runs.YES if result != is_negated else Runs.NO


def _test(words: Sequence[str], *, has_patterns: bool) -> bool | None:
    """has_patterns: of `[[`, where the right side of a comparison is a pattern."""
    result: bool | None = None
    match words:
        case [left, "=" | "==" | "!=" as operator, right]:
            is_same = fnmatchcase(left, right) if has_patterns else left == right
            result = is_same == (operator != "!=")
        case ["-n" | "-z" as operator, *rest] if len(rest) < 2:
            result = bool("".join(rest)) == (operator == "-n")
        case [text] if not text.startswith("-"):
            result = bool(text)
    return result
