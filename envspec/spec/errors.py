"""What is wrong with a spec: all problems at once, each with its line and a hint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from envspec import credentials
from envspec.credentials import VARIABLE, channel_without_credentials, is_misread, without_credentials
from envspec.errors import EnvspecError
from envspec.escaping import cut


def quoted(text: str, limit: int = 80) -> str:
    """`text` in quotes, on one line, cut to `limit`, without credentials and characters that steer a terminal."""
    escaped = cut(credentials.shown(text), limit).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{"".join(map(_visible, escaped))}"'


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if ord(character) < 0x10000:
        return json.dumps(character)[1:-1]
    return f"\\U{ord(character):08x}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` was probably meant to be."""
    # Imported here: only a mistake needs it, and `lock --check` must stay cheap.
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


#: Where a value stands in the document: keys, and positions in lists.
KeyPath = tuple[str | int, ...]


class Problem(NamedTuple):
    """One problem of a spec; without line and key, of the whole file.

    where: the file as the user named it.
    line: counted from 1.
    key: dotted, such as `pip.dependencies[3]`.
    """

    where: str
    line: int | None
    key: str
    found: str
    hint: str

    def __str__(self) -> str:
        location = self.where if self.line is None else f"{self.where}:{self.line}"
        problem = f"{self.key}: {self.found}" if self.key else self.found
        return f"{location}: {problem}\n  hint: {self.hint}"

    def as_document(self) -> dict[str, object]:
        """For programs: message, where and hint."""
        where = {"file": self.where, "line": self.line, "key": self.key or None}
        return {"message": credentials.shown(self.found), "where": where, "hint": self.hint}


class SpecError(EnvspecError, exit_code=2, code="spec"):
    """The spec can't be used; `problems` lists all errors, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        found = sorted(problems, key=lambda each: (each.where, each.line or 0, each.key, each.found))
        self.problems = tuple(dict.fromkeys(found))
        text = "\n".join(map(str, self.problems))
        super().__init__(f"{self._count}\n{text}" if len(self.problems) > 1 else text)

    @property
    def _count(self) -> str:
        files = dict.fromkeys(each.where for each in self.problems)
        return f"{', '.join(files)}: {len(self.problems)} problems"

    def as_document(self) -> dict[str, object]:
        """With the first problem's place, and with all problems."""
        found = [each.as_document() for each in self.problems]
        first = found[0]
        whole = {**super().as_document(), **first, "problems": found}
        if len(found) > 1:
            whole["message"] = self._count
        return whole


class BadValue(ValueError):
    """A value that can't be read; the caller adds its position."""

    def __init__(self, found: str, hint: str) -> None:
        super().__init__(found)
        self.found = found
        self.hint = hint

    def hint_in(self, folder: Path | None) -> str:  # noqa: ARG002 (for those that read there)
        """The hint for a spec in `folder`; None: the spec is not a file."""
        return self.hint


class RefusedValues(EnvspecError, exit_code=2, code="spec"):
    """Values of a spec that a later stage refuses; whoever has the spec adds their places (`load.spec_error`).

    found: key, problem and hint of each.
    """

    def __init__(self, *found: tuple[KeyPath, str, str]) -> None:
        super().__init__(
            "; ".join(dict.fromkeys(problem for _, problem, _ in found)),
            hint="; ".join(dict.fromkeys(hint for *_, hint in found)),
        )
        self.found = found


def refuse_open_secrets(address: str) -> None:
    """BadValue if a URL has a secret in the wrong place, or one that is not encoded."""
    if is_misread(address):
        raise BadValue(
            f"the password in {quoted(address)} can't be separated from the address",
            "write `/`, `?`, `#` and `@` of a password as %2F, %3F, %23 and %40, or the password as `${VARIABLE}`",
        )
    if VARIABLE.search(without_credentials(address)):
        raise BadValue(
            f"{quoted(address)} has a variable outside of its login",
            "a lock must not depend on the machine: `${VARIABLE}` may be a user or a password",
        )
    userinfo = re.split(r"[/?#]", address.partition("://")[2], maxsplit=1)[0].rpartition("@")[0]
    if re.search(r"[\x00-\x1f\x7f]|%[01][0-9a-f]|%7f", userinfo, re.IGNORECASE):
        raise BadValue(f"the login in {quoted(address)} has a control character in it", "remove it")


def dotted(path: KeyPath) -> str:
    """`("pip", "dependencies", 3)` as `pip.dependencies[3]`; keys that TOML would quote are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif text:
            text += f".{_key(part)}"
        else:
            text = _key(part)
    return text


def _key(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else quoted(channel_without_credentials(part))
