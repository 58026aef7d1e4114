"""Lock to conformance suite, in a container or a local Python, to receipt."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from envspec import __version__
from envspec.conformance.checks import CHECKS
from envspec.conformance.request import LockedGpuCode, LockedStack, Nodes, SuiteRequest, SuiteStart
from envspec.conformance.suite import NO_GPU
from envspec.context import Context, Step
from envspec.diagnostics.machine import this_platform
from envspec.engine.client import Engine, EngineImage, ensure_image, find_image, open_engine
from envspec.engine.container import (
    ContainerOptions,
    ContainerSettings,
    Gpus,
    HostFolders,
    Mount,
    MountAccess,
    Terminal,
    User,
    container_settings,
)
from envspec.engine.errors import EngineError, NoGpuRuntime
from envspec.engine.run import Streams, run
from envspec.errors import UnfitMachine, UsageError
from envspec.escaping import blanked
from envspec.image.options import ImageStage
from envspec.io.files import read_untrusted
from envspec.io.process import Finished, ParentLink, StopBy, run_streaming
from envspec.io.tasks import run_interruptible
from envspec.lockfile.document import identity
from envspec.models import Lock, Platform, Resolution
from envspec.operations.container import compiled_folder, engine_platform, image_in_engine, this_user
from envspec.operations.verify import expected_of, part_of
from envspec.receipts.build import BadResults, ReceiptInputs, receipt
from envspec.receipts.model import Here, Image, LockName, Receipt


class Device(Enum):
    """What is tested: GPUs, or what runs without one."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of the machine costs."""

    amount: float
    currency: str


@dataclass(frozen=True, slots=True)
class Request:
    """What to test, and how.

    checks: empty for the spec's, or all if it names none. world_size: None for the spec's, or the number of GPUs.
    limits: check -> seconds, instead of its own limit.
    """

    lock: Lock
    lock_sha256: str
    resolution: Resolution
    device: Device
    checks: tuple[str, ...] = ()
    world_size: int | None = None
    nodes: Nodes = field(default_factory=Nodes)
    price: Price | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


def order_of(request: Request, expected: Mapping[str, Any], start: SuiteStart) -> SuiteRequest:
    """The request that the suite reads.

    expected: the environment of the lock, in the form of `envspec.verifier`.

    Raises:
        UsageError: an unknown check; nodes that don't fit.
    """
    asked = request.lock.conformance
    named = request.checks or (asked.checks if asked else ())
    unknown = [name for name in (*named, *request.limits) if name not in CHECKS]
    if unknown:
        raise UsageError(f"there is no check {unknown[0]}", hint=f"use {', '.join(CHECKS)}")
    return SuiteRequest(
        device=request.device.value,
        checks=tuple(name for name in CHECKS if not named or name in named),
        required=tuple(name for name in CHECKS if asked and name in asked.checks and name in (named or CHECKS)),
        world_size=request.world_size or (asked.world_size if asked else None),
        nodes=request.nodes,
        locked=_locked(request, expected),
        start=start,
        price_per_hour=request.price.amount if request.price else None,
        currency=request.price.currency if request.price else "",
        limits=request.limits,
    )


def text_of(order: SuiteRequest) -> str:
    """The request as the suite reads it."""
    return json.dumps(asdict(order), indent=1)


def _locked(request: Request, expected: Mapping[str, Any]) -> LockedStack:
    lock, part = request.lock, request.resolution
    return LockedStack(
        name=lock.name,
        python=part.target.python.version,
        packages={**_versions(part)},
        expected=expected,
        code=tuple(
            LockedGpuCode(row.package, row.version, row.sm, row.ptx)
            for row in lock.gpu_code
            if row.platform is part.target.platform
        ),
        cuda_release=lock.base_image.cuda_release if lock.base_image else None,
        minimum_driver=lock.driver.minimum if lock.driver else None,
    )


