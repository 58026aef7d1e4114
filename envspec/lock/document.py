"""envspec.lock, the document of record: a Lock as TOML text, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from envspec import toml
from envspec.lock import writer
from envspec.lock.canonical import canonical
from envspec.lock.fields import Fields
from envspec.lock.head import FORMAT, NEEDS, DamagedLock, Part, unseal
from envspec.lock.head import seal as _seal
from envspec.lock.row import Row
from envspec.lock.rows import (
    BASE_IMAGE,
    CHANNEL,
    CONDA_PACKAGE,
    CONFORMANCE,
    DECISION,
    DRIVER,
    GPU_CODE,
    IMAGE,
    IMAGE_ID,
    INDEX,
    OWN_MOMENT,
    PACKAGE,
    SYSTEM_LAYER,
    TARGET,
    OwnMoment,
)
from envspec.lock.writer import Value
from envspec.models import CondaChannel, ImageSettings, Lock, Resolution

T = TypeVar("T")
_RESTORE: Final = "run `envspec lock SPEC` to write it again, or restore it from version control"


def dump(lock: Lock, files: Mapping[str, str]) -> str:
    """The text of envspec.lock.

    files: name -> SHA-256 (hexadecimal) of every other file that is written into the lock's folder.
    Raises:
        ValueError: a moment without a time zone, or a format that this envspec does not write.
    """
    if lock.format != FORMAT:
        raise ValueError(f"this envspec writes format {FORMAT}, not {lock.format}")
    lock = canonical(lock)
    head = writer.pairs(
        {
            "format": FORMAT,
            "needs": NEEDS,
            "name": lock.name,
            "input_sha256": lock.input_sha256,
            "as_of": lock.as_of,
            "facts": lock.facts,
        }
    )
    # Written even when empty: the head is read alone, by code that expects every key.
    head += f"gpus = [{', '.join(map(writer.string, lock.gpus))}]\n"
    # For `--check`, which reads nothing but the head, and has to warn of it.
    head += writer.pairs({"parts": [words for channel in lock.channels for words in _part(channel)]})
    head += writer.table("files", dict(sorted(files.items())))
    rest = writer.tables("channel", map(CHANNEL.write, lock.channels))
    # Only where the spec has its own: they decide what a build gives, and nothing else that follows from a lock.
    rest += writer.tables("index", map(INDEX.write, lock.indexes))
    rest += writer.tables("package_as_of", _moments(lock.package_as_of))
    rest += writer.tables("conda_as_of", _moments(lock.conda_as_of))
    rest += writer.tables("decision", map(DECISION.write, lock.decisions))
    rest += writer.table("base_image", BASE_IMAGE.write(lock.base_image)) if lock.base_image else ""
    rest += writer.table("driver", DRIVER.write(lock.driver)) if lock.driver else ""
    # Left out where nothing was decided: a lock for macOS and Windows has none of it.
    rest += writer.table("image", IMAGE.write(lock.image)) if lock.image != ImageSettings() else ""
    rest += writer.table("conformance", CONFORMANCE.write(lock.conformance)) if lock.conformance else ""
    rest += writer.tables("system_layer", map(SYSTEM_LAYER.write, lock.system))
    rest += writer.tables("image_id", map(IMAGE_ID.write, lock.images))
    rest += writer.tables("gpu_code", map(GPU_CODE.write, lock.gpu_code))
    rest += "".join(_resolution(resolution) for resolution in lock.resolutions)
    return _seal(head, rest)


def identity(lock: Lock) -> str:
    """SHA-256 (hexadecimal) of all that an image follows from: the document without its files, without what builds
    have found (`system`, `images`), what is tested in the image, the digests by which installations are compared, and
    `indexes`: these decide what is built, and the wheels that were built are here by their hashes.
    """
    parts = tuple(map(_unanchored, lock.resolutions))
    bare = replace(lock, resolutions=parts, indexes=(), system=(), images=(), conformance=None)
    if lock.conformance is not None:
        # The spec's hash is over its [conformance] as well; all else of the spec that an image follows from is here.
        bare = replace(bare, input_sha256="")
    return hashlib.sha256(dump(bare, {}).encode()).hexdigest()


def _unanchored(resolution: Resolution) -> Resolution:
    return replace(resolution, packages=tuple(replace(each, contents=None) for each in resolution.packages))


def load(text: str, where: str) -> Lock:
    """The lock that `text` holds. where: how messages name it.

    Raises:
        DamagedLock, NewerFormat: see `head.unseal`; DamagedLock also names the key that is missing or wrong.
    """
    head, body = unseal(text.encode(), where)
    try:
        root = Fields(toml.loads(body.decode()))
        return Lock(
            format=head.format,
            name=head.name,
            input_sha256=head.input_sha256,
            as_of=head.as_of,
            resolutions=tuple(_read_resolution(item) for item in root.tables("resolution")),
            decisions=_all(DECISION, root, "decision"),
            base_image=BASE_IMAGE.read(image) if (image := root.table("base_image")) else None,
            driver=DRIVER.read(driver) if (driver := root.table("driver")) else None,
            gpu_code=_all(GPU_CODE, root, "gpu_code"),
            gpus=head.gpus,
            facts=head.facts,
            package_as_of=_read_moments(root, "package_as_of"),
            conda_as_of=_read_moments(root, "conda_as_of"),
            channels=_all(CHANNEL, root, "channel"),
            indexes=_all(INDEX, root, "index"),
            image=IMAGE.read(settings) if (settings := root.table("image")) else ImageSettings(),
            system=_all(SYSTEM_LAYER, root, "system_layer"),
            images=_all(IMAGE_ID, root, "image_id"),
            conformance=CONFORMANCE.read(asked) if (asked := root.table("conformance")) else None,
        )
    except ValueError as fault:
        raise DamagedLock(f"{where}: {fault}", hint=_RESTORE) from fault


def _resolution(resolution: Resolution) -> str:
    values: dict[str, Value] = {**TARGET.write(resolution.target), "warnings": resolution.warnings}
    return (
        writer.tables("resolution", [values])
        + writer.tables("resolution.conda", map(CONDA_PACKAGE.write, resolution.conda))
        + writer.tables("resolution.package", map(PACKAGE.write, resolution.packages))
    )


def _read_resolution(item: Fields) -> Resolution:
    return Resolution(
        target=TARGET.read(item),
        packages=_all(PACKAGE, item, "package"),
        warnings=item.texts("warnings"),
        conda=_all(CONDA_PACKAGE, item, "conda"),
    )


def _moments(pairs: Iterable[tuple[str, datetime]]) -> list[dict[str, Value]]:
    return [OWN_MOMENT.write(OwnMoment(*pair)) for pair in pairs]


def _read_moments(root: Fields, key: str) -> tuple[tuple[str, datetime], ...]:
    return tuple((row.name, row.as_of) for row in _all(OWN_MOMENT, root, key))


def _all(row: Row[T], item: Fields, key: str) -> tuple[T, ...]:
    return tuple(row.read(inner) for inner in item.tables(key))


def _part(channel: CondaChannel) -> list[str]:
    part = channel.part
    return [str(Part(channel.name, part.rows, part.sha256))] if part else []
