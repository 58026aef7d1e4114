"""What one target sees of the indexes.

Resolvers see nothing else, so that no configuration of pip or uv on this machine reaches a lock.
"""

from __future__ import annotations

import asyncio
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from enum import Enum
from itertools import starmap
from pathlib import Path

import msgspec
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envspec.errors import EnvspecError, NetworkError, UsageError
from envspec.models import DEFAULT_INDEX, WrongRow
from envspec.origins import PYTORCH
from envspec.resolve.pypi.index.ahead import Ahead
from envspec.resolve.pypi.index.client import RecordDigests, unreadable_page
from envspec.resolve.pypi.index.file_metadata import BadSdist
from envspec.resolve.pypi.index.page import BadPage, ListedFile, parse_page
from envspec.resolve.pypi.index.pages import Pages
from envspec.resolve.pypi.index.routing import (
    OWN_VERSION,
    Correction,
    NotListed,
    PackageIndex,
    PackageIndexError,
)
from envspec.resolve.pypi.index.selection import (
    Selection,
    own_files,
    version_of,
    version_text,
)
from envspec.resolve.pypi.metadata import (
    applicable,
    declared,
    evaluated,
    evaluated_python,
    extras_of,
    is_dynamic,
    is_of_extra,
    metadata_file,
    valid,
    with_fields,
    with_overrides,
    with_version,
)
from envspec.resolve.types import FoundPackage, ProvidedPackage, Release
from envspec.verifier.owned import Overlap, overlaps


class _Meta(msgspec.Struct, gc=False, rename="kebab"):
    api_version: str = "1.0"


class _ShownFile(msgspec.Struct, gc=False, rename="kebab", omit_defaults=True):
    """A file of a page for resolvers (PEP 691)."""

    filename: str
    url: str
    hashes: dict[str, str]
    core_metadata: bool = False
    requires_python: str | None = None
    yanked: bool | str = False


class _ShownPage(msgspec.Struct, gc=False):
    meta: _Meta
    name: str
    files: list[_ShownFile]


def metadata_only_wheel(filename: str, metadata: bytes) -> bytes:
    """A wheel without code: what the binary distribution format (PyPA) requires. metadata: its METADATA."""
    tags = "".join(sorted(f"Tag: {tag}\n" for tag in parse_wheel_filename(filename)[3]))
    folder = "-".join(filename.split("-")[:2]) + ".dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: envspec\nRoot-Is-Purelib: true\n{tags}"
    files = {"METADATA": metadata, "WHEEL": wheel.encode()}
    files["RECORD"] = "".join(f"{folder}/{name},,\n" for name in (*files, "RECORD")).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return out.getvalue()


class Bodies(Enum):
    """What a resolver sees of a file, and gets if it fetches it.

    WHOLE: the file, to be installed.
    STUB: its metadata: resolvers need no more.
    EVALUATED: what its metadata means on the target, in one wheel a release that every Python on every machine
        accepts: for resolvers that resolve for the Python and the machine that they run on.
    """

    WHOLE = "whole"
    STUB = "stub"
    EVALUATED = "evaluated"


def _undated_error(index: PackageIndex, name: str) -> PackageIndexError:
    hint = 'set undated = "accept" in its [[pip.index]], if its files never change'
    if index.name == DEFAULT_INDEX:
        hint = "name an index with upload times in ENVSPEC_DEFAULT_INDEX, or unset it"
    return PackageIndexError(f"index {index.name} gives no upload times for {name}, which `as_of` needs", hint=hint)


def _missing_error(index: PackageIndex, name: str) -> PackageIndexError:
    """The error for a name that comes from one index alone, which does not have it."""
    why = "and its `packages` assign that name to it alone"
    hint = "publish it there, or narrow `packages` in its [[pip.index]]"
    if index.name.startswith(PYTORCH):
        why = "and this build of the torch family is there alone"
        hint = "check that the mirror in ENVSPEC_PYTORCH_INDEX has that CUDA, or set another [cuda] version"
    return PackageIndexError(f"index {index.name} ({index.shown_url}) does not have {name}, {why}", hint=hint)


