"""The versions that a spec prefers, removed from its text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import tomlkit

from envspec.names import normalised
from envspec.spec.conda import name_of
from envspec.spec.requirements import read_preference

_KEY: Final = "prefer"
_READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "pip": lambda text: read_preference(text).name,
    "conda": lambda text: normalised(name_of(text)),
}


def without_preferences(text: str, names: Collection[str] | None = None, root: Sequence[str] = ()) -> str:
    """The text of a valid spec without the versions that it prefers, or without those of some normalised names.

    root: the table of the document that is the spec. Comments and layout of everything else stay as they are.
    """
    document = tomlkit.parse(text)
    spec: Any = document
    is_changed = False
    for key in root:
        spec = spec[key]
    for table in (spec, *spec.get("variants", {}).values()):
        for section, read in _READERS.items():
            listed = table.get(section, {}).get(_KEY)
            leaving = [at for at, each in enumerate(listed or ()) if names is None or read(str(each)) in names]
            is_changed |= bool(leaving)
            if leaving and len(leaving) == len(listed):
                del table[section][_KEY]
                continue
            for at in reversed(leaving):
                del listed[at]
    return tomlkit.dumps(document) if is_changed else text
