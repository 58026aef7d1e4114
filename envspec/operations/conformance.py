"""Lock to conformance suite, in a container or a local Python, to receipt."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

import envspec.conformance
import envspec.verifier
from envspec.conformance.checks import CHECKS
from envspec.conformance.receipt import ReceiptInputs, why_ended
from envspec.conformance.request import LockedGpuCode, LockedStack, SuiteRequest, SuiteStart
from envspec.conformance.selection import BadOption, SuiteSelection
from envspec.conformance.suite import COMPLETED, NO_GPU
from envspec.conformance.text import lines_of
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
    container_settings,
    rdma_devices,
)
from envspec.engine.errors import EngineError, NoEngine, NoGpuRuntime
from envspec.engine.run import Streams, run
from envspec.errors import UnfitMachine, UsageError
from envspec.escaping import blanked
from envspec.image.options import ImageStage
from envspec.io.cache import IMAGE_ACCOUNTS, JsonCache
from envspec.io.files import read_untrusted
from envspec.io.process import Finished, ParentLink, StopBy, run_streaming
from envspec.io.tasks import run_interruptible
from envspec.lockfile.document import identity
from envspec.models import Conformance, Lock, Platform
from envspec.operations.container import (
    check_platform,
    compiled_folder,
    engine_platform,
    image_in_engine,
    image_removed,
    this_user,
)
from envspec.operations.environment import expected_of
from envspec.operations.lock_state import part_of
from envspec.receipts.build import BadResults, receipt
from envspec.receipts.model import Image, LocalPython, LockName, Receipt
from envspec.structs import replace
from envspec.version import VERSION

#: Below the suite's folder, and below that of its results.
_RUN: Final = "envspec/conformance/run.py"
_REQUEST: Final = "request.json"
_RESULTS: Final = "results.json"
#: The same folders in a container, the suite's read-only.
_SUITE_INSIDE: Final = "/run/envspec/suite"
_RESULTS_INSIDE: Final = "/run/envspec/results"

_STDERR_LINES: Final = 60
#: Longer lines are not the suite's.
_LINE_BYTES: Final = 1024 * 1024
#: Of results.json: a thousand times as much as it has.
_MOST_BYTES: Final = 64 << 20
_WITHOUT_GPU: Final = "`--device cpu` tests what needs no GPU"
_WITHOUT_ENGINE: Final = "`envspec install LOCK --prefix DIR`, then `--local --python DIR/bin/python`"


class CheckEvent(Struct, frozen=True):
    """A check of the suite that has ended, or begun: then it has no status. seconds: its wall time."""

    check: str
    status: str = ""
    seconds: float = 0.0
    reason: str = ""


class Observer(Struct, frozen=True):
    """What is called while the suite runs.

    on_check: with each check that begins or ends.
    interrupted: with the partial receipt, if the run is interrupted.
    baseline: a recorded receipt to compare the new one with.
    as_if: a lock and the digest of its envspec.lock, with which a stack without a lock is compared.
    """

    on_check: Callable[[CheckEvent], None] = lambda _: None
    interrupted: Callable[[Receipt], None] = lambda _: None
    baseline: Receipt | None = None
    as_if: tuple[Lock, str] | None = None


class SuiteLocation(Struct, frozen=True):
    """Where the suite runs.

    local: in a Python of this machine instead of a container.
    python: that Python, if `local`; None for the active environment's.
    image: a reference, None for the lock's own.
    gpus, mounts, env: of the container.
    """

    local: bool = False
    python: Path | None = None
    image: str | None = None
    gpus: Gpus | tuple[str, ...] = Gpus.AS_LOCKED
    bytecode: bool = True
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def run_conformance(
    lock: Lock | None,
    lock_sha256: str,
    location: SuiteLocation,
    selection: SuiteSelection,
    context: Context,
    observer: Observer,
) -> Receipt:
    """Run the conformance suite of a lock, or without one in a Python of this machine. lock_sha256: of envspec.lock.

    Raises:
        UsageError: an unknown check or device, options that exclude each other, nodes that can't meet, or the lock is
            not for the platform.
        UnfitMachine: there is no GPU, no engine, no linux platform in the lock, the suite does not run on this system,
            or it left no results.
        NetworkError: the image can't be fetched.
    """
    if location.local and location.image:
        raise UsageError("--local and --image exclude each other", hint="remove one of them")
    if location.python and not location.local:
        raise UsageError("--python needs --local", hint="add --local")
    if observer.as_if and lock:
        raise UsageError("--compare-with is for a stack without a lock", hint="leave LOCK or --compare-with out")
    suite = _Suite(lock, lock_sha256, selection, context, observer)
    if location.local:
        return suite.run_local(location.python)
    if lock is None:
        raise UsageError("LOCK is missing: only --local tests a stack without one", hint="name a lock, or add --local")
    check_platform(lock, None)
    try:
        return suite.run_in_container(lock, location)
    except NoEngine as error:
        error.restate(error.message, f"{error.hint}; without an engine: {_WITHOUT_ENGINE}")
        raise


class _Suite(Struct, frozen=True):
    """One run of the suite on this machine."""

    lock: Lock | None
    lock_sha256: str
    selection: SuiteSelection
    context: Context
    observer: Observer

    def run_local(self, named: Path | None) -> Receipt:
        as_if = self.observer.as_if[0] if self.observer.as_if else None
        request = suite_request(self.lock, self.selection, this_platform(), as_if)
        python = local_python(self.context.environ, named)

        def execute(folder: Path) -> Finished:
            suite, results = folder / "suite", folder / "results"
            command = (python, suite / _RUN, "--until-stdin-ends", suite / _REQUEST, results / _RESULTS)
            work = run_streaming(
                list(map(str, command)),
                environ=self.context.environ,
                cwd=results,
                # It ends when its stdin does, also if this process is killed: no process is left.
                parent=ParentLink(stop_by=StopBy.STDIN),
                on_line=self._read_line,
            )
            try:
                return run_interruptible(work)
            except OSError as error:
                raise UnfitMachine(
                    f"{python} can't be started: {error.strerror}", hint="name another one by --python"
                ) from error

        return self._run(request, LocalPython(python=str(python), prefix=str(python.parent.parent)), execute)

    def run_in_container(self, lock: Lock, location: SuiteLocation) -> Receipt:
        context = self.context
        with open_engine(context.environ, context.reporter.warning) as engine:
            if engine.address.is_remote:
                raise UnfitMachine(
                    f"the engine at {engine.address} is another machine: the suite can't be mounted there",
                    hint="run envspec on that machine, or `--local` in a Python of it",
                )
            platform = engine_platform(lock, engine, None)
            request = suite_request(lock, self.selection, platform)
            image = self._image(lock, engine, platform, location)
            # What the driver compiles from PTX stays on this machine, so that a second run is warm.
            compiled = compiled_folder(context.cache, image.id)
            Path(compiled).mkdir(parents=True, exist_ok=True)
            start = SuiteStart(at_s=time.time(), pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)

            def execute(folder: Path) -> Finished:
                settings = self._settings(lock, request, folder, engine, location, compiled)
                return self._execute(engine, image.id, settings)

            where = Image(reference=image.reference, id=image.id, pulled_bytes=image.pulled_bytes, pull_s=image.pull_s)
            return self._run(replace(request, start=start), where, execute)

    def _execute(self, engine: Engine, image: str, settings: ContainerSettings) -> Finished:
        """Run the suite in a container to its end, or until it reports a process of it that can't be killed."""
        left: list[str] = []

        def warn(line: str) -> None:
            self.context.reporter.warning(line.removeprefix("warning: "))

        def read_line(line: str) -> None:
            self._read_line(line)
            reason = _unkillable(line)
            if reason:
                left.append(reason)
                raise _Unkillable

        errors: deque[str] = deque(maxlen=_STDERR_LINES)
        stderr = _OutputLines(errors.append)
        streams = Streams(None, _OutputLines(read_line), stderr)
        try:
            status = run(engine, image, settings, streams, warn, JsonCache(self.context.cache / IMAGE_ACCOUNTS))
        except (_Unkillable, EngineError):
            # The engine can't remove a container before its last process ends.
            if not left:
                raise
            warn(f"the container may still be there: {left[0]}")
            status = COMPLETED
        except NoGpuRuntime as error:
            hint = (error.hint or "").partition(";")[0]
            raise UnfitMachine(error.message, hint=f"{_WITHOUT_GPU}; {hint}") from error
        # Ends a last line that has no end.
        stderr.write(b"\n")
        return Finished(status, "", "\n".join(errors))

    def _image(self, lock: Lock, engine: Engine, platform: Platform, location: SuiteLocation) -> EngineImage:
        def pulling(done: int, total: int) -> None:
            self.context.reporter.progress(Step(ImageStage.PULLING, 0, 0, done, total))

        if location.image:
            return ensure_image(engine, location.image, pulling)
        name = image_in_engine(engine, lock, platform, self.context, bytecode=location.bytecode)
        found = find_image(engine, name)
        if found is None:
            raise image_removed(engine, name)
        return found

    def _settings(
        self, lock: Lock, request: SuiteRequest, folder: Path, engine: Engine, location: SuiteLocation, compiled: str
    ) -> ContainerSettings:
        """The container: the image as it is, the suite beside it, and no folder of the user but requested ones."""
        suite = Mount(str(folder / "suite"), _SUITE_INSIDE, MountAccess.READ_ONLY)
        inside = (f"{_SUITE_INSIDE}/{_RUN}", f"{_SUITE_INSIDE}/{_REQUEST}", f"{_RESULTS_INSIDE}/{_RESULTS}")
        options = ContainerOptions(
            command=("python", *inside),
            entrypoint=(),
            gpus=location.gpus if request.cuda else Gpus.NONE,
            mounts=(suite, Mount(str(folder / "results"), _RESULTS_INSIDE), *location.mounts),
            env=location.env,
        )
        if request.nodes.count > 1:
            # The ranks of several machines have to reach each other.
            options = replace(options, network="host", devices=rdma_devices() if request.cuda else ())
        user = this_user(self.context.environ)
        return container_settings(lock, user, engine.facts, HostFolders(compiled=compiled), options)

    def _run(self, request: SuiteRequest, where: Image | LocalPython, execute: Callable[[Path], Finished]) -> Receipt:
        """Run the suite to its end. On Ctrl-C, which still ends the run, report the partial receipt."""
        with _suite_folder(request) as folder:
            document = folder / "results" / _RESULTS
            try:
                finished = execute(folder)
            except KeyboardInterrupt:
                with contextlib.suppress(OSError, ValueError, RecursionError, BadResults):
                    results = _read(document)
                    if results["results"]:
                        self.observer.interrupted(self._receipt(request, where, results, "the run was interrupted"))
                raise
            results = _results(document, finished)
            return self._receipt(request, where, results, why_ended(finished.status, finished.stderr))

    def _receipt(
        self, request: SuiteRequest, where: Image | LocalPython, results: Mapping[str, Any], ended: str
    ) -> Receipt:
        as_if = self.observer.as_if
        inputs = ReceiptInputs(
            envspec=VERSION,
            made_at=self.context.now(),
            request=request,
            lock=lock_name(self.lock, self.lock_sha256) if self.lock else None,
            as_if=lock_name(*as_if) if as_if else None,
            image=where if isinstance(where, Image) else None,
            local=where.model_dump() if isinstance(where, LocalPython) else None,
            ended=ended,
            baseline=self.observer.baseline,
        )
        return receipt(results, inputs)

    def _read_line(self, line: str) -> None:
        event = read_event(line)
        if event is not None:
            self.observer.on_check(event)


