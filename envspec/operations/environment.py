"""`envspec install` and `envspec verify`: lock to environment, and an environment compared with its lock."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.context import Context, Step
from envspec.diagnostics.machine import this_platform
from envspec.errors import NetworkError, UnfitMachine, UsageError
from envspec.fetch.download import Downloads, conda_archives, missing_bytes
from envspec.fetch.types import Archive, WrongArchive, python_archive
from envspec.installer import conda, python, staging, uv
from envspec.installer import request as preflight
from envspec.installer.request import InstallRequest, InstallStage
from envspec.installer.staging import relocate
from envspec.io.cache import cache_problem
from envspec.io.files import DiskFull
from envspec.io.process import run
from envspec.io.tasks import run_interruptible
from envspec.lockfile.folder import NamedLock, named_lock
from envspec.models import (
    UNKNOWN_VERSION,
    Library,
    Lock,
    Package,
    Platform,
    Resolution,
    Unbuilt,
    owners_of,
    wrong_records_of,
)
from envspec.names import normalised
from envspec.operations.lock_state import lacks_wheel, part_of
from envspec.operations.shared_files import refuse_conflicts
from envspec.structs import replace
from envspec.verifier import bytecode_worker
from envspec.verifier.compare import bytecode_finding, compare, in_order
from envspec.verifier.hashing import source_of
from envspec.verifier.installed import Installed, read_installed
from envspec.verifier.scan import NoEnvironment, PythonEnvironment, find_environment, outside
from envspec.verifier.types import PYTHON, Drift, DriftFinding, Expected, ExpectedConda, ExpectedPackage, VerifyResult


class InstallOutcome(Enum):
    """Result of an installation."""

    MADE = "installed"
    PLANNED = "would install"
    UNCHANGED = "unchanged"


class InstallPlan(Struct, frozen=True):
    """What `install` would do.

    packages, conda: how many.
    size_bytes: of their archives.
    """

    outcome: InstallOutcome
    packages: int
    conda: int
    size_bytes: int


def install_request(
    lock: Lock, lock_sha256: str, prefix: Path, platform: Platform | None = None, python: Path | None = None
) -> InstallRequest:
    """What to install from a lock on this machine. lock_sha256: of its envspec.lock.

    python: an interpreter, by its path or by a name that is on PATH.

    Raises:
        UsageError: the lock is not for this machine's platform.
    """
    if python is not None:
        found = shutil.which(python)
        # A venv's Python is a link, which has to stay one.
        python = Path(os.path.abspath(found)) if found else python.absolute()  # noqa: PTH100
    return InstallRequest(
        lock=lock,
        lock_sha256=lock_sha256,
        resolution=preflight.resolution_for(lock, this_platform(), platform),
        # Texts in the environment name it: they must hold wherever a program is started from.
        prefix=Path(os.path.realpath(prefix)),
        python=python,
    )


def plan_install(request: InstallRequest) -> InstallPlan:
    """Check everything that `install` checks before it fetches a file.

    Raises:
        UsageError, UnfitMachine: as `install`.
    """
    _check_system()
    outcome = InstallOutcome.UNCHANGED
    if not staging.is_installed(request.prefix, staging.record_of(request)):
        _check(request)
        outcome = InstallOutcome.PLANNED
    part = request.resolution
    size_bytes = _wheel_bytes(part) + sum(each.size_bytes or 0 for each in part.conda)
    return InstallPlan(outcome, len(part.packages), len(part.conda), size_bytes)


def _wheel_bytes(part: Resolution) -> int:
    return sum(each.file.size_bytes or 0 for each in part.packages)


def install(request: InstallRequest, context: Context) -> InstallOutcome:
    """Make the environment at `request.prefix`, whole or not at all.

    Raises:
        UsageError: the folder is something else's, or can't be made. UnfitMachine: this machine can't run it, or has
            no Python for it. NetworkError: a file is not available, or not the locked one. FileConflict: two packages
            have the same file. DiskFull: the disk is full. CacheError: the cache can't be written.
    """
    _check_system()
    wanted = staging.record_of(request)
    if staging.is_installed(request.prefix, wanted):
        return InstallOutcome.UNCHANGED
    _check(request)
    # uv and rattler unpack into it, and link the environment's files to it.
    if problem := cache_problem(context.cache):
        raise problem
    with staging.staging(request.prefix, lambda: context.reporter.progress(Step(InstallStage.WAITING))) as site:
        # Another process may have installed it meanwhile.
        if staging.is_installed(request.prefix, wanted):
            return InstallOutcome.UNCHANGED
        run_interruptible(_build(request, context, site))
        staging.write_record(site.path, wanted)
        staging.write_list(site.path)
        site.finish()
    for text in missing_system_libraries(request.resolution, request.prefix):
        context.reporter.warning(text)
    return InstallOutcome.MADE


def missing_system_libraries(
    resolution: Resolution, prefix: Path, folders: Sequence[Path] | None = None, os: str | None = None
) -> Iterator[str]:
    """What the installed modules need, and neither the environment nor this machine has: a warning for each package.

    folders: where the loader looks (default: this machine's).
    os: the system's release, such as `debian12` (default: this machine's).
    """
    if not resolution.target.platform.is_linux:
        return
    # Only an installation needs them, and only at its end.
    from importlib.metadata import distributions

    from envspec.facts import load_facts
    from envspec.image.libraries import missing_libraries, read_libraries

    packages = {package.name: package for package in resolution.packages}
    contents: dict[Package, list[Library]] = {}
    for found in distributions(path=list(map(str, find_environment(prefix).sites))):
        package = packages.get(normalised(found.metadata["Name"] or ""))
        if package:
            libraries = list(read_libraries(Path(str(each.locate())) for each in found.files or ()))
            if libraries:
                contents[package] = libraries
    if folders is None:
        folders = _loader_folders()
    searched = [prefix / "lib", *folders]

    def has(name: str) -> bool:
        return any((folder / name).exists() for folder in searched)

    for missing in missing_libraries(contents, os or _release(), has, load_facts()):
        ways = f": apt-get install {' '.join(missing.apt)}" if missing.apt else ""
        yield f"{missing}, which neither the environment nor this machine has{ways}"


def _release() -> str:
    """`ubuntu24.04`, `debian12`; empty for a system that says nothing."""
    with suppress(OSError):
        found = platform.freedesktop_os_release()
        return f"{found.get('ID', '')}{found.get('VERSION_ID', '')}"
    return ""


def _loader_folders() -> list[Path]:
    """Where ld.so looks. Source: ld.so(8), ldconfig(8); Debian's and Red Hat's folders beside the defaults."""
    named = [*os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    configs = [Path("/etc/ld.so.conf"), *sorted(Path("/etc/ld.so.conf.d").glob("*.conf"))]
    for path in configs:
        with suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            named += [line.strip() for line in lines if line.startswith("/")]
    machine = f"{platform.machine()}-linux-gnu"
    named += [f"/lib/{machine}", "/lib64", "/lib", f"/usr/lib/{machine}", "/usr/lib64", "/usr/lib"]
    return [Path(name) for name in dict.fromkeys(named) if name]


def _check_system() -> None:
    if sys.platform == "win32":
        raise UnfitMachine(
            "envspec installs on Linux and macOS only: programs that pip makes on Windows can't be moved",
            hint="make a venv and run `uv pip sync --require-hashes` with the lock's requirements file",
        )


def _check(request: InstallRequest) -> None:
    """Check what can be checked before anything is fetched."""
    refuse_conflicts(request.resolution)
    if request.resolution.conda:
        conda.check_prefix(request.prefix)
        if request.python is not None:
            raise UsageError(
                f"--python {request.python}: the Python of {request.lock.name} is conda's", hint="remove --python"
            )
    preflight.check_machine(request.resolution, preflight.read_host(request.resolution))


async def _build(request: InstallRequest, context: Context, site: staging.StagingFolder) -> None:
    archives = conda_archives(request.resolution.conda)
    _check_space(request, context, archives)
    if archives:
        await conda.link(request, context, site, await Downloads(context).fetch(archives))
    else:
        await _make_venv(request, context, site)
    await put_wheels(request, context, site)


async def put_wheels(request: InstallRequest, context: Context, site: staging.StagingFolder) -> None:
    """Install the lock's wheels into an environment that has its Python, and check what they did.

    Raises:
        NetworkError, DiskFull, UnfitMachine, UvError: see `uv.install`. FileConflict, NoSolution, PathEscapes: see
        `conda.check_ownership`. EnvspecError: see `relocate`.
    """
    before = conda.files_before(site.path)
    states = conda.file_states(site.path, before)
    packages, built = request.resolution.packages, dict[str, Path]()
    if packages:
        context.reporter.progress(Step(InstallStage.WHEELS, 0, len(packages), 0, _wheel_bytes(request.resolution)))
        if any(package.built or lacks_wheel(package) for package in packages):
            # Imports half of what images need. Not by uv: it would take build requirements from any source.
            from envspec.operations.build_wheels import Builds
            from envspec.operations.session import Session

            async with Session(context) as session:
                builds, python = Builds(request.lock, session), site.path / "bin" / "python"
                resolution, built = await builds.install(request.resolution, python)
            request = replace(request, resolution=resolution)
        await uv.install(request, context, site, built.values())
    context.reporter.progress(Step(InstallStage.CHECKING))
    conda.check_ownership(site.path, before, states, owners_of(request.resolution.shared))
    relocate(site.path)


async def _make_venv(request: InstallRequest, context: Context, site: staging.StagingFolder) -> None:
    locked = request.resolution.target.python
    if request.python is None and locked.url and locked.sha256:
        build = python_archive(locked.version, locked.url, locked.sha256)
        try:
            archive = (await Downloads(context).fetch([build]))[build.sha256]
        except NetworkError as error:
            if not isinstance(error, WrongArchive):
                way_out = f"use a Python {locked.series} of this machine: --python PATH"
                error.hint = "; or ".join(filter(None, [error.hint, way_out]))
            raise
        interpreter = await python.unpack(archive, site, locked, context)
    else:
        interpreter = await python.find_python(request, context)
    await python.make_venv(interpreter, request, context, site)


def _check_space(request: InstallRequest, context: Context, archives: Sequence[Archive]) -> None:
    """Raise if the disk is too small, and warn if it may be.

    An archive that is not in the cache needs its own size and, unpacked, at least as much again. Which wheels are in
    uv's cache is unknown.

    Raises:
        DiskFull: less is free than is needed at least.
    """
    missing, free = missing_bytes(archives, context.cache), _free_bytes(context.cache)
    if 2 * missing > free:
        raise DiskFull(
            f"{context.cache} needs at least {_megabytes(2 * missing)} for {request.lock.name}, "
            f"and {_megabytes(free)} are free",
            hint="free space, or set ENVSPEC_CACHE_DIR to a folder on another disk",
        )
    total = _wheel_bytes(request.resolution)
    free = _free_bytes(request.prefix)
    if total > free:
        context.reporter.warning(
            f"the wheels are {_megabytes(total)} packed, and {_megabytes(free)} are free for {request.prefix}"
        )


def _free_bytes(path: Path) -> int:
    """Free space for a path that may not exist yet."""
    return shutil.disk_usage(next(each for each in (path, *path.parents) if os.path.lexists(each))).free


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def expected_of(resolution: Resolution) -> Expected:
    """What an environment of one platform's part of a lock contains, and what it may contain besides."""
    packages = []
    for package in resolution.packages:
        is_known = package.unbuilt is not Unbuilt.LOCKED or package.version != UNKNOWN_VERSION
        packages.append(ExpectedPackage(package.name, package.version if is_known else "", package.record_sha256))
    return Expected(
        packages=tuple(packages),
        conda=tuple(ExpectedConda(each.name, each.version, each.build, each.sha256) for each in resolution.conda),
        beneath=tuple(ExpectedPackage(each.name, each.version, each.record_sha256) for each in resolution.installed),
        owners=owners_of(resolution.shared),
        wrong_records=wrong_records_of(resolution),
    )


