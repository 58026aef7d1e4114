"""What `envspec export` writes is imported again: nothing is lost, and every version is the locked one."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.importers import importer_of, new_import
from envspec.importers.types import Import
from envspec.lockfile.folder import read_lock
from envspec.models import Lock, Platform
from tests.lockfile.test_exports import exported
from tests.support.user import ROOT


def imported(lock: Lock, name: str, folder: Path) -> Import:
    path = folder / name
    path.write_text(exported(lock, name).text, encoding="utf-8")
    importer, found = importer_of(path), new_import(folder)
    assert importer is not None
    found.run(importer, path)
    assert [each for each in found.ledger if each.outcome.is_lost] == []
    return found


@pytest.mark.parametrize("name", ["pytorch-2.9", "llm", "dev-3.12"])
def test_pylock_keeps_versions(name: str, tmp_path: Path) -> None:
    lock = read_lock(ROOT / "locks" / name)
    draft = imported(lock, "pylock.toml", tmp_path).draft
    (part,) = (each for each in lock.resolutions if each.target.platform is Platform.LINUX_64)
    assert draft.versions == {each.name: each.version for each in part.packages}
    assert draft.pip_from is not None and draft.pip_from.path == tmp_path / "pylock.toml"


@pytest.mark.parametrize("file", ["environment.yml", "pixi.toml"])
@pytest.mark.parametrize(
    "folder", ["tests/lockfile/golden/conda-and-wheels", "tests/lockfile/golden/conda-alone", "locks/pytorch-2.9"]
)
def test_conda_files_keep_versions(folder: str, file: str, tmp_path: Path) -> None:
    lock = read_lock(ROOT / folder)
    (part,) = (each for each in lock.resolutions if each.target.platform is Platform.LINUX_64)
    draft = imported(lock, file, tmp_path).draft
    pins = {f"{each.name}=={each.version}" for each in part.packages if each.file.url is None}
    # What only one platform has is followed by a marker.
    assert pins <= {each.text.partition(";")[0].strip() for each in draft.dependencies}
    # As preferred versions, or as match specs.
    specs = " ".join(text for text, _ in draft.conda)
    for each in part.conda:
        preferred = draft.conda_versions.get(each.name) == f"{each.version} {each.build}"
        assert preferred or each.name == "python" or (each.version in specs and each.build in specs), each
