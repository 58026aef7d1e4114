"""What a base image has for packages on top of it: Python, this Python's packages, and the GPU code of its torch.

It is read from the layers, once for each, and kept in the cache; nothing of the base runs and nothing is unpacked.
Sources: OCI image specification 1.1, `config.md`; PyPA, "Recording installed projects" and "Binary distribution
format"; `site` and `venv` of the standard library; Debian's Python policy (dist-packages), Fedora's (`lib64`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import re
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from typing import Final

from msgspec import Struct

from envspec.errors import UsageError
from envspec.image.config import DEFAULT_PATH, BadBase, Base
from envspec.image.gpu_code import FatbinScan, union
from envspec.image.layers.contents import (
    FILE,
    LINK,
    BadLayer,
    Kept,
    LayerContents,
    Pattern,
    merged,
    read_layer,
    text,
)
from envspec.image.layers.threads import Cancelled, cancellable
from envspec.io.cache import JsonCache
from envspec.io.tasks import gather_or_cancel, run_in_thread
from envspec.models import CudaVersion, GpuCodeFound
from envspec.registry.types import Descriptor
from envspec.resolve.pypi.found import identified, torch_build
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.types import FoundEnvironment, FoundPackage

#: Increase it if other things are kept, or in another form.
_FORM: Final = 1
#: The largest published bases have 400.
_MOST_PACKAGES: Final = 20_000
_MOST_LINKS: Final = 40
_SITE: Final = r"(?:[^/]+/)+(?:site|dist)-packages"


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _gpu_code(pieces: Iterable[bytes]) -> str:
    """`sm_80 sm_90 compute_90`."""
    scan = FatbinScan()
    for piece in pieces:
        scan.write(piece)
    scan.close()
    return " ".join((*scan.found.sm, *scan.found.ptx))


def _match(pattern: bytes, longest: int) -> Callable[[Iterable[bytes]], str]:
    """An extract: all that the pattern's group matches in a file, each once. longest: of a match, in bytes."""
    compiled = re.compile(pattern)

    def extract(pieces: Iterable[bytes]) -> str:
        found, rest = dict[str, None](), b""
        for piece in pieces:
            block = rest + piece
            found |= {each.decode("ascii"): None for each in compiled.findall(block)[:100]}
            rest = block[-longest:]
        return " ".join([*found][:100])

    return extract


_VERSION_OF_PYTHON: Final = _match(rb"\0(3\.\d{1,2}\.\d{1,2})\+?\0", 16)
#: What is kept of a base. PY_VERSION is a text in the interpreter, or in its library.
PATTERNS: Final = (
    Pattern(re.compile(rf"{_SITE}/[^/]+\.(?:dist-info/METADATA|egg-info(?:/PKG-INFO)?)"), text),
    Pattern(re.compile(rf"{_SITE}/[^/]+\.dist-info/RECORD"), _sha256),
    Pattern(re.compile(rf"{_SITE}/torch/lib/libtorch_cuda[^/]*\.so"), _gpu_code),
    Pattern(re.compile(r"(?:[^/]+/)*bin/python3?"), None),
    Pattern(re.compile(r"(?:[^/]+/)*(?:bin/python3\.\d+t?|libpython3\.\d+t?\.so[.\d]*)"), _VERSION_OF_PYTHON),
    Pattern(re.compile(r"(?:[^/]+/)*pyvenv\.cfg"), text),
    Pattern(
        re.compile(r"(?:usr/)?lib(?:64)?/(?:[^/]+/)?libc(?:-[\d.]+)?\.so(?:\.6)?"),
        _match(rb"GNU C Library [^\n]{0,80}release version (\d{1,3}\.\d{1,3})", 128),
    ),
    # Links of folders on the way to all these, and folders and files that replace such a link.
    Pattern(
        re.compile(r"[^/]+(?:/[^/]+){0,2}|(?:[^/]+/)+(?:bin|lib|lib64|python3\.\d+t?|site-packages)"),
        None,
        folders=True,
    ),
)

#: Opens a layer's blob: its bytes as the registry has them.
OpenBlob = Callable[[Descriptor], AsyncGenerator[bytes, None]]


