"""Read-only answers about locks: `envspec explain`, `diff` and `fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.context import Context
from envspec.errors import UnfitMachine, UsageError
from envspec.lockfile.folder import NamedLock, named_lock
from envspec.models import GpuCodeFound, Lock, Platform

if TYPE_CHECKING:
    from envspec.base_image.cuda import SharedLibrary
    from envspec.diagnostics.explain import Explanation, PackageExplanation
    from envspec.diagnostics.fit import FitReport
    from envspec.facts import Facts
    from envspec.lockfile.diff import LockDiff


def explain(
    lock: NamedLock, package: str | None = None, *, context: Context | None = None
) -> Explanation | PackageExplanation:
    """Return every decision of a lock with its reason and source, or one of its packages, like `envspec explain`.

    Raises:
        UsageError: the package is not in the lock.
    """
    from envspec.diagnostics.explain import explain_lock, explain_package

    lock, read = named_lock(lock), _code_in(context)
    if package is not None:
        return explain_package(lock, package, read)
    return explain_lock(lock, _shared_libraries(lock), read)


def _code_in(context: Context | None) -> Callable[[str], GpuCodeFound | None]:
    """Finds the GPU code of a wheel by its SHA-256, if an image build on this machine has read it."""
    from envspec.io.cache import read_wheel_content

    cache = (context or Context.from_environment()).cache

    def read(sha256: str) -> GpuCodeFound | None:
        found = read_wheel_content(cache, sha256)
        return found.gpu_code if found else None

    return read


def diff(old: NamedLock, new: NamedLock) -> LockDiff:
    """Compare two locks, like `envspec diff`. A string may name a git revision: `HEAD~1:locks/NAME`."""
    from envspec.lockfile.diff import diff_locks, load_revision

    def read(named: NamedLock) -> Lock:
        return named if isinstance(named, Lock) else load_revision(str(named), Path())

    return diff_locks(read(old), read(new))


def fit(
    lock: NamedLock,
    *,
    driver: str | None = None,
    gpus: Sequence[str] = (),
    platform: str | Platform | None = None,
    context: Context | None = None,
) -> FitReport:
    """Check whether a machine can run a lock, like `envspec fit`: this one, or the one that the arguments describe.

    Of wheels beside torch's, the GPU code counts that image builds on this machine have read.

    Args:
        driver: Version of its NVIDIA driver.
        gpus: Its GPUs, by name or compute capability.
        platform: By default this machine's if it is in the lock, else the lock's first.

    Raises:
        UsageError: an unknown GPU.
    """
    from envspec.diagnostics.fit import fits
    from envspec.diagnostics.machine import Machine, described_machine, read_machine

    lock = named_lock(lock)
    facts = facts_of(lock)
    machine: Machine
    if driver is None and not gpus and platform is None:
        machine = read_machine()
    else:
        where = Platform(platform) if platform else _usual_platform(lock)
        machine = described_machine(where, driver, tuple(gpus), facts)
    return fits(lock, machine, facts, _code_in(context))


def _shared_libraries(lock: Lock) -> dict[Platform, tuple[SharedLibrary, ...]]:
    """The CUDA libraries in both the base image and the packages, on the platforms that have the image."""
    if not lock.base_images:
        return {}
    from envspec.base_image.cuda import shared_libraries
    from envspec.facts import load_facts

    facts = load_facts()
    found = {}
    for resolution in lock.resolutions:
        platform = resolution.target.platform
        base = lock.on(platform).base_image
        if platform.is_linux and base:
            found[platform] = shared_libraries(base, resolution, facts)
    return found


def _usual_platform(lock: Lock) -> Platform:
    """The platform of a described machine: this machine's if the lock has it, else the lock's first."""
    from envspec.diagnostics.machine import this_platform

    platforms = lock.platforms
    with suppress(UnfitMachine):
        if (local := this_platform()) in platforms:
            return local
    return platforms[0]


def facts_of(lock: Lock) -> Facts:
    """The facts, with the rows under `[facts]` of the spec that the lock was made from, if it is on this machine."""
    from envspec.facts import load_facts
    from envspec.spec.identity import input_sha256, read_document
    from envspec.spec.owner import find_spec_of
    from envspec.spec.variants import variant_called

    try:
        spec = find_spec_of(lock.spec, lock.directory) if lock.directory else None
        data = read_document(spec) if spec else {}
        variant = variant_called(lock.name, data)
        if spec is None or variant is None or input_sha256(data, variant) != lock.input_sha256:
            return load_facts()
    except (UsageError, OSError, ValueError, LookupError, TypeError):
        return load_facts()
    if "facts" not in data:
        return load_facts()
    from envspec.spec import load_spec

    return load_facts(load_spec(spec, datetime.now(timezone.utc)).facts.tables())
