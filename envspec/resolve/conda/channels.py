"""Repodata of all channels, through one gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envspec.errors import NetworkError, UsageError
from envspec.io.http_settings import timeouts
from envspec.io.http_types import Timeouts
from envspec.io.store import Store
from envspec.models import ChannelPart, CondaChannel, Platform
from envspec.origins import CHANNEL_ALIAS, origin_of
from envspec.resolve import cache
from envspec.resolve.conda.channel_client import (
    channel_client,
    channel_fault,
    is_garbled,
    missing_platform,
    too_slow,
    without_credentials,
    without_login,
)
from envspec.resolve.conda.channel_relay import Relay, needs_relay, relaying
from envspec.resolve.types import Channel, CondaRequest

if TYPE_CHECKING:
    import rattler
    from rattler import Gateway, RepoDataRecord, SparseRepoData


_T = TypeVar("_T")
_NOARCH: Final = "noarch"

# py-rattler's threads let go of Python's objects after they have given their answer; where the interpreter ends in
# that moment, it crashes. With 0.28.0, 12 of 100 runs of four small scripts that ended after a solve died of signal 6
# or 11, none of 40 with a pause of 0.1 s; a refusal of this stage 1 of 60 without a pause, none of 60 with this one.
_LAST_BREATH_S: Final = 0.05


def part_sha256(folder: Path) -> str:
    """What stands for a folder of rows: SHA-256 over a line `<sha256 of the file>  <subdir>/repodata.json` for each.

    Sorted by subdir, each line ended by a newline: what `sha256sum */repodata.json | sha256sum` says in the C locale.
    """
    hashes = ((hashlib.sha256(file.read_bytes()).hexdigest(), file.parent.name) for file in _files(folder))
    return hashlib.sha256(
        "".join(f"{sha256}  {subdir}/repodata.json\n" for sha256, subdir in hashes).encode()
    ).hexdigest()


def is_in_time(row: RepoDataRecord, cut: datetime, *, undated: bool) -> bool:
    """Whether a row may be considered: when it came into the index counts, else when it was built."""
    moment = row.indexed_timestamp or row.timestamp
    return undated if moment is None else moment <= cut.astimezone(timezone.utc)


@asynccontextmanager
async def opened(
    channels: Iterable[Channel], cache: Path, environ: Mapping[str, str], *, offline: bool
) -> AsyncIterator[Channels]:
    """The channels of a run, in their order, for its length.

    cache: a folder of envspec's own; made where it is not there.
    """
    from rattler import Gateway, SourceConfig

    _private(cache)
    waits, known = timeouts(environ, Timeouts()), tuple(channels)
    relayed = [channel for channel in known if needs_relay(channel, known)]
    action: Literal["force-cache-only", "cache-or-fetch"] = "force-cache-only" if offline else "cache-or-fetch"
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.sleep, _LAST_BREATH_S)
        relay = None if offline or not relayed else await stack.enter_async_context(relaying(relayed, environ))
        gateway = Gateway(
            cache_dir=cache,
            default_config=SourceConfig(cache_action=action),
            # Shards may be on any server that their index names.
            per_channel_config={
                channel.url: SourceConfig(cache_action=action, sharded_enabled=False)
                for channel in relayed
                if origin_of(channel.address) != CHANNEL_ALIAS
            },
            client=channel_client(
                waits, CHANNEL_ALIAS, [channel.address for channel in known], relay.mirrors if relay else {}
            ),
        )
        yield Channels(gateway, waits, relay)


def _without_secrets(channel: Channel) -> str:
    """The address that rattler gets, and writes into its cache. The relay requests a channel's own, with its token."""
    return channel.url if channel.address.startswith("http") else without_login(channel.address)


def _private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


