"""RECORD, the list of a wheel's files, and its digest, which is equal for a wheel and what is installed from it.

Sources: "Recording installed projects" and "Binary distribution format" (PyPA specifications).
"""

from __future__ import annotations

import csv
import hashlib
import posixpath
import re
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple

#: Prefix of a file that is in the environment and not in its site-packages.
DATA: Final = "<data>/"
#: Files of a dist-info folder that installers write or change.
_INSTALLER_FILES: Final = (
    *("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED"),
    *("direct_url.json", "uv_cache.json", "uv_build.json"),
)
#: Folders of the environment whose files installers generate (scripts) or move (headers).
_PROGRAMS: Final = ("bin/", "scripts/", "include/")
# `<name>-<version>.data/<kind>/<path>`
_DATA_FOLDER: Final = re.compile(r"[^/]+\.data/(purelib|platlib|data|scripts|headers)/(.+)", re.DOTALL)
# A wheel's `data` below site-packages: in the installed RECORD it looks like a file of the wheel's root.
_SITE: Final = re.compile(r"(?:lib(?:64)?/python[\d.]+t?|lib)/site-packages/(.+)", re.DOTALL | re.IGNORECASE)


class BadRecord(ValueError):
    """A RECORD that cannot be read."""


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
            yield RecordEntry(path, algorithm, digest.rstrip("="), int(columns[2]) if columns[2].isdigit() else None)
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
    spread = _DATA_FOLDER.fullmatch(path)
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
