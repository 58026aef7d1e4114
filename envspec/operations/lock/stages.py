"""Spec to lock folder: the stages of `envspec lock`, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from envspec import documents
from envspec.context import Context, ReporterOf
from envspec.credentials import unset
from envspec.errors import NetworkError, NoSolution, StaleLock, UsageError
from envspec.facts import Facts, load_facts
from envspec.io.store import Store
from envspec.lockfile.check import Why
from envspec.lockfile.diff import LockDiff, diff_locks
from envspec.lockfile.document import load
from envspec.lockfile.folder import folder_changes, read_current, read_lock
from envspec.lockfile.header import LOCK_FILE, pins_sha256, verify_checksum
from envspec.lockfile.toml_writer import time_text
from envspec.models import Lock, Resolution, Target, Unbuilt
from envspec.names import normalised
from envspec.operations.lock.cache import check_owner, is_ours, key_of, lock_of, remember, remember_ours
from envspec.operations.lock.check import check_lock
from envspec.operations.lock.complete import lock_files
from envspec.operations.lock.expected import expected_lock
from envspec.operations.lock.gpus import check_cuda
from envspec.operations.lock.recheck import mismatches
from envspec.operations.lock_state import (
    SOURCE,
    Compiled,
    CondaResult,
    LockRequest,
    LockState,
    PypiResult,
    Resolved,
    Upgrade,
)
from envspec.resolve.types import RefusedLines
from envspec.resolve.upgrade import check_names, moved_names, names_in, names_in_conda
from envspec.spec import RequirementKind, Spec, parse_spec, set_as_of, set_package_as_of
from envspec.spec.conda import name_of
from envspec.spec.dates import Age
from envspec.spec.document import root_of
from envspec.spec.errors import KeyPath, RefusedValues, SpecError
from envspec.spec.identity import whole_document
from envspec.spec.load import read_text, spec_error
from envspec.spec.logins import login_warnings
from envspec.spec.sections import BasePackages
from envspec.spec.targets import targets_of
from envspec.spec.variants import Merged, variant_directory

#: A date of today has excluded hardly anything yet.
_RECENT: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LockPreview:
    """What writing a lock would do. changed: the paths that it would write or remove. diff: None if there is no lock
    yet.
    """

    changed: tuple[Path, ...]
    diff: LockDiff | None
    packages: int


def preview(request: LockRequest, new: Compiled) -> LockPreview:
    """What a spec compiles to, compared with its lock."""
    changed = folder_changes(request.directory, new.files)
    if new.spec is not None:
        changed = (request.spec_path, *changed)
    made = load(new.files[LOCK_FILE].decode(), LOCK_FILE)
    diff = None
    with suppress(StaleLock, UsageError):
        diff = diff_locks(read_lock(request.directory), made)
    names = {each.name for part in made.resolutions for each in part.packages}
    names |= {each.name for part in made.resolutions for each in part.conda}
    return LockPreview(changed, diff, len(names))


def compiled(request: LockRequest, context: Context, base: Compiled | None, text: str | None) -> Compiled:
    """What a spec compiles to; writes nothing but the cache.

    base: for a variant, what the spec itself compiles to. text: the spec's, if it is not to be the request's or its
    file's.
    """
    started = context.now().replace(microsecond=0)
    written = base.spec.decode() if base and base.spec else read_text(request.spec_path)
    text = text if text is not None else request.text
    is_of_file = text is None
    text = written if text is None or base else text
    if not request.variant:
        text = _upgraded_text(text, request, started)
    whole = _parsed(text, request, started)
    spec = whole.variant(request.variant)
    check_owner(request)
    check_logins(spec, request, context)
    # These warnings are about the text of the spec, not about the lock.
    document = _document(text, request)
    for warning in login_warnings(Merged(document, request.variant), request.spec_path, text):
        context.reporter.warning(warning)
    warnings: list[str] = []
    context = _recording(context, warnings).with_spec(spec.registry.mirrors, unconfined=not spec.pip.build.sandbox)
    key = None
    if is_of_file and request.upgrade is Upgrade.KEEP and not request.upgrade_packages and request.as_of is None:
        key = key_of(request, load_facts().version, context.environ, base)
    facts = load_facts(spec.facts.tables())
    check_cuda(spec, facts, request.spec_path, request.variant, request.text)
    with closing(Store(context.cache)) as store:
        old, before, is_looked_up = _old_lock(request, spec, facts, context, store)
        as_of, newest = _times(request, spec, old, started)
        state = LockState(request, context, store, spec, document, facts, old, started, as_of, newest, before=before)
        if request.variant:
            state = for_variant(state, lock_of(request, base))
        _report_fixed(state)
        state = _with_known_names(state, whole)
        if state.request.upgrade_packages and state.old is not None:
            packages, text = _upgraded(state, text)
        else:
            packages = resolved(state)
        lock = assembled(packages)
        # Imports half of what assembling needs, which is imported by now.
        from envspec.operations.lock.assemble import lacks_digest

        _report_unmoved(state, lock)
        _report_preferred(lock, context)
        _report_moved(lock, request, context)
        unbuilt = _report_unbuilt(lock, context)
        files = lock_files(lock)
        _check_hosts(packages.state, lock)
        if is_looked_up:
            remember_ours(store, files[LOCK_FILE])
        # Branches and folders change without the spec and the indexes.
        is_stable = all(r.kind not in (RequirementKind.GIT, RequirementKind.LOCAL) for r in spec.pip.dependencies)
        is_complete = store.is_settled and not lacks_digest(lock) and not unbuilt
        if key is not None and is_looked_up and is_stable and is_complete:
            remember(store, key, files, warnings)
    return Compiled(files, written, None if text == written else text.encode())


def resolved(state: LockState) -> Resolved:
    """The packages that a spec compiles to.

    Raises:
        SpecError: lines of the spec that nothing satisfies. NoSolution: nothing satisfies all of them.
    """
    with _errors_of(state.request, state.spec):
        return _resolved(state)


def assembled(packages: Resolved) -> Lock:
    """The lock of resolved packages; writes nothing."""
    # Imported by now, while the engines ran.
    from envspec.operations.lock.assemble import assemble

    with _errors_of(packages.state.request, packages.state.spec):
        return assemble(packages)


def _resolved(state: LockState) -> Resolved:
    given = None
    if state.spec.pip.on_top_of or state.spec.image.packages is BasePackages.KEEP:
        from envspec.operations.lock.base_packages import pythons_of, with_beneath

        state = with_beneath(state)
        given = pythons_of(state.beneath, state.spec)
    of_conda = names_in_conda(state.upgraded, state.old, _required_from_conda(state.spec))
    conda = _conda(state, of_conda)
    targets, decisions = targets_of(state.spec, state.facts, state.as_of, conda.pythons, given)
    of_pypi = [name for name in state.upgraded if name not in of_conda]
    pypi = _pypi(state, targets, conda, of_pypi)
    return Resolved(state, decisions, conda, pypi)


@contextmanager
def _errors_of(request: LockRequest, spec: Spec) -> Iterator[None]:
    """Errors about values of the spec, with their places in its file."""
    try:
        yield
    except RefusedValues as error:
        raise _spec_error(request, error.found) from None
    except RefusedLines as error:
        raise _spec_error(request, error.of_lines(spec.pip.dependencies)) from None


def _upgraded_text(text: str, request: LockRequest, now: datetime) -> str:
    """The spec's text with the date that is requested, and without preferred versions of what may move."""
    if request.as_of is not None and not request.upgrade_packages:
        _parsed(text, request, now)
        text = set_as_of(text, request.as_of, root_of(request.spec_path))
    if request.upgrade is Upgrade.ALL or request.upgrade_packages:
        # Imports tomlkit, which only these runs need.
        from envspec.spec import without_preferences

        _parsed(text, request, now)
        text = without_preferences(text, request.upgrade_packages or None, root_of(request.spec_path))
    return text