def verify(
    lock: NamedLock, prefix: str | Path, *, platform: str | Platform | None = None, strict: bool = False
) -> VerifyResult:
    """Compare an environment with its lock, file by file, like `envspec verify`. Changes nothing, uses no network.

    Args:
        platform: By default this machine's.
        strict: Compile each module again with the environment's Python, and compare its bytecode. By default, bytecode
            is compared with the hash of its source, if it contains one.

    Raises:
        UsageError: the folder is not an environment, or the lock is not for the platform.
        UnfitMachine: the environment's Python, which `strict` and a lock on top of other packages need, does not run.
    """
    prefix = Path(prefix)
    try:
        place = find_environment(prefix)
    except NoEnvironment as error:
        raise UsageError(str(error), hint="name the folder of a virtual or a conda environment by --prefix") from error
    part = part_of(named_lock(lock), Platform(platform) if platform else this_platform())
    if part.installed:
        path = run_interruptible(python.python_path(prefix / "bin" / "python", os.environ))
        place = replace(place, below=outside(place.prefix, path.folders))
    installed = read_installed(place)
    found = compare(expected_of(part), installed)
    # A Python that differs is not started, and could say anything.
    if strict and not any(each.package == PYTHON for each in found.findings):
        found = run_interruptible(with_code(found, installed))
    return replace(found, findings=(*_python(part.target.python.series, place), *found.findings))


