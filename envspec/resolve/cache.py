"""Resolutions of earlier runs: an identical request needs neither a resolver nor a network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from envspec.io.store import Store
from envspec.models import BuiltWheel, Dependent, Package, Rejected, Resolution, Target, WheelFile

#: Part of every key. Change it if the same request gives another result, or its stored form changes.
FORMAT: Final = "12"


def key_of(parts: object) -> str:
    """A short key. parts: JSON of everything that decides the result."""
    text = json.dumps([FORMAT, parts], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def get(store: Store, key: str, target: Target) -> Resolution | None:
    stored = store.answer(key)
    if stored is None:
        return None
    return Resolution(target, tuple(map(_package, stored["packages"])), tuple(stored["warnings"]))


def put(store: Store, key: str, resolution: Resolution) -> None:
    packages = [asdict(package) for package in resolution.packages]
    store.put_answer(key, {"packages": packages, "warnings": list(resolution.warnings)})


def _package(fields: dict[str, Any]) -> Package:
    made = {
        "file": WheelFile(**fields["file"]),
        "required_by": tuple(Dependent(**each) for each in fields["required_by"]),
        "uploaded": datetime.fromisoformat(fields["uploaded"]) if fields["uploaded"] else None,
        "rejected": Rejected(**fields["rejected"]) if fields["rejected"] else None,
        "extras": tuple(fields["extras"]),
        "removed": tuple(fields["removed"]),
        "built": BuiltWheel(**fields["built"]) if fields["built"] else None,
    }
    return Package(**{**fields, **made})
