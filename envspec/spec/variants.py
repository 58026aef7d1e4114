"""Named variants of a spec: `[variants.cpu]` overrides and extends it, and is locked into a lock of its own.

Of parsed documents, which need not be valid. On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envspec.names import normalised

KeyPath = tuple[str | int, ...]

#: The name of the spec itself among its variants.
BASE: Final = ""
#: Lists that a variant adds to; an entry replaces the base's of the same package or index. It replaces other lists.
_ADDED: Final = (
    ("dependencies_from",),
    *(("pip", each) for each in ("dependencies", "constraints", "prefer", "overrides", "index")),
    ("pip", "build", "packages"),
    ("conda", "dependencies"),
    ("conda", "prefer"),
    ("conda", "platform", "*", "dependencies"),
    ("system", "apt"),
)
#: A key of variants alone: names of the base's dependencies that they leave out.
WITHOUT: Final = "without"
_DEPENDENCIES: Final = tuple(path for path in _ADDED if path[-1] == "dependencies")
#: Keys of which `false` is a value: it does not remove the spec's.
_FALSE_IS_A_VALUE: Final = (("system", "snapshot"),)
#: Keys that all variants have from the spec.
SHARED: Final = ("name", "as_of", "package_as_of")
_NAME: Final = re.compile(r"\s*(?:[^\s\[]*::)?([A-Za-z0-9_][A-Za-z0-9._-]*)(?![A-Za-z0-9._:-])")


def variant_names(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the spec's variants, in its order."""
    found = document.get("variants")
    return tuple(found) if isinstance(found, Mapping) else ()


def lock_name(document: Mapping[str, Any], variant: str) -> str:
    return str(document["env"]["name"]) + _suffix(variant)


def variant_directory(directory: Path, variant: str) -> Path:
    """The folder of a variant's lock. directory: that of the spec's own."""
    return directory.with_name(directory.name + _suffix(variant)) if variant else directory


def base_directory(directory: Path, variant: str) -> Path:
    """The folder of the lock of the spec itself. directory: that of the variant's."""
    return directory.with_name(directory.name.removesuffix(_suffix(variant)))


def _suffix(variant: str) -> str:
    return f"-{variant}" if variant else ""


def document_of(document: Mapping[str, Any], variant: str = BASE) -> dict[str, Any]:
    """The document of the spec itself, or of a variant: a whole spec without variants."""
    return Merged(document, variant).document


class Merged:
    """A variant's whole document, and where each value of it is written. unmatched: positions in `without`."""

    def __init__(self, document: Mapping[str, Any], variant: str) -> None:
        base = {key: value for key, value in document.items() if key != "variants"}
        own = document["variants"][variant] if variant else {}
        own = own if isinstance(own, Mapping) else {}
        self.variant, self._own = variant, {key: value for key, value in own.items() if key != WITHOUT}
        self._base = base
        self._items: dict[KeyPath, KeyPath] = {}
        names = own.get(WITHOUT, ())
        names = [normalised(name) if isinstance(name, str) else "" for name in names if isinstance(names, list)]
        self._without, self._found = frozenset(names), set[str]()
        self.document: dict[str, Any] = self._merge((), base, self._own) if variant else base
        self.unmatched = [at for at, name in enumerate(names) if name not in self._found]
        env = self.document.get("env")
        if variant and isinstance(env, Mapping) and isinstance(env.get("name"), str):
            self.document["env"] = {**env, "name": env["name"] + _suffix(variant)}

    def origin(self, path: KeyPath) -> KeyPath:
        """Where the value at a path is written, in the whole spec."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._items:
                return self._items[path[:length]] + path[length:]
        value: Any = self._own
        for at, key in enumerate(path):
            if not isinstance(value, Mapping) or key not in value:
                # A key that is missing in a table of the variant's alone.
                return path if at == 0 or self._is_of_base(path[:at]) else ("variants", self.variant, *path)
            value = value[key]
        return ("variants", self.variant, *path) if self.variant else path

    def _is_of_base(self, path: KeyPath) -> bool:
        value: Any = self._base
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value is not None

    def _merge(self, path: KeyPath, base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key in dict.fromkeys((*base, *own)):
            inner, value = (*path, key), own.get(key, base.get(key))
            is_removed = key in own and own[key] is False and key in base and not isinstance(base[key], bool)
            if is_removed and inner not in _FALSE_IS_A_VALUE:
                continue
            if isinstance(base.get(key), Mapping) and isinstance(value, Mapping):
                value = self._merge(inner, base[key], own.get(key, {}))
            elif _is_one_of(inner, _ADDED) and isinstance(base.get(key), list) and isinstance(value, list):
                value = self._joined(inner, base[key], own.get(key, ()))
            result[key] = value
        return result

    def _joined(self, path: KeyPath, base: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        replaced = {_name_of(entry) for entry in own} - {None}
        result: list[Any] = []
        for at, entry in enumerate(base):
            name = _name_of(entry)
            if name in self._without and _is_one_of(path, _DEPENDENCIES):
                self._found.add(name or "")
            elif name not in replaced:
                self._items[path + (len(result),)] = path + (at,)  # noqa: RUF005
                result.append(entry)
        for at, entry in enumerate(own):
            self._items[path + (len(result),)] = ("variants", self.variant, *path, at)  # noqa: RUF005
            result.append(entry)
        return result


def _is_one_of(path: KeyPath, patterns: Sequence[tuple[str, ...]]) -> bool:
    return any(_matches(path, pattern) for pattern in patterns)


def _matches(path: KeyPath, pattern: tuple[str, ...]) -> bool:
    if len(path) != len(pattern):
        return False
    return all(part in ("*", key) for key, part in zip(path, pattern, strict=True))


def _name_of(entry: object) -> str | None:
    """The package or index that an entry of a list is about."""
    if isinstance(entry, Mapping):
        entry = entry.get("name", entry.get("requirement"))
    found = _NAME.match(entry) if isinstance(entry, str) else None
    return normalised(found[1]) if found else None


def variant_called(name: str, document: Mapping[str, Any]) -> str | None:
    """The variant of a spec whose lock has a name, or BASE; None if no lock of the spec has it.

    Raises:
        LookupError, TypeError: the document has no environment's name.
    """
    variants = (BASE, *variant_names(document))
    return next((variant for variant in variants if lock_name(document, variant) == name), None)
