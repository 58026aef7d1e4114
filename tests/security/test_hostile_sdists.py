"""Hostile sdists through what reads them: unpacked to be built, and read for their requirements while locking."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

import pytest

from envspec.build.reproducible import unpack
from envspec.errors import EnvspecError
from envspec.resolve.pypi.index.file_metadata import BadSdist, metadata
from envspec.resolve.pypi.metadata import declared
from tests.security.hostile import (
    FILE,
    OUT,
    SYMLINK,
    Canary,
    Entry,
    Make,
    Member,
    Section,
    files_below,
    folder,
    hardlink,
    outcome,
    raw_deflate,
    shown,
    sparse,
    symlink,
    tar_of,
    zip_of,
)

_TOP: Final = "thing-1.0"
_INFO: Final = b"Metadata-Version: 2.2\nName: thing\nVersion: 1.0\nRequires-Dist: other\n"
_HONEST: Final = (Member(f"{_TOP}/PKG-INFO", _INFO), Member(f"{_TOP}/setup.py", b"x = 1\n"))


def _packed(tar: bytes) -> bytes:
    return gzip.compress(tar, mtime=0)


def _tar(*extra: Member, form: int = tarfile.PAX_FORMAT, honest: Iterable[Member] = _HONEST) -> Make:
    return lambda: _packed(tar_of([*honest, *extra], form))


def _zip(*extra: Entry) -> Make:
    return lambda: zip_of([*(Entry(each.name, each.data) for each in _HONEST), *extra])


def _info(data: bytes) -> Make:
    return _tar(honest=(Member(f"{_TOP}/PKG-INFO", data), _HONEST[1]))


def _bomb() -> bytes:
    """300 MiB of zeros in a gzip file of 300 KB."""
    head = tarfile.TarInfo(f"{_TOP}/zeros")
    head.size = 300 << 20
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [deflate.compress(tar_of(_HONEST).rstrip(b"\0").ljust(2048, b"\0")), deflate.compress(head.tobuf())]
    parts += [deflate.compress(bytes(1 << 20)) for _ in range(300)]
    return b"".join([*parts, deflate.compress(bytes(1024)), deflate.flush()])


def _many() -> bytes:
    """More members than any sdist has, each without a byte."""
    one = tarfile.TarInfo(f"{_TOP}/e")
    one.type = tarfile.DIRTYPE
    body = tar_of(_HONEST).rstrip(b"\0").ljust(2048, b"\0")
    return gzip.compress(body + one.tobuf(tarfile.USTAR_FORMAT) * 100_000 + bytes(1024), compresslevel=1, mtime=0)


def _zip_bomb() -> bytes:
    stream = raw_deflate(bytes(300 << 20))
    zeros = Entry(f"{_TOP}/zeros", packed=stream, size=300 << 20, crc=zlib.crc32(bytes(300 << 20)))
    return zip_of([*(Entry(each.name, each.data) for each in _HONEST), zeros])


def _long_header() -> bytes:
    """GNU's long name, of 200 MiB."""
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 200 << 20
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [deflate.compress(head.tobuf(tarfile.GNU_FORMAT))]
    parts += [deflate.compress(b"n" * (1 << 20)) for _ in range(200)]
    return b"".join([*parts, deflate.compress(tar_of(_HONEST)), deflate.flush()])


