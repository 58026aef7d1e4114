"""How an image differs from its lock: values, without any effect.

Labels, config and history are what an image says about itself; layers and files are what it contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from envspec.image.layers.contents import FOLDER, Kept
from envspec.image.layers.types import PREFIX, Layer
from envspec.io.archives import parents_of
from envspec.models import Resolution
from envspec.names import normalised
from envspec.verifier.types import PYTHON

#: Begins a layer's text in the history of an image; see `config.image_config`.
OWN: Final = "envspec: "
_LABELS: Final = "config.Labels."
_ENV: Final = "config.Env"
#: Compared as layers.
_OF_LAYERS: Final = ("rootfs.diff_ids", "history")
#: `torch 2.9.1`, `3 wheels: attrs 25.1.0, ...`, `conda: zlib 1.3.1`, `2 conda packages: ...`.
_TITLE: Final = re.compile(r"(?:\d+ wheels: |\d+ conda packages: |conda: )?(.+)", re.DOTALL)
_DIST_INFO: Final = re.compile(r"-packages/([^/-]+)-[^/]+\.dist-info/")
_BYTECODE: Final = re.compile(r"__pycache__/([^/.]+)\.[^/]*\.pyc\Z")
_PACKAGE: Final = re.compile(r"([a-z0-9_][a-z0-9._-]*) (\S+)")


class ImageDrift(Enum):
    """A kind of difference. field: the part of the image. text: names a finding's path, expected and found."""

    PLATFORM = "platform", "config", "it is for {found}, not for {expected}"
    LABEL = "label", "label", "{path}: {found}; from the lock: {expected}"
    CONFIG = "config", "config", "{path}: {found}; from the lock: {expected}"
    CONFIG_BYTES = "config-bytes", "config", "its history or the form of its JSON differs, all else is the same"
    BASE = "base", "base", "its layers are not those of the locked base, {expected}"
    LAYER = "layer", "layer", "layer `{path}` has the content {found}, the lock gives {expected}"
    LAYER_EXTRA = "layer-extra", "layer", "layer `{path}` is not of the lock"
    LAYER_MISSING = "layer-missing", "layer", "layer `{path}` is missing"
    LAYER_ORDER = "layer-order", "layer", "the layers are in another order"
    LAYER_BYTES = "layer-bytes", "layer", "layer `{path}` is not the one in its config, {expected}: {found}"
    MISSING = "missing", "package", "is not in the image, the lock has {expected}"
    EXTRA = "extra", "package", "{found} is in the image and not in the lock"
    VERSION = "version", "package", "{found} is in the image, the lock has {expected}"
    CHANGED = "changed", "file", "{path} was changed"
    FILE_MISSING = "file-missing", "file", "{path} is missing"
    UNOWNED = "unowned", "file", "{path} is not of the lock"

    field: str
    text: str

    def __new__(cls, value: str, field: str, text: str) -> ImageDrift:
        member = object.__new__(cls)
        member._value_, member.field, member.text = value, field, text
        return member


class ImageFinding(Struct, frozen=True):
    """One difference.

    package: empty if it is not known, or of none.
    path: of a file, a layer's text in the history, a label or a key of the config.
    expected, found: versions, digests or values, if there are any.
    """

    drift: ImageDrift
    package: str = ""
    path: str = ""
    expected: str = ""
    found: str = ""

    @property
    def text(self) -> str:
        """One line, without the package's name."""
        return self.drift.text.format(path=self.path, expected=self.expected, found=self.found)


class ImageVerification(Struct):
    """The result for one platform's image.

    image: as the user wrote it.
    compared: `labels`, `config`, `base`, `layers`, `image ID`, `files`.
    not_compared: what -> the reason.
    """

    image: str
    id: str
    lock: str
    platform: str
    compared: list[str] = []
    not_compared: dict[str, str] = {}
    findings: list[ImageFinding] = []

    @property
    def is_same(self) -> bool:
        return not self.findings


def title_of(layer: Layer) -> str:
    """A layer's text in the history, as its source gives it."""
    return layer.created_by.removeprefix(OWN)


def compare_config(expected: Mapping[str, Any], found: Mapping[str, Any], *, whole: bool) -> Iterator[ImageFinding]:
    """Differences of two configs, without their layers. whole: whether `expected` has all keys."""
    wanted = dict(_values(expected))
    there = dict(_values(found))
    for path in sorted(wanted.keys() | there.keys() if whole else wanted):
        before, after = wanted.get(path), there.get(path)
        if before == after:
            continue
        drift = ImageDrift.LABEL if path.startswith(_LABELS) else ImageDrift.CONFIG
        yield ImageFinding(drift, "", path.removeprefix(_LABELS), _shown(before), _shown(after))


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an image's config, of any shape."""
    found = {}
    for path, value in _values(config):
        if path.startswith(_LABELS) and isinstance(value, str):
            found[path.removeprefix(_LABELS)] = value
    return found


