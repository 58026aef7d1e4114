"""Locks that this machine has made before, and which existing locks it made itself.

A lock is a function of its spec, of the lock before it, of the facts and of the programs that made it. If all of these
are the same, so is the lock: it is written again without parsing the spec, and without a network.
On the way of `envspec lock` before anything heavy is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from envspec.context import Context
from envspec.data import facts_version
from envspec.documents import list_of, table_of
from envspec.errors import StaleLock, UsageError
from envspec.io.cache import cache_path
from envspec.io.files import write_file
from envspec.io.store import Store
from envspec.lockfile.check import check
from envspec.lockfile.folder import read_current, tidy
from envspec.lockfile.header import FORMAT, LOCK_FILE, Header, pins_sha256, verify_checksum
from envspec.operations.lock import up_to_date
from envspec.operations.lock.up_to_date import MADE
from envspec.operations.lock_state import Compiled, LockRequest
from envspec.resolve import RESOLVERS
from envspec.settings import read_settings
from envspec.spec.document import DEPENDENCIES_FROM, read_spec
from envspec.spec.identity import input_sha256, read_document
from envspec.spec.logins import login_warnings
from envspec.spec.owner import TWO_SPECS, other_owner, path_from_lock
from envspec.spec.variants import Merged
from envspec.version import VERSION

#: In a lock with the packages of another tool's lock: the spec's hash is not over all that is locked of that.
OF_ANOTHER_LOCK: Final = b'\nwhat = "packages"\n'
#: Of a source that the lock's machine could not build.
_UNBUILT: Final = b'\nunbuilt = "'


def existing_lock(request: LockRequest) -> bytes | None:
    """The bytes of the envspec.lock in the request's folder; None if there is none, or if it can't be read."""
    with suppress(OSError):
        return read_current(request.directory, LOCK_FILE)
    return None


def key_of(
    request: LockRequest, before: bytes | None, environ: Mapping[str, str], base: Compiled | None = None
) -> str | None:
    """Names what a lock is made from; None if something of it can't be read.

    before: see `existing_lock`.
    base: see `recall_lock`.
    environ: names the indexes of this machine; one that is used instead of another should have the same files, and may
        not.
    """
    places = [environ.get("ENVSPEC_DEFAULT_INDEX"), environ.get("ENVSPEC_PYTORCH_INDEX")]
    places.append(path_from_lock(request.spec_path, request.directory))
    try:
        spec = input_sha256(read_document(request.spec_path), request.variant)
        if request.variant:
            places.append(pins_sha256(verify_checksum(lock_of(request, base), LOCK_FILE)[0]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StaleLock):
        return None
    old = hashlib.sha256(before).hexdigest() if before is not None and _header_of(before) is not None else ""
    # Takes 10 ms, which `is_ours` does not need.
    from importlib.metadata import version

    resolver = request.resolver
    made_by = [MADE, FORMAT, VERSION, resolver, *map(version, RESOLVERS[resolver].distributions), facts_version()]
    return hashlib.sha256(json.dumps([spec, old, *made_by, *places]).encode()).hexdigest()


def remember(store: Store, key: str, files: Mapping[str, bytes], warnings: Sequence[str]) -> None:
    texts = {name: content.decode() for name, content in files.items()}
    store.put_answer(key, {"files": texts, "warnings": list(warnings)})


def is_ours(store: Store, document: bytes) -> bool:
    """Whether this envspec made this envspec.lock on this machine, with these facts: then all in it follows from its
    spec. One of another machine may be right, or tampered with.
    """
    return store.answer(_own(document)) is not None


def remember_ours(store: Store, document: bytes) -> None:
    store.put_answer(_own(document), {"made": True})


def recall_lock(
    request: LockRequest, before: bytes | None, context: Context, base: Compiled | None = None
) -> Compiled | None:
    """A lock that is up to date, or the cached one. None: it has to be resolved.

    before: see `existing_lock`.
    base: for a variant, what the spec itself compiles to.
    """
    if not request.is_plain or _owner_of(request, before) is not None:
        return None
    # A variant that is up to date is so beside the spec's lock of today.
    is_beside_today = not (base and base.files)
    with closing(Store(context.cache)) as store:
        if is_beside_today and _is_current(request, before, context, store):
            tidy(request.directory)
            for text in _login_warnings(request):
                context.reporter.warning(text)
            return Compiled({})
        key = key_of(request, before, context.environ, base)
        cached = store.answer(key) if key is not None else None
    if cached is None:
        return None
    for text in (*_login_warnings(request), *cached["warnings"]):
        context.reporter.warning(text)
    return Compiled({name: text.encode() for name, text in cached["files"].items()})


class UpToDate(NamedTuple):
    """What one run has to find, so that the next one of the same words has nothing to do; see `up_to_date`."""

    words: Sequence[str]
    message: str
    paths: Sequence[str]
    state: str


def observe(words: Sequence[str], message: str, requests: Sequence[LockRequest]) -> UpToDate | None:
    """What the locks of a spec and its variants follow from now, if they exist and nothing but files decides it.

    words: of the command line. message: what the run prints if there is nothing to do.
    """
    paths: list[str] = []
    try:
        paths += map(str, _files_of_spec(requests[0].spec_path))
        for request in requests:
            body = read_current(request.directory, LOCK_FILE)
            header, _ = verify_checksum(body, LOCK_FILE)
            if b'index = "local"' in body or _UNBUILT in body or OF_ANOTHER_LOCK in body:
                # A project's folder counts as well, or whether this machine can build, or another lock.
                return None
            paths += [str(request.directory / name) for name in (LOCK_FILE, *header.files)]
        return UpToDate(words, message, paths, up_to_date.state(words, paths, message))
    except (OSError, ValueError, StaleLock):
        return None


def have_nothing_to_do(requests: Sequence[LockRequest], context: Context) -> bool:
    """Whether the next run for a spec and its variants would change nothing, and warn of nothing."""
    with closing(Store(context.cache)) as store:
        for request in requests:
            if not _is_current(request, existing_lock(request), context, store) or any(_login_warnings(request)):
                return False
    return True


def remember_up_to_date(before: UpToDate, requests: Sequence[LockRequest]) -> None:
    """Let the next run of the same words end at once, if all is still as it was when nothing was to do."""
    cache = up_to_date.cache_folder()
    # The configuration file can name another. A check makes no cache.
    if cache is None or cache_path(read_settings(os.environ).environ) != Path(cache) or not Path(cache).is_dir():
        return
    # The message is written whatever the encoding of stderr.
    if before.message.isascii() and observe(before.words, before.message, requests) == before:
        with suppress(OSError):
            record = os.fsencode("\0".join((before.state, before.message, *before.paths)))
            write_file(Path(up_to_date.record_path(cache, before.words)), record)


def _files_of_spec(path: Path) -> Iterator[Path]:
    """A spec's file, and those that it takes lines from."""
    yield path
    spec = read_spec(path)
    for table in (spec, *table_of(spec, "variants").values()):
        if sources := list_of(table, DEPENDENCIES_FROM):
            # Imported by now: a check reads their lines.
            from envspec.spec.pyproject import source_file

            yield from map(path.parent.joinpath, filter(None, map(source_file, sources)))
        if on_top_of := table_of(table, "pip").get("on_top_of"):
            yield path.parent / str(on_top_of)


