"""Resolutions of earlier runs: an identical request needs neither a resolver nor a network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from envspec.io.store import Store
from envspec.models import (
    BuiltWheel,
    Dependent,
    HeldBack,
    InstalledPackage,
    Package,
    Rejected,
    Resolution,
    SharedFiles,
    Target,
    Unbuilt,
    WheelFile,
    WrongRow,
)
from envspec.reasons import Reason, Why

#: Part of every key. Change it if the same request gives another result, or its stored form changes.
FORMAT: Final = "23"


def key_of(parts: object) -> str:
    """A short key. parts: JSON of everything that decides the result."""
    text = json.dumps([FORMAT, parts], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def get(store: Store, key: str, target: Target) -> Resolution | None:
    """The resolution that `put` got; None if there is none."""
    stored = store.answer(key)
    if stored is None or "shared" not in stored:
        return None
    installed = tuple(map(_installed, stored["installed"]))
    packages = tuple(map(_package, stored["packages"]))
    shared = tuple(map(_shared, stored["shared"]))
    warnings, moved = _why(stored["warnings"]), tuple(stored["moved"])
    held_back = tuple(HeldBack(each["name"], _reason(each["warning"]), each["since"]) for each in stored["held_back"])
    return Resolution(target, packages, warnings, installed=installed, shared=shared, moved=moved, held_back=held_back)


def put(store: Store, key: str, resolution: Resolution) -> None:
    packages = list(map(asdict, resolution.packages))
    for fields in packages:
        if fields["unbuilt"]:
            fields["unbuilt"] = fields["unbuilt"].value
    answer = {
        "packages": packages,
        "installed": list(map(asdict, resolution.installed)),
        "shared": list(map(asdict, resolution.shared)),
        "warnings": list(map(asdict, resolution.warnings)),
        "moved": list(resolution.moved),
        "held_back": list(map(asdict, resolution.held_back)),
    }
    store.put_answer(key, answer)


def _reason(fields: dict[str, Any]) -> Reason:
    return Reason(fields["code"], tuple(map(tuple, fields["values"])), _why(fields["because"]))


def _why(rows: Iterable[dict[str, Any]]) -> Why:
    return tuple(map(_reason, rows))


def _rejected(fields: dict[str, Any] | None) -> Rejected | None:
    return Rejected(fields["version"], _why(fields["why"])) if fields else None


def _installed(fields: dict[str, Any]) -> InstalledPackage:
    return InstalledPackage(**{**fields, "required_by": _dependents(fields["required_by"])})


def _dependents(rows: Iterable[dict[str, Any]]) -> tuple[Dependent, ...]:
    return tuple(Dependent(**each) for each in rows)


def _shared(fields: dict[str, Any]) -> SharedFiles:
    return SharedFiles(**{**fields, "others": tuple(fields["others"]), "paths": tuple(fields["paths"])})


def _package(fields: dict[str, Any]) -> Package:
    made = {
        "file": WheelFile(**fields["file"]),
        "required_by": _dependents(fields["required_by"]),
        "uploaded": datetime.fromisoformat(fields["uploaded"]) if fields["uploaded"] else None,
        "rejected": _rejected(fields["rejected"]),
        "preferred": _rejected(fields["preferred"]),
        "extras": tuple(fields["extras"]),
        "removed": tuple(fields["removed"]),
        "built": BuiltWheel(**fields["built"]) if fields["built"] else None,
        "unbuilt": Unbuilt(fields["unbuilt"]) if fields.get("unbuilt") else None,
        "wrong_record": tuple(WrongRow(**each) for each in fields["wrong_record"]),
    }
    return Package(**{**fields, **made})
