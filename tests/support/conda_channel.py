"""A conda channel of real archives, in a folder: what a solver, an installer and an image builder are tested with.

    @pytest.fixture(scope="module")
    def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
        return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge())

Writing it takes a tenth of a second. The rows are the archives' own: names, sizes and hashes fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.conda_archive import CondaArchive, zstd_stored

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
    """A subdir's `repodata.json`. rows: by file name."""
    document = {
        "info": {"subdir": subdir},
        "packages": {name: row for name, row in rows.items() if name.endswith(".tar.bz2")},
        "packages.conda": {name: row for name, row in rows.items() if name.endswith(".conda")},
        "removed": [],
        "repodata_version": 1,
    }
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, sort_keys=True).encode()
    (place / "repodata.json").write_bytes(text)
    (place / "repodata.json.zst").write_bytes(zstd_stored(text))
