"""RECORD, the list of a wheel's files, and its digest, which is equal for a wheel and what is installed from it.

Sources: "Recording installed projects" and "Binary distribution format" (PyPA specifications).
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import posixpath
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple

#: Prefix of a file that is in the environment and not in its site-packages.
DATA: Final = "<data>/"
#: Files of a dist-info folder that installers write or change.
_INSTALLER_FILES: Final = (
    *("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED"),
    *("direct_url.json", "uv_cache.json", "uv_build.json"),
)
#: Two files with one MD5 or SHA-1 can be made on purpose.
STRONG: Final = ("sha256", "sha384", "sha512")
#: Folders of the environment whose files installers generate (scripts) or move (headers).
_PROGRAMS: Final = ("bin/", "scripts/", "include/")
# `<name>-<version>.data/<kind>/<path>`
_DATA_FOLDER: Final = re.compile(r"[^/]+\.data/(purelib|platlib|data|scripts|headers)/(.+)", re.DOTALL)
#: `int` refuses longer numbers.
_MOST_DIGITS: Final = 4300
#: Characters of a plain path, but for the slash.
_PLAIN: Final = rb" !#-+\-.0-;=-\[\]-~"
#: A row as nearly all tools write it: path, SHA-256, size.
_ROW: Final = re.compile(
    rb"^(([%s/]{1,4096})(?<![./])(?<!\.pyc),sha256=[\w-]{43}),([0-9]{1,18})\r?\n" % _PLAIN, re.MULTILINE
)
#: The row of RECORD itself.
_OWN_ROW: Final = re.compile(rb"[%s]+\.dist-info/RECORD,,\r?\n" % _PLAIN)
#: Parts of paths that are not normalised.
_ODD: Final = (b"./", b"//")
# A wheel's `data` below site-packages: in the installed RECORD it looks like a file of the wheel's root.
_SITE: Final = re.compile(r"(?:lib(?:64)?/python[\d.]+t?|lib)/site-packages/(.+)", re.DOTALL | re.IGNORECASE)


class BadRecord(ValueError):
    """A RECORD that cannot be read."""


def from_hex(digest: str) -> str:
    """A hexadecimal digest in RECORD's form; empty if it is invalid."""
    try:
        return base64.urlsafe_b64encode(binascii.unhexlify(digest)).rstrip(b"=").decode()
    except (binascii.Error, ValueError):
        return ""


def path_below(path: str, site: str) -> str:
    """A path as locks have it, relative to site-packages or after DATA, relative to the environment.

    site: the site-packages, relative to the environment.
    """
    if path.startswith(DATA):
        return path[len(DATA) :]
    return f"{site}/{path}"


class RecordEntry(NamedTuple):
    """A file of a RECORD.

    algorithm, digest: name of the hash, and its value in URL-safe base64 without padding; empty if there is none.
    """

    path: str
    algorithm: str
    digest: str
    size_bytes: int | None = None


#: `<path>,sha256=<hash>`, the path, and the size: of a row in ASCII.
PlainRow = tuple[bytes, bytes, bytes]


def record_entries(text: str) -> Iterator[RecordEntry]:
    """Raises BadRecord unless the text is CSV of three columns."""
    try:
        for columns in csv.reader(text.splitlines(), strict=True):
            if not columns:
                continue
            if len(columns) != 3:
                raise BadRecord(f"its RECORD has a line of {len(columns)} columns: {','.join(columns)!r}")
            algorithm, _, digest = columns[1].partition("=")
            path = columns[0]
            # Nearly all are normal already, and an environment has tens of thousands.
            if "./" in path or "//" in path or "\\" in path or path[-1:] in ("", ".", "/"):
                path = posixpath.normpath(path.replace("\\", "/"))
            size_bytes = None
            if columns[2].isdecimal() and len(columns[2]) <= _MOST_DIGITS:
                size_bytes = int(columns[2])
            yield RecordEntry(path, algorithm, digest.rstrip("="), size_bytes)
    except csv.Error as error:
        raise BadRecord(f"its RECORD is not CSV: {error}") from error


def wheel_path(path: str) -> str | None:
    """Where a wheel's file is installed: relative to site-packages, or to the environment after DATA.

    None for files that installers write themselves.
    """
    spread = _DATA_FOLDER.fullmatch(path) if ".data/" in path else None
    if spread is None:
        return _stable(path)
    kind, rest = spread[1], spread[2]
    if kind in ("scripts", "headers"):
        return None
    if kind in ("purelib", "platlib"):
        return _stable(rest)
    inside = _SITE.fullmatch(rest)
    return _stable(inside[1]) if inside else _stable(DATA + rest)


