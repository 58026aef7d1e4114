"""Sdists, git sources and local projects to wheels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from packaging.requirements import Requirement as Pep508
from packaging.utils import parse_wheel_filename

from envspec.base_image.cuda import NoSuchImage, Release
from envspec.base_image.plan import choose_image, custom_image
from envspec.build.environment import FIRST_TOOLKIT, cuda_of, host_compiler, packages_beside
from envspec.build.reproducible import check_release, is_loaded, metadata_of, record_digest, record_of
from envspec.build.types import (
    BuildContainer,
    BuildEnvironment,
    BuildRequest,
    BuildSource,
    BuildTools,
    CachedWheel,
    Compilers,
    NeedsCompiler,
    ToolDates,
    WheelBuildFailed,
    WrongWheel,
)
from envspec.build.wheel import build_wheel, check_copy, folder_source, git_source, sdist_source
from envspec.context import SILENT, Step
from envspec.diagnostics.machine import this_platform
from envspec.errors import NetworkError, OfflineMiss, StaleLock, UnfitMachine
from envspec.facts import Facts
from envspec.facts.tables import load_facts
from envspec.fetch.download import Downloads
from envspec.fetch.sources import commit_of, copy_to_cache, fetch_sdist
from envspec.fetch.types import Archive, archive_path, python_archive
from envspec.fetch.wheels import fetch_wheels
from envspec.io.confine import NoConfinement
from envspec.io.files import local_path, tree_sha256
from envspec.io.process import local_glibc
from envspec.io.store import StoredMetadata
from envspec.models import (
    DEFAULT_INDEX,
    DIRECT_URL,
    GIT,
    LOCAL,
    BaseImage,
    BuiltWheel,
    Commit,
    Decision,
    Lock,
    Package,
    Platform,
    Python,
    Resolution,
    Target,
    Unbuilt,
    WheelFile,
)
from envspec.names import normalised
from envspec.operations.built_wheels import BUILT_WHEELS, find_built
from envspec.operations.lock_state import LockState, Upgrade, find_package, lacks_wheel, locked_commit, packages_in
from envspec.operations.session import Session
from envspec.origins import PYTORCH
from envspec.reasons import reason
from envspec.registry.client import resolve_digests
from envspec.registry.reference import endpoint_of, parse
from envspec.resolve.pypi.index.file_metadata import BadSdist, source_of_metadata, stated_version
from envspec.resolve.pypi.index.file_metadata import metadata as stated_metadata
from envspec.resolve.pypi.index.routing import BuiltSource
from envspec.resolve.pypi.metadata import (
    Overrides,
    allows,
    applicable,
    declared,
    offered_extras,
    override,
    requires_python,
    without_marker,
)
from envspec.resolve.pypi.request import indexes_of, recorded_overrides, sources_of
from envspec.spec import Requirement, RequirementKind, Spec
from envspec.spec.errors import RefusedValues, quoted
from envspec.spec.requirements import GitAddress, read_git
from envspec.spec.targets import marker_environment
from envspec.structs import replace


class WheelBuilder:
    """Builds wheels on this machine or in containers.

    of: whose builds these are, for messages.
    base_on: the image that a platform's wheels are to load beside.
    """

    def __init__(self, of: str, base_on: Callable[[Platform], BaseImage | None], session: Session) -> None:
        self._of = of
        self._base_on = base_on
        self._session = session
        self._context = session.context
        self._interpreters: dict[str, asyncio.Future[Path | None]] = {}

    async def build_wheel(self, request: BuildRequest, interpreter: Path | None = None) -> CachedWheel:
        """A wheel from the cache, or built. interpreter: the Python that builds it, instead of one that is found."""

        async def find(python: Python) -> Path | None:
            if interpreter is not None:
                return interpreter
            # Half a second, where pyenv's commands have to be asked.
            finding = self._interpreters.get(python.version)
            if finding is None:
                finding = self._interpreters[python.version] = asyncio.ensure_future(self._interpreter(python))
            return await asyncio.shield(finding)

        local: Platform | None = None
        with suppress(UnfitMachine):
            local = this_platform()
        has_room = request.compilers is not Compilers.NOWHERE or self._base_on(request.target.platform)
        room = self._container if has_room else None
        return await build_wheel(request, self._context, BuildTools(local, find, room))

    async def recorded_wheel(self, package: Package | None) -> CachedWheel | None:
        """The wheel that a lock records of a source; None if neither the cache nor `ENVSPEC_BUILT_WHEELS` has it."""
        if package is None or package.built is None:
            return None
        path = (await find_built([package], self._context)).get(package.built.sha256)
        return CachedWheel(package.built, path) if path else None

    async def _interpreter(self, python: Python) -> Path | None:
        """A Python of the series on this machine, else a standalone build; None if there is neither."""
        from envspec.image.sources.bytecode import find_compiler, standalone_build, unpacked_build

        quiet, local = replace(self._context, reporter=SILENT), this_platform()
        with suppress(UnfitMachine):
            return (await find_compiler(python, quiet, local)).python
        rows = load_facts().standalone_pythons(python.series, local)
        if not rows:
            return None
        archive = python_archive(rows[0].version, rows[0].url, rows[0].sha256)
        fetch = partial(self._download, archive)
        build = standalone_build(self._context.cache, python.series, archive.sha256, fetch, is_known=True)
        try:
            return await unpacked_build(build)
        except NetworkError as error:
            error.restate(
                f"builds need Python {python.series}: this machine has none, and a standalone build can't be fetched: "
                f"{error.message}",
                f"install Python {python.series}, such as by `uv python install {python.series}`",
            )
            raise

    async def _container(self, target: Target, compilers: Compilers) -> BuildContainer:
        """The devel flavour of the lock's base, by its digest, and a Python to build with; without compilers, the base
        itself.
        """
        base = self._base_on(target.platform)
        if base is None:
            raise UnfitMachine(
                f"{self._of} has no base image whose devel flavour could build what is to be compiled",
                hint="add [cuda] or [image] base to the spec, or name a wheel by its URL",
            )
        name = base.name if compilers is Compilers.NOWHERE else devel_of(base)
        digest = await self._digest(name, base, target.platform)
        endpoint = endpoint_of(parse(f"{name}@{digest}"), dict(self._context.mirrors))
        host = endpoint.base.partition("://")[2].partition("/")[0]
        python = await self._standalone(target)
        return BuildContainer(f"{host}/{endpoint.repository}@{digest}", python)

    async def _digest(self, name: str, base: BaseImage, platform: Platform) -> str:
        if name == f"{base.repository}:{base.tag}":
            for pinned in base.digests:
                if pinned.platform is platform and pinned.digest:
                    return pinned.digest
        if base.flavor:
            row = load_facts().digest_of(name.rpartition(":")[2], platform)
            if row is not None:
                return row.digest
        if self._context.is_offline:
            raise OfflineMiss(f"the digest of {name}")
        found = await resolve_digests(parse(name), [platform], await self._session.registry())
        return str(found[0].digest)

    async def _standalone(self, target: Target) -> Path:
        """A standalone build of the target's Python, else the newest of its series: wheels are for a series."""
        python = target.python
        if python.source == "standalone" and python.url and python.sha256:
            return await self._download(python_archive(python.version, python.url, python.sha256))
        rows = load_facts().standalone_pythons(python.series, target.platform)
        if not rows:
            raise WheelBuildFailed(
                f"Python {python.series}", f"no standalone build of it is known for {target.platform.value}"
            )
        chosen = next((each for each in rows if each.version == python.version), rows[0])
        return await self._download(python_archive(chosen.version, chosen.url, chosen.sha256))

    async def _download(self, archive: Archive) -> Path:
        return (await Downloads(self._context).fetch([archive]))[archive.sha256]