def _versions(part: Resolution) -> dict[str, str]:
    """Normalised name -> version; a wheel on top of conda's package of that name is what Python imports."""
    provided = {each.name: each.version for row in part.conda for each in row.provides}
    return {
        **{row.name: row.version for row in part.conda},
        **provided,
        **{row.name: row.version for row in part.packages},
    }


def nodes_of(count: int, rank: int, rendezvous: str | None) -> Nodes:
    """The machines of a run.

    Raises:
        UsageError: several without a rendezvous, or a rank that is none of theirs.
    """
    if count == 1 and rendezvous is None and rank == 0:
        return Nodes()
    if not 0 <= rank < count:
        ranks = (
            f"the ranks of {count} nodes are 0 to {count - 1}" if count > 1 else "there is one node, and its rank is 0"
        )
        raise UsageError(
            f"--node-rank {rank}: {ranks}",
            hint="give each node its own number; --nodes is how many there are",
        )
    hint = "add --rendezvous HOST:PORT, the first node's, on every node"
    if rendezvous is None:
        raise UsageError(f"{count} nodes need a rendezvous", hint=hint)
    host, _, port = rendezvous.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UsageError(f"--rendezvous {rendezvous}: the form is HOST:PORT", hint=hint)
    return Nodes(count, rank, rendezvous)


def suite_folders() -> Sequence[Path]:
    """The folders that are copied beside the stack: the suite, and what it shares with envspec."""
    import envspec.conformance
    import envspec.verifier

    return [Path(package.__path__[0]) for package in (envspec.conformance, envspec.verifier)]


