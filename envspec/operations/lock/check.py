"""`envspec lock --check`: whether a lock belongs to its spec and contains only what follows from it. Uses no network.

CI and editors run this on every change, so a lock that this envspec made on this machine, with these facts, is compared
by its hashes alone: nothing heavy is imported for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

from envspec.io.store import Store
from envspec.lockfile.check import CheckResult, StaleReason, check
from envspec.operations.lock.cache import OF_ANOTHER_LOCK, is_ours
from envspec.operations.lock_state import LockRequest


def check_lock(request: LockRequest, now: datetime, cache: Path | None = None) -> CheckResult:
    """Every reason for which a lock is not, or is no longer, what its spec compiles to.

    cache: envspec's; None if it does not count.
    Raises:
        UsageError: the spec can't be read, or is not valid.
    """

    def contents(document: bytes, known: Sequence[StaleReason]) -> Iterable[StaleReason]:
        if _is_made_here(document, cache):
            return ()
        from envspec.operations.lock.recheck import content_reasons

        return content_reasons(request, document, now, known)

    return check(request.spec_path, request.directory, request.variant, contents)


def _is_made_here(document: bytes, cache: Path | None) -> bool:
    """Whether this envspec made an envspec.lock, on this machine and with these facts, of nothing but its spec."""
    if cache is None or OF_ANOTHER_LOCK in document:
        return False
    with suppress(OSError), closing(Store(cache)) as store:
        return is_ours(store, document)
    return False