def own_base(spec: Spec, facts: Facts, platform: Platform) -> BaseImage | None:
    """The image to build for before anything is resolved: the spec's own base, or the devel image of its CUDA.

    None if the spec names neither: nothing can be compiled for it then.
    """
    if spec.image.base is not None:
        return custom_image(spec.image.base, "", [platform], facts).image
    cuda = spec.cuda_on(platform)
    if cuda is None or cuda.version is None:
        return None
    flavor = Decision("image.flavor", "devel", (reason("for-builds"),))
    try:
        return choose_image(Release(cuda.version, None, flavor), [flavor], cuda.os.value, [platform], facts).image
    except NoSuchImage:
        return None


def devel_of(base: BaseImage) -> str:
    """The image to build in: the base's own devel flavour; of an image that is the user's, that one itself."""
    if base.flavor is None or "devel" in base.flavor:
        return f"{base.repository}:{base.tag}"
    own = base.tag.partition("-")[2].rpartition("-")[0]
    devel = own.replace("runtime", "devel").replace("base", "devel")
    return f"{base.repository}:{base.tag.replace(f'-{own}-', f'-{devel}-')}"


class _Found(Struct, frozen=True):
    """A source as it is now; a path is that of what is a wheel already."""

    index: str
    url: str
    sdist: WheelFile | None
    source: BuildSource | Path

    def is_of(self, package: Package) -> bool:
        """Whether a package of another lock was built of the same source."""
        if (package.file.index, package.file.url) != (self.index, self.url):
            return False
        return self.sdist is None or self.sdist.sha256 == package.file.sha256


