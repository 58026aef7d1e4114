"""The lock that follows, offline, from a spec, the facts and the packages of an existing lock.

Only the packages are used as they are: their versions, files and reasons come from indexes, channels and registries.
Everything else is computed again by the functions that `envspec lock` uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from packaging.version import Version

from envspec.base_image.apt import newest_archive
from envspec.base_image.plan import custom_image
from envspec.credentials import channel_without_credentials, without_credentials
from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.models import (
    DEFAULT_INDEX,
    DIRECT_URL,
    GIT,
    LOCAL,
    SPEC,
    BaseImage,
    Commit,
    CondaChannel,
    Decision,
    Dependent,
    Lock,
    OnTopOf,
    Package,
    PackageAge,
    PinnedDigest,
    Platform,
    Resolution,
    Target,
    WheelFile,
)
from envspec.names import COMMIT, normalised
from envspec.operations.build_settings import with_builds
from envspec.operations.lock.adopted import (
    adopted_conda,
    decision_of,
    read_adopted,
    time_of,
    with_adopted,
    with_adopted_conda,
)
from envspec.operations.lock.complete import complete, conda_decisions, installed_on
from envspec.operations.lock_state import (
    CondaResult,
    LockRequest,
    conda_in,
    find_package,
    keep_names,
    linux_platforms,
    locked_commit,
    own_times,
    rename,
)
from envspec.operations.shared_files import with_owners
from envspec.origins import PYTORCH_INDEX, channel_url
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import BuiltSource
from envspec.resolve.pypi.metadata import parsed, without_marker
from envspec.resolve.pypi.request import (
    GivenPackages,
    IndexUrls,
    overrides_of,
    sources_of,
    target_request,
    wheel_urls,
)
from envspec.resolve.pypi.types import TargetRequest
from envspec.resolve.types import Cutoffs, FoundEnvironment, FoundPackage, ProvidedPackage
from envspec.resolve.upgrade import conda_packages, names_of
from envspec.spec import Requirement, RequirementKind, Spec
from envspec.spec.dates import Age
from envspec.spec.owner import path_from_lock
from envspec.spec.requirements import read_constraint, read_git
from envspec.spec.sections import BasePackages
from envspec.spec.targets import targets_of
from envspec.structs import replace

#: Of indexes, only their names count here; nothing is requested.
_URLS = IndexUrls("https://default.invalid/simple/", PYTORCH_INDEX)


class ExpectedLock(Struct, frozen=True):
    """What a lock has to be. requests: for the packages from PyPI; none if the spec requires none."""

    lock: Lock
    requests: Mapping[Platform, TargetRequest]


def expected_lock(lock: Lock, spec: Spec, facts: Facts, request: LockRequest, base: Lock | None) -> ExpectedLock:
    """Compute again all of a lock that follows from its spec and its packages. Reads no file but `pip.on_top_of`.

    The version of the facts is the lock's: other facts are a difference only by what they decide.

    spec: of the request's variant.
    base: for a variant, the lock of the spec itself.
    Raises:
        NoSolution, UsageError, ValueError: no such packages can be locked for this spec, with these facts.
    """
    as_of = _as_of(lock, spec, facts, request, base)
    ages = _ages(lock, spec, as_of)
    locked = {part.target.platform: part for part in lock.resolutions}
    found = _found_environments(lock, spec, facts, request)
    conda = _conda_result(lock, spec, request)
    targets, of_targets = _targets(spec, facts, as_of, conda.pythons, found)
    parts: list[Resolution] = []
    for target in targets:
        part = locked.get(target.platform, Resolution(target, ()))
        parts.append(replace(part, target=target))
    package_as_of, conda_as_of = _cutoffs(lock, spec, base, as_of, own_times(spec, as_of, ages))
    cutoffs = keep_names(package_as_of, names_of(parts))
    requesting = _Requesting(lock, spec, facts, Cutoffs(as_of, cutoffs), found)
    requests: dict[Platform, TargetRequest] = {}
    if spec.pip.dependencies:
        requests = {part.target.platform: requesting.request_for(part) for part in parts}
    decisions = [*of_targets, *conda_decisions(spec, facts)]
    if spec.pip.source:
        decisions.append(decision_of(spec))
    resolutions: list[Resolution] = []
    for part in parts:
        platform = part.target.platform
        if spec.pip.source:
            made = with_adopted_conda(with_adopted(part, part.target, spec, request.spec_path), conda)
        else:
            made = _with_packages(part, requests.get(platform))
            made = _with_conda(made, spec, facts, Cutoffs(as_of, {}))
        made = _on_top(made, found.get(platform))
        made = _with_builds(made, spec, facts)
        resolutions.append(with_owners(made, spec))
        if platform in requests and find_package(made, "torch"):
            decisions += requests[platform].decisions
    conda_cutoffs = keep_names(conda_as_of, {each.name for each in conda_in(resolutions)})
    resolved = replace(
        lock,
        as_of=as_of,
        resolutions=tuple(resolutions),
        decisions=tuple(decisions),
        package_as_of=tuple(cutoffs.items()),
        conda_as_of=tuple(conda_cutoffs.items()),
        channels=conda.channels,
        package_ages=ages,
        overrides=overrides_of(spec) if spec.pip.dependencies else (),
        commits=tuple(requesting.commits.values()),
        spec=path_from_lock(request.spec_path, request.directory),
        base_sha256=lock.base_sha256 if request.variant else "",
    )
    archived = lock.image.snapshot or newest_archive(lock.as_of)
    completed, _ = complete(resolved, spec, facts, partial(_with_digests, lock), lambda _: archived)
    linux = linux_platforms(spec)
    system = tuple(replace(each, apt=completed.image.apt) for each in lock.system if each.platform in linux)
    images = tuple(each for each in lock.images if each.platform in linux)
    return ExpectedLock(replace(completed, facts=lock.facts, system=system, images=images), requests)


def _as_of(lock: Lock, spec: Spec, facts: Facts, request: LockRequest, base: Lock | None) -> datetime:
    if base is not None:
        return base.as_of
    if spec.pip.source:
        return time_of(read_adopted(spec, request.spec_path), facts)
    return spec.env.as_of if isinstance(spec.env.as_of, datetime) else lock.as_of


def _ages(lock: Lock, spec: Spec, as_of: datetime) -> tuple[PackageAge, ...]:
    """The spec's ages of single packages, each with the time that the lock records for it."""
    recorded = {(each.name, each.age): each for each in lock.package_ages}
    ages: list[PackageAge] = []
    for text, at in spec.env.package_as_of.items():
        if isinstance(at, Age):
            name, age = normalised(text), str(at)
            ages.append(recorded.get((name, age), PackageAge(name, age, as_of)))
    return tuple(ages)


