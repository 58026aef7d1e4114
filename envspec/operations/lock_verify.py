"""`envspec lock --verify`: a lock compared with what its spec compiles to if nothing of that lock decides.

Cached pages are validated with their indexes, by a conditional request each; metadata and whatever else is named by a
hash is used from the cache: no lock writes it. Whole locks and resolutions are made again: they may follow from the
lock in question.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

from envspec import documents
from envspec.context import Context
from envspec.errors import StaleLock, UsageError
from envspec.facts import load_facts
from envspec.io.store import Store, StoredPage
from envspec.lockfile.export import is_exported
from envspec.lockfile.folder import read_current, read_lock
from envspec.lockfile.header import LOCK_FILE, verify_checksum
from envspec.models import DIRECT_URL, Lock, Resolution
from envspec.operations.lock import beside, check_logins, lock_files, make
from envspec.operations.lock_state import LockRequest, LockState
from envspec.operations.old_lock import checked, cutoffs_of, versions_of
from envspec.spec import Spec, load_spec
from envspec.spec.identity import read_document

_NONE: Final = "(none)"
#: The keys that identify a table of an array.
_NAMES: Final = ("name", "platform", "what", "package")


class Difference(NamedTuple):
    """One value of a lock that differs from the resolution. platform, package: empty if it belongs to none."""

    platform: str
    package: str
    what: str
    locked: str
    resolved: str

    def __str__(self) -> str:
        where = "".join(f"{each}: " for each in (self.platform, self.package) if each)
        return f"{where}{self.what}: locked {self.locked}, resolved {self.resolved}"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result: equal, byte for byte, if there are no differences. unverified: what nothing decides, a line each.

    at: up to when releases were considered, in words.
    """

    differences: tuple[Difference, ...]
    unverified: tuple[str, ...]
    at: str


#: The age of a page that no cutoff accepts.
_TOO_OLD: Final = datetime.min.replace(tzinfo=timezone.utc)


class _Revalidated(Store):
    """The cache without resolutions: metadata is used, every request is resolved again, from pages of this run.

    A page of an earlier run gives its ETag. The index may serve other files by now, or none to this login.
    """

    reuses_pages = False

    def __init__(self, root: Path, started: datetime) -> None:
        super().__init__(root)
        self._started = started

    def page(self, index_key: str, name: str) -> StoredPage | None:
        found = super().page(index_key, name)
        return found if found is None or found.asked >= self._started else replace(found, asked=_TOO_OLD)

    def selection(self, view_key: str, name: str) -> None:
        """Nothing: it may be of an earlier page."""

    def answer(self, key: str) -> None:
        """Nothing, whatever the key."""


def verify_lock(request: LockRequest, context: Context) -> Verified:
    """Resolve the spec of a lock again and compare every file of the lock's folder. Nothing is written but the cache.

    Raises:
        StaleLock: the lock is damaged, or its as_of is in the future.
        UsageError: the lock was made from parts of channels, and the request does not name them.
        NetworkError: an index, channel, registry or repository can't be read: nothing is verified then.
        EnvspecError: as `operations.lock.lock`.
    """
    now = context.now()
    started = now.replace(microsecond=0)
    locked = read_lock(request.directory)
    spec = load_spec(request.spec_path, started).variant(request.variant)
    check_logins(spec, request, context)
    context = context.with_spec(spec.registry.mirrors, unconfined=spec.pip.unconfined_builds)
    missing = [each.name for each in locked.channels if each.part and each.name not in request.channel_repodata]
    if missing:
        raise UsageError(
            f"{request.directory} was locked from a part of {', '.join(missing)}",
            hint=f"name the repodata of that part: --channel-repodata {missing[0]}=DIR",
        )
    as_of = spec.env.as_of if isinstance(spec.env.as_of, datetime) else locked.as_of
    own = (*locked.package_as_of, *locked.conda_as_of, *((each.name, each.as_of) for each in locked.package_ages))
    cutoffs = (as_of, *(at for _, at in own))
    if latest := max([at for at in cutoffs if at > started], default=None):
        raise StaleLock(
            f"{request.directory} is as of {latest}, which is in the future", hint="lock again: `envspec lock`"
        )
    facts = load_facts(spec.facts.tables())
    right, unverified = checked(locked, spec, facts, context)
    with closing(_Revalidated(context.cache, now)) as store:
        old, document = cutoffs_of(right), read_document(request.spec_path)
        state = LockState(request, context, store, spec, document, facts, old, started, as_of, as_of, before=locked)
        if request.variant:
            state = beside(state, read_current(request.base_directory, LOCK_FILE))
        # Where the spec is may change without the lock.
        made = replace(make(state), spec=locked.spec)
        differences = _compare(request.directory, lock_files(made))
        kept: tuple[str, ...] = ()
        if differences and _keeps_versions(spec, locked):
            # Only the lock records which of them `--upgrade-package` has moved.
            old = replace(cutoffs_of(right), resolutions=versions_of(locked))
            free, made = made, replace(make(replace(state, old=old)), spec=locked.spec)
            differences = _compare(request.directory, lock_files(made))
            kept = tuple(_kept(free, made))
    moment = f"{as_of.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    at = moment if spec.env.is_dated else f"{moment}, as in the lock: the spec has no date"
    return Verified(differences, (*unverified, *kept, *_recorded(made)), at)


