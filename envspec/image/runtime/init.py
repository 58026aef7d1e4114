"""PID 1 of an image with services: starts them and the command, hands on signals, reaps what is left behind.

Runs inside the image: standard library only, CPython 3.9 and later, `python -I -S init.py [COMMAND ...]`. What it
starts is in `services.json` beside it. With a command, the container ends with the command's status, and the services
write to files of the state folder; without one it ends with the first service that ends. A status above 128 is a
signal's number and 128.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent

if TYPE_CHECKING:
    from envspec.image.runtime.services import Service, ServiceFault, prepare, state_folder, tell
else:
    # Under -I the folder of the script is not on the path.
    sys.path.insert(0, str(HERE))
    from services import Service, ServiceFault, prepare, state_folder, tell

#: Those that a container is sent, by an engine or by a terminal.
HANDED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
)
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: Engines kill a container ten seconds after they have asked it to stop.
GRACE_S = 8.0
KILLED_S = 1.0
BAD_CONFIGURATION = 78  # EX_CONFIG of sysexits.h


class Init:
    """What runs: the command (None where there is none) and the services, by process id."""

    def __init__(self, mask: set[Any]) -> None:
        self.mask = mask
        self.command: int | None = None
        self.services: dict[int, Service] = {}
        self.asked_to_end = False

    def start_service(self, service: Service, log: Path | None) -> None:
        """A session of its own: a terminal's Ctrl-C is the command's alone."""
        pid = os.fork()
        if pid == 0:
            _become(lambda: _service(service, log, self.mask), service.argv, service.environ)
        self.services[pid] = service

    def start_command(self, argv: list[str]) -> None:
        """A process group of its own, in the foreground of the terminal if there is one: shells need it."""
        pid = os.fork()
        if pid == 0:
            _become(lambda: _foreground(self.mask), argv, dict(os.environ))
        self.command = pid

    def run(self) -> int:
        """Until what counts has ended; gives the container's status."""
        waited = {*HANDED_ON, signal.SIGCHLD}
        while True:
            received = signal.sigwait(waited)
            if received != signal.SIGCHLD:
                self.hand_on(received)
                continue
            status = self.reap()
            if status is not None:
                return status

    def hand_on(self, received: int) -> None:
        """To the command; to the services where there is none. They end when the command has ended."""
        self.asked_to_end = self.asked_to_end or received in ENDING
        for pid in [self.command] if self.command is not None else self.services:
            _send(pid, received)

    def reap(self) -> int | None:
        """Take in every child that has ended, also those of others; the container's status once it is known."""
        result = None
        for pid, status in _ended():
            if pid == self.command:
                self.command = None
                result = status
            elif pid in self.services:
                name = self.services.pop(pid).name
                if self.command is not None and result is None:
                    tell(f"{name} has ended with status {status}; the command goes on without it")
                elif result is None:
                    result = 0 if self.asked_to_end else status
                    if not self.asked_to_end:
                        tell(f"{name} has ended with status {status}")
        return result

    def end(self) -> None:
        """Ask what still runs to end, and kill what does not."""
        for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILLED_S)):
            for pid in self.services:
                _send(pid, number)
            deadline = time.monotonic() + patience_s
            while self.services:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or signal.sigtimedwait({signal.SIGCHLD}, left_s) is None:
                    break
                for pid, _ in _ended():
                    self.services.pop(pid, None)


def main(argv: list[str]) -> int:
    settings = json.loads((HERE / "services.json").read_text(encoding="utf-8"))
    try:
        state = state_folder(os.environ)
        services = [prepare(each, settings, state, os.environ) for each in settings["services"]]
    except ServiceFault as fault:
        tell(str(fault))
        return BAD_CONFIGURATION
    # Blocked, they wait for sigwait: none is lost, and no handler runs in the middle of anything.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*HANDED_ON, signal.SIGCHLD})
    init = Init(mask)
    for service in services:
        log = state / f"{service.name}.log" if argv else None
        init.start_service(service, log)
        tell(service.shown + (f" (log: {log})" if log else ""))
    if argv:
        init.start_command(argv)
    if not argv and not services:
        tell("neither a service nor a command: nothing to do")
        return 0
    status = init.run()
    init.end()
    return status


def _become(prepared: Callable[[], None], argv: list[str], environ: dict[str, str]) -> None:
    """The child's side of a fork: never returns."""
    try:
        prepared()
        os.execvpe(argv[0], argv, environ)  # noqa: S606 (to become the program is what this is for)
    except OSError as fault:
        tell(f"{argv[0]}: {fault.strerror}")
        os._exit(127 if isinstance(fault, FileNotFoundError) else 126)
    except BaseException as fault:
        tell(f"{argv[0]}: {fault!r}")
    os._exit(126)


def _service(service: Service, log: Path | None, mask: set[Any]) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if log is None:
        os.dup2(2, 1)
    else:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    if service.owner is not None:
        os.setgroups([])
        os.setgid(service.owner[1])
        os.setuid(service.owner[0])
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _foreground(mask: set[Any]) -> None:
    os.setpgid(0, 0)
    # A process of the background that takes the terminal is stopped by SIGTTOU, unless it ignores it.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # No terminal, or not ours: then there is no foreground to be in.
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ended() -> list[tuple[int, int]]:
    """(process id, status as shells say it) of every child that has ended since."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)))


def _send(pid: int, number: int) -> None:
    # Where it has ended already, its SIGCHLD is on the way.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
