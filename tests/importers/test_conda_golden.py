"""Every folder of tests/importers/golden/conda: see the README there."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import fields

from envspec.importers import importer_of, new_import
from envspec.importers.conda_explicit import read_explicit
from envspec.importers.pixi import read_pixi
from envspec.importers.types import Clue, Draft, DraftIndex, DraftRequirement, Import, Outcome
from tests.support.golden import assert_golden

CASES = sorted(path for path in (Path(__file__).parent / "golden" / "conda").iterdir() if path.is_dir())


def texts(value: object, folder: Path) -> list[str]:
    """The items of a field of the draft, one a line."""
    if isinstance(value, dict):
        return [f"{key} = {each}" for key, each in value.items()]
    if not isinstance(value, list):
        return [str(value)]
    return [text_of(each, folder) for each in value]


def text_of(item: object, folder: Path) -> str:
    if isinstance(item, Clue):
        return f"{item.value} ({item.source}: {item.why})"
    if isinstance(item, DraftRequirement):
        project = f" in {item.project.relative_to(folder)}" if item.project else ""
        return f"{item.text}{project} ({item.source})"
    if isinstance(item, DraftIndex):
        return f"{item.url} for {', '.join(item.packages) or 'any'} ({item.source})"
    return " on ".join(filter(None, item)) if isinstance(item, tuple) else str(item)


def outcome(imported: Import, folder: Path) -> str:
    lines = [f"{each.outcome.value} | {each.source} | {each.text} | {each.reason}" for each in imported.ledger]
    for field in fields(Draft):
        if value := getattr(imported.draft, field.name):
            lines += ["", f"{field.name}:", *(f"  {text}" for text in texts(value, folder))]
    return "".join(f"{line.rstrip()}\n" for line in lines)


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_a_source_becomes_what_is_expected(folder: Path) -> None:
    imported = new_import(folder)
    for path in sorted(folder.iterdir()):
        if path.name != "expected.txt" and path.is_file() and (importer := importer_of(path)):
            imported.run(importer, path)
    assert_golden(outcome(imported, folder), folder / "expected.txt")


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [
        ('"12"', "525.60.13"),
        ('"12.4"', "550.54.14"),
        ('{ version = "11.8" }', "520.61.05"),
        ('"99.1"', None),
    ],
)
def test_a_driver_of_pixi_is_no_version_of_cuda(tmp_path: Path, cuda: str, driver: str | None) -> None:
    path = tmp_path / "pixi.toml"
    path.write_text(f'[workspace]\nname = "a"\n[system-requirements]\ncuda = {cuda}\n')
    imported = new_import(tmp_path)
    imported.run(read_pixi, path)
    assert [each.value for each in imported.draft.drivers] == ([driver] if driver else [])
    assert not imported.draft.cudas
    assert [each.outcome for each in imported.ledger if each.outcome.is_lost] == (
        [] if driver else [Outcome.NOT_UNDERSTOOD]
    )


@pytest.mark.parametrize("platforms", [(), ("win-64",)])
def test_a_list_of_urls_of_windows(tmp_path: Path, platforms: tuple[str, ...]) -> None:
    path = tmp_path / "spec.txt"
    channel = "https://conda.anaconda.org/conda-forge/win-64"
    urls = "".join(f"{channel}/{name}.conda\n" for name in ("vc-14.3-h1_0", "numpy-1.26.0-py39h1_0"))
    path.write_text(f"# platform: win-64\n@EXPLICIT\n{urls}")
    imported = new_import(tmp_path)
    imported.platforms = platforms
    imported.run(read_explicit, path)
    names, builds = (["numpy"], ["1.26.0"]) if not platforms else (["vc", "numpy"], ["14.3 h1_0", "1.26.0 py39h1_0"])
    assert [text for text, _ in imported.draft.conda] == names
    assert [*imported.draft.conda_versions.values()] == builds
    assert [each.value for each in imported.draft.platforms] == [*platforms]


def test_folders_of_libraries_in_an_activation_of_pixi(tmp_path: Path) -> None:
    path = tmp_path / "pixi.toml"
    path.write_text('[workspace]\nname = "a"\n[activation.env]\nLD_LIBRARY_PATH = "$CONDA_PREFIX/lib"\nX = "$HOME"\n')
    imported = new_import(tmp_path)
    imported.run(read_pixi, path)
    assert [each.text.partition(" ")[0] for each in imported.ledger if each.outcome.is_lost] == ["X"]
    assert not imported.draft.env