def _cutoffs(
    lock: Lock, spec: Spec, base: Lock | None, as_of: datetime, own: Mapping[str, datetime]
) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """Times of single packages, of PyPI and of conda. own: of the spec; those of a variant's base come before them."""
    of_pypi: dict[str, datetime] = {}
    of_conda: dict[str, datetime] = {}
    if not spec.env.is_dated:
        of_pypi |= _later(lock.package_as_of, as_of)
        of_conda |= _later(lock.conda_as_of, as_of)
    of_pypi |= rename(own, normalised)
    of_conda |= rename(own, str.lower)
    if base is not None:
        of_pypi |= dict(base.package_as_of)
        of_conda |= dict(base.conda_as_of)
    return of_pypi, of_conda


def _later(recorded: Iterable[tuple[str, datetime]], as_of: datetime) -> dict[str, datetime]:
    """The times of packages that `--upgrade-package` has moved: an earlier one would bring back an older release.

    With a date in the spec, they are the spec's.
    """
    return {name: at for name, at in recorded if at > as_of}


def _found_environments(lock: Lock, spec: Spec, facts: Facts, request: LockRequest) -> dict[Platform, FoundEnvironment]:
    """What the lock is installed on top of: as the spec's list has it; of a base image, as the lock records it."""
    if spec.image.packages is BasePackages.KEEP and spec.image.base:
        linux = linux_platforms(spec)
        place = custom_image(spec.image.base, "", linux, facts).image.name
        environments: dict[Platform, FoundEnvironment] = {}
        for part in lock.resolutions:
            if part.target.platform in linux:
                environments[part.target.platform] = _found_in_base(part, place)
        return environments
    if not spec.pip.on_top_of:
        return {}
    from envspec.operations.lock.base_packages import read_on_top_of

    return dict.fromkeys(spec.env.platforms, read_on_top_of(request.spec_path.parent, spec))


