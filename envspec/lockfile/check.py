"""Whether a lock still belongs to its spec, without a network or a resolution.

CI and editors run this on every change, so it imports nothing heavy: no model, no `packaging`; the body is parsed into
plain dictionaries, for `check_entries`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from envspec import documents
from envspec.errors import StaleLock, UsageError
from envspec.lockfile.check_entries import mismatches
from envspec.lockfile.folder import read_current, state
from envspec.lockfile.header import LOCK_FILE, DamagedLock, Header, NewerFormat, pins_sha256, verify_checksum
from envspec.names import FILE_NAME
from envspec.spec.document import DEPENDENCIES_FROM
from envspec.spec.identity import input_sha256, read_document
from envspec.spec.logins import login_warnings
from envspec.spec.owner import TWO_SPECS, other_owner
from envspec.spec.variants import BASE, Merged, base_directory, document_of

_TRIES: Final = 100
_BETWEEN_TRIES_S: Final = 0.004


class Why(Enum):
    """What makes a lock stale."""

    NO_LOCK = "no-lock"
    FORMAT = "format"
    DAMAGED = "damaged"
    SPEC = "spec"
    FILE = "file"
    ENTRY = "entry"
    BASE = "base"

    @property
    def code(self) -> str:
        """Of the error that explains it."""
        errors = {Why.FORMAT: NewerFormat, Why.DAMAGED: DamagedLock}
        return errors.get(self, StaleLock).code


class Reason(NamedTuple):
    """One cause of staleness. text: one line for the user. hint: what to do when it isn't `envspec lock SPEC`."""

    why: Why
    text: str
    hint: str = ""


class CheckResult(NamedTuple):
    """Fresh if there is no reason; warnings alone leave a lock fresh. by_these_facts: made with the facts at hand."""

    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...] = ()
    by_these_facts: bool = True

    @property
    def is_fresh(self) -> bool:
        return not self.reasons


def check(spec_path: Path, lock_dir: Path, facts_version: str | None, variant: str = BASE) -> CheckResult:
    """Every reason for which the lock in `lock_dir` is not, or is no longer, what the spec or its variant compiles to.

    facts_version: the version of the facts at hand; None if it is unknown. Other facts than the lock's only warn.
    Raises:
        UsageError: the spec can't be read.
    """
    data = _parse(spec_path)
    # Another run may be writing: the files belong together only if the document was the same before and after.
    for _ in range(_TRIES):
        before = state(lock_dir, LOCK_FILE)
        result = _check(data, variant, spec_path, lock_dir, facts_version)
        if result.is_fresh or state(lock_dir, LOCK_FILE) == before:
            return result
        time.sleep(_BETWEEN_TRIES_S)
    return result


def _check(
    data: dict[str, object], variant: str, spec_path: Path, lock_dir: Path, facts_version: str | None
) -> CheckResult:
    document = lock_dir / LOCK_FILE
    try:
        header, body = verify_checksum(read_current(lock_dir, LOCK_FILE), str(document))
    except (FileNotFoundError, NotADirectoryError):
        return CheckResult((Reason(Why.NO_LOCK, f"{document} does not exist: nothing is locked yet"),))
    except OSError as error:
        return CheckResult((Reason(Why.NO_LOCK, f"{document} can't be read: {error.strerror}"),))
    except NewerFormat as error:
        return CheckResult((Reason(Why.FORMAT, error.message, error.hint or ""),))
    except StaleLock as error:
        return CheckResult((Reason(Why.DAMAGED, error.message, error.hint or ""),))
    contents, of_files = _file_reasons(lock_dir, header)
    merged = Merged(data, variant)
    if input_sha256(data, variant) == header.input_sha256:
        reasons = _entry_reasons(merged.document, body, contents, spec_path, document)
        reasons += _base_reasons(base_directory(lock_dir, variant), lock_dir, header) if variant else []
    else:
        # The entries of a lock of another spec are another spec's.
        reasons = [_changed(data, variant, spec_path, lock_dir, header)]
    by_these_facts = facts_version is None or not header.facts or facts_version == header.facts
    logins = login_warnings(merged, spec_path)
    warnings = (*logins, *_warnings(header, facts_version, by_these_facts=by_these_facts))
    return CheckResult((*reasons, *of_files), warnings, by_these_facts)


