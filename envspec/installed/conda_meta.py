"""conda's own list of what it put into an environment: `conda-meta/<name>-<version>-<build>.json`.

Source: conda's `PrefixRecord` and `paths.json` version 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.installed.hashing import Wanted, from_hex


@dataclass(frozen=True)
class CondaRecord:
    """One package. paths: everything that it owns, from the environment's folder on. files: those with a hash.

    fault: why its list can't be read; then all else is empty.
    """

    file: str
    name: str = ""
    version: str = ""
    build: str = ""
    sha256: str = ""
    paths: frozenset[str] = frozenset()
    files: tuple[Wanted, ...] = ()
    fault: str = ""


def conda_records(prefix: Path) -> Iterator[CondaRecord]:
    """The packages of an environment, sorted by their files' names; none where it is not conda's."""
    folder = prefix / "conda-meta"
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*.json")):
        try:
            yield _record(path.name, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
            yield CondaRecord(path.name, name=path.stem.rsplit("-", 2)[0], fault=f"{type(fault).__name__}: {fault}")


def _record(file: str, data: Any) -> CondaRecord:
    listed = data.get("paths_data", {}).get("paths", [])
    paths = {str(each["_path"]) for each in listed} | {str(each) for each in data.get("files", [])}
    return CondaRecord(
        file,
        str(data["name"]),
        str(data["version"]),
        str(data["build"]),
        str(data.get("sha256") or ""),
        frozenset(paths),
        tuple(_wanted(each) for each in listed if _hash(each) and each.get("path_type") != "softlink"),
    )


def _hash(listed: Any) -> str:
    # With the environment's path written into it, a file has another hash than in the archive.
    return str(listed.get("sha256_in_prefix") or listed.get("sha256") or "")


def _wanted(listed: Any) -> Wanted:
    return Wanted(str(listed["_path"]), (("sha256", from_hex(_hash(listed))),), int(listed.get("size_in_bytes") or 0))