def _keeps_versions(spec: Spec, lock: Lock) -> bool:
    own = bool(lock.package_as_of or lock.conda_as_of or any(part.conda for part in lock.resolutions))
    return own and not spec.env.is_dated


def _kept(free: Lock, made: Lock) -> Iterator[str]:
    """The packages that have another version if the lock's own are preferred."""
    for before, after in zip(free.resolutions, made.resolutions, strict=True):
        platform = after.target.platform.value
        olds, news = _versions(before), _versions(after)
        for name, version in news.items():
            if (other := olds.get(name, "none")) != version:
                yield (
                    f"{platform}: {name} {version} was kept by the lock, as `--upgrade-package` keeps what does not "
                    f"have to move; a resolution without the lock gives {other}"
                )


def _versions(part: Resolution) -> dict[str, str]:
    wheels = {each.name: each.version for each in part.packages}
    return wheels | {each.name: each.version for each in part.conda}


def _recorded(lock: Lock) -> Iterator[str]:
    """What builds have found, which only another build could verify."""
    for layer in lock.system:
        yield f"{layer.platform.value}: the system layer {layer.diff_id}, as `envspec lock --image` recorded it"
    for image in lock.images:
        yield f"{image.platform.value}: the image ID {image.id}, as `envspec lock --image` recorded it"
    for part in lock.resolutions:
        for each in part.packages:
            # A git or local source is built anew with every resolution; an sdist of an index is not.
            if each.built and each.built.sha256 != each.file.sha256 and each.file.index != DIRECT_URL:
                yield f"{part.target.platform.value}: the wheel {each.built.filename} built of {each.file.filename}"


def _compare(directory: Path, made: Mapping[str, bytes]) -> tuple[Difference, ...]:
    """Every file that is not, byte for byte, what was made; of the document, value by value."""
    document = read_current(directory, LOCK_FILE)
    head, body = verify_checksum(document, str(directory / LOCK_FILE))
    existing = {each.name for each in directory.iterdir() if is_exported(each.name)}
    rows: list[Difference] = []
    if document != made[LOCK_FILE]:
        _, resolved = verify_checksum(made[LOCK_FILE], LOCK_FILE)
        # The hashes of the other files are compared with the files themselves.
        old, new = ({**documents.parse_toml(each.decode()), "files": None} for each in (body, resolved))
        rows += _differences(old, new, (), ("", ""))
        rows = rows or [Difference("", "", LOCK_FILE, "the same values", "written in another way")]
    for name in sorted({*head.files, *made, *existing} - {LOCK_FILE}):
        locked = _NONE
        with suppress(OSError):
            locked = _sha256(read_current(directory, name))
        resolved_sha256 = _sha256(made.get(name))
        if locked != resolved_sha256:
            rows.append(Difference("", "", name, locked, resolved_sha256))
    return tuple(rows)


def _sha256(content: bytes | None) -> str:
    return _NONE if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}"


def _differences(old: object, new: object, path: Sequence[str], where: tuple[str, str]) -> Iterator[Difference]:
    """Compare two values at a path. where: the platform and the package that they belong to."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(key), new.get(key), (*path, key), where)
        return
    olds, news = _named(old), _named(new)
    if olds is not None and news is not None and (olds or news):
        for name in sorted({*olds, *news}):
            before, after = olds.get(name), news.get(name)
            inner = _where(path, before or after or {}, where)
            below = path[:-1] if inner != where else (*path, *name)
            if before is None or after is None:
                yield Difference(*inner, ".".join(below) or path[-1], _whole(before), _whole(after))
            else:
                yield from _differences(before, after, () if inner != where else below, inner)
        return
    yield Difference(*where, ".".join(path), _shown(old), _shown(new))


def _named(value: object) -> dict[tuple[str, ...], dict[str, Any]] | None:
    """Tables of an array by what names them; None where the value is none, or two have one name."""
    tables = [] if value is None else value
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        return None
    found = {tuple(each[key] for key in _NAMES if isinstance(each.get(key), str)): each for each in tables}
    return found if len(found) == len(tables) else None


def _where(path: Sequence[str], table: Mapping[str, Any], where: tuple[str, str]) -> tuple[str, str]:
    if path[-1:] == ("resolution",):
        return str(table.get("platform", "")), ""
    if path[-1:] in (("package",), ("conda",)) and where[0]:
        return where[0], str(table.get("name", ""))
    return where


def _whole(table: Mapping[str, Any] | None) -> str:
    if table is None:
        return _NONE
    return str(table.get("version") or table.get("value") or table.get("digest") or "present")


def _shown(value: object) -> str:
    if value is None:
        return _NONE
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if text and re.fullmatch(r"[^\x00-\x1f\x7f]*", text) else json.dumps(text)
