"""What `envspec lock` does when it does lock: apart from its command, so that `--check` imports none of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.cli import terminal
from envspec.cli.lock import report_check
from envspec.data import facts_version
from envspec.errors import StaleLock, UsageError
from envspec.io.cache import cache_root
from envspec.io.store import Store
from envspec.lock.check import Why, check
from envspec.lock.head import LOCK_FILE
from envspec.lock.names import stage_prefix
from envspec.operations.lock_cache import is_ours, key_of, recall, remember_ours

if TYPE_CHECKING:
    from envspec.cli.progress import StageProgress
    from envspec.operations.lock_state import LockRequest, Surroundings


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options, as click gives them."""

    resolver: str
    conda_resolver: str
    channel_repodata: Mapping[str, Path]
    offline: bool
    upgrade: bool
    upgrade_package: tuple[str, ...]
    image: bool
    jobs: int
    unconfined: bool


def lock_one(path: Path, directory: Path, options: Options) -> int:
    """Lock one spec and print the paths that changed."""
    changed = None if options.upgrade or options.upgrade_package else _without_locking(path, directory, options)
    if changed is None:
        changed = _lock(path, directory, options)
    if options.image:
        changed = sorted({*changed, *_record_images(path, directory, options)})
    for written in changed:
        terminal.answer(f"{written}\n")
    if not changed:
        terminal.tell(f"{directory}: nothing changed")
    return 0


def _without_locking(path: Path, directory: Path, options: Options) -> Sequence[Path] | None:
    """Leave a lock that is done, or write one from this machine's memory; None where there is something to do."""
    store = Store(_cache())
    try:
        if _is_done(path, directory) and is_ours(store, (directory / LOCK_FILE).read_bytes()):
            _tidy(directory)
            return ()
        key = key_of(path, directory, options.resolver, facts_version(), os.environ)
        known = recall(store, key) if key is not None else None
    finally:
        store.close()
    if known is None:
        return None
    from envspec.lock.folder import write_folder

    for text in known.warnings:
        terminal.tell(f"warning: {text}")
    return write_folder(directory, known.files)


def _lock(path: Path, directory: Path, options: Options) -> Sequence[Path]:
    from envspec.cli.progress import StageProgress
    from envspec.operations.lock import lock

    with StageProgress(path.stem) as progress:
        return lock(_request(path, directory, options), _surroundings(progress, options)).changed


def verify_one(path: Path, directory: Path, options: Options) -> int:
    """Resolve one spec again and print each row of its lock that differs."""
    found = report_check(path, directory).reasons
    if any(reason.why in (Why.NO_LOCK, Why.FORMAT, Why.DAMAGED, Why.SPEC) for reason in found):
        # There is nothing to compare with what the spec compiles to.
        return StaleLock.exit_code
    from envspec.cli.progress import StageProgress
    from envspec.operations.lock_verify import verify_lock

    with StageProgress(path.stem) as progress:
        verified = verify_lock(_request(path, directory, options), _surroundings(progress, options))
    for row in verified.differences:
        terminal.answer(f"{directory}: {row}\n")
    for text in verified.unverified:
        terminal.tell(f"not verified: {directory}: {text}")
    if verified.differences:
        terminal.tell(f"{directory}: differs from a new resolution as of {verified.at}")
        terminal.tell(
            f"  hint: `envspec lock {path}` writes what was resolved. An index that lists other releases than it did "
            "leads to other versions and reasons; another file, URL or hash of one version is a lock that was changed"
        )
    elif not found:
        but = " but for what is not verified" if verified.unverified else ""
        terminal.tell(f"{directory}: verified{but}: equal to a new resolution as of {verified.at}")
    return StaleLock.exit_code if found or verified.differences else 0


def _request(path: Path, directory: Path, options: Options) -> LockRequest:
    from packaging.utils import canonicalize_name

    from envspec.operations.lock_state import LockRequest, Network, Upgrade

    return LockRequest(
        spec_path=path,
        directory=directory,
        resolver=options.resolver,
        conda_resolver=options.conda_resolver,
        channel_repodata=options.channel_repodata,
        network=Network.OFFLINE if options.offline else Network.USE,
        upgrade=Upgrade.ALL if options.upgrade else Upgrade.KEEP,
        upgrade_packages=tuple(str(canonicalize_name(name)) for name in options.upgrade_package),
        jobs=options.jobs,
    )


