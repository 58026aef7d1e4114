"""What the wheels that were unpacked here hold of GPU code: kept by hash, and told also where they are gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from envspec.effects.notes import Notes
from envspec.model import GpuCodeFound

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def seen(cache: Path, sha256: str) -> GpuCodeFound | None:
    """The GPU code of the wheel with this hash; None where none was found, or nobody has looked.

    What can't be read, or was damaged, counts as not seen: it is for the eye alone, and written anew by the next build.
    """
    try:
        told = _notes(cache, sha256).read(sha256)
        return GpuCodeFound(_names(told["sm"], "sm_"), _names(told["ptx"], "compute_"))
    except (ValueError, KeyError, TypeError):
        return None


def keep(cache: Path, sha256: str, found: GpuCodeFound) -> None:
    """Remember it.

    Raises:
        CannotKeep: the cache can't be written.
    """
    if seen(cache, sha256) != found:
        _notes(cache, sha256).write(sha256, {"sm": found.sm, "ptx": found.ptx})


def _notes(cache: Path, sha256: str) -> Notes:
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    return Notes(cache / "gpu-code" / sha256[:2])


def _names(told: object, prefix: str) -> tuple[str, ...]:
    names = told if isinstance(told, list) else []
    if not all(isinstance(name, str) and name.startswith(prefix) for name in names):
        raise ValueError("not a list of architectures")
    return tuple(names)
