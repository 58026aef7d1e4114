"""What the wheels that were unpacked here hold of GPU code: kept by hash, and told also where they are gone."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Final

from envspec.model import GpuCodeFound

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def seen(cache: Path, sha256: str) -> GpuCodeFound | None:
    """The GPU code of the wheel with this hash; None where none was found, or nobody has looked.

    What can't be read, or was damaged, counts as not seen: it is for the eye alone, and written anew by the next build.
    """
    try:
        told = json.loads(_path(cache, sha256).read_bytes())
        return GpuCodeFound(_names(told["sm"], "sm_"), _names(told["ptx"], "compute_"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(cache: Path, sha256: str, found: GpuCodeFound) -> None:
    """Remember it.

    Raises:
        OSError: the cache can't be written.
    """
    path = _path(cache, sha256)
    if seen(cache, sha256) == found:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps({"sm": found.sm, "ptx": found.ptx}), encoding="utf-8")
        unfinished.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()


def _path(cache: Path, sha256: str) -> Path:
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    return cache / "gpu-code" / sha256[:2] / f"{sha256}.json"


def _names(told: object, prefix: str) -> tuple[str, ...]:
    names = told if isinstance(told, list) else []
    if not all(isinstance(name, str) and name.startswith(prefix) for name in names):
        raise ValueError("not a list of architectures")
    return tuple(names)
