"""`envspec run` and `envspec shell`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

import click

from envspec.cli import options, output, terminal
from envspec.cli.progress import TerminalReporter
from envspec.cli.selection import IMAGE
from envspec.errors import UsageError
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.operations.container import ContainerRequest, Port, Streams

#: Not a login shell: /etc/profile would set a PATH without the environment.
_SHELL: Final = ("sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh")

#: Of a container, and of the image if it has to be built first.
_options: Final = options.combined(
    click.option("--services", is_flag=True, help="Also start the image's services, and publish their ports."),
    options.GPUS,
    options.path_option(
        "--work",
        "DIR",
        "Host folder mounted at the working directory (default: current directory).",
        exists=True,
        file_okay=False,
    ),
    click.option("--no-work", is_flag=True, help="Use an empty working directory, removed with the container."),
    click.option(
        "--no-cache",
        is_flag=True,
        help="Do not mount Hugging Face's cache, and do not cache compiled code.",
    ),
    options.MOUNTS,
    options.ENV,
    click.option(
        "--port", "-p", "ports", multiple=True, metavar="[ADDRESS:]HOST:CONTAINER", help="Publish a port on loopback."
    ),
    click.option("--shm-size", metavar="SIZE", help="Size of /dev/shm: 16g (default: half of the memory)."),
    click.option("--network", metavar="NAME", help="The engine's network: host, none, or one of your own."),
    options.platform_option(options.IMAGE_PLATFORMS, "Platform of the image (default: the engine's)."),
    click.option("--no-compile-bytecode", is_flag=True, help="Use the image without compiled Python."),
    options.IMAGE_OFFLINE,
    options.MIRROR,
    options.UNCONFINED,
    *IMAGE,
    output.output(help_text="JSON: an error before the command starts is a JSON object on stdout."),
)


class _Run(click.Command):
    """A command whose options end where the command in the container begins, like those of `docker run`.

    Without this, `envspec run LOCK python train.py -e 3` would take `-e` for itself.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = self._options_in(ctx, args)
        rest = args[own:]
        if rest and rest[0] != "--":
            further = self._options_in(ctx, rest[1:])
            command = rest[1 + further :]
            if command[:1] == ["--"]:
                command = command[1:]
            args = [*args[:own], *rest[1 : 1 + further], "--", rest[0], *command]
        return super().parse_args(ctx, args)

    def _options_in(self, ctx: click.Context, args: list[str]) -> int:
        """How many of the words at the beginning are options and their values."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        found, _, _ = parser.parse_args(list(args))
        # What click has for missing arguments differs from release to release.
        words = found.get("words")
        own = len(args) - isinstance(found.get("lock"), str)
        if isinstance(words, (tuple, list)):
            own -= len(words)
        return own - (args[own - 1 : own] == ["--"])


@click.command(cls=_Run)
@click.option(
    "--entrypoint", metavar="PROGRAM", help='Start PROGRAM instead of the lock\'s entrypoint; "": the command alone.'
)
@_options
@options.LOCK
@click.argument("words", metavar="[--] [COMMAND]...", nargs=-1, type=click.UNPROCESSED)
def run(lock: str, words: tuple[str, ...], entrypoint: str | None, **chosen: Any) -> int:
    """Run a command in a container of a lock's image, built first if the engine does not have it.

    The container has the GPUs, the current folder as its working directory, your user and group IDs, and shared memory
    for several GPUs; it is removed afterwards. Output, signals and exit code are the command's. If the lock has an
    entrypoint, the command is its arguments. Without a command, that of the lock runs, or the image's services with
    their ports on loopback; with --services, they run next to the command. Caches of Hugging Face are mounted. Code
    that is compiled in the container is cached for the next one.

    \b
    envspec run pytorch-2.9 -- python train.py --epochs 3
    envspec run pytorch-2.9 --gpus 0,1 --mount /data:/data:ro -- torchrun train.py
    envspec run pytorch-2.9 --services --port 6006:6006 -- python train.py
    """
    replaced = None
    if entrypoint is not None:
        replaced = (entrypoint,) if entrypoint else ()
    return _start(lock, words, chosen, replaced)


@click.command()
@_options
@options.LOCK
def shell(lock: str, **chosen: Any) -> int:
    """Open a shell in a container of a lock's image, like `envspec run` with a shell as its command.

    Runs a script on standard input; the exit code is the shell's.

    \b
    envspec shell pytorch-2.9
    envspec shell pytorch-2.9 --no-work < script.sh
    """
    return _start(lock, _SHELL, chosen, ())


def _start(lock: str, command: Sequence[str], chosen: Mapping[str, Any], entrypoint: tuple[str, ...] | None) -> int:
    from envspec.lockfile.folder import find_lock, read_lock
    from envspec.operations.container import run_container

    folder, streams = find_lock(lock, Path()), _streams()
    locked = read_lock(folder)
    request = _request(command, chosen, streams, folder)
    request = replace(request, options=replace(request.options, entrypoint=entrypoint))
    return run_container(locked, request, options.context_of(chosen), streams, _log, lambda: _loading(locked.name))


@contextmanager
def _loading(name: str) -> Iterator[TerminalReporter]:
    with TerminalReporter(name) as reporter:
        yield reporter
    # From here on stdout is the command's.
    output.SETTINGS.answered = True


def _log(line: str) -> None:
    warning = line.removeprefix("warning: ")
    if warning == line:
        output.info(line)
    else:
        output.warn(warning)


def _request(command: Sequence[str], chosen: Mapping[str, Any], streams: Streams, folder: Path) -> ContainerRequest:
    from envspec.operations.container import ContainerOptions, ContainerRequest, StartMode, Terminal, parse_gpus

    tty = _is_our_terminal(streams)
    env, kind = options.variables_of(chosen["env"]), Terminal.PIPES
    if tty:
        kind = Terminal.TTY
        env = (*((name, os.environ[name]) for name in ("TERM", "COLORTERM") if os.environ.get(name)), *env)
    shm_bytes = options.size_of("--shm-size", chosen["shm_size"], 1024, "16g")
    if shm_bytes == 0:
        raise UsageError("--shm-size 0: there is no container without /dev/shm", hint="leave it out, or write 16g")
    settings = ContainerOptions(
        command=tuple(command),
        start=StartMode.SERVICES if chosen["services"] else StartMode.COMMAND,
        gpus=parse_gpus(chosen["gpus"]),
        mounts=tuple(map(options.mount_of, chosen["mounts"])),
        ports=tuple(map(_port, chosen["ports"])),
        env=env,
        shm_bytes=shm_bytes,
        network=chosen["network"],
        terminal=kind,
        stdin=tty or (streams.stdin is not None and not terminal.is_terminal(sys.stdin)),
    )
    work = chosen["work"] or Path()
    if chosen["no_work"]:
        work = None
    return ContainerRequest(
        settings,
        work=work,
        caches=not chosen["no_cache"],
        platform=chosen["platform"],
        bytecode=not chosen["no_compile_bytecode"],
        folder=folder,
    )


def _streams() -> Streams:
    from envspec.operations.container import Streams

    def opened(stream: TextIO | None) -> BinaryIO:
        # What is written to a closed one is dropped.
        return stream.buffer if stream else os.fdopen(os.open(os.devnull, os.O_WRONLY), "wb")

    return Streams(sys.stdin.buffer if sys.stdin else None, opened(sys.stdout), opened(sys.stderr))


def _is_our_terminal(streams: Streams) -> bool:
    """Whether this process is in the foreground: in the background a terminal's settings are not ours to change."""
    if streams.stdin is None or sys.platform == "win32":
        return False
    if not (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stdout)):
        return False
    try:
        return os.tcgetpgrp(streams.stdin.fileno()) == os.getpgrp()
    except OSError:
        # Not this session's terminal: there is no background then.
        return True


def _port(text: str) -> Port:
    from envspec.operations.container import Port

    found = re.fullmatch(r"(?:(?P<address>[\d.]+|\[[\da-fA-F:]+\]):)?(?P<host>\d{1,5}):(?P<container>\d{1,5})", text)
    if not found or not all(int(found[each]) < 1 << 16 for each in ("host", "container")):
        raise UsageError(f"--port {text}: the form is [ADDRESS:]HOST:CONTAINER", hint="--port 8080:80")
    port = Port(int(found["container"]), int(found["host"]))
    if not found["address"]:
        return port
    return Port(port.container, port.host, found["address"].strip("[]"))
