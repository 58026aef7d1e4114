"""Texts of counts and lists, for the suite and for envspec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not blank, without the white space around them."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def first_of(texts: Sequence[str], most: int) -> list[str]:
    """At most `most` texts, and how many more there are."""
    shown = list(texts[:most])
    if len(texts) > most:
        shown.append(f"and {len(texts) - most} more")
    return shown


def some_of(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`; one more is named."""
    if len(names) == most + 1:
        most += 1
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


def named_texts(texts: Mapping[str, str]) -> str:
    """`name: text; name: text`."""
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def counted(count: int, noun: str) -> str:
    """`1 package`, `2 packages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
