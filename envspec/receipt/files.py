"""receipt.json: written, read, and its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from envspec.errors import UsageError
from envspec.receipt.faults import places
from envspec.receipt.values import FORMAT, Receipt

RECEIPT_FILE: Final = "receipt.json"
_WHAT: Final = "name a receipt.json, or a folder that holds one"


class BadReceipt(UsageError):
    """A file that is no receipt, or one that was changed into what is none."""


class NewerReceipt(UsageError):
    """A receipt of a format that this envspec does not read."""


def dump(receipt: Receipt) -> str:
    """The receipt as JSON; the same text for the same receipt."""
    return receipt.model_dump_json(indent=2) + "\n"


def read(path: Path) -> Receipt:
    """The receipt in a file, or in a folder's receipt.json.

    Raises:
        BadReceipt: it can't be read, or a key of it is missing or wrong; names the file and every such key.
        NewerReceipt: a newer envspec wrote it.
    """
    if path.is_dir():
        path = path / RECEIPT_FILE
    try:
        return load(path.read_text(encoding="utf-8"), str(path))
    except OSError as fault:
        raise BadReceipt(f"{path} can't be read: {fault.strerror}", hint=_WHAT) from fault
    except UnicodeDecodeError as fault:
        raise BadReceipt(f"{path} is no receipt: it is not UTF-8", hint=_WHAT) from fault


def load(text: str, where: str) -> Receipt:
    """The receipt that `text` holds. where: how messages name it.

    Raises:
        BadReceipt, NewerReceipt: as `read`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise BadReceipt(f"{where} is no JSON: {fault}", hint=_WHAT) from fault
    found = data.get("format") if isinstance(data, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise NewerReceipt(
            f"{where} is a receipt of format {found}, this envspec reads up to {FORMAT}",
            hint=f"envspec {data.get('envspec', 'that is newer')} wrote it: update envspec",
        )
    if not isinstance(found, int) or "checks" not in data:
        raise BadReceipt(
            f"{where} is no receipt: it has no format and checks of one", hint="`envspec conformance` writes receipts"
        )
    try:
        return Receipt.model_validate_json(text)
    except ValidationError as fault:
        raise BadReceipt(
            f"{where} is no whole receipt: {'; '.join(places(fault))}", hint="take the file as envspec wrote it"
        ) from fault


def json_schema() -> dict[str, Any]:
    """The receipt's JSON schema, draft 2020-12."""
    schema = Receipt.model_json_schema(mode="serialization")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envspec: receipt.json",
        **{key: value for key, value in schema.items() if key != "title"},
    }
