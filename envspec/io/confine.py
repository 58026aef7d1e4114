"""The one place where foreign code is confined: builds of sources, and Pythons that come from a lock.

bubblewrap gives it user, mount, process, IPC, host name and network namespaces of its own. It can read the system's
programs and libraries and what it is given, and write one folder. It reaches no home, socket, process or environment
of the user. Its network is a loopback interface of its own, on which envspec serves the index: see `confine_init.py`.

Nothing limits its memory, processor time or disk space, and a fault of the kernel may let it out.
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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from envspec.errors import UnfitMachine
from envspec.io.confine_types import Unconfined
from envspec.io.process import Finished, ParentLink, run

#: Serves what connects to a listener.
Listen = Callable[[socket.socket], Awaitable[None]]

INIT: Final = Path(__file__).with_name("confine_init.py")
#: In a network namespace of its own every port is free; the address is the same in every build.
PORT: Final = 8484
#: In the folder of `index_socket`.
SOCKET: Final = "socket"
#: Through which the index is reached from inside.
PROXY: Final = f"http://127.0.0.1:{PORT}"

#: For the environment of builds, confined or not.
ALONE: Final = {
    # What a backend requires may be a repository: ssh knows no proxy, and files need none.
    "GIT_ALLOW_PROTOCOL": "none",
    # Our index tries again what failed upstream; for what can't be reached, that is of no use.
    "UV_HTTP_RETRIES": "0",
}
#: Programs and libraries of the system, and how these are found. Stores: of Nix and Guix, readable for everybody.
_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
)
#: A prefix may be a folder with much else in it: of Python's are these.
_OF_PREFIX: Final = ("bin", "lib", "lib64", "include")
_NAMESPACES: Final = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    # Also as root: there it would be the machine's.
    *("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--hostname", "localhost"),
    *("--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108
)
_WHERE: Final = (
    "import json, os, sys; print(json.dumps([os.path.realpath(path) for path in (getattr(sys, '_base_executable', None)"
    " or sys.executable, sys.base_prefix, sys.base_exec_prefix)]))"
)
_PROBE_S: Final = 20


class NoConfinement(UnfitMachine):
    """Nothing on this machine confines foreign code, and the user did not allow it to run unconfined."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What foreign code reaches. bubblewrap: the program. reads: files and folders, each at its own path.

    folder: the one that it may write, which is its working folder; None: only an empty /tmp. links: path -> target.
    """

    bubblewrap: str
    reads: tuple[Path, ...] = ()
    folder: Path | None = None
    links: Mapping[Path, Path] | None = None

    def words(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` confined. It ends when the thread that started it does."""
        words = [self.bubblewrap, *_NAMESPACES, *_no_further(self.bubblewrap), *_system()]
        shown = [*map(Path, _SYSTEM)]
        for path in sorted(set(self.reads)):
            if not _is_below(path, shown) and path.exists():
                words += ["--ro-bind", str(path), str(path)]
                shown.append(path)
        for path, target in (self.links or {}).items():
            if not _is_below(path, shown):
                words += ["--symlink", str(target), str(path)]
        if self.folder is not None:
            words += ["--bind", str(self.folder), str(self.folder)]
        return [*words, "--chdir", str(self.folder or "/"), "--", *command]


async def bubblewrap(environ: Mapping[str, str], unconfined: Unconfined, what: str, instead: str = "") -> str | None:
    """The bubblewrap that confines foreign code here; None: there is none, and `unconfined` allows to do without.

    It is found by running it once: many systems have the program and forbid what it does. what: would run, for the
    message: "building tool 1.0". instead: what else the user may do, for the hint.

    Raises:
        NoConfinement: there is none, and it is not allowed to do without.
    """
    program = shutil.which("bwrap", path=environ.get("PATH", os.defpath)) if sys.platform == "linux" else None
    why = await asyncio.to_thread(_why_not, program) if program else "bubblewrap is not installed"
    if why is None:
        return program
    if unconfined is Unconfined.ALLOWED:
        return None
    raise NoConfinement(
        f"{what} runs code from outside, and nothing on this machine confines it: {why}",
        hint="install bubblewrap on a Linux that allows unprivileged user namespaces"
        f"{'; or ' if instead else ''}{instead}; or permit by `--unconfined` that it runs with your rights, files and "
        "network",
    )


