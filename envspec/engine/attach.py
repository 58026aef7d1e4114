"""A container's input and output, joined to this process's, while its signals are handed on.

Source: Docker Engine API 1.41, "ContainerAttach", stream format. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, Final, Protocol, cast

_PIECE: Final = 1 << 16
#: A frame: the stream's number, three zeros, the length.
_HEAD: Final = struct.Struct(">BxxxL")
_STDERR: Final = 2
#: Those that a shell, an init or a scheduler sends to what it started.
_HANDED_ON: Final = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
    if hasattr(signal, name)
)
_RESIZED: Final = getattr(signal, "SIGWINCH", None)


@dataclass(frozen=True, slots=True)
class Streams:
    """This process's own. stdin: None where the container gets none."""

    stdin: BinaryIO | None
    stdout: BinaryIO
    stderr: BinaryIO


class Socket(Protocol):
    """What the SDK gives for a hijacked connection."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


def socket_of(stream: object) -> Socket:
    """The socket below the SDK's stream, without a limit on how long it may be silent."""
    # Pipes of Windows, TLS and ssh are of types of the SDK's own.
    inner = cast("Socket", getattr(stream, "_sock", stream))
    if isinstance(inner, socket.socket):
        inner.settimeout(None)
    return inner


def send_input(source: BinaryIO, to: Socket) -> None:
    """In the background: what comes in goes to the container, and so does its end."""

    def pump() -> None:
        # The container may have ended meanwhile: nobody is left to read.
        with contextlib.suppress(OSError, ValueError):
            number = source.fileno()
            while piece := os.read(number, _PIECE):
                to.sendall(piece)
        with contextlib.suppress(OSError):
            if isinstance(to, socket.socket):
                to.shutdown(socket.SHUT_WR)

    # A daemon: it may wait for a key that nobody presses any more.
    threading.Thread(target=pump, name="container-stdin", daemon=True).start()


def copy_terminal(source: Socket, to: BinaryIO) -> None:
    """A terminal's output, until the container ends."""
    while piece := source.recv(_PIECE):
        to.write(piece)
        to.flush()


def copy_frames(source: Socket, streams: Streams) -> None:
    """Output in frames, stdout and stderr apart, until the container ends.

    Raises:
        BrokenPipeError: nobody reads our output any more.
    """
    waiting = bytearray()
    left, to = 0, streams.stdout
    while piece := source.recv(_PIECE):
        waiting += piece
        while waiting:
            if not left:
                if len(waiting) < _HEAD.size:
                    break
                number, left = _HEAD.unpack_from(waiting)
                del waiting[: _HEAD.size]
                to = streams.stderr if number == _STDERR else streams.stdout
                continue
            to.write(waiting[:left])
            taken = min(left, len(waiting))
            del waiting[:taken]
            left -= taken
        streams.stdout.flush()
        streams.stderr.flush()


@contextlib.contextmanager
def signals_handed_on(send: Callable[[str], None], resized: Callable[[], None]) -> Iterator[None]:
    """Signals that this process gets go to the container, which decides what they mean; so do the terminal's sizes.

    send: gives the container a signal by its name, `SIGINT`. It is called by a thread of its own: a handler runs in the
    middle of anything, and asking an engine is not a thing to do there.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread gets signals; whoever runs this elsewhere handles its own.
        yield
        return
    came: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def take(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signal module's signature)
        came.put(number)

    def hand_on() -> None:
        while (number := came.get()) is not None:
            if number == _RESIZED:
                resized()
            else:
                send(signal.Signals(number).name)

    thread = threading.Thread(target=hand_on, name="container-signals", daemon=True)
    thread.start()
    numbers = (*_HANDED_ON, *((_RESIZED,) if _RESIZED else ()))
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        came.put(None)
        thread.join(timeout=5)


@contextlib.contextmanager
def raw_terminal(source: BinaryIO) -> Iterator[None]:
    """Keys go through as they are pressed: Ctrl-C, too, is the container's. The terminal is put back at the end."""
    if sys.platform == "win32":
        yield
        return
    import termios
    import tty

    number = source.fileno()
    before = termios.tcgetattr(number)
    # Python's own choice would throw away what was typed while the container started.
    tty.setraw(number, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def terminal_size() -> tuple[int, int]:
    """Rows and columns."""
    size = shutil.get_terminal_size()
    return size.lines, size.columns
