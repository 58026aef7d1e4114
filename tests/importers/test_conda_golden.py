"""Every folder of tests/importers/golden/conda: see the README there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from envspec.importers import importer_of, new_import
from envspec.importers.types import Clue, Draft, DraftIndex, DraftRequirement, Import

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
    assert outcome(imported, folder) == (folder / "expected.txt").read_text(encoding="utf-8")
