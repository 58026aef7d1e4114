"""receipt.json."""

from __future__ import annotations

from envspec.receipt.files import dump
from envspec.receipt.values import Receipt


def render(receipt: Receipt) -> str:
    """The receipt as JSON."""
    return dump(receipt)
