"""Python packages inside conda packages.

What tells, in this order: the spec's `[conda.names]`; what was read of the package by hand; what was gathered of its
channel's archives; the archive itself. Nothing is guessed: where none of them tells, the package stays unmapped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envspec.documents import json_of
from envspec.errors import NoSolution
from envspec.facts.conda import CondaNames
from envspec.io.http_settings import timeouts
from envspec.io.http_types import Timeouts
from envspec.io.store import Store
from envspec.models import CondaPackage, Provided
from envspec.origins import origin_of
from envspec.resolve import cache
from envspec.resolve.conda.channel_client import channel_client, without_login
from envspec.resolve.types import Provider

if TYPE_CHECKING:
    from rattler import Client

    from envspec.resolve.types import Channel


#: Gives `info/paths.json` of a package's archive; None where the archive can't be had.
Reader = Callable[[CondaPackage], Awaitable[bytes | None]]

# An environment's own site-packages, as archives have it: of noarch packages, on Unix, on Windows. What lies deeper is
# a package's private copy. Source: conda's CEP 20 (noarch), `sysconfig` of conda's Python.
_INFO: Final = re.compile(
    r"(?:lib/python\d+\.\d+t?/|Lib/)?site-packages/(?P<stem>[^/]+)\.(?:dist-info/METADATA|egg-info(?:/PKG-INFO)?)"
)
# A match spec that names Python itself, with or without a blank before its versions.
_PYTHON: Final = re.compile(r"python(?![\w.-])")


@dataclass(frozen=True, slots=True)
class Names:
    """What is known of conda names.

    own: the spec's `[conda.names]`, conda name -> PyPI names. facts: of whole channels. store: what archives have told.
    """

    own: Mapping[str, tuple[str, ...]]
    facts: CondaNames
    store: Store

    def of(self, package: CondaPackage) -> tuple[str, ...] | None:
        """The PyPI names in a package; None where only its archive tells.

        A package that does not depend on Python installs nothing for it, whatever older archives of its name held: it
        was a Python package once (docker-compose), or joins others (pytorch-cpu).
        """
        known = self.own.get(package.name, self.facts.held.get(package.name))
        if known is not None:
            return known
        if not needs_python(package):
            return ()
        listed = self.facts.listed(package.name, self._channel(package))
        # Several were gathered over years: which of them this archive holds, and in which versions, is not known.
        return listed if listed is not None and len(listed) < 2 else None

    def candidates(self, package: CondaPackage) -> tuple[str, ...]:
        """PyPI names that archives of this conda name had."""
        return self.facts.listed(package.name, self._channel(package)) or ()

    def _channel(self, package: CondaPackage) -> str | None:
        """The channel by its address: a mirror ends in the name of what it mirrors."""
        parts = reversed(urlsplit(package.url).path.split("/"))
        return next((part for part in parts if part in self.facts.channels), None)


class UnmappedName(NoSolution):
    """Conda packages that install Python packages of which nobody knows the name or the version."""

    def __init__(self, packages: Sequence[CondaPackage], names: Names) -> None:
        odd = [package for package in packages if names.of(package)]
        unnamed = [package for package in packages if package not in odd]
        hints = [f"take {package.name} from [pip], where its versions are PyPI's" for package in odd]
        if unnamed:
            lines = [f'{_key(package.name)} = "{_likely(package, names)}"' for package in unnamed]
            hints.append(
                f"say it under [conda.names]: {', '.join(lines)}; or `[]` for one that holds no Python package"
            )
        told = [_unnamed(p, names) for p in unnamed] + [f"{_come(p)}, no version of a Python package" for p in odd]
        super().__init__(f"{'; '.join(told)}; the archives can't be read", hint="; ".join(hints))


def _unnamed(package: CondaPackage, names: Names) -> str:
    candidates = names.candidates(package)
    had = f" (archives of that name had {', '.join(candidates)})" if candidates else ""
    return f"{_come(package)} and needs Python; which PyPI package it is, is not known{had}"


def _come(package: CondaPackage) -> str:
    return f"{package.name} {package.version} comes from {package.channel}"


async def with_provides(
    packages: Sequence[CondaPackage], names: Names, reader: Reader | None
) -> tuple[tuple[CondaPackage, ...], tuple[CondaPackage, ...]]:
    """The packages with the Python packages in them, and those of which that is not known.

    reader: asked for the archives of packages that nothing else knows, each once and all at the same time. None: what
    archives tell is left out, also where it was told before.

    Raises:
        NetworkError: by `reader`.
    """
    found = await asyncio.gather(*(_provides(package, names, reader) for package in packages))
    filled = tuple(replace(p, provides=known or ()) for p, known in zip(packages, found, strict=True))
    return filled, tuple(p for p, known in zip(packages, found, strict=True) if known is None)


def provided_by(packages: Iterable[CondaPackage]) -> dict[str, Provider]:
    """PyPI name -> what provides it.

    Of two packages that hold the same one (vtk-base and vtk), the one of that very name counts, else the first.
    """
    rows = [(package, provided) for package in packages for provided in package.provides]
    rows.sort(key=lambda row: (canonicalize_name(row[0].name) != row[1].name, row[0].name))
    found: dict[str, Provider] = {}
    for package, provided in rows:
        provider = Provider(provided.name, provided.version, package.name, package.channel, package.askers)
        found.setdefault(provided.name, provider)
    return dict(sorted(found.items()))


def needs_python(package: CondaPackage) -> bool:
    """Whether the package depends on Python: what it has for Python is for that of its environment."""
    return package.noarch == "python" or any(_PYTHON.match(text) for text in package.depends)


def held_by(paths: bytes) -> tuple[Provided, ...]:
    """The Python packages in an archive, by its `info/paths.json`.

    ValueError: it is no such file.
    """
    try:
        listed = [str(entry["_path"]) for entry in json_of(paths)["paths"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no list of paths: {error!r}") from error
    stems = (found["stem"] for path in listed if (found := _INFO.fullmatch(path)))
    return tuple(sorted({provided for stem in stems if (provided := _of_stem(stem))}))


def _of_stem(stem: str) -> Provided | None:
    """`typing_extensions-4.12.0`, `nose-1.3.7-py3.9` (an egg's). None where its version is none of PEP 440's."""
    name, _, rest = stem.partition("-")
    version = _pep440(rest.partition("-")[0])
    return Provided(str(canonicalize_name(name)), version) if version else None


def _pep440(text: str) -> str | None:
    try:
        return str(Version(text))
    except InvalidVersion:
        return None


async def _provides(package: CondaPackage, names: Names, reader: Reader | None) -> tuple[Provided, ...] | None:
    known, version = names.of(package), _pep440(package.version)
    if known == ():
        return ()
    if known and version:
        return tuple(sorted(Provided(str(canonicalize_name(name)), version) for name in known))
    if reader is None:
        return None
    key = cache.key_of(["conda archive", package.sha256])
    told = names.store.answer(key)
    if told is None:
        paths = await reader(package)
        if paths is None:
            return None
        try:
            told = {"provides": [[held.name, held.version] for held in held_by(paths)]}
        except ValueError:
            return None
        names.store.put_answer(key, told)
    return tuple(Provided(name, version) for name, version in told["provides"])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _likely(package: CondaPackage, names: Names) -> str:
    own, candidates = str(canonicalize_name(package.name)), names.candidates(package)
    return candidates[0] if candidates and own not in candidates else own


_PATHS: Final = "info/paths.json"
#: An archive of the old form, or on a server without ranges, comes whole: few Python packages are larger.
_WHOLE_BYTES: Final = 512 * 1024**2
_AT_ONCE: Final = 8


def archive_reader(channels: Sequence[Channel], environ: Mapping[str, str], *, offline: bool) -> Reader:
    """Reads `info/paths.json` of these channels' packages; None where an archive can't be had, for whatever reason.

    It belongs to one event loop, and asks for an archive once however often it is called.
    environ: the patience of HTTP is read from it. offline: only archives in folders (`file://`) are read.
    """
    from rattler.package_streaming import PackageArchive

    waits = timeouts(environ, Timeouts())
    clients: dict[str, Client] = {}
    turn = asyncio.Semaphore(_AT_ONCE)

    async def listed(url: str) -> bytes | None:
        if url.startswith("file:"):
            archive = await PackageArchive.from_path(unquote(urlsplit(url).path))
        elif offline:
            return None
        else:
            origin = origin_of(url)
            if origin not in clients:
                clients[origin] = channel_client(waits, origin, [channel.address for channel in channels])
            archive = await PackageArchive.from_url(clients[origin], url, max_spool_size=_WHOLE_BYTES)
        return await archive.read_file(_PATHS)

    async def once(url: str) -> bytes | None:
        try:
            async with turn:
                return await asyncio.wait_for(listed(url), waits.total_s)
        # rattler tells whatever goes wrong with an archive as an OSError.
        except (OSError, asyncio.TimeoutError):
            return None

    running: dict[str, asyncio.Task[bytes | None]] = {}

    async def read(package: CondaPackage) -> bytes | None:
        url = _address(package.url, channels)
        # The same `noarch` archive is asked for by every platform.
        if url not in running:
            running[url] = asyncio.ensure_future(once(url))
        return await running[url]

    return read


def _address(url: str, channels: Sequence[Channel]) -> str:
    """A package's address with its channel's token; user and password are the client's."""
    for channel in channels:
        if url.startswith(f"{channel.url}/"):
            return without_login(channel.address).rstrip("/") + url[len(channel.url) :]
    return url
