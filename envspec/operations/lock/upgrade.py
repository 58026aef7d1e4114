"""`--upgrade-package`, and new dates in the spec: what may move, and the text that says so."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from envspec.context import ReporterOf
from envspec.errors import NoSolution, StaleLock, UsageError
from envspec.lockfile.folder import read_lock
from envspec.lockfile.header import FORMAT
from envspec.models import Lock
from envspec.names import normalised
from envspec.operations.lock.inputs import document_of, parse
from envspec.operations.lock.resolve import names_required, resolve, resolve_spec
from envspec.operations.lock_state import LockRequest, LockState, Resolved, Upgrade
from envspec.resolve.upgrade import check_names, names_in
from envspec.spec import Spec, set_as_of, set_package_as_of
from envspec.spec.document import root_of
from envspec.spec.errors import RefusedValues
from envspec.spec.variants import variant_directory
from envspec.structs import replace


def upgrade_text(text: str, request: LockRequest, now: datetime) -> str:
    """The spec's text with the date that is requested, and without preferred versions of what may move."""
    if request.as_of is not None and not request.upgrade_packages:
        parse(text, request, now)
        text = set_as_of(text, request.as_of, root_of(request.spec_path))
    if request.upgrade is Upgrade.ALL or request.upgrade_packages:
        # Imports tomlkit, which only these runs need.
        from envspec.spec import without_preferences

        parse(text, request, now)
        text = without_preferences(text, request.upgrade_packages or None, root_of(request.spec_path))
    return text


def with_known_names(state: LockState, whole: Spec) -> LockState:
    """With those names of `--upgrade-package` that this lock decides; and, without a lock, with the packages that the
    spec gives without them.

    A variant follows the spec's own lock, which has moved what it has by now.

    Raises:
        UsageError: a name is neither in a lock of the spec nor in the spec.
    """
    request = state.request
    if not request.upgrade_packages:
        return state
    old = state.old or _first_lock(state)
    existing = names_in(old) | names_required(whole.variant(request.variant))
    if request.variant and state.base is not None:
        existing -= names_in(state.base) | names_required(whole)
    else:
        others = set[str]()
        for name, variant in whole.variants.items():
            others |= names_required(variant)
            with suppress(StaleLock, UsageError):
                others |= names_in(read_lock(variant_directory(request.directory, name)))
        check_names(request.upgrade_packages, existing | others)
    names = tuple(name for name in request.upgrade_packages if name in existing)
    return replace(state, old=old, request=replace(request, upgrade_packages=names))


def _first_lock(state: LockState) -> Lock:
    """The packages that a spec without a lock compiles to; none if nothing satisfies it."""
    lock = Lock(
        format=FORMAT,
        name=state.spec.env.name,
        input_sha256=state.input_sha256,
        as_of=state.as_of,
        resolutions=(),
        decisions=(),
        base_image=None,
        driver=None,
        gpu_code=(),
    )
    with suppress(NoSolution, RefusedValues):
        lock = _with_packages(lock, resolve(_quiet(state)))
    return lock


def resolve_upgrade(state: LockState, text: str) -> tuple[Resolved, str]:
    """The packages, after `--upgrade-package` if it names any, and the spec's text for them.

    What was added to the spec since its lock was made is resolved first, without the names: else all of it would count
    as moved by them. If nothing satisfies the spec without them, this step is skipped.
    """
    names, before = state.request.upgrade_packages, state.old
    if not names or before is None:
        return resolve_spec(state), text
    if before.input_sha256 != state.input_sha256:
        with suppress(NoSolution, RefusedValues):
            state = replace(state, old=_with_packages(before, resolve(_quiet(state))))
    moving = replace(state, upgraded=names)
    if not moving.finds_times:
        return resolve_spec(moving), text
    moved = resolve_spec(_quiet(moving))
    state = replace(state, old=replace(moving.old or before, package_ages=tuple(moving.package_ages().values())))
    if times := _later_times(state, moved):
        text = set_package_as_of(text, times, root_of(state.request.spec_path))
        spec = parse(text, state.request, state.started).variant(state.request.variant)
        state = replace(state, spec=spec, document=document_of(text, state.request))
    return resolve_spec(state), text


def _with_packages(lock: Lock, found: Resolved) -> Lock:
    """The lock with the packages that were resolved, and the times and commits by which they were."""
    return replace(
        lock,
        as_of=found.state.as_of,
        resolutions=found.resolutions,
        commits=found.pypi.commits,
        package_as_of=tuple(found.pypi.cutoffs.items()),
        conda_as_of=tuple(found.conda.cutoffs.items()),
        package_ages=tuple(found.state.package_ages().values()),
    )


def _later_times(state: LockState, moved: Resolved) -> dict[str, datetime]:
    """The packages to which `--upgrade-package` must give a later time: those that it names, and those that they need.

    A package that moved to a release within the spec's `as_of` moves by itself.
    """
    before = dict((*state.old.package_as_of, *state.old.conda_as_of)) if state.old else {}
    # Its age stays in the spec, and means a later time now.
    aged = set(map(normalised, moved.state.package_ages()))
    uploads: dict[str, list[datetime | None]] = {}
    for part in moved.pypi.resolutions:
        for package in part.packages:
            uploads.setdefault(package.name, []).append(package.uploaded)
    times: dict[str, datetime] = {}
    for name, at in (*moved.pypi.cutoffs.items(), *moved.conda.cutoffs.items()):
        if at == before.get(name) or normalised(name) in aged:
            continue
        is_within = name in uploads and all(each and each <= state.as_of for each in uploads[name])
        if name in state.request.upgrade_packages or not is_within:
            times[name] = at
    return times


def _quiet(state: LockState) -> LockState:
    """Without warnings: the lock is not written."""
    reporter = ReporterOf(progress=state.context.reporter.progress)
    return replace(state, context=replace(state.context, reporter=reporter))
