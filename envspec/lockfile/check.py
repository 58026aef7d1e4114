"""Whether a lock is one of its spec, by hashes alone: its own, its files', its spec's and its base's.

`envspec lock` does this before it does anything else, so it imports nothing heavy: no model, no `packaging`.
`operations.lock.recheck` also compares what the lock says.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from envspec import documents
from envspec.documents import table_of
from envspec.errors import StaleLock, UsageError
from envspec.lockfile.folder import read_current, state
from envspec.lockfile.header import LOCK_FILE, DamagedLock, Header, NewerFormat, pins_sha256, verify_checksum
from envspec.names import FILE_NAME
from envspec.spec.document import DEPENDENCIES_FROM
from envspec.spec.identity import PACKAGES_SHA256, input_sha256, read_document
from envspec.spec.logins import login_warnings
from envspec.spec.owner import TWO_SPECS, other_owner, path_from_lock
from envspec.spec.variants import BASE, Merged, base_directory, document_of

if TYPE_CHECKING:
    from envspec.lockfile.differences import Difference

_TRIES: Final = 100
_BETWEEN_TRIES_S: Final = 0.004


class OtherFacts(StaleLock, code="other-facts"):
    """The lock was made with other facts, which decide some of its values differently."""


class StaleCause(Enum):
    """What makes a lock stale."""

    NO_LOCK = "no-lock"
    FORMAT = "format"
    DAMAGED = "damaged"
    SPEC = "spec"
    FILE = "file"
    ENTRY = "entry"
    FACTS = "facts"
    BASE = "base"
    PLACE = "place"

    @property
    def code(self) -> str:
        """Of the error that explains it."""
        errors = {StaleCause.FORMAT: NewerFormat, StaleCause.DAMAGED: DamagedLock, StaleCause.FACTS: OtherFacts}
        return errors.get(self, StaleLock).code


#: Causes that leave nothing to compare with what the spec gives.
NOT_ITS_LOCK: Final = (StaleCause.NO_LOCK, StaleCause.FORMAT, StaleCause.DAMAGED, StaleCause.SPEC)


class StaleReason(NamedTuple):
    """One cause of staleness.

    text: one line for the user. hint: what to do when it isn't `envspec lock SPEC`. fields: the values that differ.
    file: the name of the file of the lock's folder that is missing or changed.
    """

    why: StaleCause
    text: str
    hint: str = ""
    fields: tuple[Difference, ...] = ()
    file: str = ""


class CheckResult(NamedTuple):
    """Fresh if there is no reason; warnings alone leave a lock fresh."""

    reasons: tuple[StaleReason, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_fresh(self) -> bool:
        return not self.reasons


#: The reasons in the values of a lock, from the bytes of its envspec.lock and what its hashes have shown.
ContentReasons: TypeAlias = "Callable[[bytes, Sequence[StaleReason]], Iterable[StaleReason]]"


def check(spec_path: Path, lock_dir: Path, variant: str = BASE, contents: ContentReasons | None = None) -> CheckResult:
    """Every reason for which the hashes of the lock in `lock_dir` are not those of the spec or its variant.

    The files belong together only if no other run wrote the lock meanwhile: then it is checked again.

    contents: called for a lock of the spec as it is.
    Raises:
        UsageError: the spec can't be read.
    """
    data = _parse(spec_path)
    for _ in range(_TRIES):
        before = state(lock_dir, LOCK_FILE)
        result = _check(data, variant, spec_path, lock_dir, contents)
        if result.is_fresh or state(lock_dir, LOCK_FILE) == before:
            break
        time.sleep(_BETWEEN_TRIES_S)
    return result


def _check(
    data: dict[str, object], variant: str, spec_path: Path, lock_dir: Path, contents: ContentReasons | None
) -> CheckResult:
    document = lock_dir / LOCK_FILE
    try:
        content = read_current(lock_dir, LOCK_FILE)
        header, body = verify_checksum(content, str(document))
    except (FileNotFoundError, NotADirectoryError):
        return CheckResult((StaleReason(StaleCause.NO_LOCK, f"{document} does not exist: nothing is locked yet"),))
    except OSError as error:
        return CheckResult((StaleReason(StaleCause.NO_LOCK, f"{document} can't be read: {error.strerror}"),))
    except NewerFormat as error:
        return CheckResult((StaleReason(StaleCause.FORMAT, error.message, error.hint or ""),))
    except StaleLock as error:
        return CheckResult((StaleReason(StaleCause.DAMAGED, error.message, error.hint or ""),))
    reasons = list(_file_reasons(lock_dir, header))
    if input_sha256(data, variant) == header.input_sha256:
        if variant:
            reasons += _base_reasons(base_directory(lock_dir, variant), lock_dir, header)
        if header.spec != (place := path_from_lock(spec_path, lock_dir)):
            # An image gets files from the folder of the spec that the lock names.
            named = f"{header.spec} as its spec" if header.spec else "no spec"
            reasons.append(
                StaleReason(StaleCause.PLACE, f"{document} names {named}; {spec_path} is {place} from there")
            )
        if b'index = "local"' in body:
            reasons += _project_reasons(body, spec_path, document)
        if contents is not None and not any(reason.why in NOT_ITS_LOCK for reason in reasons):
            reasons += contents(content, tuple(reasons))
    else:
        reasons.insert(0, _changed(data, variant, spec_path, lock_dir, header))
    logins = login_warnings(Merged(data, variant), spec_path)
    return CheckResult(tuple(reasons), (*logins, *_warnings(header)))


def _base_reasons(base: Path, lock_dir: Path, header: Header) -> list[StaleReason]:
    """Whether a variant was locked beside the spec's own lock as it is now."""
    try:
        own, _ = verify_checksum(read_current(base, LOCK_FILE), LOCK_FILE)
    except (OSError, StaleLock):
        # What is wrong with that lock is said of it.
        return []
    if pins_sha256(own) == header.base_sha256:
        return []
    return [StaleReason(StaleCause.BASE, f"{base} has changed since {lock_dir} was locked to match it")]


