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
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

from envspec import __version__
from envspec.conformance.checks import CHECKS
from envspec.conformance.request import Code, Locked, Nodes, Order, Start
from envspec.conformance.suite import NO_GPU
from envspec.engine.client import Engine, EngineImage
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
from envspec.engine.errors import NoGpuRuntime
from envspec.engine.run import Streams, run
from envspec.errors import UnfitMachine, UsageError
from envspec.escaping import blanked
from envspec.io.files import read_untrusted
from envspec.io.process import Finished, ParentLink, StopBy, run_streaming
from envspec.io.tasks import run_interruptible
from envspec.lock.document import identity
from envspec.models import Lock, Resolution
from envspec.operations.verify import expected_of
from envspec.receipt.build import BadResults, Known, receipt
from envspec.receipt.values import Here, Image, LockName, Receipt
from envspec.receipt.values import Nodes as ReceiptNodes


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
    """What the user asks for.

    checks: empty for the spec's, or all where it names none. world_size: None for the spec's, or as many as there are
    GPUs. limits: check -> seconds, where it is to have another limit than its own.
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


def order_of(request: Request, expected: Mapping[str, Any], start: Start) -> Order:
    """What the suite is told.

    expected: the environment that the lock says, in the form of `envspec.verifier`.

    Raises:
        UsageError: a check that there is not; nodes that don't fit.
    """
    asked = request.lock.conformance
    named = request.checks or (asked.checks if asked else ())
    unknown = [name for name in (*named, *request.limits) if name not in CHECKS]
    if unknown:
        raise UsageError(f"there is no check {unknown[0]}", hint=f"there are: {', '.join(CHECKS)}")
    return Order(
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


def text_of(order: Order) -> str:
    """The order as the suite reads it."""
    return json.dumps(asdict(order), indent=1)


def _locked(request: Request, expected: Mapping[str, Any]) -> Locked:
    lock, part = request.lock, request.resolution
    return Locked(
        name=lock.name,
        python=part.target.python.version,
        packages={**_versions(part)},
        expected=expected,
        code=tuple(
            Code(row.package, row.version, row.sm, row.ptx)
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
            hint="each node has a number of its own; --nodes says how many there are",
        )
    hint = "--rendezvous HOST:PORT, the first node's, on every node"
    if rendezvous is None:
        raise UsageError(f"{count} nodes need a place to meet", hint=hint)
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
    """A folder with the suite and its order, and one for its results."""

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
def staged(order: Order) -> Iterator[Stage]:
    """The suite and its order, laid out; gone when the block is left.

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
    except OSError as fault:
        raise UnfitMachine(
            f"the suite can't be laid out in {tempfile.gettempdir()}: {fault.strerror}",
            hint="make room there, or name another folder by TMPDIR",
        ) from fault
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


Told = Callable[["Begun | Ended"], None]


