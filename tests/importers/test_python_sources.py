"""Requirements files, pyproject.toml and the locks of uv, Poetry and PEP 751.

Each folder under golden/python is a project and what importing it gives, `expected.txt`: the ledger, then the draft.
`chosen.toml`, if there is one, has the extras and groups that are taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envspec import documents
from envspec.importers import importer_of, new_import
from envspec.importers.pyproject import read_pyproject
from envspec.importers.types import Clue, DraftIndex, DraftRequirement, Import, Outcome, Unreadable

CASES = Path(__file__).parent / "golden" / "python"
#: What a user names, the first that the project has.
FROM = ("requirements.txt", "lock.txt", "pyproject.toml", "uv.lock", "poetry.lock", "pylock.toml")


def imported(path: Path, **chosen: Any) -> Import:
    found, importer = new_import(path.parent), importer_of(path)
    assert importer is not None
    if chosen:
        found.run(lambda path, into: read_pyproject(path, into, **chosen), path)
    else:
        found.run(importer, path)
    return found


def shown(found: Import) -> Iterator[str]:
    """The ledger, then the draft, a line each."""
    for entry in found.ledger:
        yield f"{entry.source}: {entry.outcome.value}: {entry.text}{f' -> {entry.reason}' if entry.reason else ''}"
    for each in dataclasses.fields(found.draft):
        value = getattr(found.draft, each.name)
        for item in value.items() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
            if item:
                yield f"{each.name}: {_item(item, found)}"


def _item(item: Any, found: Import) -> str:
    if isinstance(item, Clue):
        return f"{item.value} ({item.source}: {item.why})"
    if isinstance(item, DraftRequirement):
        return item.text.replace("{path}", found.shown(item.project) if item.project else "")
    if isinstance(item, DraftIndex):
        return f"{item.name or '-'} {item.url} {item.format} {', '.join(item.packages) or '-'}"
    return " = ".join(item) if isinstance(item, tuple) else str(item)


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_imported(case: str) -> None:
    folder = CASES / case
    choices = folder / "chosen.toml"
    chosen = documents.parse_toml(choices.read_text("utf-8")) if choices.exists() else {}
    path = next(path for name in FROM if (path := folder / "source" / name).is_file())
    text = "\n".join(shown(imported(path, **chosen))) + "\n"
    assert text == (folder / "expected.txt").read_text(encoding="utf-8")
