"""The public Python API: what the commands do, as functions. `import envspec` has all of them.

lock: a `Lock`, a folder, its envspec.lock, or a name under `locks/`. Paths are relative to the current folder. context:
by default `Context.from_environment()`. Operations whose arguments are the command's are not here, but public as they
are.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TextIO, TypeAlias

from envspec.context import Context
from envspec.lockfile.folder import NamedLock, named_lock
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.conformance.request import Nodes
    from envspec.engine.container import Gpus, Mount, Port
    from envspec.importers.result import Imported
    from envspec.lockfile.check import CheckResult
    from envspec.models import Lock, Platform
    from envspec.operations.environment import InstallOutcome
    from envspec.operations.image import Built
    from envspec.operations.lock_state import LockRequest
    from envspec.receipts.model import Receipt

_Path: TypeAlias = "str | Path"
_List: TypeAlias = "Literal['dependencies', 'constraints', 'conda']"
_Gpus: TypeAlias = "Literal['auto', 'all', 'none'] | Sequence[str | int]"


def init(
    *sources: _Path,
    output: _Path | None = None,
    name: str = "",
    python: str = "",
    platforms: Sequence[str | Platform] = (),
    gpus: Sequence[str] = (),
    driver: str = "",
    cuda: str = "",
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
    overwrite: bool = False,
    context: Context | None = None,
) -> Imported:
    """Write a spec and its first lock from a project's files or environments, with their versions, like `envspec init`.

    Args:
        sources: Files, and folders of environments.

    Returns:
        The paths of spec and lock, an entry for each line of the sources (`ledger`, and `lost` for those that are not
        in the spec), and the versions that moved.

    Raises:
        UsageError: a source can't be read, or the spec exists. Then nothing is written.
        SpecError, NoSolution, NetworkError: the spec is written, but can't be locked.
    """
    from envspec.importers.types import Choices
    from envspec.models import Platform
    from envspec.operations.init import InitRequest, lock_imported, write_spec

    context = context or Context.from_environment()
    request = InitRequest(
        root=Path(),
        sources=tuple(map(Path, sources)),
        choices=Choices(
            name=name,
            python=python,
            platforms=tuple(map(Platform, platforms)),
            gpus=tuple(gpus),
            driver=driver,
            cuda=cuda,
        ),
        output=None if output is None else Path(output),
        extras=tuple(extras),
        groups=tuple(groups),
        overwrite=overwrite,
    )
    found, draft = write_spec(request, context.now().replace(microsecond=0))
    return lock_imported(found, draft, request, lambda _: nullcontext(context))


def lock(
    spec: _Path,
    *,
    output: _Path | None = None,
    upgrade: bool | Sequence[str] = False,
    resolver: str = "uv",
    conda_resolver: str = "rattler",
    channel_repodata: Mapping[str, _Path] | None = None,
    variant: str = "",
    context: Context | None = None,
) -> Lock:
    """Resolve a spec and its variants, and write their locks, like `envspec lock`.

    Args:
        spec: A .toml file, a folder with a pyproject.toml, or a name under `specs/`.
        output: The lock's folder, by default `locks/<name>`.
        upgrade: True for all packages, or their names.
        channel_repodata: Channel -> a folder with its repodata to solve from.
        variant: The variant whose lock to return, by default the spec itself.

    Raises:
        SpecError, NoSolution, NetworkError, UsageError: the old locks are then unchanged.
    """
    from envspec.names import normalised
    from envspec.operations.lock_state import LockRequest, Upgrade

    path, folder = _spec_and_folder(spec, output)
    folders = {channel: Path(place).absolute() for channel, place in (channel_repodata or {}).items()}
    request = LockRequest(path, folder, resolver, conda_resolver, channel_repodata=folders)
    if upgrade is True:
        request = replace(request, upgrade=Upgrade.ALL)
    elif upgrade:
        request = replace(request, upgrade_packages=tuple(map(normalised, upgrade)))
    return _written(request, variant, context or Context.from_environment())


def _written(request: LockRequest, variant: str, context: Context) -> Lock:
    """The lock of a spec or of one of its variants, after all of them are written."""
    from envspec.lockfile.folder import read_lock as read
    from envspec.operations.lock.all import lock_all
    from envspec.spec.variants import variant_directory

    lock_all(request, lambda _: nullcontext(context))
    return read(variant_directory(request.directory, variant))


def add(
    spec: _Path,
    *packages: str,
    to: _List = "dependencies",
    upgrade: bool = False,
    output: _Path | None = None,
    context: Context | None = None,
) -> Lock:
    """Add requirements to a spec and lock it, like `envspec add`. They replace requirements of the same packages.

    Args:
        to: The list: [pip] dependencies, [pip] constraints, or "conda" for [conda] dependencies.
        upgrade: Use the newest releases of these packages, also after the lock's date.

    Returns:
        The spec's own lock.

    Raises:
        SpecError, NoSolution, NetworkError, UsageError: spec and locks are then unchanged.
    """
    from envspec.operations.lock.add_remove import add
    from envspec.operations.lock_state import LockRequest
    from envspec.spec.edit import RequirementList

    path, folder = _spec_and_folder(spec, output)
    context = context or Context.from_environment()
    edited = add(path, packages, RequirementList[to.upper()], context.now())
    request = LockRequest(path, folder, text=edited.text)
    if upgrade:
        request = replace(request, upgrade_packages=tuple(each.name for each, _ in edited.edits))
    return _written(request, "", context)


def remove(
    spec: _Path, *packages: str, of: _List = "dependencies", output: _Path | None = None, context: Context | None = None
) -> Lock:
    """Remove requirements from a spec, by the names of packages, and lock it, like `envspec remove`.

    Args:
        of: See `to` of `add`.

    Returns:
        The spec's own lock.

    Raises:
        SpecError, NoSolution, NetworkError, UsageError: spec and locks are then unchanged.
    """
    from envspec.operations.lock.add_remove import lock_of, remove
    from envspec.operations.lock_state import LockRequest
    from envspec.spec.edit import RequirementList

    path, folder = _spec_and_folder(spec, output)
    context = context or Context.from_environment()
    text = remove(path, packages, RequirementList[of.upper()], lock_of(folder), context.now()).text
    return _written(LockRequest(path, folder, text=text), "", context)


def read_lock(
    lock: _Path, *, settings: Mapping[str, Mapping[str, Any]] | None = None, context: Context | None = None
) -> Lock:
    """Read the lock in a folder, or make one of another tool's lock, which other functions then take.

    Args:
        lock: A folder, a name under `locks/`, or a uv.lock, pylock.toml, poetry.lock or requirements file with hashes.
        settings: Of another tool's lock: keys of a spec by table, such as `{"pip": {"extras": ["cuda"]}}`. They replace
            those of [tool.envspec].

    Raises:
        UsageError: there is none; what is selected does not exist.
        StaleLock: it was changed by hand, or has another format.
        NoSolution: packages of another tool's lock can't be installed as they are locked.
    """
    from envspec.operations.adopt import adopt_lock, is_lock_of_another_tool

    path = Path(lock)
    if is_lock_of_another_tool(path):
        return named_lock(adopt_lock(path, settings or {}, context or Context.from_environment()).folder)
    return named_lock(lock)


def check(spec: _Path, output: _Path | None = None) -> CheckResult:
    """Check whether the locks of a spec and its variants are up to date, like `envspec lock --check`. Uses no network.

    Args:
        output: The lock's folder, by default `locks/<name>`.
    """
    from datetime import datetime, timezone

    from envspec.lockfile.check import CheckResult
    from envspec.operations.lock.check import check_lock
    from envspec.operations.lock_state import LockRequest, variants_of

    requests = variants_of(LockRequest(*_spec_and_folder(spec, output)))
    now = datetime.now(timezone.utc)
    found = [check_lock(each, now) for each in requests]
    return CheckResult(
        tuple(reason for each in found for reason in each.reasons),
        tuple(text for each in found for text in each.warnings),
    )


def install(
    lock: NamedLock, prefix: _Path, *, python: _Path | None = None, context: Context | None = None
) -> InstallOutcome:
    """Install a lock's environment on this machine, completely or not at all, like `envspec install`.

    Args:
        prefix: A folder that is empty or does not exist.
        python: An interpreter of the locked series, for a lock without conda.

    Raises:
        UsageError: the folder is in use.
        UnfitMachine: this machine can't run the lock.
        NetworkError: a file can't be fetched, or is not the locked one.
    """
    from envspec.operations.environment import install, install_request

    request = install_request(*_with_digest(lock), Path(prefix), None, _path(python))
    return install(request, context or Context.from_environment(usual_jobs=8))


def build_image(
    lock: NamedLock,
    *,
    platforms: Sequence[str | Platform] = (),
    output: _Path | None = None,
    layout: _Path | None = None,
    load: bool = False,
    push: str | None = None,
    tag: str | None = None,
    bytecode: bool = True,
    compression: str = "gzip",
    context: Context | None = None,
) -> Built:
    """Build a lock's image, like `envspec image build`. Without an output, it is only in the cache.

    Args:
        platforms: By default this machine's. Several are combined into one index.
        output: Write a tar.
        layout: Write an OCI layout to this folder.
        load: Load into this machine's container engine.
        push: Push to this registry's repository and tag.
        tag: The image's name for `output` and `load`.
        bytecode: Whether the image contains compiled Python.
        compression: `gzip`, `zstd` or `none`.

    Raises:
        StaleLock: the image has another ID than the lock records.
        NetworkError, UsageError, UnfitMachine: as for the command.
    """
    from envspec.operations.image import Destinations, build
    from envspec.operations.image_cache import default_tag, image_options, tag_of

    options = image_options(named_lock(lock), platforms, bytecode=bytecode, compression=compression)
    name = tag_of(tag or default_tag(options.lock))
    destinations = Destinations(_path(output), _path(layout), push, load=name if load else None, tag=name)
    return build(options, destinations, context or Context.from_environment())


def run(
    lock: NamedLock,
    command: Sequence[str],
    *,
    gpus: _Gpus = "auto",
    work: _Path | None = ".",
    env: Mapping[str, str] | None = None,
    mounts: Sequence[Mount] = (),
    ports: Sequence[Port] = (),
    services: bool = False,
    entrypoint: Sequence[str] | None = None,
    network: str | None = None,
    shm_bytes: int | None = None,
    stdin: BinaryIO | None = None,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
    context: Context | None = None,
) -> int:
    """Run a command in a container of a lock's image, like `envspec run`. Returns its exit code.

    The image is built if the engine does not have it.

    Args:
        gpus: Numbers or UUIDs; "auto": all if the lock uses CUDA.
        work: Host folder mounted at the working directory; None: an empty working directory.
        services: Also start the image's services.
        entrypoint: Instead of the lock's, before the command; empty: the command alone.
        stdin: By default none.
        stdout: By default this process's.
        stderr: By default this process's.

    Raises:
        UnfitMachine, NetworkError: no engine can run it.
        UsageError: the request does not fit the lock.
    """
    from envspec.engine.container import ContainerOptions, StartMode
    from envspec.engine.run import Streams
    from envspec.operations.container import ContainerRequest, run_container

    options = ContainerOptions(
        command=tuple(command),
        entrypoint=None if entrypoint is None else tuple(entrypoint),
        start=StartMode.SERVICES if services else StartMode.COMMAND,
        gpus=_gpus(gpus),
        mounts=tuple(mounts),
        ports=tuple(ports),
        env=tuple((env or {}).items()),
        shm_bytes=shm_bytes,
        network=network,
        stdin=stdin is not None,
    )
    request = ContainerRequest(options, work=None if work is None else Path(work))
    context = context or Context.from_environment()
    streams = Streams(stdin, stdout or _binary(sys.stdout), stderr or _binary(sys.stderr))
    return run_container(named_lock(lock), request, context, streams, context.reporter.warning)


def test(
    lock: NamedLock | None = None,
    *,
    device: Literal["cuda", "cpu"] | None = None,
    checks: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    limit_factor: float = 1.0,
    burn_s: float = 0.0,
    image: str | None = None,
    local: bool = False,
    python: _Path | None = None,
    gpus: _Gpus = "auto",
    world_size: int | Literal["all"] | None = None,
    nodes: Nodes | None = None,
    compare_with: NamedLock | None = None,
    baseline: Receipt | None = None,
    context: Context | None = None,
) -> Receipt:
    """Run the conformance suite of a lock on this machine, like `envspec conformance`. Its `verdict` is the result.

    Args:
        lock: None, only with `local`: test the Python's stack without a lock.
        compare_with: A lock to compare with; differences do not fail.
        device: By default GPUs if the lock uses CUDA.
        checks: By default all.
        limits: Check -> seconds.
        limit_factor: Multiplies all time limits.
        burn_s: Seconds of `sustained`; without `checks`, only `device` and `health` run as well.
        image: By default the lock's image.
        local: Test a Python of this machine, `python` or the active one, without a container.
        world_size: Processes of the distributed checks, by default the spec's; `all` for one per GPU.
        baseline: A receipt with which to compare speeds.

    Raises:
        UnfitMachine: there is no GPU to test, or no engine.
        UsageError: an unknown check.
    """
    from envspec.conformance.request import Nodes
    from envspec.conformance.selection import SuiteSelection
    from envspec.operations.conformance import Observer, SuiteLocation, run_conformance

    location = SuiteLocation(local, _path(python), image, _gpus(gpus))
    selection = SuiteSelection(
        device=device,
        checks=tuple(checks),
        world_size=world_size,
        nodes=nodes or Nodes(),
        limits=limits or {},
        limit_factor=limit_factor,
        burn_s=burn_s,
    )
    as_if = None if compare_with is None else _with_digest(compare_with)
    observer = Observer(baseline=baseline, as_if=as_if)
    locked, digest = (None, "") if lock is None else _with_digest(lock)
    return run_conformance(locked, digest, location, selection, context or Context.from_environment(), observer)


def _spec_and_folder(spec: _Path, output: _Path | None) -> tuple[Path, Path]:
    from envspec.spec.identity import env_name, find_spec

    path = find_spec(str(spec), Path())
    return path, _path(output) or Path("locks", env_name(path))


def _path(path: _Path | None) -> Path | None:
    return Path(path) if path else None


def _with_digest(lock: NamedLock) -> tuple[Lock, str]:
    """The lock, and the SHA-256 of its envspec.lock."""
    import hashlib

    from envspec.lockfile.folder import find_lock, read_with_digest
    from envspec.lockfile.header import LOCK_FILE
    from envspec.models import Lock
    from envspec.operations.lock.complete import lock_files

    if isinstance(lock, Lock):
        return lock, hashlib.sha256(lock_files(lock)[LOCK_FILE]).hexdigest()
    return read_with_digest(find_lock(str(lock), Path()))


def _gpus(gpus: _Gpus) -> Gpus | tuple[str, ...]:
    from envspec.operations.container import parse_gpus

    if not isinstance(gpus, str):
        gpus = ",".join(map(str, gpus))
    return parse_gpus(gpus)


class _TextOutput(io.BytesIO):
    """Takes the bytes for a stream that takes text, such as a notebook's."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._stream.write(self._decoder.decode(piece))
        return len(piece)

    def flush(self) -> None:
        self._stream.flush()


def _binary(stream: TextIO) -> BinaryIO:
    return getattr(stream, "buffer", None) or _TextOutput(stream)