def suite_request(
    whole: Lock | None, selection: SuiteSelection, platform: Platform, as_if: Lock | None = None
) -> SuiteRequest:
    """The request that the suite of a lock, or without one, reads on a platform. as_if: as `Observer`'s.

    Raises:
        UnfitMachine: the suite does not run on this platform.
        UsageError: the lock is not for it, or has no CUDA to test; an unknown check; nodes that can't meet.
    """
    if not platform.is_linux:
        raise UnfitMachine(f"the suite runs on Linux, and this is {platform.value}")
    lock = whole.on(platform) if whole else None
    own = Conformance(checks=())
    if lock and lock.conformance:
        own = lock.conformance
    # Without a lock nobody has said that the stack is for the CPU.
    has_cuda = lock is None or lock.driver is not None
    if selection.device not in (None, "cuda", "cpu"):
        raise UsageError(f"there is no device {selection.device}", hint="use cuda or cpu")
    if selection.device == "cuda" and lock and not has_cuda:
        raise UsageError(f"{lock.name} has no CUDA to test", hint="use --device cpu, or add [cuda] to its spec")
    request = SuiteRequest(
        device="cuda" if has_cuda else "cpu",
        checks=own.checks or tuple(CHECKS),
        required=own.checks,
        world_size=own.world_size,
        locked=_locked_stack(lock, platform) if lock else None,
        as_if=_locked_stack(as_if.on(platform), platform) if as_if else None,
        named=own.checks,
    )
    try:
        return selection.applied(request)
    except BadOption as error:
        raise UsageError(str(error), hint=error.hint) from error