def _parsed(text: str, request: LockRequest, now: datetime) -> Spec:
    """The spec with all its variants."""
    return parse_spec(text, str(request.spec_path), now, request.spec_path.parent)


def _document(text: str, request: LockRequest) -> dict[str, Any]:
    return whole_document(documents.parse_toml(text), request.spec_path)


def for_variant(state: LockState, document: bytes) -> LockState:
    """For a variant: the time and the sources of the spec's own lock, which are then preferred. document: that lock."""
    base = load(document.decode(), LOCK_FILE)
    header, _ = verify_checksum(document, LOCK_FILE)
    sources = {each.what: each for each in base.decisions if each.what.startswith(SOURCE)}
    old = state.old or replace(base, resolutions=(), package_as_of=(), conda_as_of=(), system=(), images=())
    own = tuple(each for each in old.decisions if each.what not in sources)
    return replace(
        state,
        as_of=base.as_of,
        newest=max(state.newest, base.as_of),
        old=replace(old, decisions=(*sources.values(), *own)),
        base=base,
        base_sha256=pins_sha256(header),
    )


def check_logins(spec: Spec, request: LockRequest, context: Context) -> None:
    """Raise SpecError if a login needs a variable that is not set."""
    found: list[tuple[KeyPath, str]] = [(("pip", "index", n, "url"), each.url) for n, each in enumerate(spec.pip.index)]
    found += [(("pip", "dependencies", n), each.text) for n, each in enumerate(spec.pip.dependencies) if each.url]
    missing = [(path, name) for path, text in found if (name := unset(text, context.environ))]
    if missing and not context.is_offline:
        path, name = missing[0]
        reason = (path, f"the login is in the variable {name}, which is not set", f"set {name} in the environment")
        raise _spec_error(request, [reason])