def _found_in_base(part: Resolution, place: str) -> FoundEnvironment:
    below, target = part.on_top_of or OnTopOf(place), part.target
    packages: dict[str, FoundPackage] = {}
    for each in part.installed:
        packages[each.name] = FoundPackage(each.name, each.version, place, record_sha256=each.record_sha256)
    return FoundEnvironment(
        place,
        packages,
        target.python.version,
        target.glibc,
        home=below.home,
        site=below.site,
        nested=below.nested,
        constraints=below.constraints,
        torch_build=below.torch_build,
        gpu_code=below.gpu_code,
    )


def _conda_result(lock: Lock, spec: Spec, request: LockRequest) -> CondaResult:
    """The conda packages that are locked; beside the lock of another tool, those of that."""
    if spec.pip.source:
        return adopted_conda(read_adopted(spec, request.spec_path), spec)
    if spec.conda is None:
        return CondaResult()
    return CondaResult(conda_packages(lock), _channels(lock, spec.conda.channels))


def _targets(
    spec: Spec,
    facts: Facts,
    as_of: datetime,
    pythons: Mapping[Platform, str],
    found: Mapping[Platform, FoundEnvironment],
) -> tuple[tuple[Target, ...], tuple[Decision, ...]]:
    if not found:
        return targets_of(spec, facts, as_of, pythons)
    from envspec.operations.lock.base_packages import check_python, pythons_of

    for each in found.values():
        check_python(each, spec)
    return targets_of(spec, facts, as_of, pythons, pythons_of(found, spec))