def _base_reasons(base: Path, lock_dir: Path, header: Header) -> list[Reason]:
    """Whether a variant was locked beside the spec's own lock as it is now."""
    try:
        own, _ = verify_checksum(read_current(base, LOCK_FILE), LOCK_FILE)
    except (OSError, StaleLock):
        # What is wrong with that lock is said of it.
        return []
    if pins_sha256(own) == header.base_sha256:
        return []
    return [Reason(Why.BASE, f"{base} has changed since {lock_dir} was locked to match it")]


def _changed(data: Mapping[str, Any], variant: str, spec_path: Path, lock_dir: Path, header: Header) -> Reason:
    other = other_owner(header.spec, header.name, spec_path, lock_dir)
    if other is None:
        sources = document_of(data, variant).get(DEPENDENCIES_FROM)
        of_sources = f", or a line that it reads from pyproject.toml ({', '.join(sources)})," if sources else ""
        return Reason(Why.SPEC, f"{spec_path}{of_sources} has changed since it was locked")
    return Reason(Why.SPEC, f"{lock_dir} is the lock of {other}", TWO_SPECS)


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


def _file_reasons(lock_dir: Path, header: Header) -> tuple[dict[str, bytes], list[Reason]]:
    """The files that are what the header says, and what is wrong with the others."""
    contents: dict[str, bytes] = {}
    reasons: list[Reason] = []
    for name, digest in header.files.items():
        if not FILE_NAME.fits(name):
            reasons.append(Reason(Why.DAMAGED, f"{lock_dir / LOCK_FILE} names a file outside of its folder: {name!r}"))
            continue
        try:
            content = read_current(lock_dir, name)
        except FileNotFoundError:
            reasons.append(Reason(Why.FILE, f"{lock_dir / name} is missing"))
        except OSError as error:
            reasons.append(Reason(Why.FILE, f"{lock_dir / name} can't be read: {error.strerror}"))
        else:
            if hashlib.sha256(content).hexdigest() == digest:
                contents[name] = content
            else:
                reasons.append(Reason(Why.FILE, f"{lock_dir / name} was changed after envspec wrote it"))
    return contents, reasons


def _entry_reasons(
    data: Mapping[str, Any], body: bytes, contents: Mapping[str, bytes], spec_path: Path, document: Path
) -> list[Reason]:
    try:
        lock = documents.parse_toml(body.decode())
    except ValueError as error:
        return [Reason(Why.DAMAGED, f"{document} is not TOML: {error}")]
    hint = (
        f"envspec does not write such a lock: find out who changed it, then run `envspec lock {spec_path}` to write it "
        "again, or restore it from version control"
    )
    reasons = [Reason(Why.ENTRY, f"{document}: {text}", hint) for text in mismatches(data, lock, contents)]
    if reasons or b'index = "local"' not in body:
        return reasons
    return [
        Reason(Why.FILE, f"{name}: {address} has changed since its wheel was built")
        for name, address in _changed_projects(lock, spec_path.parent)
    ]


def _changed_projects(lock: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """Name and address of every local project that has changed. folder: the spec's.

    A project that does not exist is none of them: on another machine, the lock's wheel stands for it.
    """
    from envspec.io.files import local_path, tree_sha256

    packages = [package for part in lock.get("resolution", ()) for package in part.get("package", ())]
    local = {package["name"]: package["file"]["url"] for package in packages if package["file"]["index"] == "local"}
    for name, url in local.items():
        address, _, sha256 = url.partition("#sha256=")
        path = local_path(address, folder)
        if path.exists() and tree_sha256(path) != sha256:
            yield name, address


def _warnings(header: Header, facts_version: str | None, *, by_these_facts: bool) -> tuple[str, ...]:
    parts = tuple(
        f"locked from a part of {channel.name} ({channel.records:,} records, sha256 {channel.sha256[:12]}): "
        "the whole channel may solve to something else"
        for channel in header.partial_channels
    )
    other_facts = (
        f"locked with facts {header.facts}; this envspec has facts {facts_version}: "
        "`envspec lock --upgrade` decides again with them"
    )
    return parts if by_these_facts else (*parts, other_facts)
