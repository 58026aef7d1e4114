"""Hostile conda archives: how each is made. All are `thing 1.0 0` of noarch, with their true hash in the lock."""

from __future__ import annotations

import bz2
import hashlib
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.security.hostile import OUT, Entry, Make, Member, folder, hardlink, sparse, symlink, tar_of, zip_of
from tests.support.builders.conda_archive import PREFIX, zstd_stored
from tests.support.builders.environments import SERIES

STEM: Final = "thing-1.0-0"
HONEST: Final = Member("share/thing.txt", b"thing\n")
_INDEX: Final = {
    **{"name": "thing", "version": "1.0", "build": "0", "build_number": 0, "depends": [], "constrains": []},
    **{"subdir": "noarch", "noarch": "generic", "arch": None, "platform": None, "license": "MIT"},
}


def row_of(member: Member, **others: object) -> dict[str, object]:
    """A row of `info/paths.json`."""
    kind = {tarfile.SYMTYPE: "softlink", tarfile.DIRTYPE: "directory"}.get(member.kind, "hardlink")
    row: dict[str, object] = {"_path": member.name, "path_type": kind}
    if kind == "hardlink":
        row.update(sha256=hashlib.sha256(member.data).hexdigest(), size_in_bytes=len(member.data))
    return {**row, **others}


def info_of(
    files: Sequence[Member],
    *,
    rows: Sequence[object] | None = None,
    index: Mapping[str, object] | None = None,
    more: Mapping[str, bytes | None] | None = None,
) -> list[Member]:
    """The members of `info/`. rows: of paths.json. index: changes of index.json. more: files set, or left out."""
    listed = [row_of(each) for each in files] if rows is None else rows
    found: dict[str, bytes | None] = {
        "info/index.json": json.dumps({**_INDEX, **(index or {})}).encode(),
        "info/about.json": b"{}",
        "info/files": "".join(f"{each.name}\n" for each in files).encode("utf-8", "surrogateescape"),
        "info/paths.json": json.dumps({"paths": listed, "paths_version": 1}).encode(),
        **(more or {}),
    }
    return [Member(name, data) for name, data in found.items() if data is not None]


def conda_of(
    package: bytes, info: bytes, *, members: Sequence[Entry] = (), stem: str = STEM, meta: bytes | None = None
) -> bytes:
    """A `.conda` of two packed tars. members: further ones."""
    return zip_of(
        [
            Entry("metadata.json", b'{"conda_pkg_format_version": 2}' if meta is None else meta, method=0),
            Entry(f"pkg-{stem}.tar.zst", package, method=0),
            Entry(f"info-{stem}.tar.zst", info, method=0),
            *members,
        ]
    )


def _conda(*extra: Member, form: int = tarfile.PAX_FORMAT, **others: Any) -> Make:
    def make() -> bytes:
        files = [HONEST, *extra]
        return conda_of(zstd_stored(tar_of(files, form)), zstd_stored(tar_of(info_of(files, **others))))

    return make


def _bz2(*extra: Member, form: int = tarfile.PAX_FORMAT, **others: Any) -> Make:
    return lambda: bz2.compress(tar_of([*info_of([HONEST, *extra], **others), HONEST, *extra], form))


def _rows(*rows: object) -> Make:
    return _conda(rows=[row_of(HONEST), *rows])


def _text(data: bytes, **row: object) -> Make:
    """A text or a program with the place of the prefix in it."""
    member = Member("share/prefixed", data)
    message = {"prefix_placeholder": PREFIX, "file_mode": "text", **row}
    return _conda(member, rows=[row_of(HONEST), row_of(member, **message)])


def _python(*entry_points: str, members: Sequence[Member] = (Member("site-packages/thing.py", b"x = 1\n"),)) -> Make:
    """A noarch package of Python."""
    noarch = {"type": "python", **({"entry_points": entry_points} if entry_points else {})}
    data = json.dumps({"noarch": noarch, "package_metadata_version": 1})
    return _conda(*members, index={"noarch": "python"}, more={"info/link.json": data.encode()})


