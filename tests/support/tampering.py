"""Locks as an attacker leaves them: changed on purpose, and consistent in all that follows from the change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from envspec.lock.head import LOCK_FILE
from tests.support.locks import sealed

Change = Callable[[str], str]


def tamper(folder: Path, change: Change) -> None:
    """Change every file of a lock's folder, write the hashes of the others into its head, and seal it again."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    changed = {name: change(text) for name, text in texts.items()}
    assert changed[LOCK_FILE] != texts[LOCK_FILE], "the change is to change something"
    write(folder, changed, {name: _sha256(text) for name, text in texts.items()})


def write(folder: Path, texts: Mapping[str, str], hashes: Mapping[str, str]) -> None:
    """hashes: those of the other files that the document has until now."""
    document = texts[LOCK_FILE].partition("\n")[2]
    for name, text in texts.items():
        if name != LOCK_FILE:
            document = document.replace(hashes[name], _sha256(text))
            (folder / name).write_bytes(text.encode())
    (folder / LOCK_FILE).write_bytes(sealed(document).encode())


def replacing(*pairs: tuple[str, str]) -> Change:
    """Each of the texts by another, wherever it stands."""

    def change(text: str) -> str:
        for old, new in pairs:
            text = text.replace(old, new)
        return text

    return change


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
