"""The first lines of envspec.lock: the seal over all that follows, and the head that `--check` reads alone.

    # envspec.lock: written by `envspec lock`; change the spec, not this file. sha256:<of every byte after this line>
    format = 1
    ...
    [files]
    "requirements.linux-64.txt" = "<sha256>"
    # end of the head

Nothing here needs the rest of the document, and nothing heavy is imported: this is on the way of `--check`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from envspec import toml
from envspec.errors import StaleLock
from envspec.names import NAME

#: The document of record in a lock's folder.
LOCK_FILE: Final = "envspec.lock"
#: The form of the document that this envspec writes and reads.
FORMAT: Final = 1
#: The oldest envspec that reads FORMAT; written into the document, so that an older one can name it.
NEEDS: Final = "envspec>=0.1"

_WORDS: Final = f"# {LOCK_FILE}: written by `envspec lock`; change the spec, not this file. sha256:"
_MARKER: Final = "# end of the head"
_SEALED: Final = re.compile(rb"# envspec\.lock: [^\n]* sha256:([0-9a-f]{64})\r?\n")
# git's own, and diff3's `|||||||`. No line that dump() writes begins so: every value stays on the line of its key.
_CONFLICT: Final = re.compile(rb"^(?:<{7}|\|{7}|={7}|>{7})(?: |\r?$)", re.MULTILINE)
_FORMAT: Final = re.compile(rb"^format = (\d{1,9})\r?$", re.MULTILINE)
_PART: Final = re.compile(r"(.+): (\d+) rows, sha256:([0-9a-f]{64})", re.DOTALL)
_NEEDS: Final = re.compile(rb'^needs = "([A-Za-z0-9.>=<, -]{1,60})"\r?$', re.MULTILINE)


class Part(NamedTuple):
    """A channel of which only some rows were at hand when the lock was made: how many, and their files' SHA-256."""

    channel: str
    rows: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.channel}: {self.rows} rows, sha256:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> Part:
        found = _PART.fullmatch(text)
        if not found:
            raise ValueError(f"not the part of a channel: {text!r}")
        return cls(found[1], int(found[2]), found[3])


class Head(NamedTuple):
    """What a check needs to know of a lock. files: name -> SHA-256 of the other files that envspec wrote beside it.

    parts: of the channels that were not at hand whole.
    """

    format: int
    name: str
    input_sha256: str
    as_of: datetime
    facts: str
    gpus: tuple[str, ...]
    files: Mapping[str, str]
    parts: tuple[Part, ...] = ()


class DamagedLock(StaleLock):
    """envspec.lock is not, byte for byte, what envspec wrote."""


class NewerFormat(StaleLock):
    """envspec.lock was written by an envspec whose form of the document this one does not read."""


def seal(head: str, rest: str) -> str:
    """The whole document from the TOML of its head and of the rest; both end with a line feed."""
    body = f"{head}{_MARKER}\n{rest}"
    return f"{_WORDS}{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def unseal(data: bytes, where: str) -> tuple[Head, bytes]:
    """The head, and the bytes of the whole TOML document, once the seal is found whole.

    Raises:
        NewerFormat: the document's format is not FORMAT.
        DamagedLock: merge-conflict markers, changed line ends, a change by hand, or no lock at all; says which.
    """
    if _CONFLICT.search(data):
        raise DamagedLock(
            f"{where} holds merge-conflict markers",
            hint="take one side whole (`git checkout --ours` or `--theirs` on its folder), settle the spec, "
            "then run `envspec lock SPEC`",
        )
    _refuse_other_formats(data, where)
    sealed = _SEALED.match(data)
    marker = data.find(f"\n{_MARKER}\n".encode())
    if sealed and hashlib.sha256(data[sealed.end() :]).hexdigest() == sealed[1].decode() and marker >= 0:
        return _read(data[sealed.end() : marker + 1], where), data[sealed.end() :]
    if b"\r\n" in data:
        raise DamagedLock(
            f"{where} has Windows line ends, so its hash no longer holds",
            hint="let git leave them alone: put `locks/** -text` into .gitattributes and check the folder out again",
        )
    if not sealed:
        raise DamagedLock(
            f"{where} does not begin with the line that envspec writes",
            hint="run `envspec lock SPEC` to write it again, or restore it from version control",
        )
    raise DamagedLock(
        f"{where} was changed after envspec wrote it: the SHA-256 in its first line is not that of the rest",
        hint="change the spec instead and run `envspec lock SPEC`, or restore the file from version control",
    )


def _refuse_other_formats(data: bytes, where: str) -> None:
    found = _FORMAT.search(data)
    if not found or int(found[1]) == FORMAT:
        return
    needs = _NEEDS.search(data)
    wants = needs[1].decode() if needs else "another envspec"
    raise NewerFormat(
        f"{where} has format {int(found[1])}; this envspec reads format {FORMAT}",
        hint=f"it was written for {wants}: install that, or write the lock again with this one by `envspec lock SPEC`",
    )


def _read(head: bytes, where: str) -> Head:
    try:
        data: dict[str, Any] = toml.loads(head.decode())
        name = str(data["name"])
        if not NAME.fits(name):
            raise ValueError(f"`name` is not {NAME.words}: {name!r}")
        return Head(
            format=int(data["format"]),
            name=name,
            input_sha256=str(data["input_sha256"]),
            as_of=_moment(data["as_of"]),
            facts=str(data["facts"]),
            gpus=tuple(str(gpu) for gpu in data["gpus"]),
            files={str(name): str(digest) for name, digest in data["files"].items()},
            parts=tuple(Part.parse(text) for text in data.get("parts", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise DamagedLock(
            f"{where}: its head can't be read ({type(fault).__name__}: {fault})",
            hint="run `envspec lock SPEC` to write it again, or restore it from version control",
        ) from fault


def _moment(value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("as_of is not a moment with a time zone")
    return value