def _zstd_zeros(start: bytes, zeros: int) -> bytes:
    """A frame of `start`, then zeros, in blocks of a byte for 128 KiB each (RFC 8878, 3.1.1.2.2: type 1)."""
    # A window of 128 KiB (3.1.1.1.2), and no size of the content.
    frame = [b"\x28\xb5\x2f\xfd\x00\x38"]
    frame.append(struct.pack("<I", len(start) << 3)[:3] + start)
    frame += [struct.pack("<I", 1 << 17 << 3 | 1 << 1)[:3] + b"\0"] * (zeros >> 17)
    return b"".join([*frame, struct.pack("<I", 1)[:3]])


def _bomb(size: int) -> Make:
    def make() -> bytes:
        head = tarfile.TarInfo("share/zeros")
        head.size = size
        start = tar_of([HONEST]).rstrip(b"\0").ljust(1024, b"\0") + head.tobuf()
        return conda_of(_zstd_zeros(start, size + (1 << 17)), zstd_stored(tar_of(info_of([HONEST]))))

    return make


def _bz2_bomb() -> bytes:
    return bz2.compress(tar_of([*info_of([HONEST]), HONEST, Member("share/zeros", bytes(200 << 20))]))


def _zip(**others: Any) -> Make:
    def make() -> bytes:
        return conda_of(zstd_stored(tar_of([HONEST])), zstd_stored(tar_of(info_of([HONEST]))), **others)

    return make


def _second(row: dict[str, object]) -> Make:
    """An archive whose paths.json is honest, until the tar of the package is unpacked over it."""

    def make() -> bytes:
        listed = json.dumps({"paths": [row_of(HONEST), row], "paths_version": 1}).encode()
        package = zstd_stored(tar_of([HONEST, Member("info/paths.json", listed)]))
        return zip_of(
            [
                Entry("metadata.json", b'{"conda_pkg_format_version": 2}', method=0),
                Entry(f"info-{STEM}.tar.zst", _INFO, method=0),
                Entry(f"pkg-{STEM}.tar.zst", package, method=0),
            ]
        )

    return make


_PACKAGE: Final = zstd_stored(tar_of([HONEST]))
_INFO: Final = zstd_stored(tar_of(info_of([HONEST])))
#: Cases that are packages for Python, and are linked beside one.
PYTHON: Final = frozenset(
    {
        *("an entry point `../../run`", "an entry point with an absolute path", "an entry point that calls code"),
        *("an entry point whose module is code", "an entry point with a newline", "an entry point `python`"),
        *("an entry point without an object", "a link.json that is no JSON", "`site-packages/../`"),
        *("`python-scripts/../`", "a link in site-packages, and modules behind it"),
    }
)

