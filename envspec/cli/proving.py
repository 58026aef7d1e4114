"""From words of the command line to a run of the conformance suite."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.cli import terminal
from envspec.errors import UnfitMachine, UsageError

if TYPE_CHECKING:
    from envspec.cli.progress import SuiteProgress
    from envspec.conformance.request import Nodes
    from envspec.engine.client import Engine, EngineImage
    from envspec.fetch.types import Step
    from envspec.models import Lock, Platform, Resolution
    from envspec.operations.conformance import Price, Request, Watch
    from envspec.receipt.values import Receipt


@dataclass(frozen=True, slots=True)
class Proving:
    """What the command line says. image: None for the lock's own. device: None for what the lock is for."""

    local: bool
    python: Path | None
    image: str | None
    gpus: str
    bytecode: bool
    offline: bool
    mirrors: tuple[str, ...]
    unconfined: bool
    device: str | None
    checks: tuple[str, ...]
    limits: Mapping[str, float]
    world_size: int | None
    nodes: Nodes
    price: Price | None
    baseline: Receipt | None


def prove(lock: str, asked: Proving, interrupted: Callable[[Receipt], None]) -> Receipt:
    """Run the suite where it is asked for. interrupted: given what was found until Ctrl-C or SIGTERM.

    Raises:
        UsageError, UnfitMachine, NetworkError: as the stages say.
    """
    from envspec.cli.terminal import terminable
    from envspec.lock.find import find_lock
    from envspec.lock.folder import read_lock
    from envspec.lock.head import LOCK_FILE
    from envspec.lock.names import read_current

    folder = find_lock(lock, Path())
    locked = read_lock(folder)
    digest = hashlib.sha256(read_current(folder, LOCK_FILE)).hexdigest()
    with terminable():
        run = _here if asked.local else _inside
        return run(locked, digest, asked, interrupted)


def _here(locked: Lock, digest: str, asked: Proving, interrupted: Callable[[Receipt], None]) -> Receipt:
    from envspec.cli.progress import SuiteProgress
    from envspec.diagnostics.machine import this_platform
    from envspec.operations.conformance import prove_here, python_here

    part = _part(locked, this_platform())
    python = python_here(os.environ, asked.python)
    with SuiteProgress(locked.name) as progress:
        watch = _watch(progress, asked.baseline, interrupted)
        return prove_here(_request(locked, digest, part, asked), python, os.environ, watch)


def _inside(locked: Lock, digest: str, asked: Proving, interrupted: Callable[[Receipt], None]) -> Receipt:
    from envspec.cli.container import compiled_folder, engine_platform, gpus_of, this_user
    from envspec.cli.progress import SuiteProgress
    from envspec.engine.client import open_engine
    from envspec.operations.conformance import Chosen, prove_inside

    with open_engine(os.environ) as engine:
        platform = engine_platform(locked, engine, None)
        request = _request(locked, digest, _part(locked, platform), asked)
        image = _image(engine, locked, platform, asked)
        compiled = Path(compiled_folder(image.id))
        compiled.mkdir(parents=True, exist_ok=True)
        chosen = Chosen(this_user(os.environ), gpus_of(asked.gpus), str(compiled))
        with SuiteProgress(locked.name) as progress:
            watch = _watch(progress, asked.baseline, interrupted)
            return prove_inside(request, engine, image, chosen, watch)


def _image(engine: Engine, locked: Lock, platform: Platform, asked: Proving) -> EngineImage:
    from envspec.cli.container import image_in_engine, image_order
    from envspec.cli.image_world import image_world
    from envspec.cli.progress import DownloadProgress
    from envspec.engine.client import ensure_image, find_image
    from envspec.engine.errors import EngineError

    with DownloadProgress(locked.name) as progress:
        if asked.image:
            return ensure_image(engine, asked.image, lambda done, total: progress.report(_pulling(done, total)))
        chosen = {"no_pyc": not asked.bytecode, "offline": asked.offline}
        world = image_world(progress, asked.mirrors, unconfined=asked.unconfined)
        name = image_in_engine(engine, image_order(locked, platform, chosen), world)
    found = find_image(engine, name)
    if found is None:
        raise EngineError(f"the engine ({engine.facts}) has let go of {name}", hint="run the same command again")
    return found


def _pulling(done: int, total: int) -> Step:
    from envspec.fetch.types import Step
    from envspec.image.options import Stage

    return Step(Stage.PULLING, 0, 0, done, total)


def _request(locked: Lock, digest: str, part: Resolution, asked: Proving) -> Request:
    from envspec.operations.conformance import Device, Request

    own = Device.CUDA if locked.driver else Device.CPU
    device = Device(asked.device) if asked.device else own
    if device is Device.CUDA and own is Device.CPU:
        raise UsageError(f"{locked.name} has no CUDA to test", hint="--device cpu, or [cuda] in its spec")
    return Request(
        lock=locked,
        lock_sha256=digest,
        resolution=part,
        device=device,
        checks=asked.checks,
        world_size=asked.world_size,
        nodes=asked.nodes,
        price=asked.price,
        limits=asked.limits,
    )


def _part(locked: Lock, platform: Platform) -> Resolution:
    """The lock's part for a platform, which has to be a Linux.

    Raises:
        UnfitMachine: the suite does not run there. UsageError: the lock has none.
    """
    from envspec.operations.verify import part_of

    if not platform.is_linux:
        raise UnfitMachine(f"the suite runs on Linux, and this is {platform.value}")
    return part_of(locked, platform)


def _watch(progress: SuiteProgress, baseline: Receipt | None, interrupted: Callable[[Receipt], None]) -> Watch:
    from envspec.operations.conformance import Watch

    return Watch(progress.told, terminal.tell, lambda: datetime.now(timezone.utc), baseline, interrupted)
