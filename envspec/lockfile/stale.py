"""Whether the spec of a lock has changed since it was locked: what every command that uses a lock reports first.

Compares hashes and nothing else: `envspec.lockfile.check` compares the lock itself. It imports next to nothing.
"""

from __future__ import annotations

from pathlib import Path

from envspec.documents import table_of
from envspec.errors import StaleLock, UsageError
from envspec.lockfile.folder import read_current
from envspec.lockfile.header import LOCK_FILE, Header, verify_checksum
from envspec.spec.document import DEPENDENCIES_FROM
from envspec.spec.identity import PACKAGES_SHA256, input_sha256, read_document
from envspec.spec.owner import LOCKS, find_spec_of
from envspec.spec.variants import BASE, base_directory, document_of, lock_name, variant_called


def stale_lock(directory: Path) -> StaleLock | None:
    """The error of a lock whose spec has changed since; None if it is the same.

    directory: the lock's.

    Raises:
        UsageError: there is no lock, its spec is not there or can't be read, or leads out of the lock's project.
        StaleLock: the lock is damaged, or has another format.
    """
    try:
        content = read_current(directory, LOCK_FILE)
    except OSError as error:
        raise UsageError(f"{directory / LOCK_FILE} can't be read: {error.strerror}", hint="name a lock") from error
    header, _ = verify_checksum(content, str(directory / LOCK_FILE))
    spec = find_spec_of(header.spec, directory)
    if spec is None:
        named = f"its spec, {header.spec}, is not there" if header.spec else "it names no spec"
        raise UsageError(
            f"{directory} can't be compared with its spec: {named}", hint="use it in a copy of its project"
        )
    try:
        return _compared(header, spec, directory)
    except OSError as error:
        raise UsageError(
            f"{error.filename or spec} can't be read: {error.strerror}", hint="make it readable"
        ) from error


def _compared(header: Header, spec: Path, directory: Path) -> StaleLock | None:
    command, change = f"envspec lock {spec}", f"{spec} has changed since it was locked"
    try:
        document = read_document(spec)
        variant = variant_called(header.name, document)
        if variant is None:
            change = f"{spec} has no environment {header.name} any more"
        elif input_sha256(document, variant) == header.input_sha256:
            return None
        else:
            base = base_directory(directory, variant)
            is_usual = base.absolute() == Path(LOCKS, lock_name(document, BASE)).absolute()
            if not is_usual:
                command += f" --output {base}"
            own = document_of(document, variant)
            if DEPENDENCIES_FROM in own:
                change = f"{spec}, or a pyproject.toml that it reads, has changed since it was locked"
            elif PACKAGES_SHA256 in table_of(own, "pip"):
                change = f"{spec}, or what it takes from another tool's lock, has changed since it was locked"
    except (ValueError, LookupError, TypeError, AttributeError):
        # It was a valid spec when it was locked: it has changed.
        pass
    return StaleLock(f"{directory} is stale: {change}", hint=f"run `{command}`")
