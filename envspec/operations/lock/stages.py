"""Spec to lock folder: the stages of `envspec lock`, in order."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct

from envspec.context import Context, ReporterOf
from envspec.errors import StaleLock, UsageError
from envspec.facts import load_facts
from envspec.io.store import Store
from envspec.lockfile.diff import LockDiff, diff_locks
from envspec.lockfile.document import load
from envspec.lockfile.folder import folder_changes, read_lock
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Lock
from envspec.operations.lock.cache import check_owner, key_of, lock_of, remember, remember_ours
from envspec.operations.lock.complete import lock_files, unknown_digests
from envspec.operations.lock.expected import expected_lock
from envspec.operations.lock.gpus import check_cuda
from envspec.operations.lock.inputs import check_logins, document_of, for_variant, parse, previous_lock, times_of
from envspec.operations.lock.recheck import mismatches
from envspec.operations.lock.reports import report, report_fixed
from envspec.operations.lock.resolve import assemble_lock
from envspec.operations.lock.upgrade import resolve_upgrade, upgrade_text, with_known_names
from envspec.operations.lock_state import Compiled, LockRequest, LockState, conda_in, packages_in
from envspec.resolve.upgrade import names_of
from envspec.spec import RequirementKind, Spec
from envspec.spec.dates import Age
from envspec.spec.load import read_text
from envspec.spec.logins import login_warnings
from envspec.spec.variants import Merged
from envspec.structs import replace


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


def compile_lock(
    request: LockRequest, before: bytes | None, context: Context, base: Compiled | None, text: str | None
) -> Compiled:
    """What a spec compiles to; writes nothing but the cache.

    before: see `existing_lock`.
    base: for a variant, what the spec itself compiles to.
    text: the spec's, if it is not to be the request's or its file's.
    """
    started = context.now().replace(microsecond=0)
    written = (base.new_text if base else None) or read_text(request.spec_path)
    new_text = request.text if text is None else text
    text = written
    if new_text is not None and base is None:
        text = new_text
    if not request.variant:
        text = upgrade_text(text, request, started)
    whole = parse(text, request, started)
    spec = whole.variant(request.variant)
    check_owner(request, before)
    check_logins(spec, request, context)
    # These warnings are about the text of the spec, not about the lock.
    document = document_of(text, request)
    for warning in login_warnings(Merged(document, request.variant), request.spec_path, text):
        context.reporter.warning(warning)
    warnings: list[str] = []
    context = _recording(context, warnings).with_spec(spec.registry.mirrors, unconfined=not spec.pip.build.sandbox)
    key = None
    if new_text is None and request.is_plain:
        key = key_of(request, before, context.environ, base)
    facts = load_facts(spec.facts.tables())
    check_cuda(spec, facts, request.spec_path, request.variant, request.text)
    with closing(Store(context.cache)) as store:
        previous = previous_lock(request, before, spec, facts, context, store)
        old, recorded = previous.old, previous.recorded
        as_of, newest = times_of(request, spec, old, started)
        state = LockState(request, context, store, spec, document, facts, old, started, as_of, newest, before=recorded)
        if request.variant:
            state = for_variant(state, lock_of(request, base))
        report_fixed(state)
        known = with_known_names(state, whole)
        packages, text = resolve_upgrade(known, text)
        lock = assemble_lock(packages)
        report(lock, replace(known, old=state.old))
        files = lock_files(lock)
        _check_hosts(packages.state, lock)
        if previous.is_looked_up:
            remember_ours(store, files[LOCK_FILE])
            if key is not None and store.is_settled and _is_repeatable(lock, spec, old):
                remember(store, key, files, warnings)
    return Compiled(files, written, None if text == written else text)


def _is_repeatable(lock: Lock, spec: Spec, old: Lock | None) -> bool:
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
    if any(map(unknown_digests, lock.base_images)):
        return False
    return not any(package.unbuilt for package in packages_in(lock.resolutions))


def _recording(context: Context, warnings: list[str]) -> Context:
    """The context, with every warning kept as well."""

    def warn(text: str) -> None:
        warnings.append(text)
        context.reporter.warning(text)

    return replace(context, reporter=ReporterOf(context.reporter, warning=warn))


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
