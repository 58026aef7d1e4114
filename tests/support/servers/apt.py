"""A Debian archive of small packages, served on loopback: what is in it decides what an installation does."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate

from tests.support.servers.faults import Answer
from tests.support.servers.threaded import Exchange, Threaded

_AR_MAGIC = b"!<arch>\n"


@dataclass(frozen=True, slots=True)
class Deb:
    """A package. files: path -> content. scripts: `postinst` and the like."""

    name: str
    version: str
    files: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    depends: str = ""

    @property
    def control(self) -> str:
        depends = f"Depends: {self.depends}\n" if self.depends else ""
        return (
            f"Package: {self.name}\nVersion: {self.version}\nArchitecture: amd64\n{depends}"
            "Maintainer: Nobody <nobody@example.org>\nDescription: for a test\n"
        )

    def packed(self) -> bytes:
        """The package as deb(5) lays it."""
        control = {"./control": (self.control, 0o644)}
        control |= {f"./{name}": (text, 0o755) for name, text in self.scripts.items()}
        data = {f"./{path}": (text, 0o755 if "/bin/" in path else 0o644) for path, text in self.files.items()}
        members = {"debian-binary": b"2.0\n", "control.tar.gz": _tar(control), "data.tar.gz": _tar(data)}
        packed = _AR_MAGIC
        for name, content in members.items():
            packed += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
            packed += content + b"\n" * (len(content) % 2)
        return packed


def _tar(files: Mapping[str, tuple[str, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        folders = {
            f"./{'/'.join(parts[1:end])}"
            for path in files
            for parts in [path.split("/")]
            for end in range(2, len(parts))
        }
        for folder in sorted(folders):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for path, (text, mode) in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.mtime = len(text.encode()), mode, 1_700_000_000
            tar.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


class AptArchive(Threaded):
    """An archive on a free loopback port, unsigned: its line in sources.list needs `[trusted=yes]`.

    `publish` replaces what is served. `keep` keeps it as a snapshot. snapshots: an address that has, below the name of
    the archive and a time, the newest one up to that time. asked: the paths that were requested.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.files: dict[str, bytes] = {}
        self.url = f"http://{self.host}/debian"
        self.snapshots = f"http://{self.host}/archive"
        self._kept: dict[str, dict[str, bytes]] = {}

    def handle(self, request: Exchange) -> None:
        self.asked.append(request.path)
        # To a proxy the whole address is sent.
        _, is_kept, path = request.path.partition("/archive/debian/")
        if is_kept:
            time, _, path = path.partition("/")
            files = self._kept.get(max((kept for kept in self._kept if kept <= time), default=""), {})
        else:
            files, path = self.files, request.path.partition("/debian/")[2]
        content = files.get(path)
        request.answer(Answer(404) if content is None else Answer(200, content))

    def keep(self, time: str) -> None:
        """What is served now is the state at that time, such as `20261101T000000Z`."""
        self._kept[time] = self.files

    def publish(self, *debs: Deb, release: str = "Origin: Debian\n") -> None:
        """Suite `bookworm`, component `main`, below `debian`. release: the first lines of its Release file."""
        packages, files = "", {}
        for deb in debs:
            content = deb.packed()
            path = f"pool/{deb.name}_{deb.version}_amd64.deb"
            files[path] = content
            packages += f"{deb.control}Filename: {path}\nSize: {len(content)}\n"
            packages += f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
        listed = packages.encode()
        files["dists/bookworm/main/binary-amd64/Packages"] = listed
        fields = {
            "Suite": "bookworm",
            "Codename": "bookworm",
            "Date": formatdate(usegmt=True),
            "Architectures": "amd64",
            "Components": "main",
            "SHA256": f"\n {hashlib.sha256(listed).hexdigest()} {len(listed)} main/binary-amd64/Packages",
        }
        lines = "".join(f"{key}: {value}\n" for key, value in fields.items())
        files["dists/bookworm/Release"] = f"{release}{lines}".encode()
        self.files = files