#: Where the suite is in a container, read-only, and where its results go.
INSIDE: Final = "/run/envspec/suite"
RESULTS_INSIDE: Final = "/run/envspec/results"


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder with the suite and its request, and one for its results."""

    folder: Path

    @property
    def suite(self) -> Path:
        return self.folder / "suite"

    @property
    def run(self) -> Path:
        return self.suite / RUN

    @property
    def order(self) -> Path:
        return self.suite / ORDER

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def document(self) -> Path:
        return self.results / DOCUMENT


#: Below the suite's folder, and below that of its results.
RUN: Final = "envspec/conformance/run.py"
ORDER: Final = "order.json"
DOCUMENT: Final = "results.json"


@contextlib.contextmanager
def staged(order: SuiteRequest) -> Iterator[Stage]:
    """The suite and its request, in a folder that is removed at the end.

    Raises:
        UnfitMachine: the folder for temporary files can't be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="envspec-suite-"))
        stage = Stage(folder)
        package = stage.suite / "envspec"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        for source in suite_folders():
            shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        stage.order.write_text(text_of(order), encoding="utf-8")
        stage.results.mkdir()
    except OSError as error:
        raise UnfitMachine(
            f"the suite can't be laid out in {tempfile.gettempdir()}: {error.strerror}",
            hint="free space there, or set TMPDIR to another folder",
        ) from error
    try:
        yield stage
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Begun:
    """A check has begun."""

    check: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A check is over. status: of `envspec.conformance.results.Status`. seconds: its wall time."""

    check: str
    status: str
    seconds: float
    reason: str


OnCheck = Callable[["Begun | Ended"], None]


def read_event(line: str) -> Begun | Ended | None:
    """The event in a line of the suite's stdout; None for any other line."""
    try:
        event = json.loads(line)
        if "begin" in event:
            return Begun(_word(event["begin"]))
        return Ended(_word(event["end"]), _word(event["status"]), float(event["seconds"]), _word(event["reason"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


def _word(value: object) -> str:
    """Text of a program that the image may have put in place of the suite, without what steers a terminal."""
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return blanked(value)


def _report_line(line: str, on_check: OnCheck) -> None:
    event = read_event(line)
    if event is not None:
        on_check(event)


_STDERR_BYTES = 64 * 1024
#: Longer lines are not the suite's.
_LINE_BYTES = 1024 * 1024


def check_engine(engine: Engine) -> None:
    """Whether the suite can be mounted.

    Raises:
        UnfitMachine: the engine is another machine, without the folders of this one.
    """
    if engine.address.is_remote:
        raise UnfitMachine(
            f"the engine at {engine.address} is another machine: the suite can't be mounted there",
            hint="run envspec on that machine, or `--local` in a Python of it",
        )


def settings_of(
    request: Request, stage: Stage, engine: Engine, user: User, gpus: Gpus | tuple[str, ...], compiled: str | None
) -> ContainerSettings:
    """The container: the image as it is, the suite beside it, and nothing of the user's own.

    compiled: a folder of this machine for what the driver compiles from PTX, so that a second run is warm.
    """
    words = ("python", f"{INSIDE}/{RUN}", f"{INSIDE}/{ORDER}", f"{RESULTS_INSIDE}/{DOCUMENT}")
    options = ContainerOptions(
        command=words,
        gpus=gpus if request.device is Device.CUDA else Gpus.NONE,
        mounts=(Mount(str(stage.suite), INSIDE, MountAccess.READ_ONLY), Mount(str(stage.results), RESULTS_INSIDE)),
        # The ranks of several machines have to reach each other.
        network="host" if request.nodes.count > 1 else None,
        terminal=Terminal.PIPES,
    )
    return container_settings(request.lock, user, engine.facts, HostFolders(compiled=compiled), options)


def run_in_container(
    engine: Engine, image: str, settings: ContainerSettings, on_check: OnCheck, warn: Callable[[str], None]
) -> Finished:
    """Run the suite to its end. image: as the engine calls it. The container is gone afterwards.

    Raises:
        NoGpuRuntime, NoSuchProgram, CannotStart, EngineError, EngineUnreachable: as `engine.run` says.
    """
    lines, errors = _Lines(lambda line: _report_line(line, on_check)), _Tail()
    status = run(engine, image, settings, Streams(None, lines, errors), warn)
    return Finished(status, "", errors.text)


class _Lines(io.BytesIO):
    """Calls a function with every whole line that is written to it."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__()
        self._on_line = on_line
        self._rest = bytearray()

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        first, *others = piece.split(b"\n")
        self._rest += first[: _LINE_BYTES - len(self._rest)]
        for other in others:
            self._on_line(self._rest.decode("utf-8", "replace"))
            self._rest = bytearray(other[:_LINE_BYTES])
        return len(piece)


class _Tail(io.BytesIO):
    """Keeps the end of what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._end = b""

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._end = (self._end + piece)[-_STDERR_BYTES:]
        return len(piece)

    @property
    def text(self) -> str:
        return self._end.decode("utf-8", "replace")


def local_python(environ: Mapping[str, str], named: Path | None = None) -> Path:
    """The Python to be tested: the named one, the active environment's, or the first on PATH.

    Raises:
        UsageError: no such program, or none on PATH.
    """
    if named is not None:
        if not os.access(named, os.X_OK) or named.is_dir():
            raise UsageError(f"--python {named}: no program", hint="name an environment's bin/python")
        return named.absolute()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable) and (python := Path(environ[variable], "bin", "python")).exists():
            return python
    found = shutil.which("python", path=environ.get("PATH")) or shutil.which("python3", path=environ.get("PATH"))
    if found is None:
        raise UsageError("no Python on PATH to test", hint="activate an environment, or add --python PATH")
    return Path(found).absolute()


def run_local(python: Path, stage: Stage, environ: Mapping[str, str], on_check: OnCheck) -> Finished:
    """Run the suite to its end, in the variables that the user has; its results are in `stage.document`.

    Raises:
        UnfitMachine: the Python can't be started.
    """
    # It ends when its stdin does, also where this process is killed: nothing of it is left.
    command = [str(python), str(stage.run), "--until-stdin-ends", str(stage.order), str(stage.document)]
    work = run_streaming(
        command,
        environ=environ,
        cwd=stage.results,
        parent=ParentLink(stop_by=StopBy.STDIN),
        on_line=lambda line: _report_line(line, on_check),
    )
    try:
        return run_interruptible(work)
    except OSError as error:
        raise UnfitMachine(
            f"{python} can't be started: {error.strerror}", hint="name another one by --python"
        ) from error


#: Of results.json: a thousand times as much as it has.
_MOST_BYTES: Final = 64 << 20
_WITHOUT_GPU: Final = "`--device cpu` tests what needs no GPU"


class NoGpu(UnfitMachine):
    """No GPU to test."""


class SuiteLost(UnfitMachine):
    """The suite left no results: its Python is too old, or it was killed."""


@dataclass(frozen=True, slots=True)
class Observer:
    """What is called while the suite runs. interrupted: with what was found until then, if the run is interrupted.

    baseline: a recorded receipt to compare the new one with.
    """

    on_check: OnCheck
    interrupted: Callable[[Receipt], None] = lambda _: None
    baseline: Receipt | None = None


@dataclass(frozen=True, slots=True)
class SuiteLocation:
    """Where the suite runs. python: of this machine, without a container; else in a container.

    image: a reference, None for the lock's own. gpus: of the container.
    """

    local: bool = False
    python: Path | None = None
    image: str | None = None
    gpus: Gpus | tuple[str, ...] = Gpus.AS_LOCKED
    bytecode: bool = True


@dataclass(frozen=True, slots=True)
class SuiteSelection:
    """What to test. device: None for what the lock is for. The others: see `Request`."""

    device: str | None = None
    checks: tuple[str, ...] = ()
    world_size: int | None = None
    nodes: Nodes = field(default_factory=Nodes)
    price: Price | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


def run_conformance(
    lock: Lock,
    lock_sha256: str,
    location: SuiteLocation,
    selection: SuiteSelection,
    context: Context,
    observer: Observer,
) -> Receipt:
    """Run the conformance suite of a lock. lock_sha256: of its envspec.lock.

    Raises:
        UsageError, UnfitMachine, NetworkError: as the stages say.
    """
    run = _run_local if location.local else _run_in_container
    return run(lock, lock_sha256, location, selection, context, observer)


def _run_local(
    locked: Lock, digest: str, location: SuiteLocation, selection: SuiteSelection, context: Context, observer: Observer
) -> Receipt:
    part = _linux_part(locked, this_platform())
    python = local_python(context.environ, location.python)
    request = _suite_request(locked, digest, part, selection)
    order = order_of(request, _expected(request), SuiteStart())
    with staged(order) as stage:
        where = Here(python=str(python), prefix=str(python.parents[1]))
        with _partial_receipt(request, order, where, context, observer, stage):
            finished = run_local(python, stage, context.environ, observer.on_check)
        return _receipt(request, order, where, context, observer, _results(stage, finished))


def _run_in_container(
    locked: Lock, digest: str, location: SuiteLocation, selection: SuiteSelection, context: Context, observer: Observer
) -> Receipt:
    with open_engine(context.environ) as engine:
        platform = engine_platform(locked, engine, None)
        request = _suite_request(locked, digest, _linux_part(locked, platform), selection)
        image = _image(engine, locked, platform, location, context)
        compiled = compiled_folder(context.cache, image.id)
        Path(compiled).mkdir(parents=True, exist_ok=True)
        check_engine(engine)
        start = SuiteStart(in_container=True, at_s=time.time(), pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)
        order = order_of(request, _expected(request), start)
        with staged(order) as stage:
            settings = settings_of(request, stage, engine, this_user(context.environ), location.gpus, compiled)
            where = Image(reference=image.reference, id=image.id, pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)

            def warn(line: str) -> None:
                context.reporter.warning(line.removeprefix("warning: "))

            try:
                with _partial_receipt(request, order, where, context, observer, stage):
                    finished = run_in_container(engine, image.id, settings, observer.on_check, warn)
            except NoGpuRuntime as error:
                raise NoGpu(error.message, hint=f"{_WITHOUT_GPU}; {(error.hint or '').partition(';')[0]}") from error
            return _receipt(request, order, where, context, observer, _results(stage, finished))


def _image(engine: Engine, locked: Lock, platform: Platform, location: SuiteLocation, context: Context) -> EngineImage:
    def pulling(done: int, total: int) -> None:
        context.reporter.progress(Step(ImageStage.PULLING, 0, 0, done, total))

    if location.image:
        return ensure_image(engine, location.image, pulling)
    name = image_in_engine(engine, locked, platform, context, bytecode=location.bytecode)
    found = find_image(engine, name)
    if found is None:
        raise EngineError(
            f"image {name} was removed from the engine ({engine.facts}) meanwhile", hint="run the same command again"
        )
    return found


def _suite_request(locked: Lock, digest: str, part: Resolution, selection: SuiteSelection) -> Request:
    own = Device.CUDA if locked.driver else Device.CPU
    device = Device(selection.device) if selection.device else own
    if device is Device.CUDA and own is Device.CPU:
        raise UsageError(f"{locked.name} has no CUDA to test", hint="use --device cpu, or add [cuda] to its spec")
    return Request(
        lock=locked,
        lock_sha256=digest,
        resolution=part,
        device=device,
        checks=selection.checks,
        world_size=selection.world_size,
        nodes=selection.nodes,
        price=selection.price,
        limits=selection.limits,
    )


def _linux_part(locked: Lock, platform: Platform) -> Resolution:
    """The lock's part for a platform, which has to be a Linux.

    Raises:
        UnfitMachine: the suite does not run there. UsageError: the lock has none.
    """
    if not platform.is_linux:
        raise UnfitMachine(f"the suite runs on Linux, and this is {platform.value}")
    return part_of(locked, platform)


def _expected(request: Request) -> Mapping[str, Any]:
    return asdict(expected_of(request.resolution))


@contextlib.contextmanager
def _partial_receipt(
    request: Request, order: SuiteRequest, where: Image | Here, context: Context, observer: Observer, stage: Stage
) -> Iterator[None]:
    """Reports what was found until Ctrl-C, which ends the run all the same."""
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, ValueError, RecursionError, BadResults):
            results = _read(stage)
            if results["results"]:
                observer.interrupted(_receipt(request, order, where, context, observer, results))
        raise


def _results(stage: Stage, finished: Finished) -> Mapping[str, Any]:
    """What the suite has written, complete or not."""
    if finished.status == NO_GPU:
        raise NoGpu(
            finished.stderr.strip() or "there is no GPU",
            hint=f"{_WITHOUT_GPU}; `envspec doctor` looks for what is missing",
        )
    try:
        return _read(stage)
    except (OSError, ValueError, RecursionError) as error:
        why = f"{error.strerror}; " if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) else ""
        raise SuiteLost(
            f"the suite exited with status {finished.status} without results: {why}{_last(finished.stderr)}",
            hint="check that its Python is 3.9 or newer, and that it may write to its folder of results",
        ) from error


def _read(stage: Stage) -> Mapping[str, Any]:
    results = json.loads(read_untrusted(stage.document, _MOST_BYTES).decode("utf-8"))
    if not isinstance(results, dict):
        raise ValueError("no JSON object")
    return results


def _receipt(
    request: Request,
    order: SuiteRequest,
    where: Image | Here,
    context: Context,
    observer: Observer,
    results: Mapping[str, Any],
) -> Receipt:
    lock = request.lock
    known = ReceiptInputs(
        envspec=__version__,
        made_at=context.now(),
        lock=LockName(
            name=lock.name, sha256=request.lock_sha256, input_sha256=lock.input_sha256, identity=identity(lock)
        ),
        where=where,
        requested=order.checks,
        required=order.required,
        nodes=order.nodes,
        world_size=order.world_size,
        baseline=observer.baseline,
    )
    return receipt(results, known)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