def _changed(data: Mapping[str, Any], variant: str, spec_path: Path, lock_dir: Path, header: Header) -> StaleReason:
    other = other_owner(header.spec, header.name, spec_path, lock_dir)
    if other is None:
        document = document_of(data, variant)
        if PACKAGES_SHA256 in table_of(document, "pip"):
            changed = f"{spec_path}, or what it takes from another tool's lock, has changed since it was locked"
            return StaleReason(StaleCause.SPEC, changed)
        sources = document.get(DEPENDENCIES_FROM)
        of_sources = f", or a line that it reads from pyproject.toml ({', '.join(sources)})," if sources else ""
        return StaleReason(StaleCause.SPEC, f"{spec_path}{of_sources} has changed since it was locked")
    return StaleReason(StaleCause.SPEC, f"{lock_dir} is the lock of {other}", TWO_SPECS)


def _parse(spec_path: Path) -> dict[str, object]:
    try:
        return read_document(spec_path)
    except OSError as error:
        raise UsageError(
            f"{spec_path} can't be read: {error.strerror}", hint="name the spec that was locked"
        ) from error
    except ValueError:
        from datetime import datetime, timezone

        from envspec.spec.load import load_spec

        # It raises an error with every problem and its line.
        load_spec(spec_path, datetime.now(timezone.utc))
        raise


def _file_reasons(lock_dir: Path, header: Header) -> Iterator[StaleReason]:
    """What is wrong with files that are not what the header says."""
    for name, digest in header.files.items():
        if not FILE_NAME.fits(name):
            yield StaleReason(
                StaleCause.DAMAGED, f"{lock_dir / LOCK_FILE} names a file outside of its folder: {name!r}"
            )
            continue
        try:
            content = read_current(lock_dir, name)
        except FileNotFoundError:
            yield StaleReason(StaleCause.FILE, f"{lock_dir / name} is missing", file=name)
        except OSError as error:
            yield StaleReason(StaleCause.FILE, f"{lock_dir / name} can't be read: {error.strerror}", file=name)
        else:
            if hashlib.sha256(content).hexdigest() != digest:
                yield StaleReason(StaleCause.FILE, f"{lock_dir / name} was changed after envspec wrote it", file=name)


def _project_reasons(body: bytes, spec_path: Path, document: Path) -> list[StaleReason]:
    try:
        changed = list(_changed_projects(documents.parse_toml(body.decode()), spec_path.parent))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [StaleReason(StaleCause.DAMAGED, f"{document} can't be read: {type(error).__name__}: {error}")]
    return [
        StaleReason(StaleCause.FILE, f"{name}: {address} has changed since its wheel was built")
        for name, address in changed
    ]


def _changed_projects(lock: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """Name and address of every local project that has changed. folder: the spec's.

    A project that does not exist is none of them: on another machine, the lock's wheel stands for it.
    """
    from envspec.io.files import local_path, tree_sha256

    local = {}
    for part in lock.get("resolution", ()):
        for package in part.get("package", ()):
            if package["file"]["index"] == "local":
                local[package["name"]] = package["file"]["url"]
    for name, url in local.items():
        address, _, sha256 = url.partition("#sha256=")
        path = local_path(address, folder)
        # One that is not built yet has no hash.
        if sha256 and path.exists() and tree_sha256(path) != sha256:
            yield name, address


def _warnings(header: Header) -> tuple[str, ...]:
    return tuple(
        f"locked from a part of {channel.name} ({channel.records:,} records, sha256 {channel.sha256[:12]}): "
        "the whole channel may solve to something else"
        for channel in header.partial_channels
    )
