"""The date of the archives from which apt installs: pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta, timezone
from typing import Final

from envspec.base_image.cuda import REPOSITORIES, UNDATED
from envspec.facts import Facts
from envspec.models import BaseImage, Decision, ImageSettings
from envspec.reasons import reason
from envspec.spec import Compiler, Spec
from envspec.spec.dates import utc_text
from envspec.structs import replace

_DAY: Final = timedelta(days=1)
#: Nobody serves older snapshots than Debian's first.
_FIRST: Final = datetime(2005, 3, 13, tzinfo=timezone.utc)


def date_apt(
    settings: ImageSettings,
    spec: Spec,
    as_of: datetime,
    bases: Sequence[BaseImage],
    facts: Facts,
    newest: datetime,
) -> tuple[ImageSettings, tuple[Decision, ...]]:
    """The settings with the date of apt's archives, and the reason for it; unchanged if apt installs nothing.

    settings: of `decide_settings`. as_of: of the lock. bases: of its platforms, with the times of their creation.
    newest: see `archive_time`.
    """
    if not settings.apt:
        return settings, ()
    wanted = spec.system.snapshot if spec.system else None
    if wanted is False:
        why = (reason("apt-undated"),)
        return settings, (Decision("image.snapshot", "none", why, "the spec: [system] snapshot"),)
    if wanted is not None:
        why = (reason("in-spec"),)
        decision = Decision("image.snapshot", utc_text(wanted), why, "the spec: [system] snapshot")
    else:
        wanted, decision = _default(as_of, bases, facts, newest)
    undated = UNDATED if any(base.repository in REPOSITORIES for base in bases) else ()
    return replace(settings, snapshot=wanted, undated=undated), (decision,)


def _default(as_of: datetime, bases: Sequence[BaseImage], facts: Facts, newest: datetime) -> tuple[datetime, Decision]:
    times = {pinned.created for base in bases for pinned in base.digests}
    created = max(filter(None, times), default=None)
    found = archive_time(as_of, created, newest)
    why, source = [reason("apt-day-before")], "[env] as_of"
    if created is not None and found > archive_time(as_of, None, newest):
        why, source = [reason("apt-after-base", created=utc_text(created))], "its config"
    elif None in times:
        why.append(reason("apt-base-age"))
    for base in bases:
        row = facts.system(base.os)
        if row is None or row.snapshots is None:
            continue
        first = datetime.combine(row.snapshots, time(), timezone.utc)
        if first > found:
            found, why, source = first, [reason("apt-first")], row.source
    return found, Decision("image.snapshot", utc_text(found), tuple(why), source)


def follows_base(spec: Spec) -> bool:
    """Whether the date of apt's archives may follow from the base image's creation."""
    if spec.system is not None and spec.system.snapshot is not None:
        return False
    return spec.image.compiler is not Compiler.NONE or spec.system is not None or spec.services is not None


def archive_time(as_of: datetime, created: datetime | None, newest: datetime) -> datetime:
    """00:00 UTC of the day before `as_of`; of the day after the base image was created, if that is later.

    The state of an archive is final after a day: services that keep snapshots need hours to import it. With archives
    older than the base, packages that belong to newer ones of the base can't be installed.

    newest: the last midnight of which there is a final state: of the time of locking, or, if the same lock is made or
    checked again, the time that it records. It only matters for a base image that is less than two days old when it is
    locked: the result is never more than a day before its creation.
    """
    before = _midnight(max(as_of, _FIRST) - _DAY)
    if created is None or created <= before:
        return before
    after = min(_midnight(created + _DAY), _midnight(newest))
    return max(before, after, _midnight(created - _DAY))


def newest_archive(now: datetime) -> datetime:
    """The last midnight of which archives have a final state."""
    return _midnight(now - _DAY)


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