def heard(line: str) -> Begun | Ended | None:
    """What a line of the suite's stdout says; None for any other."""
    try:
        said = json.loads(line)
        if "begin" in said:
            return Begun(_word(said["begin"]))
        return Ended(_word(said["end"]), _word(said["status"]), float(said["seconds"]), _word(said["reason"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


def _word(value: object) -> str:
    """Of a program that the image may have put in the suite's place: nothing that steers a terminal."""
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return blanked(value)


def tell(line: str, told: Told) -> None:
    """Hand on what a line says."""
    said = heard(line)
    if said is not None:
        told(said)


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


def run_inside(
    engine: Engine, image: str, settings: ContainerSettings, told: Told, warn: Callable[[str], None]
) -> Finished:
    """Run the suite to its end. image: as the engine calls it. The container is gone afterwards.

    Raises:
        NoGpuRuntime, NoSuchProgram, CannotStart, EngineError, EngineUnreachable: as `engine.run` says.
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


def python_here(environ: Mapping[str, str], named: Path | None = None) -> Path:
    """The Python to be tested: the named one, the active environment's, or the first on PATH.

    Raises:
        UsageError: there is none.
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
        raise UsageError("there is no Python on PATH to be tested", hint="activate an environment, or --python PATH")
    return Path(found).absolute()


def run_here(python: Path, stage: Stage, environ: Mapping[str, str], told: Told) -> Finished:
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
        on_line=lambda line: tell(line, told),
    )
    try:
        return run_interruptible(work)
    except OSError as fault:
        raise UnfitMachine(f"{python} can't be started: {fault.strerror}", hint="--python names another one") from fault


#: Of results.json: a thousand times as much as it has.
_MOST_BYTES: Final = 64 << 20
_WITHOUT_GPU: Final = "`--device cpu` tests what needs no GPU"


class NoGpu(UnfitMachine):
    """GPUs are to be tested, and there are none."""


class SuiteLost(UnfitMachine):
    """The suite did not come up: it left no results at all. Its Python is too old, or something ended it."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told while the suite runs. told: of every check. warn: of what the user should know.

    now: the time, with its zone. baseline: a recorded receipt that the new one is held against. interrupted: given what
    was found until a run was interrupted; the checks that did not come to their end failed.
    """

    told: Told
    warn: Callable[[str], None]
    now: Callable[[], datetime]
    baseline: Receipt | None = None
    interrupted: Callable[[Receipt], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a container is given of this machine. compiled: a folder for what the driver compiles from PTX, or None."""

    user: User
    gpus: Gpus | tuple[str, ...] = Gpus.AS_LOCKED
    compiled: str | None = None


def prove_here(request: Request, python: Path, environ: Mapping[str, str], watch: Watch) -> Receipt:
    """Run the suite in a Python of this machine.

    Raises:
        NoGpu: GPUs are asked for, and there are none. UnfitMachine: the Python can't be started.
    """
    order = order_of(request, _expected(request), Start())
    with staged(order) as stage:
        where = Here(python=str(python), prefix=str(python.parents[1]))
        with _kept(request, order, where, watch, stage):
            finished = run_here(python, stage, environ, watch.told)
        return _receipt(request, order, where, watch, _results(stage, finished))


def prove_inside(request: Request, engine: Engine, image: EngineImage, chosen: Chosen, watch: Watch) -> Receipt:
    """Run the suite in a container of an image.

    Raises:
        NoGpu: GPUs are asked for, and the container sees none. UnfitMachine, NetworkError: the engine can't run it.
    """
    check_engine(engine)
    start = Start(in_container=True, at_s=time.time(), pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)
    order = order_of(request, _expected(request), start)
    with staged(order) as stage:
        settings = settings_of(request, stage, engine, chosen.user, chosen.gpus, chosen.compiled)
        where = Image(reference=image.reference, id=image.id, pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)
        try:
            with _kept(request, order, where, watch, stage):
                finished = run_inside(engine, image.id, settings, watch.told, watch.warn)
        except NoGpuRuntime as fault:
            raise NoGpu(fault.message, hint=f"{_WITHOUT_GPU}; {(fault.hint or '').partition(';')[0]}") from fault
        return _receipt(request, order, where, watch, _results(stage, finished))


def _expected(request: Request) -> Mapping[str, Any]:
    return asdict(expected_of(request.resolution))


@contextlib.contextmanager
def _kept(request: Request, order: Order, where: Image | Here, watch: Watch, stage: Stage) -> Iterator[None]:
    """Hands on what was found until Ctrl-C, which ends the run all the same."""
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, ValueError, RecursionError, BadResults):
            results = _read(stage)
            if results["results"]:
                watch.interrupted(_receipt(request, order, where, watch, results))
        raise


def _results(stage: Stage, finished: Finished) -> Mapping[str, Any]:
    """What the suite has written, also where something ended it half-way."""
    if finished.status == NO_GPU:
        raise NoGpu(
            finished.stderr.strip() or "there is no GPU",
            hint=f"{_WITHOUT_GPU}; `envspec doctor` looks for what is missing",
        )
    try:
        return _read(stage)
    except (OSError, ValueError, RecursionError) as fault:
        why = f"{fault.strerror}; " if isinstance(fault, OSError) and not isinstance(fault, FileNotFoundError) else ""
        raise SuiteLost(
            f"the suite ended with status {finished.status} and left no results: {why}{_last(finished.stderr)}",
            hint="is its Python 3.9 or newer, and may it write to its folder of results?",
        ) from fault


def _read(stage: Stage) -> Mapping[str, Any]:
    results = json.loads(read_untrusted(stage.document, _MOST_BYTES).decode("utf-8"))
    if not isinstance(results, dict):
        raise ValueError("no JSON object")
    return results


def _receipt(request: Request, order: Order, where: Image | Here, watch: Watch, results: Mapping[str, Any]) -> Receipt:
    lock = request.lock
    nodes = ReceiptNodes(count=order.nodes.count, rank=order.nodes.rank, rendezvous=order.nodes.rendezvous)
    known = Known(
        envspec=__version__,
        made_at=watch.now(),
        lock=LockName(
            name=lock.name, sha256=request.lock_sha256, input_sha256=lock.input_sha256, identity=identity(lock)
        ),
        where=where,
        asked=order.checks,
        required=order.required,
        nodes=nodes,
        world_size=order.world_size,
        baseline=watch.baseline,
    )
    return receipt(results, known)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
