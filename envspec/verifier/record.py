"""RECORD, the list of a wheel's files, and the one digest that wheel and installation must agree on.

Sources: "Recording installed projects" and "Binary distribution format" (PyPA specifications).
"""

from __future__ import annotations

import csv
import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

#: What stands before the path of a file that lies in the environment and outside of its site-packages.
DATA: Final = "<data>/"
#: Of a dist-info folder, what installers make or change.
_INSTALLERS: Final = frozenset(
    (
        "RECORD",
        "RECORD.jws",
        "RECORD.p7s",
        "INSTALLER",
        "REQUESTED",
        "direct_url.json",
        "uv_cache.json",
        "uv_build.json",
    )
)
#: Of the environment, what installers write anew (scripts) or put where they like (headers).
_PROGRAMS: Final = ("bin/", "scripts/", "include/")
# `<name>-<version>.data/<kind>/<path>`
_SPREAD: Final = re.compile(r"[^/]+\.data/(purelib|platlib|data|scripts|headers)/(.+)", re.DOTALL)
# Where a wheel's `data` leads into site-packages: the installed RECORD can't tell it from what stands at its root.
_SITE: Final = re.compile(r"(?:lib(?:64)?/python[\d.]+t?|lib)/site-packages/(.+)", re.DOTALL | re.IGNORECASE)


class BadRecord(ValueError):
    """A RECORD that can't be read."""


@dataclass(frozen=True)
class Row:
    """A file of a RECORD. path: as it stands there, `/` between its parts.

    algorithm, digest: the hash's name, and its value in URL-safe base64 without padding; empty where there is none.
    size_bytes: None where it is not told.
    """

    path: str
    algorithm: str
    digest: str
    size_bytes: int | None = None


def rows(text: str) -> Iterator[Row]:
    """The files of a RECORD.

    Raises:
        BadRecord: it is no CSV of three columns.
    """
    try:
        for line in csv.reader(text.splitlines(), strict=True):
            if line:
                yield _row(line)
    except csv.Error as fault:
        raise BadRecord(f"its RECORD is no CSV: {fault}") from fault


def _row(line: list[str]) -> Row:
    if len(line) != 3:
        raise BadRecord(f"its RECORD has a row of {len(line)} columns: {','.join(line)!r}")
    path, told, size = line
    algorithm, _, digest = told.partition("=")
    path = posixpath.normpath(path.replace("\\", "/"))
    return Row(path, algorithm, digest.rstrip("="), int(size) if size.isdigit() else None)


def wheel_place(path: str) -> str | None:
    """Where a file of a wheel ends up: its path in site-packages, or after DATA in the environment; None for what
    installers write themselves.
    """
    spread = _SPREAD.fullmatch(path)
    if spread is None:
        return _anchored(path)
    kind, rest = spread[1], spread[2]
    if kind in ("scripts", "headers"):
        return None
    if kind in ("purelib", "platlib"):
        return _anchored(rest)
    inside = _SITE.fullmatch(rest)
    return _anchored(inside[1]) if inside else _anchored(DATA + rest)


def installed_place(path: str, depth: int) -> str | None:
    """The same for a row of an installed RECORD.

    depth: how many folders site-packages lies below its environment: 3 for `lib/python3.11/site-packages`. None for
    what lies outside of the environment as well.
    """
    up = 0
    while path.startswith("../"):
        path, up = path[3:], up + 1
    if up == 0:
        return None if posixpath.isabs(path) else _anchored(path)
    return _anchored(DATA + path) if up == depth else None


def _anchored(place: str) -> str | None:
    if place.endswith(".pyc"):
        return None
    if place.startswith(DATA):
        return None if place[len(DATA) :].lower().startswith(_PROGRAMS) else place
    folder, _, name = place.partition("/")
    return None if folder.endswith(".dist-info") and name in _INSTALLERS else place


def contents_sha256(placed: Iterable[tuple[str | None, Row]]) -> str | None:
    """SHA-256 (hexadecimal) of the sorted lines `<place>,<algorithm>=<hash>` of what installers leave as it is.

    None where a file has another hash than SHA-256: some installers then write another one. Files without a hash don't
    count; `compare` tells of those that are installed.
    """
    lines = set()
    for place, row in placed:
        if place is None or not row.algorithm:
            continue
        if row.algorithm != "sha256":
            return None
        lines.add(f"{place},{row.algorithm}={row.digest}\n")
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def wheel_contents(record: bytes) -> str | None:
    """The digest of a wheel's contents, from the RECORD in it; None where it can't be told.

    Raises:
        BadRecord
    """
    try:
        text = record.decode()
    except UnicodeDecodeError as fault:
        raise BadRecord(f"its RECORD is not UTF-8: {fault}") from fault
    return contents_sha256((wheel_place(row.path), row) for row in rows(text))


def installed_contents(listed: Iterable[Row], depth: int) -> str | None:
    """The digest of what is installed, from the RECORD beside it. depth: see `installed_place`."""
    return contents_sha256((installed_place(row.path, depth), row) for row in listed)
