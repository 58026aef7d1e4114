"""The one door to HTTP: every request of envspec's goes through `Http`.

aiohttp is imported when a session opens, never before: it costs 0.15 s of CPU.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import envspec
from envspec.effects import surroundings
from envspec.effects.http_client import PAGE_BYTES, Http
from envspec.effects.http_values import Credential, Patience, Response, Sink
from envspec.effects.surroundings import ca_bundle, proxies, tls_context

__all__ = ["PAGE_BYTES", "Credential", "Http", "Patience", "Response", "Sink", "open_http"]


@asynccontextmanager
async def open_http(
    environ: Mapping[str, str],
    *,
    credentials: Mapping[str, Credential] | None = None,
    patience: Patience | None = None,
    per_host: int = 32,
    notice: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Http]:
    """Open the door: connections are kept alive and shared until the context ends.

    environ: CA bundle, proxies and changes to `patience` are read from it; netrc never is: what a lock holds must not
    depend on it. credentials: by origin (`https://host`, `https://host:8443`), sent to that origin alone. per_host:
    connections to one host at a time. notice: told of every retry, one line each.

    Raises:
        UsageError: the environment names a CA bundle or a proxy that cannot be used.
    """
    routes, bundle = proxies(environ), ca_bundle(environ)
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector

    # aiohttp builds OpenSSL's default context while it is imported, and that one honours SSL_CERT_FILE: a second one
    # would cost 20 ms for the same certificates.
    same = bundle is None or str(bundle) == _openssl_bundle()
    connector = TCPConnector(
        limit=4 * per_host,
        limit_per_host=per_host,
        ttl_dns_cache=300,
        keepalive_timeout=60,
        ssl=True if same else tls_context(bundle),
    )
    async with ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        headers={"User-Agent": f"envspec/{envspec.__version__}"},
        trust_env=False,
        auto_decompress=True,
    ) as session:
        yield Http(
            session,
            routes=routes,
            credentials=credentials or {},
            patience=surroundings.patience(environ, patience or Patience()),
            notice=notice,
        )


def _openssl_bundle() -> str | None:
    """The CA file that OpenSSL's default context reads: SSL_CERT_FILE of this process, or the built-in path."""
    return ssl.get_default_verify_paths().cafile