async def read_base(
    base: Base,
    cache: JsonCache,
    opened: Callable[[Descriptor], Awaitable[OpenBlob]],
    jobs: int,
    on_read: Callable[[int], object],
) -> FoundEnvironment:
    """What a base contains. opened: called for each layer that is not in the cache. on_read: with bytes that were read.

    Raises:
        BadBase: a layer can't be read. UsageError: its PATH has no Python whose version is known.
    """
    env = base.env
    constraints = tuple(path.lstrip("/") for path in env.get("PIP_CONSTRAINT", "").split() if path.startswith("/"))
    patterns = (*(Pattern(re.compile(re.escape(path)), text) for path in constraints), *PATTERNS)
    turn = asyncio.Semaphore(jobs)

    async def one(blob: Descriptor) -> LayerContents:
        key = hashlib.sha256(json.dumps([_FORM, blob.digest, constraints]).encode()).hexdigest()
        if (cached := cache.read_as(key, LayerContents)) is not None:
            return cached
        async with turn:
            open_blob = await opened(blob)
            try:
                found = await read_streamed(open_blob(blob), blob, patterns, on_read)
            except BadLayer as error:
                raise BadBase(
                    f"{base.name}: its layer {blob.digest} can't be read: {error}", hint="select another base image"
                ) from error
        cache.write(key, found)
        return found

    layers = await gather_or_cancel([one(layer.blob) for layer in base.layers], jobs)
    return contents_of(merged(layers), env, base.name)


async def read_streamed(
    stream: AsyncGenerator[bytes, None],
    blob: Descriptor,
    patterns: Sequence[Pattern],
    on_read: Callable[[int], object],
    unpacked: Callable[[bytes], object] = lambda _: None,
) -> LayerContents:
    """What a layer contains; its digest is checked at its end.

    stream: closed afterwards.
    on_read, unpacked: called with the number of bytes that were read, and with each piece of the tar.

    Raises:
        BadLayer: it can't be read, or its bytes have another digest.
    """
    loop, cancel = asyncio.get_running_loop(), threading.Event()
    algorithm, _, expected = blob.digest.partition(":")
    digest = hashlib.new(algorithm)
    reading: list[asyncio.Task[object] | None] = []

    async def piece() -> bytes:
        reading[:] = [asyncio.current_task()]
        # Few large ones: each costs a change of threads.
        gathered = bytearray()
        async for data in stream:
            gathered += data
            if len(gathered) >= 1 << 20:
                break
        return bytes(gathered)

    def pieces() -> Iterator[bytes]:
        while data := asyncio.run_coroutine_threadsafe(piece(), loop).result():
            digest.update(data)
            on_read(len(data))
            yield data

    def read() -> LayerContents:
        found = read_layer(cancellable(pieces(), cancel), blob.size_bytes, patterns, unpacked)
        if digest.hexdigest() != expected:
            raise BadLayer("its bytes have another digest")
        return found

    try:
        return await run_in_thread(read)
    except Cancelled:
        raise asyncio.CancelledError from None
    finally:
        cancel.set()
        # At the end of the program, asyncio would close the stream and its connection in any order.
        for task in filter(None, reading):
            task.cancel()
            await asyncio.wait([task])
        await stream.aclose()


