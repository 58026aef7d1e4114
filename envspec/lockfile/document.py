"""envspec.lock, the document of record: a Lock as TOML text, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from envspec import toml
from envspec.credentials import channels_without_credentials, without_credentials
from envspec.lockfile import toml_writer
from envspec.lockfile.codec import from_table, to_table
from envspec.lockfile.header import FORMAT, REQUIRES, RESTORE, DamagedLock, add_checksum, verify_checksum
from envspec.lockfile.toml_writer import Value
from envspec.models import (
    BaseImage,
    CondaChannel,
    CondaPackage,
    Conformance,
    Decision,
    Dependent,
    Driver,
    GpuCode,
    ImageId,
    ImageSettings,
    Lock,
    Name,
    NamedIndex,
    Package,
    PinnedDigest,
    Platform,
    Python,
    Resolution,
    SystemLayer,
    Target,
)

_OnPlatform = TypeVar("_OnPlatform", PinnedDigest, SystemLayer)
_HEADER_KEYS: Final = frozenset(
    {"format", "requires_envspec", "name", "input_sha256", "as_of", "facts", "gpus", "partial_channels", "files"}
)


@dataclass(frozen=True, slots=True)
class _PackageTime:
    """A package with an `as_of` of its own."""

    name: Name
    as_of: datetime


@dataclass(frozen=True, slots=True)
class _Resolution:
    platform: Platform
    python: Python
    glibc: tuple[int, int] | None
    macos: tuple[int, int] | None
    warnings: tuple[str, ...]
    conda: tuple[CondaPackage, ...]
    package: tuple[Package, ...]


@dataclass(frozen=True, slots=True)
class _Body:
    """What follows the header: every key, in the order in which they are written."""

    channel: tuple[CondaChannel, ...]
    index: tuple[NamedIndex, ...]
    package_as_of: tuple[_PackageTime, ...]
    conda_as_of: tuple[_PackageTime, ...]
    decision: tuple[Decision, ...]
    base_image: BaseImage | None
    driver: Driver | None
    image: ImageSettings | None
    conformance: Conformance | None
    system_layer: tuple[SystemLayer, ...]
    image_id: tuple[ImageId, ...]
    gpu_code: tuple[GpuCode, ...]
    resolution: tuple[_Resolution, ...]


def dump(lock: Lock, files: Mapping[str, str]) -> str:
    """The text of envspec.lock.

    files: name -> SHA-256 (hexadecimal) of every other file that is written into the lock's folder.
    Raises:
        ValueError: a time without a time zone, or a format that this envspec does not write.
    """
    if lock.format != FORMAT:
        raise ValueError(f"this envspec writes format {FORMAT}, not {lock.format}")
    lock = canonical(lock)
    body: dict[str, Any] = to_table(_body(lock))
    text = ""
    for key, value in body.items():
        if key == "resolution":
            text += "".join(map(_resolution_text, value))
        elif isinstance(value, dict):
            text += toml_writer.table(key, value)
        elif value is not None:
            text += toml_writer.tables(key, value)
    return add_checksum(_header(lock, files), text)


def load(text: str, where: str) -> Lock:
    """The lock that `text` describes. where: the lock's name in errors.

    Raises:
        DamagedLock, NewerFormat: see `header.verify_checksum`; DamagedLock also names the key that is missing, unknown
        or wrong.
    """
    header, data = verify_checksum(text.encode(), where)
    try:
        root = toml.loads(data.decode())
        body = from_table(_Body, {key: value for key, value in root.items() if key not in _HEADER_KEYS})
    except ValueError as fault:
        raise DamagedLock(f"{where}: {fault}", hint=RESTORE) from fault
    return Lock(
        format=header.format,
        name=header.name,
        input_sha256=header.input_sha256,
        as_of=header.as_of,
        facts=header.facts,
        gpus=header.gpus,
        resolutions=tuple(
            Resolution(
                Target(item.platform, item.python, item.glibc, item.macos), item.package, item.warnings, item.conda
            )
            for item in body.resolution
        ),
        decisions=body.decision,
        base_image=body.base_image,
        driver=body.driver,
        gpu_code=body.gpu_code,
        package_as_of=tuple((item.name, item.as_of) for item in body.package_as_of),
        conda_as_of=tuple((item.name, item.as_of) for item in body.conda_as_of),
        channels=body.channel,
        indexes=body.index,
        image=body.image or ImageSettings(),
        system=body.system_layer,
        images=body.image_id,
        conformance=body.conformance,
    )


def identity(lock: Lock) -> str:
    """SHA-256 (hexadecimal) of all that an image follows from: the document without its files, without what builds
    have found (`system`, `images`), what is tested in the image, the digests by which installations are compared, and
    `indexes`: these decide what is built, and the wheels that were built are here by their hashes.
    """
    resolutions = tuple(
        replace(each, packages=tuple(replace(package, record_sha256=None) for package in each.packages))
        for each in lock.resolutions
    )
    bare = replace(lock, resolutions=resolutions, indexes=(), system=(), images=(), conformance=None)
    if lock.conformance is not None:
        # The spec's hash is over its [conformance] as well; all else of the spec that an image follows from is here.
        bare = replace(bare, input_sha256="")
    return hashlib.sha256(dump(bare, {}).encode()).hexdigest()


def canonical(lock: Lock) -> Lock:
    """The same lock, sorted, and with no URL that carries a user name, a password or a channel's token.

    Resolutions, digests and images by platform, packages, dependents and services by name, decisions by key. The
    spec's lists of GPUs, of channels and of indexes, what a conda package depends on and a resolution's warnings keep
    their order, which carries meaning.
    """
    return replace(
        lock,
        resolutions=tuple(
            sorted(map(_canonical_resolution, lock.resolutions), key=lambda item: item.target.platform.value)
        ),
        decisions=tuple(sorted(lock.decisions, key=_decision_key)),
        base_image=lock.base_image and replace(lock.base_image, digests=_by_platform(lock.base_image.digests)),
        gpu_code=tuple(sorted(lock.gpu_code, key=lambda item: (item.platform.value, item.package, item.version))),
        package_as_of=tuple(sorted(lock.package_as_of)),
        conda_as_of=tuple(sorted(lock.conda_as_of)),
        channels=tuple(
            replace(each, name=channels_without_credentials(each.name), url=channels_without_credentials(each.url))
            for each in lock.channels
        ),
        indexes=public_indexes(lock.indexes),
        image=replace(
            lock.image,
            env=tuple(sorted(lock.image.env)),
            apt=tuple(sorted(lock.image.apt)),
            services=tuple(sorted(lock.image.services, key=lambda item: item.name)),
        ),
        system=_by_platform(lock.system),
        images=tuple(sorted(lock.images, key=lambda item: (item.platform.value, item.pyc))),
    )


def public_indexes(indexes: Iterable[NamedIndex]) -> tuple[NamedIndex, ...]:
    """The spec's own indexes as they are written into a lock."""
    return tuple(replace(each, url=without_credentials(each.url)) for each in indexes)


