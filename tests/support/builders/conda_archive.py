"""Tiny real conda archives, made in memory: the same arguments give the same bytes on every machine.

Nothing is compressed: zstd and deflate give other bytes in other versions, blocks that are stored do not. Formats:
conda's CEP 16 for `.conda`, conda-build's documentation for `info/`, RFC 8878 for the frames of zstd.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from functools import cached_property
from typing import Final

from envspec.structs import replace
from tests.support.builders.zips import record_digest, tarred, zipped

#: What stands for the environment's folder in a file: 255 characters, as conda-build makes it.
PREFIX: Final = ("/envspec_" + "placehold_" * 25)[:255]


class Form(Enum):
    """How an archive is packed."""

    CONDA = ".conda"
    TAR_BZ2 = ".tar.bz2"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in an archive."""

    target: str


@dataclass(frozen=True, slots=True)
class Program:
    """A file that may be run."""

    data: bytes


#: What lies at a path. Where `PREFIX` stands in it, its place is noted, as text or, beside a NUL, as binary.
Content = bytes | Program | Link


@dataclass(frozen=True)
class CondaArchive:
    """One archive, and the row that a channel has for it.

    index: what `info/index.json` says. files: path in the environment -> content, `info/` left out.
    entry_points: console scripts of a noarch Python package, `tool = module:function`.
    """

    index: Mapping[str, object]
    files: Mapping[str, Content]
    entry_points: tuple[str, ...] = ()
    form: Form = Form.CONDA
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.index["name"])

    @property
    def version(self) -> str:
        return str(self.index["version"])

    @property
    def build(self) -> str:
        return str(self.index["build"])

    @property
    def subdir(self) -> str:
        return str(self.index["subdir"])

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def filename(self) -> str:
        return f"{self.stem}{self.form.value}"

    @cached_property
    def data(self) -> bytes:
        info = {f"info/{name}": text for name, text in _info(self).items()}
        if self.form is Form.TAR_BZ2:
            return bz2.compress(_tar({**self.files, **info}))
        members = {
            "metadata.json": b'{"conda_pkg_format_version": 2}',
            f"pkg-{self.stem}.tar.zst": zstd_stored(_tar(self.files)),
            f"info-{self.stem}.tar.zst": zstd_stored(_tar(info)),
        }
        return zipped(((name, data, 0o644) for name, data in members.items()), zipfile.ZIP_STORED)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def md5(self) -> str:
        return hashlib.md5(self.data).hexdigest()

    def row(self) -> dict[str, object]:
        """What `repodata.json` says of it."""
        return {**self.index, "md5": self.md5, "sha256": self.sha256, "size": len(self.data)}


def archive(
    name: str,
    version: str,
    files: Mapping[str, Content] | None = None,
    *,
    subdir: str = "noarch",
    build: str = "0",
    depends: Sequence[str] = (),
    constrains: Sequence[str] = (),
    built: str | None = "2025-01-01",
    python: str | None = None,
    entry_points: Sequence[str] = (),
    form: Form = Form.CONDA,
    more: Mapping[str, object] | None = None,
) -> CondaArchive:
    """An archive of `subdir`; in `noarch` it is generic, or Python's where `python` is given.

    build: its last part, after `_`, is the build number. built: a day, or None for a row that does not say it.
    python: "noarch" for a package whose `site-packages/` goes below any Python's. more: further keys of the index.
    """
    number = build.rpartition("_")[2]
    index: dict[str, object] = {
        "arch": None if subdir == "noarch" else {"64": "x86_64"}.get(subdir.partition("-")[2], "aarch64"),
        "build": build,
        "build_number": int(number) if number.isdigit() else 0,
        "constrains": list(constrains),
        "depends": list(depends),
        "license": "Apache-2.0",
        "name": name,
        "platform": None if subdir == "noarch" else subdir.partition("-")[0],
        "subdir": subdir,
        "version": version,
        **({"noarch": "python" if python else "generic"} if subdir == "noarch" else {}),
        **({"timestamp": milliseconds(built)} if built else {}),
        **(more or {}),
    }
    given = {key: value for key, value in sorted(index.items()) if value is not None}
    return CondaArchive(given, dict(files or {}), tuple(entry_points), form)