def _values(value: object, path: str = "", depth: int = 3) -> Iterator[tuple[str, object]]:
    """(path, value) of a config's keys, and of its variables."""
    if path == _ENV and isinstance(value, list):
        seen = set[str]()
        for variable in value:
            name, _, text = str(variable).partition("=")
            yield f"{_ENV}.{name}" + " (again)" * (name in seen), text
            seen.add(name)
    elif isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield from _values(inner, f"{path}.{key}" if path else key, depth - 1)
    elif value is not None and path not in _OF_LAYERS:
        yield path, value


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def compare_layers(expected: Sequence[Layer], found: Sequence[Layer]) -> Iterator[ImageFinding]:
    """Differences of the layers above the base, by the digests of their content."""
    expected_ids, found_ids = [each.diff_id for each in expected], [each.diff_id for each in found]
    missing = [each for each in expected if each.diff_id not in found_ids]
    for layer in found:
        if layer.diff_id in expected_ids:
            continue
        title = title_of(layer)
        twin = next((each for each in missing if title_of(each) == title), None)
        if twin is None:
            yield ImageFinding(ImageDrift.LAYER_EXTRA, only_package(title), title, found=layer.diff_id)
        else:
            missing.remove(twin)
            yield ImageFinding(ImageDrift.LAYER, only_package(title), title, twin.diff_id, layer.diff_id)
    for each in missing:
        title = title_of(each)
        yield ImageFinding(ImageDrift.LAYER_MISSING, only_package(title), title, each.diff_id)
    if sorted(expected_ids) == sorted(found_ids) and expected_ids != found_ids:
        yield ImageFinding(ImageDrift.LAYER_ORDER)


def only_package(title: str) -> str:
    """The package of a layer of one package, else empty."""
    names = [*listed_packages([title])]
    return names[0] if len(names) == 1 else ""


def listed_packages(titles: Iterable[str]) -> dict[str, str]:
    """Name -> version, of the packages that layers' texts list."""
    found: dict[str, str] = {}
    for title in titles:
        matched = _TITLE.fullmatch(title)
        for text in matched[1].split(", ") if matched else ():
            if package := _PACKAGE.fullmatch(text):
                found[package[1]] = package[2]
    return found


def compare_packages(resolution: Resolution, found: Mapping[str, str]) -> Iterator[ImageFinding]:
    """Differences of names and versions. found: see `listed_packages`."""
    locked = {each.name: each.version for each in resolution.packages}
    locked |= {each.name: each.version for each in resolution.conda}
    for name in sorted(locked.keys() | found.keys()):
        expected, there = locked.get(name, ""), found.get(name, "")
        if not there:
            yield ImageFinding(ImageDrift.MISSING, name, expected=expected)
        elif not expected:
            yield ImageFinding(ImageDrift.EXTRA, name, found=there)
        elif expected != there:
            yield ImageFinding(ImageDrift.VERSION, name, expected=expected, found=there)


def compare_files(
    expected: Mapping[str, Kept], found: Mapping[str, Kept], removed: Iterable[str], owner_of: Callable[[str], str]
) -> Iterator[ImageFinding]:
    """Differences of entries, by path. removed: paths that layers of the image remove from those below."""
    for path in sorted(removed):
        yield ImageFinding(ImageDrift.FILE_MISSING, owner_of(path), f"/{path}")
    for path in sorted(expected.keys() | found.keys()):
        before, after = expected.get(path), found.get(path)
        if before == after:
            continue
        owner = owner_of(path)
        if before and after:
            yield ImageFinding(ImageDrift.CHANGED, owner, f"/{path}", before.value, after.value)
        elif before and before.kind != FOLDER:
            yield ImageFinding(ImageDrift.FILE_MISSING, owner, f"/{path}", before.value)
        elif after and after.kind != FOLDER:
            yield ImageFinding(ImageDrift.UNOWNED, owner, f"/{path}", found=after.value)


def changed_by_code(code: Mapping[str, Kept], owners: Mapping[str, str], workdir: str | None) -> dict[str, Kept]:
    """The entries of the project's layers in the place of the lock's files or folders, or outside of the working folder
    and the environment. owners: as of `owner_of`.
    """
    roots = tuple(f"{each}/" for each in (PREFIX, workdir) if each)
    above = {folder for path in owners for folder in parents_of(path)}
    found = {}
    for path, entry in code.items():
        is_locked = path in owners or path in above or _source_of(path) in owners
        if entry.kind != FOLDER and (is_locked or not path.startswith(roots)):
            found[path] = entry
    return found


def _source_of(path: str) -> str:
    """Of bytecode, the path of its source."""
    return _BYTECODE.sub(r"\1.py", path)


def owner_of(path: str, owners: Mapping[str, str], names: Collection[str]) -> str:
    """The package of a file, PYTHON, or empty. The owner of bytecode is that of its source.

    owners: path -> `<name> <version>`, with `conda's` before it, or a text about Python; see `OwnedPath`.
    """
    if folder := _DIST_INFO.search(path):
        return normalised(folder[1])
    known = owners.get(path) or owners.get(_source_of(path), "")
    name = known.removeprefix("conda's ").partition(" ")[0]
    if name in names or not known:
        return name
    return PYTHON
