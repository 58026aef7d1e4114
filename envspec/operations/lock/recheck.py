"""What of a lock differs from the lock that follows, offline, from its spec and its packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from envspec.conformance.text import counted
from envspec.errors import EnvspecError, StaleLock
from envspec.facts import Facts, load_facts
from envspec.lockfile.check import StaleCause, StaleReason
from envspec.lockfile.differences import SAME_VALUES, Difference, folder_differences
from envspec.lockfile.document import load
from envspec.lockfile.folder import read_lock
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Lock
from envspec.operations.lock.complete import lock_files
from envspec.operations.lock.entries import conda_mismatches, package_mismatches
from envspec.operations.lock.expected import ExpectedLock, expected_lock
from envspec.operations.lock_state import LockRequest
from envspec.resolve.types import Cutoffs
from envspec.spec import Spec, load_spec

#: What values of a changed lock raise: names, versions and addresses of the right form that nothing can read.
_MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError)


def content_reasons(
    request: LockRequest, document: bytes, now: datetime, known: Sequence[StaleReason]
) -> Iterator[StaleReason]:
    """The values of a lock, and its packages, that its spec does not give.

    document: the bytes of its envspec.lock.
    known: what its hashes have shown.
    Raises:
        SpecError: the spec is not valid.
    """
    try:
        lock = load(document.decode(), str(request.directory / LOCK_FILE))
    except StaleLock as error:
        yield StaleReason(StaleCause.DAMAGED, str(error))
        return
    spec = load_spec(request.spec_path, now).variant(request.variant)
    yield from compare_lock(lock, spec, load_facts(spec.facts.tables()), request, known)


def compare_lock(
    lock: Lock, spec: Spec, facts: Facts, request: LockRequest, known: Sequence[StaleReason] = ()
) -> Iterator[StaleReason]:
    """The same for a lock that is read. spec: of the request's variant."""
    document = request.directory / LOCK_FILE
    base = None
    if request.variant:
        with suppress(EnvspecError):
            # What is wrong with that lock is reported for it.
            base = read_lock(request.base_directory)
    by_hand = (
        f"find out who changed it, or which version of envspec wrote it, then run `envspec lock {request.spec_path}` "
        "to write it again, or restore it from version control"
    )
    why, hint, made_with = StaleCause.ENTRY, by_hand, ""
    if lock.facts != facts.version:
        why, made_with = StaleCause.FACTS, f" with facts {facts.version} (it was made with {lock.facts})"
        hint = f"`envspec lock {request.spec_path}` decides these values again: review them"
    try:
        expected = expected_lock(lock, spec, facts, request, base)
        files = lock_files(expected.lock)
        texts = list(mismatches(expected, spec, facts))
    except EnvspecError as error:
        text = f"{document}: {request.spec_path} does not allow its packages{made_with}: {error.message}"
        yield StaleReason(why, text, hint)
        return
    except _MALFORMED as error:
        yield StaleReason(why, f"{document}: a value can't be read ({type(error).__name__}: {error})", hint)
        return
    if fields := tuple(_fields(request, files, known)):
        verb = "differs" if len(fields) == 1 else "differ"
        yield StaleReason(
            why,
            f"{document}: {counted(len(fields), 'value')} {verb} from what {request.spec_path} gives{made_with}",
            hint,
            fields,
        )
    for text in texts:
        yield StaleReason(StaleCause.ENTRY, f"{document}: {text}", by_hand)


def _fields(request: LockRequest, files: Mapping[str, bytes], known: Sequence[StaleReason]) -> Iterator[Difference]:
    """The values that differ, without what the hashes and the header have shown: changed files, another spec."""
    reported = {"spec", *(reason.file for reason in known)}
    for each in folder_differences(request.directory, files):
        if (each.locked, each.resolved) != SAME_VALUES and each.what not in reported:
            yield each


def mismatches(expected: ExpectedLock, spec: Spec, facts: Facts) -> Iterator[str]:
    """What of a lock's packages is not possible for its spec, as far as names show it."""
    for part in expected.lock.resolutions:
        platform = part.target.platform
        texts: list[str] = []
        if request := expected.requests.get(platform):
            texts += package_mismatches(part, request)
        if spec.conda is not None:
            from envspec.resolve.conda.request import conda_request

            request_of_conda = conda_request(spec, platform, facts, Cutoffs(expected.lock.as_of, {}), (), ())
            texts += conda_mismatches(part, expected.lock.channels, request_of_conda.requirements)
        for text in texts:
            yield f"{platform.value}: {text}"
