"""Resolutions made before on this machine: the same question is answered without an engine and without a network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from envspec.io.store import Store
from envspec.models import Asker, BuiltWheel, Package, Refusal, Resolution, Target, WheelFile

#: Part of every key: changes whenever the same question would get another answer, or its form changes.
ANSWERS: Final = "8"


def key_of(parts: object) -> str:
    """A short name for a question: `parts` is JSON of everything that decides its answer."""
    text = json.dumps([ANSWERS, parts], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def recall(store: Store, key: str, target: Target) -> Resolution | None:
    row = store.answer(key)
    if row is None:
        return None
    return Resolution(target, tuple(_package(package) for package in row["packages"]), tuple(row["warnings"]))


def remember(store: Store, key: str, resolution: Resolution) -> None:
    packages = [asdict(package) for package in resolution.packages]
    store.put_answer(key, {"packages": packages, "warnings": list(resolution.warnings)})


def _package(row: dict[str, Any]) -> Package:
    return Package(
        name=row["name"],
        version=row["version"],
        file=WheelFile(**row["file"]),
        askers=tuple(Asker(**asker) for asker in row["askers"]),
        uploaded=datetime.fromisoformat(row["uploaded"]) if row["uploaded"] else None,
        newest=Refusal(**row["newest"]) if row["newest"] else None,
        extras=tuple(row["extras"]),
        built=BuiltWheel(**row["built"]) if row.get("built") else None,
        contents=row["contents"],
    )
