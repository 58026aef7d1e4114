"""From resolved packages to the files of a lock, and what they change.

Imported while the engines run (`attempts._import_later`): nothing before them needs it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from envspec.errors import StaleLock, UsageError
from envspec.io.confine import can_build
from envspec.io.tasks import run_interruptible
from envspec.lockfile.diff import LockDiff, diff_locks
from envspec.lockfile.document import load
from envspec.lockfile.folder import folder_changes, read_lock
from envspec.lockfile.header import LOCK_FILE
from envspec.models import GIT, LOCAL, Lock, Package, Unbuilt
from envspec.operations.lock.complete import lock_files, unknown_digests
from envspec.operations.lock.expected import expected_lock
from envspec.operations.lock.recheck import mismatches
from envspec.operations.lock.reports import report
from envspec.operations.lock.resolve import assemble_lock
from envspec.operations.lock_state import Compiled, LockRequest, LockState, Resolved, conda_in, packages_in
from envspec.resolve.upgrade import names_of
from envspec.spec import RequirementKind, Spec
from envspec.spec.dates import Age
from envspec.structs import replace


def finished(packages: Resolved, known: LockState) -> tuple[Lock, dict[str, bytes]]:
    """The lock of resolved packages, with its files; warnings are reported.

    known: see `reports.report`.

    Raises:
        UsageError: as `lock_files`, and for a file on a host that the spec does not name.
    """
    lock = assemble_lock(packages)
    if packages.state.spec.pip.source and not packages.state.request.is_adopted:
        lock = run_interruptible(_with_builds(lock, packages.state))
    report(lock, known)
    files = lock_files(lock)
    _check_hosts(packages.state, lock)
    return lock, files


async def _with_builds(lock: Lock, state: LockState) -> Lock:
    """The lock with the wheels of its sources, which another tool's lock does not have.

    An sdist that nothing confines the build of is left as it is; a commit or a folder has no hash until it is built.

    Raises:
        WheelBuildFailed, UnfitMachine, NetworkError: as `Builds.record`.
    """

    def is_source(package: Package) -> bool:
        return package.unbuilt is Unbuilt.LOCKED

    def has_no_hash(package: Package) -> bool:
        return is_source(package) and package.file.index in (GIT, LOCAL)

    if not any(map(is_source, packages_in(lock.resolutions))):
        return lock
    from envspec.operations.build_wheels import Builds
    from envspec.operations.session import Session

    made = replace(lock, directory=state.request.directory)
    wanted = is_source if can_build(state.context.environ, state.context.unconfined) else has_no_hash
    async with Session(state.context) as session:
        for platform in lock.platforms:
            made = await Builds(made, session).record(platform, wanted)
    return replace(made, directory=lock.directory)


def is_repeatable(lock: Lock, spec: Spec, old: Lock | None) -> bool:
    """Whether a later run with the same lock before it makes the same lock of the same spec."""
    # Channels patch their repodata, and add packages with times in the past.
    if spec.conda or any(isinstance(each, Age) for each in spec.env.package_as_of.values()):
        return False
    # The time of this run is in the lock.
    if not spec.env.is_dated and (old is None or str(spec.env.as_of or old.as_of_spec) != old.as_of_spec):
        return False
    # Branches and folders change without the spec and the indexes.
    moving = RequirementKind.GIT, RequirementKind.LOCAL
    if any(each.kind in moving for each in spec.pip.dependencies):
        return False
    if lock.is_adopted:
        return False
    if any(map(unknown_digests, lock.base_images)):
        return False
    return not any(package.unbuilt for package in packages_in(lock.resolutions))


def _check_hosts(state: LockState, made: Lock) -> None:
    """Refuse what `--check` refuses: a page may list files on any host.

    Raises:
        UsageError: names the first value that does not follow from the spec.
    """
    expected = expected_lock(made, state.spec, state.facts, state.request, state.base)
    for text in mismatches(expected, state.spec, state.facts):
        raise UsageError(
            f"{state.request.spec_path}: {text}",
            hint="if an index has its files on another host and you trust it, add to its [[pip.index]] table: "
            'files = ["https://files.example.com"]',
        )


class LockPreview(Struct, frozen=True):
    """What writing a lock would do.

    changed: the paths that it would write or remove.
    diff: None if there is no lock yet.
    """

    changed: tuple[Path, ...]
    diff: LockDiff | None
    packages: int


def preview(request: LockRequest, new: Compiled) -> LockPreview:
    """What a spec compiles to, compared with its lock."""
    changed = folder_changes(request.directory, new.files)
    if new.new_text is not None:
        changed = (request.spec_path, *changed)
    made = load(new.files[LOCK_FILE].decode(), LOCK_FILE)
    diff = None
    with suppress(StaleLock, UsageError):
        diff = diff_locks(read_lock(request.directory), made)
    names = names_of(made.resolutions) | {each.name for each in conda_in(made.resolutions)}
    return LockPreview(changed, diff, len(names))