def installed_from(path: str) -> str | None:
    """As `wheel_path`, with scripts as well: every file that only one wheel should have. Headers have a folder for each
    distribution.
    """
    spread = _DATA_FOLDER.fullmatch(path) if ".data/" in path else None
    if spread is not None and spread[1] == "scripts":
        return f"{DATA}bin/{spread[2]}"
    return wheel_path(path)


def installed_path(path: str, depth: int) -> str | None:
    """The same for an entry of an installed RECORD; None for files outside of the environment as well.

    depth: of site-packages below the environment: 3 for `lib/python3.11/site-packages`.
    """
    up = 0
    while path.startswith("../"):
        path, up = path[3:], up + 1
    if up == 0:
        return None if posixpath.isabs(path) else _stable(path)
    return _stable(DATA + path) if up == depth else None


def _stable(path: str) -> str | None:
    """None for files that installers change."""
    if path.endswith(".pyc"):
        return None
    if path.startswith(DATA):
        return None if path[len(DATA) :].lower().startswith(_PROGRAMS) else path
    if ".dist-info/" in path:
        folder, _, name = path.partition("/")
        if folder.endswith(".dist-info") and name in _INSTALLER_FILES:
            return None
    return path


def _sha256(entries: Iterable[tuple[str | None, RecordEntry]], absent: Container[str]) -> str | None:
    """SHA-256 (hexadecimal) of the sorted lines `<path>,<algorithm>=<hash>` of files that installers do not change.

    None if a file has another hash than SHA-256: some installers then write another one. Files without a hash do not
    count; `compare` reports those that are installed.
    """
    lines = set()
    for path, entry in entries:
        if path is None or path in absent or not entry.algorithm:
            continue
        if entry.algorithm != "sha256":
            return None
        lines.add(f"{path},sha256={entry.digest}\n")
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def wheel_entries(record: bytes) -> list[RecordEntry]:
    """The files in a wheel's RECORD.

    Raises:
        BadRecord
    """
    try:
        text = record.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"its RECORD is not UTF-8: {error}") from error
    return list(record_entries(text))


def plain_rows(record: bytes) -> list[PlainRow] | None:
    """The rows of a wheel's RECORD, without its own; None if one of them is not in the usual form.

    `wheel_entries` reads the same, and takes five times as long: a stack has 30,000 rows.
    """
    rows: list[PlainRow] = _ROW.findall(record)
    others = record.count(b"\n") - len(rows)
    if others > 1 or not record.endswith(b"\n") or any(odd in record for odd in _ODD):
        return None
    if others:
        start = record.rfind(b"\n", 0, max(0, record.find(b"/RECORD,,"))) + 1
        if not _OWN_ROW.fullmatch(record, start, record.index(b"\n", start) + 1):
            return None
    return rows


def plain_summary(rows: Iterable[PlainRow]) -> tuple[str, set[str]]:
    """The digest as by `wheel_sha256`, and the first parts of the paths of `installed_from`."""
    lines = sorted(dict.fromkeys(line for line, _, _ in rows))
    installed: list[bytes] = []
    tops = set[str]()
    start = 0
    while start < len(lines):
        top, slash, _ = lines[start].partition(b",")[0].partition(b"/")
        end = start + 1
        if slash:
            # 0 is the character after the slash: a folder's lines are in one place.
            end = bisect_left(lines, top + b"0", start)
        folder = lines[start:end]
        start = end
        if not top.endswith((b".data", b".dist-info")):
            installed += folder
            tops.add(top.decode())
            continue
        for line in folder:
            path, _, sha256 = line.partition(b",")
            if place := wheel_path(path.decode()):
                installed.append(b"%s,%s" % (place.encode(), sha256))
            if place := installed_from(path.decode()):
                tops.add(place.partition("/")[0])
    # An empty line is added, so that the last one too ends with a line feed.
    content = b"\n".join([*sorted(dict.fromkeys(installed)), b""])
    return hashlib.sha256(content).hexdigest(), tops


def wheel_sha256(record: bytes) -> str | None:
    """The digest of a wheel, from the RECORD in it; None if there is no such digest.

    Raises:
        BadRecord
    """
    return entries_sha256(wheel_entries(record))


def entries_sha256(entries: Iterable[RecordEntry], absent: Container[str] = ()) -> str | None:
    """The same of its files.

    absent: paths that are listed and not in the wheel: pip keeps their rows, uv does not.
    """
    return _sha256(((wheel_path(entry.path), entry) for entry in entries), absent)


def installed_sha256(entries: Iterable[RecordEntry], depth: int, absent: Container[str] = ()) -> str | None:
    """The digest of what is installed, from the RECORD beside it.

    depth: see `installed_path`. absent: see `entries_sha256`.
    """
    return _sha256(((installed_path(entry.path, depth), entry) for entry in entries), absent)
