"""Reads protobuf's wire format, as far as messages of a few fields need it.

Source: Protocol Buffers documentation, "Encoding". Read 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
#: A varint has at most 64 bits, seven to a byte.
_LONGEST: Final = 10


class BadMessage(ValueError):
    """These bytes are no protobuf message."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of every field, in order: a number for varints, bytes for strings, messages and fixed numbers.

    Raises:
        BadMessage: it is cut, or no message at all.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise BadMessage(f"a field of kind {kind}")
        if at + size > len(message):
            raise BadMessage(f"field {number} has {size} bytes, {len(message) - at} are left")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _LONGEST]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return value, at + place + 1
    raise BadMessage("a number without an end")
