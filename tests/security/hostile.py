"""Hostile archives: zips and tars with any field set, a tree that nothing may touch, and the table of outcomes."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.errors import EnvspecError

FILE: Final = 0o100644
PROGRAM: Final = 0o100755
SYMLINK: Final = 0o120777
_EPOCH: Final = (0, 0x21)
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_CENTRAL: Final = struct.Struct("<4s4B4H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_ROOT: Final = Path(tempfile.gettempdir(), f"envspec-canary-{os.getpid()}")
#: A folder that no archive may touch.
OUT: Final = f"{_ROOT}/outside"
#: What makes the bytes of a hostile archive.
Make = Callable[[], bytes]
#: Set to 1, the tests write the tables of the page instead of comparing them.
WRITE: Final = "ENVSPEC_WRITE_SECURITY"
PAGE: Final = Path(__file__).parents[2] / "docs" / "measurements" / "hostile-archives.md"


@dataclass(frozen=True)
class Entry:
    """A member of a zip. None: what is true of `data`.

    name: in bytes, or written as UTF-8 with the flag that says so. local_*: what the header before the data says
    instead. packed: the bytes in the archive. before: bytes in front of the local header that no directory names.
    offset: where the directory says that the local header is.
    """

    name: str | bytes
    data: bytes = b""
    mode: int = FILE
    method: int = 8
    flags: int = 0
    extra: bytes = b""
    crc: int | None = None
    size: int | None = None
    packed: bytes | None = None
    local_name: str | bytes | None = None
    local_size: int | None = None
    local_extra: bytes = b""
    local_flags: int | None = None
    before: bytes = b""
    offset: int | None = None

    @property
    def raw(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode()


def zip_of(
    entries: Sequence[Entry],
    *,
    start: bytes = b"",
    between: bytes = b"",
    comment: bytes = b"",
    end: bytes = b"",
    count: int | None = None,
    directory_at: int | None = None,
    disk: int = 0,
) -> bytes:
    """A zip. start, between, end: bytes before the first member, before the directory, and after its end record."""
    body = io.BytesIO()
    body.write(start)
    directory = []
    for entry in entries:
        body.write(entry.before)
        flags = entry.flags | (0 if isinstance(entry.name, bytes) else 0x800)
        packed = entry.packed if entry.packed is not None else _packed(entry)
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        size = len(entry.data) if entry.size is None else entry.size
        local = entry.raw if entry.local_name is None else entry.local_name
        local = local.encode() if isinstance(local, str) else local
        local_size = size if entry.local_size is None else entry.local_size
        at = body.tell() if entry.offset is None else entry.offset
        local_flags = flags if entry.local_flags is None else entry.local_flags
        head = (
            20,
            local_flags,
            entry.method,
            *_EPOCH,
            crc,
            len(packed),
            local_size,
            len(local),
            len(entry.local_extra),
        )
        body.write(_LOCAL.pack(b"PK\3\4", *head) + local + entry.local_extra + packed)
        fields = (20, 3, 20, 0, flags, entry.method, *_EPOCH, crc, len(packed), size, len(entry.raw), len(entry.extra))
        row = _CENTRAL.pack(b"PK\1\2", *fields, 0, 0, 0, entry.mode << 16, at)
        directory.append(row + entry.raw + entry.extra)
    body.write(between)
    place = body.tell()
    rows = b"".join(directory)
    number = len(entries) if count is None else count
    last = (disk, disk, number, number, len(rows), place if directory_at is None else directory_at, len(comment))
    return body.getvalue() + rows + _END.pack(b"PK\5\6", *last) + comment + end


def _packed(entry: Entry) -> bytes:
    return raw_deflate(entry.data) if entry.method == 8 else entry.data


def raw_deflate(data: bytes) -> bytes:
    """A stream as zips hold it."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush()


