"""Passwords and tokens in the text of a spec, where variables of the environment could be.

On the path of `envspec lock --check`: it imports next to nothing, unless there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from envspec.credentials import has_open_secret
from envspec.documents import list_of, table_of
from envspec.spec.variants import KeyPath, Merged

_WARNING: Final = (
    "contains a password or a token, visible to everybody who sees the spec: use variables instead, as in "
    "https://${TEAM_USER}:${TEAM_PASSWORD}@host"
)


def login_warnings(merged: Merged, path: Path, text: str | None = None) -> Iterator[str]:
    """A warning for each value with a password or a token: of the spec itself, or only of what the variant adds to it.

    merged: of the whole spec, valid or not, with the lines of `dependencies_from`. text: of the spec, if it is not that
    of its file.
    """
    variant = merged.variant
    keys = [key for key in _open_logins(merged.document) if not variant or merged.origin(key)[0] == "variants"]
    if keys:
        from envspec.spec.load import spec_error

        for found in spec_error(path, [(key, "", "") for key in keys], variant, text).problems:
            yield f"{found.where}:{found.line}: {found.key} {_WARNING}"


def _open_logins(document: Mapping[str, Any]) -> list[KeyPath]:
    texts: list[tuple[KeyPath, Any]] = []
    for at, index in enumerate(list_of(document, "pip", "index")):
        texts.append((("pip", "index", at, "url"), table_of(index).get("url")))
    for table, key in (("pip", "dependencies"), ("conda", "channels")):
        texts += [((table, key, at), text) for at, text in enumerate(list_of(document, table, key))]
    return [key for key, text in texts if isinstance(text, str) and has_open_secret(text, channel=key[0] == "conda")]
