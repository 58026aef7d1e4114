"""A relay on loopback between rattler and channels, so that repodata comes from the channels' own servers.

rattler follows redirects to any server, looks logins up by host alone, and takes a platform that a channel answers 404
for as empty, so that its names come from the next channel. Its requests go to the relay, which sends them by `Http`: no
redirect leads to another origin, a login goes to its own origin only, and each 404 is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from envspec.credentials import channels_without_credentials
from envspec.errors import NetworkError
from envspec.io.http import Http, open_http
from envspec.io.http_server import METHODS, NOT_ALLOWED, Answer, BrokenAnswer, Request, serve_requests
from envspec.io.http_settings import keeps_logins
from envspec.io.loopback import listening
from envspec.origins import CHANNEL_ALIAS, Bounds, origin_of
from envspec.resolve.conda.channel_client import (
    login_of,
    not_repodata,
    status_error,
    without_credentials,
    without_login,
)
from envspec.resolve.types import Channel

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_REPODATA: Final = "repodata.json"
#: Repodata is at least `{"packages":{}}`. What is smaller than `_SMALL_BYTES` and lacks the word is an error's page.
_WORD: Final = b'"packages'
_SMALL_BYTES: Final = 4096
_REQUEST_HEADERS: Final = ("If-None-Match", "If-Modified-Since", "Range", "Cache-Control")
_ANSWER_HEADERS: Final = (
    *("ETag", "Last-Modified", "Cache-Control"),
    *("Content-Type", "Content-Range", "Accept-Ranges"),
)
#: A status that rattler does not retry: the relay's own retries are over.
_FAILED: Final = 424


def needs_relay(channel: Channel, channels: Sequence[Channel]) -> bool:
    """Whether a channel is read through the relay.

    Not the last one on the public server of channels, usually conda-forge: no channel comes after it that could replace
    it, and it is the largest. A channel with a token is, since rattler would cache the token.
    """
    is_public = origin_of(channel.address) == CHANNEL_ALIAS and without_login(channel.address) == channel.url
    is_remote = channel.address.startswith("http") and channel.repodata is None
    return is_remote and not (is_public and channel == channels[-1])


class Relay:
    """Requests to channels, and their errors.

    mirrors: for rattler's client, the address on loopback of each channel; other channels of the same server are not
        read through the relay.
    errors: by a channel's URL.
    missing: URL and platform of channels that answered 404.
    """

    def __init__(self, http: Http, channels: Sequence[Channel], address: str, token: str) -> None:
        self._http = http
        # The longest first: a channel's address may begin with another's.
        self._channels = sorted(channels, key=lambda channel: -len(channel.url))
        self.mirrors: dict[str, str] = {}
        for number, url in enumerate(sorted({channel.url for channel in channels})):
            self.mirrors[f"{url}/"] = f"{address}/{token}/{number}/"
        self.errors: dict[str, NetworkError] = {}
        self.missing: set[tuple[str, str]] = set()

    def translate(self, text: str) -> str:
        """rattler's message, with the channels' own addresses."""
        for url, address in self.mirrors.items():
            text = text.replace(address, url)
        return text

    def _address_behind(self, address: str) -> str:
        """The channel's address for one of the relay's.

        Empty for another program or user of this machine: only rattler's client has the token.
        """
        for mirrored, prefix in self.mirrors.items():
            if address.startswith(prefix):
                return mirrored + address[len(prefix) :]
        return ""

    def _channel_of(self, url: str) -> Channel | None:
        """The channel of a URL without percent signs."""
        for channel in self._channels:
            if url.startswith(f"{unquote(channel.url)}/"):
                return channel
        return None

    async def answer(self, request: Request) -> Answer | None:
        """The answer to rattler; None: it was passed on piece by piece."""
        url = self._address_behind(f"http://{request.header('host')}{request.target}")
        public = unquote(without_credentials(url))
        channel = self._channel_of(public)
        if channel is None:
            return Answer(404)
        if request.method not in METHODS:
            return NOT_ALLOWED
        subdir, _, name = public[len(unquote(channel.url)) + 1 :].partition("/")
        if channel.only and subdir not in (*channel.only, "noarch"):
            return Answer(404)
        # The path below the channel's address, as rattler encoded it.
        url = f"{without_login(channel.address).rstrip('/')}/{url.split('/', channel.url.count('/') + 1)[-1]}"
        try:
            status = await self._relay_request(request, channel, url, name)
        except NetworkError as error:
            # A channel's address may contain a token, and so may those that it redirects to.
            error.message = channels_without_credentials(error.message)
            self.errors[channel.url] = error
            return Answer(_FAILED)
        if status == 404 and name == _REPODATA:
            self.missing.add((channel.url, subdir))
        return Answer(status) if request.method == "HEAD" else None

    async def _relay_request(self, request: Request, channel: Channel, url: str, name: str) -> int:
        """The status of the answer; that to a GET has been passed on."""
        from aiohttp import ClientError

        headers = _relayed_headers(request, channel, url)
        hint = f"write its address on {{}} into [conda] channels in place of {channel.name}, if the channel moved there"
        own = None
        if origin_of(url) != CHANNEL_ALIAS:
            # A channel's name in a spec refers to the public server, wherever that keeps its files.
            own = Bounds(f"channel {channel.name}", (channel.address,), hint)
        if request.method == "HEAD":
            found = await self._http.request("HEAD", url, headers=headers, within=own)
            return _relayed_status(found.status, url)

        async def use(answer: ClientResponse) -> int:
            status = _relayed_status(answer.status, url)
            sent = {key: answer.headers[key] for key in _ANSWER_HEADERS if key in answer.headers}
            length = None
            if "Content-Encoding" not in answer.headers:
                length = answer.content_length
            first = b""
            while len(first) < _SMALL_BYTES and (chunk := await answer.content.readany()):
                first += chunk
            if name == _REPODATA and status == 200 and len(first) < _SMALL_BYTES and _WORD not in first:
                raise not_repodata(url)
            request.begin(status, sent, length)
            try:
                await request.send(first)
                async for chunk in answer.content.iter_any():
                    await request.send(chunk)
            except (ClientError, asyncio.TimeoutError, OSError) as error:
                # As the channel's own server did.
                raise BrokenAnswer from error
            return status

        return await self._http.stream(url, use, headers=lambda: {"Accept-Encoding": "gzip", **headers}, within=own)


def _relayed_headers(request: Request, channel: Channel, url: str) -> dict[str, str]:
    """The headers of the relayed request. Its login is the channel's own on its origin, else from rattler's store."""
    headers: dict[str, str] = {}
    for key in _REQUEST_HEADERS:
        if value := request.header(key.lower()):
            headers[key] = value
    login = None
    if origin_of(channel.address) == origin_of(url):
        login = login_of(channel.address)
    if login is None and keeps_logins(url):
        login = request.header("authorization")
    if login:
        headers["Authorization"] = login
    return headers


def _relayed_status(status: int, url: str) -> int:
    """The status for rattler: of success, or of missing files and platforms. Any other is a NetworkError."""
    # 501: some servers send it for an index of shards, which they do not support.
    if status == 404 or 200 <= status < 400 or (status == 501 and "_shards" in url):
        return min(status, 404)
    raise status_error(without_credentials(url), status)


@asynccontextmanager
async def run_relay(channels: Sequence[Channel], environ: Mapping[str, str]) -> AsyncIterator[Relay]:
    """Serve these channels on loopback until the context ends."""
    with listening() as loopback:
        async with open_http(environ) as http:
            address = f"http://127.0.0.1:{loopback.socket.getsockname()[1]}"
            relay = Relay(http, channels, address, loopback.token)
            async with serve_requests(loopback.socket, relay.answer):
                yield relay
