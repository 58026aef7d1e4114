"""One server, or another: a login goes nowhere else."""

from __future__ import annotations

import pytest

from envspec.origins import same_origin
from envspec.resolve.pypi.index.client import with_login
from envspec.resolve.pypi.index.routing import PackageIndex


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://host/a", "https://host/b?c#d"),
        ("https://host/a", "https://HOST:443/"),
        ("http://host:80", "HTTP://host/"),
        ("https://me:sesame@host/", "https://you@host/"),
        ("http://[::1]:8080/", "http://[::1]:8080/x"),
    ],
)
def test_one_server(one: str, other: str) -> None:
    assert same_origin(one, other) and same_origin(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://host/", "http://host/"),
        ("http://host:443/", "https://host:443/"),
        ("https://host/", "https://host:8443/"),
        ("https://host/", "https://host:0/"),
        ("https://host/", "https://host./"),
        ("https://host/", "https://host.example/"),
        ("https://host/", "https://other@evil/"),
        ("https://host/", "https://host@evil/"),
        ("https://host/", "https://evil/@host/"),
        ("https://host/", "https://host:x/"),
        ("https://host/", "https://[host/"),
        ("https://host/", "//host/"),
        ("ftp://host/", "ftp://host/"),
        ("https://host:x/", "https://host:x/"),
        ("", ""),
    ],
)
def test_two_servers_or_none(one: str, other: str) -> None:
    assert not same_origin(one, other) and not same_origin(other, one)


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://corp.example/a.whl", "https://me:sesame@corp.example/a.whl"),
        ("https://CORP.example:443/a.whl", "https://me:sesame@corp.example/a.whl"),
        ("https://link@corp.example/a.whl", "https://link@corp.example/a.whl"),
        ("https://corp.example:8443/a.whl", "https://corp.example:8443/a.whl"),
        ("http://corp.example/a.whl", "http://corp.example/a.whl"),
        ("https://corp.example.evil/a.whl", "https://corp.example.evil/a.whl"),
        ("https://corp.example:x/a.whl", "https://corp.example:x/a.whl"),
    ],
)
def test_a_login_goes_to_its_indexs_own_server(url: str, sent: str) -> None:
    """A user name that a link has of its own stays."""
    assert with_login(PackageIndex("corp", "https://me:sesame@corp.example/simple/"), url) == sent
