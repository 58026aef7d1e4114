"""Lock to a running container: the image into the engine, then a command in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envspec.context import Context, Reporter, comma_separated
from envspec.engine.client import Engine, inspect_image, open_engine
from envspec.engine.container import (
    ContainerOptions,
    Gpus,
    HostFolders,
    Mount,
    MountAccess,
    Port,
    StartMode,
    Terminal,
    User,
    container_settings,
)
from envspec.engine.errors import EngineError
from envspec.engine.run import Streams, run
from envspec.errors import UnfitMachine, UsageError
from envspec.io.cache import COMPILED, IMAGE_ACCOUNTS, FolderInUse, JsonCache
from envspec.models import Lock, Platform
from envspec.operations.image_cache import ImageRequest, default_tag, image_options
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.operations.image import Built

#: The values that a request is made of, for callers.
__all__ = ["ContainerOptions", "Gpus", "Mount", "MountAccess", "Port", "StartMode", "Streams", "Terminal"]


class ContainerRequest(Struct, frozen=True):
    """What to run in a container of a lock's image.

    work: the folder at the working directory, None for an empty one.
    caches: whether the container shares Hugging Face's cache and what compilers keep.
    platform: None for the engine's own.
    folder: the lock's, if it was read from one: which image is its may be known without a build.
    """

    options: ContainerOptions
    work: Path | None = None
    caches: bool = True
    platform: Platform | None = None
    bytecode: bool = True
    folder: Path | None = None


def run_container(
    lock: Lock,
    request: ContainerRequest,
    context: Context,
    streams: Streams,
    report: Callable[[str], None],
    loading: Callable[[], AbstractContextManager[Reporter]] | None = None,
) -> int:
    """Run a command in a container of a lock's image, built and loaded if the engine does not have it; its exit code.

    report: called with each line for the user.
    loading: a reporter until the command starts; by default the context's.

    Raises:
        NoEngine, EngineUnreachable: no engine responds. UsageError, UnfitMachine: the lock or request does not fit.
    """
    user = this_user(context.environ)
    check_platform(lock, request.platform)
    with open_engine(context.environ, context.reporter.warning) as engine:
        platform = engine_platform(lock, engine, request.platform)
        folders = _shared_folders(request, engine, context)
        # Checks the request before an image is built.
        container_settings(lock, user, engine.facts, folders, request.options)
        with loading() if loading else nullcontext(context.reporter) as reporter:
            reported = replace(context, reporter=reporter)
            image = _image(engine, lock, platform, request, reported)
        if not engine.address.is_remote and request.caches:
            folders = replace(folders, compiled=compiled_folder(context.cache, image))
        settings = container_settings(lock, user, engine.facts, folders, request.options)
        _make_folders(folders, settings.mounts)
        with ExitStack() as stack:
            if folders.compiled:
                stack.callback(FolderInUse(Path(folders.compiled)).end)
            if context.in_use is not None:
                # A container may run for days. What else it uses of the cache may be missing.
                context.in_use.end()
            return run(engine, image, settings, streams, report, JsonCache(context.cache / IMAGE_ACCOUNTS))


def _shared_folders(request: ContainerRequest, engine: Engine, context: Context) -> HostFolders:
    if engine.address.is_remote:
        if request.work is not None:
            raise UsageError(
                f"the engine at {engine.address} is another machine, without the folders of this one",
                hint="`--no-work` starts with an empty folder; `--mount SRC:DST` mounts folders of that machine",
            )
        return HostFolders()
    folders = HostFolders(hub=_hub(context) if request.caches else ())
    if request.work is not None:
        folders = replace(folders, work=str(request.work.absolute()))
    return folders


def _image(engine: Engine, lock: Lock, platform: Platform, request: ContainerRequest, context: Context) -> str:
    """The image's ID in the engine; what was built before from the bytes of this lock is not assembled again."""
    if request.folder is None:
        return image_in_engine(engine, lock, platform, context, bytecode=request.bytecode)
    known = ImageRequest(str(request.folder), context, platforms=(platform.value,), bytecode=request.bytecode)
    cached = known.cached()
    if cached is not None:
        ((_, image),) = cached.ids
        if _is_loaded(engine, image, default_tag(lock)):
            return image
    loaded, built = _loaded_image(engine, lock, platform, context, bytecode=request.bytecode)
    # Another run may have written the folder since the lock was read.
    if known.lock == lock:
        known.remember(built.images, built.digest)
    return loaded


def _is_loaded(engine: Engine, image: str, tag: str) -> bool:
    """Whether the engine has an image by this ID; it then has the tag."""
    with engine.errors_while("looking for the image"):
        found = inspect_image(engine, image)
    if found is None:
        return False
    if tag not in (found.get("RepoTags") or ()):
        from envspec.image.engine import tag_image

        tag_image(engine, image, tag)
    return True