async def build_sources(
    state: LockState, targets: Sequence[Target]
) -> tuple[Mapping[Target, Mapping[str, BuiltSource]], tuple[Commit, ...]]:
    """Build the sources that the spec names, for each target; with the commits that they are.

    The key of a wheel is the text of its requirement, without credentials.

    Raises:
        WheelBuildFailed, UnfitMachine, NetworkError: see `envspec.build.wheel`. RefusedValues: a folder does not exist.
    """
    async with Session(state.context.without_progress()) as session:
        builder = WheelBuilder(state.spec.env.name, partial(own_base, state.spec, state.facts), session)
        sources = _Sources(state, builder)
        found: dict[Target, dict[str, BuiltSource]] = {}
        for target in targets:
            found[target] = {str(each): await sources.wheel_of(each, target) for each in sources_of(state.spec, target)}
    return found, tuple(sources.commits.values())


class _Sources:
    """The sources of one lock."""

    def __init__(self, state: LockState, builder: WheelBuilder) -> None:
        self._state = state
        self._context = state.context
        self._builder = builder
        #: By the requirement's text.
        self.commits: dict[str, Commit] = {}

    async def wheel_of(self, requirement: Requirement, target: Target) -> BuiltSource:
        name, platform = requirement.name, target.platform.value
        self._context.reporter.progress(Step(f"building {name}", of=platform))
        found = await self._find(requirement)
        made = await self._builder.recorded_wheel(self._find_recorded(name, found, target))
        if made is None:
            try:
                made = await self._new_wheel(name, found, target)
            except NoConfinement:
                if found.sdist is None:
                    raise
                unbuilt = await asyncio.to_thread(self._unbuilt, name, found.sdist)
                if unbuilt is None:
                    raise
                return unbuilt
        built, path = made.wheel, made.path
        metadata = StoredMetadata(await asyncio.to_thread(metadata_of, path, name), built.size_bytes)
        self._state.store.put_metadata(built.sha256, metadata)
        self._state.store.put_record(built.sha256, await asyncio.to_thread(record_of, path))
        return BuiltSource(
            found.sdist or WheelFile(found.index, built.filename, built.sha256, built.size_bytes, found.url), built
        )

    async def _new_wheel(self, name: str, found: _Found, target: Target) -> CachedWheel:
        state, source = self._state, found.source
        if isinstance(source, Path):
            return await asyncio.to_thread(self._copy, name, source, found.url.rpartition("=")[2], target)
        request = BuildRequest(name, None, target, state.as_of, source, indexes_of(state.spec))
        return await self._builder.build_wheel(request)

    def _unbuilt(self, name: str, file: WheelFile) -> BuiltSource | None:
        """An sdist that nothing confines the build of; None if it does not state what its wheel requires.

        Raises:
            WrongWheel: it cannot be read, or is another project's.
        """
        content = archive_path(self._context.cache, name, file.sha256, file.filename).read_bytes()
        try:
            version = stated_version(content, file.filename)
            if not version:
                return None
            source = source_of_metadata(content, file.filename, name, version)
            if source is None:
                return None
            body = stated_metadata(content, file.filename, name, version)
        except BadSdist as error:
            raise WrongWheel(name, str(error), hint="name another file") from error
        self._state.store.put_metadata(file.sha256, StoredMetadata(body, len(content)))
        return BuiltSource(file, None, source, version)

    def _find_recorded(self, name: str, found: _Found, target: Target) -> Package | None:
        """What the old lock built of the same source; None if that build may have used other indexes."""
        lock = self._state.old
        if lock is None or not self._state.builds_alike(lock):
            return None
        for part in lock.resolutions:
            old = find_package(part, name)
            if part.target == target and old is not None and found.is_of(old):
                return old
        return None

    async def _find(self, requirement: Requirement) -> _Found:
        if requirement.kind is RequirementKind.GIT:
            return await self._find_git(requirement)
        if requirement.kind is RequirementKind.LOCAL:
            return await asyncio.to_thread(self._find_local, requirement)
        state, now = self._state, self._context.now()
        row, path = await fetch_sdist(requirement, state.as_of, now, state.store, self._context)
        return _Found(DIRECT_URL, row.url or "", row, sdist_source(row.sha256, _give_path(path)))

    async def _find_git(self, requirement: Requirement) -> _Found:
        address = read_git(requirement.url or "")
        context = self._context
        locked = self.commits.get(str(requirement))
        if locked is None:
            commit = self._commit_before(requirement)
            if commit is None and context.is_offline:
                raise OfflineMiss(f"the commit of {requirement}")
            commit = commit or await commit_of(address, requirement.name, context.environ)
            locked = self.commits[str(requirement)] = locked_commit(requirement, commit)
        commit = read_git(locked.address).ref
        return _Found(GIT, locked.address, None, git_source(address, commit, context.environ, context.connectivity))

    def _commit_before(self, requirement: Requirement) -> str | None:
        """The commit of the old lock for the same requirement, unless it may move."""
        state = self._state
        if state.old is None or state.request.upgrade is Upgrade.ALL or requirement.name in state.upgraded:
            return None
        for recorded in state.old.commits:
            if recorded.requirement == str(requirement):
                return read_git(recorded.address).ref
        return None

    def _find_local(self, requirement: Requirement) -> _Found:
        address = (requirement.url or "").partition("#")[0]
        path = local_path(address, self._state.request.spec_path.parent)
        at = ("pip", "dependencies", self._state.spec.pip.dependencies.index(requirement))
        if not (path.is_dir() or path.is_file()):
            hint = "correct the path: it is relative to the spec's folder"
            raise RefusedValues((at, f"{address} does not exist", hint))
        if path.is_dir() and not any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
            text = f"{address} has neither pyproject.toml nor setup.py"
            raise RefusedValues((at, text, "name the project's folder"))
        sha256 = tree_sha256(path)
        source: BuildSource | Path = path
        if path.is_dir():
            source = folder_source(path, sha256)
        elif not path.name.endswith(".whl"):

            async def copied() -> Path:
                return await asyncio.to_thread(self._copied, requirement.name, path, sha256)

            source = sdist_source(sha256, copied)
        return _Found(LOCAL, f"{address}#sha256={sha256}", None, source)

    def _copy(self, name: str, path: Path, sha256: str, target: Target) -> CachedWheel:
        """Copy a wheel into the cache."""
        check_release(path, name, None, name)
        if not is_loaded(path.name, target):
            series, platform = target.python.series, target.platform.value
            raise WrongWheel(
                name, f"{path.name} can't be loaded by Python {series} on {platform}", hint="name another wheel"
            )
        cached = self._copied(name, path, sha256)
        return CachedWheel(BuiltWheel(path.name, sha256, cached.stat().st_size), cached)

    def _copied(self, name: str, path: Path, sha256: str) -> Path:
        """A local file in the cache."""
        cached = archive_path(self._context.cache, name, sha256, path.name)
        with path.open("rb") as file:
            copy_to_cache(file, cached)
        check_copy(cached, path, sha256)
        return cached