def milliseconds(day: str) -> int:
    """`2025-06-01` or a whole moment, in the unit of a row's `timestamp`."""
    moment = datetime.fromisoformat(day)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000)


def distribution(
    name: str,
    version: str,
    modules: Mapping[str, str] | None = None,
    *,
    requires: Sequence[str] = (),
    site_packages: str = "site-packages",
) -> dict[str, Content]:
    """The files of an installed Python distribution: its modules and its `dist-info`, as conda packages hold them.

    modules: path below site-packages -> source; without it, one module with `__version__`.
    """
    module = name.replace("-", "_").lower()
    files = {path: text.encode() for path, text in (modules or {f"{module}/__init__.py": _versioned(version)}).items()}
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    files[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    files[f"{info}/INSTALLER"] = b"conda\n"
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: envspec-tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{path},{record_digest(data)},{len(data)}" for path, data in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    return {f"{site_packages}/{path}": data for path, data in files.items()}


def impostor(archive: CondaArchive) -> CondaArchive:
    """An archive with the same name and the same size that can be unpacked as well: only its hash tells."""
    path = next(path for path, content in sorted(archive.files.items()) if isinstance(content, bytes) and content)
    content = archive.files[path]
    assert isinstance(content, bytes)
    return replace(archive, files={**archive.files, path: bytes([content[0] ^ 1]) + content[1:]})


def zstd_stored(data: bytes) -> bytes:
    """A frame of zstd that holds the data as it is (RFC 8878, 3.1.1): blocks of type "raw"."""
    largest = 1 << 17
    # Single segment, content size in 8 bytes, no checksum.
    frame = [b"\x28\xb5\x2f\xfd\xe0", struct.pack("<Q", len(data))]
    starts = range(0, len(data), largest) if data else (0,)
    for start in starts:
        block = data[start : start + largest]
        is_last = start + largest >= len(data)
        frame += [struct.pack("<I", len(block) << 3 | is_last)[:3], block]
    return b"".join(frame)


def _versioned(version: str) -> str:
    return f'__version__ = "{version}"\n'


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _info(archive: CondaArchive) -> dict[str, Content]:
    info: dict[str, Content] = {
        "index.json": _json(archive.index),
        "about.json": _json({"summary": f"{archive.name}, made by a test", **archive.about}),
        "files": "".join(f"{path}\n" for path in sorted(archive.files)).encode(),
        "paths.json": _json(
            {"paths": [_path(path, archive.files[path]) for path in sorted(archive.files)], "paths_version": 1}
        ),
    }
    if archive.index.get("noarch") == "python":
        noarch = {"type": "python", **({"entry_points": list(archive.entry_points)} if archive.entry_points else {})}
        info["link.json"] = _json({"noarch": noarch, "package_metadata_version": 1})
    return info


def _path(path: str, content: Content) -> dict[str, object]:
    if isinstance(content, Link):
        # conda-build writes the hash of what the link points at; nothing reads it for a link that leaves the package.
        return {"_path": path, "path_type": "softlink", "sha256": hashlib.sha256(b"").hexdigest(), "size_in_bytes": 0}
    data = _data(content)
    entry: dict[str, object] = {
        "_path": path,
        "path_type": "hardlink",
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_in_bytes": len(data),
    }
    if PREFIX.encode() in data:
        entry["prefix_placeholder"] = PREFIX
        entry["file_mode"] = "binary" if b"\0" in data else "text"
    return entry


def _data(content: bytes | Program) -> bytes:
    return content.data if isinstance(content, Program) else content


def _tar(files: Mapping[str, Content]) -> bytes:
    return tarred(_member(path, content) for path, content in sorted(files.items()))


def _member(path: str, content: Content) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(path)
    if isinstance(content, Link):
        member.type, member.linkname = tarfile.SYMTYPE, content.target
        return member, b""
    member.mode = 0o755 if isinstance(content, Program) else 0o644
    return member, _data(content)
