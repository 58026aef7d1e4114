"""What an environment says of itself: `.envspec/installed.json`, the lock that it was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from envspec.install.order import Order

#: envspec's own folder in an environment.
FOLDER: Final = ".envspec"
_FILE: Final = "installed.json"


def describe(order: Order) -> dict[str, str]:
    """The record of an environment that is made by `order`."""
    return {
        "name": order.lock.name,
        "platform": order.platform.value,
        "input_sha256": order.lock.input_sha256,
        "lock_sha256": order.lock_sha256,
        "prefix": str(order.prefix),
    }


def write(folder: Path, record: dict[str, str]) -> None:
    """Write the record of the environment that lies in `folder`."""
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / FOLDER / _FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read(prefix: Path) -> dict[str, str] | None:
    """The record of the environment in `prefix`; None where there is none that can be read."""
    try:
        data = json.loads((prefix / FOLDER / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    return {str(key): value for key, value in data.items() if isinstance(value, str)}