def _give_path(path: Path) -> Callable[[], Awaitable[Path]]:
    async def give() -> Path:
        return path

    return give


def unmet_requirements(
    metadata: bytes, package: Package, part: Resolution, overrides: Overrides
) -> list[tuple[str, str]]:
    """The requirements of a package's METADATA that the packages of a resolution do not meet, each with the reason."""
    versions: dict[str, str] = {}
    for conda in part.conda:
        versions |= {each.name: each.version for each in conda.provides}
    versions |= {each.name: each.version for each in part.installed}
    extras_of = {}
    for each in part.packages:
        versions[each.name] = each.version
        extras_of[each.name] = each.extras
    found: dict[tuple[str, str], None] = {}
    for requirement in _requirements(metadata, package, part.target, overrides):
        name, text = normalised(requirement.name), without_marker(requirement)
        version = versions.get(name)
        extras = set(map(normalised, requirement.extras))
        missing = sorted(extras.difference(extras_of.get(name, extras)))
        if version is None:
            found[text, "not in the lock"] = None
        elif not requirement.specifier.contains(version, prereleases=True):
            found[text, f"the lock has {version}"] = None
        elif missing:
            found[text, f"the lock has it without {', '.join(missing)}"] = None
    return list(found)


def _requirements(metadata: bytes, package: Package, target: Target, overrides: Overrides) -> Iterator[Pep508]:
    """What a METADATA of a package requires for a target, after the spec's overrides."""
    texts = [override(text, overrides) for text in declared(metadata)]
    return applicable(tuple(filter(None, texts)), marker_environment(target), frozenset(package.extras))


