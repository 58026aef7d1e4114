"""Confinement of foreign code: builds of sources, and Pythons from a lock.

bubblewrap gives it user, mount, process, IPC, host name and network namespaces of its own. It can read the system's
programs and libraries and the files that it is given, and write one folder. It reaches no home, socket, process or
environment of the user. Its network is a loopback interface of its own, on which envspec serves the index: see
`confine_init.py`.

Memory, processor time and disk space are not limited, and a bug of the kernel may let it escape.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.errors import UnfitMachine
from envspec.io.confine_types import Unconfined
from envspec.io.process import Finished, ParentLink, run, run_streaming
from envspec.structs import replace

#: Serves what connects to a listener.
Listen = Callable[[socket.socket], Awaitable[None]]

INIT: Final = Path(__file__).with_name("confine_init.py")
#: In a network namespace of its own every port is free; the address is the same in every build.
PORT: Final = 8484
#: In the folder of `index_socket`.
SOCKET: Final = "socket"
#: The index inside.
PROXY: Final = f"http://127.0.0.1:{PORT}"

#: For the environment of builds, confined or not.
ALONE: Final = {
    # A build requirement may be a repository: ssh ignores proxies, and files need none.
    "GIT_ALLOW_PROTOCOL": "none",
    # envspec's index retries failed requests itself, and answers within its own time limits.
    "UV_HTTP_RETRIES": "0",
    "UV_HTTP_TIMEOUT": "86400",
    "PIP_DEFAULT_TIMEOUT": "86400",
}
#: Programs and libraries of the system, and how they are found; the stores of Nix and Guix.
_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
)
#: Python's folders in its prefix, which may have others.
_PREFIX_FOLDERS: Final = ("bin", "lib", "lib64", "include")
_NAMESPACES: Final = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    # Also for root.
    *("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--hostname", "localhost"),
    *("--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108
)
_PRINT_PREFIXES: Final = (
    "import json, os, sys; print(json.dumps([os.path.realpath(path) for path in (getattr(sys, '_base_executable', None)"
    " or sys.executable, sys.base_prefix, sys.base_exec_prefix)]))"
)
_PROBE_S: Final = 20


class NoConfinement(UnfitMachine, code="no-confinement"):
    """This machine can't confine foreign code, and the user did not allow it to run unconfined."""


