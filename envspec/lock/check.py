"""Whether a lock still belongs to its spec, without a network or a resolution.

This is what CI and editors run on every change, so nothing heavy is imported on its way: no model, no `packaging`; the
body is parsed into plain dictionaries, for `check_rows`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from envspec import toml
from envspec.errors import StaleLock, UsageError
from envspec.lock.check_rows import row_faults
from envspec.lock.head import LOCK_FILE, Head, NewerFormat, unseal
from envspec.lock.names import read_current, state
from envspec.names import FILE_NAME
from envspec.spec.identity import input_sha256

_LOOKS: Final = 100
_BETWEEN_LOOKS_S: Final = 0.004


class Why(Enum):
    """What makes a lock stale."""

    NO_LOCK = "no-lock"
    FORMAT = "format"
    DAMAGED = "damaged"
    SPEC = "spec"
    FILE = "file"
    ROW = "row"


class Reason(NamedTuple):
    """One cause of staleness. text: one line for the user. hint: what to do when it isn't `envspec lock SPEC`."""

    why: Why
    text: str
    hint: str = ""


class CheckResult(NamedTuple):
    """Fresh when there is no reason; warnings alone leave a lock fresh. by_these_facts: made with those at hand."""

    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...] = ()
    by_these_facts: bool = True

    @property
    def is_fresh(self) -> bool:
        return not self.reasons


def check(spec_path: Path, lock_dir: Path, facts_version: str | None) -> CheckResult:
    """Every reason for which the lock in `lock_dir` is not, or is no longer, what the spec compiles to.

    facts_version: the version of the facts at hand; None where it is unknown. Other facts than the lock's only warn.
    Raises:
        UsageError: the spec can't be read.
    """
    data = _parse(spec_path)
    # Every write that changes anything writes the document anew: only when the document stayed the same from before the
    # first look to after the last were all of its files seen beside it.
    for _ in range(_LOOKS):
        before = state(lock_dir, LOCK_FILE)
        result = _check(data, spec_path, lock_dir, facts_version)
        if result.is_fresh or state(lock_dir, LOCK_FILE) == before:
            return result
        time.sleep(_BETWEEN_LOOKS_S)
    return result


def _check(data: dict[str, object], spec_path: Path, lock_dir: Path, facts_version: str | None) -> CheckResult:
    document = lock_dir / LOCK_FILE
    try:
        head, body = unseal(read_current(lock_dir, LOCK_FILE), str(document))
    except (FileNotFoundError, NotADirectoryError):
        return CheckResult((Reason(Why.NO_LOCK, f"{document} does not exist: nothing is locked yet"),))
    except OSError as fault:
        return CheckResult((Reason(Why.NO_LOCK, f"{document} can't be read: {fault.strerror}"),))
    except NewerFormat as fault:
        return CheckResult((Reason(Why.FORMAT, fault.message, fault.hint or ""),))
    except StaleLock as fault:
        return CheckResult((Reason(Why.DAMAGED, fault.message, fault.hint or ""),))
    contents, of_files = _file_reasons(lock_dir, head)
    return CheckResult(
        # A lock of another spec names what that one leads to.
        (*(_spec_reasons(data, spec_path, head) or _row_reasons(data, body, contents, spec_path, document)), *of_files),
        _warnings(head, facts_version),
        _by_these_facts(head, facts_version),
    )


def _parse(spec_path: Path) -> dict[str, object]:
    try:
        return toml.read_spec(spec_path)
    except OSError as fault:
        raise UsageError(
            f"{spec_path} can't be read: {fault.strerror}", hint="name the spec that was locked"
        ) from fault
    except ValueError as fault:
        raise UsageError(
            f"{spec_path} is not TOML: {fault}", hint="mend it; `envspec lock` shows every fault"
        ) from fault


def _spec_reasons(data: dict[str, object], spec_path: Path, head: Head) -> list[Reason]:
    if input_sha256(data) == head.input_sha256:
        return []
    return [Reason(Why.SPEC, f"{spec_path} says something else than what was locked")]


def _file_reasons(lock_dir: Path, head: Head) -> tuple[dict[str, bytes], list[Reason]]:
    """The files that are what the head says, and what is wrong with the others."""
    contents: dict[str, bytes] = {}
    reasons: list[Reason] = []
    for name, digest in head.files.items():
        if not FILE_NAME.fits(name):
            reasons.append(Reason(Why.DAMAGED, f"{lock_dir / LOCK_FILE} names a file outside of its folder: {name!r}"))
            continue
        try:
            content = read_current(lock_dir, name)
        except FileNotFoundError:
            reasons.append(Reason(Why.FILE, f"{lock_dir / name} is missing"))
        except OSError as fault:
            reasons.append(Reason(Why.FILE, f"{lock_dir / name} can't be read: {fault.strerror}"))
        else:
            if hashlib.sha256(content).hexdigest() == digest:
                contents[name] = content
            else:
                reasons.append(Reason(Why.FILE, f"{lock_dir / name} was changed after envspec wrote it"))
    return contents, reasons


def _row_reasons(
    data: Mapping[str, Any], body: bytes, contents: Mapping[str, bytes], spec_path: Path, document: Path
) -> list[Reason]:
    try:
        lock = toml.loads(body.decode())
    except ValueError as fault:
        return [Reason(Why.DAMAGED, f"{document} is not TOML: {fault}")]
    reasons = [Reason(Why.ROW, f"{document}: {text}", tampered(spec_path)) for text in row_faults(data, lock, contents)]
    if reasons or b'index = "local"' not in body:
        return reasons
    from envspec.lock.check_local import changed

    return [
        Reason(Why.FILE, f"{name}: {address} is not what its wheel was built of any more")
        for name, address in changed(lock, spec_path.parent)
    ]


def tampered(spec_path: Path) -> str:
    """What to do about a lock that says what envspec does not write."""
    return (
        f"envspec writes no such lock: look at who changed it, then write it again by `envspec lock {spec_path}`, "
        "or restore it from version control"
    )


def _warnings(head: Head, facts_version: str | None) -> tuple[str, ...]:
    parts = tuple(
        f"locked from a part of {part.channel} ({part.rows:,} rows, sha256 {part.sha256[:12]}): "
        "the whole channel may solve to something else"
        for part in head.parts
    )
    if _by_these_facts(head, facts_version):
        return parts
    return (
        *parts,
        f"locked with facts {head.facts}, at hand are facts {facts_version}: "
        "`envspec lock --upgrade` decides anew with them",
    )


def _by_these_facts(head: Head, facts_version: str | None) -> bool:
    return facts_version is None or not head.facts or facts_version == head.facts