class Channels:
    """Every channel of a run behind one gateway: a subdir is fetched and read once, however many platforms ask.

    Nothing here turns a whole channel into Python's objects; only `reachable` comes near it.
    """

    def __init__(self, gateway: Gateway, waits: Timeouts, relay: Relay | None = None) -> None:
        self.gateway = gateway
        self._relay = relay
        self._waits = waits
        self._parts: dict[tuple[str, Path], SparseRepoData] = {}

    async def sources(self, request: CondaRequest, work: Path) -> list[rattler.Channel | SparseRepoData]:
        """What a solver is to look at, the first first. work: a folder for rows that have a moment of their own."""
        found: list[rattler.Channel | SparseRepoData] = []
        for place, channel in enumerate(request.channels if request.cuts else ()):
            found += await self._with_own_moment(request, channel, work / f"moments-{place}")
        # Not before: a name with a moment of its own may be a later channel's, by the spec's own words.
        for channel in request.channels:
            found += self._plain(channel, request.platform)
        return found

    async def rows(
        self, request: CondaRequest, names: Iterable[str], platform: Platform | None = None
    ) -> list[RepoDataRecord]:
        """All rows of these names, `noarch` too, whenever they were built.

        Each name's from the channel that a requirement names for it, else from the first channel that has it, as strict
        channel priority wants it. platform: another one than the request's.

        Raises:
            NetworkError: a channel can't be read.
            UsageError: a folder of rows can't.
        """
        left = set(names)
        named = _named_channels(request.requirements)
        found: list[RepoDataRecord] = []
        for channel in request.channels:
            if wanted := sorted(name for name in left if named.get(name, channel.url) == channel.url):
                rows = await self._query(channel, platform or request.platform, wanted)
                found += rows
                left -= {row.name.normalized for row in rows} if channel is not request.channels[-1] else set()
        return found

    async def reachable(self, request: CondaRequest) -> list[RepoDataRecord]:
        """All rows of the names that the requirements can lead to, over any of their rows."""
        found: list[RepoDataRecord] = []
        for channel in request.channels:
            found += await self._query(channel, request.platform, request.requirements, recursive=True)
        return found

    async def names(self, request: CondaRequest) -> list[str]:
        """Every name that the channels have for the platform. Slow on a large channel: for an error's sake only."""
        from rattler import PackageFormatSelection

        found: set[str] = set()
        for channel in request.channels:
            if channel.rows is not None:
                # rattler's gateway has no names for rows that are handed to it.
                files = (file for file in _rows_of(channel) if file.parent.name in _subdirs(request.platform))
                parts = (self._part(channel.url, file) for file in files)
                found |= {name for part in parts for name in part.package_names(PackageFormatSelection.BOTH)}
                continue
            asked = self.gateway.names(
                _as_sources(self._plain(channel, request.platform)),
                _subdirs(request.platform),
                channel_relations="disabled",
            )
            found |= {name.normalized for name in await self.answered(asked, [channel])}
        return sorted(found)

    async def answered(self, asked: Awaitable[_T], channels: Sequence[Channel]) -> _T:
        """What rattler answers, its faults in envspec's words.

        Raises:
            NetworkError: a channel can't be read, or isn't within the time that the environment allows.
        """
        from rattler.exceptions import FetchRepoDataError, GatewayError, IoError

        try:
            return await asyncio.wait_for(asked, self._waits.total_s)
        except asyncio.TimeoutError:
            raise too_slow(channels, self._waits) from None
        except (GatewayError, FetchRepoDataError, IoError) as fault:
            if is_garbled(str(fault)):
                self._forget(channels)
            if self._relay is None:
                raise channel_fault(str(fault), channels, self._waits) from None
            known = [self._relay.faults[channel.url] for channel in channels if channel.url in self._relay.faults]
            told = self._relay.translated(str(fault))
            raise known[0] if known else channel_fault(told, channels, self._waits) from None

    def refuse_missing(self, request: CondaRequest) -> None:
        """Refuse a channel that lacks the request's platform, unless the spec says that it does.

        To rattler it is an empty one, and all of its names are the next channel's. The last one has none after it.
        """
        subdir = request.platform.value
        for channel in request.channels[:-1]:
            if channel.rows is not None or (channel.only and subdir not in channel.only):
                continue
            if self._relay is not None and (channel.url, subdir) in self._relay.missing:
                raise missing_platform(channel, subdir)
            if channel.is_folder:
                folder = Path(url2pathname(urlsplit(channel.address).path))
                if not (folder / subdir / "repodata.json").is_file():
                    raise missing_platform(channel, subdir)

    def _forget(self, channels: Sequence[Channel]) -> None:
        """Take the channels out of the cache: an answer that can't be read would be found there the next time too."""
        import rattler

        for channel in channels:
            if channel.rows is None:
                address = rattler.Channel(_without_secrets(channel))
                self.gateway.clear_repodata_cache(address, clear_disk=True)

    def forget(self, request: CondaRequest) -> None:
        """Let go of the rows of the request's platform; `noarch` stays. Who asks for them again has them read again."""
        import rattler

        subdir = request.platform.value
        for channel in request.channels:
            if channel.rows is None:
                address = rattler.Channel(_without_secrets(channel))
                self.gateway.clear_repodata_cache(address, [rattler.Subdir(subdir)])
        self._parts = {key: part for key, part in self._parts.items() if key[1].parent.name != subdir}

    async def _query(
        self, channel: Channel, platform: Platform, specs: Iterable[str], *, recursive: bool = False
    ) -> list[RepoDataRecord]:
        asked = self.gateway.query(
            _as_sources(self._plain(channel, platform)),
            _subdirs(platform),
            list(specs),
            recursive=recursive,
            channel_relations="disabled",
        )
        return [row for rows in await self.answered(asked, [channel]) for row in rows]

    def _plain(self, channel: Channel, platform: Platform) -> list[rattler.Channel | SparseRepoData]:
        import rattler

        if channel.rows is None:
            return [rattler.Channel(_without_secrets(channel))]
        files = [file for file in _rows_of(channel) if file.parent.name in _subdirs(platform)]
        return [self._part(channel.url, file) for file in files]

    def _part(self, url: str, file: Path) -> SparseRepoData:
        key = url, file
        if key not in self._parts:
            self._parts[key] = _sparse(url, file)
        return self._parts[key]

    async def _with_own_moment(self, request: CondaRequest, channel: Channel, folder: Path) -> list[SparseRepoData]:
        """The rows of the names that have a moment of their own, all dated as if the moment of the others were theirs.

        rattler knows one moment for all names, and a source in Python costs its calls. So these few rows go to files
        of a channel that stands before the real ones: with strict priority it is then theirs alone. What is picked here
        is looked up in the real channel by its file name.
        """
        by_subdir: dict[str, dict[str, Any]] = {}
        named = _named_channels(request.requirements)
        names = sorted(name for name in request.cuts if named.get(name, channel.url) == channel.url)
        for row in await self._query(channel, request.platform, names) if names else ():
            if is_in_time(row, request.cut_of(row.name.normalized), undated=request.undated):
                fields = json.loads(row.to_json())
                fields |= {"timestamp": int(request.as_of.timestamp() * 1000)}
                by_subdir.setdefault(row.subdir, {})[row.file_name] = fields
        found = []
        for subdir, rows in sorted(by_subdir.items()):
            file = folder / subdir / "repodata.json"
            file.parent.mkdir(parents=True)
            conda = {name: row for name, row in rows.items() if name.endswith(".conda")}
            others = {name: row for name, row in rows.items() if name not in conda}
            file.write_text(json.dumps({"info": {"subdir": subdir}, "packages": others, "packages.conda": conda}))
            found.append(_sparse(folder.as_uri(), file))
        return found


def _named_channels(requirements: Iterable[str]) -> dict[str, str]:
    """The URLs of the channels that requirements name: `nvidia::cuda-toolkit`."""
    from rattler import MatchSpec

    specs = (MatchSpec(text) for text in requirements if "::" in text or "[" in text)
    return {spec.name.normalized: without_credentials(spec.channel.base_url) for spec in specs if spec.channel}


def locked_channel(channel: Channel) -> CondaChannel:
    """What a lock says of a channel; of a part of it, how many rows the part has and its SHA-256.

    Raises:
        UsageError: the folder of rows can't be read.
    """
    if channel.rows is None:
        return CondaChannel(channel.name, channel.url)
    from rattler import PackageFormatSelection

    rows = sum(_sparse(channel.url, file).record_count(PackageFormatSelection.BOTH) for file in _rows_of(channel))
    return CondaChannel(channel.name, channel.url, ChannelPart(rows, part_sha256(channel.rows)))


def _as_sources(sources: Sequence[rattler.Channel | SparseRepoData]) -> list[rattler.Channel]:
    """The sources as py-rattler's types want them: it takes SparseRepoData wherever it takes a Channel."""
    return cast("list[rattler.Channel]", list(sources))


def _subdirs(platform: Platform) -> tuple[Any, ...]:
    return platform.value, _NOARCH


def _sparse(url: str, file: Path) -> SparseRepoData:
    import rattler

    try:
        return rattler.SparseRepoData(rattler.Channel(url), file.parent.name, file)
    except OSError as fault:
        raise UsageError(f"{file}: not a repodata.json ({fault})", hint="get the file again, whole") from fault


def _rows_of(channel: Channel) -> list[Path]:
    files = _files(channel.rows) if channel.rows else []
    if not files:
        raise UsageError(
            f"the rows of channel {channel.name}: {channel.rows} has no <subdir>/repodata.json",
            hint="name the folder that holds linux-64/repodata.json and noarch/repodata.json",
        )
    return files


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/repodata.json"), key=lambda file: file.parent.name)


@dataclass(frozen=True, slots=True)
class Seen:
    """The moments at which these channels were asked for these platforms, kept in `store`. Folders need none."""

    store: Store
    channels: Sequence[Channel]
    platforms: Sequence[Platform]

    def remember(self, moment: datetime) -> None:
        for key, _ in self._keys():
            self.store.put_answer(key, {"asked": moment.isoformat()})

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
            (cache.key_of(["conda channel", channel.url, platform.value]), channel)
            for channel in self.channels
            if not channel.is_folder
            for platform in self.platforms
        ]


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
