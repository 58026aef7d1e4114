"""What every part of a diff is shown with: names of platforms, arrows, short hashes, cells of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from envspec.lock.diff import LockDiff
from envspec.models import Platform

_HASH: Final = re.compile(r"\b[0-9a-f]{64}\b")


def short_hashes(text: str) -> str:
    """`text` with each SHA-256 in it by its first digits, those that people compare."""
    return _HASH.sub(lambda found: found[0][:12], text)


def several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def where(platforms: Sequence[Platform], diff: LockDiff) -> str:
    """The platforms by name; empty for none, and for all that both locks have."""
    if not platforms or tuple(platforms) == diff.platforms:
        return ""
    return ", ".join(platform.value for platform in platforms)


def arrow(head: str, old: str, new: str, note: str, width: int) -> list[str]:
    """`old -> new` on one line, or on two where that is too long."""
    line = f"{head}{old} -> {new}{note}"
    if len(line) <= width:
        return [line]
    return [f"{head}{old}", f"{' ' * max(len(head) - 3, 2)}-> {new}{note}"]


def versions(old: str | None, new: str | None) -> str:
    if old == new or old is None or new is None:
        return new or old or ""
    return f"{old} -> {new}"


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