#: Name -> how it is made. Those that end in `(.tar.bz2)` are of that form, the others `.conda`.
CONDA: Final[Mapping[str, Make]] = {
    # Paths that lead out, in the archive and in `info/paths.json`.
    "`../` at the start": _conda(Member("../escaped", b"x")),
    "`../` in the middle": _conda(Member("share/../../escaped", b"x")),
    "an absolute path": _conda(Member(f"{OUT}/victim", b"x")),
    "an absolute path in a pax header": _conda(
        Member("share/a", b"x", pax=(("path", f"{OUT}/victim"),)), rows=[row_of(HONEST)]
    ),
    "`../` by a GNU long name": _conda(Member("../" * 40 + "escaped", b"x"), form=tarfile.GNU_FORMAT),
    "`../` in the archive only": _conda(Member("../escaped", b"x"), rows=[row_of(HONEST)]),
    "`../` in paths.json only": _rows(row_of(Member("../victim"))),
    "an absolute path in paths.json only": _rows(row_of(Member(f"{OUT}/victim"))),
    "a backslash": _conda(Member("share\\..\\escaped", b"x")),
    "an empty path in paths.json": _rows(row_of(Member(""))),
    "`.` in paths.json": _rows(row_of(Member("."))),
    "a path that is not normal": _conda(Member("share//./b", b"x")),
    "`../` (.tar.bz2)": _bz2(Member("../escaped", b"x")),
    "an absolute path (.tar.bz2)": _bz2(Member(f"{OUT}/victim", b"x")),
    "`../` through its own folder in the cache": _rows(row_of(Member(f"../{STEM}/share/thing.txt", HONEST.data))),
    "`../` in the lines of `info/files`": _conda(
        more={"info/paths.json": None, "info/files": f"share/thing.txt\n../{STEM}/share/thing.txt\n".encode()}
    ),
    "a second paths.json in the tar of the package": _second(row_of(Member(f"../{STEM}/share/thing.txt", HONEST.data))),
    "a listed file behind an unlisted link to the host": _conda(
        symlink("share/link", OUT), rows=[row_of(HONEST), row_of(Member("share/link/victim", b"precious\n"))]
    ),
    "`info` as a link": _conda(symlink("info", OUT), rows=[row_of(HONEST)]),
    # Names.
    "a newline in a name": _conda(Member("share/a\nb", b"x")),
    "an escape sequence in a name": _conda(Member("share/\x1b[2J", b"x")),
    "a NUL in a name of paths.json": _rows(row_of(Member("share/a\0b"))),
    "a name that is no UTF-8": _conda(Member("share/\udcff", b"x"), form=tarfile.GNU_FORMAT, rows=[row_of(HONEST)]),
    "a name of 300 bytes": _conda(Member(f"share/{'n' * 300}", b"x")),
    "names that differ in case": _conda(Member("share/Thing.txt", b"x")),
    "one name twice": _conda(Member("share/thing.txt", b"evil\n"), rows=[row_of(HONEST)]),
    "a file and a folder of one name": _conda(Member("share/a", b"x"), Member("share/a/b", b"x")),
    # Links and special files.
    "a symlink to an absolute path": _conda(symlink("share/link", f"{OUT}/victim")),
    "a symlink that leads out": _conda(symlink("share/link", "../../../../victim")),
    "a file behind a symlink that leads out": _conda(symlink("share/link", OUT), Member("share/link/escaped", b"x")),
    "a file behind a symlink inside": _conda(
        folder("share/real"), symlink("share/link", "real"), Member("share/link/b", b"x")
    ),
    "a file over a symlink that leads out": _conda(
        symlink("share/link", f"{OUT}/victim"), Member("share/link", b"evil\n"), rows=[row_of(HONEST)]
    ),
    "a symlink to itself": _conda(symlink("share/loop", "loop")),
    "a hard link to an absolute path": _conda(
        hardlink("share/link", f"{OUT}/victim"), rows=[row_of(HONEST), row_of(Member("share/link", b"precious\n"))]
    ),
    "a hard link that leads out": _conda(hardlink("share/link", "../../../victim")),
    "a hard link inside": _conda(
        hardlink("share/link", "share/thing.txt"), rows=[row_of(HONEST), row_of(Member("share/link", HONEST.data))]
    ),
    "a hard link to a symlink that leads out": _conda(
        symlink("share/first", f"{OUT}/victim"),
        hardlink("share/second", "share/first"),
        rows=[row_of(HONEST), row_of(Member("share/second", b"precious\n"))],
    ),
    "a character device": _conda(Member("share/null", kind=tarfile.CHRTYPE)),
    "a pipe": _conda(Member("share/pipe", kind=tarfile.FIFOTYPE)),
    "setuid and setgid": _conda(Member("bin/run", b"#!/bin/sh\n", mode=0o6755)),
    "writable by everyone": _conda(Member("share/open", b"x", mode=0o666)),
    # `info/paths.json`.
    "no paths.json": _conda(more={"info/paths.json": None}),
    "a paths.json that is no JSON": _conda(more={"info/paths.json": b"{"}),
    "a paths.json of another form": _conda(more={"info/paths.json": b'{"paths": [1]}'}),
    "paths.json names what is not there": _rows(row_of(Member("share/missing"))),
    "paths.json leaves a file out": _conda(Member("share/unlisted", b"x"), rows=[row_of(HONEST)]),
    "paths.json has another hash": _conda(rows=[row_of(HONEST, sha256="0" * 64)]),
    "paths.json has another size": _conda(rows=[row_of(HONEST, size_in_bytes=10**12)]),
    "paths.json has another kind": _conda(rows=[row_of(HONEST, path_type="softlink")]),
    "paths.json has an unknown kind": _conda(rows=[row_of(HONEST, path_type="device")]),
    "paths.json calls a link that leads out a file": _conda(
        symlink("share/link", f"{OUT}/victim"), rows=[row_of(HONEST), row_of(Member("share/link", b"precious\n"))]
    ),
    "paths.json names a file twice": _rows(row_of(HONEST)),
    # The prefix.
    "a prefix with a newline": _text(b"root = /evil\nplace/share\n", prefix_placeholder="/evil\nplace"),
    "a prefix that is empty": _text(b"root = x\n", prefix_placeholder=""),
    "a prefix that is in no file": _text(b"nothing\n"),
    "a short prefix in a program": _text(b"\0/p/share\0", prefix_placeholder="/p", file_mode="binary"),
    "a prefix of another length than said": _text(
        b"\0" + PREFIX.encode() + b"/share\0", prefix_placeholder=PREFIX * 4, file_mode="binary"
    ),
    "a text marked as a program": _text(f"{PREFIX}\n".encode(), file_mode="binary"),
    "a program marked as a text": _text(b"\0" + PREFIX.encode() + b"/share\0", file_mode="text"),
    "an unknown way to write the prefix": _text(b"x", file_mode="evil"),
    "a `has_prefix` that leads out (.tar.bz2)": _bz2(
        more={"info/paths.json": None, "info/has_prefix": f"{PREFIX} text ../../victim\n".encode()}
    ),
    # noarch packages of Python.
    "an entry point `../../run`": _python("../../run = thing:x"),
    "an entry point with an absolute path": _python(f"{OUT}/run = thing:x"),
    "an entry point that calls code": _python("run = thing:x();import os"),
    "an entry point whose module is code": _python("run = os;evil:x"),
    "an entry point with a newline": _python("run = thing\nimport evil:x"),
    "an entry point `python`": _python("python = thing:x"),
    "an entry point without an object": _python("run = thing"),
    "a link.json that is no JSON": _conda(index={"noarch": "python"}, more={"info/link.json": b"{"}),
    "`site-packages/../`": _python(members=[Member("site-packages/../../../../../escaped", b"x")]),
    "`python-scripts/../`": _python(members=[Member("python-scripts/../../escaped", b"x")]),
    "a link in site-packages, and modules behind it": _python(
        members=[symlink(f"lib/python{SERIES}/site-packages/thing", OUT), Member("site-packages/thing/x.py", b"x")]
    ),
    # What it says that it is, and what it brings.
    "index.json of another package": _conda(index={"name": "other", "version": "9"}),
    "index.json with a name that leads out": _conda(index={"name": "../../victim"}),
    "no index.json": _conda(more={"info/index.json": None}),
    "an index.json that is no JSON": _conda(more={"info/index.json": b"{"}),
    "a post-link script": _conda(
        Member("bin/.thing-post-link.sh", f"#!/bin/sh\ntouch {OUT}/escaped\n".encode(), mode=0o755)
    ),
    "a pre-link script": _conda(
        Member("bin/.thing-pre-link.sh", f"#!/bin/sh\ntouch {OUT}/escaped\n".encode(), mode=0o755)
    ),
    "an activation script": _conda(Member("etc/conda/activate.d/thing.sh", b"touch /evil\n")),
    "a file in `conda-meta`": _conda(Member("conda-meta/other-1.0-0.json", b"{}")),
    "its own record in `conda-meta`": _conda(Member(f"conda-meta/{STEM}.json", b"{}")),
    "`conda-meta` as a link": _conda(symlink("conda-meta", OUT)),
    "`conda-meta/history`": _conda(Member("conda-meta/history", b"evil\n")),
    "a name that deletes a file of a lower layer": _conda(Member("share/.wh.other", b"")),
    "a name that empties a folder of lower layers": _conda(Member("share/.wh..wh..opq", b"")),
    "a folder that is named like a mark of a layer": _conda(Member("share/.wh.other/x", b"")),
    "envspec's own record": _conda(Member(".envspec/installed.json", b"{}")),
    "envspec's own folder as a link": _conda(symlink(".envspec", OUT)),
    "a menu entry": _conda(Member("Menu/thing.json", b'{"menu_name": "evil"}')),
    # The archive's form.
    "two packages in one archive": _zip(
        members=[Entry("pkg-other-1.0-0.tar.zst", zstd_stored(tar_of([Member("evil", b"x")])), method=0)]
    ),
    "one tar twice": _zip(
        members=[Entry(f"pkg-{STEM}.tar.zst", zstd_stored(tar_of([Member("evil", b"x")])), method=0)]
    ),
    "tars of another name": _zip(stem="other-1.0-0"),
    "a member that leads out": _zip(members=[Entry("../escaped", b"x", method=0)]),
    "a newer format": _zip(meta=b'{"conda_pkg_format_version": 3}'),
    "a metadata.json that is no JSON": _zip(meta=b"{"),
    "no tar of the package": lambda: zip_of(
        [Entry("metadata.json", b"{}", method=0), Entry(f"info-{STEM}.tar.zst", _INFO, method=0)]
    ),
    "no tar of the metadata": lambda: zip_of(
        [Entry("metadata.json", b"{}", method=0), Entry(f"pkg-{STEM}.tar.zst", _PACKAGE, method=0)]
    ),
    "an `info/` in the tar of the package": _conda(
        Member("info/index.json", json.dumps({**_INDEX, "name": "other"}).encode()), rows=[row_of(HONEST)]
    ),
    "deflated members": lambda: zip_of(
        [
            Entry("metadata.json", b'{"conda_pkg_format_version": 2}'),
            Entry(f"pkg-{STEM}.tar.zst", _PACKAGE),
            Entry(f"info-{STEM}.tar.zst", _INFO),
        ]
    ),
    "a tar that is not packed": lambda: conda_of(tar_of([HONEST]), _INFO),
    "a tar that is cut short": lambda: conda_of(_PACKAGE[:-700], _INFO),
    "data behind a tar": lambda: conda_of(zstd_stored(tar_of([HONEST]) + b"evil" * 128), _INFO),
    "data before the archive": lambda: b"#!/bin/sh\n" + _zip()(),
    "data behind the archive": lambda: _zip()() + b"evil",
    "cut short": lambda: _zip()()[:-50],
    "cut short (.tar.bz2)": lambda: _bz2()()[:-50],
    "data behind the archive (.tar.bz2)": lambda: _bz2()() + b"evil",
    "no archive": lambda: b"this is no archive\n" * 9,
    "no archive (.tar.bz2)": lambda: b"this is no archive\n" * 9,
    "a sparse file of 1 TiB": _conda(sparse("share/sparse"), rows=[row_of(HONEST)]),
    "a bomb: 200 MiB of zeros": _bomb(200 << 20),
    "a bomb: 200 MiB of zeros (.tar.bz2)": _bz2_bomb,
}


def filename_of(name: str) -> str:
    return f"{STEM}.tar.bz2" if name.endswith("(.tar.bz2)") else f"{STEM}.conda"