def _recording(context: Context, warnings: list[str]) -> Context:
    """The context, with every warning kept as well."""

    def warn(text: str) -> None:
        warnings.append(text)
        context.reporter.warning(text)

    return replace(context, reporter=ReporterOf(context.reporter, warning=warn))


def _times(request: LockRequest, spec: Spec, old: Lock | None, started: datetime) -> tuple[datetime, datetime]:
    """Up to when releases are considered, and those of `--upgrade-package`.

    With an age in the spec, as without `as_of`, the lock's own time counts until `--upgrade`, or until the age changes.
    """
    as_of = spec.env.as_of
    newest = as_of.before(started) if isinstance(as_of, Age) else started
    if isinstance(request.as_of, datetime):
        newest = request.as_of
    if isinstance(as_of, datetime):
        return as_of, newest
    keeps = old is not None and request.upgrade is Upgrade.KEEP and (as_of is None or old.as_of_spec == str(as_of))
    kept = old.as_of if old is not None and keeps else newest
    return kept, max(kept, newest)


def _upgraded(state: LockState, text: str) -> tuple[Resolved, str]:
    """The packages after `--upgrade-package`, and the spec's text for them.

    What was added to the spec since its lock was made is resolved first, without the names: else all of it would count
    as moved by them. If nothing satisfies the spec without them, this step is skipped.
    """
    names, before = state.request.upgrade_packages, state.old
    if before is not None and before.input_sha256 != state.input_sha256:
        with suppress(NoSolution, RefusedValues):
            state = replace(state, old=_with_packages(before, _resolved(_quiet(state))))
    moving = replace(state, upgraded=names)
    if not moving.finds_times:
        return resolved(moving), text
    moved = resolved(_quiet(moving))
    if state.old is not None:
        state = replace(state, old=replace(state.old, package_ages=tuple(moving.package_ages().values())))
    if times := _later_times(state, moved):
        text = set_package_as_of(text, times, root_of(state.request.spec_path))
        spec = _parsed(text, state.request, state.started).variant(state.request.variant)
        state = replace(state, spec=spec, document=_document(text, state.request))
    return resolved(state), text


