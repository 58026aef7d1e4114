"""Certificates and proxies, from an environment that is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.io.http_settings import ca_bundle, is_loopback, proxies, timeouts, tls_context
from envspec.io.http_types import Timeouts


def test_the_first_bundle_that_is_named_wins(tmp_path: Path) -> None:
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    environ = {}
    for name in reversed(names):
        (tmp_path / name).touch()
        environ[name] = str(tmp_path / name)
        assert ca_bundle(environ) == tmp_path / name
    assert ca_bundle({}) is None
    assert ca_bundle({"SSL_CERT_FILE": ""}) is None


def test_unusable_bundles(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CURL_CA_BUNDLE=/nowhere: no such file"):
        ca_bundle({"CURL_CA_BUNDLE": "/nowhere"})
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(UsageError, match="not a bundle of CA certificates"):
        tls_context(tmp_path / "ca.pem")
    assert tls_context(tmp_path).check_hostname


def test_lower_case_goes_first_and_a_scheme_may_be_left_out() -> None:
    routes = proxies({"HTTPS_PROXY": "http://upper:1", "https_proxy": "lower:2", "ALL_PROXY": "http://all:3"})
    assert routes.of("https", "host", 443) == "http://lower:2"
    assert routes.of("http", "host", 80) == "http://all:3"
    assert proxies({}).of("https", "host", 443) is None


@pytest.mark.parametrize(
    ("exempt", "host", "port", "direct"),
    [
        ("corp.example", "corp.example", 443, True),
        ("corp.example", "pypi.corp.example", 443, True),
        ("corp.example", "notcorp.example", 443, False),
        (".corp.example", "pypi.corp.example", 443, True),
        ("*.corp.example", "pypi.corp.example", 443, True),
        ("CORP.example", "corp.EXAMPLE", 443, True),
        ("corp.example:8443", "corp.example", 8443, True),
        ("corp.example:8443", "corp.example", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.0.0.0/8", "ten.example", 443, False),
        ("fd00::/8", "[fd00::1]", 443, True),
        ("fd00::1", "[fd00::1]", 443, True),
        ("bad/network", "10.1.2.3", 443, False),
        ("*", "anything", 443, True),
        ("a, b ,, c", "b", 443, True),
        ("", "127.0.0.1", 443, True),
        ("", "localhost", 443, True),
        ("", "[::1]", 443, True),
        ("", "host", 443, False),
    ],
)
def test_what_no_proxy_covers(exempt: str, host: str, port: int, direct: bool) -> None:
    routes = proxies({"ALL_PROXY": "http://proxy:1", "NO_PROXY": exempt})
    assert (routes.of("https", host, port) is None) is direct


def test_a_proxy_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="ALL_PROXY names a socks5 proxy"):
        proxies({"ALL_PROXY": "socks5://proxy:1080"})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")),
        *((host, False) for host in ("localhost.example", "127.0.0.1.example", "10.0.0.1", "0.0.0.0", "", "[bad")),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_the_environment_changes_patience() -> None:
    usual = Timeouts(connect_s=5, attempts=2)
    assert timeouts({}, usual) == usual
    message = {"ENVSPEC_HTTP_STALL_S": "120", "ENVSPEC_HTTP_BACKOFF_S": ".5", "ENVSPEC_HTTP_ATTEMPTS": "9"}
    assert timeouts(message, usual) == Timeouts(connect_s=5, stall_s=120, backoff_s=0.5, attempts=9)
    assert timeouts({"ENVSPEC_HTTP_STALL_S": ""}, usual) == usual


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        *(("STALL_S", text, "positive number") for text in ("0", "-1", "soon", "nan", "inf", "1e3", "12345678", ".")),
        *(("ATTEMPTS", text, "positive integer") for text in ("0", "1.5", "-2")),
    ],
)
def test_patience_that_is_no_number_is_refused(name: str, text: str, kind: str) -> None:
    with pytest.raises(UsageError, match=f"ENVSPEC_HTTP_{name}={text}: not a {kind}"):
        timeouts({f"ENVSPEC_HTTP_{name}": text}, Timeouts())
