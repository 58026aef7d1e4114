"""What of a URL is secret: the one place that decides what is kept, what is shown, and what is sent.

Secret are user and password (the user of an SSH address is a part of it), a channel's token (`/t/TOKEN/`), what a query
signs or authorises, and the value of every `${VARIABLE}`. All else of a URL is public and is written into locks.

On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: A variable of the environment that stands for a credential.
VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# Everything before the last `@` of the part between `//` and the path. A scheme is looked for once in a word, not again
# at each of its letters: values of specs may be long.
_USERINFO: Final = re.compile(r"(?<![A-Za-z0-9+.-])([0-9+.-]*[A-Za-z][A-Za-z0-9+.-]*)://([^\s/?#]*)@")

# An address up to its path, and the rest; in a path, a token as conda writes it.
_WEB: Final = re.compile(r"([Hh][Tt][Tt][Pp][Ss]?://[^/?#]*)(.*)", re.DOTALL)
_TOKEN: Final = re.compile(r"(?:/t)+/[^/?#]+")
# The same in a text that holds more than an address.
_WEB_IN_TEXT: Final = re.compile(r"(https?://[^\s/?#]*)([^\s?#]*)", re.IGNORECASE)

# Behind a host, `@host/` ends a password that holds a slash, a question mark or a hash.
_HOST: Final = r"(?:(?:[\w-]+\.)+[A-Za-z]{2,}|(?:\d+\.){3}\d+|localhost|\[[0-9a-fA-F:]+\])(?::\d+)?"
_BEFORE_HOST: Final = re.compile(rf"@(?={_HOST}/)")
#: A user and a password, or a user alone, that are variables.
_VARIABLES: Final = re.compile(rf"{VARIABLE.pattern}(?::(?:{VARIABLE.pattern})?)?")
#: What pip says behind `#`.
_FRAGMENT: Final = re.compile(r"(?:(?:egg|subdirectory|sha256)=[^&]*&?)+")

# Without a scheme, as in the name of an image: `user:password@host`.
_BARE_LOGIN: Final = re.compile(r"(?<![^\s\"'`(=])[^\s/@:(=\"'`]+:(?!//)[^\s@\"'`]{1,2048}@(?!sha256:)")

# Parts of a query that sign, and values that may. Versions of a file are as long, and public.
_SIGNING: Final = re.compile(r"sig|token|key|secret|passw|pwd|auth|cred|jwt|session|policy", re.IGNORECASE)
_VERSIONS: Final = ("versionid", "generation", "version", "ref", "commit", "sha", "rev")
_LONGEST_VALUE: Final = 20


def without_credentials(text: str) -> str:
    """`text` with user names and passwords taken out of every URL in it.

    The user name of an SSH address stays (`git+ssh://git@host/...`): it is part of the address and no secret.
    """
    if "://" not in text:
        return text
    return _USERINFO.sub(_bare, text)


def channel_without_credentials(text: str) -> str:
    """A conda channel without user name, password and token (`/t/TOKEN/`, as anaconda.org and others take it).

    Only channels have such tokens: elsewhere `/t/` is a folder like any other.
    """
    found = _WEB.fullmatch(without_credentials(text))
    if found is None:
        return text
    return found[1] + _TOKEN.sub("", found[2])


def channels_without_credentials(text: str) -> str:
    """`text` with user names, passwords and tokens taken out of every channel's URL in it."""
    if "://" not in text:
        return text
    return _WEB_IN_TEXT.sub(lambda found: found[1] + _TOKEN.sub("", found[2]), without_credentials(text))


def _bare(found: re.Match[str]) -> str:
    scheme, userinfo = found[1], found[2]
    user = userinfo.partition(":")[0]
    if user and scheme.lower().endswith("ssh"):
        return f"{scheme}://{user}@"
    return f"{scheme}://"


def without_registry_login(image: str) -> str:
    """An image's or a registry's name as it may be printed: nothing of what stands before an `@` but a digest's."""
    named, at, digest = image.rpartition("@")
    if at and re.match(r"\w+:[0-9a-zA-Z]{16,}$", digest):
        return f"{named.rpartition('@')[2]}@{digest}"
    return digest if at else image


def has_secret_query(url: str) -> bool:
    """Whether the query of `url` signs or authorises, or may: by its words, or by a long value that is no version."""
    query = url.partition("#")[0].partition("?")[2]
    for part in filter(None, re.split(r"[&;]", query)):
        name, _, value = part.rpartition("=")
        if _SIGNING.search(name) or (len(value) >= _LONGEST_VALUE and name.lower() not in _VERSIONS):
            return True
    return False


def has_secret_path(path: str) -> bool:
    """Whether a part of `path` looks like a token."""
    return any(map(_is_random, path.split("/"))) or bool(re.search(r"(?:^|/)t/(?=[^/]*\d)[^/.]{8,}", path))


