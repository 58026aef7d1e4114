"""Proxies, CA bundle, timeouts and default index of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from envspec.credentials import is_misread, shown
from envspec.errors import UsageError
from envspec.io.http_types import Timeouts
from envspec.origins import origin_of
from envspec.structs import defaults_of, replace

if TYPE_CHECKING:
    import ssl


def ca_bundle(environ: Mapping[str, str]) -> Path | None:
    """The file or directory of CA certificates in the environment's variables; None: the system's own.

    SSL_CERT_FILE is OpenSSL's variable, REQUESTS_CA_BUNDLE that of requests and pip, CURL_CA_BUNDLE that of curl; the
    first that is set wins, in this order.

    Raises:
        UsageError: the path does not exist. (OpenSSL would continue without certificates, and every request would
            fail with a message that does not name the variable.)
    """
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if value := environ.get(name):
            path = Path(value)
            if not path.exists():
                raise UsageError(f"{name}={value}: no such file", hint=f"correct {name} or unset it")
            return path
    return None


def tls_context(bundle: Path | None) -> ssl.SSLContext:
    """A verifying client context that trusts `bundle`, or the system's certificates when there is none."""
    import ssl

    try:
        if bundle is None:
            context = ssl.create_default_context()
        elif bundle.is_dir():
            context = ssl.create_default_context(capath=str(bundle))
        else:
            context = ssl.create_default_context(cafile=str(bundle))
    except (ssl.SSLError, OSError) as error:
        raise UsageError(
            f"{bundle}: not a bundle of CA certificates ({error})",
            hint="SSL_CERT_FILE, REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name a PEM file or a hashed directory",
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def timeouts(environ: Mapping[str, str], usual: Timeouts) -> Timeouts:
    """`usual` with the fields that `ENVSPEC_HTTP_<FIELD>` sets: `ENVSPEC_HTTP_STALL_S=120` on a slow network.

    Raises:
        UsageError: a value is not a positive number, or for a count not a whole one.
    """
    changed: dict[str, Any] = {}
    for field, default in defaults_of(Timeouts).items():
        name = f"ENVSPEC_HTTP_{field.upper()}"
        if text := environ.get(name):
            parse: type[float] = float
            form, kind = r"\d{1,6}(\.\d*)?|\.\d+", "number"
            if isinstance(default, int):
                parse, form, kind = int, r"\d{1,6}", "integer"
            if not re.fullmatch(form, text) or not float(text):
                raise UsageError(
                    f"{name}={text}: not a positive {kind}",
                    hint=f"correct {name}, or unset it: the default is {getattr(usual, field):g}",
                )
            changed[field] = parse(text)
    return replace(usual, **changed)


class Proxies(Struct, frozen=True):
    """by_scheme: `http`, `https` or `all` -> the proxy's URL. exempt: the entries of NO_PROXY."""

    by_scheme: Mapping[str, str]
    exempt: tuple[str, ...] = ()

    def of(self, scheme: str, host: str, port: int | None) -> str | None:
        """The proxy's URL for a request to `host`, None: connect directly."""
        proxy = self.by_scheme.get(scheme) or self.by_scheme.get("all")
        if not proxy or is_loopback(host) or any(_exempts(entry, host, port) for entry in self.exempt):
            return None
        return proxy


def proxies(environ: Mapping[str, str]) -> Proxies:
    """HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, the lower-case spelling first as curl does it.

    Raises:
        UsageError: a proxy that is no http(s) URL.
    """

    def value(name: str) -> str:
        return environ.get(name.lower()) or environ.get(name) or ""

    found: dict[str, str] = {}
    for scheme in ("http", "https", "all"):
        if proxy := value(f"{scheme}_proxy".upper()):
            url = proxy if "://" in proxy else f"http://{proxy}"
            if is_misread(url) or not origin_of(url):
                raise UsageError(
                    f"{scheme.upper()}_PROXY names {shown(url)}, which can't be read",
                    hint="write `/`, `?`, `#` and `@` of a password as %2F, %3F, %23 and %40",
                )
            if urlsplit(url).scheme not in {"http", "https"}:
                raise UsageError(
                    f"{scheme.upper()}_PROXY names a {urlsplit(url).scheme} proxy; only http and https proxies work",
                    hint="set it to an http:// proxy, or unset it for envspec",
                )
            found[scheme] = url
    return Proxies(found, tuple(entry.strip().lower() for entry in value("NO_PROXY").split(",") if entry.strip()))


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def leads_inward(host: str, to: str) -> bool:
    """Whether a server at `host` must not redirect to `to`: this machine's own services, or link-local ones.

    A cloud machine's metadata service hands out its keys (169.254.169.254). Servers on this machine may redirect to
    it. Names are not resolved: a name with such an address is not detected.
    """
    import ipaddress
    import socket

    if to == host:
        return False
    bare = to.strip("[]").rstrip(".").partition("%")[0]
    try:
        # As the system reads it: `127.1`, `0x7f000001` and `2130706433` are 127.0.0.1.
        address = ipaddress.ip_address(bare) if ":" in bare else ipaddress.IPv4Address(socket.inet_aton(bare))
    except (ValueError, OSError):
        return is_loopback(bare.lower()) and not is_loopback(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_link_local or address.is_unspecified or (address.is_loopback and not is_loopback(host))


def keeps_logins(url: str) -> bool:
    """Whether a login stored by host, without a scheme, may be sent to a URL: not over plain http."""
    try:
        parts = urlsplit(url)
        return parts.scheme != "http" or is_loopback(parts.hostname or "")
    except ValueError:
        return False


def _exempts(entry: str, host: str, port: int | None) -> bool:
    """Whether one entry of NO_PROXY covers the host: `*`, a name and all below it, an address or a network."""
    if entry == "*":
        return True
    host = host.lower().strip("[]")
    if "/" in entry:
        import ipaddress

        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit() and not name.endswith(":") and "]" not in entry_port:
        if port is not None and int(entry_port) != port:
            return False
        entry = name
    entry = entry.strip("[]").lstrip("*").lstrip(".")
    return host == entry or host.endswith(f".{entry}")


def default_index_url(environ: Mapping[str, str]) -> str:
    """The address of the default index's simple pages, with a closing slash.

    `ENVSPEC_DEFAULT_INDEX` names a mirror of it, whose URL is never written to a lock either.
    """
    named = environ.get("ENVSPEC_DEFAULT_INDEX")
    if named:
        return named.rstrip("/") + "/"
    # pip defines it here; importing it runs nothing and reads no configuration.
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/") + "/"
