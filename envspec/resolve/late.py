"""Releases that a run left out because their index had not yet filled in when they were uploaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.resolve.engine import Request
from envspec.resolve.requirements import parsed

#: How many releases of one package are named.
_NAMED = 3


class LeftOut:
    """What the targets of one run left out, told once for a package."""

    def __init__(self) -> None:
        self._releases: dict[str, set[Version]] = {}

    def add(self, late: Mapping[str, Sequence[str]], pins: Mapping[str, str | None]) -> None:
        """Count what a target would have taken, or named as its newest: releases newer than its pin.

        late: versions by package. pins: what was taken; None where nothing could be. As everywhere, a pre-release
        counts beside a pre-release only.
        """
        for name, versions in late.items():
            if name not in pins:
                continue
            pin = Version(taken) if (taken := pins[name]) is not None else None
            newer = {version for version in map(Version, versions) if _counts(version, pin)}
            self._releases.setdefault(name, set()).update(newer)

    def texts(self) -> Iterator[str]:
        """A warning for each package, in the order of their names."""
        for name, releases in sorted(self._releases.items()):
            if releases:
                newest = [str(version) for version in sorted(releases)[-_NAMED:]]
                more = f" (and {len(releases) - _NAMED} older)" if len(releases) > _NAMED else ""
                has = "have" if len(releases) > 1 else "has"
                yield (
                    f"{name} {', '.join(newest)}{more} {has} no upload time yet: left out; "
                    "once the index tells it, `envspec lock --upgrade` counts it"
                )


def asked_names(request: Request) -> dict[str, None]:
    """The names that the spec asks for, without pins: what to tell where there is no solution."""
    found = filter(None, map(parsed, request.requirements))
    return dict.fromkeys(str(canonicalize_name(requirement.name)) for requirement in found)


def _counts(version: Version, pin: Version | None) -> bool:
    if pin is None:
        return True
    return version > pin and (not version.is_prerelease or pin.is_prerelease)