def _header(lock: Lock, files: Mapping[str, str]) -> str:
    values: dict[str, Value] = {
        "format": FORMAT,
        "requires_envspec": REQUIRES,
        "name": lock.name,
        "input_sha256": lock.input_sha256,
        "as_of": lock.as_of,
        "facts": lock.facts,
    }
    # Written even if it is empty: the header is read alone, by code that expects every key.
    gpus = f"gpus = [{', '.join(map(toml_writer.string, lock.gpus))}]\n"
    # For `--check`, which reads nothing but the header, and warns of it.
    partial: list[Value] = [
        {"name": each.name, "records": each.part.records, "sha256": each.part.sha256}
        for each in lock.channels
        if each.part
    ]
    return (
        toml_writer.pairs(values)
        + gpus
        + toml_writer.pairs({"partial_channels": partial})
        + toml_writer.table("files", dict(sorted(files.items())))
    )


def _body(lock: Lock) -> _Body:
    return _Body(
        channel=lock.channels,
        # Only the spec's own: they decide what a build gives, and nothing else that follows from a lock.
        index=lock.indexes,
        package_as_of=tuple(_PackageTime(*each) for each in lock.package_as_of),
        conda_as_of=tuple(_PackageTime(*each) for each in lock.conda_as_of),
        decision=lock.decisions,
        base_image=lock.base_image,
        driver=lock.driver,
        # Nothing is decided about an image for macOS and Windows.
        image=lock.image if lock.image != ImageSettings() else None,
        conformance=lock.conformance,
        system_layer=lock.system,
        image_id=lock.images,
        gpu_code=lock.gpu_code,
        resolution=tuple(
            _Resolution(
                each.target.platform,
                each.target.python,
                each.target.glibc,
                each.target.macos,
                each.warnings,
                each.conda,
                each.packages,
            )
            for each in lock.resolutions
        ),
    )


def _resolution_text(table: Mapping[str, Any]) -> str:
    arrays = ("conda", "package")
    text = toml_writer.tables("resolution", [{key: value for key, value in table.items() if key not in arrays}])
    return text + "".join(toml_writer.tables(f"resolution.{key}", table[key]) for key in arrays)


def _decision_key(decision: Decision) -> tuple[str, ...]:
    platform = decision.platform.value if decision.platform else ""
    return decision.what, platform, decision.value, decision.why, decision.source


def _canonical_resolution(resolution: Resolution) -> Resolution:
    python = resolution.target.python
    target = replace(resolution.target, python=replace(python, url=python.url and without_credentials(python.url)))
    packages = sorted(map(_canonical_package, resolution.packages), key=lambda item: (item.name, item.version))
    conda = sorted(map(_canonical_conda_package, resolution.conda), key=lambda item: item.name)
    return replace(resolution, target=target, packages=tuple(packages), conda=tuple(conda))


def _canonical_package(package: Package) -> Package:
    file = package.file
    return replace(
        package,
        file=replace(file, url=file.url and without_credentials(file.url)),
        # A requirement may be a URL that the spec gives in full.
        required_by=_canonical_dependents(package.required_by, without_credentials),
        extras=tuple(sorted(package.extras)),
    )


def _canonical_conda_package(package: CondaPackage) -> CondaPackage:
    return replace(
        package,
        channel=channels_without_credentials(package.channel),
        url=channels_without_credentials(package.url),
        provides=tuple(sorted(package.provides)),
        # A requirement may name its channel by URL, before `::`.
        required_by=_canonical_dependents(package.required_by, channels_without_credentials),
    )


def _canonical_dependents(dependents: Iterable[Dependent], public: Callable[[str], str]) -> tuple[Dependent, ...]:
    return tuple(sorted({replace(each, requirement=public(each.requirement)) for each in dependents}))


def _by_platform(items: Iterable[_OnPlatform]) -> tuple[_OnPlatform, ...]:
    return tuple(sorted(items, key=lambda item: item.platform.value))
