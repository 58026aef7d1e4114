"""What `run` and `shell` share: their options, and the way from a lock to a container."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

import click

from envspec.cli import terminal
from envspec.cli.options import IMAGE_PLATFORMS, MIRROR, UNCONFINED, combined
from envspec.errors import UnfitMachine, UsageError

if TYPE_CHECKING:
    from envspec.engine.client import Engine
    from envspec.engine.container import ContainerOptions, Gpus, HostFolders, Mount, Port, User
    from envspec.engine.run import Streams
    from envspec.image.options import ImageOrder, ImageWorld
    from envspec.models import Lock, Platform

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

#: Those of a container, and of the image that is made for it where it is not there yet.
options: Final = combined(
    click.option("--services", is_flag=True, help="The image's services beside the command, and their ports."),
    click.option(
        "--gpus",
        default="auto",
        metavar="all|none|IDS",
        help="GPUs by number or UUID: 0,1. All where the lock has CUDA, where left out.",
    ),
    click.option(
        "--work",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        metavar="DIR",
        help="The folder at the image's working folder; the current one where left out.",
    ),
    click.option("--no-work", is_flag=True, help="An empty working folder, which goes with the container."),
    click.option(
        "--no-cache",
        is_flag=True,
        help="Nothing of Hugging Face's cache, and what is compiled goes with the container.",
    ),
    click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", help="A further folder or file."),
    click.option("--env", "-e", "env", multiple=True, metavar="NAME[=VALUE]", help="A variable; this machine's value."),
    click.option(
        "--port", "-p", "ports", multiple=True, metavar="[ADDRESS:]HOST:CONTAINER", help="A port, on loopback."
    ),
    click.option("--shm-size", metavar="SIZE", help="Of /dev/shm: 16g. Half of the memory, where left out."),
    click.option("--network", metavar="NAME", help="The engine's network: host, none, or one of your own."),
    click.option(
        "--platform", type=click.Choice(IMAGE_PLATFORMS), help="The platform; the engine's own where left out."
    ),
    click.option("--no-pyc", is_flag=True, help="The image without compiled Python."),
    click.option("--offline", is_flag=True, help="Make the image from what is in the cache, if it has to be made."),
    MIRROR,
    UNCONFINED,
)


def start(lock: str, command: Sequence[str], chosen: Mapping[str, Any]) -> int:
    """Have the lock's image in the engine and run a command in it; the command's exit code.

    Raises:
        UsageError, UnfitMachine, NetworkError: as the stages say.
    """
    from dataclasses import replace

    from envspec.cli.image_world import image_world
    from envspec.cli.progress import DownloadProgress
    from envspec.cli.terminal import terminable
    from envspec.engine.client import open_engine
    from envspec.engine.container import container_settings
    from envspec.engine.run import run
    from envspec.lock.find import find_lock
    from envspec.lock.folder import read_lock

    locked = read_lock(find_lock(lock, Path()))
    streams = _streams()
    asked = _options(command, chosen, streams)
    with open_engine(os.environ) as engine:
        order = image_order(locked, engine_platform(locked, engine, chosen["platform"]), chosen)
        folders = _folders(engine, chosen)
        # Before an image is made for nothing.
        container_settings(locked, this_user(os.environ), engine.facts, folders, asked)
        with terminable(), DownloadProgress(locked.name) as progress:
            world = image_world(progress, chosen["mirrors"], unconfined=chosen["unconfined"])
            image = image_in_engine(engine, order, world)
        if not (engine.address.is_remote or chosen["no_cache"]):
            folders = replace(folders, compiled=compiled_folder(image))
        settings = container_settings(locked, this_user(os.environ), engine.facts, folders, asked)
        make_folders(folders, [mount.source for mount in settings.mounts])
        return run(engine, image, settings, streams, terminal.tell)


def image_in_engine(engine: Engine, order: ImageOrder, world: ImageWorld) -> str:
    """The image in the engine, made and loaded where it is not there; what the engine calls it."""
    from envspec.engine.errors import EngineError
    from envspec.image.engine import find
    from envspec.operations.image import Outputs, build

    tag = f"envspec/{order.lock.name.lower()}:latest"
    (image,) = build(order, Outputs(load=tag, tag=tag), world).images
    there = find(engine, image)
    if there is None:
        raise EngineError(f"the engine ({engine.facts}) has let go of {image.id}", hint="run the same command again")
    return there


def this_user(environ: Mapping[str, str]) -> User:
    """Who runs this; where the system has no numbers for users, somebody whose numbers an engine takes."""
    from envspec.engine.container import User

    name = environ.get("USER") or environ.get("LOGNAME") or environ.get("USERNAME") or "user"
    if sys.platform == "win32":
        return User(name, 1000, 1000)
    return User(name, os.getuid(), os.getgid(), tuple(sorted(set(os.getgroups()) - {os.getgid()})))


def _options(command: Sequence[str], chosen: Mapping[str, Any], streams: Streams) -> ContainerOptions:
    from envspec.engine.container import ContainerOptions, StartMode, Terminal

    tty = _is_ours(streams)
    env = tuple(pair for text in chosen["env"] for pair in _variable(text))
    if tty:
        env = (*((name, os.environ[name]) for name in ("TERM", "COLORTERM") if os.environ.get(name)), *env)
    return ContainerOptions(
        command=tuple(command),
        start=StartMode.SERVICES if chosen["services"] else StartMode.COMMAND,
        gpus=gpus_of(chosen["gpus"]),
        mounts=tuple(_mount(text) for text in chosen["mounts"]),
        ports=tuple(_port(text) for text in chosen["ports"]),
        env=env,
        shm_bytes=_bytes(chosen["shm_size"]) if chosen["shm_size"] else None,
        network=chosen["network"],
        terminal=Terminal.TTY if tty else Terminal.PIPES,
        stdin=tty or (streams.stdin is not None and not terminal.is_terminal(sys.stdin)),
    )


def _streams() -> Streams:
    from envspec.engine.run import Streams

    def opened(stream: TextIO | None) -> BinaryIO:
        # What goes to a closed one goes nowhere.
        return stream.buffer if stream else os.fdopen(os.open(os.devnull, os.O_WRONLY), "wb")

    return Streams(sys.stdin.buffer if sys.stdin else None, opened(sys.stdout), opened(sys.stderr))


def _is_ours(streams: Streams) -> bool:
    """Whether somebody sits at a terminal for this: in the background its settings are not ours to change."""
    if streams.stdin is None or sys.platform == "win32":
        return False
    if not (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stdout)):
        return False
    try:
        return os.tcgetpgrp(streams.stdin.fileno()) == os.getpgrp()
    except OSError:
        # Not this session's terminal: there is no background then.
        return True


def image_order(lock: Lock, platform: Platform, chosen: Mapping[str, Any]) -> ImageOrder:
    from envspec.fetch.types import Network
    from envspec.image.options import Bytecode, ImageOrder
    from envspec.lock.document import identity

    return ImageOrder(
        lock=lock,
        identity=identity(lock),
        platforms=(platform,),
        bytecode=Bytecode.NONE if chosen["no_pyc"] else Bytecode.COMPILED,
        network=Network.OFFLINE if chosen["offline"] else Network.USE,
        jobs=os.cpu_count() or 1,
    )


def engine_platform(lock: Lock, engine: Engine, named: str | None) -> Platform:
    """The engine's own platform, which need not be this machine's."""
    from envspec.models import Platform

    own = engine.facts.platform
    there = [part.target.platform for part in lock.resolutions if part.target.platform.is_linux]
    wanted = Platform(named) if named else own
    if wanted in there:
        return wanted
    if named:
        raise UsageError(f"{lock.name} is not locked for {named}", hint=f"it has {_words(there)}")
    raise UnfitMachine(
        f"{lock.name} is locked for {_words(there)}, and the engine ({engine.facts}) runs "
        f"{own.value if own else 'neither linux-64 nor linux-aarch64'}",
        hint=f'add "{own.value}" to [env] platforms and lock again; '
        "`--platform` runs another one where the engine emulates it"
        if own
        else "name another engine by DOCKER_HOST",
    )


def _words(platforms: Sequence[Platform]) -> str:
    return ", ".join(platform.value for platform in platforms) or "no linux platform"


def _folders(engine: Engine, chosen: Mapping[str, Any]) -> HostFolders:
    from envspec.engine.container import HostFolders

    if engine.address.is_remote:
        if not chosen["no_work"]:
            raise UsageError(
                f"the engine at {engine.address} is another machine, which has not the folders of this one",
                hint="`--no-work` starts with an empty folder; `--mount SRC:DST` mounts folders of that machine",
            )
        return HostFolders()
    work = None if chosen["no_work"] else str((chosen["work"] or Path()).absolute())
    return HostFolders(work=work, hub=() if chosen["no_cache"] else _hub(os.environ))


def _hub(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Hugging Face's folders, where its library looks for them."""
    caches = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = environ.get("HF_HOME") or f"{caches}/huggingface"
    named = (("hub", environ.get("HF_HUB_CACHE")), ("datasets", environ.get("HF_DATASETS_CACHE")))
    return (("", _absolute(home)), *((below, _absolute(path)) for below, path in named if path))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def compiled_folder(image: str) -> str:
    """What is compiled belongs to one image: it calls into the image's libraries."""
    from envspec.io.cache import COMPILED, cache_root

    return str(cache_root(os.environ) / COMPILED / image.rpartition(":")[2][:32])


