"""What is wrong with a spec: every fault at once, each with its place and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from envspec.credentials import VARIABLE, channel_without_credentials, is_misread, without_credentials
from envspec.errors import EnvspecError
from envspec.spec.words import shown

#: Where a value stands in the document: keys, and positions in lists.
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    where: the file as the user named it. line: counted from 1, None when the fault is the whole file's.
    key: dotted, such as `pip.dependencies[3]`, empty when the fault is the whole file's.
    """

    where: str
    line: int | None
    key: str
    found: str
    hint: str

    def __str__(self) -> str:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        what = f"{self.key}: {self.found}" if self.key else self.found
        return f"{place}: {what}\n  hint: {self.hint}"


class SpecError(EnvspecError):
    """A spec that can't be used; `faults` are in the order of the file."""

    exit_code: ClassVar[int] = 2

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: (fault.line or 0, fault.key, fault.found)))
        told = "\n".join(map(str, self.faults))
        many = len(self.faults) > 1
        super().__init__(f"{self.faults[0].where}: {len(self.faults)} faults\n{told}" if many else told)


class BadValue(ValueError):
    """A value that can't be read, told without its place: the caller knows that."""

    def __init__(self, found: str, hint: str) -> None:
        super().__init__(found)
        self.found = found
        self.hint = hint


def refuse_open_secrets(address: str) -> None:
    """BadValue if a URL has a secret where it can't be told from the rest: in the wrong place, or not encoded."""
    if is_misread(address):
        raise BadValue(
            f"the password in {shown(address)} can't be told from the address",
            "write `/`, `?`, `#` and `@` of a password as %2F, %3F, %23 and %40, or the password as `${VARIABLE}`",
        )
    if VARIABLE.search(without_credentials(address)):
        raise BadValue(
            f"{shown(address)} has a variable outside of its login",
            "a lock must not depend on the machine: `${VARIABLE}` may be a user or a password",
        )
    userinfo = re.split(r"[/?#]", address.partition("://")[2], maxsplit=1)[0].rpartition("@")[0]
    if re.search(r"[\x00-\x1f\x7f]|%[01][0-9a-f]|%7f", userinfo, re.IGNORECASE):
        raise BadValue(f"the login in {shown(address)} has a control character in it", "write the login alone")


def dotted(path: KeyPath) -> str:
    """`("pip", "dependencies", 3)` as `pip.dependencies[3]`; keys that TOML would quote are quoted."""
    told = ""
    for part in path:
        if isinstance(part, int):
            told += f"[{part}]"
        else:
            told += f".{_key(part)}" if told else _key(part)
    return told


def _key(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else shown(channel_without_credentials(part))
