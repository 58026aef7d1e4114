"""What a lock is made from: the spec's text, the lock before, the times up to which releases count."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from envspec import documents
from envspec.context import Context
from envspec.credentials import unset
from envspec.errors import NetworkError, StaleLock, UsageError
from envspec.facts import Facts
from envspec.io.store import Store
from envspec.lockfile.check import StaleCause
from envspec.lockfile.document import load
from envspec.lockfile.folder import read_lock
from envspec.lockfile.header import LOCK_FILE, pins_sha256, verify_checksum
from envspec.models import Lock
from envspec.operations.lock.cache import is_ours
from envspec.operations.lock.check import check_lock
from envspec.operations.lock_state import LockRequest, LockState, Upgrade
from envspec.spec import Spec, parse_spec
from envspec.spec.dates import Age, time_text
from envspec.spec.errors import KeyPath, SpecError
from envspec.spec.identity import whole_document
from envspec.spec.load import spec_error
from envspec.structs import replace


def parse(text: str, request: LockRequest, now: datetime) -> Spec:
    """The spec with all its variants."""
    return parse_spec(text, str(request.spec_path), now, request.spec_path.parent)


def document_of(text: str, request: LockRequest) -> dict[str, Any]:
    return whole_document(documents.parse_toml(text), request.spec_path)


def check_logins(spec: Spec, request: LockRequest, context: Context) -> None:
    """Raise SpecError if a login needs a variable that is not set."""
    if context.is_offline:
        return
    found: list[tuple[KeyPath, str]] = []
    for at, index in enumerate(spec.pip.index):
        found.append((("pip", "index", at, "url"), index.url))
    for at, requirement in enumerate(spec.pip.dependencies):
        if requirement.url:
            found.append((("pip", "dependencies", at), requirement.text))
    for path, text in found:
        if name := unset(text, context.environ):
            reason = f"the login is in the variable {name}, which is not set"
            raise spec_error_of(request, [(path, reason, f"set {name} in the environment")])


def times_of(
    request: LockRequest, spec: Spec, facts: Facts, old: Lock | None, started: datetime
) -> tuple[datetime, datetime]:
    """Up to when releases are considered, and those of `--upgrade-package`.

    With an age in the spec, as without `as_of`, the lock's own time counts until `--upgrade`, or until the age changes.
    The time of another tool's lock is that of its packages.

    Raises:
        UsageError: the date for the packages of `--upgrade-package` is before that of all packages.
    """
    if spec.pip.source:
        from envspec.operations.lock.adopted import read_adopted, time_of

        time = time_of(read_adopted(spec, request.spec_path), facts)
        return time, time
    as_of = spec.env.as_of
    latest = as_of.before(started) if isinstance(as_of, Age) else started
    keeps = old is not None and request.upgrade is Upgrade.KEEP and (as_of is None or old.as_of_spec == str(as_of))
    if isinstance(as_of, datetime):
        kept = as_of
    elif old is not None and keeps:
        kept = old.as_of
    else:
        kept = latest
    if not isinstance(request.as_of, datetime):
        return kept, max(kept, latest)
    if request.as_of < kept and not request.variant:
        raise UsageError(
            f"--as-of {time_text(request.as_of)}: --upgrade-package moves packages to releases after "
            f"{time_text(kept)}, the date of the others",
            hint="name a later date, or `now`",
        )
    return kept, max(kept, request.as_of)


def for_variant(state: LockState, document: bytes) -> LockState:
    """For a variant: the time and the sources of the spec's own lock, which are then preferred. document: that lock."""
    base = load(document.decode(), LOCK_FILE)
    header, _ = verify_checksum(document, LOCK_FILE)
    of_base = {each.name for each in base.commits}
    old = state.old or replace(base, resolutions=(), package_as_of=(), conda_as_of=(), system=(), images=())
    own = tuple(each for each in old.commits if each.name not in of_base)
    return replace(
        state,
        as_of=base.as_of,
        newest=max(state.newest, base.as_of),
        old=replace(old, commits=(*base.commits, *own)),
        base=base,
        base_sha256=pins_sha256(header),
    )


class PreviousLock(NamedTuple):
    """What of the lock in the folder counts.

    old: what may decide anything in the next lock.
    recorded: the lock whose images and built wheels hold for the next one if all that they follow from is the same.
    is_looked_up: whether all of `old` is right.
    """

    old: Lock | None = None
    recorded: Lock | None = None
    is_looked_up: bool = True


def previous_lock(
    request: LockRequest, before: bytes | None, spec: Spec, facts: Facts, context: Context, store: Store
) -> PreviousLock:
    """The lock in the request's folder, as far as it is right. before: see `existing_lock`.

    Raises:
        UsageError: it can't be read.
    """
    if before is None and not (request.directory / LOCK_FILE).exists():
        return PreviousLock()
    try:
        if before is not None and is_ours(store, before):
            own = load(before.decode(), LOCK_FILE, documents.parse_own_toml)
            own = replace(own, directory=request.directory)
            return PreviousLock(own, own)
        old = read_lock(request.directory, before)
    except StaleLock as error:
        context.reporter.warning(f"{error.message}: replaced by a new one")
        return PreviousLock()
    from envspec.operations.lock.previous import check_pins, cutoffs_of, versions_of

    reasons = check_lock(request, context.now()).reasons
    is_impossible = False
    for reason in reasons:
        if reason.why is StaleCause.ENTRY:
            context.reporter.warning(f"{reason.text}: resolved again")
            is_impossible |= not reason.fields
    if is_impossible:
        versions = versions_of(old)
        return PreviousLock(
            replace(cutoffs_of(old), decisions=(), base_image=None, platform_cuda=(), resolutions=versions)
        )
    if request.upgrade is Upgrade.ALL or context.is_offline:
        return PreviousLock(old, old, is_looked_up=request.upgrade is Upgrade.ALL)
    try:
        # A lock of another machine may have wrong digests and commits.
        right, unverified = check_pins(old, spec, facts, context)
    except NetworkError as error:
        context.reporter.warning(f"not verified: base images and git sources of {request.directory}: {error.message}")
        return PreviousLock(old, old, is_looked_up=False)
    for text in unverified:
        context.reporter.warning(f"not verified: {text}")
    return PreviousLock(right, old)


def spec_error_of(request: LockRequest, found: Iterable[tuple[KeyPath, str, str]]) -> SpecError:
    return spec_error(request.spec_path, found, request.variant, request.text)
