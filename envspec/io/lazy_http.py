"""HTTP for indexes: plain answers without aiohttp, everything else by `Http`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import IO

from envspec.io import http_settings
from envspec.io.http import PAGE_BYTES, PER_HOST, UNCHANGED, ZIPPED, Http, open_http
from envspec.io.http_types import Admit, Response, Timeouts
from envspec.io.plain_http import NotPlain, PlainHttp
from envspec.origins import Bounds


class LazyHttp:
    """The requests of an `IndexClient`, each as `Http` has it, which is opened for the first that is not plain."""

    def __init__(self, environ: Mapping[str, str], timeouts: Timeouts, stack: AsyncExitStack) -> None:
        self._environ = environ
        self._timeouts = http_settings.timeouts(environ, timeouts)
        self._stack = stack
        self._plain = PlainHttp(environ, self._timeouts, PER_HOST)
        self._http: Http | None = None
        self._opening = asyncio.Lock()
        stack.callback(self._plain.close)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = PAGE_BYTES,
        within: Bounds | None = None,
    ) -> Response:
        fault = NotPlain("not GET")
        if method == "GET":
            sent = {**ZIPPED, **(headers or {})}
            try:
                return await self._plain.get(url, headers=sent, max_bytes=max_bytes, within=within)
            except NotPlain as found:
                fault = found
        http = await self._opened_after(fault)
        return await http.request(method, url, headers=headers, max_bytes=max_bytes, within=within)

    async def part(self, url: str, span: str, admit: Admit, *, max_bytes: int, within: Bounds | None) -> Response:
        sent = {**UNCHANGED, "Range": span}
        try:
            return await self._plain.get(url, headers=sent, max_bytes=max_bytes, within=within, admit=admit)
        except NotPlain as fault:
            http = await self._opened_after(fault)
        return await http.part(url, span, admit, max_bytes=max_bytes, within=within)

    async def download(self, url: str, file: IO[bytes], max_bytes: int, *, within: Bounds | None = None) -> str:
        http = await self._opened()
        return await http.download(url, file, max_bytes, within=within)

    async def _opened_after(self, fault: NotPlain) -> Http:
        """For the same request again, once the server wants it; what is too long to wait for is reported by `Http`."""
        if fault.wait_s <= self._timeouts.retry_after_s:
            await asyncio.sleep(fault.wait_s)
        return await self._opened()

    async def _opened(self) -> Http:
        async with self._opening:
            if self._http is None:
                # In a thread: what runs meanwhile has no need of it.
                await asyncio.to_thread(import_module, "aiohttp")
                opening = open_http(self._environ, timeouts=self._timeouts)
                self._http = await self._stack.enter_async_context(opening)
            return self._http


@asynccontextmanager
async def open_lazy_http(environ: Mapping[str, str], *, timeouts: Timeouts | None = None) -> AsyncIterator[LazyHttp]:
    """As `open_http`, with the same meaning of its arguments."""
    async with AsyncExitStack() as stack:
        yield LazyHttp(environ, timeouts or Timeouts(), stack)
