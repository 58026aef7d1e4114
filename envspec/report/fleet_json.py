"""Receipts side by side for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from envspec.receipt.comparison import Comparison, Line
from envspec.receipt.fleet import columns
from envspec.report.fleet import sections


def render(comparison: Comparison) -> str:
    """An object: names, differs, what is not the same by section, numbers, and the main numbers of each receipt."""
    told: dict[str, Any] = {
        "receipts": list(comparison.names),
        "differs": comparison.differs,
        "is_same_kind": comparison.is_same_kind,
        "faults": [f"{line.what}: {line.told}" for line in comparison.faults],
        "different": {title: [_line(line) for line in lines] for title, lines in sections(comparison)},
        "numbers": [{**asdict(number), "better": number.better.value} for number in comparison.numbers],
        "main": [asdict(column) for column in columns(comparison.receipts)],
    }
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _line(line: Line) -> dict[str, Any]:
    return {**asdict(line), "weight": line.weight.value}