@dataclass(frozen=True)
class Member:
    """A member of a tar. kind: tarfile's type. pax: headers of its own, which win over the rest."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""
    mode: int = 0o644
    pax: tuple[tuple[str, str], ...] = ()


def folder(name: str) -> Member:
    return Member(name, kind=tarfile.DIRTYPE, mode=0o755)


def symlink(name: str, target: str) -> Member:
    return Member(name, kind=tarfile.SYMTYPE, target=target)


def sparse(name: str) -> Member:
    """A file of one byte that says that it is 1 TiB."""
    size = str(1 << 40)
    fields = {"major": "0", "minor": "1", "realsize": size, "size": size, "map": "0,1"}
    return Member(name, b"x", pax=tuple((f"GNU.sparse.{key}", value) for key, value in fields.items()))


def hardlink(name: str, target: str) -> Member:
    return Member(name, kind=tarfile.LNKTYPE, target=target)


def tar_of(members: Iterable[Member], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of these members, in this order."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for each in members:
            info = tarfile.TarInfo(each.name)
            info.type, info.linkname, info.mode, info.size = each.kind, each.target, each.mode, len(each.data)
            info.pax_headers = dict(each.pax)
            if each.kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
                info.devmajor, info.devminor = 1, 3
            tar.addfile(info, io.BytesIO(each.data) if each.data else None)
    return whole.getvalue()


class Canary:
    """Folders around the one that may be written, whose files, modes, times and links have to stay as they are.

    work: the only folder that may change. outside: files to aim at, at `OUT`.
    """

    def __init__(self) -> None:
        self.root = root = _ROOT
        self.work = root / "home" / "user" / "work"
        self.outside = Path(OUT)
        self.work.mkdir(parents=True)
        self.outside.mkdir()
        for path in (self.outside, root, root / "home", root / "home" / "user"):
            (path / "victim").write_bytes(b"precious\n")
            (path / "victim").chmod(0o600)
        (self.outside / "folder").mkdir()
        (self.outside / "folder" / "kept").write_bytes(b"kept\n")
        self._before = self._seen()

    def __enter__(self) -> Canary:
        return self

    def __exit__(self, *_: object) -> None:
        for path in (self.root, *self.root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(self.root)

    def clear(self) -> None:
        """Empty `work` for the next consumer."""
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def touched(self) -> list[str]:
        """What was created, changed or deleted outside of `work`."""
        after = self._seen()
        paths = sorted(self._before.keys() | after.keys())
        return [path for path in paths if self._before.get(path) != after.get(path)]

    def _seen(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for folder_path, names, files in os.walk(self.root):
            if Path(folder_path) == self.work.parent:
                names.remove(self.work.name)
            for name in (*names, *files):
                path = Path(folder_path, name)
                status = path.lstat()
                content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
                link = str(path.readlink()) if path.is_symlink() else ""
                found[str(path.relative_to(self.root))] = (status.st_mode, status.st_mtime_ns, content, link)
        return found


def files_below(root: Path) -> dict[str, str]:
    """Files and links below a folder, by path: what is unusual about each, `*` for one that runs.

    Paths are shown without control characters.
    """
    found = {}
    for folder_path, names, files in os.walk(os.fsencode(root)):
        for name in (*names, *files):
            path = Path(os.fsdecode(folder_path), os.fsdecode(name))
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            found[str(path.relative_to(root))] = mark(mode & 0o7777, str(path.readlink()) if stat.S_ISLNK(mode) else "")
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                raise AssertionError(f"{path} is no file, folder or link")
    return found


def mark(mode: int, target: str = "") -> str:
    """How a table shows the mode of a file, or where a link leads."""
    if target:
        return f" -> {target}"
    return {0o755: "*", 0o644: ""}.get(mode, f" ({mode:o})")


def shown(found: dict[str, str], usual: Iterable[str], limit: int = 4) -> str:
    """The files that are there beside the usual ones, and the usual ones that are not."""
    listed = sorted(f"{_plain(path)}{what}" for path, what in found.items() if path not in set(usual))
    listed += [f"no {path}" for path in sorted(set(usual) - found.keys())]
    return ", ".join(listed) if len(listed) <= limit else f"{len(listed)} files"


def _plain(text: str, limit: int = 60) -> str:
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    text = "".join(
        each if each.isprintable() and each.isascii() else each.encode("unicode_escape").decode() for each in text
    )
    return text if len(text) <= limit else f"{text[: limit // 2]}... {text[-limit // 4 :]}"


def outcome(fault: EnvspecError, canary: Canary) -> str:
    """A refusal as the table has it: without what differs between machines and versions of tools."""
    assert fault.hint and fault.exit_code != 1, fault
    text = fault.message.replace(str(canary.root), "").removeprefix("thing 1.0: ")
    text = re.sub(r"(?:thing-1\.0|python-[^ ]+)(-py3-none-any|-0)?\.(whl|conda|zip|tar\.gz|tar\.bz2):? ?", "", text)
    text = re.sub(r"\d{6,}", "N", text)
    text = re.sub(r"python3\.\d+", "python3.X", re.sub(r"\bsite-packages\b", "site", text))
    # What follows in brackets, or behind these words, is another library's text.
    text = re.sub(
        r" \((?=[^()]*(?:codec|Err|line|Index|file|Expecting|Attempted|object|zip|size|unable|invalid)).*\)?$",
        "",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"(can't be unpacked): .*", r"\1", text) if "bomb" not in text else text
    return f"refused: {_plain(' '.join(text.split()), 150)}"


class Section:
    """A table of `PAGE`: what the tests expect, and what they write there with `WRITE` set to 1."""

    def __init__(self, heading: str, cases: Iterable[str], consumers: Sequence[str]) -> None:
        self.heading, self.consumers, self.cases = heading, tuple(consumers), tuple(cases)
        self._found: dict[str, tuple[str, ...]] = {}

    def compare(self, case: str, found: Sequence[str]) -> None:
        """The case has the outcomes that its row says, or is written there."""
        if os.environ.get(WRITE) == "1":
            self._found[case] = tuple(found)
            if len(self._found) == len(self.cases):
                self._write()
            return
        assert _row([case, *found]) == self._row_of(case), f"reviewed? then run these tests with {WRITE}=1"

    def listed(self) -> list[str]:
        """The cases that the document has."""
        return [line.split(" | ")[0].removeprefix("| ") for line in self._text().splitlines() if line.startswith("| ")][
            2:
        ]

    def _row_of(self, case: str) -> str:
        return next((line for line in self._text().splitlines() if line.startswith(_row([case]))), "no such row")

    def _text(self) -> str:
        """The section."""
        return PAGE.read_text(encoding="utf-8").partition(f"## {self.heading}\n")[2].partition("\n#")[0]

    def _write(self) -> None:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"## {self.heading}\n")
        after = rest.partition("\n#")
        rows = [_row([case, *self._found[case]]) for case in self.cases]
        lines = [
            f"## {self.heading}",
            "",
            _row(["case", *self.consumers]),
            _row(["---"] * (len(self.consumers) + 1)),
            *rows,
        ]
        whole = before.rstrip() + "\n\n" + "\n".join(lines) + "\n" + "".join(after[1:])
        PAGE.write_text(whole, encoding="utf-8")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
