"""What the stages of one lock share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from envspec.context import comma_separated
from envspec.errors import UsageError
from envspec.io.http_types import Timeouts
from envspec.names import normalised
from envspec.spec.dates import Age, read_as_of
from envspec.spec.identity import input_sha256, variants_in
from envspec.spec.variants import BASE, base_directory, variant_directory
from envspec.structs import replace

if TYPE_CHECKING:
    # A request is made before it is known whether anything has to be resolved: these modules take 0.3 s.
    from envspec.context import Context
    from envspec.facts import Facts
    from envspec.io.store import Store
    from envspec.models import (
        BaseImage,
        Commit,
        CondaChannel,
        CondaPackage,
        Decision,
        Lock,
        Package,
        PackageAge,
        Platform,
        Resolution,
        Target,
    )
    from envspec.resolve.pypi.types import TargetRequest
    from envspec.resolve.types import CondaProvided, FoundEnvironment
    from envspec.spec import Requirement, Spec

#: For a registry that a lock does not depend on: one that is silent is not waited for like an index.
BRIEF: Final = Timeouts(connect_s=5, stall_s=10, attempts=2)


def lacks_wheel(package: Package) -> bool:
    """Whether it is a source for which the lock records no wheel."""
    return package.built is None and not package.file.filename.endswith(".whl")


def is_to_build(package: Package) -> bool:
    """Whether it is a source that is to be built before it is locked: not one that is locked unbuilt."""
    return lacks_wheel(package) and package.unbuilt is None


def packages_in(parts: Iterable[Resolution]) -> Iterator[Package]:
    """The PyPI packages of all targets."""
    for part in parts:
        yield from part.packages


def conda_in(parts: Iterable[Resolution]) -> Iterator[CondaPackage]:
    """The conda packages of all targets."""
    for part in parts:
        yield from part.conda


def find_package(part: Resolution, name: str) -> Package | None:
    for package in part.packages:
        if package.name == name:
            return package
    return None


def part_of(lock: Lock, platform: Platform) -> Resolution:
    """The lock's part for a platform.

    Raises:
        UsageError: it has none.
    """
    for resolution in lock.resolutions:
        if resolution.target.platform is platform:
            return resolution
    locked = comma_separated(lock.platforms)
    raise UsageError(
        f"{lock.name} is not locked for {platform.value}; its platforms: {locked or 'none'}",
        hint="name one of them by --platform if the environment is another machine's",
    )


def rename(times: Mapping[str, datetime], change: Callable[[str], str]) -> dict[str, datetime]:
    """The times by other names of their packages."""
    return {change(name): at for name, at in times.items()}


def keep_names(times: Mapping[str, datetime], names: Collection[str]) -> dict[str, datetime]:
    """The times of these packages."""
    return {name: at for name, at in times.items() if name in names}


def linux_platforms(spec: Spec) -> list[Platform]:
    return [platform for platform in spec.env.platforms if platform.is_linux]


def pypi_names_of(spec: Spec) -> set[str]:
    """The PyPI packages that the spec requires, normalised."""
    return {requirement.name for requirement in spec.pip.dependencies}


class Upgrade(Enum):
    """KEEP: nothing newer than the lock's `as_of`. ALL: everything that the spec's `as_of` allows."""

    KEEP = "keep"
    ALL = "all"


class Hints(Enum):
    """What the error of a spec without a solution gets. NONE: nothing, since nobody sees it. TRIED: changes of the spec
    that give a solution, which takes other resolutions.
    """

    NONE = "none"
    TRIED = "tried"


def as_of_option(text: str, now: datetime) -> datetime | Age:
    """What `--as-of` names: `now`, a date, a time, or an age. A time without an offset is in UTC.

    Raises:
        UsageError: the text is none of these, or a time in the future.
    """
    try:
        found = now.replace(microsecond=0) if text == "now" else read_as_of(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--as-of {text}: not a date", hint='use `now`, 2026-11-15, 2026-11-15T12:00:00Z or "7 days ago"'
        ) from None
    if isinstance(found, datetime) and found > now:
        raise UsageError(f"--as-of {text} is in the future", hint="use `now`, or a time that has passed")
    return found


class LockRequest(Struct, frozen=True):
    """One spec, or one of its variants, to lock.

    resolver, conda_resolver: names in `envspec.resolve`.
    upgrade_packages: normalised names that may move although the rest stays.
    channel_repodata: channel name -> a folder with its repodata, used instead of it.
    as_of: the date to write into the spec, of everything or of upgrade_packages.
    text: the spec's new text, to be written with the lock; None for its file's.
    is_adopted: whether `spec_path` is a lock of another tool, and `text` alone the spec.
    """

    spec_path: Path
    directory: Path
    resolver: str = "uv"
    conda_resolver: str = "rattler"
    upgrade: Upgrade = Upgrade.KEEP
    upgrade_packages: tuple[str, ...] = ()
    channel_repodata: Mapping[str, Path] = field(default_factory=dict)
    as_of: datetime | Age | None = None
    variant: str = BASE
    text: str | None = None
    is_adopted: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is for the spec as it is in its file, and moves nothing."""
        moves = self.upgrade is Upgrade.ALL or bool(self.upgrade_packages) or self.as_of is not None
        return not moves and self.text is None

    @property
    def base_directory(self) -> Path:
        """The folder of the lock of the spec itself."""
        return base_directory(self.directory, self.variant)


