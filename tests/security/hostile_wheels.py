"""Hostile wheels: how each is made. All are `thing 1.0`, under its right file name, locked with their true hash."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.security.hostile import FILE, OUT, PROGRAM, SYMLINK, Entry, Make, raw_deflate, zip_of
from tests.support.builders.environments import SERIES
from tests.support.builders.wheels import core_metadata

FILENAME: Final = "thing-1.0-py3-none-any.whl"
INFO: Final = "thing-1.0.dist-info"
MODULE: Final = Entry("thing/__init__.py", b"x = 1\n")
METADATA: Final = core_metadata("thing", "1.0")
WHEEL: Final = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LONG: Final = "n" * 300
_ZIP64_MAGIC: Final = 0xFFFFFFFF
_FOLDER: Final = 0o40755
_EVIL: Final = Entry("evil.py", b"evil = 1\n")
_NESTED: Final = zip_of([Entry("../escaped.py", b"x"), Entry("zeros", bytes(8 << 20))])


def record_of(entries: Iterable[Entry]) -> bytes:
    """RECORD as a builder writes it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for entry in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.data).digest()).rstrip(b"=").decode()
        rows.writerow((entry.raw.decode("utf-8", "replace"), f"sha256={digest}", len(entry.data)))
    rows.writerow((f"{INFO}/RECORD", "", ""))
    return text.getvalue().encode()


def entries_of(
    *extra: Entry,
    metadata: bytes | None = METADATA,
    wheel: bytes | None = WHEEL,
    record: bytes | None = None,
    info: str = INFO,
    unlisted: Iterable[Entry] = (),
) -> list[Entry]:
    """The members of a wheel; None leaves a file out. unlisted: members without a row in RECORD."""
    files = [MODULE, *extra]
    files += [Entry(f"{info}/METADATA", metadata)] if metadata is not None else []
    files += [Entry(f"{info}/WHEEL", wheel)] if wheel is not None else []
    return [*files, *unlisted, Entry(f"{info}/RECORD", record_of(files) if record is None else record)]


def _wheel(*extra: Entry, **others: Any) -> Make:
    return lambda: zip_of(entries_of(*extra, **others))


def _named(name: str | bytes, mode: int = FILE, data: bytes = b"escaped = 1\n") -> Make:
    return _wheel(Entry(name, data, mode))


def _programs(text: str | bytes) -> Make:
    data = text if isinstance(text, bytes) else text.encode()
    return _wheel(Entry(f"{INFO}/entry_points.txt", data))


def _console(line: str) -> Make:
    return _programs(f"[console_scripts]\n{line}\n")


def _with_record(text: bytes | str) -> Make:
    data = text if isinstance(text, bytes) else text.encode()
    return _wheel(record=record_of([MODULE]) + data)


def _first(**changes: object) -> Make:
    """The module's entry with other fields."""
    return lambda: zip_of([Entry(MODULE.name, MODULE.data, **changes), *entries_of()[1:]])  # type: ignore[arg-type]


def _unix_path(name: str, to: str) -> bytes:
    """Info-ZIP's Unicode Path extra field: another name for readers that know it."""
    body = struct.pack("<BI", 1, zlib.crc32(name.encode())) + to.encode()
    return struct.pack("<HH", 0x7075, len(body)) + body


def _zip64(*values: int) -> bytes:
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def _overlapping() -> bytes:
    """A stored member whose data is the next member, header and all."""
    inner = zip_of([Entry("thing/inner.py", b"i = 1\n" * 9, method=0)])
    data = inner[: inner.index(b"PK\1\2")]
    outer = Entry("thing/outer.bin", data, method=0)
    at = len(zip_of([MODULE]).partition(b"PK\1\2")[0]) + 30 + len(outer.raw)
    hidden = Entry("thing/inner.py", b"i = 1\n" * 9, method=0, offset=at)
    parts = [MODULE, outer, hidden, *entries_of()[1:]]
    return zip_of(parts)


def _bomb_by_overlap() -> bytes:
    """Hundreds of members that all unpack one stream of 4 MiB."""
    stream = raw_deflate(bytes(4 << 20))
    zeros = Entry("thing/0", bytes(4 << 20), packed=stream)
    start = len(zip_of([MODULE]).partition(b"PK\1\2")[0])
    again = [
        Entry(f"thing/{n}", b"", packed=b"", crc=zlib.crc32(zeros.data), size=4 << 20, offset=start)
        for n in range(1, 300)
    ]
    return zip_of([MODULE, zeros, *again, *entries_of()[1:]])


