"""What a container of the image starts, and as whom, in the words of a Dockerfile."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from envspec.lock.docker_words import run

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Health:
    """A health check. test: the command. Times in nanoseconds, as engines have them."""

    test: tuple[str, ...]
    interval_ns: int
    timeout_ns: int
    start_ns: int
    retries: int


@dataclass(frozen=True, slots=True)
class File:
    """A text file of the image. path: absolute."""

    path: str
    mode: int
    text: str


@dataclass(frozen=True, slots=True)
class Served:
    """How a container of the image starts; where nothing is said, as one of the base does.

    user: `uid:gid`. name, home: of that user, for the system's list of users. folders: (path, mode) of those that are
    the user's. ports: `8888/tcp`.
    """

    entrypoint: tuple[str, ...] = ()
    user: str = ""
    name: str = ""
    home: str = ""
    ports: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    health: Health | None = None
    folders: tuple[tuple[str, int], ...] = ()
    files: tuple[File, ...] = ()


#: A container starts as one of the base does.
NOTHING: Final = Served()


def user_lines(served: Served) -> Iterator[str]:
    """The user in the system's list: sshd lets in nobody who is not there. One that Ubuntu has under its id becomes it.

    The password is one that fits nothing; a locked account is one that sshd refuses.
    """
    if not served.name:
        return
    uid, _, gid = served.user.partition(":")
    told = f"--home-dir {served.home} --gid {gid} --shell /bin/bash --password '*'"
    yield run(
        f"old=$(getent passwd {uid} | cut -d : -f 1)",
        f"group=$(getent group {gid} | cut -d : -f 1)",
        f'if [ -z "$group" ]; then groupadd --gid {gid} {served.name}; '
        f'elif [ "$group" != {served.name} ]; then groupmod --new-name {served.name} "$group"; fi',
        f'if [ -z "$old" ]; then useradd --uid {uid} --no-create-home {told} {served.name}; '
        f"else usermod --login {served.name} {told.replace('--home-dir', '--home')} --groups '' \"$old\"; fi",
    )


def files_lines(served: Served) -> Iterator[str]:
    """The files, and the folders that are the user's."""
    folders = dict.fromkeys(file.path.rpartition("/")[0] for file in served.files)
    commands = [f"mkdir -p {folder}" for folder in folders]
    for file in served.files:
        lines = "".join(f"    {_quoted(line)} \\\n" for line in file.text.removesuffix("\n").split("\n"))
        commands += [f"printf '%s\\n' \\\n{lines}    >{file.path}", f"chmod {file.mode:04o} {file.path}"]
    for path, mode in served.folders:
        folder = shlex.quote(path)
        commands += [f"mkdir -p {folder}", f"chmod {mode:04o} {folder}", f"chown {served.user} {folder}"]
    if commands:
        yield run(*commands)


def _quoted(line: str) -> str:
    """A word of a shell; in quotes also where it needs none, for no line of a Dockerfile begins with a `#` then."""
    return "'" + line.replace("'", "'\\''") + "'"


def start_lines(served: Served) -> Iterator[str]:
    """Who runs, what is started, where it listens and how it is asked whether it is well."""
    if served.ports:
        yield f"EXPOSE {' '.join(served.ports)}"
    if served.health:
        health = served.health
        times = f"--interval={health.interval_ns // _NS}s --timeout={health.timeout_ns // _NS}s"
        times += f" --start-period={health.start_ns // _NS}s --retries={health.retries}"
        yield f"HEALTHCHECK {times} \\\n    CMD {json.dumps(health.test)}"
    if served.user:
        yield f"USER {served.user}"
    if served.entrypoint:
        yield f"ENTRYPOINT {json.dumps(served.entrypoint)}"
