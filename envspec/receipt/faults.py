"""What pydantic finds wrong, each with its key."""

from __future__ import annotations

from pydantic import ValidationError


def places(fault: ValidationError) -> list[str]:
    """`checks[3].status: ...`, one for each mistake."""
    return [f"{_dotted(found['loc'])}: {_told(found['type'], found['msg'])}" for found in fault.errors()]


def _dotted(path: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "the document"


def _told(kind: str, text: str) -> str:
    words = {"missing": "is missing", "extra_forbidden": "is not known"}
    return words.get(kind, text)
