"""Pythons of this machine, and what they say of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.effects.process import run

_ASK: Final = (
    "import importlib.util, json, platform, sys, sysconfig; print(json.dumps([platform.python_version(),"
    "platform.python_implementation(), bool(sysconfig.get_config_var('Py_GIL_DISABLED')),"
    "int.from_bytes(importlib.util.MAGIC_NUMBER[:2], 'little')]))"
)
_KEPT: Final = ("PATH", "HOME", "SYSTEMROOT")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """path: what to run. version, magic (of its bytecode): what it says of itself."""

    path: Path
    version: str
    magic: int

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])


async def ask(path: Path, environ: Mapping[str, str]) -> Interpreter | None:
    """What an interpreter says of itself; None where it is no CPython with a lock of its own that runs."""
    variables = {name: environ[name] for name in _KEPT if name in environ}
    try:
        done = await run([str(path), "-I", "-c", _ASK], environ=variables, cwd=Path("/"))
        version, implementation, is_free_threaded, magic = json.loads(done.lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    is_usual = implementation == "CPython" and not is_free_threaded
    return Interpreter(path, version, magic) if is_usual else None
