"""Conda channels in a folder, of real archives or of rows alone, and requests to solve from them.

    channel = write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge())
    rows_alone = write_channel(tmp_path / "forge", [row("numpy", "2.3.5", depends=["python >=3.13,<3.14.0a0"])])
    solve(rows_alone.as_uri())

Writing a channel of archives takes a tenth of a second. Its rows are the archives' own: names, sizes and hashes fit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from envspec.models import CudaVersion, Platform
from envspec.resolve.types import Channel, CondaRequest, VirtualPackage
from tests.support.builders.conda_archive import CondaArchive, zstd_stored

SUBDIRS: Final = ("linux-64", "linux-aarch64", "noarch")


@dataclass(frozen=True)
class CondaChannel:
    """A channel in a folder. url: its `file://` address."""

    folder: Path
    archives: tuple[CondaArchive, ...]

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def path(self, archive: CondaArchive) -> Path:
        return self.folder / archive.subdir / archive.filename

    def find(self, name: str, version: str = "", build: str = "", subdir: str = "") -> CondaArchive:
        """The one archive that fits; a build is named by its beginning. LookupError for none and for several."""
        found = [
            held
            for held in self.archives
            if held.name == name
            and version in ("", held.version)
            and held.build.startswith(build)
            and subdir in ("", held.subdir)
        ]
        if len(found) != 1:
            raise LookupError(f"{name} {version} {build} {subdir}: {[held.stem for held in found]}")
        return found[0]


def write(folder: Path, archives: Iterable[CondaArchive]) -> CondaChannel:
    """Write the archives and each subdir's `repodata.json`, plain and as `.zst`."""
    channel = CondaChannel(folder, tuple(archives))
    for subdir in SUBDIRS:
        held = [archive for archive in channel.archives if archive.subdir == subdir]
        place = folder / subdir
        place.mkdir(parents=True, exist_ok=True)
        for one in held:
            (place / one.filename).write_bytes(one.data)
        write_rows(place, subdir, {one.filename: one.row() for one in held})
    return channel


def write_rows(place: Path, subdir: str, rows: Mapping[str, Mapping[str, object]]) -> None:
    """A subdir's `repodata.json`, plain and as `.zst`. rows: by file name."""
    place.mkdir(parents=True, exist_ok=True)
    text = _document(subdir, rows)
    (place / "repodata.json").write_bytes(text)
    (place / "repodata.json.zst").write_bytes(zstd_stored(text))


def _document(subdir: str, rows: Mapping[str, Mapping[str, object]]) -> bytes:
    document = {
        "info": {"subdir": subdir},
        "packages": {name: row for name, row in rows.items() if name.endswith(".tar.bz2")},
        "packages.conda": {name: row for name, row in rows.items() if name.endswith(".conda")},
        "removed": [],
        "repodata_version": 1,
    }
    return json.dumps(document, sort_keys=True).encode()


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
    return _document(subdir, {each.filename: each.fields() for each in rows if each.subdir == subdir})


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


AS_OF: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
MACHINE: Final[Mapping[str, str]] = {"__unix": "0", "__linux": "5.10", "__glibc": "2.31"}


def request(
    *requirements: str,
    channels: Sequence[Channel],
    platform: Platform = Platform.LINUX_64,
    cuda: CudaVersion | None = None,
    machine: Mapping[str, str] = MACHINE,
    **more: Any,
) -> CondaRequest:
    """cuda: is the machine's `__cuda`, caps `cuda-version`, and has CUDA builds required."""
    virtual = {**machine, **({"__cuda": str(cuda)} if cuda else {})}
    return CondaRequest(
        platform=platform,
        channels=tuple(channels),
        requirements=requirements,
        virtual_packages=tuple(VirtualPackage(name, version) for name, version in sorted(virtual.items())),
        constraints=(f"cuda-version <={cuda}", f"cudatoolkit <={cuda}") if cuda else (),
        cuda=cuda,
        **{"as_of": AS_OF, **more},
    )