def find_unstated(
    stated: bytes, metadata: bytes, package: Package, target: Target, overrides: Overrides
) -> Iterator[str]:
    """How the METADATA of a wheel differs from what its sdist states, as far as the target's lock depends on it."""

    def needs(of: bytes) -> set[str]:
        found = _requirements(of, package, target, overrides)
        return {without_marker(each).replace(each.name, normalised(each.name), 1) for each in found}

    for text in sorted(needs(metadata) - needs(stated)):
        yield f"{text} (not stated)"
    for text in sorted(needs(stated) - needs(metadata)):
        yield f"not {text}, which is stated"
    python = requires_python(metadata)
    if python is not None and not allows(python, target.python.version):
        yield f"Python {python}"
    for extra in sorted(set(package.extras).difference(offered_extras(metadata))):
        yield f"no extra {extra}, which is stated"


def _read_stated(sdist: Path, package: Package) -> bytes:
    return stated_metadata(sdist.read_bytes(), package.file.filename, package.name, package.version)


def _check_indexes(lock: Lock, of: str) -> None:
    """Refuse to build from a lock that has packages of an index that it does not record.

    Build requirements which are that index's would be from the default index.

    Raises:
        StaleLock: names the index.
    """
    existing = {DEFAULT_INDEX, DIRECT_URL, GIT, LOCAL, *(index.name for index in lock.indexes)}
    for index in sorted({each.file.index for each in packages_in(lock.resolutions)} - existing):
        if not index.startswith(PYTORCH):
            raise StaleLock(
                f"{of} can't be built: the lock of {lock.name} does not record which packages index {index} "
                "provides, and its build requirements could be from another",
                hint="run `envspec lock SPEC` to record it",
            )


def _with_wheel(package: Package, wheel: BuiltWheel) -> Package:
    """The package with its wheel; of a commit or a folder that was not built before, its file and version are the
    wheel's.
    """
    if package.file.index not in {GIT, LOCAL}:
        return replace(package, built=wheel)
    file = replace(package.file, filename=wheel.filename, sha256=wheel.sha256, size_bytes=wheel.size_bytes)
    return replace(package, version=str(parse_wheel_filename(wheel.filename)[1]), file=file, built=wheel)


async def _folder(lock: Lock, package: Package) -> BuildSource:
    from envspec.image.code import package_folder

    folder = package_folder(lock, package)
    sha256 = await asyncio.to_thread(tree_sha256, folder)
    locked = (package.file.url or "").partition("#sha256=")[2]
    if locked not in ("", sha256):
        raise _without_wheel(package)
    return folder_source(folder, sha256)


def _without_wheel(package: Package) -> NetworkError:
    folder = (package.file.url or "").partition("#")[0]
    return NetworkError(
        f"{package.name} {package.version} was built of the folder {folder}, and its wheel is not here",
        hint=f"set {BUILT_WHEELS} to the `archives` folder of the cache where it was locked, or a copy; if the folder "
        "has changed since, run `envspec lock SPEC`",
    )