class _Requesting:
    """The requests for the packages from PyPI, as they were made when a lock was resolved.

    commits: of git repositories, by the requirement's text, as far as requests were made.
    """

    def __init__(
        self, lock: Lock, spec: Spec, facts: Facts, cutoffs: Cutoffs, found: Mapping[Platform, FoundEnvironment]
    ) -> None:
        self._spec = spec
        self._facts = facts
        self._cutoffs = cutoffs
        self._found = found
        self._decisions = lock.decisions
        self._recorded = {each.requirement: each.address for each in lock.commits}
        self.commits: dict[str, Commit] = {}

    def request_for(self, part: Resolution) -> TargetRequest:
        """The request for one target.

        Preferred versions, those of an older lock among them, may have bounded torch, and so its build: then the build
        is the one for the locked torch.

        Raises:
            NoSolution, ValueError: as `target_request`; or a package that the spec names by its address has no wheel in
            the lock.
        """
        platform = part.target.platform
        recorded = {each for each in self._decisions if (each.what, each.platform) == ("torch.build", platform)}
        plain = self._made(part, self._spec)
        torch = find_package(part, "torch")
        if torch is None or set(plain.decisions) == recorded:
            return plain
        pip = self._spec.pip
        bound = read_constraint(f"torch=={Version(torch.version).public}")
        bounded = pip.model_copy(update={"constraints": (*pip.constraints, bound)})
        with suppress(NoSolution):
            other = self._made(part, self._spec.model_copy(update={"pip": bounded}))
            if set(other.decisions) == recorded:
                return other
        return plain

    def _made(self, part: Resolution, spec: Spec) -> TargetRequest:
        provided: Mapping[str, ProvidedPackage] = {}
        if part.conda:
            from envspec.resolve.conda.pypi_names import provided_by

            provided = provided_by(part.conda)
        found = self._found.get(part.target.platform)
        given = GivenPackages(self._wheels(part), self._sources(part), provided, found)
        return target_request(spec, part.target, self._facts, self._cutoffs, given, _URLS)

    def _wheels(self, part: Resolution) -> dict[str, ListedFile]:
        """The wheels that the spec names by URL, by it."""
        found: dict[str, ListedFile] = {}
        for requirement in wheel_urls(self._spec):
            url = without_credentials(str(requirement.url))
            package = find_package(part, requirement.name)
            sha256, size_bytes = requirement.sha256, None
            if package is not None:
                sha256, size_bytes = sha256 or package.file.sha256, package.file.size_bytes
            found[url] = ListedFile(_filename(url), url, sha256, size_bytes)
        return found

    def _sources(self, part: Resolution) -> dict[str, BuiltSource]:
        """What the spec names to be built, by the requirement's text, with the wheel that the lock records of it."""
        found: dict[str, BuiltSource] = {}
        for requirement in sources_of(self._spec, part.target):
            package = find_package(part, requirement.name)
            if package is None or (package.built is None and package.unbuilt is None):
                raise NoSolution(f"{requirement} has no wheel in it")
            file = self._source_file(requirement, package)
            found[str(requirement)] = BuiltSource(file, package.built, package.unbuilt, package.version)
        return found

    def _source_file(self, requirement: Requirement, package: Package) -> WheelFile:
        file, built = package.file, package.built
        if built is None or requirement.kind is RequirementKind.SDIST_URL:
            url = without_credentials(str(requirement.url))
            return WheelFile(DIRECT_URL, _filename(url), requirement.sha256 or file.sha256, file.size_bytes, url)
        if requirement.kind is RequirementKind.GIT:
            return WheelFile(GIT, built.filename, built.sha256, built.size_bytes, self._at_commit(requirement, package))
        # Whether the folder is still the one that was built is compared by `lockfile.check`.
        address, digest = (requirement.url or "").partition("#")[0], (file.url or "").rpartition("#sha256=")[2]
        return WheelFile(LOCAL, built.filename, built.sha256, built.size_bytes, f"{address}#sha256={digest}")

    def _at_commit(self, requirement: Requirement, package: Package) -> str:
        """The repository's address at the locked commit: any commit of a branch, the very one that the spec names."""
        address, recorded = read_git(requirement.url or ""), self._recorded.get(str(requirement))
        commit = read_git(recorded or package.file.url or "").ref
        if COMMIT.fits(address.ref):
            commit = address.ref
        if not COMMIT.fits(commit):
            raise NoSolution(f"{requirement}: {commit!r} is not a commit")
        locked = locked_commit(requirement, commit)
        self.commits[locked.requirement] = locked
        return locked.address


