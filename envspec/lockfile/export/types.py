"""What files that are exported on demand are made of, and what their formats have no place for."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct, field

from envspec.conformance.text import counted
from envspec.credentials import without_credentials
from envspec.errors import UsageError
from envspec.escaping import one_line
from envspec.lockfile.export.requirements import public_url
from envspec.models import GIT, LOCAL, Lock, Package, Resolution
from envspec.names import COMMIT
from envspec.spec.requirements import GitAddress, read_git
from envspec.structs import replace


class Content(Enum):
    """What a lock has beside its Python and its packages."""

    BASE = "base image"
    INSTALLED = "packages that are there before the lock's"
    CODE = "the project's code"
    SYSTEM = "system packages"
    DRIVER = "driver"
    VARIABLES = "variables"
    START = "entrypoint and command"
    SERVICES = "services"


class File(Struct, frozen=True):
    """A text file of the image. path: absolute."""

    path: str
    mode: int
    text: str


class ContainerConfig(Struct, frozen=True):
    """How a container of the image starts; by default, as one of the base does.

    user: `uid:gid`.
    name: of that user.
    env: variables and their values.
    folders: those that everybody may write to.
    files: those that are in no package.
    """

    user: str = ""
    name: str = ""
    env: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    files: tuple[File, ...] = ()


#: A container starts as one of the base does.
DEFAULT: Final = ContainerConfig()


class Location(NamedTuple):
    """Where a locked file is, without credentials. pages: of the index that lists it; empty if they are not known."""

    url: str
    pages: str = ""


class ExportRequest(Struct, frozen=True):
    """What is exported.

    lock: as `lockfile.document.canonical` gives it.
    resolutions: of the platforms that are exported.
    locations: of locked files, by their SHA-256.
    image: the name of the lock's image.
    container: how a container of it starts.
    projects: local projects as the spec names them -> their paths from the file's folder on.
    """

    lock: Lock
    resolutions: Sequence[Resolution]
    locations: Mapping[str, Location] = field(default_factory=dict)
    image: str = ""
    container: ContainerConfig = DEFAULT
    projects: Mapping[str, str] = field(default_factory=dict)

    def missing(self, carried: Collection[Content]) -> list[str]:
        """What the lock has and the format has no place for. carried: what it has one for."""
        return [one_line(text) for content, text in self.contents() if content not in carried]

    def contents(self) -> Iterator[tuple[Content, str]]:
        """Each part of the lock in words, once for all platforms that have it."""
        image = self.lock.image
        parts = [self.lock.on(each.target.platform) for each in self.resolutions]
        bases = dict.fromkeys(each.base_image.name for each in parts if each.base_image)
        drivers = dict.fromkeys(each.driver.minimum for each in parts if each.driver)
        sources = {each.on_top_of.source: len(each.installed) for each in self.resolutions if each.on_top_of}
        for name in bases:
            yield Content.BASE, f"the base image {name}"
        for source, count in sources.items():
            if count:
                yield Content.INSTALLED, f"{counted(count, 'package')} of {source}, on top of which the lock is"
        if image.has_code and bases:
            yield Content.CODE, "the project's code, which the image has"
        if image.apt and bases:
            yield Content.SYSTEM, f"system packages (apt): {', '.join(sorted(image.apt))}"
        for minimum in drivers:
            yield Content.DRIVER, f"the NVIDIA driver, {minimum} or newer"
        if image.env:
            yield Content.VARIABLES, f"environment variables: {', '.join(sorted(dict(image.env)))}"
        if image.entrypoint or image.command:
            yield Content.START, f"what a container starts: {shlex.join((*image.entrypoint, *image.command))}"
        if image.services:
            yield Content.SERVICES, f"services: {', '.join(sorted(each.name for each in image.services))}"

    def header(self, missing: Sequence[str]) -> list[str]:
        """The first comments of a file."""
        where = ", ".join(self.platforms)
        lines = [f"{self.lock.name} for {where}: written by `envspec export`. Edit the spec, not this file."]
        if missing:
            lines.append("This format has no place for:")
            lines += [f"  {each}" for each in missing]
        return lines

    @property
    def platforms(self) -> list[str]:
        return [each.target.platform.value for each in self.resolutions]

    @property
    def packages(self) -> Iterator[Package]:
        """The wheels of all platforms."""
        for each in self.resolutions:
            yield from each.packages


class Exported(NamedTuple):
    """text: of the file. missing: what is in the lock and not in the file, for a warning."""

    text: str
    missing: Sequence[str] = ()


def git_of(package: Package) -> GitAddress:
    """The repository that a package of a git project was built from, without credentials; its ref is the commit.

    Raises:
        UsageError: the lock names no commit.
    """
    address = read_git(project_of(package))
    if not COMMIT.fits(address.ref):
        raise UsageError(
            f"{package.name} {package.version}: the lock names no commit of {address.url}",
            hint="run `envspec lock SPEC` to write the lock again",
        )
    return replace(address, url=public_url(address.url))


def project_of(package: Package) -> str:
    """The folder or the repository of a project, as the spec names it."""
    return without_credentials(package.file.url or "").partition("#sha256=")[0]


def is_project(package: Package) -> bool:
    """Whether a package was built from a repository or a folder."""
    return package.file.index in {GIT, LOCAL}


def is_source(package: Package) -> bool:
    """Whether what is installed was built by envspec, or has to be."""
    return is_project(package) or not package.file.filename.endswith(".whl")
