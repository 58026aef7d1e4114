"""Envspec.lock, the document of record: a Lock as TOML text, and back.

A field's name is its key. `Annotated[str, FORM]` is text of that form (`envspec.names`), `Annotated[int | None, "all"]`
a number or `all`, `tuple[int, int]` a version such as glibc's `2.39`, `tuple[tuple[str, str], ...]` an inline table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct

from envspec import documents
from envspec.credentials import channels_without_credentials, without_credentials
from envspec.lockfile import toml_writer
from envspec.lockfile.header import FORMAT, OPTIONAL, REQUIRES, RESTORE, DamagedLock, add_checksum, verify_checksum
from envspec.lockfile.toml_writer import Value
from envspec.models import (
    BuiltWheel,
    CondaPackage,
    CpuBuild,
    Decision,
    Dependent,
    GpuCode,
    ImageSettings,
    Lock,
    Name,
    NamedIndex,
    Package,
    PinnedDigest,
    Resolution,
    SharedFiles,
    SystemLayer,
    Target,
    WheelFile,
)
from envspec.names import Form
from envspec.reasons import Reason, Why
from envspec.structs import defaults_of, replace

T = TypeVar("T")

#: The keys of tables whose keys are not the fields of their class in their order; `key=field` where the names differ.
_KEYS: Final[Mapping[type, str]] = {
    Lock: "channel=channels index=indexes package_as_of conda_as_of package_age=package_ages override=overrides "
    "commit=commits decision=decisions "
    "base_image driver "
    "platform_cuda image "
    "conformance export system_layer=system image_id=images gpu_code cpu_build=cpu_builds resolution=resolutions",
    # The keys of its target stand before them.
    Resolution: "warnings on_top_of installed conda package=packages build=builds shared_file=shared",
    SharedFiles: "owner others why paths",
    Decision: "what platform value why source",
    GpuCode: "package version platform variant sm ptx source",
    CpuBuild: "package version platform instead index source",
    WheelFile: "index filename size_bytes sha256 hash url",
    BuiltWheel: "filename size_bytes sha256",
    Package: "name version extras uploaded file unbuilt built record_sha256 wrong_record required_by removed "
    "rejected preferred",
}
#: Fields of a Lock that the header has.
_HEADER_FIELDS: Final = (
    "format",
    "name",
    "spec",
    "input_sha256",
    "as_of",
    "as_of_spec",
    "base_sha256",
    "facts",
    "gpus",
)


def _to_table(value: Any) -> dict[str, Value]:
    """The table of a value. Empty values are in it: `toml_writer` leaves them out."""
    return {key: codec.write(getattr(value, field)) for key, (field, codec) in _columns(value.__class__).items()}


def _from_table(cls: type[T], table: object, path: str) -> T:
    return cls(**_fields(cls, table, path))


def _fields(cls: type, table: object, path: str) -> dict[str, Any]:
    """The fields of the class that `table`, parsed TOML, describes. path: of the table, ends in `.` unless empty.

    Raises:
        ValueError: a key is missing, unknown or has a wrong value; names the whole path of the key.
    """
    if not isinstance(table, dict):
        raise _wrong(path.removesuffix("."), "a table", table)
    columns = _columns(cls)
    values: dict[str, Any] = {}
    for key, (field, codec) in columns.items():
        if key in table:
            values[field] = codec.read(table[key], f"{path}{key}")
        elif codec.default is NODEFAULT:
            raise ValueError(f"`{path}{key}` is missing")
        else:
            values[field] = codec.default
    if unknown := table.keys() - columns.keys():
        raise ValueError(f"`{path}{min(unknown)}` is not a key of this format")
    return values


class _Codec(NamedTuple):
    """How one value is written and read. default: the value of a missing key, NODEFAULT if the key is required."""

    write: Callable[[Any], Value]
    read: Callable[[Any, str], Any]
    default: Any = NODEFAULT


@cache
def _columns(cls: type) -> Mapping[str, tuple[str, _Codec]]:
    """Key -> (field, codec), in the order in which the keys are written."""
    hints = get_type_hints(cls, include_extras=True)
    defaults = defaults_of(cls)
    columns = {}
    keys = _KEYS[cls].split() if cls in _KEYS else defaults
    for word in keys:
        key, _, field = word.partition("=")
        name = field or key
        columns[key] = (name, _with_default(_codec(hints[name]), defaults[name]))
    return columns


def _with_default(codec: _Codec, default: Any) -> _Codec:
    if default is NODEFAULT:
        return codec
    if default not in ("", ImageSettings()):
        return codec._replace(default=default)
    return _Codec(lambda value: None if value == default else codec.write(value), codec.read, default)


@cache
def _codec(hint: Any) -> _Codec:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        if isinstance(arguments[1], Form):
            return _Codec(_same, partial(_formed, arguments[1]))
        return _spelled(arguments[1], _codec(arguments[0]))
    if type(None) in arguments:
        inner = _codec(arguments[0])
        return _Codec(lambda value: None if value is None else inner.write(value), inner.read, None)
    if get_origin(hint) is tuple:
        return _array(_codec(arguments[0]))
    if issubclass(hint, Enum):
        return _Codec(lambda member: member.value, partial(_member, hint))
    return _Codec(_to_table, lambda table, path: _from_table(hint, table, f"{path}."))


def _array(item: _Codec) -> _Codec:
    def read(values: object, path: str) -> tuple[Any, ...]:
        found = []
        for position, value in enumerate(_list(values, path)):
            found.append(item.read(value, f"{path}[{position}]"))
        return tuple(found)

    return _Codec(lambda values: list(map(item.write, values)), read, ())


def _spelled(none: str, inner: _Codec) -> _Codec:
    """As `inner`, with a text for None."""
    return _Codec(
        lambda value: none if value is None else inner.write(value),
        lambda value, path: None if value == none else inner.read(value, path),
    )


def _same(value: Any) -> Value:
    plain: Value = value
    return plain


def _wrong(path: str, expected: str, found: object) -> ValueError:
    return ValueError(f"`{path}` is not {expected}: {found!r}")


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(path, "a list", value)
    return value


def _instance(kind: type, expected: str, value: object, path: str) -> Any:
    # A boolean is an integer in Python, not in TOML.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(path, expected, value)
    return value


_text = partial(_instance, str, "a string")


def _formed(form: Form, value: object, path: str) -> str:
    text: str = _text(value, path)
    if not form.fits(text):
        raise _wrong(path, form.words, text)
    return text


def _time(value: object, path: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _wrong(path, "a time with a time zone", value)
    return value


def _member(kind: type[Enum], value: object, path: str) -> Enum:
    for member in kind:
        if member.value == value:
            return member
    raise _wrong(path, f"one of {', '.join(str(member.value) for member in kind)}", value)


def _level(value: object, path: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", _text(value, path))
    if not found:
        raise _wrong(path, "a version such as 2.39", value)
    return int(found[1]), int(found[2])


def _pairs(value: object, path: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _wrong(path, "a table of strings", value)
    return tuple(sorted(value.items()))


class _PackageTime(Struct, frozen=True):
    """A package with an `as_of` of its own."""

    name: Name
    as_of: datetime


def _package_time(value: object, path: str) -> tuple[str, datetime]:
    found = _from_table(_PackageTime, value, f"{path}.")
    return found.name, found.as_of


def _resolution(value: object, path: str) -> Resolution:
    if not isinstance(value, dict):
        raise _wrong(path, "a table", value)
    of_target, others = {}, {}
    for key, inner in value.items():
        if key in _columns(Target):
            of_target[key] = inner
        else:
            others[key] = inner
    target = _from_table(Target, of_target, f"{path}.")
    return Resolution(target=target, **_fields(Resolution, others, f"{path}."))


def _from_reason(one: Reason) -> Value:
    return {"code": one.code, **dict(one.values), "because": list(map(_from_reason, one.because))}


def _to_reason(value: object, path: str) -> Reason:
    if not isinstance(value, dict):
        raise _wrong(path, "a table", value)
    values = {key: text for key, text in value.items() if key not in ("code", "because")}
    because = _codec(Why).read(value.get("because", []), f"{path}.because")
    return Reason(_text(value.get("code"), f"{path}.code"), _pairs(values, path), because)


_SIMPLE: Final[Mapping[Any, _Codec]] = {
    Reason: _Codec(_from_reason, _to_reason),
    str: _Codec(_same, _text),
    int: _Codec(_same, partial(_instance, int, "an integer")),
    bool: _Codec(_same, partial(_instance, bool, "true or false")),
    datetime: _Codec(_same, _time),
    tuple[int, int]: _Codec(lambda level: f"{level[0]}.{level[1]}", _level),
    tuple[tuple[str, str], ...]: _Codec(dict, _pairs, ()),
    tuple[Name, datetime]: _Codec(lambda pair: {"name": pair[0], "as_of": pair[1]}, _package_time),
    Resolution: _Codec(lambda one: _to_table(one.target) | _to_table(one), _resolution),
}

_OnPlatform = TypeVar("_OnPlatform", PinnedDigest, SystemLayer)


def dump(lock: Lock, files: Mapping[str, str]) -> str:
    """The text of envspec.lock.

    files: name -> SHA-256 (hexadecimal) of every other file that is written into the lock's folder.
    Raises:
        ValueError: a time without a time zone, or a format that this envspec does not write.
    """
    if lock.format != FORMAT:
        raise ValueError(f"this envspec writes format {FORMAT}, not {lock.format}")
    lock = canonical(lock)
    table: dict[str, Any] = _to_table(lock)
    text = ""
    for key, value in table.items():
        if key == "resolution":
            text += "".join(map(_resolution_text, value))
        elif isinstance(value, dict):
            text += toml_writer.table(key, value)
        elif value is not None:
            text += toml_writer.tables(key, value)
    return add_checksum(_header(lock, files), text)


def load(text: str, where: str, parse: Callable[[str], dict[str, Any]] = documents.parse_toml) -> Lock:
    """The lock that `text` describes. where: the lock's name in errors.

    Raises:
        DamagedLock, NewerFormat: see `header.verify_checksum`; DamagedLock also names the key that is missing, unknown
        or wrong.
    """
    header, data = verify_checksum(text.encode(), where)
    try:
        root = parse(data.decode())
        body = {key: value for key, value in root.items() if key not in (*header._fields, "requires_envspec")}
        return Lock(**{name: getattr(header, name) for name in _HEADER_FIELDS}, **_fields(Lock, body, ""))
    except ValueError as error:
        raise DamagedLock(f"{where}: {error}", hint=RESTORE) from error


def identity(lock: Lock) -> str:
    """SHA-256 (hexadecimal) of all that an image follows from: the document without its files, the spec's place, what
    builds have found (`system`, `images`), what is tested in the image, the digests by which installations are
    compared, which packages are CPU builds, and `indexes` and `builds`: these decide what is built, and the wheels that
    were built are here by their hashes.
    """
    resolutions = []
    for part in lock.resolutions:
        packages = [replace(each, record_sha256=None, wrong_record=()) for each in part.packages]
        if lock.is_adopted:
            # Other words select the same packages for other reasons.
            packages = [replace(each, required_by=()) for each in packages]
        resolutions.append(replace(part, packages=tuple(packages), builds=()))
    bare = replace(
        lock,
        resolutions=tuple(resolutions),
        cpu_builds=(),
        indexes=(),
        system=(),
        images=(),
        conformance=None,
        spec="",
        base_sha256="",
    )
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
        overrides=tuple(sorted(lock.overrides)),
        commits=tuple(sorted(lock.commits)),
        decisions=tuple(sorted(lock.decisions, key=decision_key)),
        base_image=lock.base_image and replace(lock.base_image, digests=_by_platform(lock.base_image.digests)),
        platform_cuda=tuple(sorted(lock.platform_cuda, key=lambda item: item.platform.value)),
        gpu_code=tuple(sorted(lock.gpu_code, key=lambda item: (item.platform.value, item.package, item.version))),
        cpu_builds=tuple(sorted(lock.cpu_builds, key=lambda item: (item.platform.value, item.package))),
        package_as_of=tuple(sorted(lock.package_as_of)),
        conda_as_of=tuple(sorted(lock.conda_as_of)),
        package_ages=tuple(sorted(lock.package_ages, key=lambda item: item.name)),
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
    # Written even if it is empty: the header is read alone, by code that expects every key.
    gpus = f"gpus = [{', '.join(map(toml_writer.string, lock.gpus))}]\n"
    values: dict[str, Value] = {"format": FORMAT, "requires_envspec": REQUIRES}
    for name in _HEADER_FIELDS[1:]:
        value = getattr(lock, name)
        if name != "gpus" and (value or name not in OPTIONAL):
            values[name] = value
    # For `--check`, which reads nothing but the header, and warns of it.
    partial_channels: list[Value] = []
    for channel in lock.channels:
        if part := channel.part:
            partial_channels.append({"name": channel.name, "records": part.records, "sha256": part.sha256})
    return (
        toml_writer.pairs(values)
        + gpus
        + toml_writer.pairs({"partial_channels": partial_channels})
        + toml_writer.table("files", dict(sorted(files.items())))
    )


def _resolution_text(table: Mapping[str, Any]) -> str:
    arrays = ("installed", "conda", "package", "build", "shared_file")
    text = toml_writer.tables("resolution", [{key: value for key, value in table.items() if key not in arrays}])
    for key in arrays:
        text += toml_writer.tables(f"resolution.{key}", table[key])
    return text


def decision_key(decision: Decision) -> tuple[object, ...]:
    """By which a lock's decisions are sorted; words have no part in it."""
    platform = decision.platform.value if decision.platform else ""
    return decision.what, platform, decision.value, decision.why, decision.source


def _canonical_resolution(resolution: Resolution) -> Resolution:
    python = resolution.target.python
    target = replace(resolution.target, python=replace(python, url=python.url and without_credentials(python.url)))
    packages = sorted(map(_canonical_package, resolution.packages), key=lambda item: (item.name, item.version))
    conda = sorted(map(_canonical_conda_package, resolution.conda), key=lambda item: item.name)
    builds = (replace(each, env=tuple(sorted(each.env))) for each in resolution.builds)
    return replace(
        resolution,
        target=target,
        packages=tuple(packages),
        conda=tuple(conda),
        builds=tuple(sorted(builds, key=lambda item: item.name)),
        shared=tuple(sorted(resolution.shared)),
        installed=tuple(
            replace(each, required_by=_canonical_dependents(each.required_by, without_credentials))
            for each in sorted(resolution.installed)
        ),
    )


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