def _python(series: str, place: PythonEnvironment) -> Iterator[DriftFinding]:
    """Another Python than the lock's, by the names of its site-packages folders; on Windows they have no version."""
    series_found: list[str] = []
    for site in place.sites:
        name = site.parent.name
        if name.startswith("python"):
            # A free-threaded one's folder is python3.14t.
            series_found.append(name.removeprefix("python").removesuffix("t"))
    if series_found and series not in series_found:
        yield DriftFinding(PYTHON, Drift.VERSION, expected=series, found=", ".join(series_found))


#: Without the user's settings and packages; `.pth` files do not run.
_OPTIONS: Final = ("-I", "-S", "-B", "-W", "ignore", "-X", "utf8")
#: Files per process: a new one starts in the time of compiling some ten modules.
_BATCH: Final = 500


async def with_code(result: VerifyResult, installed: Installed) -> VerifyResult:
    """Add what `--strict` finds to a result.

    Raises:
        UnfitMachine: the environment's Python does not run.
    """
    prefix = installed.environment.prefix
    pairs: list[tuple[Path, Path]] = []
    for inside in installed.bytecode:
        path = prefix / inside
        source = source_of(path)
        # Python does not import what has no source, below __pycache__.
        if source is not None and source.is_file():
            pairs.append((path, source))
    batches = [pairs[start : start + _BATCH] for start in range(0, len(pairs), _BATCH)]
    free = asyncio.Semaphore(os.cpu_count() or 1)

    async def work(batch: Sequence[tuple[Path, Path]]) -> list[str]:
        async with free:
            return await _states(prefix / "bin" / "python", batch)

    states: list[str] = []
    for found in await asyncio.gather(*map(work, batches)):
        states += found
    findings: set[DriftFinding] = set(result.findings)
    for (path, _), state in zip(pairs, states, strict=True):
        if state == "differs":
            findings.add(bytecode_finding(path, "", installed))
        elif state.startswith("error "):
            findings.add(bytecode_finding(path, state.removeprefix("error "), installed))
    number = Counter(states)
    compared = number["same"] + number["differs"]
    counts = replace(
        result.counts, bytecode_by_time=0, bytecode_by_code=compared, bytecode_other_python=number["other"]
    )
    return VerifyResult(in_order(findings), counts)


async def _states(python: Path, pairs: Sequence[tuple[Path, Path]]) -> list[str]:
    """The worker's line for each pair. Bytecode that ends Python is an error of its own."""
    states: list[str] = []
    while len(states) < len(pairs):
        rest = [(str(path), str(source)) for path, source in pairs[len(states) :]]
        command = [str(python), *_OPTIONS, bytecode_worker.__file__]
        try:
            ended = await run(command, environ={}, cwd=Path("/"), stdin=json.dumps(rest))
        except OSError as error:
            raise UnfitMachine(
                f"{python} can't be started to compile modules ({error.strerror})",
                hint="omit --strict, or check that this Python runs on this machine",
            ) from error
        states += ended.lines
        if ended.status != 0:
            states.append("error Python can't read it")
    return states