async def run_confined(
    sandbox: Sandbox,
    python: Path,
    command: Sequence[str],
    listen: Listen,
    *,
    environ: Mapping[str, str],
    stdin: str = "",
) -> Finished:
    """Run `command` in the sandbox, with an index at PROXY; as `envspec.io.process.run` otherwise.

    python: the path of an interpreter that the user trusts; it may be a link or a venv's. Inside it is the Python that
    this one leads to. listen: is given what listens at PROXY.
    """
    program, *prefixes = await _places(python)
    reads = [program, INIT, *(prefix / name for prefix in prefixes for name in _OF_PREFIX)]
    sandbox = replace(sandbox, reads=(*sandbox.reads, *reads), links={python: program})
    ours, theirs = socket.socketpair()
    with ours:
        handing = asyncio.ensure_future(_hand_over(ours, listen))
        try:
            init = [str(program), "-I", "-S", str(INIT), str(theirs.fileno()), str(PORT)]
            words = sandbox.command_for([*init, *command])
            return await run(
                words, environ=environ, cwd=Path("/"), stdin=stdin, parent=ParentLink(inherited_fd=theirs.fileno())
            )
        finally:
            theirs.close()
            await _ended(handing)


async def _handed(channel: socket.socket) -> socket.socket | None:
    """The listener that `confine_init.py` sends; None: it is gone without."""
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
    """A folder to mount in one container without a network: by its SOCKET `confine_init.py` there hands a listener out.

    The folder around it is this user's alone; a container's root need not be this user.
    """
    with _offering() as (folder, waiting):
        handing = asyncio.ensure_future(_accept(waiting, listen))
        try:
            yield folder
        finally:
            await _ended(handing)


@contextlib.contextmanager
def _offering() -> Iterator[tuple[Path, socket.socket]]:
    # Not the user's folder for temporary files: the path of a socket has 107 bytes at most.
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
    """Take the one listener that is offered; what connects later finds nobody."""
    channel, _ = await asyncio.get_running_loop().sock_accept(waiting)
    waiting.close()
    with channel:
        await _hand_over(channel, listen)


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _hand_over(channel: socket.socket, listen: Listen) -> None:
    if (listener := await _handed(channel)) is not None:
        listener.setblocking(False)  # noqa: FBT003 (its name is the standard library's)
        channel.send(b"!")
        await listen(listener)


@cache
def _why_not(program: str) -> str | None:
    """Why bubblewrap does not work here, None where it does."""
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    reads = (python, *(Path(os.path.realpath(sys.base_prefix), name) for name in _OF_PREFIX))
    words = Sandbox(program, reads).words([str(python), "-I", "-S", "-c", ""])
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PROBE_S, check=False, env={})  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as fault:
        return f"{program} does not run ({fault})"
    if done.returncode == 0:
        return None
    told = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return f"{program} does not work here ({told.removeprefix('bwrap: ')})"


@cache
def _no_further(program: str) -> tuple[str, ...]:
    """Forbids user namespaces inside, which would put more of the kernel within reach. Since bubblewrap 0.8."""
    option = "--disable-userns"
    words = [program, *_NAMESPACES, option, *_system(), "--", "/bin/sh", "-c", ":"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_PROBE_S, check=False, env={})  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return () if done.returncode else (option,)


def _system() -> list[str]:
    words = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    return words


async def _places(python: Path) -> list[Path]:
    """The program that an interpreter is in the end, and its prefixes."""
    done = await run([str(python), "-I", "-S", "-c", _WHERE], environ={}, cwd=Path("/"))
    try:
        return [Path(each) for each in json.loads(done.lines[-1])]
    except (ValueError, IndexError) as fault:
        raise UnfitMachine(
            f"{python} does not tell where it is installed: {done.stderr.strip()}",
            hint="put a CPython of that series first on PATH",
        ) from fault


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
