"""What locks of other tools have in common: rows of packages with their files, and what is selected of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct, field

from envspec.credentials import without_credentials
from envspec.io.http_settings import default_index_url
from envspec.models import DEFAULT_INDEX, CondaChannel, CondaPackage, Dependent, Platform
from envspec.names import normalised
from envspec.origins import PYTORCH, PYTORCH_PAGES

#: As an extra or a group: all of them.
ALL: Final = "*"


class LockedFile(Struct, frozen=True):
    """A file of a package.

    url: None if the page of its index has it.
    sha256: hexadecimal; empty if the lock has none.
    uploaded: None if the lock has no time.
    """

    filename: str
    url: str | None = None
    sha256: str = ""
    size_bytes: int | None = None
    uploaded: datetime | None = None


class Row(Struct, frozen=True):
    """A package of a lock.

    name: normalised.
    version: empty for one whose version its build computes.
    index: `default`, another index by `index_name`, `url`, `git` or `local`, as in `WheelFile`.
    index_url: of another index than the default one, without credentials.
    files: wheels and the sdist; none of `git` and `local`.
    marker: it is installed where this holds; empty: everywhere.
    source: of `git`, `git+https://host/project.git@<commit>`, with `#subdirectory=` if it is in one; of `local`, the
        folder relative to that of the lock.
    hashes: SHA-256 of its files, in hexadecimal, if the lock has no names of files (requirements.txt).
    """

    name: str
    version: str
    index: str = DEFAULT_INDEX
    index_url: str = ""
    files: tuple[LockedFile, ...] = ()
    marker: str = ""
    source: str = ""
    required_by: tuple[Dependent, ...] = ()
    hashes: frozenset[str] = frozenset()


class Selection(Struct, frozen=True):
    """Which part of a lock is meant; extras, groups and members are normalised names, or ALL alone.

    without_groups: of `groups` ALL, or of the project's default groups.
    default_groups: whether the project's default groups are included.
    members: of a workspace; none: the project beside the lock.
    """

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    without_groups: tuple[str, ...] = ()
    default_groups: bool = False
    members: tuple[str, ...] = ()


class LeftOut(Struct, frozen=True):
    """An extra or a group that is not selected. kind: `extra` or `group`. packages: that only it adds, normalised,
    of all platforms.
    """

    kind: str
    name: str
    packages: frozenset[str] = frozenset()

    @property
    def words(self) -> str:
        """What adds it on the command line."""
        return f"--{self.kind} {self.name}"


class CondaRows(Struct, frozen=True):
    """The conda packages of one platform, sorted by name.

    problems: why packages of it can't be installed, which are not in `packages`.
    """

    packages: tuple[CondaPackage, ...] = ()
    problems: tuple[str, ...] = ()


class ForeignLock(Struct, frozen=True):
    """A lock of another tool, as far as it is selected.

    path: its file.
    name: of the project; empty if neither the lock nor a pyproject.toml beside it has one.
    requires_python: specifiers; empty if there are none.
    rows: sorted by name.
    left_out: what is not selected.
    indexes: of requirements files: URLs of the indexes that have the `hashes`, in order, without credentials; empty:
        the default index.
    links: of requirements files: pages of `--find-links`.
    selection: of what `rows` are.
    conda: conda packages, of each platform that the lock is for; empty for a lock that can have none.
    channels: where these come from.
    """

    path: Path
    name: str
    requires_python: str
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...] = ()
    indexes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    selection: Selection = Selection()
    conda: Mapping[Platform, CondaRows] = field(default_factory=dict)
    channels: tuple[CondaChannel, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether no extra and no group is selected."""
        return not (self.selection.extras or self.selection.groups or self.selection.default_groups)


def index_name(url: str) -> str:
    """The name in an envspec.lock of the index with this URL: `default`, `pytorch-cu128`, else of its host and path."""
    public = without_credentials(url).rstrip("/")
    if public == default_index_url({}).rstrip("/"):
        return DEFAULT_INDEX
    if found := PYTORCH_PAGES.fullmatch(public):
        return PYTORCH + (found[1].replace("/", "-") or "whl")
    parts = urlsplit(public)
    path = [part for part in parts.path.split("/") if part not in ("", "simple")]
    return re.sub(r"[^a-z0-9]+", "-", normalised("-".join((parts.netloc, *path)))).strip("-")


def newest_file(found: ForeignLock) -> datetime | None:
    """When the newest file was uploaded, or conda package built, in whole seconds; None if no file has a time."""
    times = [file.uploaded for row in found.rows for file in row.files if file.uploaded]
    for rows in found.conda.values():
        for package in rows.packages:
            if package.timestamp_ms:
                times.append(datetime.fromtimestamp(package.timestamp_ms // 1000, timezone.utc))
    return max(times).replace(microsecond=0) if times else None


def packages_sha256(found: ForeignLock) -> str:
    """SHA-256, hexadecimal, of what a lock installs: names, versions, files and markers, but not where files are."""
    values = []
    for row in found.rows:
        files = sorted((each.filename, each.sha256) for each in row.files)
        values.append((row.name, row.version, row.index, row.marker, row.source, files, sorted(row.hashes)))
    for platform, rows in found.conda.items():
        for each in rows.packages:
            files = [(each.filename, each.sha256)]
            values.append((each.name, each.version, "conda", platform.value, each.subdir, files, []))
    return hashlib.sha256(json.dumps(sorted(values)).encode()).hexdigest()