def make_folders(folders: HostFolders, mounted: Sequence[str]) -> None:
    """Those of ours that are to be mounted and may not be there yet."""
    ours = {folders.compiled, *(path for _, path in folders.hub)}
    for path in mounted:
        if path in ours:
            try:
                Path(path).mkdir(parents=True, exist_ok=True)
            except OSError as fault:
                raise UnfitMachine(
                    f"{path} can't be made: {fault.strerror}", hint="`--no-cache` goes without it"
                ) from fault


def gpus_of(text: str) -> Gpus | tuple[str, ...]:
    from envspec.engine.container import Gpus

    named = {"auto": Gpus.AS_LOCKED, "all": Gpus.ALL, "none": Gpus.NONE}.get(text)
    if named is not None:
        return named
    chosen = tuple(each.strip() for each in text.split(",") if each.strip())
    if not chosen or not all(re.fullmatch(r"\d+(?::\d+)?|(?:GPU|MIG)-[\w/-]+", each) for each in chosen):
        raise UsageError(f"--gpus {text}: neither all nor none nor GPUs", hint="by number or UUID: --gpus 0,1")
    return chosen


def _mount(text: str) -> Mount:
    from envspec.engine.container import Mount, MountAccess

    found = re.fullmatch(r"(.+?):(/[^:]*)(?::(ro|rw))?", text)
    if not found:
        raise UsageError(f"--mount {text}: the form is SRC:DST[:ro]", hint="--mount /data:/data:ro")
    return Mount(_absolute(found[1]), found[2].rstrip("/") or "/", MountAccess(found[3] or "rw"))


def _port(text: str) -> Port:
    from envspec.engine.container import Port

    found = re.fullmatch(r"(?:(?P<address>[\d.]+|\[[\da-fA-F:]+\]):)?(?P<host>\d{1,5}):(?P<container>\d{1,5})", text)
    if not found or not all(int(found[each]) < 1 << 16 for each in ("host", "container")):
        raise UsageError(f"--port {text}: the form is [ADDRESS:]HOST:CONTAINER", hint="--port 8080:80")
    port = Port(int(found["container"]), int(found["host"]))
    if not found["address"]:
        return port
    return Port(port.container, port.host, found["address"].strip("[]"))


def _variable(text: str) -> Sequence[tuple[str, str]]:
    name, equals, value = text.partition("=")
    if not name:
        raise UsageError(f"--env {text}: a variable has a name", hint="--env NAME=VALUE")
    if equals:
        return [(name, value)]
    return [(name, os.environ[name])] if name in os.environ else []


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    if not found or not int(found[1]):
        raise UsageError(f"--shm-size {text}: not a size", hint="--shm-size 16g")
    return int(found[1]) * _UNITS[found[2]]
