"""`envspec cache`: size, prune, clear."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envspec.cli import output, terminal
from envspec.cli.options import DRY_RUN, LOCK, context_of, size_of
from envspec.cli.output import Result, plain
from envspec.cli.progress import TerminalReporter
from envspec.errors import UsageError
from envspec.operations.cache import KINDS, entries, remove, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.operations.cache import CacheUsage, Removal

_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}
_kinds = click.argument("kinds", nargs=-1, type=click.Choice(list(KINDS)), metavar="[KIND]...")


@click.group()
@output.messages
def command() -> None:
    """Show the size of envspec's cache, and remove what is in it.

    Kinds: archives, unpacked, images, pythons, compiled, indexes, other.
    """


@command.command("size")
@output.output()
def size() -> Result:
    """Show how much disk space the cache takes, by kind.

    Files that are also in environments, as hard links, count separately: they take their space once, and removing them
    from the cache frees nothing.
    """
    cache = _cache()
    found = usage(entries(cache))
    return plain(
        lambda: {"cache": str(cache), "kinds": found.kinds, "size_bytes": found.size_bytes},
        [f"cache: {cache}", *_table(found)],
    )


@command.command("prune")
@_kinds
@click.option(
    "--older-than", metavar="AGE", help="Remove what was not used for this time: 12h, 30d, 2w (default: 30d)."
)
@click.option(
    "--max-size", metavar="SIZE", help="Then remove the longest unused until the cache has at most this size: 20GB."
)
@DRY_RUN
@output.output()
def prune(kinds: Sequence[str], older_than: str | None, max_size: str | None, dry_run: bool) -> Result:
    """Remove what no lock, environment or image has used for some time.

    Used: written, read, or linked into an environment. Files that environments share are kept. With --max-size alone,
    age does not matter. Environments and loaded images stay intact.

    \b
    envspec cache prune
    envspec cache prune --older-than 7d --max-size 20GB
    envspec cache prune unpacked --older-than 0d --dry-run
    """
    age = older_than
    if age is None and max_size is None:
        age = "30d"
    cache = _cache()
    found = remove(
        cache,
        older_than=_age(age),
        max_bytes=size_of("--max-size", max_size, 1000, "500MB or 20GB"),
        kinds=kinds,
        now=datetime.now(timezone.utc),
        dry_run=dry_run,
    )
    return _removed(cache, found, dry_run=dry_run)


@command.command("clear")
@_kinds
@DRY_RUN
@output.output()
def clear(kinds: Sequence[str], dry_run: bool) -> Result:
    """Remove everything in the cache, or everything of some kinds. Environments and loaded images stay intact."""
    cache = _cache()
    return _removed(cache, remove(cache, kinds=kinds, now=datetime.now(timezone.utc), dry_run=dry_run), dry_run=dry_run)


@command.command("publish")
@LOCK
@click.argument("place", metavar="PLACE")
@output.output()
def publish(lock: str, place: str) -> Result:
    """Copy the wheels that were built for a lock to a place from which other machines get them.

    PLACE: a folder, or oci://REGISTRY/REPOSITORY. Other machines use these wheels instead of building them if
    ENVSPEC_BUILT_WHEELS is PLACE, the folder's URL, or index+URL of an index to which they were uploaded.

    \b
    envspec cache publish locks/train /srv/wheels
    envspec cache publish locks/train oci://ghcr.io/team/wheels
    """
    from envspec.io.tasks import run_interruptible
    from envspec.lockfile.folder import named_lock
    from envspec.operations import built_wheels

    locked = named_lock(lock)
    with TerminalReporter(locked.name) as reporter:
        found = run_interruptible(built_wheels.publish(locked, place, context_of({}, reporter)))
    rows = [{"filename": each.filename, "sha256": each.sha256, "size_bytes": each.size_bytes} for each in found]
    return plain(lambda: {"place": place, "wheels": rows}, [f"{place}: {each.filename}" for each in found])


def _cache() -> Path:
    from envspec.io.cache import cache_root
    from envspec.settings import read_settings

    return cache_root(read_settings(os.environ).environ)


def _removed(cache: Path, found: Removal, *, dry_run: bool) -> Result:
    from envspec.report.format import size

    for text in found.failed:
        output.warn(f"{text}: not removed")
    verb = "would remove" if dry_run else "removed"
    document = {
        "cache": str(cache),
        "dry_run": dry_run,
        "removed": found.removed.kinds,
        "removed_bytes": found.removed.size_bytes,
        "size_bytes": found.kept.size_bytes,
    }
    lines = [f"{verb} {size(found.removed.size_bytes)} from {cache}, {size(found.kept.size_bytes)} are left"]
    return plain(lambda: document, [*lines, *_table(found.removed)])


def _table(found: CacheUsage) -> list[str]:
    from envspec.report.format import listing, row, size, text_lines

    rows = []
    for each in found.kinds:
        count = "1 entry" if each.entries == 1 else f"{each.entries:,} entries"
        description = each.description
        if each.shared_bytes:
            description += f" ({size(each.shared_bytes)} shared with environments)"
        rows.append(row(each.kind, size(each.size_bytes), count, description))
    if len(rows) > 1:
        rows.append(row("all", size(found.size_bytes)))
    return list(text_lines(listing("", rows, "kind|size:number|entries:number|description"), terminal.width()))


def _age(text: str | None) -> timedelta | None:
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,6})\s*([hdw])", text.strip().lower())
    if not found:
        raise UsageError(f"--older-than {text}: not an age", hint="write hours, days or weeks: 12h, 30d, 2w")
    return timedelta(hours=int(found[1]) * _HOURS[found[2]])
