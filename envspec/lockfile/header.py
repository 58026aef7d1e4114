"""The first lines of envspec.lock: the checksum of all that follows, and the header that `--check` reads alone.

    # envspec.lock: written by `envspec lock`; edit the spec, not this file. sha256:<of every byte after this line>
    format = 3
    ...
    [files]
    "requirements.linux-64.txt" = "<sha256>"
    # end of header

Nothing here needs the rest of the document, and nothing heavy is imported: `--check` imports it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from envspec import documents
from envspec.errors import StaleLock
from envspec.names import NAME, SHA256

#: The document of record in a lock's folder.
LOCK_FILE: Final = "envspec.lock"
#: The format of the document that this envspec writes and reads.
FORMAT: Final = 3
#: The versions of envspec that read FORMAT; written into the document, so that an older one can name them.
REQUIRES: Final = ">=0.1"
#: Texts that are left out if they are empty.
OPTIONAL: Final = ("as_of_spec", "spec", "base_sha256")
#: What to do about a damaged lock.
RESTORE: Final = "run `envspec lock SPEC` to write it again, or restore it from version control"

_FIRST_LINE: Final = f"# {LOCK_FILE}: written by `envspec lock`; edit the spec, not this file. sha256:"
_END: Final = "# end of header"
_CHECKSUM: Final = re.compile(rb"# envspec\.lock: [^\n]* sha256:([0-9a-f]{64})\r?\n")
# git's own, and diff3's `|||||||`. No line that dump() writes begins so: every value stays on the line of its key.
_CONFLICT: Final = re.compile(rb"^(?:<{7}|\|{7}|={7}|>{7})(?: |\r?$)", re.MULTILINE)
_FORMAT: Final = re.compile(rb"^format = (\d{1,9})\r?$", re.MULTILINE)
_REQUIRES: Final = re.compile(rb'^requires_envspec = "([0-9.>=<, -]{1,60})"\r?$', re.MULTILINE)


class PartialChannel(NamedTuple):
    """A channel of which the lock used a part: the number of its records, and the SHA-256 of their files."""

    name: str
    records: int
    sha256: str


class Header(NamedTuple):
    """What a check needs to know of a lock. files: name -> SHA-256 of the other files that envspec wrote beside it."""

    format: int
    name: str
    input_sha256: str
    as_of: datetime
    facts: str
    gpus: tuple[str, ...]
    files: Mapping[str, str]
    partial_channels: tuple[PartialChannel, ...] = ()
    as_of_spec: str = ""
    spec: str = ""
    base_sha256: str = ""


class DamagedLock(StaleLock, code="damaged-lock"):
    """envspec.lock is not, byte for byte, what envspec wrote."""


class NewerFormat(StaleLock, code="newer-lock-format"):
    """envspec.lock has a format that this envspec does not read."""


def add_checksum(header: str, rest: str) -> str:
    """The whole document from the TOML of its header and of the rest; both end with a line feed."""
    body = f"{header}{_END}\n{rest}"
    return f"{_FIRST_LINE}{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def verify_checksum(data: bytes, where: str) -> tuple[Header, bytes]:
    """The header and the bytes of the whole TOML document, if the checksum is right. where: the lock's name in errors.

    Raises:
        NewerFormat: the document's format is not FORMAT.
        DamagedLock: merge-conflict markers, changed line ends, a change by hand, or no lock at all; says which.
    """
    if _CONFLICT.search(data):
        raise DamagedLock(
            f"{where} contains merge-conflict markers",
            hint="use one whole side (`git checkout --ours` or `--theirs` on its folder), resolve the spec, "
            "then run `envspec lock SPEC`",
        )
    _refuse_other_formats(data, where)
    first = _CHECKSUM.match(data)
    end = data.find(f"\n{_END}\n".encode())
    if first and hashlib.sha256(data[first.end() :]).hexdigest() == first[1].decode() and end >= 0:
        return _read(data[first.end() : end + 1], where), data[first.end() :]
    if b"\r\n" in data:
        raise DamagedLock(
            f"{where} has Windows line ends, so its checksum is wrong",
            hint="let git leave them alone: put `locks/** -text` into .gitattributes and check the folder out again",
        )
    if not first:
        raise DamagedLock(f"{where} does not begin with the line that envspec writes", hint=RESTORE)
    raise DamagedLock(
        f"{where} was changed after envspec wrote it: the SHA-256 in its first line is not that of the rest",
        hint="change the spec instead and run `envspec lock SPEC`, or restore the file from version control",
    )


def pins_sha256(header: Header) -> str:
    """SHA-256, in hexadecimal, of what the lock installs, by the files that say so."""
    pins = []
    for name, digest in header.files.items():
        if name.startswith(("requirements.", "conda-")):
            pins.append(f"{name} {digest}\n")
    return hashlib.sha256("".join(sorted(pins)).encode()).hexdigest()


def _refuse_other_formats(data: bytes, where: str) -> None:
    found = _FORMAT.search(data)
    if not found or int(found[1]) == FORMAT:
        return
    requires = _REQUIRES.search(data)
    hint = "write the lock again by `envspec lock SPEC`"
    if requires:
        hint = f"install envspec{requires[1].decode()}, or {hint}"
    raise NewerFormat(f"{where} has format {int(found[1])}; this envspec reads format {FORMAT}", hint=hint)


def _read(header: bytes, where: str) -> Header:
    try:
        data: dict[str, Any] = documents.parse_toml(header.decode())
        name = str(data["name"])
        if not NAME.fits(name):
            raise ValueError(f"`name` is not {NAME.words}: {name!r}")
        return Header(
            format=int(data["format"]),
            name=name,
            input_sha256=str(data["input_sha256"]),
            as_of=_time(data["as_of"]),
            facts=str(data["facts"]),
            gpus=tuple(map(str, data["gpus"])),
            files={str(name): str(digest) for name, digest in data["files"].items()},
            partial_channels=tuple(map(_partial_channel, data.get("partial_channels", ()))),
            **{name: str(data.get(name, "")) for name in OPTIONAL},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DamagedLock(f"{where}: its header can't be read: {problem}", hint=RESTORE) from error


def _time(value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("`as_of` is not a time with a time zone")
    return value


def _partial_channel(data: Mapping[str, Any]) -> PartialChannel:
    found = PartialChannel(str(data["name"]), int(data["records"]), str(data["sha256"]))
    if not SHA256.fits(found.sha256):
        raise ValueError(f"`partial_channels` has no SHA-256 of {found.name!r}: {found.sha256!r}")
    return found
