"""What one target sees of the indexes.

Source: binary distribution format (PyPA specifications): METADATA, WHEEL and RECORD are what a wheel must hold.

The engines see nothing else, so nothing that this machine's pip or uv is told can reach a lock.
"""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envspec.errors import EnvspecError, NetworkError
from envspec.io.store import StoredPage
from envspec.io.tasks import run_in_thread
from envspec.models import DEFAULT_INDEX
from envspec.resolve.pypi.index.client import Contents, Index, IndexFault, NotListed, OfflineMiss, Upstream, unreadable
from envspec.resolve.pypi.index.page import BadPage, ListedFile, parse_page
from envspec.resolve.pypi.index.routing import Correction, Rules
from envspec.resolve.pypi.index.sdist import BadSdist
from envspec.resolve.pypi.index.selection import Selection, TagRanks, Taste, newest_wheels, own, select, version_of
from envspec.resolve.pypi.metadata import declared, extras_of, is_of_extra
from envspec.resolve.types import Provider

_LARGE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class _Read:
    """A page, and what each view selects of it."""

    page: StoredPage
    selections: Mapping[str, Selection]


class Pages:
    """What each view selects of a page.

    rules: of every view, by its key. ranks: what each of them loads, likewise.
    """

    def __init__(self, upstream: Upstream, rules: Mapping[str, Rules]) -> None:
        self._upstream = upstream
        self._rules = rules
        self.ranks = {view: TagRanks(each.tags) for view, each in rules.items()}

    async def selection(self, view: str, name: str) -> Selection:
        """What one view may see of a project, by its index's page.

        Raises:
            NotListed: its index does not know the project.
            BadPage, NetworkError: its index can't be used.
        """
        return (await self._of(view, name)).selections[view]

    async def page(self, view: str, name: str) -> StoredPage:
        """The page that `selection` is made of.

        Raises:
            As `selection`.
        """
        return (await self._of(view, name)).page

    async def _of(self, view: str, name: str) -> _Read:
        index, cut = self._rules[view].index_of(name), self._rules[view].cut_of(name)
        key = ("selections", index.name, name, cut)
        return await self._upstream.once(key, lambda: self._read(index, name, cut))

    async def _read(self, index: Index, name: str, cut: datetime) -> _Read:
        found = await self._selected(await self._upstream.page(index, name, cut), index, name, cut)
        began = self._upstream.began
        if found.page.asked >= began or all(each.is_settled for each in found.selections.values()):
            return found
        # An earlier run asked for it: what had no upload time then may have one by now.
        if self._upstream.http is None:
            late = sorted({version for each in found.selections.values() for version in each.late})
            raise OfflineMiss(
                f"the upload time of {name}{' ' if late else ''}{', '.join(late[-3:])} at index {index.name}",
                hint="its index fills it in late: lock without --offline, or with an older as_of",
            )
        return await self._selected(await self._upstream.page(index, name, began), index, name, cut)

    async def _selected(self, page: StoredPage, index: Index, name: str, cut: datetime) -> _Read:
        # A page of 10 MB takes 0.1 s, and ten times as long if it was made to: Ctrl-C must not wait for it.
        if len(page.body) > _LARGE_BYTES:
            return await run_in_thread(self._select, page, index, name, cut)
        return self._select(page, index, name, cut)

    def _select(self, page: StoredPage, index: Index, name: str, cut: datetime) -> _Read:
        listing = own(parse_page(page.body, page.content_type, page.url), name)
        bound = cut if index.dated else None
        return _Read(
            page,
            {
                view: select(listing, name, Taste(self.ranks[view], bound, page.asked, rules.sdists_of(name)))
                for view, rules in self._rules.items()
                if name not in rules.direct and rules.index_of(name) == index and rules.cut_of(name) == cut
            },
        )


def stub_wheel(filename: str, metadata: bytes) -> bytes:
    """The bytes of such a wheel; `metadata` is its METADATA.

    Raises:
        InvalidWheelFilename: `filename` is no wheel's.
    """
    _, _, _, tags = parse_wheel_filename(filename)
    folder = "-".join(filename.split("-")[:2]) + ".dist-info"
    wheel = ["Wheel-Version: 1.0", "Generator: envspec", "Root-Is-Purelib: true"]
    wheel += sorted(f"Tag: {tag}" for tag in tags)
    files = {"METADATA": metadata, "WHEEL": ("\n".join(wheel) + "\n").encode()}
    record = [f"{folder}/{name},," for name in (*files, "RECORD")]
    files["RECORD"] = ("\n".join(record) + "\n").encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return out.getvalue()


