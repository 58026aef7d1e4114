"""Python packages inside conda packages.

Sources, in this order: the spec's `[conda.names]`; packages that were read by hand; names gathered from the channel's
archives; the archive itself. Nothing is guessed: without any of them, the package stays unmapped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import starmap
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import astuple

from envspec.documents import parse_json
from envspec.errors import NoSolution
from envspec.facts.tables import CondaNames, pep440
from envspec.io.http_settings import timeouts
from envspec.io.http_types import Timeouts
from envspec.io.store import Store
from envspec.models import CondaPackage, Provided
from envspec.names import normalised
from envspec.origins import origin_of
from envspec.resolve import cache
from envspec.resolve.conda.channel_client import channel_client, without_login
from envspec.resolve.types import CondaProvided
from envspec.structs import replace

if TYPE_CHECKING:
    from rattler import Client

    from envspec.resolve.types import Channel

#: Reads `info/paths.json` of a package's archive; None if the archive cannot be read.
Reader = Callable[[CondaPackage], Awaitable[bytes | None]]

# An environment's own site-packages in archives: of noarch packages, on Unix, on Windows. Deeper paths are a package's
# private copies. Source: conda's CEP 20 (noarch), `sysconfig` of conda's Python.
_INFO: Final = re.compile(
    r"(?:lib/python\d+\.\d+t?/|Lib/)?site-packages/(?P<stem>[^/]+)\.(?:dist-info/METADATA|egg-info(?:/PKG-INFO)?)"
)
# A match spec of Python itself, with or without a blank before its versions.
_PYTHON: Final = re.compile(r"python(?![\w.-])")


class PypiNames(Struct, frozen=True):
    """PyPI names by conda name.

    own: the spec's `[conda.names]`.
    facts: of whole channels.
    store: what archives contained.
    """

    own: Mapping[str, tuple[str, ...]]
    facts: CondaNames
    store: Store

    def of(self, package: CondaPackage) -> tuple[str, ...] | None:
        """The PyPI names in a package; None if only its archive can tell.

        A package that does not depend on Python installs nothing for it, whatever older archives of its name contained:
        it was a Python package once (docker-compose), or joins others (pytorch-cpu).
        """
        listed = self.own.get(package.name, self.facts.contained.get(package.name))
        if listed is not None:
            return listed
        if not needs_python(package):
            return ()
        listed = self.facts.listed(package.name, self._channel(package))
        # Several were gathered over years: which of them this archive contains, in which versions, is unknown.
        if listed is None or len(listed) > 1:
            return None
        return listed

    def candidates(self, package: CondaPackage) -> tuple[str, ...]:
        """PyPI names that archives of this conda name contained."""
        return self.facts.listed(package.name, self._channel(package)) or ()

    def _channel(self, package: CondaPackage) -> str | None:
        """The channel by its URL: a mirror's ends in the name of what it mirrors."""
        parts = reversed(urlsplit(package.url).path.split("/"))
        return next((part for part in parts if part in self.facts.channels), None)


class UnmappedName(NoSolution, code="unmapped-conda-name"):
    """Conda packages that install Python packages of unknown name or version."""

    def __init__(self, packages: Sequence[CondaPackage], names: PypiNames) -> None:
        odd: list[CondaPackage] = []
        unnamed: list[CondaPackage] = []
        hints: list[str] = []
        for package in packages:
            if names.of(package):
                odd.append(package)
                hints.append(f"require {package.name} in [pip] instead, where its versions are PyPI's")
            else:
                unnamed.append(package)
        lines: list[str] = []
        reasons: list[str] = []
        for each in unnamed:
            lines.append(_names_line(each, names))
            reason = "needs Python; its PyPI package is unknown"
            if candidates := names.candidates(each):
                reason += f" (archives of that name contained {', '.join(candidates)})"
            reasons.append(f"{each.name} {each.version} comes from {each.channel} and {reason}")
        for each in odd:
            reasons.append(f"{each.name} {each.version} comes from {each.channel}, no version of a Python package")
        if unnamed:
            listed = ", ".join(lines)
            hints.append(f"set it in [conda.names]: {listed}; or `[]` for one that contains no Python package")
        super().__init__(f"{'; '.join(reasons)}; the archives cannot be read", hint="; ".join(hints))


async def with_provided(
    packages: Sequence[CondaPackage], names: PypiNames, reader: Reader | None
) -> tuple[tuple[CondaPackage, ...], tuple[CondaPackage, ...]]:
    """The packages with the Python packages in them, and those whose Python packages are unknown.

    reader: reads the archives of packages that no other source knows, all at the same time. None: archives do not
    count, even if they were read before.
    """
    found = await asyncio.gather(*(_provided(package, names, reader) for package in packages))
    filled: list[CondaPackage] = []
    unknown: list[CondaPackage] = []
    for package, provided in zip(packages, found, strict=True):
        filled.append(replace(package, provides=provided or ()))
        if provided is None:
            unknown.append(package)
    return tuple(filled), tuple(unknown)