class View:
    """What one target sees of the indexes.

    key: identifies the view in the cache and in URLs; two views with one key show the same.
    digests: of the RECORDs of its wheels.
    ahead: fetches what a resolver will probably request.
    served: set once the indexes can be read.
    failed: set once an index has failed.

    What was seen until now:
    missing: names that their index does not have.
    pending: releases that may still get an upload time that counts, by project.
    unreadable: why an sdist gives no metadata, by release.
    stated: file names of sdists whose wheels may require something else than was shown of them, by project.
    withheld: extensions of which sdists were not shown, since there are wheels for a torch that the spec allows; and
        members of the torch family of which releases were not shown that require another torch.
    """

    def __init__(self, pages: Pages, key: str) -> None:
        self.rules = pages.rules[key]
        self.key = key
        self.digests = RecordDigests(pages.client)
        self._errors: list[EnvspecError] = []
        self.failed = asyncio.Event()
        self.served = asyncio.Event()
        self.missing: set[str] = set()
        self.pending: dict[str, tuple[str, ...]] = {}
        # Their index forbids to store their pages.
        self._unstored: set[str] = set()
        self._considered: set[str] = set()
        self.unreadable: dict[Release, str] = {}
        self.stated: dict[str, set[str]] = {}
        self.withheld: set[str] = set()
        self._withholds = True
        self._client = pages.client
        self._pages = pages
        self._ranks = pages.ranks[key]
        self.ahead = Ahead(key, pages, self._is_known)
        self._selections: dict[str, Selection] = {}
        self._stored: dict[str, Selection | None] = {}
        # By shown name.
        self._shown: dict[tuple[str, Bodies], dict[str, ListedFile]] = {}

    @property
    def is_final(self) -> bool:
        """Whether a later run sees the same, as far as was seen until now."""
        return not (self.pending or self.digests.may_appear)

    def raise_failure(self) -> None:
        """Raise the first error of an index, if there was one."""
        if self._errors:
            raise self._errors[0]

    def show_withheld(self) -> bool:
        """Show the files that were withheld from now on; whether there are any."""
        was_useful = self._withholds and bool(self.withheld)
        self._withholds = self._withholds and not was_useful
        return was_useful

    def is_volatile(self, name: str, filename: str | None) -> bool:
        """Whether a resolver may not keep what it reads. filename: of a file's metadata; None: the project's page."""
        if filename is not None:
            # What an sdist states is computed for each request: so it is known what a resolution rests upon.
            return name in self.stated
        # Whether all of their files are shown depends on the torch that the spec allows.
        is_partial = name in self.rules.extensions or name in self.rules.unfit
        return is_partial or name in self.pending or name in self._unstored

    async def selection(self, name: str) -> Selection:
        """What the target sees of a project.

        Raises:
            NotListed: its index does not have the project.
            NetworkError: its index cannot be used.
        """
        found = self._selections.get(name) or self._from_no_index(name) or self._stored_selection(name)
        if found is None:
            found = await self._read(name)
            if found.is_final and name not in self._unstored:
                self._client.store.put_selection(self.key, name, found.encode())
            self.ahead.page_was_read(name, found)
        self._selections[name] = found
        return found

    def read_ahead(self, name: str, version: str) -> ListedFile | None:
        """Read what the cache has of a release that a resolver will probably choose: its file, None if it is not known.

        This is no observation.
        """
        selection = self._stored_selection(name)
        if selection is None or self._from_no_index(name) is not None:
            return None
        files = selection.releases.get(Version(version))
        if not files:
            return None
        file = min(files, key=self.preference)
        sha256 = file.sha256 or ""
        self._client.store.contents(sha256)
        if (metadata := self._client.store.metadata(sha256)) is not None:
            # What is parsed once is known.
            list(applicable(declared(metadata.body), self.rules.environment, frozenset()))
        return file

    @property
    def mirror(self) -> str:
        """The URL of the default index if a setting names it, else empty."""
        if not self._client.environ.get("ENVSPEC_DEFAULT_INDEX"):
            return ""
        return self.rules.default.shown_url

    @property
    def mirror_hint(self) -> str:
        return self.rules.default.mirror_hint(self._client.environ)

    @property
    def shown(self) -> Set[str]:
        """The projects that were requested."""
        return self._selections.keys()

    async def listed(self, name: str) -> Sequence[ListedFile]:
        """All files of a project on its index, loadable or not; raises as `selection`."""
        if self._from_no_index(name) is not None:
            return ()
        packed, _ = await self._pages.read(self.key, name)
        page = packed.unpacked()
        try:
            listing = own_files(parse_page(page.body, page.content_type, page.url), name)
            return [listing.file(number) for number in range(len(listing.names))]
        except BadPage as error:
            # An entry that does not count for the target.
            raise unreadable_page(self.rules.index_of(name), name, error) from error

    async def page(self, name: str, bodies: Bodies) -> bytes:
        """The project's page for resolvers (PEP 691); stubs have no hash.

        An sdist is shown as a wheel with its metadata: a candidate that no resolver builds.
        """
        files = self._offered_files(name, await self.selection(name))
        entries: list[_ShownFile] = []
        for filename, file in self._shown_files(name, files, bodies).items():
            python = file.requires_python or ""
            if bodies is Bodies.EVALUATED:
                python = evaluated_python(python, self.rules.environment)
            entries.append(_shown_file(name, file, filename, python, bodies))
        return msgspec.json.encode(_ShownPage(_Meta(), name, entries))

    def _offered_files(self, name: str, selection: Selection) -> list[ListedFile]:
        """The files for resolvers: at first without those that are no use to them."""
        files = list(selection.files.values())
        if not self._withholds:
            return files
        offered = files
        if name in self.rules.extensions:
            offered = self._extension_files(name, files)
        elif (is_unfit := self.rules.unfit.get(name)) is not None:
            versions = {version_text(file.filename): version_of(file.filename) for file in files}
            unfit = {text for text, version in versions.items() if version is not None and is_unfit(version)}
            offered = [file for file in files if version_text(file.filename) not in unfit]
        if len(offered) < len(files):
            self.withheld.add(name)
        return offered

    def _extension_files(self, name: str, files: list[ListedFile]) -> list[ListedFile]:
        """An extension's wheels for a torch that the spec allows go before its sdists, which fit any torch: else it
        would be decisive which of the two names a resolver decides first.
        """
        versions: dict[str, Version] = {}
        allowed: list[Version] = []
        for file in files:
            version = version_of(file.filename) or Version("0")
            versions[file.filename] = version
            if self.rules.extensions.allows(name, version):
                allowed.append(version)
        if not allowed:
            return files
        newest = max(allowed)
        offered: list[ListedFile] = []
        for file in files:
            if file.is_wheel or versions[file.filename] > newest:
                offered.append(file)
        return offered

    async def metadata(self, name: str, filename: str, bodies: Bodies = Bodies.STUB) -> bytes:
        """What resolvers see: `published_metadata` with the spec's overrides; raises as that."""
        if bodies is Bodies.EVALUATED:
            file = await self._file(name, filename, bodies)
            body = evaluated(await self.metadata(name, file.filename), self.rules.environment)
        else:
            body = with_overrides(await self.published_metadata(name, filename), self.rules.overrides)
        if "+" not in filename or name not in self.rules.extensions:
            return body
        # Wheels with a label are renamed after they were built: their METADATA does not have it.
        return with_version(body, version_text(filename))

    async def published_metadata(self, name: str, filename: str) -> bytes:
        """A wheel's METADATA, with corrections and valid requirements; of an sdist, that of its built wheel, else what
        it states; of a package that is from no index, its own or its extras.

        Raises:
            KeyError: the view has no such file.
        """
        file = await self._file(name, filename)
        provider = self.rules.provided.get(name)
        if provider is not None:
            return await self._metadata_of_provided(provider)
        index, version, built = self.rules.index_of(name), version_of(file.filename) or Version("0"), None
        if not file.is_wheel:
            built = self.rules.built.get((name, version))
        try:
            with self._recording():
                body = built or (await self._client.metadata(index, file)).body
                self.ahead.metadata_was_read(name, file.filename, body)
        except BadSdist as error:
            self.unreadable[name, version] = str(error)
            return metadata_file(name, str(version))
        if not built and not file.is_wheel and is_dynamic(body) and declared(body):
            self.stated.setdefault(name, set()).add(file.filename)
        corrections = self.rules.corrections.get(name, ())
        if requirement := self.rules.extensions.requirement(name, version):
            corrections = (*corrections, Correction(lambda _: True, (requirement,), "the label of its wheel"))
        return with_corrections(valid(body), corrections, file.filename)

    async def _metadata_of_provided(self, provider: ProvidedPackage) -> bytes:
        """The METADATA of a package that is from no index."""
        if isinstance(provider, FoundPackage) and provider.metadata is not None:
            return valid(provider.metadata)
        body = b""
        if published := await self._published_wheel(provider):
            with self._recording():
                body = (await self._client.metadata(self.rules.index_of(provider.name), published)).body
        # What it requires is there as well, but not what its extras do.
        fields = [("Provides-Extra", extra) for extra in extras_of(body)]
        fields += [("Requires-Dist", text) for text in declared(body) if is_of_extra(text)]
        return metadata_file(provider.name, provider.version, fields)

    async def read_sdist(self, name: str, version: str) -> None:
        """Observe a release that is an sdist alone and cannot be read."""
        if name in self.rules.provided:
            return
        of_release = (await self.selection(name)).releases.get(Version(version))
        if of_release and not any(file.is_wheel for file in of_release):
            await self.metadata(name, of_release[0].filename)

    async def content(self, name: str, filename: str, bodies: Bodies = Bodies.WHOLE) -> bytes | Path:
        """A file's bytes, or where it is on this machine, or a stub with its metadata.

        For builds, a package from no index is the published wheel of its version, since they run in an environment of
        their own.

        Raises:
            KeyError: the view has no such file.
        """
        provider, file = self.rules.provided.get(name), None
        if bodies is Bodies.WHOLE and provider is not None:
            file = await self._published_wheel(provider)
        elif bodies is Bodies.WHOLE:
            file = (await self.selection(name)).files.get(filename)
        if file is None:
            return metadata_only_wheel(filename, await self.metadata(name, filename, bodies))
        with self._recording():
            return await self._client.content(self.rules.index_of(name), file)

    async def measure(self, name: str, file: ListedFile) -> ListedFile:
        """A file with its hash, for one whose index gives none."""
        with self._recording():
            return await self._client.measure(self.rules.index_of(name), file, self.rules.cutoff_of(name))

    async def consider(self, name: str, filename: str, bodies: Bodies) -> None:
        """Start to fetch the RECORD of the first wheel of a project that a resolver reads: it chooses nearly all."""
        if name not in self._considered and name not in self.rules.provided:
            self._considered.add(name)
            self.digests.begin(self.rules.index_of(name), await self._file(name, filename, bodies))

    async def size_bytes(self, name: str, file: ListedFile) -> int | None:
        """A file's size; None if it is unknown."""
        return await self._client.size_bytes(self.rules.index_of(name), file)

    async def record_digest(self, name: str, file: ListedFile) -> str | None:
        """The digest of a wheel's RECORD; None if it is unknown, and for an sdist."""
        return await self.digests.of(self.rules.index_of(name), file)

    def wrong_record(self, file: ListedFile) -> tuple[WrongRow, ...]:
        """The files that a wheel's RECORD does not list as they are, once `record_digest` has read it."""
        return tuple(starmap(WrongRow, self._client.store.wrong_rows(file.sha256 or "")))

    async def small_file(self, name: str, file: ListedFile, path: str, most_bytes: int) -> bytes | None:
        """A file of a package's wheel; see `RecordDigests.small_file`."""
        return await self.digests.small_file(self.rules.index_of(name), file, path, most_bytes)

    def overlaps(self, files: Mapping[str, ListedFile]) -> list[Overlap]:
        """Files that these packages install differently, as far as `record_digest` has read them."""
        store = self._client.store
        tops = {name: store.wheel_tops(file.sha256 or "") for name, file in files.items()}
        return overlaps(tops, lambda name: store.wheel_files(files[name].sha256 or ""))

    def rank(self, filename: str) -> int | None:
        return self._ranks.rank(filename)

    def preference(self, file: ListedFile) -> tuple[int, int, str]:
        """A sort key for the files of a release: the best first; sdists last, in their order."""
        if not file.is_wheel:
            return len(self.rules.tags), 0, ""
        # Best tags first, then the highest build number, as pip and uv choose (wheel specification, "build tag").
        rank, parts = self.rank(file.filename), file.filename.split("-")
        build = re.sub(r"\D", "", parts[2]) if len(parts) == 6 else ""
        return len(self.rules.tags) if rank is None else rank, -int(build or 0), file.filename

    def _shown_files(self, name: str, files: Iterable[ListedFile], bodies: Bodies) -> dict[str, ListedFile]:
        """Files by the names that resolvers see; one wheel represents both if a release has a .tar.gz and a .zip."""
        if bodies is Bodies.EVALUATED:
            files = sorted(files, key=self._evaluated_preference)
        shown: dict[str, ListedFile] = {}
        for file in files:
            shown.setdefault(self._shown_name(name, file, bodies), file)
        return shown

    def _evaluated_preference(self, file: ListedFile) -> tuple[bool, bool, tuple[int, int, str]]:
        is_refused = bool(evaluated_python(file.requires_python or "", self.rules.environment))
        return is_refused, file.yanked is not None, self.preference(file)

    def _shown_name(self, name: str, file: ListedFile, bodies: Bodies) -> str:
        """The file name for resolvers."""
        if file.is_wheel and (bodies is Bodies.WHOLE or (bodies is Bodies.STUB and "+" not in file.filename)):
            return file.filename
        version = version_text(file.filename)
        if file.is_wheel and bodies is Bodies.STUB:
            return file.filename.replace(version, self.rules.extensions.shown(name, version), 1)
        shown = self.rules.extensions.shown(name, str(version_of(file.filename) or version))
        return f"{name.replace('-', '_')}-{shown}-py3-none-any.whl"

    async def _file(self, name: str, shown: str, bodies: Bodies = Bodies.STUB) -> ListedFile:
        files = (await self.selection(name)).files
        if bodies is not Bodies.EVALUATED and shown in files:
            return files[shown]
        key = name, bodies
        if key not in self._shown:
            self._shown[key] = self._shown_files(name, files.values(), bodies)
        return self._shown[key][shown]

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Record an index's error, which stops the resolver. UsageError: of the environment's CA bundle."""
        try:
            yield
        except (NetworkError, UsageError) as error:
            self._fail(error)
            raise

    def _fail(self, error: EnvspecError) -> None:
        self._errors.append(error)
        self.failed.set()

    def _is_known(self, name: str) -> bool:
        return (
            name in self._selections
            or self._from_no_index(name) is not None
            or self._stored_selection(name) is not None
        )

    def _stored_selection(self, name: str) -> Selection | None:
        # A guess looks for it before the resolver requests it.
        if name not in self._stored:
            self._stored[name] = Selection.decode(self._client.store.selection(self.key, name))
        return self._stored[name]

    def _from_no_index(self, name: str) -> Selection | None:
        """A wheel that the spec names by URL, or a package from no index."""
        if (provider := self.rules.provided.get(name)) is not None:
            # The only file of such a package: any target loads it, without a hash.
            filename = f"{name.replace('-', '_')}-{provider.version}-py3-none-any.whl"
            return Selection({filename: ListedFile(filename, filename)})
        if (file := self.rules.direct.get(name)) is not None:
            return Selection({file.filename: file})
        return None

    async def _published_wheel(self, provider: ProvidedPackage) -> ListedFile | None:
        """The wheel of the same version for the target on the package's index; None if it has none."""
        try:
            files = (await self._selection_of_page(provider.name)).files
        except NotListed:
            return None
        version = Version(provider.version)
        fitting: list[tuple[int, str]] = []
        for name in files:
            rank = self.rank(name)
            if rank is not None and version_of(name) == version:
                fitting.append((rank, name))
        if not fitting:
            return None
        return files[min(fitting)[1]]

    async def _read(self, name: str) -> Selection:
        index = self.rules.index_of(name)
        try:
            selection = await self._selection_of_page(name)
        except NotListed:
            self.missing.add(name)
            if not self.rules.is_of_default(name):
                self._fail(_missing_error(index, name))
            raise
        if selection.undated:
            with self._recording():
                raise _undated_error(index, name)
        return selection

    async def _selection_of_page(self, name: str) -> Selection:
        """What the page of a project's index gives."""
        with self._recording():
            page, selection = await self._pages.read(self.key, name)
        if page.no_store:
            self._unstored.add(name)
        if not selection.is_final:
            self.pending[name] = selection.pending
        return selection


def with_corrections(metadata: bytes, corrections: tuple[Correction, ...], filename: str) -> bytes:
    """METADATA with the missing requirements."""
    version, lines = version_of(filename), []
    for correction in corrections:
        if version is not None and correction.applies(version):
            for requirement in correction.requires:
                lines.append(f"Requires-Dist: {requirement.replace(OWN_VERSION, version.public)}")
    return with_fields(metadata, lines)


def _shown_file(name: str, file: ListedFile, shown: str, python: str, bodies: Bodies) -> _ShownFile:
    """python: the versions that it requires; empty: any."""
    hashes = {}
    if file.sha256 and shown == file.filename and bodies is Bodies.WHOLE:
        hashes["sha256"] = file.sha256
    yanked: bool | str = False
    if file.yanked is not None:
        yanked = file.yanked or True
    url = f"../../files/{name}/{shown}"
    return _ShownFile(shown, url, hashes, shown.endswith(".whl"), python or None, yanked)
