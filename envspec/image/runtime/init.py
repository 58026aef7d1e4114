"""PID 1 of an image with services: starts them and the command, forwards signals, reaps orphaned processes.

Runs inside the image: standard library only, CPython 3.9 and later, `python -I -S init.py [COMMAND ...]`. The services
are in `services.json` next to it. With a command, the container ends with the command's status, the services log to
files in the state folder, and one that can't start is only logged; without a command, the container ends with the first
service that ends, and with status 78 if one can't start. A status above 128 is 128 plus a signal's number.
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
    from envspec.image.runtime.services import Service, ServiceFault, log, prepare, state_folder
else:
    # -I removes the script's folder from the path.
    sys.path.insert(0, str(HERE))
    from services import Service, ServiceFault, log, prepare, state_folder

#: Signals that an engine or a terminal sends to a container.
FORWARDED = (
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
#: Engines kill a container ten seconds after their request to stop.
GRACE_S = 8.0
KILL_S = 1.0
BAD_CONFIGURATION = 78  # EX_CONFIG of sysexits.h


class Init:
    """command: its process ID, None if there is none. services: by process ID."""

    def __init__(self, mask: set[Any]) -> None:
        self.mask = mask
        self.command: int | None = None
        self.services: dict[int, Service] = {}
        self.is_ending = False

    def start_service(self, service: Service, log_file: Path | None) -> None:
        """In a new session: only the command receives a terminal's Ctrl-C."""
        pid = os.fork()
        if pid == 0:
            _exec(lambda: _enter_service(service, log_file, self.mask), service.argv, service.environ)
        self.services[pid] = service

    def start_command(self, argv: list[str]) -> None:
        """In a new process group, in the terminal's foreground: shells need it."""
        pid = os.fork()
        if pid == 0:
            _exec(lambda: _enter_foreground(self.mask), argv, dict(os.environ))
        self.command = pid

    def run(self) -> int:
        """Wait for the end of the command or a service; returns the container's status."""
        waited = {*FORWARDED, signal.SIGCHLD}
        while True:
            received = signal.sigwait(waited)
            if received != signal.SIGCHLD:
                self.forward(received)
                continue
            status = self.reap()
            if status is not None:
                return status

    def forward(self, received: int) -> None:
        """To the command, or to the services if there is none. They end after the command."""
        self.is_ending = self.is_ending or received in ENDING
        for pid in [self.command] if self.command is not None else self.services:
            _send(pid, received)

    def reap(self) -> int | None:
        """Reap all ended children, including orphaned ones; returns the container's status once it is known."""
        result = None
        for pid, status in _ended_children():
            if pid == self.command:
                self.command = None
                result = status
            elif pid in self.services:
                name = self.services.pop(pid).name
                if self.command is not None and result is None:
                    log(f"{name} exited with status {status}; the command continues without it")
                elif result is None:
                    result = 0 if self.is_ending else status
                    if not self.is_ending:
                        log(f"{name} exited with status {status}")
        return result

    def end(self) -> None:
        """Terminate the remaining services, then kill them."""
        for number, timeout_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILL_S)):
            for pid in self.services:
                _send(pid, number)
            deadline = time.monotonic() + timeout_s
            while self.services:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or signal.sigtimedwait({signal.SIGCHLD}, left_s) is None:
                    break
                for pid, _ in _ended_children():
                    self.services.pop(pid, None)


def main(argv: list[str]) -> int:
    settings = json.loads((HERE / "services.json").read_text(encoding="utf-8"))
    services: list[Service] = []
    faults: list[ServiceFault] = []
    state = Path()
    try:
        state = state_folder(os.environ)
    except ServiceFault as fault:
        faults.append(fault)
    for each in settings["services"] if not faults else ():
        try:
            services.append(prepare(each, settings, state, os.environ))
        except ServiceFault as fault:
            faults.append(fault)
    for found in faults:
        log(f"{found}; the command runs without it" if argv else str(found))
    if faults and not argv:
        return BAD_CONFIGURATION
    # Blocked signals wait for sigwait: none is lost, and no handler interrupts anything.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    init = Init(mask)
    for service in services:
        log_file = state / f"{service.name}.log" if argv else None
        init.start_service(service, log_file)
        log(service.description + (f" (log: {log_file})" if log_file else ""))
    if argv:
        init.start_command(argv)
    if not argv and not services:
        log("nothing to do: no services and no command")
        return 0
    status = init.run()
    init.end()
    return status


def _exec(prepare_process: Callable[[], None], argv: list[str], environ: dict[str, str]) -> None:
    """In a forked child: never returns."""
    try:
        prepare_process()
        os.execvpe(argv[0], argv, environ)  # noqa: S606 (runs the image's own program)
    except OSError as error:
        log(f"{argv[0]}: {error.strerror}")
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    except BaseException as error:
        log(f"{argv[0]}: {error!r}")
    os._exit(126)


def _enter_service(service: Service, log_file: Path | None, mask: set[Any]) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if log_file is None:
        os.dup2(2, 1)
    else:
        descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    if service.owner is not None:
        os.setgroups([])
        os.setgid(service.owner[1])
        os.setuid(service.owner[0])
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _enter_foreground(mask: set[Any]) -> None:
    os.setpgid(0, 0)
    # SIGTTOU stops a background process that changes the foreground, unless it is ignored.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # Fails without a terminal of this session.
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ended_children() -> list[tuple[int, int]]:
    """(process ID, status as in a shell) of every ended child."""
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
    # If it has ended already, its SIGCHLD is pending.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
