"""Run a container attached, with its signals.

Source: Docker Engine API 1.41, "ContainerAttach" for the stream format. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import BinaryIO, Final, Protocol, cast

from msgspec import Struct

from envspec.engine.client import Engine, ignored_errors, open_engine, packed_tar, remove_container, sdk_errors
from envspec.engine.container import ContainerSettings, Terminal, User, create_body, moved_services
from envspec.engine.errors import EngineError, LimitsRefused, PortTaken
from envspec.engine.local import Response
from envspec.errors import EnvspecError
from envspec.io.cache import JsonCache
from envspec.structs import replace

_PIECE: Final = 1 << 16
#: A frame: the stream's number, three zeros, the length.
_HEAD: Final = struct.Struct(">BxxxL")
_STDERR: Final = 2
#: Those that shells, inits and schedulers send to their programs.
_FORWARDED: Final = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
    if hasattr(signal, name)
)
_RESIZED: Final = getattr(signal, "SIGWINCH", None)


class Streams(Struct, frozen=True):
    """Of this process. stdin: None if the container gets none."""

    stdin: BinaryIO | None
    stdout: BinaryIO
    stderr: BinaryIO


class Socket(Protocol):
    """The SDK's type of a hijacked connection."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


def socket_of(stream: object) -> Socket:
    """The socket below the SDK's stream, without a timeout."""
    # For pipes of Windows, TLS and ssh the SDK has types of its own.
    inner = cast("Socket", getattr(stream, "_sock", stream))
    if isinstance(inner, socket.socket):
        inner.settimeout(None)
    return inner


def send_input(source: BinaryIO, to: Socket) -> None:
    """Copy input to the container in the background, including its end."""

    def pump() -> None:
        # The container may have ended meanwhile.
        with contextlib.suppress(OSError, ValueError):
            number = source.fileno()
            while piece := os.read(number, _PIECE):
                to.sendall(piece)
        with contextlib.suppress(OSError):
            if isinstance(to, socket.socket):
                to.shutdown(socket.SHUT_WR)

    # A daemon: it may wait for input after the container has ended.
    threading.Thread(target=pump, name="container-stdin", daemon=True).start()


def copy_frames(source: Socket, streams: Streams) -> None:
    """Copy stdout and stderr, which come in frames, until the container ends.

    Raises:
        BrokenPipeError: the reader of our output has ended.
    """
    head = b""
    while piece := source.recv(_HEAD.size - len(head)):
        head += piece
        if len(head) < _HEAD.size:
            continue
        number, left = _HEAD.unpack(head)
        head, to = b"", streams.stderr if number == _STDERR else streams.stdout
        while left and (piece := source.recv(min(left, _PIECE))):
            to.write(piece)
            to.flush()
            left -= len(piece)


@contextlib.contextmanager
def forwarded_signals(send: Callable[[str], None], resized: Callable[[], None]) -> Iterator[None]:
    """Forward this process's signals to the container, and changes of the terminal's size.

    send: sends a signal by its name, `SIGINT`. A thread calls it: a signal handler must not call an engine.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread gets signals.
        yield
        return
    received: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signal module's signature)
        received.put(number)

    def forward() -> None:
        while (number := received.get()) is not None:
            if number == _RESIZED:
                resized()
            else:
                send(signal.Signals(number).name)

    thread = threading.Thread(target=forward, name="container-signals", daemon=True)
    thread.start()
    numbers = filter(None, (*_FORWARDED, _RESIZED))
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        received.put(None)
        thread.join(timeout=5)


@contextlib.contextmanager
def raw_terminal(source: BinaryIO) -> Iterator[None]:
    """Pass keys through unprocessed, Ctrl-C too; the terminal is restored at the end."""
    if sys.platform == "win32":
        yield
        return
    import termios
    import tty

    number = source.fileno()
    before = termios.tcgetattr(number)
    # Python's default would discard what was typed while the container started.
    tty.setraw(number, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


#: A container may be half created when its starter is killed; an engine may be restarting.
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 1.0
#: Imports hardly anything until needed: it is a second process for each container. Ignores its starter's signals.
_GUARD: Final = """
import os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
if sys.stdin.buffer.read(1):
    # The run waits for this process, and Python's own end takes 2 ms.
    os._exit(0)
import json
container, sys.path[:] = json.loads(sys.argv[1])
from envspec.engine.run import remove_from_own_engine
remove_from_own_engine(container)
"""


@contextlib.contextmanager
def removed_if_killed(container: str) -> Iterator[None]:
    """Remove a container if this process is killed. container: its name, which need not exist yet.

    A process in a session of its own waits for the end of a pipe; a byte through the pipe means a normal end.
    """
    command = [sys.executable, "-I", "-S", "-c", _GUARD, json.dumps([container, sys.path])]
    with subprocess.Popen(  # noqa: S603 (no shell; the arguments are ours)
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as guard:
        try:
            yield
        finally:
            # It may have been killed.
            with contextlib.suppress(BrokenPipeError):
                guard.communicate(b".")


def remove_from_own_engine(container: str) -> None:
    """Remove it, running or not, from the engine of this process's environment."""
    for _ in range(_ATTEMPTS):
        # Errors have no reader here.
        with contextlib.suppress(EnvspecError), ignored_errors(), open_engine(os.environ) as engine:
            remove_container(engine, container, {409})
            return
        time.sleep(_PAUSE_S)