def _bomb_of_many() -> bytes:
    """The same ratio, in files that are small each."""
    one = Entry("", bytes(1 << 20), packed=raw_deflate(bytes(1 << 20)), crc=zlib.crc32(bytes(1 << 20)))
    many = [Entry(f"thing/{n}", one.data, packed=one.packed, crc=one.crc) for n in range(100)]
    return zip_of([*entries_of(), *many])


def _many() -> bytes:
    """1,030 rows of the directory for one member, each with a comment of 65,535 bytes."""
    head, signature, row = zip_of([Entry("thing/e", method=0)]).partition(b"PK\1\2")
    # The comment's length is at byte 32 of a row, of which the signature is 4.
    row = row[:28] + b"\xff\xff" + row[30:-22] + bytes(0xFFFF)
    rows = (signature + row) * 1_030
    return b"".join([head, rows, struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1_030, 1_030, len(rows), len(head), 0)])


def _other_descriptor() -> bytes:
    """Sizes behind the data that differ from the directory's."""
    message = struct.pack("<4s3L", b"PK\7\x08", 1, 2, 3)
    following = entries_of()[1:]
    module = Entry(MODULE.name, MODULE.data, flags=8)
    return zip_of([module, Entry(following[0].name, following[0].data, before=message), *following[1:]])


def _special(kind: int, permissions: int = 0o644) -> Make:
    return _named("thing/special", kind | permissions, b"data")


def _by(method: int) -> Make:
    """Packed by another method."""

    def make() -> bytes:
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", method) as archive:
            for entry in entries_of():
                archive.writestr(zipfile.ZipInfo(entry.raw.decode()), entry.data, method)
        return whole.getvalue()

    return make