class Sandbox(Struct, frozen=True):
    """What confined code can reach.

    bubblewrap: the program.
    reads: files and folders, each at its own path.
    folder: writable, and the working folder; None: only an empty /tmp.
    links: path -> target.
    """

    bubblewrap: str
    reads: tuple[Path, ...] = ()
    folder: Path | None = None
    links: Mapping[Path, Path] | None = None

    def command_for(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` confined. It ends with the thread that starts it."""
        arguments = [self.bubblewrap, *_NAMESPACES, *_no_nested(self.bubblewrap), *_system()]
        shown = [*map(Path, _SYSTEM)]
        for path in sorted(set(self.reads)):
            if not _is_below(path, shown) and path.exists():
                arguments += ["--ro-bind", str(path), str(path)]
                shown.append(path)
        for path, target in (self.links or {}).items():
            if not _is_below(path, shown):
                arguments += ["--symlink", str(target), str(path)]
        if self.folder is not None:
            arguments += ["--bind", str(self.folder), str(self.folder)]
        return [*arguments, "--chdir", str(self.folder or "/"), "--", *command]


async def bubblewrap(environ: Mapping[str, str], unconfined: Unconfined, what: str, instead: str = "") -> str | None:
    """The working bubblewrap of this machine; None: there is none, and `unconfined` allows that.

    It is run once as a test: many systems have the program and forbid namespaces. what: the work, for the message:
    "building tool 1.0". instead: an alternative for the user, for the hint.

    Raises:
        NoConfinement: there is none, and `unconfined` does not allow that.
    """
    program, why = await asyncio.to_thread(_bubblewrap, environ)
    if why is None:
        return program
    if unconfined is Unconfined.ALLOWED:
        return None
    hint = "install bubblewrap on a Linux that allows unprivileged user namespaces"
    if instead:
        hint += f"; or {instead}"
    raise NoConfinement(
        f"{what} runs foreign code, and nothing on this machine confines it: {why}",
        hint=f"{hint}; or allow it by `--no-sandbox` to run with your rights, files and network",
    )


def can_build(environ: Mapping[str, str], unconfined: Unconfined) -> bool:
    """Whether this machine confines builds without a container, or may run them unconfined."""
    return unconfined is Unconfined.ALLOWED or _bubblewrap(environ)[1] is None


def _bubblewrap(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The program, and why it does not work; None if it does."""
    program = None
    if sys.platform == "linux":
        program = shutil.which("bwrap", path=environ.get("PATH", os.defpath))
    if program is None:
        return None, "bubblewrap is not installed"
    return program, _why_not(program)


async def run_confined(
    sandbox: Sandbox,
    python: Path,
    command: Sequence[str],
    listen: Listen,
    *,
    environ: Mapping[str, str],
    on_line: Callable[[str], None] = lambda _: None,
) -> Finished:
    """`envspec.io.process.run_streaming` in the sandbox, with an index at PROXY.

    python: a trusted interpreter, which may be a link or a venv's; its real Python is linked there inside. listen:
    gets the listener at PROXY. on_line: gets each line of stdout while it runs.
    """
    program, *prefixes = await _installation_of(python)
    reads = [program, INIT, *(prefix / name for prefix in prefixes for name in _PREFIX_FOLDERS)]
    sandbox = replace(sandbox, reads=(*sandbox.reads, *reads), links={python: program})
    ours, theirs = socket.socketpair()
    with ours:
        serving = asyncio.ensure_future(_serve(ours, listen))
        try:
            init = [str(program), "-I", "-S", str(INIT), str(theirs.fileno()), str(PORT)]
            confined = sandbox.command_for([*init, *command])
            link = ParentLink(theirs.fileno())
            return await run_streaming(confined, environ=environ, cwd=Path("/"), parent=link, on_line=on_line)
        finally:
            theirs.close()
            await _cancelled(serving)


async def _received_listener(channel: socket.socket) -> socket.socket | None:
    """The listener that `confine_init.py` sends; None: it ended without."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(channel, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(channel)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    return socket.socket(fileno=descriptors[0]) if descriptors else None


@contextlib.asynccontextmanager
async def index_socket(listen: Listen) -> AsyncIterator[Path]:
    """A folder to mount in one container without a network, with SOCKET for the listener of its `confine_init.py`.

    Its parent is this user's only; a container's root may be another user.
    """
    with _socket_folder() as (folder, waiting):
        serving = asyncio.ensure_future(_accept(waiting, listen))
        try:
            yield folder
        finally:
            await _cancelled(serving)


@contextlib.contextmanager
def _socket_folder() -> Iterator[tuple[Path, socket.socket]]:
    # Not the user's TMPDIR: the path of a socket has at most 107 bytes.
    private = tempfile.TemporaryDirectory(prefix="envspec-", dir="/tmp")
    with private as root, socket.socket(socket.AF_UNIX) as waiting:
        folder = Path(root, "index")
        folder.mkdir()
        folder.chmod(0o755)
        waiting.bind(str(folder / SOCKET))
        (folder / SOCKET).chmod(0o666)
        waiting.listen(1)
        waiting.setblocking(False)  # noqa: FBT003
        yield folder, waiting


async def _accept(waiting: socket.socket, listen: Listen) -> None:
    """Accept one connection, and no later ones."""
    channel, _ = await asyncio.get_running_loop().sock_accept(waiting)
    waiting.close()
    with channel:
        await _serve(channel, listen)


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _serve(channel: socket.socket, listen: Listen) -> None:
    if (listener := await _received_listener(channel)) is not None:
        listener.setblocking(False)  # noqa: FBT003 (its name is the standard library's)
        channel.send(b"!")
        await listen(listener)


@cache
def _why_not(program: str) -> str | None:
    """Why bubblewrap does not work; None if it does."""
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    reads = (python, *(Path(os.path.realpath(sys.base_prefix), name) for name in _PREFIX_FOLDERS))
    arguments = Sandbox(program, reads).command_for([str(python), "-I", "-S", "-c", ""])
    try:
        done = _probe(arguments)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not run ({error})"
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return f"{program} does not work ({reason.removeprefix('bwrap: ')})"


@cache
def _no_nested(program: str) -> tuple[str, ...]:
    """Forbids nested user namespaces, which give access to more of the kernel. Since bubblewrap 0.8."""
    option = "--disable-userns"
    arguments = [program, *_NAMESPACES, option, *_system(), "--", "/bin/sh", "-c", ":"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if _probe(arguments).returncode == 0:
            return (option,)
    return ()


def _probe(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=_PROBE_S, check=False, env={})  # noqa: S603


def _system() -> list[str]:
    arguments = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


async def _installation_of(python: Path) -> list[Path]:
    """The real program of an interpreter, and its prefixes."""
    done = await run([str(python), "-I", "-S", "-c", _PRINT_PREFIXES], environ={}, cwd=Path("/"))
    try:
        return [Path(each) for each in json.loads(done.lines[-1])]
    except (ValueError, IndexError) as error:
        raise UnfitMachine(
            f"{python} does not report where it is installed: {done.stderr.strip()}",
            hint="put a CPython of that series first on PATH",
        ) from error


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