class Builds:
    """The builds of one lock."""

    def __init__(self, lock: Lock, session: Session) -> None:
        self._lock = lock
        self._cutoffs = dict(lock.package_as_of)
        self._context = session.context
        self._builder = WheelBuilder(lock.name, lambda platform: lock.on(platform).base_image, session)

    async def record(self, platform: Platform, wanted: Callable[[Package], bool] = lacks_wheel) -> Lock:
        """The lock with the wheel of every wanted source of one platform that it does not record, built.

        Raises:
            WheelBuildFailed, UnfitMachine, NetworkError: see `envspec.build.wheel`.
        """
        resolutions = list(self._lock.resolutions)
        for number, part in enumerate(resolutions):
            if part.target.platform is platform:
                # In the lock's order: a package is built beside those that are built before it, too.
                for at, package in enumerate(part.packages):
                    if wanted(package):
                        part = await self._record_one(at, part)  # noqa: PLW2901
                resolutions[number] = part
        return replace(self._lock, resolutions=tuple(resolutions))

    async def fetch(self, packages: Sequence[Package], part: Resolution) -> dict[str, Path]:
        """SHA-256 -> file in the cache, of the built wheels among these: from the cache, from others, else built again.

        Raises:
            UnexpectedWheel: the build gave other bytes than the lock records; and as `record`.
        """
        found = dict(await find_built(packages, self._context))
        for each in packages:
            if each.built and each.built.sha256 not in found:
                found[each.built.sha256] = (await self._builder.build_wheel(await self._request(each, part))).path
        return found

    async def install(self, part: Resolution, python: Path) -> tuple[Resolution, dict[str, Path]]:
        """The resolution with a wheel of every source, and SHA-256 -> file in the cache of these.

        Sources without a recorded wheel are built for this machine alone, by `python` and this machine's compilers;
        those that need none, as everywhere.

        Raises:
            As `fetch`.
        """
        found = await self.fetch(part.packages, part)
        packages = list(part.packages)
        for number, each in enumerate(packages):
            if lacks_wheel(each):
                request = await self._request(each, part)
                is_everywhere = each.unbuilt or (request.environment is not None and request.environment.compiler)
                if not is_everywhere:
                    request = replace(request, compilers=Compilers.LOCAL)
                made = await self._first_build(request, each, part, python)
                found[made.wheel.sha256] = made.path
                packages[number] = _with_wheel(each, made.wheel)
        return replace(part, packages=tuple(packages)), found

    async def _record_one(self, at: int, part: Resolution) -> Resolution:
        package = part.packages[at]
        request = await self._request(package, part)
        made = await self._first_build(request, package, part)
        digest = await asyncio.to_thread(record_digest, made.path)
        packages, builds = list(part.packages), list(part.builds)
        package = replace(_with_wheel(package, made.wheel), record_sha256=digest, unbuilt=None)
        if package.file.index == LOCAL:
            # Such as the folder of a spec: `lock --check` compares its files.
            url = f"{package.file.url}#sha256={request.source.identity.removeprefix('tree:')}"
            package = replace(package, file=replace(package.file, url=url))
        packages[at] = package
        for number, settings in enumerate(builds):
            if request.environment and settings.name == package.name:
                builds[number] = replace(settings, compiler=request.environment.compiler)
        return replace(part, packages=tuple(packages), builds=tuple(builds))

    async def _first_build(
        self, request: BuildRequest, package: Package, part: Resolution, python: Path | None = None
    ) -> CachedWheel:
        """The wheel of a source of which the lock records none, checked: see `_check_requirements`."""
        try:
            made = await self._builder.build_wheel(request, python)
        except NeedsCompiler as error:
            if package.unbuilt:
                allow = f"add {quoted(package.name)} to [pip.build] packages, and run `envspec lock`"
                if self._lock.is_adopted:
                    allow = f"add {quoted(package.name)} to `packages` in [tool.envspec.pip.build]"
                error.hint = (
                    f"use a release that has a wheel; or allow the build by compilers, which runs its code: {allow}"
                )
            raise
        await self._check_requirements(made, package, part)
        return made

    async def _check_requirements(self, made: CachedWheel, package: Package, part: Resolution) -> None:
        """Fail if a wheel requires what the lock does not have; of an unbuilt sdist, anything else than that states."""
        if package.unbuilt is Unbuilt.LOCKED:
            return
        metadata = await asyncio.to_thread(metadata_of, made.path, package.name)
        overrides = recorded_overrides(self._lock.overrides, part.target)
        if package.unbuilt:
            stated = await asyncio.to_thread(_read_stated, await self._sdist(package), package)
            found = list(find_unstated(stated, metadata, package, part.target, overrides))
            hint = (
                "run `envspec lock SPEC --no-sandbox`, or where bubblewrap works: the lock then follows from the wheel"
            )
        else:
            found, names = [], []
            for text, why in unmet_requirements(metadata, package, part, overrides):
                found.append(f"{text} ({why})")
                names.append(quoted(text))
            hint = f"add {', '.join(names)} to [pip] dependencies, and run `envspec lock`"
        if found:
            raise WrongWheel(
                f"{package.name} {package.version}",
                f"it was locked on {part.target.platform.value} by what its sdist states, and its wheel requires "
                f"something else: {'; '.join(found)}",
                hint=hint,
            )

    async def _sdist(self, package: Package) -> Path:
        """The sdist itself, not a wheel built of it."""
        return (await fetch_wheels([replace(package, built=None)], self._context))[package.file.sha256]

    async def _request(self, package: Package, part: Resolution) -> BuildRequest:
        lock, file = self._lock, package.file
        of = f"{package.name} {package.version}"
        _check_indexes(lock, of)
        as_of = lock.as_of
        if file.index not in {DIRECT_URL, GIT}:
            as_of = max(as_of, self._cutoffs.get(package.name, as_of))
        environment = await self._environment(package, part)
        is_adopted_source = package.unbuilt is Unbuilt.LOCKED and file.index in {GIT, LOCAL}
        if file.index == LOCAL and not lock.is_adopted:
            raise _without_wheel(package)
        source = sdist_source(file.sha256, partial(self._sdist, package))
        if file.index == GIT:
            address, context = read_git(file.url or ""), self._context
            named = self._with_ref(package.name, address)
            source = git_source(named, address.ref, context.environ, context.connectivity)
        elif file.index == LOCAL:
            source = await _folder(lock, package)
        # The spec allows compilers for what it names by its URL.
        is_pure_only = package.unbuilt and file.index != DIRECT_URL
        return BuildRequest(
            package.name,
            None if is_adopted_source else package.version,
            part.target,
            as_of,
            source,
            lock.indexes,
            package.built,
            Compilers.NOWHERE if is_pure_only else Compilers.CONTAINER,
            environment,
            ToolDates.AS_REQUIRED if lock.is_adopted else ToolDates.AS_OF,
        )

    async def _environment(self, package: Package, part: Resolution) -> BuildEnvironment | None:
        """What a package is built beside; None: it is built in isolation.

        Raises:
            UnfitMachine: this machine has no compiler, or its wheel would differ from the locked one.
        """
        settings = part.build_of(package.name)
        if settings is None:
            return None
        beside = packages_beside(part, package.name, settings.requires)
        cuda = cuda_of(beside)
        compiler, why_not = await self._compiler(part.target, cuda)
        if package.built is not None and settings.compiler not in ("", compiler):
            raise UnfitMachine(
                f"{package.name} {package.version}: the locked wheel was compiled by {settings.compiler}, and this "
                f"machine has {compiler or 'no such compiler'}: its wheel would differ",
                hint=f"set {BUILT_WHEELS} to the `archives` folder of the cache of the lock's author",
            )

        hashes = tuple((each.name, each.wheel.sha256) for each in beside)

        async def fetch() -> Mapping[str, Path]:
            listed = [each for each in beside if not each.built]
            found = {**await self.fetch(beside, part), **await fetch_wheels(listed, self._context)}
            return {name: found[sha256] for name, sha256 in hashes}

        toolkit = cuda if compiler else ""
        return BuildEnvironment(settings, hashes, fetch=fetch, cuda=toolkit, compiler=compiler, why_not=why_not)

    async def _compiler(self, target: Target, cuda: str) -> tuple[str, str]:
        """This machine's compiler, if what it compiles is right for the target; else the reason why not."""
        if cuda and int(cuda.partition(".")[0]) < FIRST_TOOLKIT:
            return "", f"no wheels have the compiler of CUDA {cuda}"
        local, own = local_glibc(), target.glibc
        # What is compiled here needs this machine's C library, or a newer one.
        if local is None or own is None or local > own:
            found = ".".join(map(str, local)) if local else "none"
            return "", f"this machine's glibc ({found}) is not older than the target's"
        with suppress(UnfitMachine):
            if this_platform() is target.platform:
                compiler = await host_compiler()
                why_not = "" if compiler else "this machine has no g++ (install it: `apt-get install g++`)"
                return compiler, why_not
        return "", f"this machine is not {target.platform.value}"

    def _with_ref(self, name: str, address: GitAddress) -> GitAddress:
        """The address with the spec's ref, if the commit may be on no branch and no tag."""
        ref = next((each.ref for each in self._lock.commits if each.name == name), "")
        if ref.startswith("refs/") and not ref.startswith(("refs/heads/", "refs/tags/")):
            return replace(address, ref=ref)
        return address