def is_misread(url: str) -> bool:
    """Whether `url` was meant to have a password with a `/`, `?` or `#`: to every reader the host ends there."""
    _, scheme, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return bool(scheme) and "@" in rest and (_has_no_port(authority) or bool(_late_login(rest)))


def _late_login(text: str) -> int:
    """Where the host begins behind a password that holds a `/`, `?` or `#`; 0 where there is no such password."""
    word = re.split(r"\s", text, maxsplit=1)[0]
    start = re.search(r"[/?#]", word)
    if start is None:
        return 0
    end = 0
    for found in _BEFORE_HOST.finditer(word, start.end()):
        end = found.end()
    return end


def _has_no_port(authority: str) -> bool:
    """Whether what stands where a port does is none."""
    port = re.sub(r"^\[[^\]]*\]", "", authority.rpartition("@")[2]).partition(":")[2]
    return not re.fullmatch(r"\d*", port)


def filled(text: str, environ: Mapping[str, str]) -> str:
    """`text` with the value of every `${VARIABLE}` in it, percent-encoded; those that are not set stay."""
    if "${" not in text:
        return text
    from urllib.parse import quote

    def value_of(found: re.Match[str]) -> str:
        if not environ.get(found[1]):
            return found[0]
        return quote(environ[found[1]], safe="")

    return VARIABLE.sub(value_of, text)


def unset(text: str, environ: Mapping[str, str]) -> str | None:
    """The first variable in `text` that is not set or empty, None where all are."""
    for found in VARIABLE.finditer(text):
        if not environ.get(found[1]):
            return found[1]
    return None


def has_open_secret(text: str, *, channel: bool = False) -> bool:
    """Whether a password or a token is written in `text`, where a variable could stand for it. channel: whether it is a
    channel's address, which may have a token in its path.
    """
    if channel and (token := _TOKEN.search(text)) and VARIABLE.sub("", token[0].rpartition("/")[2]):
        return True
    for scheme, userinfo in _USERINFO.findall(text):
        user, colon, password = VARIABLE.sub("", userinfo).partition(":")
        if not scheme.lower().endswith("ssh") and (password or (not colon and _is_random(user))):
            return True
    return False


def has_login(text: str) -> bool:
    """Whether a URL in `text` has a user or a password that is not a variable: a lone user is often a token.

    The user of an SSH address is a part of it.
    """
    for scheme, userinfo in _USERINFO.findall(text):
        if not scheme.lower().endswith("ssh") and not _VARIABLES.fullmatch(userinfo):
            return True
    return False


def shown(text: str) -> str:
    """`text` as a message may hold it: no user and password, no query, and nothing that looks like a token, of every
    URL and image in it. Variables stay: their names are no secrets.
    """
    if "@" in text:
        text = _BARE_LOGIN.sub("", text)
    if "://" not in text:
        return text
    before, *urls = re.split(r"(?<=://)", text)
    found = [before]
    for url in urls:
        # Its end is the next one's scheme.
        found.append(_shown(url, before))
        before = url
    return "".join(found)


def _shown(rest: str, scheme: str) -> str:
    """What follows a URL's `://`, up to the next one. scheme: the text before, which ends with it."""
    authority = re.split(r"[\s/?#]", rest, maxsplit=1)[0]
    userinfo, at, host = authority.rpartition("@")
    login = ""
    if at:
        rest = rest[len(userinfo) + 1 :]
        if scheme.lower().endswith("ssh://"):
            login = f"{userinfo.partition(':')[0]}@"
        elif _VARIABLES.fullmatch(userinfo):
            login = f"{userinfo}@"
    if "@" in rest and _has_no_port(host.rstrip(".,;:)")):
        rest = rest.rpartition("@")[2]
    rest = rest[_late_login(rest) :]
    address = re.split(r"[\s\"'`<>]", rest, maxsplit=1)[0]
    more = rest[len(address) :]
    path, hash_mark, fragment = address.partition("#")
    path, mark, query = path.partition("?")
    parts = ["…" if _is_random(part) else part for part in path.split("/")]
    path = re.sub(r"/t/[^/]+(?=/)", "/t/…", "/".join(parts))
    if query:
        query = "…"
    if fragment and not _FRAGMENT.fullmatch(fragment):
        fragment = "…"
    return login + path + mark + query + hash_mark + fragment + more


def _is_random(part: str) -> bool:
    """Whether a part of a path was made at random: a long run of letters and digits that is no digest."""
    if re.fullmatch(r"(?:sha256:|[\w-]+@)?[0-9a-f]{40,}", part) or "." in part:
        return False
    runs = re.findall(r"[A-Za-z0-9]{20,}", part)
    return any(re.search(r"\d", run) and re.search(r"[A-Za-z]", run) for run in runs)