def lock_name(lock: Lock, sha256: str) -> LockName:
    """The lock's name in a receipt. sha256: of envspec.lock."""
    return LockName(name=lock.name, sha256=sha256, input_sha256=lock.input_sha256, identity=identity(lock))


def _locked_stack(lock: Lock, platform: Platform) -> LockedStack:
    part = part_of(lock, platform)
    packages: dict[str, str] = {}
    size_bytes = 0
    for below in part.installed:
        packages[below.name] = below.version
    for conda in part.conda:
        packages[conda.name] = conda.version
        size_bytes += conda.size_bytes or 0
    for conda in part.conda:
        packages |= {each.name: each.version for each in conda.provides}
    # A wheel on top of conda's package of that name is what Python imports.
    for package in part.packages:
        packages[package.name] = package.version
        size_bytes += package.wheel.size_bytes or 0
    code = []
    for each in lock.gpu_code:
        if each.platform is platform:
            code.append(LockedGpuCode(each.package, each.version, each.sm, each.ptx))
    return LockedStack(
        name=lock.name,
        python=part.target.python.version,
        packages=packages,
        expected=asdict(expected_of(part)),
        size_bytes=size_bytes,
        code=tuple(code),
        cuda_release=lock.base_image.cuda_release if lock.base_image else None,
        minimum_driver=lock.driver.minimum if lock.driver else None,
    )


