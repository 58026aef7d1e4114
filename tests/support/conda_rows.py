"""Conda channels on disk out of rows that a test writes: enough to solve from, there are no archives.

channel = write_channel(tmp_path / "forge", [row("numpy", "2.3.5", depends=["python >=3.13,<3.14.0a0"])])
solve(channel.as_uri())
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

#: When a row is built that does not say otherwise.
BUILT: Final = datetime(2025, 6, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a repodata.json. built: None where it does not say when. more: keys besides; None takes one out."""

    name: str
    version: str
    build: str = "0"
    subdir: str = "linux-64"
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    built: datetime | None = BUILT
    build_number: int = 0
    suffix: str = ".conda"
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-{self.build}{self.suffix}"

    def fields(self) -> dict[str, Any]:
        """As repodata.json has it; hashes are those of the file's name."""
        name = self.filename.encode()
        found: dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "build": self.build,
            "build_number": self.build_number,
            "subdir": self.subdir,
            "depends": list(self.depends),
            "constrains": list(self.constrains),
            "sha256": hashlib.sha256(name).hexdigest(),
            "md5": hashlib.md5(name, usedforsecurity=False).hexdigest(),
            "size": 1000 + len(name),
            "timestamp": None if self.built is None else int(self.built.timestamp() * 1000),
            "noarch": "python" if self.subdir == "noarch" else None,
        }
        return {key: value for key, value in {**found, **self.more}.items() if value is not None}


def row(name: str, version: str, build: str = "0", /, **more: Any) -> Row:
    """A row; lists may be given where it has tuples."""
    for key in ("depends", "constrains"):
        more[key] = tuple(more.get(key, ()))
    return Row(name, version, build, **more)


def repodata(rows: Iterable[Row], subdir: str) -> bytes:
    """The repodata.json of one subdir."""
    mine = [each for each in rows if each.subdir == subdir]
    packages = {
        suffix: {r.filename: r.fields() for r in mine if r.suffix == suffix} for suffix in (".tar.bz2", ".conda")
    }
    data = {"info": {"subdir": subdir}, "packages": packages[".tar.bz2"], "packages.conda": packages[".conda"]}
    return json.dumps({**data, "repodata_version": 1}, sort_keys=True).encode()


def files_of(rows: Iterable[Row]) -> dict[str, bytes]:
    """`<subdir>/repodata.json` of every subdir that a row is in, and of noarch."""
    known = list(rows)
    subdirs = sorted({each.subdir for each in known} | {"noarch"})
    return {f"{subdir}/repodata.json": repodata(known, subdir) for subdir in subdirs}


def write_channel(folder: Path, rows: Iterable[Row]) -> Path:
    """Write a channel; its folder, whose `as_uri()` is its address."""
    for path, data in files_of(rows).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder
