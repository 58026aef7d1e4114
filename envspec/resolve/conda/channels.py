"""Repodata of all channels, through one gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from msgspec import Struct

from envspec.errors import OfflineMiss, UsageError
from envspec.io.http_settings import timeouts
from envspec.io.http_types import Timeouts
from envspec.io.store import Store
from envspec.models import ChannelPart, CondaChannel, Platform
from envspec.origins import CHANNEL_ALIAS, origin_of
from envspec.resolve import cache
from envspec.resolve.conda.channel_client import (
    channel_client,
    channel_error,
    is_garbled,
    missing_platform,
    too_slow,
    without_credentials,
    without_login,
)
from envspec.resolve.conda.channel_relay import Relay, needs_relay, run_relay
from envspec.resolve.conda.records import record_name
from envspec.resolve.types import Channel, CondaRequest
from envspec.spec.dates import utc_text

if TYPE_CHECKING:
    import rattler
    from rattler import Gateway, RepoDataRecord, SparseRepoData

_T = TypeVar("_T")
_NOARCH: Final = "noarch"

# py-rattler's threads release Python's objects after they have returned a result; if the interpreter ends then, it
# crashes. With 0.28.0, 12 of 100 runs of four small scripts that ended after a solve died of signal 6 or 11, none of 40
# with a pause of 0.1 s; an error of this stage 1 of 60 without a pause, none of 60 with this one.
_EXIT_PAUSE_S: Final = 0.05


def is_in_time(record: RepoDataRecord, request: CondaRequest) -> bool:
    """Whether a record counts: by the time of its indexing, else of its build."""
    time = record.indexed_timestamp or record.timestamp
    if time is None:
        return request.undated
    return time <= request.cutoff_of(record_name(record)).astimezone(timezone.utc)


def in_time(records: Iterable[RepoDataRecord], request: CondaRequest) -> list[RepoDataRecord]:
    return [record for record in records if is_in_time(record, request)]


@asynccontextmanager
async def open_channels(
    channels: Iterable[Channel], cache: Path, environ: Mapping[str, str], *, offline: bool
) -> AsyncIterator[Channels]:
    """The channels of a run, in their order. cache: a folder of envspec's own, created if missing."""
    from rattler import Gateway, SourceConfig

    cache.mkdir(parents=True, exist_ok=True, mode=0o700)  # noqa: ASYNC240 (before anything else runs)
    waits, every = timeouts(environ, Timeouts()), tuple(channels)
    relayed = [channel for channel in every if needs_relay(channel, every)]
    action: Literal["force-cache-only", "cache-or-fetch"] = "force-cache-only" if offline else "cache-or-fetch"
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.sleep, _EXIT_PAUSE_S)
        after_relay = stack.enter_context(ExitStack())
        relay: Relay | None = None
        mirrors: Mapping[str, str] = {}
        if relayed and not offline:
            relay = await stack.enter_async_context(run_relay(relayed, environ))
            mirrors = relay.mirrors
        configs: dict[str, SourceConfig] = {}
        for channel in relayed:
            if origin_of(channel.address) != CHANNEL_ALIAS:
                # Shards may be on any server that their index names.
                configs[channel.url] = SourceConfig(cache_action=action, sharded_enabled=False)
        gateway = Gateway(
            cache_dir=cache,
            default_config=SourceConfig(cache_action=action),
            per_channel_config=configs,
            client=channel_client(waits, CHANNEL_ALIAS, [channel.address for channel in every], mirrors),
        )
        found = Channels(gateway, waits, relay)
        # Clearing waits for the locks that requests hold on rattler's cache: not while they wait for the relay.
        after_relay.callback(found.clear_garbled)
        yield found


def _without_secrets(channel: Channel) -> str:
    """The address that rattler gets, and writes into its cache; the relay uses the channel's own, with its token."""
    if channel.address.startswith("http"):
        return channel.url
    return without_login(channel.address)


class Channels:
    """Every channel of a run behind one gateway: a subdir is fetched and read once for all platforms.

    No method converts a whole channel into Python's objects; only `reachable` comes close.
    """

    def __init__(self, gateway: Gateway, waits: Timeouts, relay: Relay | None = None) -> None:
        self.gateway = gateway
        self._relay = relay
        self._waits = waits
        self._garbled: set[Channel] = set()
        self._sparse: dict[tuple[str, Path], SparseRepoData] = {}

    async def sources(self, request: CondaRequest, work: Path) -> list[rattler.Channel | SparseRepoData]:
        """What a solver chooses from, in order. work: a folder for records with a cutoff of their own."""
        found: list[rattler.Channel | SparseRepoData] = []
        if request.cutoffs:
            for number, channel in enumerate(request.channels):
                found += await self._sources_with_cutoff(request, channel, work / f"cutoffs-{number}")
        # All channels come after: the spec may take a name with a cutoff of its own from a later channel.
        for channel in request.channels:
            found += self._plain_sources(channel, request.platform)
        return found

    async def records(
        self, request: CondaRequest, names: Iterable[str], platform: Platform | None = None
    ) -> list[RepoDataRecord]:
        """All records of these names, `noarch` included, whenever they were built.

        Each name's from the channel that a requirement names for it, else from the first channel that has it (strict
        channel priority). platform: another one than the request's. Raises NetworkError if a channel cannot be read,
        UsageError if a folder of repodata cannot.
        """
        left = set(names)
        named = _named_channels(request.requirements)
        found: list[RepoDataRecord] = []
        for channel in request.channels:
            queried = _names_of(channel, left, named)
            if not queried:
                continue
            records = await self._query(channel, platform or request.platform, queried)
            found += records
            if channel is not request.channels[-1]:
                left -= set(map(record_name, records))
        return found

    async def reachable(self, request: CondaRequest) -> list[RepoDataRecord]:
        """All records of the names that the requirements can lead to, over any of their records."""
        found: list[RepoDataRecord] = []
        for channel in request.channels:
            found += await self._query(channel, request.platform, request.requirements, recursive=True)
        return found

    async def names(self, request: CondaRequest) -> list[str]:
        """Every name that the channels have for the platform. Slow on a large channel: for error messages only."""
        from rattler import PackageFormatSelection

        found: set[str] = set()
        for channel in request.channels:
            sources, subdirs = self._plain_sources(channel, request.platform), _subdirs(request.platform)
            if channel.repodata is not None:
                # rattler's gateway has no names of repodata in folders.
                for each in cast("list[SparseRepoData]", sources):
                    found.update(each.package_names(PackageFormatSelection.BOTH))
            else:
                query = self.gateway.names(_as_sources(sources), subdirs, channel_relations="disabled")
                for package in await self.await_query(query, [channel]):
                    found.add(package.normalized)
        return sorted(found)

    async def await_query(self, query: Awaitable[_T], channels: Sequence[Channel]) -> _T:
        """The result of rattler's query; raises NetworkError if a channel cannot be read within the time limit."""
        from rattler.exceptions import FetchRepoDataError, GatewayError, IoError

        try:
            return await asyncio.wait_for(query, self._waits.total_s)
        except asyncio.TimeoutError:
            raise too_slow(channels, self._waits) from None
        except (GatewayError, FetchRepoDataError, IoError) as error:
            if is_garbled(str(error)):
                self._garbled.update(channels)
            if self._relay is None:
                raise channel_error(str(error), channels, self._waits) from None
            for channel in channels:
                if channel.url in self._relay.errors:
                    raise self._relay.errors[channel.url] from None
            raise channel_error(self._relay.translate(str(error)), channels, self._waits) from None

    def refuse_missing(self, request: CondaRequest) -> None:
        """Refuse a channel without the request's platform, unless the spec declares that.

        rattler takes it as empty, and all of its names from the next channel. The last one has none after it.
        """
        subdir = request.platform.value
        for channel in request.channels[:-1]:
            if channel.repodata is not None or (channel.only and subdir not in channel.only):
                continue
            is_missing = self._relay is not None and (channel.url, subdir) in self._relay.missing
            if channel.is_folder:
                folder = Path(url2pathname(urlsplit(channel.address).path))
                is_missing = not (folder / subdir / "repodata.json").is_file()
            if is_missing:
                raise missing_platform(channel, subdir)

    def clear_garbled(self) -> None:
        """Remove channels with an answer that cannot be read, which rattler has cached all the same."""
        self._clear(self._garbled)

    def _clear(self, channels: Iterable[Channel], subdir: str | None = None) -> None:
        """Remove whole channels from the cache on disk, or one subdir from memory."""
        import rattler

        subdirs = [rattler.Subdir(subdir)] if subdir else None
        for channel in channels:
            if channel.repodata is None:
                address = rattler.Channel(_without_secrets(channel))
                self.gateway.clear_repodata_cache(address, subdirs, clear_disk=subdir is None)

    def release(self, request: CondaRequest) -> None:
        """Free the memory of the records of the request's platform, not `noarch`'s; later queries read them again."""
        subdir = request.platform.value
        self._clear(request.channels, subdir)
        self._sparse = {key: sparse for key, sparse in self._sparse.items() if key[1].parent.name != subdir}

    async def _query(
        self, channel: Channel, platform: Platform, specs: Iterable[str], *, recursive: bool = False
    ) -> list[RepoDataRecord]:
        sources, subdirs = _as_sources(self._plain_sources(channel, platform)), _subdirs(platform)
        query = self.gateway.query(sources, subdirs, list(specs), recursive=recursive, channel_relations="disabled")
        found: list[RepoDataRecord] = []
        for records in await self.await_query(query, [channel]):
            found += records
        return found

    def _plain_sources(self, channel: Channel, platform: Platform) -> list[rattler.Channel | SparseRepoData]:
        import rattler

        if channel.repodata is None:
            return [rattler.Channel(_without_secrets(channel))]
        sources: list[rattler.Channel | SparseRepoData] = []
        for file in _repodata_files(channel):
            if file.parent.name in _subdirs(platform):
                key = channel.url, file
                if key not in self._sparse:
                    self._sparse[key] = _sparse(*key)
                sources.append(self._sparse[key])
        return sources

    async def _sources_with_cutoff(self, request: CondaRequest, channel: Channel, folder: Path) -> list[SparseRepoData]:
        """The records of the names that have a cutoff of their own, dated at the cutoff of all others.

        rattler has one cutoff for all names, and a source in Python costs its calls. So these few records go to files
        of a channel before the real ones: with strict priority, it alone provides them. The chosen ones are then looked
        up in the real channel by their file name.
        """
        by_subdir: dict[str, dict[str, Any]] = {}
        names = _names_of(channel, request.cutoffs, _named_channels(request.requirements))
        if not names:
            return []
        for record in await self._query(channel, request.platform, names):
            if is_in_time(record, request):
                fields = {**json.loads(record.to_json()), "timestamp": int(request.as_of.timestamp() * 1000)}
                by_subdir.setdefault(record.subdir, {})[record.file_name] = fields
        sources: list[SparseRepoData] = []
        for subdir, records in sorted(by_subdir.items()):
            sources.append(_sparse(folder.as_uri(), write_repodata(folder, subdir, records)))
        return sources


