"""The suite in a container of an image: mounted read-only, its results in a folder of this machine."""

from __future__ import annotations

import io
from collections.abc import Callable

from envspec.effects.process import Finished
from envspec.engine.attach import Streams
from envspec.engine.container import (
    Access,
    ContainerSettings,
    Folders,
    Gpus,
    Mount,
    Options,
    Terminal,
    User,
    container_settings,
)
from envspec.engine.docker import Engine
from envspec.engine.run import run
from envspec.errors import UnfitMachine
from envspec.proof.request import Device, Request
from envspec.proof.staging import DOCUMENT, INSIDE, ORDER, RESULTS_INSIDE, RUN, Stage
from envspec.proof.watching import Told, tell

_STDERR_BYTES = 64 * 1024
#: What is beyond it of a line is no line of the suite's.
_LINE_BYTES = 1024 * 1024


def check_engine(engine: Engine) -> None:
    """Whether the suite can be mounted.

    Raises:
        UnfitMachine: the engine is another machine, which has not the folders of this one.
    """
    if engine.address.is_remote:
        raise UnfitMachine(
            f"the engine at {engine.address} is another machine: the suite can't be mounted there",
            hint="run envspec on that machine, or `--here` in a Python of it",
        )


def settings_of(
    request: Request, stage: Stage, engine: Engine, user: User, gpus: Gpus | tuple[str, ...], compiled: str | None
) -> ContainerSettings:
    """The container: the image as it is, the suite beside it, and nothing of the user's own.

    compiled: a folder of this machine for what the driver compiles from PTX, so that a second run is warm.
    """
    words = ("python", f"{INSIDE}/{RUN}", f"{INSIDE}/{ORDER}", f"{RESULTS_INSIDE}/{DOCUMENT}")
    options = Options(
        command=words,
        gpus=gpus if request.device is Device.CUDA else Gpus.NONE,
        mounts=(Mount(str(stage.suite), INSIDE, Access.READ_ONLY), Mount(str(stage.results), RESULTS_INSIDE)),
        # The ranks of several machines have to reach each other.
        network="host" if request.nodes.count > 1 else None,
        terminal=Terminal.PIPES,
    )
    return container_settings(request.lock, user, engine.facts, Folders(compiled=compiled), options)


def run_inside(
    engine: Engine, image: str, settings: ContainerSettings, told: Told, warn: Callable[[str], None]
) -> Finished:
    """Run the suite to its end. image: as the engine calls it. The container is gone afterwards.

    Raises:
        NoGpuRuntime, NoSuchProgram, CannotStart, EngineRefused, EngineSilent: as `engine.run` says.
    """
    lines, errors = _Lines(lambda line: tell(line, told)), _Tail()
    status = run(engine, image, settings, Streams(None, lines, errors), warn)
    return Finished(status, "", errors.text)


class _Lines(io.BytesIO):
    """Hands on every whole line that is written to it."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__()
        self._hear = hear
        self._rest = bytearray()

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        first, *others = piece.split(b"\n")
        self._rest += first[: _LINE_BYTES - len(self._rest)]
        for other in others:
            self._hear(self._rest.decode("utf-8", "replace"))
            self._rest = bytearray(other[:_LINE_BYTES])
        return len(piece)


class _Tail(io.BytesIO):
    """Keeps the end of what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = b""

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._kept = (self._kept + piece)[-_STDERR_BYTES:]
        return len(piece)

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")