def nothing_stated(name: str, version: str) -> bytes:
    """METADATA without requirements."""
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()


def provided_file(provider: Provider) -> ListedFile:
    """The one wheel that a package from conda has in our index: any target loads it, and no hash is told of it."""
    filename = f"{provider.name.replace('-', '_')}-{provider.version}-py3-none-any.whl"
    return ListedFile(filename, filename, None, None, None, None, None, None)


def provided_metadata(provider: Provider, published: bytes) -> bytes:
    """The METADATA of that wheel: conda has seen to what the package needs, but not to what its extras do.

    published: the METADATA of the same version on its index, empty where there is none.
    """
    extras = [f"Provides-Extra: {extra}" for extra in extras_of(published)]
    needs = [f"Requires-Dist: {text}" for text in declared(published) if is_of_extra(text)]
    lines = ["Metadata-Version: 2.1", f"Name: {provider.name}", f"Version: {provider.version}", *extras, *needs]
    return ("\n".join(lines) + "\n").encode()


#: How many releases an engine is expected to try: torchvision's down to one that fits a torch of a year ago.
_WALKED: Final = 12


class Bodies(Enum):
    """What an engine gets that fetches a file: pip fetches each wheel that it chose, and resolves without."""

    WHOLE = "whole"
    STUB = "stub"


class Undated(IndexFault):
    """An index without upload times cannot be held to `as_of`."""

    def __init__(self, index: Index, name: str) -> None:
        super().__init__(
            f"index {index.name} gives no upload times for {name}: `as_of` can't be kept there",
            hint="what stands for the default index must give them: name another in ENVSPEC_DEFAULT_INDEX, or unset it"
            if index.name == DEFAULT_INDEX
            else 'if its files never change, say so: undated = "accept" in its [[pip.index]]',
        )


class NotThere(IndexFault):
    """A name that is sent to one index alone, which does not have it."""

    def __init__(self, index: Index, name: str) -> None:
        why = "and its `packages` send that name there alone"
        hint = "publish it there, or narrow `packages` in its [[pip.index]]"
        if index.name.startswith("pytorch-"):
            why = "and this build of the torch family is there alone"
            hint = "does the mirror in ENVSPEC_PYTORCH_INDEX have that CUDA? else ask for another [cuda] version"
        super().__init__(f"index {index.name} ({index.shown_url}) has no {name}, {why}", hint=hint)


