"""What a resolver will probably request next, fetched before it does.

A resolver learns of a package from the METADATA of another one: a chain of round trips, in which it waits. A guess
decides nothing: it is no observation of a view, and its errors matter only if the resolver requests the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.errors import EnvspecError
from envspec.names import normalised
from envspec.resolve.pypi.index.file_metadata import BadSdist
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.pages import Pages
from envspec.resolve.pypi.index.routing import NotListed
from envspec.resolve.pypi.index.selection import Selection
from envspec.resolve.pypi.metadata import allows, applicable, declared, override, parsed

#: Projects in one run: a stack has 130, the largest specs have some hundred.
_MOST: Final = 500
#: Requirements of one release, and releases of one project, that are looked at: others may have 100,000.
_MOST_LINES: Final = 1000
_MOST_TRIED: Final = 50


class Ahead:
    """Guesses of one view.

    is_known: whether nothing has to be fetched for a name: it is from no index, or an earlier run has read its page.
    """

    def __init__(self, key: str, pages: Pages, is_known: Callable[[str], bool]) -> None:
        self._key = key
        self._pages = pages
        self._client = pages.client
        self._rules = pages.rules[key]
        self._ranks = pages.ranks[key]
        self._is_known = is_known
        self._allowed: dict[str, SpecifierSet] = {}
        self._extras: dict[str, set[str]] = {}
        # Names of projects and files.
        self._wanted: set[str] = set()
        self._read: set[str] = set()

    def expect(self, requirements: Sequence[str], constraints: Iterable[str]) -> None:
        """Take account of the spec's lines, and begin with the pages of what it requires."""
        for line in filter(None, map(parsed, [*requirements, *constraints])):
            if line.marker is None or line.marker.evaluate(dict(self._rules.environment)):
                self._note(normalised(line.name), line)
        self._begin_with_pages(requirements, frozenset())

    def page_was_read(self, name: str, selection: Selection) -> None:
        """Begin with the METADATA of the release that a resolver will try first."""
        if name in self._read or self._client.http is None:
            return
        self._read.add(name)
        file = self._candidate(selection, partial(self._is_allowed, name))
        if file is not None:
            self._client.begin(("ahead", self._key, name), lambda: self._metadata(name, file))
        if name in self._rules.unfit:
            # Resolvers are not shown it; its METADATA is the reason in the lock.
            newest = self._candidate(selection, lambda version: not version.is_prerelease)
            if newest is not None:
                self._client.begin(("ahead newest", self._key, name), lambda: self._fetch_metadata(name, newest))

    def metadata_was_read(self, name: str, filename: str, metadata: bytes) -> None:
        """Begin with the pages of what a release requires."""
        if filename not in self._read:
            self._read.add(filename)
            self._begin_with_pages(declared(metadata), frozenset(self._extras.get(name, ())))

    def _begin_with_pages(self, requirements: Sequence[str], extras: frozenset[str]) -> None:
        if self._client.http is None:
            return
        for requirement in applicable(tuple(requirements[:_MOST_LINES]), self._rules.environment, extras):
            other = normalised(requirement.name)
            if other not in self._wanted and len(self._wanted) < _MOST:
                self._wanted.add(other)
                if requirement.url is None and not self._is_known(other):
                    self._require(other, requirement)

    def _require(self, name: str, requirement: Requirement) -> None:
        line = override(str(requirement), self._rules.overrides)
        if line is not None and (left := parsed(line)) is not None:
            self._note(name, left)
            self._client.begin(("ahead page", self._key, name), lambda: self._page(name))

    def _note(self, name: str, line: Requirement) -> None:
        self._allowed[name] = self._allowed.get(name, SpecifierSet()) & line.specifier
        self._extras.setdefault(name, set()).update(map(normalised, line.extras))

    async def _page(self, name: str) -> None:
        with suppress(EnvspecError, NotListed):
            _, selection = await self._pages.read(self._key, name)
            self.page_was_read(name, selection)

    async def _metadata(self, name: str, file: ListedFile) -> None:
        with suppress(EnvspecError, BadSdist):
            metadata = await self._client.metadata(self._rules.index_of(name), file)
            self.metadata_was_read(name, file.filename, metadata.body)

    async def _fetch_metadata(self, name: str, file: ListedFile) -> None:
        with suppress(EnvspecError, BadSdist):
            await self._client.metadata(self._rules.index_of(name), file)

    def _candidate(self, selection: Selection, is_allowed: Callable[[Version], bool]) -> ListedFile | None:
        """The preferred wheel of the newest allowed release for this Python; None if that is an sdist."""
        for version in islice(filter(is_allowed, selection.releases), _MOST_TRIED):
            files = [file for file in selection.releases[version][:_MOST_TRIED] if self._fits(file)]
            if files:
                wheels = [file for file in files if self._ranks.rank(file.filename) is not None]
                return min(wheels, key=lambda file: self._ranks.rank(file.filename) or 0, default=None)
        return None

    def _is_allowed(self, name: str, version: Version) -> bool:
        if version.is_prerelease or version not in self._allowed.get(name, SpecifierSet()):
            return False
        is_unfit = self._rules.unfit.get(name)
        return is_unfit is None or not is_unfit(version)

    def _fits(self, file: ListedFile) -> bool:
        python = self._rules.environment.get("python_full_version", "")
        return file.yanked is None and allows(file.requires_python or "", python)