def _with_packages(lock: Lock, found: Resolved) -> Lock:
    """The lock with the packages that were resolved, and the times and commits by which they were."""
    others = (each for each in lock.decisions if not each.what.startswith(SOURCE))
    commits = (each for each in found.pypi.decisions if each.what.startswith(SOURCE))
    return replace(
        lock,
        as_of=found.state.as_of,
        resolutions=found.resolutions,
        decisions=(*others, *commits),
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
    aged = {normalised(name) for name in moved.state.package_ages()}
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
    return replace(state, context=replace(state.context, reporter=ReporterOf(state.context.reporter, warning=_ignore)))


def _ignore(_: str) -> None:
    """No warning about a lock that is not written."""


def _with_known_names(state: LockState, whole: Spec) -> LockState:
    """With those names of `--upgrade-package` that this lock decides.

    A variant follows the spec's own lock, which has moved what it has by now.

    Raises:
        UsageError: a name is neither in a lock of the spec nor in the spec.
    """
    request, old = state.request, state.old
    if not request.upgrade_packages or old is None:
        return state
    existing = names_in(old) | _required(whole.variant(request.variant))
    if request.variant and state.base is not None:
        existing -= names_in(state.base) | _required(whole)
    else:
        others = set[str]()
        for name, variant in whole.variants.items():
            others |= _required(variant)
            with suppress(StaleLock, UsageError):
                others |= names_in(read_lock(variant_directory(request.directory, name)))
        check_names(request.upgrade_packages, existing | others)
    names = tuple(name for name in request.upgrade_packages if name in existing)
    return replace(state, request=replace(request, upgrade_packages=names))


def _report_fixed(state: LockState) -> None:
    """Warn of an upgrade that the spec's date leaves without an effect."""
    request, as_of = state.request, state.as_of
    is_upgrade = request.upgrade is Upgrade.ALL and request.as_of is None and not request.variant
    is_fixed = state.spec.env.is_dated and not state.package_ages()
    is_recent = state.started - as_of < _RECENT
    if is_upgrade and is_fixed and not is_recent:
        state.context.reporter.warning(
            f"{request.spec_path}: as_of = {time_text(as_of)} excludes every newer release: move it "
            f"(envspec lock --as-of now {request.spec_path})"
        )


def _report_unmoved(state: LockState, made: Lock) -> None:
    """Warn of names of `--upgrade-package` without a newer release. state: with the lock before."""
    if state.old is None or not state.request.upgrade_packages:
        return
    moved = moved_names(state.old, made)
    for name in state.request.upgrade_packages:
        if name not in moved:
            state.context.reporter.warning(
                f"{name} stays as it is: nothing newer of it, up to {time_text(state.newest)}, fits the spec"
            )


def _report_moved(lock: Lock, request: LockRequest, context: Context) -> None:
    """Warn of versions that moved although nothing in the spec itself excludes the old ones, with the reasons."""
    lines = dict.fromkeys(f"\n  {text}" for part in lock.resolutions for text in part.moved)
    # A variant follows the spec's own lock, and moves with it.
    if lines and not request.variant:
        context.reporter.warning(f"moved although the spec allows the locked versions:{''.join(lines)}")


def _report_preferred(lock: Lock, context: Context) -> None:
    """Warn of the versions that the spec prefers and the lock does not have, with the reasons."""
    found = [(each.name, each.preferred) for part in lock.resolutions for each in part.conda]
    found += [(each.name, each.preferred) for part in lock.resolutions for each in part.packages]
    lines = dict.fromkeys(f"\n  {name} {each.version}: {each.why}" for name, each in found if each is not None)
    if lines:
        context.reporter.warning(f"not locked although the spec prefers them:{''.join(lines)}")


def _report_unbuilt(lock: Lock, context: Context) -> bool:
    """Warn of the sdists that are locked without a build; whether there are any."""
    found: dict[Unbuilt, dict[str, None]] = {}
    for package in (each for part in lock.resolutions for each in part.packages):
        if package.unbuilt:
            found.setdefault(package.unbuilt, {})[f"{package.name} {package.version}"] = None
    lines = [f"\n  {unbuilt.described}: {', '.join(names)}" for unbuilt, names in found.items()]
    if lines:
        context.reporter.warning(
            "locked without a build, since bubblewrap does not work on this machine (`envspec lock` where it does adds "
            f"the hashes of the wheels):{''.join(lines)}"
        )
    return bool(lines)


def _spec_error(request: LockRequest, found: Iterable[tuple[KeyPath, str, str]]) -> SpecError:
    return spec_error(request.spec_path, found, request.variant, request.text)


def _conda(state: LockState, upgraded: Sequence[str]) -> CondaResult:
    if state.spec.conda is None:
        if state.request.channel_repodata:
            raise UsageError(
                "--channel-repodata: the spec has no [conda]", hint="remove it, or add [conda] to the spec"
            )
        return CondaResult()
    from envspec.operations.lock.conda import resolve_conda

    return resolve_conda(state, upgraded)


def _pypi(state: LockState, targets: Sequence[Target], conda: CondaResult, upgraded: Sequence[str]) -> PypiResult:
    if not state.spec.pip.dependencies:
        return PypiResult(tuple(Resolution(target, ()) for target in targets))
    from envspec.operations.lock.pypi import Pypi

    return Pypi(state, targets, conda.provided, upgraded).resolve()


def _required(spec: Spec) -> set[str]:
    return {requirement.name for requirement in spec.pip.dependencies} | _required_from_conda(spec)


def _required_from_conda(spec: Spec) -> set[str]:
    """The conda packages that the spec requires, normalised."""
    required = [text for platform in spec.env.platforms if spec.conda for text in spec.conda.dependencies_on(platform)]
    return {normalised(name_of(text)) for text in required}


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


def _old_lock(
    request: LockRequest, spec: Spec, facts: Facts, context: Context, store: Store
) -> tuple[Lock | None, Lock | None, bool]:
    """`old` and `before` of `LockState`, and whether everything in `old` was looked up."""
    if not (request.directory / LOCK_FILE).exists():
        return None, None, True
    try:
        old = read_lock(request.directory)
    except StaleLock as error:
        context.reporter.warning(f"{error.message}: replaced by a new one")
        return None, None, True
    if is_ours(store, read_current(request.directory, LOCK_FILE)):
        return old, old, True
    from envspec.operations.lock.previous import checked, cutoffs_of, versions_of

    reasons = check_lock(request, context.now()).reasons
    found = [reason for reason in reasons if reason.why is Why.ENTRY]
    for reason in found:
        context.reporter.warning(f"{reason.text}: resolved again")
    if any(not reason.fields for reason in found):
        return (
            replace(cutoffs_of(old), decisions=(), base_image=None, platform_cuda=(), resolutions=versions_of(old)),
            None,
            True,
        )
    if request.upgrade is Upgrade.ALL or context.is_offline:
        return old, old, request.upgrade is Upgrade.ALL
    try:
        # A lock of another machine may have wrong digests and commits.
        right, unverified = checked(old, spec, facts, context)
    except NetworkError as error:
        context.reporter.warning(f"not verified: base images and git sources of {request.directory}: {error.message}")
        return old, old, False
    for text in unverified:
        context.reporter.warning(f"not verified: {text}")
    return right, old, True