class View:
    """One target's sight of the indexes.

    key: names the view in the memory on disk and in the engines' addresses; two views with one key show the same.
    faults: what went wrong; `failed` tells at once that there is one. missing: names that the default index lacks.
    late: of the projects looked at, those with releases that may yet get an upload time that counts, and these; what
    rests on them is good for this run only. wheels: what is known of the contents of wheels.
    unreadable: why an sdist gives no metadata, by name and version. hollow: names of which an engine fetched the wheel
    that stands for an sdist: what was installed from it is empty. Engines that build have a new cache in each run, so
    that none takes it from there unnoticed.
    """

    def __init__(self, upstream: Upstream, pages: Pages, rules: Rules, key: str) -> None:
        self.rules = rules
        self.key = key
        self.faults: list[EnvspecError] = []
        self.failed = asyncio.Event()
        self.missing: set[str] = set()
        self.late: dict[str, tuple[str, ...]] = {}
        self.wheels = Contents(upstream)
        self.unreadable: dict[tuple[str, Version], str] = {}
        self.hollow: set[str] = set()
        self._upstream = upstream
        self._pages = pages
        self._ranks = pages.ranks[key]
        self._selections: dict[str, Selection] = {}

    async def selection(self, name: str) -> Selection:
        """What the target may see of a project.

        Raises:
            NotListed: its index does not know the project.
            NetworkError: its index can't be used.
        """
        known = self._selections.get(name) or self._given(name) or self._remembered(name)
        if known is None:
            known = await self._read(name)
            if known.is_settled:
                self._upstream.store.put_selection(self.key, name, _dumped(known))
        self._selections[name] = known
        return known

    @property
    def shown(self) -> Set[str]:
        """The projects that were looked at."""
        return self._selections.keys()

    async def names(self, name: str) -> Sequence[str]:
        """The names of all files of a project, loadable or not; none of what the spec or conda gives.

        Raises:
            As `selection`.
        """
        if self._given(name) is not None:
            return ()
        page = await self._pages.page(self.key, name)
        return own(parse_page(page.body, page.content_type, page.url), name).names

    async def foresee(self, name: str) -> None:
        """Ask for the metadata of a project's newest releases before an engine tries them, one after another.

        A guess: what fails here is told when it is asked for in earnest.
        """
        if self._given(name) is not None or self._remembered(name) is not None:
            return
        with suppress(NotListed, EnvspecError):
            index = self.rules.index_of(name)
            files = newest_wheels(await self.selection(name), self._ranks, _WALKED)
            await asyncio.gather(*(self._upstream.metadata(index, file) for file in files))

    async def page(self, name: str, bodies: Bodies) -> bytes:
        """The project's page for the engines, as PEP 691 has it; of stubs, no hash is told.

        An sdist that may not be built is shown as a wheel that holds its metadata: so it is a candidate, and no engine
        builds it.
        """
        shown: dict[str, ListedFile] = {}
        for file in (await self.selection(name)).files.values():
            # One wheel stands for both, if a release has a .tar.gz and a .zip.
            shown.setdefault(self._shown(name, file), file)
        entries = [_entry(name, file, filename, bodies) for filename, file in shown.items()]
        return json.dumps(
            {"meta": {"api-version": "1.0"}, "name": name, "files": entries}, separators=(",", ":")
        ).encode()

    async def metadata(self, name: str, filename: str) -> bytes:
        """A wheel's METADATA with the requirements that it lacks; of a package from conda, its extras alone.

        Of an sdist, what it states without being built.

        KeyError: the view has no such file.
        """
        file = await self._file(name, filename)
        if name in self.rules.provided:
            return await self._metadata_of_provided(self.rules.provided[name])
        try:
            stored = await self._upstream.metadata(self.rules.index_of(name), file)
        except NetworkError as error:
            self._fail(error)
            raise
        except BadSdist as error:
            version = version_of(file.filename) or Version("0")
            self.unreadable[name, version] = str(error)
            return nothing_stated(name, str(version))
        return corrected(stored.body, self.rules.corrections.get(name, ()), file.filename)

    async def read_sdist(self, name: str, version: str) -> None:
        """Note in `unreadable` if a release is an sdist alone, and can't be read."""
        files = (await self.selection(name)).files.values() if name not in self.rules.provided else ()
        of_release = [file.filename for file in files if version_of(file.filename) == Version(version)]
        if of_release and not any(filename.endswith(".whl") for filename in of_release):
            await self.metadata(name, of_release[0])

    async def content(self, name: str, filename: str, bodies: Bodies = Bodies.WHOLE) -> bytes:
        """A file's bytes, or a stub with its metadata. KeyError: the view has no such file.

        A package from conda is a stub; but where sdists are built, the published wheel of its version: builds that ask
        for it do so in an environment of their own, without conda.
        """
        if name in self.rules.provided:
            return await self._content_of_provided(self.rules.provided[name], filename, bodies)
        file = await self._file(name, filename)
        is_stand_in = file.filename != filename
        if filename.endswith(".whl") and (bodies is Bodies.STUB or is_stand_in):
            if is_stand_in and bodies is Bodies.WHOLE:
                self.hollow.add(name)
            return stub_wheel(filename, await self.metadata(name, filename))
        try:
            return await self._upstream.content(self.rules.index_of(name), file)
        except NetworkError as error:
            self._fail(error)
            raise

    async def size_bytes(self, name: str, filename: str) -> int | None:
        """A file's size; None where nobody tells, and of a package from conda."""
        if name in self.rules.provided:
            return None
        return await self._upstream.size_bytes(self.rules.index_of(name), (await self.selection(name)).files[filename])

    async def contents(self, name: str, filename: str) -> str | None:
        """The digest of a wheel's contents; None where nobody can tell, of an sdist, and of a package from conda."""
        if name in self.rules.provided:
            return None
        return await self.wheels.of(self.rules.index_of(name), (await self.selection(name)).files[filename])

    def rank(self, filename: str) -> int | None:
        return self._ranks.rank(filename)

    def _shown(self, name: str, file: ListedFile) -> str:
        """The file name that engines are shown."""
        if file.filename.endswith(".whl") or name in self.rules.sdists:
            return file.filename
        return f"{name.replace('-', '_')}-{version_of(file.filename)}-py3-none-any.whl"

    async def _file(self, name: str, shown: str) -> ListedFile:
        """KeyError: the view has no such file."""
        files = (await self.selection(name)).files
        if shown in files:
            return files[shown]
        return next(iter([file for file in files.values() if self._shown(name, file) == shown]), None) or files[shown]

    def _fail(self, error: EnvspecError) -> None:
        self.faults.append(error)
        self.failed.set()

    def _remembered(self, name: str) -> Selection | None:
        row = self._upstream.store.selection(self.key, name)
        return _loaded(row) if row is not None else None

    def _given(self, name: str) -> Selection | None:
        """What no index is asked for: a wheel that the spec names by URL, or a package from conda."""
        provider = self.rules.provided.get(name)
        file = provided_file(provider) if provider is not None else self.rules.direct.get(name)
        return Selection({file.filename: file}) if file is not None else None

    async def _metadata_of_provided(self, provider: Provider) -> bytes:
        twin = await self._twin(provider)
        if twin is None:
            return provided_metadata(provider, b"")
        try:
            published = await self._upstream.metadata(self.rules.index_of(provider.name), twin)
        except NetworkError as error:
            self._fail(error)
            raise
        return provided_metadata(provider, published.body)

    async def _content_of_provided(self, provider: Provider, filename: str, bodies: Bodies) -> bytes:
        twin = await self._twin(provider) if bodies is Bodies.WHOLE else None
        if twin is None:
            return stub_wheel(filename, await self.metadata(provider.name, filename))
        try:
            return await self._upstream.content(self.rules.index_of(provider.name), twin)
        except NetworkError as error:
            self._fail(error)
            raise

    async def _twin(self, provider: Provider) -> ListedFile | None:
        """The wheel of the same version that the package's index has for the target; None where it has none."""
        try:
            files = (await self._indexed(provider.name)).files
        except NotListed:
            return None
        ranked = [
            (rank, name)
            for name in files
            if (rank := self.rank(name)) is not None and version_of(name) == Version(provider.version)
        ]
        return files[min(ranked)[1]] if ranked else None

    async def _read(self, name: str) -> Selection:
        index = self.rules.index_of(name)
        try:
            selection = await self._indexed(name)
            if selection.undated:
                raise Undated(index, name)
            return selection
        except NotListed:
            self.missing.add(name)
            if index is not self.rules.default:
                self._fail(NotThere(index, name))
            raise
        except Undated as error:
            self._fail(error)
            raise

    async def _indexed(self, name: str) -> Selection:
        """What the page of a project's index gives."""
        try:
            selection = await self._pages.selection(self.key, name)
        except BadPage as error:
            fault = unreadable(self.rules.index_of(name), name, error)
            self._fail(fault)
            raise fault from error
        except NetworkError as error:
            self._fail(error)
            raise
        if not selection.is_settled:
            self.late[name] = selection.late
        return selection