WHEELS: Final[Mapping[str, Make]] = {
    # Names that lead out.
    "`../` at the start": _named("../escaped.py"),
    "`../` in the middle": _named("thing/../../escaped.py"),
    "many `../` and an absolute path": _wheel(Entry(f"{'../' * 40}{OUT[1:]}/escaped.py", b"x")),
    "an absolute path": _wheel(Entry(f"{OUT}/victim", b"x")),
    "an absolute path with two slashes": _wheel(Entry(f"/{OUT}/victim", b"x")),
    "backslashes and `..`": _named("..\\..\\escaped.py"),
    "a backslash inside": _named("thing\\inner.py"),
    "a drive letter": _named("C:/escaped.py"),
    "a drive letter without a slash": _named("C:escaped.py"),
    "a network share": _named("\\\\host\\share\\escaped.py"),
    "`..` as the whole name": _named(".."),
    "an empty name": _named(""),
    "`.` as the whole name": _named("."),
    # Names with characters that lie.
    "a NUL in a name": _named("thing/a.py\0.txt"),
    "a newline in a name": _named("thing/a\nb.py"),
    "a carriage return in a name": _named("thing/a\rb.py"),
    "an escape sequence in a name": _named("thing/\x1b[2J.py"),
    "a tab in a name": _named("thing/a\tb.py"),
    "DEL in a name": _named("thing/a\x7fb.py"),
    "a C1 control character in a name": _named("thing/a\u009bb.py"),
    "a direction override in a name": _named("thing/a\u202eyp.py"),
    "a line separator in a name": _named("thing/a\u2028b.py"),
    "bytes that are no UTF-8, flagged as UTF-8": _wheel(Entry(b"thing/\xff\xfe.py", b"x", flags=0x800)),
    "bytes beyond ASCII without the flag": _wheel(Entry(b"thing/\x81.py", b"x")),
    "an overlong UTF-8 slash and dots": _wheel(Entry(b"\xc0\xae\xc0\xae\xc0\xaf.py", b"x", flags=0x800)),
    "a name of 300 bytes": _named(f"thing/{_LONG}.py"),
    "a path of 5,000 bytes": _named("thing/" + ("d" * 99 + "/") * 50 + "x.py"),
    "500 folders deep": _named("thing/" + "d/" * 500 + "x.py"),
    "a name that ends in a dot and a blank": _named("thing/a.py. "),
    "a device name of Windows": _named("thing/CON"),
    "a comma and quotes in a name": _named('thing/a",b.py'),
    "an extra field with another path": _wheel(
        Entry("thing/a.py", b"x", extra=_unix_path("thing/a.py", "../../escaped.py"))
    ),
    "another name in the local header": _first(local_name="../escaped.p"),
    "another name of another length in the local header": _first(local_name="../../../../escaped.py"),
    # Names that collide.
    "one name twice": _wheel(Entry("thing/a.py", b"good = 1\n"), Entry("thing/a.py", b"evil = 1\n")),
    "one name in two spellings": _wheel(Entry("thing/a.py", b"x"), Entry("thing//./a.py", b"y")),
    "a file and a folder of one name": _wheel(Entry("thing/a", b"x"), Entry("thing/a/b.py", b"y")),
    "names that differ in case": _wheel(Entry("thing/a.py", b"x"), Entry("thing/A.py", b"y")),
    "names that differ in Unicode's form": _wheel(Entry("thing/\u00e9.py", b"x"), Entry("thing/e\u0301.py", b"y")),
    # Kinds and modes.
    "a symlink to an absolute path": _wheel(Entry("thing/link", f"{OUT}/victim".encode(), SYMLINK)),
    "a symlink that leads out": _named("thing/link", SYMLINK, b"../../../../../../victim"),
    "a symlink inside": _named("thing/link", SYMLINK, b"__init__.py"),
    "a symlink and a file behind it": _wheel(
        Entry("thing/link", OUT.encode(), SYMLINK), Entry("thing/link/escaped.py", b"x")
    ),
    "a device": _special(stat.S_IFCHR),
    "a pipe": _special(stat.S_IFIFO),
    "a socket": _special(stat.S_IFSOCK),
    "setuid and setgid": _special(stat.S_IFREG, 0o6755),
    "writable by everyone": _special(stat.S_IFREG, 0o777),
    "no permissions": _special(stat.S_IFREG, 0),
    "a folder that leads out": _wheel(unlisted=[Entry("../escaped/", mode=_FOLDER)]),
    "a folder with content": _wheel(unlisted=[Entry("thing/inner/", b"content", _FOLDER)]),
    "an empty folder": _wheel(unlisted=[Entry("thing/empty/", mode=_FOLDER)]),
    # The zip's structure.
    "a size that is too small": _first(size=3),
    "a size that is too large": _first(size=60),
    "a size that no stream can have": _first(size=1 << 30),
    "a CRC of other bytes": _first(crc=7),
    "other sizes in the local header": _first(local_size=60),
    "encrypted by the flag": _first(flags=1),
    "encrypted by the local header only": _first(local_flags=0x801),
    "packed by bzip2": _by(zipfile.ZIP_BZIP2),
    "packed by LZMA": _by(zipfile.ZIP_LZMA),
    "packed by an unknown method": _first(method=99, packed=b"packed"),
    "stored, with two sizes": _first(method=0, packed=b"x = 1\nevil = 1\n", size=6),
    "bytes behind the end of a stream": _first(packed=raw_deflate(MODULE.data) + b"more"),
    "a stream that breaks off": _first(packed=raw_deflate(bytes(range(256)) * 9)[:40], size=2304),
    "a stream that is no deflate": _first(packed=b"\xff\xff\xff"),
    "sizes behind the data that lie": _other_descriptor,
    "two members with one stream": lambda: zip_of([*entries_of(), Entry("thing/again.py", MODULE.data, offset=0)]),
    "a member inside of another one's data": _overlapping,
    "a member that no directory names": lambda: zip_of(
        [
            MODULE,
            Entry(**{**vars(entries_of()[1]), "before": zip_of([Entry("evil.py", b"evil")]).partition(b"PK\1\2")[0]}),
            *entries_of()[2:],
        ]
    ),
    "data before the zip": lambda: zip_of(entries_of(), start=b"#!/bin/sh\necho evil\n"),
    "data before the zip, offsets from its end": lambda: b"#!/bin/sh\necho evil\n" + zip_of(entries_of()),
    "data behind the zip": lambda: zip_of(entries_of(), end=b"\0" * 30),
    "data between members and directory": lambda: zip_of(entries_of(), between=b"x" * 100),
    "two zips, one in the other's comment": lambda: zip_of(entries_of(_EVIL), comment=zip_of(entries_of())),
    "two zips, one after the other": lambda: zip_of(entries_of(_EVIL)) + zip_of(entries_of()),
    "a comment of 65,535 bytes": lambda: zip_of(entries_of(), comment=b"PK\5\6" + b"c" * 65531),
    "a count that is too small": lambda: zip_of(entries_of(), count=2),
    "a count that is too large": lambda: zip_of(entries_of(), count=9),
    "a directory at another place": lambda: zip_of(entries_of(), directory_at=7),
    "a directory behind the end": lambda: zip_of(entries_of(), directory_at=1 << 30),
    "a part of several disks": lambda: zip_of(entries_of(), disk=3),
    "a zip64 size": _first(size=_ZIP64_MAGIC, local_size=6, extra=_zip64(6)),
    "a wrong zip64 size": _first(size=_ZIP64_MAGIC, local_size=6, extra=_zip64(1 << 60)),
    "a zip64 size without its field": _first(size=_ZIP64_MAGIC, local_size=6),
    "cut short": lambda: zip_of(entries_of())[:-40],
    "no zip": lambda: b"this is no zip\n" * 9,
    "empty": lambda: b"",
    # Bombs.
    "a bomb: 100 MiB of zeros": lambda: zip_of(entries_of(Entry("thing/zeros", bytes(100 << 20)))),
    "a bomb: 100 files of 1 MiB of zeros": _bomb_of_many,
    "a bomb: 300 members with one stream": _bomb_by_overlap,
    "a zip in the wheel that leads out": _wheel(Entry("thing/inner.whl", _NESTED, method=0)),
    "a directory of 68 MB": _many,
    # `.data` folders.
    "`.data/purelib` that leads out": _named("thing-1.0.data/purelib/../../../../escaped.py"),
    "`.data/scripts` that leads out": _named("thing-1.0.data/scripts/../../escaped", PROGRAM),
    "`.data/data` that leads out": _named("thing-1.0.data/data/../escaped"),
    "`.data/headers` with an absolute path": _wheel(Entry(f"thing-1.0.data/headers/{OUT}/victim", b"x")),
    "`.data` with an unknown scheme": _named("thing-1.0.data/evil/x.py"),
    "a file right in `.data`": _named("thing-1.0.data/x.py"),
    "a scheme that is a file": _named("thing-1.0.data/scripts"),
    "`.data` of another package": _named("other-1.0.data/purelib/other.py"),
    "`.data/data` over the interpreter": _named("thing-1.0.data/data/bin/python", PROGRAM),
    "`.data/scripts` over the interpreter": _named("thing-1.0.data/scripts/python", PROGRAM, b"#!python\nevil\n"),
    "`.data/data` over `pyvenv.cfg`": _named("thing-1.0.data/data/pyvenv.cfg", FILE, b"home = /evil\n"),
    "`.data/data` over the standard library": _named(f"thing-1.0.data/data/lib/python{SERIES}/os.py"),
    "`.data/data` into `conda-meta`": _named("thing-1.0.data/data/conda-meta/thing-1.0-0.json", FILE, b"{}"),
    "`.data/data` over envspec's own record": _named("thing-1.0.data/data/.envspec/installed.json", FILE, b"{}"),
    "`.data/data` behind the link `bin/python3`": _named("thing-1.0.data/data/bin/python3/x.py"),
    "`.data/data` behind the link `lib64`, not in RECORD": _wheel(
        unlisted=[Entry(f"thing-1.0.data/data/lib64/python{SERIES}/site-packages/x.py", b"escaped = 1\n")]
    ),
    "`.data/data` behind the link `lib64`": _named(f"thing-1.0.data/data/lib64/python{SERIES}/site-packages/x.py"),
    "`.data/data` into another package": _named(f"thing-1.0.data/data/lib/python{SERIES}/site-packages/other/x.py"),
    "`.data/purelib` and the root have one path": _wheel(
        Entry("thing/a.py", b"good\n"), Entry("thing-1.0.data/purelib/thing/a.py", b"evil\n")
    ),
    "a script in a folder": _named("thing-1.0.data/scripts/inner/run", PROGRAM, b"#!python\n"),
    "a script with options in its first line": _named(
        "thing-1.0.data/scripts/run", PROGRAM, b"#!python -m evil\nprint(1)\n"
    ),
    "a script for another interpreter": _named("thing-1.0.data/scripts/run", PROGRAM, b"#!/evil/python\nprint(1)\n"),
    # Entry points.
    "an entry point `../../run`": _console("../../run = thing:x"),
    "an entry point with an absolute path": _console(f"{OUT}/run = thing:x"),
    "an entry point `..`": _console(".. = thing:x"),
    "an entry point with a backslash": _console("..\\run = thing:x"),
    "an entry point with a control character": _console("a\x1bb = thing:x"),
    "an entry point `python`": _console("python = thing:x"),
    "an entry point `activate`": _console("activate = thing:x"),
    "an entry point with blanks and shell characters": _console("a b;$(touch evil) = thing:x"),
    "an entry point that calls code": _console("run = thing:x();import os;os.system('true')"),
    "an entry point whose module is code": _console("run = os;import sys:x"),
    "an entry point over two lines": _console("run = thing:x\n  import evil"),
    "an entry point without an object": _console("run = thing"),
    "an entry point with nothing": _console("run ="),
    "an entry point without a name": _console("= thing:x"),
    "one entry point twice": _console("run = thing:x\nrun = evil:x"),
    "entry points that are no UTF-8": _programs(b"[console_scripts]\nrun = thing:\xff\n"),
    "entry points that are no sections": _programs("run = thing:x\n"),
    "an entry point of 300 bytes": _console(f"{_LONG} = thing:x"),
    # RECORD.
    "no RECORD": lambda: zip_of(entries_of()[:-1]),
    "an empty RECORD": _wheel(record=b""),
    "a wrong hash in RECORD": _wheel(record=record_of([MODULE]).replace(b"sha256=", b"sha256=A")),
    "RECORD lists a file that is not there": _with_record("thing/missing.py,,\n"),
    "a file that RECORD does not list": _wheel(unlisted=[Entry("thing/unlisted.py", b"x")]),
    "RECORD lists a file twice": _with_record("thing/__init__.py,sha256=AAAA,1\n"),
    "RECORD with an absolute path": _with_record(f"{OUT}/victim,,\n"),
    "RECORD with `../`": _with_record("../../../../victim,,\n"),
    "RECORD that is no CSV": _with_record('"thing,,\n'),
    "RECORD with rows of five columns": _with_record("a,b,c,d,e\n"),
    "RECORD that is no UTF-8": _with_record(b"\xff,,\n"),
    "RECORD with a NUL": _with_record(b"a\0b,,\n"),
    "RECORD with a size that is no number": _with_record("thing/x.py,sha256=AAAA,many\n"),
    "a signed RECORD": _wheel(unlisted=[Entry(f"{INFO}/RECORD.jws", b"{}")]),
    # What it says that it is.
    "METADATA of another name": _wheel(metadata=core_metadata("other", "1.0")),
    "METADATA of another version": _wheel(metadata=core_metadata("thing", "2.0")),
    "no METADATA": _wheel(metadata=None),
    "an empty METADATA": _wheel(metadata=b""),
    "METADATA that is no UTF-8": _wheel(metadata=METADATA + b"Summary: \xff\xfe\n"),
    "METADATA of 33 MiB": _wheel(metadata=METADATA + b"\n" + bytes(33 << 20)),
    "no `.dist-info` folder": lambda: zip_of([MODULE]),
    "two `.dist-info` folders": _named("other-1.0.dist-info/METADATA", FILE, core_metadata("other", "1.0")),
    "a `.dist-info` of another name": _wheel(info="other-1.0.dist-info"),
    "a `.dist-info` of another version": _wheel(info="thing-2.0.dist-info"),
    "a `.dist-info` in another spelling": _wheel(info="Thing-1.0.dist-info"),
    "no WHEEL": _wheel(wheel=None),
    "a format of version 2": _wheel(wheel=WHEEL.replace(b"Wheel-Version: 1.0", b"Wheel-Version: 2.0")),
    "a format without a version": _wheel(wheel=WHEEL.replace(b"Wheel-Version: 1.0\n", b"")),
    "tags of another system": _wheel(wheel=WHEEL.replace(b"py3-none-any", b"cp27-cp27m-win32")),
    "INSTALLER, REQUESTED and direct_url.json": _wheel(
        Entry(f"{INFO}/INSTALLER", b"evil\n"),
        Entry(f"{INFO}/REQUESTED", b""),
        Entry(f"{INFO}/direct_url.json", b'{"url": "https://evil.example"}'),
    ),
    # What it brings.
    "a `.pth` file with code": _named("thing.pth", FILE, b"import thing\n"),
    "`sitecustomize.py`": _named("sitecustomize.py"),
    "bytecode of another Python": _named("thing/__pycache__/__init__.cpython-27.pyc", FILE, b"bytecode"),
    "bytecode of this Python that is not its module's": _named(
        "thing/__pycache__/__init__.cpython-311.pyc", FILE, b"bytecode"
    ),
    "another package's module": _named("other/__init__.py"),
    "a name that deletes a file of a lower layer": _named("thing/.wh.other"),
    "a name that empties a folder of lower layers": _named("thing/.wh..wh..opq"),
    "a folder that is named like a mark of a layer": _named("thing/.wh.other/x.py"),
    "such a name that RECORD does not list": _wheel(unlisted=[Entry("thing/.wh.other", b"")]),
    "such a name in `.data/data`": _named("thing-1.0.data/data/share/.wh.other"),
}