def image_in_engine(engine: Engine, lock: Lock, platform: Platform, context: Context, *, bytecode: bool) -> str:
    """The image in the engine, built and loaded if it is not there; its ID there."""
    loaded, _ = _loaded_image(engine, lock, platform, context, bytecode=bytecode)
    return loaded


def _loaded_image(
    engine: Engine, lock: Lock, platform: Platform, context: Context, *, bytecode: bool
) -> tuple[str, Built]:
    # Imports the parsers of archives, which a test of this machine's own Python does not need.
    from envspec.image.engine import find_image
    from envspec.operations.image import Destinations, build

    options = image_options(lock, (platform,), bytecode=bytecode)
    tag = default_tag(lock)
    built = build(options, Destinations(load=tag, tag=tag), context)
    (image,) = built.images
    loaded = find_image(engine, image)
    if loaded is None:
        raise image_removed(engine, image.id)
    return loaded, built


def image_removed(engine: Engine, image: str) -> EngineError:
    return EngineError(
        f"image {image} was removed from the engine ({engine.facts}) meanwhile", hint="run the same command again"
    )


def parse_gpus(text: str) -> Gpus | tuple[str, ...]:
    """The value of `--gpus`: auto, all, none, or numbers and UUIDs with commas between them.

    Raises:
        UsageError: it is none.
    """
    named = {"auto": Gpus.AS_LOCKED, "all": Gpus.ALL, "none": Gpus.NONE}.get(text)
    if named is not None:
        return named
    chosen = tuple(filter(None, map(str.strip, text.split(","))))
    if not chosen or not all(re.fullmatch(r"\d+(?::\d+)?|(?:GPU|MIG)-[\w/-]+", each) for each in chosen):
        raise UsageError(f"--gpus {text}: neither all nor none nor GPUs", hint="by number or UUID: --gpus 0,1")
    return chosen


def check_platform(lock: Lock, named: Platform | None) -> None:
    """Check what no engine changes, before one is opened: a container runs Linux.

    Raises:
        UsageError: the lock is not for the named platform. UnfitMachine: it is for no linux platform.
    """
    locked = lock.linux_platforms
    if not locked:
        raise UnfitMachine(
            f"{lock.name} is locked for {comma_separated(lock.platforms)}, and a container needs a linux platform",
            hint='add "linux-64" to [env] platforms and lock again',
        )
    if named and named not in locked:
        raise UsageError(f"{lock.name} is not locked for {named.value}", hint=f"use {comma_separated(locked)}")


def engine_platform(lock: Lock, engine: Engine, named: Platform | None) -> Platform:
    """The named platform, else the engine's own, which need not be this machine's. The lock passed `check_platform`."""
    own = engine.facts.platform
    locked = lock.linux_platforms
    platform = named or own
    if platform in locked:
        return platform
    runs = "neither linux-64 nor linux-aarch64"
    hint = "name another engine by DOCKER_HOST"
    if own:
        runs = own.value
        hint = (
            f'add "{runs}" to [env] platforms and lock again; `--platform` runs another one if the engine emulates it'
        )
    raise UnfitMachine(
        f"{lock.name} is locked for {comma_separated(locked)}, and the engine ({engine.facts}) runs {runs}", hint=hint
    )


def this_user(environ: Mapping[str, str]) -> User:
    """The user of this process; on a system without numbers for users, one whose numbers an engine accepts."""
    name = environ.get("USER") or environ.get("LOGNAME") or environ.get("USERNAME") or "user"
    if sys.platform == "win32":
        return User(name, 1000, 1000)
    return User(name, os.getuid(), os.getgid(), tuple(sorted(set(os.getgroups()) - {os.getgid()})))


def compiled_folder(cache: Path, image: str) -> str:
    """Where compiled code of one image is kept: it calls into the image's libraries."""
    return str(cache / COMPILED / image.rpartition(":")[2][:32])


def _hub(context: Context) -> tuple[tuple[str, str], ...]:
    """Hugging Face's folders, where its library looks for them."""
    environ = context.environ
    caches = environ.get("XDG_CACHE_HOME") or str(context.home / ".cache")
    home = environ.get("HF_HOME") or f"{caches}/huggingface"
    named = (("", home), ("hub", environ.get("HF_HUB_CACHE")), ("datasets", environ.get("HF_DATASETS_CACHE")))
    folders = []
    for below, path in named:
        if path:
            folders.append((below, str(Path(path).expanduser().absolute())))
    return tuple(folders)


def _make_folders(folders: HostFolders, mounts: Sequence[Mount]) -> None:
    """Make those of envspec's and Hugging Face's folders that are mounted and do not exist yet."""
    ours = {folders.compiled, *dict(folders.hub).values()}
    for mount in mounts:
        if mount.source in ours:
            try:
                Path(mount.source).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UnfitMachine(
                    f"{mount.source} can't be made: {error.strerror}", hint="use `--no-cache` to run without it"
                ) from error