#: Name -> how it is made. Those that end in `(zip)` are zips, the others `.tar.gz`.
SDISTS: Final[Mapping[str, Make]] = {
    "`../` at the start": _tar(Member("../escaped.py", b"x")),
    "`../` in the middle": _tar(Member(f"{_TOP}/../../escaped.py", b"x")),
    "an absolute path": _tar(Member(f"{OUT}/victim", b"x")),
    "an absolute path in a pax header": _tar(Member(f"{_TOP}/a", b"x", pax=(("path", f"{OUT}/victim"),))),
    "`..` as a GNU long name": _tar(Member("../" * 50 + "escaped.py", b"x"), form=tarfile.GNU_FORMAT),
    "an empty name": _tar(Member("", b"x")),
    "a newline in a name": _tar(Member(f"{_TOP}/a\nb.py", b"x")),
    "an escape sequence in a name": _tar(Member(f"{_TOP}/\x1b[2J", b"x")),
    "a NUL in a pax path": _tar(Member(f"{_TOP}/a", b"x", pax=(("path", f"{_TOP}/a\0b"),))),
    "a name that is no UTF-8": _tar(Member(f"{_TOP}/\udcff", b"x"), form=tarfile.GNU_FORMAT),
    "a name of 300 bytes": _tar(Member(f"{_TOP}/{'n' * 300}", b"x")),
    "1,500 folders deep": _tar(Member(f"{_TOP}/{'d/' * 1500}x", b"x")),
    "a symlink to an absolute path": _tar(symlink(f"{_TOP}/link", f"{OUT}/victim")),
    "a symlink that leads out": _tar(symlink(f"{_TOP}/link", "../../../victim")),
    "a symlink through a link that leads out": _tar(
        symlink(f"{_TOP}/here", "."), symlink(f"{_TOP}/link", "here/../../../victim")
    ),
    "a file through a chain of links": _tar(
        folder(f"{_TOP}/a"),
        folder(f"{_TOP}/a/b"),
        symlink(f"{_TOP}/short", "a/b"),
        symlink(f"{_TOP}/link", "short/../../../../victim"),
        symlink(f"{_TOP}/here", "."),
        symlink(f"{_TOP}/out", "here/here/../../../victim"),
        Member(f"{_TOP}/out", b"escaped\n"),
    ),
    "a file behind a link to a folder outside": _tar(
        symlink(f"{_TOP}/link", OUT), Member(f"{_TOP}/link/escaped", b"x")
    ),
    "a file over a symlink": _tar(symlink(f"{_TOP}/link", "setup.py"), Member(f"{_TOP}/link", b"evil\n")),
    "a hard link to an absolute path": _tar(hardlink(f"{_TOP}/link", f"{OUT}/victim")),
    "a hard link that leads out": _tar(hardlink(f"{_TOP}/link", "../victim")),
    "a hard link to what is not there": _tar(hardlink(f"{_TOP}/link", f"{_TOP}/missing")),
    "a hard link to a folder": _tar(folder(f"{_TOP}/a"), hardlink(f"{_TOP}/link", f"{_TOP}/a")),
    "a hard link to a symlink that leads out through a link": _tar(
        symlink(f"{_TOP}/here", "."),
        symlink(f"{_TOP}/out", "here/here/../../../victim"),
        hardlink(f"{_TOP}/stolen", f"{_TOP}/out"),
    ),
    "a hard link over a symlink": _tar(
        symlink(f"{_TOP}/here", "."),
        symlink(f"{_TOP}/out", "here/here/../../../victim"),
        hardlink(f"{_TOP}/out", f"{_TOP}/setup.py"),
    ),
    "a symlink to itself": _tar(symlink(f"{_TOP}/loop", "loop"), Member(f"{_TOP}/loop/x", b"x")),
    "a symlink inside": _tar(symlink(f"{_TOP}/link", "setup.py")),
    "a character device": _tar(Member(f"{_TOP}/null", kind=tarfile.CHRTYPE)),
    "a block device": _tar(Member(f"{_TOP}/disk", kind=tarfile.BLKTYPE)),
    "a pipe": _tar(Member(f"{_TOP}/pipe", kind=tarfile.FIFOTYPE)),
    "a name that deletes a file of a lower layer": _tar(Member(f"{_TOP}/.wh.other", b"")),
    "setuid and setgid": _tar(Member(f"{_TOP}/run", b"x", mode=0o6755)),
    "a folder without permissions": _tar(
        Member(f"{_TOP}/a", kind=tarfile.DIRTYPE, mode=0), Member(f"{_TOP}/a/b", b"x")
    ),
    "two top folders": _tar(Member("other/setup.py", b"x")),
    "no top folder": _tar(honest=(Member("setup.py", b"x"),)),
    "no top folder, and no project": _tar(honest=(Member("beside.py", b"x"),)),
    "a file beside the top folder": _tar(Member("beside.py", b"x")),
    "a top folder that is a link": _tar(symlink(_TOP, OUT), honest=()),
    "a second top folder that is a link": _tar(symlink("again", _TOP)),
    "one name twice": _tar(Member(f"{_TOP}/setup.py", b"evil = 1\n")),
    "a file over a folder": _tar(folder(f"{_TOP}/a"), Member(f"{_TOP}/a", b"x")),
    "a folder over a file": _tar(folder(f"{_TOP}/setup.py")),
    "a file below a file": _tar(Member(f"{_TOP}/setup.py/x", b"x")),
    "names that differ in case": _tar(Member(f"{_TOP}/Setup.py", b"x")),
    "a bomb: 300 MiB of zeros": _bomb,
    "a bomb: 100,002 members": _many,
    "a bomb: a name of 200 MiB": _long_header,
    "a sparse file of 1 TiB": _tar(sparse(f"{_TOP}/sparse")),
    "a wrong size": _tar(Member(f"{_TOP}/a", b"x", pax=(("size", "99999999999"),))),
    "cut short": lambda: _tar()()[:-60],
    "other bytes behind it": lambda: _tar()() + b"evil" * 100,
    "no archive": lambda: b"this is no archive\n" * 40,
    "empty": lambda: b"",
    "no PKG-INFO": _tar(honest=_HONEST[1:]),
    "PKG-INFO of 40 MiB": _info(_INFO + b"\n" + bytes(40 << 20)),
    "PKG-INFO with binary data": _info(bytes(range(256)) * 9),
    "PKG-INFO of another package": _info(_INFO.replace(b"Name: thing", b"Name: evil")),
    "PKG-INFO of another version": _info(_INFO.replace(b"Version: 1.0", b"Version: 2.0")),
    "PKG-INFO with two names": _info(_INFO + b"Name: evil\n"),
    "PKG-INFO twice": _tar(Member(f"{_TOP}/PKG-INFO", _INFO.replace(b"other", b"evil"))),
    "PKG-INFO twice, spelled otherwise": _tar(Member(f"{_TOP}/./PKG-INFO", _INFO.replace(b"other", b"evil"))),
    "PKG-INFO in two top folders": _tar(Member("other/PKG-INFO", _INFO.replace(b"other", b"evil"))),
    "requires.txt that is a link": _tar(symlink(f"{_TOP}/thing.egg-info/requires.txt", f"{OUT}/victim")),
    "requires.txt above its folder": _tar(Member("../thing.egg-info/requires.txt", b"evil\n")),
    "PKG-INFO that is a link": _tar(honest=(symlink(f"{_TOP}/PKG-INFO", f"{OUT}/victim"), _HONEST[1])),
    "PKG-INFO with a requirement that is code": _info(_INFO + b"Requires-Dist: a; import os\n"),
    "`../` (zip)": _zip(Entry("../escaped.py", b"x")),
    "an absolute path (zip)": _zip(Entry(f"{OUT}/victim", b"x")),
    "backslashes (zip)": _zip(Entry("..\\..\\escaped.py", b"x")),
    "PKG-INFO twice (zip)": _zip(Entry(f"{_TOP}/PKG-INFO", _INFO.replace(b"other", b"evil"))),
    "a symlink (zip)": _zip(Entry(f"{_TOP}/link", f"{OUT}/victim".encode(), SYMLINK)),
    "a device (zip)": _zip(Entry(f"{_TOP}/null", b"", stat.S_IFCHR | 0o666)),
    "encrypted (zip)": _zip(Entry(f"{_TOP}/a", b"x", flags=1)),
    "an unknown method (zip)": _zip(Entry(f"{_TOP}/a", b"x", method=99, packed=b"x")),
    "a CRC of other bytes (zip)": _zip(Entry(f"{_TOP}/a", b"x", crc=7)),
    "a stream that is no deflate (zip)": _zip(Entry(f"{_TOP}/a", b"x", packed=b"\xff\xff\xff")),
    "a file over a folder (zip)": _zip(Entry(f"{_TOP}/a/", mode=FILE), Entry(f"{_TOP}/a", b"x")),
    "a bomb: 300 MiB of zeros (zip)": _zip_bomb,
    "no archive (zip)": lambda: b"this is no archive\n" * 40,
}