def _filename(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _with_packages(part: Resolution, request: TargetRequest | None) -> Resolution:
    """The packages, with what the spec decides of each: its index or address, and what of the spec requires it."""
    if request is None:
        return replace(part, packages=())
    lines: dict[str, list[Dependent]] = {}
    for text in request.request.requirements:
        requirement = parsed(text)
        if requirement is not None:
            lines.setdefault(normalised(requirement.name), []).append(Dependent(SPEC, without_marker(requirement)))
    return replace(part, packages=tuple(_package(each, request, lines.get(each.name, ())) for each in part.packages))


def _package(package: Package, request: TargetRequest, by_spec: Iterable[Dependent]) -> Package:
    required_by = {*by_spec, *(each for each in package.required_by if each.name != SPEC)}
    extras: set[str] = set()
    for each in required_by:
        requirement = parsed(each.requirement)
        if requirement is not None:
            extras.update(map(normalised, requirement.extras))
    return replace(
        package,
        file=_file(package, request),
        required_by=tuple(sorted(required_by)),
        extras=tuple(sorted(extras)),
    )


def _file(package: Package, request: TargetRequest) -> WheelFile:
    file, rules = package.file, request.rules
    if package.name in rules.sources:
        return rules.sources[package.name].file
    if package.name in rules.direct:
        listed = rules.direct[package.name]
        return WheelFile(DIRECT_URL, listed.filename, listed.sha256 or "", listed.size_bytes, listed.url)
    index = rules.index_of(package.name)
    return replace(file, index=index.name, url=None if index.name == DEFAULT_INDEX else file.url)


def _with_conda(part: Resolution, spec: Spec, facts: Facts, cutoffs: Cutoffs) -> Resolution:
    """The conda packages, with what requires each of them: it follows from the records and the spec."""
    if spec.conda is None:
        return replace(part, conda=())
    from envspec.resolve.conda.records import with_askers
    from envspec.resolve.conda.request import conda_request

    request = conda_request(spec, part.target.platform, facts, cutoffs, (), ())
    return replace(part, conda=with_askers(part.conda, request.requirements))


def _channels(lock: Lock, channels: Iterable[str]) -> tuple[CondaChannel, ...]:
    """The spec's channels; the lock alone records of which of them it used a part."""
    recorded = {each.url: each.part for each in lock.channels}
    found: list[CondaChannel] = []
    for text in channels:
        url = channel_url(text)
        found.append(CondaChannel(channel_without_credentials(text), url, recorded.get(url)))
    return tuple(found)


def _on_top(part: Resolution, found: FoundEnvironment | None) -> Resolution:
    """The packages with what is there before them; the lock alone records what requires it."""
    if found is None:
        return replace(part, on_top_of=None, installed=())
    required_by = {each.name: each.required_by for each in part.installed}
    on_top = installed_on(replace(part, installed=()), found)
    installed = tuple(replace(each, required_by=required_by.get(each.name, ())) for each in on_top.installed)
    return replace(on_top, installed=installed)


def _with_builds(part: Resolution, spec: Spec, facts: Facts) -> Resolution:
    """The packages with the settings of their builds, as before they were built, and the compilers of these builds."""
    compilers = {each.name: each.compiler for each in part.builds}
    packages = list(part.packages)
    for at, package in enumerate(packages):
        if package.name in compilers:
            packages[at] = replace(package, built=None)
    made = with_builds(replace(part, packages=tuple(packages)), spec, facts)
    builds = tuple(replace(each, compiler=compilers.get(each.name, "")) for each in made.builds)
    return replace(part, builds=builds)


def _with_digests(lock: Lock, planned: BaseImage) -> BaseImage:
    """The image with what only a registry knows: what a tag names, and when that was created."""
    digests: list[PinnedDigest] = []
    for each in planned.digests:
        found = _recorded_digest(lock, planned, each.platform) or each
        is_of_registry = found.source == "registry" and found.digest is not None and each.source != "spec"
        is_of_spec = each.source == "spec" and found.digest == each.digest
        if is_of_registry:
            digests.append(found)
        elif is_of_spec:
            digests.append(replace(each, created=found.created))
        else:
            digests.append(each)
    return replace(planned, digests=tuple(digests))


def _recorded_digest(lock: Lock, planned: BaseImage, platform: Platform) -> PinnedDigest | None:
    """The lock's digest of the planned image on a platform; None if it has another image there."""
    image = lock.on(platform).base_image
    if image is None or (image.repository, image.tag) != (planned.repository, planned.tag):
        return None
    return next((each for each in image.digests if each.platform is platform), None)
