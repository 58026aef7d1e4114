"""`envspec lock --verify`: a lock compared with what its spec compiles to if nothing of that lock decides.

Cached pages are validated with their indexes, by a conditional request each; metadata and whatever else is named by a
hash is used from the cache: no lock writes it. Whole locks and resolutions are made again: they may follow from the
lock in question.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.context import Context
from envspec.errors import StaleLock, UsageError
from envspec.facts import load_facts
from envspec.io.store import Store, StoredPage
from envspec.lockfile.differences import Difference, folder_differences
from envspec.lockfile.export import is_exported
from envspec.lockfile.folder import read_current, read_lock
from envspec.lockfile.header import LOCK_FILE
from envspec.models import DIRECT_URL, Lock, Platform, Resolution, Unbuilt, WheelFile
from envspec.operations.lock.complete import lock_files
from envspec.operations.lock.inputs import check_logins, for_variant
from envspec.operations.lock.previous import check_pins, cutoffs_of, versions_of
from envspec.operations.lock.resolve import assemble_lock, resolve_spec
from envspec.operations.lock_state import LockRequest, LockState
from envspec.spec import load_spec
from envspec.spec.dates import utc_text
from envspec.spec.identity import read_document
from envspec.structs import replace


class Verified(Struct, frozen=True):
    """The result: equal, byte for byte, if there are no differences.

    unverified: what nothing decides, a line each.
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
        if found is not None and found.asked < self._started:
            return replace(found, asked=_TOO_OLD)
        return found

    def selection(self, view_key: str, name: str) -> bytes:  # noqa: ARG002 (the base's signature)
        """Nothing: it may be of an earlier page."""
        return b""

    def answer(self, key: str) -> None:
        """Nothing, whatever the key."""


def verify_lock(request: LockRequest, context: Context) -> Verified:
    """Resolve the spec of a lock again and compare every file of the lock's folder. Nothing is written but the cache.

    Raises:
        StaleLock: the lock is damaged, or its as_of is in the future.
        UsageError: the lock was made from parts of channels, and the request does not name them.
        NetworkError: an index, channel, registry or repository can't be read: nothing is verified then.
        EnvspecError: as `operations.lock.stages.compile_lock`.
    """
    now = context.now()
    started = now.replace(microsecond=0)
    locked = read_lock(request.directory)
    spec = load_spec(request.spec_path, started).variant(request.variant)
    check_logins(spec, request, context)
    context = context.with_spec(spec.registry.mirrors, unconfined=not spec.pip.build.sandbox)
    missing = [each.name for each in locked.channels if each.part and each.name not in request.channel_repodata]
    if missing:
        raise UsageError(
            f"{request.directory} was locked from a part of {', '.join(missing)}",
            hint=f"name the repodata of that part: --channel-repodata {missing[0]}=DIR",
        )
    as_of = spec.env.as_of if isinstance(spec.env.as_of, datetime) else locked.as_of
    latest = as_of
    for age in locked.package_ages:
        latest = max(latest, age.as_of)
    for _, moved_up_to in (*locked.package_as_of, *locked.conda_as_of):
        latest = max(latest, moved_up_to)
    if latest > started:
        raise StaleLock(
            f"{request.directory} is as of {latest}, which is in the future", hint="lock again: `envspec lock`"
        )
    facts = load_facts(spec.facts.tables())
    right, unverified = check_pins(locked, spec, facts, context)
    with closing(_Revalidated(context.cache, now)) as store:
        old, document = cutoffs_of(right), read_document(request.spec_path)
        state = LockState(request, context, store, spec, document, facts, old, started, as_of, as_of, before=locked)
        if request.variant:
            state = for_variant(state, read_current(request.base_directory, LOCK_FILE))
        made = _unbuilt_as(locked, assemble_lock(resolve_spec(state)))
        exported = [each.name for each in request.directory.iterdir() if is_exported(each.name)]
        differences = folder_differences(request.directory, lock_files(made), exported)
        kept: tuple[str, ...] = ()
        if differences and not spec.env.is_dated:
            # Only the lock has the versions that stayed, and those that `--upgrade-package` has moved.
            old = replace(cutoffs_of(right), resolutions=versions_of(locked))
            free, made = made, _unbuilt_as(locked, assemble_lock(resolve_spec(replace(state, old=old))))
            differences = folder_differences(request.directory, lock_files(made), exported)
            kept = tuple(_kept(free, made))
    moment = utc_text(as_of)
    at = moment if spec.env.is_dated else f"{moment}, as in the lock: the spec has no date"
    return Verified(differences, (*unverified, *kept, *_recorded(made)), at)


def _unbuilt_as(locked: Lock, made: Lock) -> Lock:
    """The lock without the wheels that could not be built where it was locked: only its machine decided that."""
    unbuilt: dict[tuple[Platform, WheelFile], Unbuilt] = {}
    for part in locked.resolutions:
        for each in part.packages:
            if each.unbuilt:
                unbuilt[part.target.platform, each.file] = each.unbuilt
    parts: list[Resolution] = []
    for part in made.resolutions:
        packages = list(part.packages)
        for at, each in enumerate(packages):
            code = unbuilt.get((part.target.platform, each.file))
            if code and each.built:
                packages[at] = replace(each, built=None, record_sha256=None, unbuilt=code)
        parts.append(replace(part, packages=tuple(packages)))
    return replace(made, resolutions=tuple(parts))


def _kept(free: Lock, made: Lock) -> Iterator[str]:
    """The packages that have another version if the lock's own are preferred."""
    for before, after in zip(free.resolutions, made.resolutions, strict=True):
        platform = after.target.platform.value
        olds, news = _versions(before), _versions(after)
        for name, version in news.items():
            if (other := olds.get(name, "none")) != version:
                yield (
                    f"{platform}: {name} {version} was kept by the lock, as versions stay until `--upgrade`; a "
                    f"resolution without the lock gives {other}"
                )


def _versions(part: Resolution) -> dict[str, str]:
    versions = {each.name: each.version for each in part.packages}
    for record in part.conda:
        versions[record.name] = record.version
    return versions


def _recorded(lock: Lock) -> Iterator[str]:
    """What builds have found, which only another build could verify."""
    for layer in lock.system:
        yield f"{layer.platform.value}: the system layer {layer.diff_id}, as `envspec lock --image` recorded it"
    for image in lock.images:
        yield f"{image.platform.value}: the image ID {image.id}, as `envspec lock --image` recorded it"
    for part in lock.resolutions:
        for each in part.packages:
            if each.unbuilt is Unbuilt.STATED:
                platform, why = part.target.platform.value, each.unbuilt.described
                yield f"{platform}: {each.file.filename}, which was not built: {why}"
            # A git or local source is built anew with every resolution; an sdist of an index is not.
            if each.built and each.built.sha256 != each.file.sha256 and each.file.index != DIRECT_URL:
                yield f"{part.target.platform.value}: the wheel {each.built.filename} built of {each.file.filename}"
