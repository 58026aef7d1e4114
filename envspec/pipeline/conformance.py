"""A run of the conformance suite: order -> stage -> container or Python -> results -> receipt."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from envspec import __version__
from envspec.conformance.order import Order, Start
from envspec.conformance.suite import NO_GPU
from envspec.effects.files import read_foreign
from envspec.effects.process import Finished
from envspec.engine.container import Gpus, User
from envspec.engine.docker import Engine
from envspec.engine.faults import NoGpuRuntime
from envspec.engine.pull import Present
from envspec.errors import UnfitMachine
from envspec.lock.document import identity
from envspec.pipeline.verify import expected_of
from envspec.proof import container, here
from envspec.proof.request import Request, order_of
from envspec.proof.staging import Stage, staged
from envspec.proof.watching import Told
from envspec.receipt.build import BadResults, Known, receipt
from envspec.receipt.values import Here, Image, LockName, Nodes, Receipt

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
            finished = here.run_here(python, stage, environ, watch.told)
        return _receipt(request, order, where, watch, _results(stage, finished))


def prove_inside(request: Request, engine: Engine, image: Present, chosen: Chosen, watch: Watch) -> Receipt:
    """Run the suite in a container of an image.

    Raises:
        NoGpu: GPUs are asked for, and the container sees none. UnfitMachine, NetworkError: the engine can't run it.
    """
    container.check_engine(engine)
    start = Start(in_container=True, at_s=time.time(), pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)
    order = order_of(request, _expected(request), start)
    with staged(order) as stage:
        settings = container.settings_of(request, stage, engine, chosen.user, chosen.gpus, chosen.compiled)
        where = Image(reference=image.reference, id=image.id, pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)
        try:
            with _kept(request, order, where, watch, stage):
                finished = container.run_inside(engine, image.id, settings, watch.told, watch.warn)
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
    results = json.loads(read_foreign(stage.document, _MOST_BYTES).decode("utf-8"))
    if not isinstance(results, dict):
        raise ValueError("no JSON object")
    return results


def _receipt(request: Request, order: Order, where: Image | Here, watch: Watch, results: Mapping[str, Any]) -> Receipt:
    lock = request.lock
    nodes = Nodes(count=order.nodes.count, rank=order.nodes.rank, rendezvous=order.nodes.rendezvous)
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
