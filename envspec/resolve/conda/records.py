"""A channel's rows: rattler's records and envspec's packages, both ways, and what is asked of which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from envspec import names
from envspec.errors import NetworkError
from envspec.models import SPEC, CondaPackage, Dependent
from envspec.resolve.conda.channel_client import without_credentials
from envspec.resolve.types import Channel, CondaRequest

if TYPE_CHECKING:
    from rattler import GenericVirtualPackage, RepoDataRecord

#: What of a row becomes a part of paths, of commands and of the lock's other files.
_FORMS: Final = (
    ("name", names.NAME),
    ("version", names.VERSION),
    ("build", names.BUILD),
    ("subdir", names.NAME),
    ("filename", names.CONDA_ARCHIVE),
    ("url", names.URL),
    ("sha256", names.SHA256),
    ("md5", names.MD5),
    ("python_site_packages_path", names.INNER_PATH),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAME: Final = re.compile(r"(?:.*::)?\s*([A-Za-z0-9_.-]+)")


def name_of(spec: str) -> str:
    """The name in a match spec: `numpy` of `conda-forge::numpy >=2`; in lower case, as channels have it."""
    found = _NAME.match(spec)
    return found[1].lower() if found else spec


def package_of(row: RepoDataRecord, channels: Sequence[Channel]) -> CondaPackage:
    """A row, whole, as one of these channels has it; nobody asks for it yet.

    Raises:
        NetworkError: the channel gives no SHA-256 for it, or names that no package can have.
    """
    fields: dict[str, Any] = json.loads(row.to_json())
    home, url = without_credentials(fields["channel"]), without_credentials(fields["url"])
    if "sha256" not in fields:
        raise NetworkError(
            f"{url}: its channel gives no SHA-256 for it, so it can't be locked",
            hint="have the channel indexed anew (`conda index`, `rattler-index`), or take the package from another one",
        )
    package = CondaPackage(
        name=fields["name"],
        version=fields["version"],
        build=fields["build"],
        build_number=fields["build_number"],
        channel=next((channel.name for channel in channels if channel.url == home), home),
        subdir=fields["subdir"],
        filename=row.file_name,
        url=url,
        sha256=fields["sha256"],
        md5=fields.get("md5"),
        size_bytes=fields.get("size"),
        timestamp_ms=fields.get("timestamp"),
        depends=tuple(fields.get("depends", ())),
        constrains=tuple(fields.get("constrains", ())),
        noarch=fields.get("noarch") or "",
        license=fields.get("license"),
        license_family=fields.get("license_family"),
        features=fields.get("features"),
        track_features=_words(fields.get("track_features")),
        python_site_packages_path=fields.get("python_site_packages_path"),
    )
    for key, form in _FORMS:
        value = getattr(package, key)
        if value is not None and not form.fits(value):
            raise NetworkError(
                f"{url!r}: its channel's row has the {key} {value!r}, which is not {form.words}",
                hint="tell who runs the channel, or take the package from another one",
            )
    return package


def record_of(package: CondaPackage) -> RepoDataRecord:
    """What rattler solves with and installs, of a package in a lock."""
    from rattler import PackageRecord, RepoDataRecord
    from rattler.package.build_string import BuildString

    row = PackageRecord(
        name=package.name,
        version=package.version,
        build=BuildString(package.build),
        build_number=package.build_number,
        subdir=package.subdir,
        noarch=package.noarch or None,  # type: ignore[arg-type]
        depends=list(package.depends),
        constrains=list(package.constrains),
        sha256=bytes.fromhex(package.sha256),
        md5=bytes.fromhex(package.md5) if package.md5 else None,
        size=package.size_bytes,
        license=package.license,
        license_family=package.license_family,
        python_site_packages_path=package.python_site_packages_path,
    )
    row.features = package.features
    row.track_features = list(package.track_features)
    if package.timestamp_ms is not None:
        # py-rattler cuts milliseconds off a float of seconds; without the half some moments come out one earlier
        row.timestamp = _EPOCH + timedelta(milliseconds=package.timestamp_ms, microseconds=500)
    channel = package.url.rsplit("/", 2)[0]
    return RepoDataRecord(row, package.filename, package.url, channel)


def kept(packages: Iterable[CondaPackage], rows: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    """Those of the packages that the channel still has, as its rows. What it has lost can't be kept."""
    by_identity = {_identity(str(r.subdir), r.file_name, r.sha256.hex() if r.sha256 else ""): r for r in rows}
    found = (by_identity.get(_identity(p.subdir, p.filename, p.sha256)) for p in packages)
    return [row for row in found if row is not None]


def with_askers(packages: Sequence[CondaPackage], requirements: Iterable[str]) -> tuple[CondaPackage, ...]:
    """The packages sorted by name, each with who asked for it in which words."""
    askers: dict[str, set[Dependent]] = {}
    for requirement in requirements:
        askers.setdefault(name_of(requirement), set()).add(Dependent(SPEC, requirement))
    for package in packages:
        for depend in package.depends:
            askers.setdefault(name_of(depend), set()).add(Dependent(package.name, depend))
    ordered = sorted(packages, key=lambda package: package.name)
    return tuple(replace(package, required_by=tuple(sorted(askers.get(package.name, ())))) for package in ordered)


def virtual_packages(request: CondaRequest) -> list[GenericVirtualPackage]:
    """The request's virtual packages as rattler takes them."""
    from rattler import GenericVirtualPackage, PackageName, Version
    from rattler.package.build_string import BuildString

    return [
        GenericVirtualPackage(PackageName(virtual.name), Version(virtual.version), BuildString(virtual.build))
        for virtual in request.virtual_packages
    ]


def by_name(rows: Iterable[RepoDataRecord]) -> dict[str, list[RepoDataRecord]]:
    found: dict[str, list[RepoDataRecord]] = {}
    for row in rows:
        found.setdefault(row.name.normalized, []).append(row)
    return found


def _identity(subdir: str, filename: str, sha256: str) -> tuple[str, str, str]:
    return subdir, filename, sha256


def _words(text: str | list[str] | None) -> tuple[str, ...]:
    return tuple(re.split(r"[\s,]+", text.strip())) if isinstance(text, str) and text.strip() else tuple(text or ())