def write_repodata(folder: Path, subdir: str, records: Mapping[str, Any]) -> Path:
    """Write `<subdir>/repodata.json`. records: the fields of each, by file name."""
    file = folder / subdir / "repodata.json"
    file.parent.mkdir(parents=True)
    conda: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, fields in records.items():
        group = conda if name.endswith(".conda") else others
        group[name] = fields
    text = json.dumps({"info": {"subdir": subdir}, "packages": others, "packages.conda": conda})
    file.write_text(text, encoding="utf-8")
    return file


def _named_channels(requirements: Iterable[str]) -> dict[str, str]:
    """The URLs of the channels in requirements such as `nvidia::cuda-toolkit`."""
    from rattler import MatchSpec

    found: dict[str, str] = {}
    for text in requirements:
        if "::" in text or "[" in text:
            spec = MatchSpec(text)
            if spec.channel:
                found[spec.name.normalized] = without_credentials(spec.channel.base_url)
    return found


def _names_of(channel: Channel, names: Iterable[str], named: Mapping[str, str]) -> list[str]:
    """The names that may come from a channel, sorted. named: the channels of some, as `_named_channels`."""
    return sorted(name for name in names if named.get(name, channel.url) == channel.url)


def locked_channel(channel: Channel) -> CondaChannel:
    """The channel as the lock records it; for a part of it, with the number of records and a SHA-256 of the folder, as
    `sha256sum */repodata.json | sha256sum` in the C locale.
    """
    if channel.repodata is None:
        return CondaChannel(channel.name, channel.url)
    from rattler import PackageFormatSelection

    count, lines = 0, ""
    for file in _repodata_files(channel):
        count += _sparse(channel.url, file).record_count(PackageFormatSelection.BOTH)
        lines += f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.parent.name}/repodata.json\n"
    return CondaChannel(channel.name, channel.url, ChannelPart(count, hashlib.sha256(lines.encode()).hexdigest()))


def _as_sources(sources: Sequence[rattler.Channel | SparseRepoData]) -> list[rattler.Channel]:
    """py-rattler accepts SparseRepoData wherever it accepts a Channel, but its types do not."""
    return cast("list[rattler.Channel]", list(sources))


def _subdirs(platform: Platform) -> tuple[Any, ...]:
    return platform.value, _NOARCH


def _sparse(url: str, file: Path) -> SparseRepoData:
    import rattler

    try:
        return rattler.SparseRepoData(rattler.Channel(url), file.parent.name, file)
    except OSError as error:
        raise UsageError(f"{file}: not a repodata.json ({error})", hint="download the file again") from error


def _repodata_files(channel: Channel) -> list[Path]:
    """A folder's files, sorted by platform."""
    found = channel.repodata.glob("*/repodata.json") if channel.repodata else ()
    files = sorted(found, key=lambda file: file.parent.name)
    if not files:
        raise UsageError(
            f"repodata of channel {channel.name}: {channel.repodata} has no <subdir>/repodata.json",
            hint="name the folder that contains linux-64/repodata.json and noarch/repodata.json",
        )
    return files


class ChannelTimestamps(Struct, frozen=True):
    """When these channels were last read for these platforms, in `store`. Folders have no such time."""

    store: Store
    channels: Sequence[Channel]
    platforms: Sequence[Platform]

    def save(self, time: datetime) -> None:
        for key, _ in self._keys():
            self.store.put_answer(key, {"read": time.isoformat()})

    def check(self, cutoff: datetime) -> None:
        """Refuse a cutoff after the last time. For a channel that was never read, rattler raises."""
        for key, channel in self._keys():
            stored = self.store.answer(key)
            if stored and (read := datetime.fromisoformat(stored["read"])) < cutoff:
                raise OfflineMiss(
                    f"the state of channel {channel.name} on {utc_text(cutoff)} (the last is from {utc_text(read)})",
                    hint="run once with a network, or set an earlier as_of",
                )

    def _keys(self) -> Iterator[tuple[str, Channel]]:
        for channel in self.channels:
            if not channel.is_folder:
                for platform in self.platforms:
                    yield cache.key_of(["conda channel", channel.url, platform.value]), channel
