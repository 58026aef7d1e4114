"""`envspec lock --check`: whether a lock belongs to its spec and contains only what follows from it. Uses no network.

CI and editors run this on every change, so a lock that this envspec made on this machine, with these facts, is compared
by its hashes alone: nothing heavy is imported for it.
"""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from envspec.io.store import Store
from envspec.lockfile.check import CheckResult, StaleCause, StaleReason, check, while_unchanged
from envspec.lockfile.folder import read_current
from envspec.lockfile.header import LOCK_FILE
from envspec.operations.lock.cache import is_ours
from envspec.operations.lock_state import LockRequest

#: Reasons that leave nothing to compare with what the spec says.
NOT_ITS_LOCK: Final = (StaleCause.NO_LOCK, StaleCause.FORMAT, StaleCause.DAMAGED, StaleCause.SPEC)


def check_lock(request: LockRequest, now: datetime, cache: Path | None = None) -> CheckResult:
    """Every reason for which a lock is not, or is no longer, what its spec compiles to.

    cache: envspec's; None if it does not count.
    Raises:
        UsageError: the spec can't be read, or is not valid.
    """

    def check_once() -> CheckResult:
        result = check(request.spec_path, request.directory, request.variant)
        if any(reason.why in NOT_ITS_LOCK for reason in result.reasons):
            return result
        try:
            document = read_current(request.directory, LOCK_FILE)
        except OSError as error:
            return result._replace(reasons=(*result.reasons, StaleReason(StaleCause.DAMAGED, str(error))))
        if _is_made_here(document, cache):
            return result
        from envspec.operations.lock.recheck import content_reasons

        return result._replace(reasons=(*result.reasons, *content_reasons(request, document, now, result.reasons)))

    return while_unchanged(request.directory, check_once)


def _is_made_here(document: bytes, cache: Path | None) -> bool:
    """Whether this envspec made an envspec.lock, on this machine and with these facts."""
    if cache is None:
        return False
    with suppress(OSError), closing(Store(cache)) as store:
        return is_ours(store, document)
    return False
