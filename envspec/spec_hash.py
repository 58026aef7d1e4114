"""The identity of a spec: SHA-256 of its canonical form.

On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timezone
from typing import Any

# Which server stands in for a registry says nothing about the environment itself.
_OUTSIDE = (("registry", "mirrors"),)
_CONFINING = "unconfined_builds"

# Everything before the last `@` of the part between `//` and the path. A scheme is looked for once in a word, not again
# at each of its letters: values of specs may be long.
_USERINFO = re.compile(r"(?<![A-Za-z0-9+.-])([0-9+.-]*[A-Za-z][A-Za-z0-9+.-]*)://([^\s/?#]*)@")

# An address up to its path, and the rest; in a path, a token as conda writes it.
_WEB = re.compile(r"([Hh][Tt][Tt][Pp][Ss]?://[^/?#]*)(.*)", re.DOTALL)
_TOKEN = re.compile(r"(?:/t)+/[^/?#]+")


def without_credentials(text: str) -> str:
    """`text` with user names and passwords taken out of every URL in it.

    The user name of an SSH address stays (`git+ssh://git@host/...`): it is part of the address and no secret.
    """
    return _USERINFO.sub(_bare, text) if "://" in text else text


def channel_without_credentials(text: str) -> str:
    """A conda channel without user name, password and token (`/t/TOKEN/`, as anaconda.org and others take it).

    Only channels have such tokens: elsewhere `/t/` is a folder like any other.
    """
    found = _WEB.fullmatch(without_credentials(text))
    return found[1] + _TOKEN.sub("", found[2]) if found else text


def _bare(found: re.Match[str]) -> str:
    scheme, userinfo = found[1], found[2]
    user = userinfo.partition(":")[0] if scheme.lower().endswith("ssh") else ""
    return f"{scheme}://{user}@" if user else f"{scheme}://"


def input_sha256(data: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of the canonical form of a parsed TOML document.

    Comments, layout, the order of keys and tables, the offset a moment is written in and credentials in URLs and in
    conda's channels do not matter; `[registry.mirrors]` and whether builds are confined do not belong. Every other
    value does, and so does its type.
    """
    canonical = json.dumps(_canonical(_identity(data)), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _identity(data: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(data)
    for path in _OUTSIDE:
        kept = _without(kept, path)
    # How wheels are built says nothing about them. (A [pip] that is empty otherwise has always counted.)
    pip = kept.get("pip")
    if isinstance(pip, Mapping) and _CONFINING in pip:
        kept = _without(kept, ("pip", _CONFINING))
    conda = kept.get("conda")
    if isinstance(conda, Mapping) and isinstance(conda.get("channels"), (list, tuple)):
        kept["conda"] = {**conda, "channels": [_channel(value) for value in conda["channels"]]}
    return kept


def _channel(value: Any) -> Any:
    return channel_without_credentials(value) if isinstance(value, str) else value


def _without(table: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """`table` less the value at `path`, and less the tables on the way that hold nothing else."""
    kept = dict(table)
    first, rest = path[0], path[1:]
    inner = kept.get(first)
    if not rest:
        kept.pop(first, None)
    elif isinstance(inner, Mapping):
        kept[first] = _without(inner, rest)
        if not kept[first]:
            del kept[first]
    return kept


def _canonical(value: Any) -> Any:
    """JSON's values, with what TOML has beyond them as a one-key object that no TOML table turns into."""
    if isinstance(value, Mapping):
        return {f"={key}": _canonical(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(inner) for inner in value]
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, datetime):
        return {"datetime": _moment(value)}
    if isinstance(value, (date, time)):
        return {type(value).__name__: value.isoformat()}
    return value


def _moment(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    try:
        return value.astimezone(timezone.utc).isoformat()
    except OverflowError:  # within a day of year 1 or 9999: no moment in UTC that Python can hold
        return value.isoformat()
