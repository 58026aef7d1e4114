"""ELF libraries with GPU code as nvcc and patchelf leave them, made by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PTX = 1
CUBIN = 2
#: Flags of an entry: 64 bits, Linux; and for one architecture alone, or for its family.
PLAIN = 0x11
ACCELERATED = 0x100011
FAMILY = 0x200011


@dataclass(frozen=True)
class Code:
    """One entry of a container. header_bytes: newer compilers write longer headers."""

    kind: int
    arch: int
    flags: int = PLAIN
    payload: bytes = b"\x7fELF" + bytes(60)
    header_bytes: int = 64


def container(codes: Sequence[Code]) -> bytes:
    """A container with these entries, one after the other."""
    entries = b""
    for code in codes:
        head = struct.pack(
            "<HHIQIIHHIIIQQQ",
            *(code.kind, 0x101, code.header_bytes, len(code.payload), 0, 0, 7, 8, code.arch, 0, 0, code.flags, 0, 0),
        )
        entries += head.ljust(code.header_bytes, b"\0") + code.payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def library(sections: Sequence[tuple[str, bytes]], *, after_table: bytes = b"", names_beside: bool = True) -> bytes:
    """A library with these sections; sections of one name may come again.

    after_table: what follows the section table, as where patchelf has grown a library. names_beside: whether the names
    of the sections lie before their table, as linkers put them, or at the library's beginning.
    """
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in sections) + b".shstrtab\0"
    body = bytearray(64)
    rows = []
    if not names_beside:
        body += names
    for name, content in sections:
        body += bytes(-len(body) % 8)
        rows.append((names.index(b"\0" + name.encode() + b"\0") + 1, len(body), len(content)))
        body += content
    at = len(body) if names_beside else 64
    if names_beside:
        body += names
    rows.append((names.index(b".shstrtab"), at, len(names)))
    body += bytes(-len(body) % 8)
    table = len(body)
    body += bytes(64)
    for name_at, offset, size in rows:
        body += struct.pack("<2I4Q2I2Q", name_at, 1, 2, 0, offset, size, 0, 0, 8, 0)
    head = struct.pack(
        "<16s2HI3QI6H", b"\x7fELF\2\1\1" + bytes(9), 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, len(rows) + 1, len(rows)
    )
    body[:64] = head
    return bytes(body) + after_table