def filename_of(name: str) -> str:
    return f"{_TOP}.zip" if name.endswith("(zip)") else f"{_TOP}.tar.gz"


def unpacked(name: str, data: bytes, canary: Canary) -> str:
    """The sdist laid out for a build."""
    archive = canary.work / filename_of(name)
    archive.write_bytes(data)
    try:
        top = unpack(archive, canary.work / "source", "thing 1.0")
    except EnvspecError as fault:
        return outcome(fault, canary)
    assert top in {canary.work / "source", canary.work / "source" / top.name}
    found = files_below(canary.work / "source")
    return "accepted: " + (shown(found, {f"{_TOP}/PKG-INFO", f"{_TOP}/setup.py"}) or "nothing else")


def read(name: str, data: bytes, canary: Canary) -> str:
    """What it says that it needs, while a lock is made."""
    try:
        found = declared(metadata(data, filename_of(name), "thing", "1.0"))
    except BadSdist:
        return "the release is left out, and the lock lists it"
    return f"accepted: needs {', '.join(found) or 'nothing'}"


SECTION: Final = Section("Sdists", SDISTS, ("unpacked for a build", "read for its requirements"))


@pytest.mark.parametrize("case", SDISTS)
def test_an_sdist_is_refused_or_stays_inside(case: str) -> None:
    data = SDISTS[case]()
    with Canary() as canary:
        found = [unpacked(case, data, canary), read(case, data, canary)]
        assert canary.touched() == []
        assert {path.name for path in canary.work.iterdir()} == {filename_of(case), "source"}
    SECTION.compare(case, found)


def test_the_document_has_these_cases_alone() -> None:
    assert SECTION.listed() == list(SDISTS)
