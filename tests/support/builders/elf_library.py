"""ELF files with a dynamic section, as the linker and patchelf lay them, made by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum


class Names(Enum):
    """Where the table of names is: at the beginning (the linker), or just before or far behind the dynamic section."""

    FIRST = "first"
    BEFORE = "before"
    BEHIND = "behind"


def elf(
    needed: Sequence[str] = (),
    *,
    soname: str = "",
    runpath: str = "",
    names: Names = Names.FIRST,
    head: int = 0,
    code: int = 0,
    gap: int = 0,
) -> bytes:
    """A library. head: bytes before everything but the headers. code: between names and dynamic section. gap: between
    the dynamic section and names behind it.
    """
    entries = [(1, each) for each in needed] + [(tag, text) for tag, text in ((14, soname), (29, runpath)) if text]
    table, tags = b"\0", []
    for tag, text in entries:
        tags.append((tag, len(table)))
        table += text.encode() + b"\0"
    section_bytes = 16 * (len(tags) + 3)
    body = bytearray(64 + 2 * 56 + head)
    if names is not Names.BEHIND:
        body += bytes(code) if names is Names.BEFORE else b""
        table_at = len(body)
        body += table
        body += bytes(code) if names is Names.FIRST else b""
        section_at = len(body)
    else:
        body += bytes(code)
        section_at = len(body)
        table_at = section_at + section_bytes + gap
    # Addresses differ from offsets, as they do where a segment begins.
    loaded = 0x1000
    section = b"".join(struct.pack("<qQ", *row) for row in (*tags, (5, loaded + table_at), (10, len(table)), (0, 0)))
    body += section
    if names is Names.BEHIND:
        body += bytes(gap) + table
    rows = ((1, 0, loaded, len(body)), (2, section_at, loaded + section_at, section_bytes))
    for number, (kind, offset, address, size) in enumerate(rows):
        struct.pack_into("<2I6Q", body, 64 + 56 * number, kind, 4, offset, address, address, size, size, 8)
    struct.pack_into("<16s2HI3QI6H", body, 0, b"\x7fELF\2\1\1" + bytes(9), 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    return bytes(body)