#: Configures init and health check of an image with services.
_SERVICES: Final = "opt/envspec/services.json"
_ACCOUNTS: Final = ("/etc/passwd", "/etc/group")
_IMAGE_ID: Final = re.compile(r"sha256:([0-9a-f]{64})")
#: Dynamic ports (RFC 6335, 6).
_FREE_PORTS: Final = range(49152, 65536)
_PORT_ATTEMPTS: Final = 10
#: The default keys for detaching, such as ctrl-p, are used in shells: these are not.
_DETACH_KEYS: Final = "ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^"
#: Of a file that is read from a container, including its tar.
_SMALL_BYTES: Final = 8 << 20
_STARTING: Final = "starting the container"


def run(
    engine: Engine,
    image: str,
    settings: ContainerSettings,
    streams: Streams,
    log: Callable[[str], None],
    accounts: JsonCache,
) -> int:
    """Run it to its end; the command's exit code, 128 + N if signal N ended it.

    image: its name in the engine. log: gets warnings, and the ports that the engine chose; services' URLs are printed
    by their init. accounts: keeps images' files of accounts, each of which an engine takes 0.05 s to read.

    Raises:
        NoGpuRuntime, NoSuchProgram, CannotStart, PortTaken, EngineError: it can't be started. EngineUnreachable: the
        engine stopped responding. The container is removed if possible.
    """
    for warning in settings.warnings:
        log(f"warning: {warning}")
    moved = 0
    while True:
        try:
            return _run(engine, image, settings, streams, log, accounts)
        except PortTaken as error:
            others = settings.without_port(error.port, lambda: secrets.choice(_FREE_PORTS))
            moved += 1
            if others == settings or moved > _PORT_ATTEMPTS:
                raise
            names = [old.service for old, new in zip(settings.ports, others.ports, strict=True) if old != new]
            get = "gets" if len(names) == 1 else "get"
            log(f"warning: {error.message}, and {' and '.join(names)} {get} another one")
            settings = others
        except LimitsRefused as error:
            if not settings.limits:
                raise
            log(f"warning: {error.message}; transfers between machines by RDMA may need it")
            settings = replace(settings, limits=False)


def account_files(passwd: bytes, group: bytes, user: User, home: str) -> dict[str, bytes]:
    """/etc/passwd and /etc/group with the user, which ssh and git require.

    The user's line is the first, so that it is found by its name and by its number.
    """
    shell = f"{user.name}:x:{user.uid}:{user.gid}:{user.name}:{home}:/bin/sh\n".encode()
    files = {"etc/passwd": shell + passwd}
    without_names = b"".join(line.partition(b":")[2] for line in group.splitlines(keepends=True))
    if f":{user.gid}:".encode() not in without_names:
        files["etc/group"] = group + f"{user.name}:x:{user.gid}:\n".encode()
    return files


def _run(
    engine: Engine,
    image: str,
    settings: ContainerSettings,
    streams: Streams,
    log: Callable[[str], None],
    accounts: JsonCache,
) -> int:
    # With a chosen name, a container whose creation was interrupted can be removed too.
    name = f"envspec-{secrets.token_hex(6)}"
    client = engine.containers
    with removed_if_killed(name), contextlib.ExitStack() as at_end:
        at_end.callback(_remove_at_end, engine, name)
        with engine.errors_while("making the container"):
            client.create_container_from_config({**create_body(settings), "Image": image}, name)
            _put_files(engine, name, image, settings, accounts)
            params = {"stream": 1, "stdout": 1, "stderr": 1, "stdin": int(settings.stdin), "detachKeys": _DETACH_KEYS}
            stream = client.attach_socket(name, params=params)
        started = threading.Event()
        with _waiting(engine, name) as wait, _signals(engine, name, started):
            try:
                with engine.errors_while(_STARTING):
                    client.start(name)
            finally:
                started.set()
            _log_ports(engine, name, settings, log)
            with engine.errors_while("running the command"):
                _join(engine, name, settings, streams, socket_of(stream))
                ended = wait.json()
            if error := (ended.get("Error") or {}).get("Message"):
                raise EngineError(f"the engine lost the container: {error}")
            # Without an error it is removed.
            at_end.pop_all()
            return int(ended["StatusCode"])


def _join(engine: Engine, name: str, settings: ContainerSettings, streams: Streams, joined: Socket) -> None:
    with contextlib.ExitStack() as undo:
        if settings.terminal is Terminal.TTY:
            _resize(engine, name)
            if streams.stdin is not None:
                undo.enter_context(raw_terminal(streams.stdin))
        if settings.stdin and streams.stdin is not None:
            send_input(streams.stdin, joined)
        if settings.terminal is Terminal.PIPES:
            copy_frames(joined, streams)
            return
        while piece := joined.recv(_PIECE):
            streams.stdout.write(piece)
            streams.stdout.flush()