class _Python(Struct, frozen=True):
    """program: `usr/bin/python3.12`, links resolved. venv: the virtual environment whose Python it is, or empty."""

    program: str
    venv: str

    @property
    def series(self) -> str:
        return posixpath.basename(self.program).removeprefix("python").removesuffix("t")

    @property
    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The folders of packages of the virtual environment, and of the Python behind it, as `site` orders them."""
        named = posixpath.basename(self.program)
        prefix = posixpath.dirname(posixpath.dirname(self.program))
        own = [f"{prefix}/lib/{named}/site-packages", f"{prefix}/lib64/{named}/site-packages"]
        if prefix == "usr":
            own = [
                *(f"usr/local/lib/{named}/dist-packages", "usr/lib/python3/dist-packages"),
                *(f"usr/lib/{named}/dist-packages", f"usr/local/lib64/{named}/site-packages"),
                *(f"usr/local/lib/{named}/site-packages", *own),
            ]
        nested: tuple[str, ...] = ()
        if self.venv:
            nested = (f"{self.venv}/lib/{named}/site-packages", f"{self.venv}/lib64/{named}/site-packages")
        return nested, tuple(own)


def contents_of(entries: Mapping[str, Kept], env: Mapping[str, str], name: str) -> FoundEnvironment:
    """What an image's entries and variables say. name: of the image.

    Raises:
        UsageError: its PATH has no Python whose version is known.
    """
    links = _Links(entries)
    python = _python(links, env.get("PATH") or DEFAULT_PATH, name)
    nested, own = python.sites
    by_site = _metadata_by_site(entries)
    sites, site = list(nested), ""
    if not python.venv or "true" in _setting(links, f"{python.venv}/pyvenv.cfg"):
        sites += own
        with_packages = next((each for each in own if by_site.get(links.resolved(each))), own[0])
        site = f"/{with_packages}"
    notes = []
    if env.get("PYTHONPATH"):
        notes.append(f"{name} sets PYTHONPATH: what is in {env['PYTHONPATH']} was not read")
    packages = dict[str, FoundPackage]()
    # Python imports a package from the first folder, so that one is read last.
    listed = list(dict.fromkeys(map(links.resolved, reversed(sites))))
    for folder in listed:
        for path in sorted(by_site.get(folder, ())):
            if (found := _package(path, entries, name)) is None:
                notes.append(f"{name}: /{path} names no package and version that PEP 440 can read: it does not count")
            else:
                packages[found.name] = found
    if len(packages) > _MOST_PACKAGES:
        raise BadBase(f"{name} has more than {_MOST_PACKAGES} packages", hint="select another base image")
    constraints, more = _constraints(links, env.get("PIP_CONSTRAINT", ""), name)
    code = _torch_code(entries, listed) if "torch" in packages else None
    return FoundEnvironment(
        place=name,
        packages=packages,
        python=_version(links, python),
        glibc=_glibc(entries),
        home=f"/{posixpath.dirname(python.program)}",
        site=site,
        nested=f"/{nested[0]}" if nested else "",
        constraints=constraints,
        torch_build=torch_build(packages, _cuda(env), code),
        gpu_code=code,
        notes=(*notes, *more),
    )


def _metadata_by_site(entries: Mapping[str, Kept]) -> dict[str, list[str]]:
    """Folder of packages -> the files with their names and versions."""
    by_site: dict[str, list[str]] = {}
    for path, entry in entries.items():
        if entry.kind == FILE and path.endswith(("/METADATA", "/PKG-INFO", ".egg-info")):
            folder = path if path.endswith(".egg-info") else posixpath.dirname(path)
            by_site.setdefault(posixpath.dirname(folder), []).append(path)
    return by_site


class _Links:
    """The entries of an image by paths that may lead through links."""

    def __init__(self, entries: Mapping[str, Kept]) -> None:
        self._entries = entries

    def resolved(self, path: str) -> str:
        """The path without links; of a path with more links than Linux follows, any."""
        waiting = list(filter(None, reversed(path.split("/"))))
        done, followed = "", 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                done = posixpath.dirname(done)
                continue
            here = f"{done}/{part}".lstrip("/") if part != "." else done
            entry = self._entries.get(here)
            if entry is None or entry.kind != LINK or followed == _MOST_LINKS:
                done = here
                continue
            followed += 1
            if entry.value.startswith("/"):
                done = ""
            waiting += filter(None, reversed(entry.value.split("/")))
        return done

    def get(self, path: str) -> Kept | None:
        return self._entries.get(self.resolved(path))


def _python(links: _Links, path: str, name: str) -> _Python:
    """The first Python on PATH."""
    for folder in path.split(":"):
        for program in ("python3", "python"):
            inside = f"{links.resolved(folder)}/{program}".lstrip("/")
            real = links.resolved(inside)
            if (entry := links.get(inside)) is None or entry.kind != FILE:
                continue
            venv = posixpath.dirname(posixpath.dirname(inside))
            if links.get(f"{venv}/pyvenv.cfg") is None:
                venv = ""
            if re.fullmatch(r"python3\.\d+t?", posixpath.basename(real)):
                return _Python(real, venv)
    raise UsageError(
        f'[image] packages = "keep": the PATH of {name} has no program python3 of a known version',
        hint="select a base with Python, or remove `packages`: its packages are then ignored",
    )


def _version(links: _Links, python: _Python) -> str:
    """The Python's exact version; empty if the program does not have it."""
    prefix = posixpath.dirname(posixpath.dirname(python.program))
    library = f"lib{posixpath.basename(python.program)}.so.1.0"
    folders = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
    for path in (python.program, *(f"{prefix}/{folder}/{library}" for folder in folders)):
        entry = links.get(path)
        versions = entry.value.split() if entry else ()
        if own := [each for each in versions if each.startswith(f"{python.series}.")]:
            return own[0]
    return ""


