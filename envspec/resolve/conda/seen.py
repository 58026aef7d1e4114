"""When channels were last asked: a cache tells of a moment only what was in the channel by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from envspec.errors import NetworkError
from envspec.model import Platform
from envspec.resolve import memory
from envspec.resolve.conda.question import Channel
from envspec.resolve.index.store import Store


@dataclass(frozen=True, slots=True)
class Seen:
    """The moments at which these channels were asked for these platforms, kept in `store`. Folders need none."""

    store: Store
    channels: Sequence[Channel]
    platforms: Sequence[Platform]

    def remember(self, moment: datetime) -> None:
        for key, _ in self._keys():
            self.store.remember_answer(key, {"asked": moment.isoformat()})

    def check(self, wanted: datetime) -> None:
        """Refuse to answer for a moment after the last look.

        Raises:
            NetworkError: names the channel and both moments. One that was never asked is rattler's to tell.
        """
        for key, channel in self._keys():
            told = self.store.answer(key)
            asked = datetime.fromisoformat(told["asked"]) if told else wanted
            if asked < wanted:
                raise NetworkError(
                    f"offline, and what channel {channel.name} had on {_text(wanted)} is not in the cache, "
                    f"which is of {_text(asked)}",
                    hint="run once without --offline, or ask for an earlier as_of",
                )

    def _keys(self) -> list[tuple[str, Channel]]:
        return [
            (memory.key_of(["conda channel", channel.url, platform.value]), channel)
            for channel in self.channels
            if not channel.is_folder
            for platform in self.platforms
        ]


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
