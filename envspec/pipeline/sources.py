"""What a spec names to be built: git and local projects, sdists by URL. Their wheels are made while it is locked."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envspec.build.faults import WrongWheel
from envspec.build.make import make
from envspec.build.order import BuildOrder
from envspec.build.orders import Wanted, of_folder, of_git, of_sdist
from envspec.build.wheel_bytes import check_release, is_loaded, metadata_of, record_of
from envspec.credentials import without_credentials
from envspec.effects.cache import keeping
from envspec.effects.event_loop import run_to_end
from envspec.effects.files import beside
from envspec.effects.http_values import Patience
from envspec.effects.surroundings import patience as patience_of
from envspec.effects.tree import local_path, tree_sha256
from envspec.errors import UsageError
from envspec.fetch.built_wheels import find_built
from envspec.fetch.git import commit_of
from envspec.fetch.sdist_url import fetch_sdist
from envspec.fetch.values import Fetching, Network, archive_path
from envspec.image.order import ImageWorld
from envspec.lock.canonical import public_indexes
from envspec.model import DIRECT_URL, GIT, LOCAL, BuiltWheel, Decision, Package, Target, WheelFile
from envspec.pipeline.doors import Doors
from envspec.pipeline.work import SOURCE, Sources, Upgrade, Work
from envspec.pipeline.workshop import Workshop, own_base
from envspec.resolve.compose import indexes_of, sources_of
from envspec.resolve.index.rules import Source
from envspec.resolve.index.store import StoredMetadata
from envspec.resolve.index.upstream import OfflineMiss
from envspec.spec import Requirement, RequirementKind
from envspec.spec.git_address import read_git


@dataclass(frozen=True, slots=True)
class _Found:
    """A source as it is now. file: its row but for what the wheel tells. order: None for what is a wheel already."""

    index: str
    url: str
    sdist: WheelFile | None
    order: BuildOrder | None
    wheel: Path | None = None


def build_sources(work: Work, targets: Sequence[Target]) -> Sources:
    """Build everything that the spec names as a source, for each target.

    Raises:
        BuildFailed, UnfitMachine, NetworkError: see `envspec.build.make`. UsageError: a folder that is not there.
    """
    wanted = {target: sources_of(work.spec, target) for target in targets}
    return run_to_end(_build(work, wanted))


async def _build(work: Work, wanted: Mapping[Target, Sequence[Requirement]]) -> Sources:
    around = work.around
    world = ImageWorld(
        around.environ,
        around.home,
        around.cache,
        lambda _: None,
        around.warn,
        work.spec.registry.mirrors,
        unconfined=work.unconfined,
    )
    network = Network.OFFLINE if work.offline else Network.USE
    patience = patience_of(around.environ, Patience())
    how = Fetching(around.cache, patience, network, work.request.jobs, lambda _: None, around.warn)
    async with Doors(world) as doors:
        shop = Workshop(work.spec.env.name, own_base(work.spec, work.facts), how, doors)
        making = _Making(work, how, shop)
        found = {
            target: {str(each): await making.source(each, target) for each in requirements}
            for target, requirements in wanted.items()
        }
    return Sources(found, tuple(making.decisions.values()))


class _Making:
    """The sources of one lock."""

    def __init__(self, work: Work, how: Fetching, shop: Workshop) -> None:
        self._work = work
        self._how = how
        self._shop = shop
        self._indexes = indexes_of(work.spec)
        self._commits: dict[str, str] = {}
        self.decisions: dict[str, Decision] = {}

    async def source(self, requirement: Requirement, target: Target) -> Source:
        name, platform = requirement.name, target.platform.value
        self._work.around.report(platform, f"building {name}")
        found = await self._find(requirement, target)
        kept = await self._kept(name, found, target)
        if kept is not None:
            built, path = kept
        elif found.order is None:
            built, path = await asyncio.to_thread(self._as_it_is, name, found, target)
        else:
            # A build remembers pages, too, and would wait for the end of this transaction.
            self._work.store.save()
            made = await make(found.order, self._shop.world())
            built, path = made.wheel, made.path
        metadata = StoredMetadata(await asyncio.to_thread(metadata_of, path, name), built.size_bytes)
        self._work.store.remember_metadata(built.sha256, metadata)
        self._work.store.remember_record(built.sha256, await asyncio.to_thread(record_of, path))
        return Source(
            found.sdist or WheelFile(found.index, built.filename, built.sha256, built.size_bytes, found.url), built
        )

    async def _kept(self, name: str, found: _Found, target: Target) -> tuple[BuiltWheel, Path] | None:
        """The wheel that the old lock records of the same source, from the cache or from others; none where what built
        it may have come from other indexes.
        """
        old = self._old(name, target)
        same = old is not None and old.built is not None and (old.file.index, old.file.url) == (found.index, found.url)
        if not same or old is None or old.built is None:
            return None
        if found.sdist is not None and found.sdist.sha256 != old.file.sha256:
            return None
        paths = await find_built([old], self._how, self._work.around.environ)
        return (old.built, paths[old.built.sha256]) if old.built.sha256 in paths else None

    def _old(self, name: str, target: Target) -> Package | None:
        old = self._work.old
        if old is None or (old.as_of, old.indexes) != (self._work.as_of, public_indexes(self._indexes)):
            return None
        packages = (p for part in old.resolutions if part.target == target for p in part.packages)
        return next((package for package in packages if package.name == name), None)

    async def _find(self, requirement: Requirement, target: Target) -> _Found:
        wanted = Wanted(requirement.name, None, target, self._work.as_of, self._indexes)
        if requirement.kind is RequirementKind.GIT:
            return await self._find_git(requirement, wanted)
        if requirement.kind is RequirementKind.LOCAL:
            return await asyncio.to_thread(self._find_local, requirement, wanted)
        work = self._work
        asked = work.around.now()
        row, path = await fetch_sdist(requirement, work.as_of, asked, work.store, self._how, work.around.environ)
        return _Found(DIRECT_URL, row.url or "", row, of_sdist(wanted, row.sha256, _there(path)))

    async def _find_git(self, requirement: Requirement, wanted: Wanted) -> _Found:
        address = read_git(requirement.url or "")
        commit = self._commits.get(str(requirement)) or self._commit_before(requirement)
        if commit is None:
            if self._work.offline:
                raise OfflineMiss(f"the commit of {requirement}")
            commit = await commit_of(address, requirement.name, self._work.around.environ)
        self._commits[str(requirement)] = commit
        url = without_credentials(address.pinned(commit))
        why = f"the commit that {address.ref or 'the default branch'} is at"
        what = SOURCE + requirement.name
        self.decisions[what] = Decision(what, url, why, str(requirement))
        order = of_git(wanted, address, commit, self._work.around.environ, self._how.network)
        return _Found(GIT, url, None, order)

    def _commit_before(self, requirement: Requirement) -> str | None:
        """The commit that the old lock has for the same words: nothing moves that is not asked to."""
        work = self._work
        if work.old is None or work.request.upgrade is Upgrade.ALL or requirement.name in work.upgraded:
            return None
        for decision in work.old.decisions:
            if decision.what == SOURCE + requirement.name and decision.source == str(requirement):
                return read_git(decision.value).ref
        return None

    def _find_local(self, requirement: Requirement, wanted: Wanted) -> _Found:
        address = (requirement.url or "").partition("#")[0]
        path = local_path(address, self._work.request.spec_path.parent)
        of = f"pip.dependencies: {requirement.name}"
        if path.is_dir():
            sha256 = tree_sha256(path)
            order: BuildOrder | None = of_folder(wanted, path, sha256)
        elif path.is_file():
            sha256 = tree_sha256(path)
            order = None if path.name.endswith(".whl") else of_sdist(wanted, sha256, _there(path))
        else:
            raise UsageError(
                f"{of}: {address} is not there", hint="correct the path: it is seen from the spec's folder"
            )
        if path.is_dir() and not any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
            raise UsageError(
                f"{of}: {address} has neither pyproject.toml nor setup.py", hint="name the project's folder"
            )
        return _Found(LOCAL, f"{address}#sha256={sha256}", None, order, path if order is None else None)

    def _as_it_is(self, name: str, found: _Found, target: Target) -> tuple[BuiltWheel, Path]:
        """A wheel that is here already: a copy of it in the cache."""
        path = found.wheel
        assert path is not None  # noqa: S101 (what has no order is a wheel: for the type checker)
        check_release(path, name, None, name)
        if not is_loaded(path.name, target):
            series, platform = target.python.series, target.platform.value
            raise WrongWheel(
                name, f"{path.name} can't be loaded by Python {series} on {platform}", hint="name another wheel"
            )
        sha256 = found.url.rpartition("=")[2]
        kept = archive_path(self._how.cache, name, sha256, path.name)
        with keeping(kept.parent):
            kept.parent.mkdir(parents=True, exist_ok=True)
            with beside(kept) as new:
                shutil.copyfile(path, new)
        return BuiltWheel(path.name, sha256, kept.stat().st_size), kept


def _there(path: Path) -> Callable[[], Awaitable[Path]]:
    async def give() -> Path:
        return path

    return give
