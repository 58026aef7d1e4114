"""Libraries of the system that locked packages load: which are missing, and what contains them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from envspec.facts import Facts
from envspec.facts.tables import LibraryNeedRow, SystemLibrariesRow, SystemRow
from envspec.models import BaseImage, Platform, Python, Resolution
from envspec.spec import Libraries, Spec, System

#: The library of the locked Python, in rows.
LIBPYTHON: Final = "libpython{series}.so.1.0"


class LibraryGroup(Struct, frozen=True):
    """What one package loads. loads: SONAMEs, as far as the base lacks them. apt: packages with them. unknown: those
    of `loads` that no package is known to contain.
    """

    platform: Platform
    package: str
    version: str
    loads: tuple[str, ...]
    apt: tuple[str, ...]
    unknown: tuple[str, ...]
    os: str
    with_conda: bool


def library_groups(
    os_on: Callable[[Platform], str], resolutions: Sequence[Resolution], facts: Facts
) -> Iterator[LibraryGroup]:
    """The libraries that neither the wheels nor a plain base have, of the packages that `library_need` rows name.

    os_on: the system of a platform's base.
    """
    for resolution in resolutions:
        platform = resolution.target.platform
        if not platform.is_linux:
            continue
        os = os_on(platform)
        system = facts.libraries_of(os) or SystemLibrariesRow(os=os, source="")
        python, packages = resolution.target.python, dict(system.packages)
        if is_of_system(python, facts.system(os)):
            packages[LIBPYTHON.format(series=python.series)] = f"libpython{python.series}-dev"
        for package in resolution.packages:
            row = facts.library_need(package.name, package.version)
            if row is None:
                continue
            loads = tuple(name for name in _chosen(row, system, python) if name not in system.base)
            if loads:
                apt = tuple(dict.fromkeys(packages[name] for name in loads if name in packages))
                unknown = tuple(name for name in loads if name not in packages)
                yield LibraryGroup(
                    platform, package.name, package.version, loads, apt, unknown, os, bool(resolution.conda)
                )


def is_known_base(base: BaseImage, facts: Facts) -> bool:
    """Whether rows state what a base image contains: NVIDIA's, or a system's own."""
    system = facts.system(base.os)
    is_of_system = system is not None and system.image == f"{base.repository}:{base.tag}"
    return is_of_system or bool(base.cuda_release)


def is_of_system(python: Python, system: SystemRow | None) -> bool:
    """Whether it is the Python of the system's own packages."""
    return python.source == "system" or (
        python.source == "base" and system is not None and python.version == system.python_patch
    )


def _chosen(row: LibraryNeedRow, system: SystemLibrariesRow, python: Python) -> Iterator[str]:
    """One name of each of the row's alternatives: the first that the system has."""
    for entry in row.libraries:
        # Images have a link to a standalone Python's library, and conda's programs a path to theirs.
        if entry == LIBPYTHON and python.source not in {"system", "base"}:
            continue
        names = list(map(str.strip, entry.replace("{series}", python.series).split("|")))
        known = [name for name in names if name in system.packages or name in system.base]
        yield (known or names)[0]


def covered(apt: Sequence[str], os: str, facts: Facts) -> set[str]:
    """Packages that are installed with these, as far as rows say so. A version (`libgl1=1.4`) is ignored."""
    row = facts.libraries_of(os)
    packages = {package.partition("=")[0] for package in apt}
    if row is None:
        return packages
    for package in tuple(packages):
        packages.update(row.contains.get(package, ()))
    return packages


def library_warnings(spec: Spec, resolutions: Sequence[Resolution], facts: Facts) -> Iterator[str]:
    """A warning for each package whose libraries `[system] apt` does not bring or no package is known to contain."""
    system = spec.system or System()
    if system.libraries is Libraries.NONE:
        return
    assumed: dict[str, str] = {}
    for group in library_groups(spec.os_on, resolutions, facts):
        lacking = [package for package in group.apt if package not in covered(system.apt, group.os, facts)]
        loads = f"{group.package} {group.version} loads {', '.join(group.loads)}"
        text = f"{group.platform.value}: {loads}, which neither the wheels nor {group.os} has"
        # What these contain is in no record.
        others = [spec.image.base] if spec.image.base else []
        if group.with_conda:
            others.append("conda's packages")
        if others:
            text += f" (unless {' or '.join(others)} bring it)"
        if system.libraries is Libraries.AUTO and spec.image.base and not spec.names_os(group.platform):
            assumed.update(dict.fromkeys(lacking, group.os))
        if lacking and system.libraries is Libraries.REPORT:
            lines = ", ".join(f'"{package}"' for package in lacking)
            yield f'{text}: add {lines} to [system] apt, or set [system] libraries = "auto"'
        if group.unknown:
            names = ", ".join(group.unknown)
            yield f"{text}: no package of {group.os} is known that contains {names} ([[facts.system_libraries]])"
    if assumed:
        systems = ", ".join(dict.fromkeys(assumed.values()))
        yield (
            f'[system] libraries = "auto" adds {", ".join(assumed)}, which are names of {systems}, and the system of '
            f'{spec.image.base} is not stated: add it to [image], such as os = "debian12"'
        )
