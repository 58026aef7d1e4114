"""Conda channels as a spec writes them: a name, or an address that may hold credentials."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from envspec.credentials import VARIABLE, channel_without_credentials
from envspec.model import Platform
from envspec.spec.faults import BadValue
from envspec.spec.words import shown

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_LONGEST: Final = 2000
_OLDER_SUBDIRS: Final = ("noarch", "osx-64", "win-32", "win-arm64", "linux-32", "linux-ppc64le")
_SUBDIRS: Final = frozenset({*(platform.value for platform in Platform), *_OLDER_SUBDIRS})

# Words that mean something to conda and nothing to a server of channels.
_WORDS: Final = {
    "defaults": (
        "is conda's word for several channels",
        'name them: "https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r"',
    ),
    "nodefaults": ("is no channel", "remove it: nothing but the channels listed here is used"),
    "local": ("is conda's word for a folder of this machine", 'write its address: "file:///srv/channel"'),
}


def read_channel(text: str) -> str:
    """A channel's name or address, without a slash at its end; it may hold credentials. BadValue if it is none."""
    if not text or len(text) > _LONGEST or not text.isprintable() or re.search(r"\s", text):
        raise BadValue(
            f"{_told(text)} is not a channel: empty, too long, or with blanks in it",
            'write a name, "conda-forge", or an address, "https://conda.example.com/channel"',
        )
    channel = text.rstrip("/")
    if "://" in text:
        _check_address(channel)
    else:
        _check_name(channel)
    _refuse_subdir(channel)
    return channel


def unsecret(text: str) -> str:
    """`text` as a message may hold it, also where what comes before an `@` is no user and password in due form."""
    return channel_without_credentials(re.sub(r"//.*@", "//", text, flags=re.DOTALL))


def _told(text: str) -> str:
    return shown(unsecret(text))


def _check_name(text: str) -> None:
    if text in _WORDS:
        found, hint = _WORDS[text]
        raise BadValue(f"{_told(text)} {found}", hint)
    if _NAME.fullmatch(text):
        return
    hint = 'write a name, "conda-forge", or an address, "https://conda.example.com/channel"'
    if re.match(r"\.{0,2}[/\\]|\.{1,2}$|~|[A-Za-z]:[/\\]", text):
        hint = 'a folder is written as an address, whole: "file:///srv/channel"'
    raise BadValue(f"{_told(text)} is not the name of a channel", hint)


def _check_address(text: str) -> None:
    try:
        parts = urlsplit(text)
        host, known = parts.hostname, parts.port is None or parts.port > 0
    except ValueError:
        host, known = None, False
        parts = urlsplit("")
    if parts.scheme == "file":
        _check_file(text, parts.netloc, parts.path)
    elif parts.scheme not in ("http", "https") or not host or not known:
        raise BadValue(
            f"{_told(text)} is not the address of a channel",
            "write it as `https://host/channel`, `http://host/channel` or `file:///folder`",
        )
    if parts.query or parts.fragment or text[-1] in "?#":
        raise BadValue(
            f"{_told(text)} has a query or a fragment",
            "a channel's address ends with its path: `https://host/channel`",
        )
    if "@" in channel_without_credentials(text):
        # `https://user:pass/word@host/...`: to every reader of addresses the host is `user`, and the path has the rest.
        raise BadValue(
            f"the address of {_told(text)} has an `@` that ends no user and password",
            "write a slash of a password as `%2F`, and an `@` of a path as `%40`",
        )
    _check_variables(text)


def _check_file(text: str, host: str, path: str) -> None:
    if host not in ("", "localhost") or not path.startswith("/"):
        raise BadValue(
            f"{_told(text)} is not the address of a folder", 'three slashes and the whole path: "file:///srv/channel"'
        )


def _check_variables(text: str) -> None:
    if "$" in channel_without_credentials(text):
        raise BadValue(
            f"{_told(text)} has a `$` outside its credentials",
            "a lock must not depend on the machine: `${VARIABLE}` may be a user, a password, or TOKEN in `/t/TOKEN/`",
        )
    if "$" in VARIABLE.sub("", text):
        raise BadValue(
            f"the credentials of {_told(text)} have a `$` that begins no variable",
            "write a variable as `${VARIABLE}`, and a dollar of a password as `%24`",
        )


def _refuse_subdir(text: str) -> None:
    rest, _, last = text.rpartition("/")
    if last in _SUBDIRS or last in ("repodata.json", "repodata.json.zst"):
        whole = channel_without_credentials(rest) or "conda-forge"
        raise BadValue(
            f"{_told(text)} names a part of a channel",
            f"write the channel, {shown(whole)}: `env.platforms` says which of its platforms are read",
        )
