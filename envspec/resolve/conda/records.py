"""A channel's records: rattler's and envspec's packages, both ways, and which of them are CUDA builds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from envspec.adopt import conda as adopt
from envspec.models import SPEC, CondaPackage, Dependent
from envspec.resolve.conda.channel_client import ChannelError, without_credentials
from envspec.resolve.types import Channel, CondaRequest
from envspec.structs import replace

if TYPE_CHECKING:
    from rattler import GenericVirtualPackage, PackageRecord, RepoDataRecord, Version

_Record = TypeVar("_Record", bound="PackageRecord")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAME: Final = re.compile(r"(?:.*::)?\s*([A-Za-z0-9_.-]+)")
# `cuda129_mkl_py313_h7947483_302`, `cuda_py312_h4a51b5c_1` (conda-forge), `py3.11_cuda12.1_cudnn8.9.2_0` (pytorch).
_CUDA_BUILD: Final = re.compile(r"^cuda|cuda\d")
_CPU_BUILD: Final = re.compile(r"(^|_)cpu(_|\d|$)")
#: Fields of a package that a channel has by the same name; those of the second group are arguments of rattler's record.
_REQUIRED: Final = ("name", "version", "build_number", "subdir")
_OPTIONAL: Final = ("license", "license_family", "python_site_packages_path")
#: `_CUDA_BUILD` as a match spec.
_CUDA_BUILDS: Final = '[build="^(cuda|.*cuda[0-9]).*$"]'


@lru_cache(maxsize=1 << 16)
def name_of(spec: str) -> str:
    """The name in a match spec: `numpy` of `conda-forge::numpy >=2`; in lower case, as channels have it."""
    found = _NAME.match(spec)
    return found[1].lower() if found else spec


def specs_of(name: str, specs: Iterable[str]) -> list[str]:
    """The match specs of a name."""
    return [spec for spec in specs if name_of(spec) == name]


def record_name(record: PackageRecord) -> str:
    return record.name.normalized


def channel_name(url: str, channels: Sequence[Channel]) -> str:
    """The name of the channel at a URL; the URL for one that is not among them."""
    for channel in channels:
        if channel.url == url:
            return channel.name
    return url


def package_of(record: RepoDataRecord, channels: Sequence[Channel]) -> CondaPackage:
    """A record of one of these channels, without what requires it.

    Raises:
        ChannelError: the channel gives no SHA-256 for it, or values that no package can have.
    """
    fields: dict[str, Any] = json.loads(record.to_json())
    home, url = without_credentials(fields["channel"]), without_credentials(fields["url"])
    if "sha256" not in fields:
        raise ChannelError(
            url,
            "its channel gives no SHA-256 for it, so it cannot be locked",
            hint="index the channel again (`conda index`, `rattler-index`), or get the package from another one",
        )
    package = adopt.package_of(fields, record.file_name, channel_name(home, channels), url)
    if wrong := adopt.wrong_field(package):
        raise ChannelError(
            repr(url),
            f"its record in the channel has {wrong}",
            hint="report it to the channel's operator, or get the package from another one",
        )
    return package


def record_of(package: CondaPackage) -> RepoDataRecord:
    """The record that rattler solves with and installs."""
    from rattler import PackageRecord, RepoDataRecord
    from rattler.package.build_string import BuildString

    record = PackageRecord(
        **{key: getattr(package, key) for key in (*_REQUIRED, *_OPTIONAL)},
        build=BuildString(package.build),
        noarch=package.noarch or None,  # type: ignore[arg-type]
        depends=list(package.depends),
        constrains=list(package.constrains),
        sha256=bytes.fromhex(package.sha256),
        md5=bytes.fromhex(package.md5) if package.md5 else None,
        size=package.size_bytes,
    )
    record.features = package.features
    record.track_features = list(package.track_features)
    if package.timestamp_ms is not None:
        # py-rattler truncates a float of seconds to milliseconds: without the half, some come out one lower.
        record.timestamp = _EPOCH + timedelta(milliseconds=package.timestamp_ms, microseconds=500)
    channel = package.url.rsplit("/", 2)[0]
    return RepoDataRecord(record, package.filename, package.url, channel)


def available_records(packages: Iterable[CondaPackage], records: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    """The records of the packages that the channel still has."""
    by_identity: dict[tuple[str, str, str], RepoDataRecord] = {}
    for record in records:
        if record.sha256:
            by_identity[record.subdir, record.file_name, record.sha256.hex()] = record
    found: list[RepoDataRecord] = []
    for package in packages:
        if same := by_identity.get((package.subdir, package.filename, package.sha256)):
            found.append(same)
    return found


def with_askers(packages: Sequence[CondaPackage], requirements: Iterable[str]) -> tuple[CondaPackage, ...]:
    """The packages sorted by name, each with what requires it in which words."""
    askers: dict[str, set[Dependent]] = {}
    for requirement in requirements:
        askers.setdefault(name_of(requirement), set()).add(Dependent(SPEC, requirement))
    for package in packages:
        for depend in package.depends:
            askers.setdefault(name_of(depend), set()).add(Dependent(package.name, depend))
    explained: list[CondaPackage] = []
    for package in sorted(packages, key=lambda package: package.name):
        required_by = tuple(sorted(askers.get(package.name, ())))
        explained.append(replace(package, required_by=required_by))
    return tuple(explained)


def virtual_packages(request: CondaRequest) -> list[GenericVirtualPackage]:
    from rattler import GenericVirtualPackage, PackageName, Version
    from rattler.package.build_string import BuildString

    found: list[GenericVirtualPackage] = []
    for each in request.virtual_packages:
        found.append(GenericVirtualPackage(PackageName(each.name), Version(each.version), BuildString(each.build)))
    return found


def by_name(records: Iterable[RepoDataRecord]) -> dict[str, list[RepoDataRecord]]:
    found: dict[str, list[RepoDataRecord]] = {}
    for record in records:
        found.setdefault(record_name(record), []).append(record)
    return found


def build_text(record: PackageRecord) -> str:
    """`torch 2.8.0 (cpu_0)`."""
    return f"{record_name(record)} {record.version} ({record.build})"


def is_cuda_build(record: PackageRecord) -> bool:
    return _CUDA_BUILD.search(str(record.build)) is not None


def is_cpu_build(record: PackageRecord) -> bool:
    """Whether its build string marks a build for the CPU, as packages with builds for both do."""
    return _CPU_BUILD.search(str(record.build)) is not None


def cuda_builds(records: Iterable[RepoDataRecord]) -> Iterator[RepoDataRecord]:
    # A file's name ends with its build: one attribute, and of thousands of records few are CUDA's.
    return (record for record in records if "cuda" in record.file_name and is_cuda_build(record))


def cuda_constraint(name: str) -> str:
    """The match spec that only CUDA builds of `name` satisfy."""
    return name + _CUDA_BUILDS


def constrained_name(constraint: str) -> str | None:
    """The name in a constraint that `cuda_constraint` made; None for any other."""
    if not constraint.endswith(_CUDA_BUILDS):
        return None
    return constraint.removesuffix(_CUDA_BUILDS)


def cpu_fallbacks(chosen: Iterable[_Record], cuda: Iterable[PackageRecord]) -> list[_Record]:
    """The chosen records that are for the CPU although their package has CUDA builds, sorted by name.

    cuda: all CUDA builds of their names. A package that has given up CUDA builds, because one build now serves both, is
    no fallback: its CUDA builds are all older than the chosen version, and the chosen build is not marked `cpu`.
    """
    newest: dict[str, Version] = {}
    for record in cuda:
        name, version = record_name(record), record.version
        newest[name] = max(newest.get(name, version), version)
    found: list[_Record] = []
    for record in sorted(chosen, key=record_name):
        name = record_name(record)
        if is_cuda_build(record) or name not in newest:
            continue
        if is_cpu_build(record) or newest[name] >= record.version:
            found.append(record)
    return found