def _dumped(selection: Selection) -> dict[str, Any]:
    rows = [[getattr(file, field) for field in ListedFile.__slots__] for file in selection.files.values()]
    return {"files": rows, "unloadable": selection.unloadable}


def _loaded(row: Mapping[str, Any]) -> Selection:
    return Selection({values[0]: ListedFile(*values) for values in row["files"]}, row["unloadable"])


def corrected(metadata: bytes, corrections: tuple[Correction, ...], filename: str) -> bytes:
    """METADATA with the lacking requirements added to its head."""
    version = version_of(filename) if corrections else None
    lines = [
        f"Requires-Dist: {requirement}".encode()
        for correction in corrections
        if version is not None and correction.applies(version)
        for requirement in correction.requires
    ]
    if not lines:
        return metadata
    first, newline, rest = metadata.partition(b"\n")
    return b"\n".join([first, *lines]) + newline + rest


def _entry(name: str, file: ListedFile, shown: str, bodies: Bodies) -> dict[str, object]:
    is_itself = shown == file.filename and bodies is Bodies.WHOLE
    entry: dict[str, object] = {
        "filename": shown,
        "url": f"../../files/{name}/{shown}",
        "hashes": {"sha256": file.sha256} if file.sha256 and is_itself else {},
    }
    if shown.endswith(".whl"):
        entry["core-metadata"] = True
    if file.requires_python:
        entry["requires-python"] = file.requires_python
    if file.yanked is not None:
        entry["yanked"] = file.yanked or True
    return entry


def normalised(name: str) -> str:
    """PEP 503's form of a project's name."""
    return str(canonicalize_name(name))