class Compiled(Struct, frozen=True):
    """What a spec compiles to.

    files: of its lock; none if that stays as it is.
    original_text: of the spec.
    new_text: of the spec, if the request changes it.
    """

    files: Mapping[str, bytes]
    original_text: str = ""
    new_text: str | None = None


def variants_of(request: LockRequest) -> tuple[LockRequest, ...]:
    """The request for a spec, then those for its variants: each in a folder of its own beside the spec's."""
    requests: list[LockRequest] = []
    for name in variants_in(request.spec_path):
        directory = variant_directory(request.directory, name)
        requests.append(replace(request, variant=name, directory=directory))
    return tuple(requests)


class Beneath(Struct, frozen=True):
    """What is there before the lock's packages.

    found: on platforms where there is anything.
    image: the base image that has it, with the digests by which it was read.
    """

    found: Mapping[Platform, FoundEnvironment] = field(default_factory=dict)
    image: BaseImage | None = None


class LockState(Struct, frozen=True):
    """What the stages of one lock share.

    document: the spec, parsed.
    old: what of the existing lock may decide anything.
    started: the time of this run.
    as_of: up to when releases are considered, except for packages with a time of their own.
    newest: up to when releases of `upgraded` are considered.
    upgraded: what `--upgrade-package` may move.
    before: the existing lock, whose recorded images and built wheels hold for the new one if all that they follow from
        is the same.
    base: the lock of the spec itself, whose versions its variant prefers.
    base_sha256: of what that installs.
    beneath: what the lock is installed on top of.
    """

    request: LockRequest
    context: Context
    store: Store
    spec: Spec
    document: Mapping[str, Any]
    facts: Facts
    old: Lock | None
    started: datetime
    as_of: datetime
    newest: datetime
    upgraded: tuple[str, ...] = ()
    before: Lock | None = None
    base: Lock | None = None
    base_sha256: str = ""
    beneath: Beneath = field(default_factory=Beneath)

    @property
    def input_sha256(self) -> str:
        return input_sha256(self.document, self.request.variant)

    @property
    def follows_old(self) -> bool:
        """Whether versions of `old` stay wherever the spec allows them, until `--upgrade`.

        Not with a date in the spec: a lock is then a function of the spec. Not with another age in it: that moves the
        lock's time.
        """
        is_kept = self.old is not None and self.old.as_of == self.as_of and not self.spec.env.is_dated
        return self.request.upgrade is Upgrade.KEEP and (bool(self.upgraded) or is_kept)

    @property
    def finds_times(self) -> bool:
        """Whether this only finds what `--upgrade-package` has to move: beside a date in the spec, its text then gets
        times of their own for that, and the lock follows from the text alone.
        """
        return bool(self.upgraded) and self.spec.env.is_dated

    def builds_alike(self, lock: Lock | None) -> bool:
        """Whether a lock's builds had the same indexes and date: builds of the same sources are those that it records.

        A wheel is built of requirements: with the same indexes and cutoff they are the same.
        """
        from envspec.lockfile.document import public_indexes
        from envspec.resolve.pypi.request import indexes_of

        return lock is not None and (lock.as_of, lock.indexes) == (self.as_of, public_indexes(indexes_of(self.spec)))

    def built_before(self) -> dict[tuple[Target, str], Package]:
        """What the lock before has built, by target and SHA-256 of the file; empty if builds may differ by now."""
        found: dict[tuple[Target, str], Package] = {}
        if self.before is None or not self.builds_alike(self.before):
            return found
        for part in self.before.resolutions:
            for each in part.packages:
                if each.built:
                    found[part.target, each.file.sha256] = each
        return found

    def package_ages(self) -> dict[str, PackageAge]:
        """The spec's ages of packages, by their names in it, as the lock records them.

        What an age meant in the lock counts until `--upgrade` or `--upgrade-package`, or until the age changes.
        """
        from envspec.models import PackageAge

        lock = self.base
        if lock is None and self.request.upgrade is Upgrade.KEEP:
            lock = self.old
        recorded = {each.name: each for each in lock.package_ages} if lock else {}
        ages: dict[str, PackageAge] = {}
        for name, at in self.spec.env.package_as_of.items():
            if not isinstance(at, Age):
                continue
            found = recorded.get(normalised(name))
            if found is None or found.age != str(at) or found.name in self.upgraded:
                found = PackageAge(normalised(name), str(at), at.before(self.started))
            ages[name] = found
        return ages

    def own_times(self) -> dict[str, datetime]:
        """Packages to which the spec gives a later time than `as_of`, by their names in it."""
        return own_times(self.spec, self.as_of, self.package_ages().values())

    def aged_times(self) -> dict[str, datetime]:
        """Up to when releases of the packages count to which the spec gives an age, by their names in it."""
        return {name: max(age.as_of, self.as_of) for name, age in self.package_ages().items()}