def _setting(links: _Links, path: str) -> str:
    entry = links.get(path)
    if entry is None:
        return ""
    found = re.search(r"(?im)^\s*include-system-site-packages\s*=\s*(\S+)", entry.value)
    return found[1].lower() if found else ""


def _package(path: str, entries: Mapping[str, Kept], place: str) -> FoundPackage | None:
    metadata = entries[path].value
    fields = HeaderParser().parsestr(re.split(r"\r?\n\r?\n", metadata, maxsplit=1)[0])
    if (found := identified(str(fields.get("Name", "")), str(fields.get("Version", "")))) is None:
        return None
    record = entries.get(f"{posixpath.dirname(path)}/RECORD") if path.endswith("/METADATA") else None
    return FoundPackage(*found, place, metadata.encode(), record.value if record else None)


def _constraints(links: _Links, named: str, name: str) -> tuple[tuple[str, ...], list[str]]:
    """The lines of the files that PIP_CONSTRAINT names, and what of it was not read."""
    lines, notes = dict[str, None](), []
    for path in named.split():
        entry = links.get(path)
        if not path.startswith("/") or entry is None or entry.kind != FILE:
            notes.append(f"{name}: {path}, which PIP_CONSTRAINT names, is no file of it: not read")
            continue
        for line in filter(None, (each.partition("#")[0].strip() for each in entry.value.splitlines())):
            requirement = parsed(line)
            if requirement is None or requirement.url or requirement.extras:
                notes.append(f"{name}: {path} has the constraint {line[:100]!r}, which is none on versions: not used")
            else:
                lines[line] = None
    return tuple(lines), notes


def _torch_code(entries: Mapping[str, Kept], sites: Iterable[str]) -> GpuCodeFound:
    """The GPU code of the torch that Python imports. sites: the last one is the first on its path."""
    for site in reversed([*sites]):
        if not any(path.startswith(f"{site}/torch-") for path in entries):
            continue
        names: list[str] = []
        for path, entry in entries.items():
            if path.startswith(f"{site}/torch/lib/libtorch_cuda"):
                names += entry.value.split()
        sm = tuple(name for name in names if name.startswith("sm_"))
        ptx = tuple(name for name in names if name.startswith("compute_"))
        return union([GpuCodeFound(sm, ptx)])
    return GpuCodeFound()


def _cuda(env: Mapping[str, str]) -> CudaVersion | None:
    """The CUDA that an image of NVIDIA's states in its variables."""
    found = re.match(r"(\d{1,3})\.(\d{1,3})", env.get("CUDA_VERSION", "")) or re.search(
        r"\bcuda>=(\d{1,3})\.(\d{1,3})", env.get("NVIDIA_REQUIRE_CUDA", "")
    )
    return CudaVersion(int(found[1]), int(found[2])) if found else None


def _glibc(entries: Mapping[str, Kept]) -> tuple[int, int] | None:
    versions: list[tuple[int, int]] = []
    for path, entry in entries.items():
        if entry.kind != FILE or "/libc" not in path:
            continue
        if re.fullmatch(r"\d+\.\d+", entry.value):
            major, minor = entry.value.split(".")
            versions.append((int(major), int(minor)))
    return max(versions, default=None)
