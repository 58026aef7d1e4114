"""What is wrong with a spec: every fault at once, each with its place and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from envspec.errors import EnvspecError
from envspec.spec.words import shown
from envspec.spec_hash import channel_without_credentials

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
