"""A container's output in frames, and its input."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.engine.run import Streams, copy_frames, forwarded_signals, raw_terminal, send_input
from tests.support.servers.faults import Answer
from tests.support.servers.threaded import Exchange, Threaded


class Pieces:
    """A socket that gives its bytes in pieces of these sizes."""

    def __init__(self, content: bytes, sizes: list[int]) -> None:
        self.content, self.sizes = content, sizes

    def recv(self, size: int, /) -> bytes:
        size = min(size, self.sizes.pop(0) if self.sizes else len(self.content))
        piece, self.content = self.content[:size], self.content[size:]
        return piece

    def sendall(self, data: bytes, /) -> None:
        raise AssertionError(data)


FRAMES = st.lists(st.tuples(st.sampled_from((1, 2)), st.binary(max_size=70)), max_size=12)


@given(FRAMES, st.lists(st.integers(1, 30), max_size=40))
def test_frames_come_apart_however_they_are_cut(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    content = b"".join(struct.pack(">BxxxL", number, len(data)) + data for number, data in frames)
    out, err = io.BytesIO(), io.BytesIO()
    copy_frames(Pieces(content, sizes), Streams(None, out, err))
    assert out.getvalue() == b"".join(data for number, data in frames if number == 1)
    assert err.getvalue() == b"".join(data for number, data in frames if number == 2)


def test_input_goes_in_with_its_end() -> None:
    here, there = socket.socketpair()
    reading, writing = os.pipe()
    with here, there, open(reading, "rb", buffering=0) as source:  # noqa: PTH123 (a descriptor)
        send_input(source, here)
        os.write(writing, b"some")
        os.close(writing)
        there.settimeout(10)
        got = b""
        while piece := there.recv(100):
            got += piece
        assert got == b"some"
        there.sendall(b"the other way is open still")
        assert here.recv(100) == b"the other way is open still"


def test_signals_go_to_the_container_while_it_runs() -> None:
    sent: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with forwarded_signals(sent.append, lambda: sent.append("size")):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH):
            signal.raise_signal(number)
        until = time.monotonic() + 10
        while len(sent) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert sent == ["SIGINT", "SIGTERM", "size"]
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_signals_stay_whose_they_are() -> None:
    done: list[bool] = []

    def work() -> None:
        with forwarded_signals(lambda _: None, lambda: None):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert done == [True]


def test_a_killed_runs_container_is_removed() -> None:
    """Also if the engine creates it only after the run was killed."""
    removals: list[str] = []

    class Engine(Threaded):
        def handle(self, request: Exchange) -> None:
            status, document = 200, {"ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"}
            if request.command == "DELETE":
                removals.append(request.path)
                status, document = 404 if len(removals) == 1 else 204, {"message": "no such container"}
            request.answer(Answer(status, json.dumps(document).encode() if status != 204 else b""))

    program = """
import os
from envspec.engine.run import removed_if_killed
with removed_if_killed("it"):
    os.kill(os.getpid(), 9)
"""
    with Engine() as engine:
        environ = os.environ | {"DOCKER_HOST": f"tcp://{engine.host}"}
        assert subprocess.run([sys.executable, "-c", program], env=environ, check=False).returncode == -signal.SIGKILL
        until = time.monotonic() + 30
        while len(removals) < 2 and time.monotonic() < until:
            time.sleep(0.05)
    assert removals == ["/v1.41/containers/it?v=True&link=False&force=True"] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_what_is_typed_while_a_container_starts_is_not_lost() -> None:
    import pty

    person, program = pty.openpty()
    with os.fdopen(program, "rb", buffering=0) as source:
        os.write(person, b"exit 3\n")
        with raw_terminal(source):
            os.write(person, b"\x03")
            typed = b""
            while not typed.endswith(b"\x03"):
                typed += os.read(program, 100)
    os.close(person)
    assert typed == b"exit 3\n\x03"
