"""The PyPI half of a lock: what is asked of the engines, once or for `--upgrade-package`, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib import import_module

from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.tasks import run_interruptible
from envspec.models import Lock, Platform, Resolution, Target
from envspec.operations.lock_state import PypiHalf, Sources, Upgrade, Work
from envspec.origins import INDEX_FAMILY, PYTORCH_INDEX
from envspec.resolve.engines import engine
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.request import Composed, Given, Moments, Places, compose, sources_of, wheel_urls
from envspec.resolve.pypi.resolve import World, resolve_all
from envspec.resolve.pypi.resolver import Unsolvable
from envspec.resolve.pypi.url_wheels import fetch_wheel
from envspec.resolve.types import Provider
from envspec.resolve.upgrade import keeping, moved
from envspec.spec import Requirement


class Pypi:
    """The questions of every target, for any moments.

    provided: for each platform, the Python packages that conda installs there. upgraded: those of the names that
    `--upgrade-package` may move which are this half's.
    """

    def __init__(
        self,
        work: Work,
        targets: Sequence[Target],
        provided: Mapping[Platform, Mapping[str, Provider]],
        upgraded: Sequence[str],
    ) -> None:
        self._work = work
        self._targets = targets
        self._provided = provided
        self._upgraded = tuple(upgraded)
        # What moves single packages asks several times.
        self._warn_once = cache(work.around.warn)
        environ = work.around.environ
        self._places = Places(default_index_url(environ), environ.get("ENVSPEC_PYTORCH_INDEX") or PYTORCH_INDEX)
        self._wheels = run_interruptible(_fetch_wheels(work, wheel_urls(work.spec)))
        self._sources = _sources(work, targets)

    def resolve(self) -> PypiHalf:
        """What the moments allow, or, for `--upgrade-package`, what its names must move and nothing else."""
        pinned = self._work.old
        moments = Moments(self._work.as_of, _kept_moments(self._work))
        if pinned is not None and self._upgraded:
            pinned, moments = self._upgrade(pinned, moments)
        questions = self._composed(moments)
        # Where single packages have moved, the moments alone don't tell what the others were kept at.
        asked = questions if pinned is None or not moments.names else [keeping(q, pinned) for q in questions]
        resolutions = self._ask(asked)
        # The moment of what is gone would hold for it again when it comes back.
        locked = {package.name for resolution in resolutions for package in resolution.packages}
        own = {name: at for name, at in moments.names.items() if name in locked}
        return PypiHalf(resolutions, tuple(questions), own, self._sources.decisions)

    def _composed(self, moments: Moments) -> list[Composed]:
        work = self._work
        given = (
            (
                target,
                Given(self._wheels, self._sources.by_target.get(target, {}), self._provided.get(target.platform, {})),
            )
            for target in self._targets
        )
        return [compose(work.spec, target, work.facts, moments, self._places, at_hand) for target, at_hand in given]

    def _upgrade(self, old: Lock, kept: Moments) -> tuple[Lock, Moments]:
        """The lock with the pins that `--upgrade-package` leads to, and the moments of those that moved.

        Everything may move as far as to this moment, and nothing does that can be kept.
        """
        work, names = self._work, self._upgraded
        asked = {requirement.name for requirement in work.spec.pip.dependencies}
        before = {package.name for resolution in old.resolutions for package in resolution.packages}
        # What the spec asks for since is no part of the upgrade, and torch's build is chosen anew only for its family.
        still = dict.fromkeys(asked - before - set(names), kept.as_of)
        family = {"torch": work.started} if set(names) & set(INDEX_FAMILY) else {}
        free = self._composed(Moments(kept.as_of, {**still, **family}, others=work.started))

        def moving(newer: Sequence[str]) -> tuple[Resolution, ...]:
            return self._ask([keeping(q, old, but=names, newer=newer) for q in free])

        # An engine keeps a package that another one's kept pin holds back, where it could have moved both.
        newer: list[str] = []
        for tried in (names, *((name,) for name in names if len(names) > 1)):
            with suppress(Unsolvable):
                moving([*newer, *tried])
                newer += tried
                if tried == names:
                    break
        new = moving(newer)
        moments = {**kept.names, **dict.fromkeys(moved(old, new), work.started), **still}
        locked = {package.name for resolution in new for package in resolution.packages}
        own = {name: at for name, at in moments.items() if name in locked and at != kept.as_of}
        return replace(old, resolutions=new), replace(kept, names=own)

    def _ask(self, questions: Sequence[Composed]) -> tuple[Resolution, ...]:
        work, around = self._work, self._work.around
        world = World(
            work.store,
            around.cache,
            around.environ,
            around.now,
            around.report,
            _later,
            self._warn_once,
            work.unconfined,
        )
        asked = [q.question for q in questions]
        return run_interruptible(
            resolve_all(asked, engine(work.request.resolver), world, offline=work.offline, jobs=work.request.jobs)
        )


def _kept_moments(work: Work) -> dict[str, datetime]:
    keeps = work.request.upgrade is Upgrade.KEEP and work.spec.env.as_of is None
    return dict(work.old.package_as_of) if keeps and work.old is not None else {}


async def _fetch_wheels(work: Work, requirements: Sequence[Requirement]) -> dict[str, ListedFile]:
    """The wheels that the spec names, by their URL without credentials."""
    if not requirements:
        return {}
    async with AsyncExitStack() as stack:
        http = None if work.offline else await stack.enter_async_context(open_http(work.around.environ))
        fetched = await asyncio.gather(
            *(fetch_wheel(r, work.as_of, http, work.store, work.around.now, work.around.environ) for r in requirements)
        )
    return {str(r.without_credentials().url): file for r, file in zip(requirements, fetched, strict=True)}


def _sources(work: Work, targets: Sequence[Target]) -> Sources:
    if not any(sources_of(work.spec, target) for target in targets):
        return Sources({})
    # Builds need half of all that images need.
    from envspec.operations.build_wheels import build_sources

    return build_sources(work, targets)


def _later() -> None:
    """Import what comes after the engines while they run."""
    import_module("envspec.operations.lock_assemble")
    import_module("envspec.lock.files")