def provided_by(packages: Iterable[CondaPackage]) -> dict[str, CondaProvided]:
    """PyPI name -> what provides it.

    Of two packages that contain the same one (vtk-base and vtk), the one of that very name counts, else the first.
    """
    pairs = [(package, provided) for package in packages for provided in package.provides]
    pairs.sort(key=lambda pair: (normalised(pair[0].name) != pair[1].name, pair[0].name))
    found: dict[str, CondaProvided] = {}
    for package, provided in pairs:
        provider = CondaProvided(provided.name, provided.version, package.name, package.channel, package.required_by)
        found.setdefault(provided.name, provider)
    return dict(sorted(found.items()))


def needs_python(package: CondaPackage) -> bool:
    """Whether the package depends on Python, and so installs its Python packages for the environment's."""
    return package.noarch == "python" or any(_PYTHON.match(text) for text in package.depends)


def provided_in(paths: bytes) -> tuple[Provided, ...]:
    """The Python packages in an archive. paths: its `info/paths.json`; raises ValueError if it is no such file."""
    try:
        listed = [str(entry["_path"]) for entry in parse_json(paths)["paths"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no list of paths: {error!r}") from error
    provided = set[Provided]()
    for path in listed:
        if found := _INFO.fullmatch(path):
            # `typing_extensions-4.12.0`, `nose-1.3.7-py3.9` (an egg's).
            name, _, rest = found["stem"].partition("-")
            if version := pep440(rest.partition("-")[0]):
                provided.add(Provided(normalised(name), str(version)))
    return tuple(sorted(provided))


async def _provided(package: CondaPackage, names: PypiNames, reader: Reader | None) -> tuple[Provided, ...] | None:
    listed, version = names.of(package), pep440(package.version)
    if listed == ():
        return ()
    if listed and version:
        return tuple(sorted(Provided(normalised(name), str(version)) for name in listed))
    if reader is None:
        return None
    key = cache.key_of(["conda archive", package.sha256])
    stored = names.store.answer(key)
    if stored is None:
        paths = await reader(package)
        if paths is None:
            return None
        try:
            stored = {"provides": list(map(astuple, provided_in(paths)))}
        except ValueError:
            return None
        names.store.put_answer(key, stored)
    return tuple(starmap(Provided, stored["provides"]))


def _names_line(package: CondaPackage, names: PypiNames) -> str:
    """A line of [conda.names] with the likely name."""
    key = package.name
    if not re.fullmatch(r"[A-Za-z0-9_-]+", key):
        key = f'"{key}"'
    likely, candidates = normalised(package.name), names.candidates(package)
    if candidates and likely not in candidates:
        likely = candidates[0]
    return f'{key} = "{likely}"'


#: Archives of the old form, and those on a server without ranges, come whole: few Python packages are larger.
_WHOLE_BYTES: Final = 512 * 1024**2
_AT_ONCE: Final = 8


def archive_reader(channels: Sequence[Channel], environ: Mapping[str, str], *, offline: bool) -> Reader:
    """A reader of these channels' archives, for one event loop, which reads each archive once.

    environ: has the settings of HTTP.
    offline: only archives in folders (`file://`) are read.
    """
    from rattler.package_streaming import PackageArchive

    waits = timeouts(environ, Timeouts())
    clients: dict[str, Client] = {}
    turn = asyncio.Semaphore(_AT_ONCE)

    async def archive(url: str) -> PackageArchive:
        if url.startswith("file:"):
            return await PackageArchive.from_path(unquote(urlsplit(url).path))
        origin = origin_of(url)
        if origin not in clients:
            clients[origin] = channel_client(waits, origin, [channel.address for channel in channels])
        return await PackageArchive.from_url(clients[origin], url, max_spool_size=_WHOLE_BYTES)

    async def listed(url: str) -> bytes | None:
        return await (await archive(url)).read_file("info/paths.json")

    async def once(url: str) -> bytes | None:
        if offline and not url.startswith("file:"):
            return None
        # rattler raises OSError for all that can be wrong with an archive.
        with suppress(OSError, asyncio.TimeoutError):
            async with turn:
                return await asyncio.wait_for(listed(url), waits.total_s)
        return None

    running: dict[str, asyncio.Task[bytes | None]] = {}

    async def read(package: CondaPackage) -> bytes | None:
        url = _address(package.url, channels)
        # Every platform requests the same `noarch` archive.
        if url not in running:
            running[url] = asyncio.ensure_future(once(url))
        return await running[url]

    return read


def _address(url: str, channels: Sequence[Channel]) -> str:
    """A package's address with its channel's token; the client adds user and password."""
    for channel in channels:
        if url.startswith(f"{channel.url}/"):
            return without_login(channel.address).rstrip("/") + url[len(channel.url) :]
    return url
