"""Every value of a lock's folder that differs from another lock of the same spec.

`envspec lock --check` compares a lock with what follows from its spec and its own packages, `--verify` with a new
resolution.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from envspec import documents
from envspec.lockfile.folder import read_current
from envspec.lockfile.header import LOCK_FILE, verify_checksum

_NONE: Final = "(none)"
#: A document in which nothing differs but its layout: what is locked, and what is computed.
SAME_VALUES: Final = ("the same values", "written in another way")
#: The keys that identify a table of an array.
_NAMES: Final = ("name", "platform", "what", "package")


class Difference(NamedTuple):
    """One value of a lock that differs. platform, package: empty if it belongs to none.

    locked: in the lock. resolved: as it is computed from the spec.
    """

    platform: str
    package: str
    what: str
    locked: str
    resolved: str

    def __str__(self) -> str:
        where = [*filter(None, (self.platform, self.package)), self.what]
        return f"{': '.join(where)}: locked {self.locked}, resolved {self.resolved}"


def folder_differences(
    directory: Path, made: Mapping[str, bytes], others: Iterable[str] = ()
) -> tuple[Difference, ...]:
    """Every file that is not, byte for byte, what was made; of the document, value by value.

    others: files of the folder that should not be there, unless they were made.
    """
    document = read_current(directory, LOCK_FILE)
    head, body = verify_checksum(document, str(directory / LOCK_FILE))
    rows: list[Difference] = []
    if document != made[LOCK_FILE]:
        _, resolved = verify_checksum(made[LOCK_FILE], LOCK_FILE)
        old, new = documents.parse_toml(body.decode()), documents.parse_toml(resolved.decode())
        # The hashes of the other files are compared with the files themselves.
        old["files"] = new["files"] = None
        rows += _differences(old, new, (), ("", ""))
        rows = rows or [Difference("", "", LOCK_FILE, *SAME_VALUES)]
    for name in sorted({*head.files, *made, *others} - {LOCK_FILE}):
        locked = _NONE
        if name in head.files or name not in made:
            with suppress(OSError):
                locked = _sha256(read_current(directory, name))
        resolved_sha256 = _sha256(made.get(name))
        if locked != resolved_sha256:
            rows.append(Difference("", "", name, locked, resolved_sha256))
    return tuple(rows)


def _sha256(content: bytes | None) -> str:
    return _NONE if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}"


def _differences(old: object, new: object, path: Sequence[str], where: tuple[str, str]) -> Iterator[Difference]:
    """Compare two values at a path. where: the platform and the package that they belong to."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(key), new.get(key), (*path, key), where)
        return
    olds, news = _named(old), _named(new)
    if olds is not None and news is not None and (olds or news):
        if olds == news:
            # Channels and indexes are in the order in which they are used.
            order = f"{'.'.join(path)} (order)"
            yield Difference(*where, order, _shown(list(map(".".join, olds))), _shown(list(map(".".join, news))))
        for name in sorted({*olds, *news}):
            before, after = olds.get(name), news.get(name)
            inner = _where(path, before or after or {}, where)
            # What belongs to a package of its own has a path within it.
            below = (*path, *name) if inner == where else ()
            if before is None or after is None:
                what = ".".join(below or path[:-1]) or path[-1]
                yield Difference(*inner, what, _whole(before), _whole(after))
            else:
                yield from _differences(before, after, below, inner)
        return
    yield Difference(*where, ".".join(path), _shown(old), _shown(new))


def _named(value: object) -> dict[tuple[str, ...], dict[str, Any]] | None:
    """Tables of an array by what names them; None if the value is no such array, or two have one name."""
    if value is None:
        return {}
    if not isinstance(value, list):
        return None
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for each in value:
        if not isinstance(each, dict):
            return None
        name = tuple(each[key] for key in _NAMES if isinstance(each.get(key), str))
        if name in found:
            return None
        found[name] = each
    return found


def _where(path: Sequence[str], table: Mapping[str, Any], where: tuple[str, str]) -> tuple[str, str]:
    if path[-1:] == ("resolution",):
        return str(table.get("platform", "")), ""
    if path[-1:] in (("package",), ("conda",)) and where[0]:
        return where[0], str(table.get("name", ""))
    return where


def _whole(table: Mapping[str, Any] | None) -> str:
    if table is None:
        return _NONE
    return str(table.get("version") or table.get("value") or table.get("digest") or "present")


def _shown(value: object) -> str:
    if value is None:
        return _NONE
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    if re.fullmatch(r"[^\x00-\x1f\x7f]+", text):
        return text
    return json.dumps(text)
