"""Tiny real wheels and sdists, made in memory: the same arguments give the same bytes on every machine."""

from __future__ import annotations

import csv
import hashlib
import io
import random
import re
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.support.builders.zips import gzipped, record_digest, tarred, zipped


class Method(Enum):
    """How a wheel's files are held. Deflate's bytes differ between builds of zlib, stored ones do not."""

    STORED = zipfile.ZIP_STORED
    DEFLATED = zipfile.ZIP_DEFLATED


@dataclass(frozen=True, slots=True)
class Artifact:
    """One distribution file.

    metadata: the core metadata of it, as `METADATA` or `PKG-INFO` holds it.
    name: the project's normalised name (PEP 503).
    """

    name: str
    version: str
    filename: str
    data: bytes
    metadata: bytes
    requires_python: str | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def is_wheel(self) -> bool:
        return self.filename.endswith(".whl")


def normalized(name: str) -> str:
    """PEP 503's form of a project name: `My.Package_x` -> `my-package-x`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def module_name(name: str) -> str:
    """The importable name that `wheel` gives a project: `My-Package` -> `my_package`."""
    return normalized(name).replace("-", "_")


def padding(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes that do not compress, the same for the same seed: to make a wheel worth not downloading."""
    return random.Random(seed).randbytes(size_bytes)


def core_metadata(
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    requires_python: str | None = None,
    metadata_version: str = "2.1",
) -> bytes:
    """Core metadata with the requirements of each extra given its marker."""
    lines = [f"Metadata-Version: {metadata_version}", f"Name: {name}", f"Version: {version}"]
    if requires_python:
        lines.append(f"Requires-Python: {requires_python}")
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    for extra, wanted in (extras or {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {_with_extra(requirement, extra)}" for requirement in wanted]
    return ("\n".join(lines) + "\n").encode()


def wheel(
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    requires_python: str | None = None,
    tag: str = "py3-none-any",
    build: str | None = None,
    files: Mapping[str, bytes] | None = None,
    metadata: bytes | None = None,
    method: Method = Method.STORED,
) -> Artifact:
    """A wheel that pip, uv and installer accept; without `files` it holds one module with `__version__`.

    tag: `python-abi-platform`, each part may be compressed with dots (`py2.py3-none-any`); then perhaps the label of a
    variant (PEP 825).
    build: build number of the file name, such as `1` or `2cu118`.
    files: path inside the wheel -> content, instead of the module.
    metadata: written as it stands instead of what the arguments say (for broken metadata).
    """
    escaped = module_name(name)
    stem = f"{escaped}-{version}"
    meta = metadata or core_metadata(name, version, requires=requires, extras=extras, requires_python=requires_python)
    content = dict(files) if files is not None else {f"{escaped}/__init__.py": _module(version)}
    info = f"{stem}.dist-info"
    content[f"{info}/METADATA"] = meta
    content[f"{info}/WHEEL"] = _wheel_file(tag, build)
    content[f"{info}/RECORD"] = _record(content, info)
    middle = f"-{build}" if build else ""
    return Artifact(
        name=normalized(name),
        version=version,
        filename=f"{stem}{middle}-{tag}.whl",
        data=_zip(content, method),
        metadata=meta,
        requires_python=requires_python,
    )


def sdist(
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    requires_python: str | None = None,
    on_build: str = "",
    metadata_version: str = "2.1",
    build_requires: Sequence[str] = (),
    written: int = 0,
) -> Artifact:
    """A `.tar.gz` source distribution that brings its own build backend: no index is needed to build it.

    build_requires: `build-system.requires`, if an index is to be asked after all.
    written: time of its files, in seconds since 1970.
    on_build: Python that runs before each build: to fail, or to leave a mark where something builds that must not.
    metadata_version: 2.2 or later lets a resolver trust PKG-INFO without a build; 2.1 makes it build.
    """
    escaped = module_name(name)
    stem = f"{escaped}-{version}"
    meta = core_metadata(
        name, version, requires=requires, requires_python=requires_python, metadata_version=metadata_version
    )
    content = {
        f"{stem}/PKG-INFO": meta,
        f"{stem}/pyproject.toml": _PYPROJECT.replace(b"requires = []", f"requires = {list(build_requires)}".encode()),
        f"{stem}/backend.py": f"STEM = {stem!r}\nMODULE = {escaped!r}\n{on_build}\n{_BACKEND}".encode(),
        f"{stem}/{escaped}/__init__.py": _module(version),
    }
    members = [(tarfile.TarInfo(path), data) for path, data in sorted(content.items())]
    for info, _ in members:
        info.mtime = written
    tar = tarred(members, tarfile.PAX_FORMAT)
    return Artifact(normalized(name), version, f"{stem}.tar.gz", gzipped(tar, 0), meta, requires_python)


def wheels(name: str, version: str, tags: Iterable[str], *, requires: Sequence[str] = ()) -> list[Artifact]:
    """One wheel per tag, as a project with compiled code publishes them."""
    return [wheel(name, version, requires=requires, tag=tag) for tag in tags]


def _with_extra(requirement: str, extra: str) -> str:
    head, semicolon, marker = requirement.partition(";")
    condition = f'extra == "{extra}"'
    return f"{head.strip()}; ({marker.strip()}) and {condition}" if semicolon else f"{head.strip()}; {condition}"


def _module(version: str) -> bytes:
    return f'__version__ = "{version}"\n'.encode()


def _wheel_file(tag: str, build: str | None) -> bytes:
    pythons, abis, platforms = tag.split("-")[:3]
    pure = "true" if abis == "none" and platforms == "any" else "false"
    lines = ["Wheel-Version: 1.0", "Generator: envspec-tests", f"Root-Is-Purelib: {pure}"]
    lines += [f"Tag: {p}-{a}-{f}" for p in pythons.split(".") for a in abis.split(".") for f in platforms.split(".")]
    lines += [f"Build: {build}"] if build else []
    return ("\n".join(lines) + "\n").encode()


def _record(content: Mapping[str, bytes], info: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path, data in sorted(content.items()):
        rows.writerow((path, record_digest(data), len(data)))
    rows.writerow((f"{info}/RECORD", "", ""))
    return text.getvalue().encode()


def _zip(content: Mapping[str, bytes], method: Method) -> bytes:
    # dist-info comes last, as PEP 427 recommends: a reader of the wheel's end has it in its first range.
    paths = sorted(content, key=lambda path: (".dist-info/" in path, path))
    return zipped(((path, content[path], 0o644) for path in paths), method.value)


_PYPROJECT: Final = b"""[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

_BACKEND: Final = """
import zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = f"{STEM}-py3-none-any.whl"
    info = f"{STEM}.dist-info"
    content = {
        f"{MODULE}/__init__.py": Path(MODULE, "__init__.py").read_text(),
        f"{info}/METADATA": Path("PKG-INFO").read_text(),
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: backend\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    rows = [f"{path},," for path in (*content, f"{info}/RECORD")]
    content[f"{info}/RECORD"] = "\\n".join(rows) + "\\n"
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return name
"""
