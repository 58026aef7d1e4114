"""Secrets that are planted, and all the places where they must not be found."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from urllib.parse import quote, unquote

#: Files that are larger are no leftovers of envspec's.
_LARGEST = 8 << 20


def secret(special: str = "") -> str:
    """A new one. special: characters to have in its middle."""
    return f"Zq{secrets.token_hex(6)}{special}{secrets.token_hex(6)}9"


def forms(planted: str) -> set[str]:
    """How it may look: percent-encoded, in JSON, and in base64 at each of three offsets."""
    found = {planted, quote(planted, safe=""), quote(planted), quote(planted, safe="").lower(), unquote(planted)}
    found.add(json.dumps(planted)[1:-1])
    for ahead in range(3):
        whole = base64.b64encode(b"x" * ahead + planted.encode()).decode()
        # The first and the last characters depend on what is beside.
        found.add(whole[4 if ahead else 0 : len(whole) - 4])
    # A password that was cut where a URL ends.
    return found | {
        part for part in planted.replace("@", "/").replace("?", "/").replace("#", "/").split("/") if len(part) > 8
    }


class Watch:
    """Reads, while it is entered, the arguments of every process that was started since, and all files of folders."""

    def __init__(self, planted: str, *folders: Path) -> None:
        self.found: set[str] = set()
        self._forms = [form.encode() for form in forms(planted)]
        self._folders = folders
        self._others = set(_processes())
        self._end = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.01):
            for name in _processes():
                if name not in self._others:
                    self._read(Path("/proc", name, "cmdline"))
            for folder in self._folders:
                for path in files_of(folder):
                    self._read(path)

    def _read(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if any(form in content for form in self._forms):
                self.found.add(f"{path}: {content[:300]!r}")


def _processes() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]


def files_of(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(OSError):
                if not path.is_symlink() and path.is_file() and path.stat().st_size <= _LARGEST:
                    yield path


def holding(folder: Path, planted: str, *, but: tuple[Path, ...] = ()) -> list[str]:
    """The files below a folder that hold a secret in any form, packed by zlib as well; names of files count too."""
    wanted = [form.encode() for form in forms(planted)]
    found = []
    for path in files_of(folder):
        if path in but:
            continue
        content = path.read_bytes() + b"\0" + os.fsencode(path)
        for at in (n for head in (b"\x78\x9c", b"\x78\x01", b"\x1f\x8b\x08") for n in _all(content, head)):
            with contextlib.suppress(zlib.error):
                content += zlib.decompressobj(wbits=47).decompress(content[at:], _LARGEST)
        found += [f"{path}: {form!r}" for form in wanted if form in content]
    return found


def _all(content: bytes, part: bytes) -> list[int]:
    found: list[int] = []
    at = content.find(part)
    while at >= 0 and len(found) < 100:
        found.append(at)
        at = content.find(part, at + 1)
    return found
