"""Golden cases and expected outputs.

A case is one file, `NAME.txtar`, with its parts one after the other: a line `-- PATH --`, then the text of that part up
to the next such line (the format of Go's `txtar`).

`ENVSPEC_WRITE_GOLDEN=1 python -m pytest tests/...` writes the expected outputs that differ: review the difference with
`git diff` before you commit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envspec.documents import parse_toml
from envspec.structs import replace

_HEAD: Final = re.compile(rb"^-- (\S+) --\n", re.MULTILINE)


@dataclass(frozen=True)
class GoldenCase:
    """A golden case.

    path: its file.
    parts: path of a part -> its bytes, in the file's order.
    """

    path: Path
    parts: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return self.path.stem

    def text(self, part: str) -> str:
        return self.parts[part].decode()

    def table(self, part: str) -> dict[str, Any]:
        """A part that is TOML; an empty table if the case does not have it."""
        return parse_toml(self.text(part)) if part in self.parts else {}

    def changed(self, **parts: str) -> GoldenCase:
        """The same case with other texts of parts; `spec` is the part `spec.toml`."""
        changed = {f"{name}.toml": text.encode() for name, text in parts.items()}
        return replace(self, parts={**self.parts, **changed})

    def unpack(self, folder: Path, under: str = "") -> None:
        """Write the parts whose path begins with `under` into a folder, without that beginning."""
        for part, data in self.parts.items():
            if part.startswith(under):
                path = folder / part.removeprefix(under)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def check(self, actual: str, part: str = "expected.txt") -> None:
        """Compare an output with its part; written first if ENVSPEC_WRITE_GOLDEN is set."""
        if os.environ.get("ENVSPEC_WRITE_GOLDEN"):
            parts = {**read_case(self.path).parts, part: actual.encode()}
            self.path.write_bytes(b"".join(f"-- {name} --\n".encode() + data for name, data in parts.items()))
        expected = read_case(self.path).text(part)
        assert actual == expected


def read_case(path: Path) -> GoldenCase:
    before, *rest = _HEAD.split(path.read_bytes())
    assert before == b"", f"{path} does not begin with a line `-- PATH --`"
    return GoldenCase(path, {name.decode(): data for name, data in zip(rest[::2], rest[1::2], strict=True)})


def read_cases(folder: Path) -> list[GoldenCase]:
    """All cases of a folder, sorted by name."""
    return [read_case(path) for path in sorted(folder.glob("*.txtar"))]


def assert_golden(actual: str, path: Path) -> None:
    """Compare an output with its file.

    actual: the output.
    path: the file with the expected one; written first if ENVSPEC_WRITE_GOLDEN is set.
    """
    if os.environ.get("ENVSPEC_WRITE_GOLDEN"):
        path.write_bytes(actual.encode())
    expected = path.read_bytes().decode()
    assert actual == expected