def _login_warnings(request: LockRequest) -> Iterator[str]:
    return login_warnings(Merged(read_document(request.spec_path), request.variant), request.spec_path)


def lock_of(request: LockRequest, base: Compiled | None) -> bytes:
    """The lock of the spec itself, for a variant. base: what it compiles to; None if it is in its folder."""
    return base.files[LOCK_FILE] if base and base.files else read_current(request.base_directory, LOCK_FILE)


def check_owner(request: LockRequest, before: bytes | None) -> None:
    """Refuse to overwrite another spec's lock. before: see `existing_lock`."""
    if (other := _owner_of(request, before)) is not None:
        raise UsageError(
            f"{request.directory} is the lock of {other}: {request.spec_path} would overwrite it", hint=TWO_SPECS
        )


def _owner_of(request: LockRequest, before: bytes | None) -> Path | None:
    """Another spec with the same name, whose lock is in the request's folder."""
    header = _header_of(before)
    if header is None:
        return None
    return other_owner(header.spec, header.name, request.spec_path, request.directory)


def _header_of(document: bytes | None) -> Header | None:
    """The header of a lock; None if there is no lock, or a damaged one."""
    if document is None:
        return None
    with suppress(StaleLock):
        return verify_checksum(document, LOCK_FILE)[0]
    return None


def _is_current(request: LockRequest, document: bytes | None, context: Context, store: Store) -> bool:
    """Whether a lock in the request's folder was made here, and stays as it is. document: its bytes."""
    return document is not None and _is_done(request, document, context) and is_ours(store, document)


def _is_done(request: LockRequest, body: bytes, context: Context) -> bool:
    """Whether the lock of a request belongs to its spec, and nothing is left open in it that this run could find."""
    if OF_ANOTHER_LOCK in body or not check(request.spec_path, request.directory, request.variant).is_fresh:
        return False
    if _UNBUILT in body:
        from envspec.io.confine import can_build

        if can_build(context.environ, context.unconfined):
            return False
    # A server of wheels that failed may have their digests now.
    has_digests = b'\nrecord_sha256 = "' in body or b'.whl"' not in body
    return has_digests and b'source = "unresolved"' not in body


def _own(document: bytes) -> str:
    # Other facts, and another envspec, may give other values for the same packages.
    made_by = " ".join(("made here:", MADE, VERSION, facts_version(), ""))
    return hashlib.sha256(made_by.encode() + hashlib.sha256(document).digest()).hexdigest()
