"""What a build tells while it runs: BuildKit's trace, or the lines of the builder before it, as lines to read.

Sources: moby/buildkit, `api/services/control/control.proto`, StatusResponse; moby, `api/server/router/build`: with
`version=2` each aux message of `moby.buildkit.trace` is one StatusResponse. Read 2026-11.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from envspec.engine.protobuf import BadMessage, fields

_TRACE: Final = "moby.buildkit.trace"
_IMAGE: Final = "moby.image.id"
#: Colours and what else programs send to terminals.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


@dataclass(frozen=True, slots=True)
class Vertex:
    """A step of a build. digest: its name in other messages. error: why it failed, or was canceled."""

    digest: str
    name: str
    cached: bool = False
    started: bool = False
    completed: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class VertexLog:
    """Bytes that a step wrote. vertex: its digest."""

    vertex: str
    written: bytes


@dataclass(frozen=True, slots=True)
class Status:
    """One message of the trace. warnings: in a line each."""

    vertexes: tuple[Vertex, ...] = ()
    logs: tuple[VertexLog, ...] = ()
    warnings: tuple[str, ...] = ()


def read_status(message: bytes) -> Status:
    """A StatusResponse.

    Raises:
        BadMessage: it is none.
    """
    vertexes: list[Vertex] = []
    logs: list[VertexLog] = []
    warnings: list[str] = []
    for number, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            vertexes.append(_vertex(value))
        elif number == 3:
            logs.append(_log(value))
        elif number == 4:
            warnings += [_text(each) for place, each in fields(value) if place == 3]
    return Status(tuple(vertexes), tuple(logs), tuple(warnings))


def _vertex(message: bytes) -> Vertex:
    found = dict(fields(message))
    return Vertex(
        digest=_text(found.get(1, b"")),
        name=_text(found.get(3, b"")),
        cached=bool(found.get(4, 0)),
        started=5 in found,
        completed=6 in found,
        error=_text(found.get(7, b"")),
    )


def _log(message: bytes) -> VertexLog:
    found = dict(fields(message))
    written = found.get(4, b"")
    return VertexLog(_text(found.get(1, b"")), written if isinstance(written, bytes) else b"")


def _text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise BadMessage(f"a number, {value}, where text is to be")
    return value.decode("utf-8", "replace")


@dataclass(slots=True)
class Told:
    """Turns the messages of a build into lines, each once, whole, in the order in which they came.

    image: its ID, once it is known. error: why the build failed.
    """

    image: str | None = None
    error: str | None = None
    _numbers: dict[str, int] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _open: dict[int, bytes] = field(default_factory=dict)

    def lines(self, message: Mapping[str, Any]) -> list[str]:
        """Lines of one message of `POST /build`, parsed.

        Raises:
            BadMessage: a trace that can't be read.
        """
        aux = message.get("aux")
        if message.get("id") == _TRACE and isinstance(aux, str):
            try:
                return self._trace(read_status(base64.b64decode(aux)))
            except binascii.Error as fault:
                raise BadMessage("a trace that is not base64") from fault
        if isinstance(aux, Mapping) and isinstance(aux.get("ID"), str) and message.get("id") in (None, _IMAGE):
            self.image = aux["ID"]
        if message.get("error") or message.get("errorDetail"):
            detail = message.get("errorDetail")
            said = detail.get("message") if isinstance(detail, Mapping) else None
            self.error = str(said or message.get("error"))
        return self._written(0, str(message.get("stream") or "").encode())

    def rest(self) -> list[str]:
        """What was written without an end of line, once no more comes."""
        left = [self._labelled(number, text) for number, text in sorted(self._open.items()) if text]
        self._open.clear()
        return left

    def _trace(self, status: Status) -> list[str]:
        told: list[str] = []
        for vertex in status.vertexes:
            told += self._step(vertex)
        for log in status.logs:
            # Steps that nothing announced have no number yet.
            told += self._written(self._number(log.vertex), log.written)
        return told + [f"warning: {_plain(text)}" for text in status.warnings]

    def _step(self, vertex: Vertex) -> list[str]:
        told: list[str] = []
        known = vertex.digest in self._numbers
        # Those that only wait for others are told when they start.
        if not known and (vertex.started or vertex.cached):
            told.append(f"#{self._number(vertex.digest)} {_plain(vertex.name)}")
        if vertex.digest in self._done or vertex.digest not in self._numbers:
            return told
        number = self._numbers[vertex.digest]
        if vertex.error:
            end = "canceled" if "context canceled" in vertex.error else f"failed: {_plain(vertex.error)}"
        elif vertex.cached:
            end = "cached"
        elif vertex.completed:
            end = "done"
        else:
            return told
        self._done.add(vertex.digest)
        open_line = self._open.pop(number, b"")
        return [*told, *([self._labelled(number, open_line)] if open_line else []), f"#{number} {end}"]

    def _number(self, digest: str) -> int:
        return self._numbers.setdefault(digest, len(self._numbers) + 1)

    def _written(self, number: int, written: bytes) -> list[str]:
        """Whole lines of what a step wrote."""
        if not written:
            return []
        *whole, self._open[number] = (self._open.get(number, b"") + written).split(b"\n")
        return [self._labelled(number, line) for line in whole if line.strip()]

    def _labelled(self, number: int, line: bytes) -> str:
        """Of a line that was written over, as bars are, its last state."""
        shown = _plain(line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace"))
        return f"#{number} {shown}" if number else shown


def _plain(text: str) -> str:
    """Without what would move a terminal's cursor or colour what follows."""
    return "".join(each for each in _ESCAPES.sub("", text) if each.isprintable() or each == "\t").rstrip()
