"""Dates of a spec: a time, a day, or an age such as `7 days ago`.

On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from typing import Final, NamedTuple

_AGE: Final = re.compile(r"([0-9]{1,4}) (hour|day|week)s? ago")


class Age(NamedTuple):
    """How far before the time of a lock: `7 days ago`. text: as the spec has it."""

    text: str
    span: timedelta

    def before(self, now: datetime) -> datetime:
        """The time that is meant; of days and weeks its day's start in UTC: all who lock on one day get the same."""
        time = (now - self.span).astimezone(timezone.utc).replace(microsecond=0)
        return time if "hour" in self.text else time.replace(hour=0, minute=0, second=0)

    def __str__(self) -> str:
        return self.text


def read_time(value: object) -> datetime:
    """A TOML time or date, or the text of one. A date is its first second, in UTC.

    Raises:
        ValueError: none of these, or a time without a time zone. OverflowError: outside the years 1 to 9999 in UTC.
    """
    if isinstance(value, str):
        text = f"{value}T00:00:00+00:00"
        if len(value) > 10:
            # Python 3.10 reads no Z.
            text = value.replace("Z", "+00:00")
        value = datetime.fromisoformat(text)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("no time zone")
        return value.astimezone(timezone.utc)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    raise ValueError("not a time")


def read_as_of(value: object) -> datetime | Age:
    """As `read_time`, or an age."""
    if isinstance(value, str) and (found := _AGE.fullmatch(value)):
        return Age(found[0], timedelta(**{f"{found[2]}s": int(found[1])}))
    return read_time(value)


def time_text(value: datetime) -> str:
    """RFC 3339 in UTC, with a fraction of a second only where there is one.

    Raises:
        ValueError: `value` has no time zone, so it is no point in time.
    """
    if value.tzinfo is None:
        raise ValueError(f"it has no time zone: {value.isoformat()}")
    utc = value.astimezone(timezone.utc).replace(tzinfo=None)
    return utc.isoformat() + "Z"


def utc_text(time: datetime) -> str:
    """RFC 3339 in UTC, in whole seconds."""
    return time_text(time.replace(microsecond=0))