def locked_commit(requirement: Requirement, commit: str) -> Commit:
    """What a lock records of a git repository. commit: of the branch, tag or ref that the spec names."""
    from envspec.credentials import without_credentials
    from envspec.models import Commit
    from envspec.spec.requirements import read_git

    address = read_git(requirement.url or "")
    return Commit(requirement.name, str(requirement), without_credentials(address.pinned(commit)), address.ref)


def own_times(spec: Spec, as_of: datetime, ages: Iterable[PackageAge]) -> dict[str, datetime]:
    """Packages to which the spec gives a later time than `as_of`, by their names in it. ages: what its ages mean."""
    meant = {each.name: each.as_of for each in ages}
    found: dict[str, datetime] = {}
    for name, at in spec.env.package_as_of.items():
        time = at if isinstance(at, datetime) else meant[normalised(name)]
        if time > as_of:
            found[name] = time
    return found


class Resolved(Struct, frozen=True):
    """The packages of a lock, from which its images and settings follow.

    state: with what the packages are installed on top of.
    decisions: about the targets.
    """

    state: LockState
    decisions: tuple[Decision, ...]
    conda: CondaResult
    pypi: PypiResult

    @property
    def resolutions(self) -> tuple[Resolution, ...]:
        """The packages of every target, conda's with PyPI's."""
        conda = self.conda.packages
        return tuple(replace(part, conda=conda.get(part.target.platform, ())) for part in self.pypi.resolutions)


class CondaResult(Struct, frozen=True):
    """The conda packages of every platform; empty if the spec has no [conda].

    packages: by platform.
    channels: of the spec.
    decisions: about packages for CUDA.
    cutoffs: of the packages that `--upgrade-package` has moved.
    provided: PyPI names of conda packages, by platform.
    """

    packages: Mapping[Platform, tuple[CondaPackage, ...]] = field(default_factory=dict)
    channels: tuple[CondaChannel, ...] = ()
    decisions: tuple[Decision, ...] = ()
    cutoffs: Mapping[str, datetime] = field(default_factory=dict)
    provided: Mapping[Platform, Mapping[str, CondaProvided]] = field(default_factory=dict)

    @property
    def pythons(self) -> dict[Platform, str]:
        """The version of the package `python` on each platform that has it."""
        found: dict[Platform, str] = {}
        for platform, packages in self.packages.items():
            for package in packages:
                if package.name == "python":
                    found[platform] = package.version
        return found


class PypiResult(Struct, frozen=True):
    """The PyPI packages of every target.

    cutoffs: of the packages that `--upgrade-package` has moved.
    commits: of git repositories.
    way_out: gives constraints with which no package goes years back, as a hint; empty if none is known. They are
        looked for by other resolutions.
    """

    resolutions: tuple[Resolution, ...]
    requests: tuple[TargetRequest, ...] = ()
    cutoffs: Mapping[str, datetime] = field(default_factory=dict)
    commits: tuple[Commit, ...] = ()
    way_out: Callable[[], str] = str