def _surroundings(progress: StageProgress, options: Options) -> Surroundings:
    from envspec.io.confine import Unconfined
    from envspec.operations.lock_state import Surroundings

    return Surroundings(
        environ=os.environ,
        home=Path.home(),
        cache=_cache(),
        now=lambda: datetime.now(timezone.utc),
        warn=progress.warn,
        report=progress.report,
        unconfined=Unconfined.ALLOWED if options.unconfined else Unconfined.REFUSED,
    )


def _record_images(path: Path, directory: Path, options: Options) -> Sequence[Path]:
    from envspec.cli.image_world import image_world
    from envspec.cli.progress import DownloadProgress
    from envspec.cli.terminal import terminable
    from envspec.fetch.types import Network
    from envspec.image.options import ImageOrder
    from envspec.io.tasks import run_interruptible
    from envspec.lock.document import identity
    from envspec.models import Lock, Platform
    from envspec.operations.image import identify, record_images
    from envspec.spec import load_spec

    spec = load_spec(path, datetime.now(timezone.utc))
    network = Network.OFFLINE if options.offline else Network.USE
    with terminable(), DownloadProgress(path.stem) as progress:
        unconfined = options.unconfined or spec.pip.unconfined_builds
        world = image_world(progress, (), spec.registry.mirrors, unconfined=unconfined)

        def on(lock: Lock, platform: Platform) -> Lock:
            order = ImageOrder(lock, identity(lock), (platform,), network=network, jobs=os.cpu_count() or 1)
            return run_interruptible(identify(order, world))

        changed = record_images(directory, on, progress.warn)
    store = Store(_cache())
    try:
        remember_ours(store, (directory / LOCK_FILE).read_bytes())
    finally:
        store.close()
    return changed


def folders(named: Sequence[str]) -> dict[str, Path]:
    """`--channel-repodata CHANNEL=DIR` -> channel and folder.

    Raises:
        UsageError: no `=`, or no such folder.
    """
    found: dict[str, Path] = {}
    for text in named:
        channel, equals, folder = text.partition("=")
        if not (channel and equals and Path(folder).is_dir()):
            why = f"{folder} is no folder" if channel and equals else "no channel with a folder"
            raise UsageError(
                f"--channel-repodata {text}: {why}", hint="write conda-forge=DIR, with DIR/linux-64/repodata.json"
            )
        found[channel] = Path(folder).absolute()
    return found


def _tidy(directory: Path) -> None:
    real = directory.resolve()
    with suppress(OSError):
        if any(item.name.startswith(stage_prefix(real)) for item in real.parent.iterdir()):
            from envspec.lock.folder import tidy

            tidy(directory)


def _cache() -> Path:
    return cache_root(os.environ)


def _is_done(path: Path, directory: Path) -> bool:
    """A lock that belongs to its spec, made with these facts, and in which nothing is left open."""
    result = check(path, directory, facts_version())
    if not (result.is_fresh and result.by_these_facts):
        return False
    body = (directory / LOCK_FILE).read_bytes()
    # Locks of wheels without a single digest of contents were written before there were any.
    return b'source = "unresolved"' not in body and (b'\ncontents = "' in body or b'.whl"' not in body)


def set_moment(path: Path, text: str) -> None:
    """Write `as_of` into the spec: `now`, a date, or a moment with its offset.

    Raises:
        UsageError: the text is none of these.
    """
    from envspec.io.files import replace_user_file
    from envspec.spec import load_spec, set_as_of

    now = datetime.now(timezone.utc).replace(microsecond=0)
    moment = now if text == "now" else _moment(text)
    if moment > now:
        raise UsageError(f"--as-of {text} is in the future", hint="use `now`, or a moment that has passed")
    load_spec(path, now)
    replace_user_file(path, set_as_of(path.read_bytes().decode("utf-8"), moment).encode())


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"--as-of {text}: not a date", hint="use `now`, 2026-11-15 or 2026-11-15T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
