"""Named variants of a spec: `[variants.cpu]` overrides and extends it, and is locked into a lock of its own.

Of parsed documents, which need not be valid. On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envspec.documents import list_of, table_of
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
    return tuple(table_of(document, "variants"))


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
    """A variant's whole document, and where each value of it is written.

    variant: its name, or BASE.
    document: a whole spec, without variants.
    unmatched: positions in `without` of names that are not in the spec's dependencies.
    """

    def __init__(self, document: Mapping[str, Any], variant: str) -> None:
        self.variant = variant
        self._base = {key: value for key, value in document.items() if key != "variants"}
        self._own: dict[str, Any] = {}
        #: Items of merged lists: their paths in `document`, and where they are written.
        self._items: dict[KeyPath, KeyPath] = {}
        names: list[str] = []
        if variant:
            self._own = dict(table_of(document["variants"][variant]))
            names = [normalised(name) if isinstance(name, str) else "" for name in list_of(self._own, WITHOUT)]
            self._own.pop(WITHOUT, None)
        self._without = frozenset(names)
        self._removed: set[str] = set()
        self.document = self._base
        if variant:
            self.document = self._merge((), self._base, self._own)
            env = self.document.get("env")
            if isinstance(env, Mapping) and isinstance(env.get("name"), str):
                self.document["env"] = {**env, "name": env["name"] + _suffix(variant)}
        self.unmatched = [at for at, name in enumerate(names) if name not in self._removed]

    def origin(self, path: KeyPath) -> KeyPath:
        """Where the value at a path is written, in the whole spec."""
        if not self.variant:
            return path
        for length in range(len(path), 0, -1):
            item = self._items.get(path[:length])
            if item is not None:
                return item + path[length:]
        value: Any = self._own
        for at, key in enumerate(path):
            if not isinstance(value, Mapping) or key not in value:
                if self._is_in_base(path[:at]):
                    return path
                # A key that is missing in a table of the variant's alone.
                break
            value = value[key]
        return ("variants", self.variant, *path)

    def _is_in_base(self, path: KeyPath) -> bool:
        value: Any = self._base
        for key in path:
            if not isinstance(value, Mapping):
                return False
            value = value.get(key)
        return value is not None

    def _merge(self, path: KeyPath, base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key in dict.fromkeys((*base, *own)):
            if _is_removed(key, path, base, own):
                continue
            inner = (*path, key)
            old = base.get(key)
            new = own.get(key, old)
            if isinstance(old, Mapping) and isinstance(new, Mapping):
                result[key] = self._merge(inner, old, own.get(key, {}))
            elif isinstance(old, list) and isinstance(new, list) and _is_one_of(inner, _ADDED):
                result[key] = self._join(inner, old, own.get(key, ()))
            else:
                result[key] = new
        return result

    def _join(self, path: KeyPath, base: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        replaced = {_name_of(entry) for entry in own} - {None}
        result: list[Any] = []
        for at, entry in enumerate(base):
            name = _name_of(entry)
            if name in self._without and _is_one_of(path, _DEPENDENCIES):
                self._removed.add(name or "")
            elif name not in replaced:
                self._items[path + (len(result),)] = path + (at,)  # noqa: RUF005
                result.append(entry)
        for at, entry in enumerate(own):
            self._items[path + (len(result),)] = ("variants", self.variant, *path, at)  # noqa: RUF005
            result.append(entry)
        return result


def _is_removed(key: str, path: KeyPath, base: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a variant's `false` removes a key of the spec. path: of the table with the key."""
    if own.get(key) is not False or key not in base:
        return False
    return not isinstance(base[key], bool) and (*path, key) not in _FALSE_IS_A_VALUE


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
    if not isinstance(entry, str):
        return None
    found = _NAME.match(entry)
    return normalised(found[1]) if found else None


def variant_called(name: str, document: Mapping[str, Any]) -> str | None:
    """The variant of a spec whose lock has a name, or BASE; None if no lock of the spec has it.

    Raises:
        LookupError, TypeError: the document has no environment's name.
    """
    variants = (BASE, *variant_names(document))
    return next((variant for variant in variants if lock_name(document, variant) == name), None)
