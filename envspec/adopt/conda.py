"""What locks with conda packages have in common: rows of these, and of PyPI packages of one platform."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from envspec import names
from envspec.adopt.rows import CondaRows, LockedFile, Row, index_name
from envspec.adopt.selected import index_of
from envspec.credentials import channels_without_credentials, without_credentials
from envspec.models import DEFAULT_INDEX, MACHINES, CondaChannel, CondaPackage, Platform
from envspec.names import normalised
from envspec.origins import CHANNEL_ALIAS

#: By conda's name.
PLATFORMS: Final = {platform.value: platform for platform in Platform}
#: The fields that become a part of paths, of commands and of the lock's other files.
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
#: Fields of a package that a channel's record has by the same name.
_SAME: Final = (
    *("name", "version", "build", "build_number", "subdir", "md5", "sha256", "features", "license", "license_family"),
    "python_site_packages_path",
)


def package_of(record: Mapping[str, Any], filename: str, channel: str, url: str) -> CondaPackage:
    """A package, without what requires it. record: of a channel's repodata. channel: as the lock names it."""
    tracked = record.get("track_features") or ()
    if isinstance(tracked, str):
        tracked = re.findall(r"[^\s,]+", tracked)
    same: dict[str, Any] = {key: record.get(key) for key in _SAME}
    return CondaPackage(
        **same,
        channel=channel,
        filename=filename,
        url=url,
        size_bytes=record.get("size"),
        timestamp_ms=record.get("timestamp"),
        depends=tuple(record.get("depends", ())),
        constrains=tuple(record.get("constrains", ())),
        noarch=record.get("noarch") or "",
        track_features=tuple(tracked),
    )


def wrong_field(package: CondaPackage) -> str:
    """The first value that no package can have, and what it is not; empty if there is none."""
    for key, form in _FORMS:
        value = getattr(package, key)
        if value is not None and not form.fits(value):
            return f"the {key} {value!r}, which is not {form.words}"
    return ""


def locked_package(record: Mapping[str, Any], url: str) -> CondaPackage:
    """The package of a lock whose archive is at this URL; `sha256` is empty if the lock has none."""
    public = channels_without_credentials(url.partition("#")[0])
    filename = unquote(public.rpartition("/")[2])
    return package_of({"sha256": "", **record}, filename, channel_of(public).name, public)


def channel_of(url: str) -> CondaChannel:
    """The channel of the archive at this URL, which has no credentials."""
    home = url.rsplit("/", 2)[0]
    return CondaChannel(home.removeprefix(f"{CHANNEL_ALIAS}/"), home)


def channels_of(conda: Mapping[Platform, CondaRows]) -> tuple[CondaChannel, ...]:
    """The channels that packages come from, by name: of packages that are chosen, their order decides nothing."""
    found = {channel_of(package.url) for rows in conda.values() for package in rows.packages}
    return tuple(sorted(found, key=lambda channel: channel.name))


def rows_of(platform: Platform, packages: Iterable[CondaPackage], problems: Iterable[str] = ()) -> CondaRows:
    """The packages of a platform, without those that can't be installed. problems: that are known already."""
    found: dict[str, CondaPackage] = {}
    unusable = list(problems)
    for package in packages:
        shown = f"{package.name} {package.version}"
        other = found.get(package.name)
        if "://" not in package.url:
            unusable.append(f"{shown}: it is the file {package.url}, which no other machine has")
        elif not package.sha256:
            unusable.append(f"{shown}: it has no SHA-256 of {package.filename}")
        elif wrong := wrong_field(package):
            unusable.append(f"{shown} has {wrong}")
        elif package.subdir not in (platform.value, "noarch"):
            unusable.append(f"{shown}: it is for {package.subdir}")
        elif unquote(package.url).rsplit("/", 2)[1:] != [package.subdir, package.filename]:
            unusable.append(f"{shown}: {package.url} is not its archive of {package.subdir}")
        elif package.filename not in (f"{package.file_stem}.conda", f"{package.file_stem}.tar.bz2"):
            unusable.append(f"{shown}: {package.filename} is not a file of {package.file_stem}")
        elif other is not None and other != package:
            unusable.append(f"{shown}: {other.version} ({other.build}) is locked beside it")
        else:
            found[package.name] = package
    return CondaRows(tuple(found[name] for name in sorted(found)), tuple(unusable))


def file_row(name: str, version: str, url: str, sha256: str, platform: Platform) -> Row:
    """A PyPI package that is locked for one platform, by the URL of its file."""
    public = without_credentials(url.partition("#")[0])
    file = LockedFile(unquote(urlsplit(public).path.rpartition("/")[2]), public, sha256)
    home = index_of((file,))
    index = index_name(home) if home else DEFAULT_INDEX
    return Row(normalised(name), version, index, home, (file,), marker_of(platform))


def marker_of(platform: Platform) -> str:
    """A marker that holds on this platform alone."""
    machine = MACHINES[platform]
    return f"sys_platform == '{machine['sys_platform']}' and platform_machine == '{machine['platform_machine']}'"