@contextlib.contextmanager
def _waiting(engine: Engine, name: str) -> Iterator[Response]:
    """The response with the exit code, requested before the start: a container that removes itself has none later."""
    client = engine.containers
    url = f"{client.base_url}/v{client.api_version}/containers/{name}/wait"
    with engine.errors_while(_STARTING):
        response = client.post(url, params={"condition": "removed"}, stream=True, timeout=None)
    with response:
        yield response


def _signals(engine: Engine, name: str, started: threading.Event) -> contextlib.AbstractContextManager[None]:
    def send(signal_name: str) -> None:
        # Signals during the start are the command's as well.
        started.wait()
        # It may have just ended.
        with ignored_errors():
            engine.containers.kill(name, signal_name)

    return forwarded_signals(send, lambda: _resize(engine, name))


def _resize(engine: Engine, name: str) -> None:
    size = shutil.get_terminal_size()
    # A wrong size is no reason to stop a run.
    with ignored_errors():
        engine.containers.resize(name, size.lines, size.columns)


def _put_files(engine: Engine, name: str, image: str, settings: ContainerSettings, accounts: JsonCache) -> None:
    """Write the user's account and folders, and the addresses of services."""
    user, texts = settings.user, dict[str, bytes]()
    folders: tuple[str, ...] = ()
    if user.uid != 0:
        # root has an account and a home, and makes other folders itself: an engine takes 0.05 s for each of these.
        passwd, group = image_accounts(engine, name, image, settings, accounts)
        texts, folders = account_files(passwd, group, user, settings.home), settings.made
    if (settings.listening or settings.address) and (document := _read(engine, name, f"/{_SERVICES}")):
        texts[_SERVICES] = moved_services(document, settings.listening, settings.address)
    texts = {path: text for path, text in texts.items() if not settings.is_mounted(path)}
    if texts or folders:
        engine.containers.put_archive(name, "/", packed_tar(folders, texts, (user.uid, user.gid)))


def image_accounts(
    engine: Engine, name: str, image: str, settings: ContainerSettings, accounts: JsonCache
) -> tuple[bytes, bytes]:
    """/etc/passwd and /etc/group of a new container, which are its image's unless a mount hides them."""
    key, platform = "", engine.facts.platform
    # An ID may be that of an index, which has an image for each platform.
    if platform and (by_id := _IMAGE_ID.fullmatch(image)) and not any(map(settings.is_mounted, _ACCOUNTS)):
        key = f"{by_id[1]}-{platform.value}"
    if key and (known := accounts.read_as(key, tuple[bytes, bytes])):
        return known
    passwd, group = (_read(engine, name, path) for path in _ACCOUNTS)
    if key:
        with contextlib.suppress(EnvspecError):
            accounts.write(key, (passwd, group))
    return passwd, group


def _read(engine: Engine, name: str, path: str) -> bytes:
    """A small file of a container; empty if there is none, or no regular file."""
    try:
        chunks, _ = engine.containers.get_archive(name, path)
    except sdk_errors() as error:
        if getattr(error, "status_code", None) != 404:
            raise
        return b""
    return only_file(chunks, path)


def only_file(chunks: Iterable[bytes], path: str) -> bytes:
    """The content of the only file in a tar; empty if it is not a regular file. path: for the message.

    Raises:
        EngineError: it is too large, or the engine ended the tar early.
    """
    packed = bytearray()
    for chunk in chunks:
        packed += chunk
        if len(packed) > _SMALL_BYTES:
            raise EngineError(
                f"{path} in the image is larger than {_SMALL_BYTES >> 20} MiB", hint="use another base image"
            )
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
            member = tar.next()
            if member is None or not member.isreg():
                return b""
            file = tar.extractfile(member)
            return file.read() if file else b""
    except tarfile.TarError as error:
        raise EngineError(
            f"{path} can't be read from the container: {error}", hint="run the same command again"
        ) from error


def _log_ports(engine: Engine, name: str, settings: ContainerSettings, log: Callable[[str], None]) -> None:
    chosen = [port for port in settings.ports if not port.host]
    if not chosen:
        return
    with engine.errors_while("looking at the container"):
        bindings = engine.containers.inspect_container(name)["NetworkSettings"]["Ports"] or {}
    for port in chosen:
        for binding in bindings.get(f"{port.container}/tcp") or ():
            log(f"port {port.container} of the container: {port.address}:{binding['HostPort']}")


def _remove_at_end(engine: Engine, name: str) -> None:
    try:
        remove_container(engine, name, {404, 409})
    except sdk_errors() as error:
        from docker.errors import APIError

        # Otherwise the engine does not respond, which is already reported.
        if isinstance(error, APIError):
            raise EngineError(f"the container {name} can't be removed: {error.explanation}") from error