@contextlib.contextmanager
def _suite_folder(request: SuiteRequest) -> Iterator[Path]:
    """A folder with the suite and its request, and one for its results; removed at the end.

    Raises:
        UnfitMachine: the folder for temporary files can't be written.
    """
    with contextlib.ExitStack() as removed:
        try:
            folder = Path(tempfile.mkdtemp(prefix="envspec-suite-"))
            removed.callback(shutil.rmtree, folder, ignore_errors=True)
            package = folder / "suite" / "envspec"
            package.mkdir(parents=True)
            (package / "__init__.py").touch()
            for copied in (envspec.conformance, envspec.verifier):
                source = Path(copied.__path__[0])
                shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
            (folder / "suite" / _REQUEST).write_text(json.dumps(asdict(request), indent=1), encoding="utf-8")
            (folder / "results").mkdir()
        except OSError as error:
            raise UnfitMachine(
                f"the suite can't be laid out in {tempfile.gettempdir()}: {error.strerror or error}",
                hint="free space there, or set TMPDIR to another folder",
            ) from error
        yield folder


def local_python(environ: Mapping[str, str], named: Path | None) -> Path:
    """The Python to test: the named one, the active environment's, or the first on PATH.

    Raises:
        UsageError: no such program, or none on PATH.
    """
    if named is not None:
        if not os.access(named, os.X_OK) or named.is_dir():
            raise UsageError(f"--python {named}: no program", hint="name an environment's bin/python")
        return named.absolute()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable) and (python := Path(environ[variable], "bin", "python").absolute()).exists():
            return python
    found = shutil.which("python", path=environ.get("PATH")) or shutil.which("python3", path=environ.get("PATH"))
    if found is None:
        raise UsageError("no Python on PATH to test", hint="activate an environment, or add --python PATH")
    return Path(found).absolute()


def read_event(line: str) -> CheckEvent | None:
    """The event in a line of the suite's stdout; None for any other line."""
    try:
        event = json.loads(line)
        if "begin" in event:
            return CheckEvent(_word(event["begin"]))
        return CheckEvent(_word(event["end"]), _word(event["status"]), float(event["seconds"]), _word(event["reason"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


class _Unkillable(Exception):
    """The suite has ended, and a process of it cannot be killed: its container does not end."""


def _unkillable(line: str) -> str:
    """The processes that a line of the suite's stdout reports as such; empty for any other line."""
    try:
        return "; ".join(map(_word, json.loads(line)["unkillable"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


def _word(value: object) -> str:
    """Text of a program that the image may have put in place of the suite, without control characters."""
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return blanked(value)


class _OutputLines(io.BytesIO):
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


def _results(document: Path, finished: Finished) -> Mapping[str, Any]:
    """What the suite has written, complete or not."""
    if finished.status == NO_GPU:
        raise UnfitMachine(
            finished.stderr.strip() or "there is no GPU",
            hint=f"{_WITHOUT_GPU}; `envspec doctor` looks for what is missing",
        )
    try:
        return _read(document)
    except (OSError, ValueError, RecursionError) as error:
        why = ""
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            why = f"{error.strerror}; "
        lines = lines_of(finished.stderr) or ["no output"]
        raise UnfitMachine(
            f"the suite exited with status {finished.status} without results: {why}{lines[-1]}",
            hint="check that its Python is 3.9 or newer, and that it may write to its folder of results",
        ) from error


def _read(document: Path) -> Mapping[str, Any]:
    results = json.loads(read_untrusted(document, _MOST_BYTES).decode("utf-8"))
    if not isinstance(results, dict):
        raise ValueError("no JSON object")
    return results
