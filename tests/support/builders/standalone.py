"""Archives that are laid out as standalone builds of Python are, of the interpreter that runs the tests or made up."""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.builders.zips import gzipped, record_digest, tarred

VERSION: Final = platform.python_version()
SERIES: Final = ".".join(VERSION.split(".")[:2])
#: Of the standard library: what is slow, large or needs what tests do not have, and much that no test imports.
_LEFT_OUT: Final = (
    "__pycache__ site-packages dist-packages test tests idlelib tkinter turtledemo lib2to3 ensurepip asyncio ctypes "
    "concurrent curses dbm distutils email html http logging msilib multiprocessing pydoc_data sqlite3 unittest "
    "urllib wsgiref xml xmlrpc zoneinfo"
)
_LARGEST_BYTES: Final = 60_000
_ENCODINGS: Final = frozenset({"__init__.py", "aliases.py", "ascii.py", "latin_1.py", "utf_8.py"})
_TIME: Final = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Link:
    """A link in an archive. is_hard: target is then a path of the archive."""

    target: str
    is_hard: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A file that may be run."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Device:
    """What no such archive has."""


Content = bytes | Program | Link | Device


def of_running() -> dict[str, Content]:
    """The interpreter that runs the tests: programs, its shared library, and some of the standard library."""
    prefix, library = Path(sys.base_prefix), f"lib/python{SERIES}"
    files: dict[str, Content] = {
        f"python/bin/python{SERIES}": Program((prefix / "bin" / f"python{SERIES}").resolve().read_bytes()),
        "python/bin/python3": Link(f"python{SERIES}"),
        "python/bin/python": Link(f"python{SERIES}"),
    }
    for path in _stdlib(Path(sysconfig.get_path("stdlib"))):
        files[f"python/{library}/{path.relative_to(sysconfig.get_path('stdlib'))}"] = path.read_bytes()
    for path in sorted(prefix.glob(f"lib/libpython{SERIES}*.so*")):
        # `libpython3.11.so` is a link to the library.
        files[f"python/lib/{path.name}"] = Link(str(path.readlink())) if path.is_symlink() else path.read_bytes()
    return {**files, **distribution("pip", "23.0", {"pip/__init__.py": b"__version__ = '23.0'\n"}, "pip")}


def made_up(**more: Content) -> dict[str, Content]:
    """A few files, which nobody could run, and `more`: names with `/` written as `__`."""
    return {
        f"python/bin/python{SERIES}": Program(b"\x7fELF"),
        "python/bin/python3": Link(f"python{SERIES}"),
        f"python/lib/python{SERIES}/os.py": b"name = 'posix'\n",
        f"python/lib/python{SERIES}/__pycache__/os.cpython-{SERIES.replace('.', '')}.pyc": b"by time",
        f"python/lib/python{SERIES}/test/bad.py": b"not (python\n",
        f"python/lib/python{SERIES}/site-packages/README.txt": b"distributions go here\n",
        **distribution("pip", "23.0", {"pip/__init__.py": b"__version__ = '23.0'\n"}, "pip"),
        **{name.replace("__", "/"): value for name, value in more.items()},
    }


def as_published() -> dict[str, Content]:
    """The interpreter that runs the tests, with what each build of python-build-standalone has besides.

    Source: its `cpython-unix/build-cpython.sh`: CPython is installed, then pip; then the first lines of all programs
    are replaced, and the rows of pip's RECORD are those from before.
    """
    library = f"python/lib/python{SERIES}"
    files = {
        **of_running(),
        f"{library}/lib-dynload/.empty": b"",
        f"{library}/site-packages/README.txt": README,
        f"python/bin/python{SERIES}-config": Program(b"#!/bin/sh\n"),
    }
    for name in (f"idle{SERIES}", f"pydoc{SERIES}"):
        files[f"python/bin/{name}"] = Program(f"{_LAUNCHER}import sys\n".encode())
    return files


#: The same in every CPython 3.
README: Final = (
    b"This directory exists so that 3rd party packages can be installed\n"
    b"here.  Read the source for site.py for more details.\n"
)
_LAUNCHER: Final = f"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python{SERIES}" "$0" "$@"
' '''
"""


def distribution(name: str, version: str, files: Mapping[str, bytes], program: str) -> dict[str, Content]:
    """A distribution in its site-packages, with a program and a RECORD of it all: that of pip, as pip writes it."""
    info = f"{name}-{version}.dist-info"
    library = f"python/lib/python{SERIES}/site-packages"
    inside = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/entry_points.txt": f"[console_scripts]\n{program} = {name}:main\n".encode(),
    }
    code = (
        f"# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom {name} import main\n"
        "if __name__ == '__main__':\n"
        "    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n"
        "    sys.exit(main())\n"
    )
    names = [program, "pip3", f"pip{SERIES}"] if program == "pip" else [program]
    listed = {**inside, **{f"../../../bin/{each}": f"#!/install/bin/python3\n{code}".encode() for each in names}}
    rows = [f"{path},{record_digest(data)},{len(data)}" for path, data in listed.items()]
    text = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    found: dict[str, Content] = {f"{library}/{path}": data for path, data in inside.items()}
    found |= {f"python/bin/{each}": Program(f"{_LAUNCHER}{code}".encode()) for each in names}
    return {**found, f"{library}/{info}/RECORD": text}


def write(path: Path, files: Mapping[str, Content]) -> str:
    """Write an archive, members in the order given; its SHA-256."""
    return write_members(path, files.items())


def write_members(path: Path, members: Iterable[tuple[str, Content]]) -> str:
    """As `write`, where a name may come twice."""
    packed = gzipped(tarred(_members(members), tarfile.PAX_FORMAT), 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed)
    return hashlib.sha256(packed).hexdigest()


def _members(members: Iterable[tuple[str, Content]]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name, content in members:
        member = tarfile.TarInfo(name)
        member.mtime, member.uid, member.uname = _TIME, 1234, "builder"
        member.mode = 0o775 if isinstance(content, Program) else 0o664
        if isinstance(content, Link):
            member.type = tarfile.LNKTYPE if content.is_hard else tarfile.SYMTYPE
            member.linkname = content.target
        if isinstance(content, Device):
            member.type = tarfile.CHRTYPE
        yield member, content.data if isinstance(content, Program) else content if isinstance(content, bytes) else b""


def _stdlib(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in _LEFT_OUT.split() and not path.name.startswith("config-"):
                yield from _stdlib(path)
        elif path.suffix == ".so" or (path.suffix == ".py" and _is_wanted(path)):
            yield path


def _is_wanted(path: Path) -> bool:
    if path.parent.name == "encodings":
        return path.name in _ENCODINGS
    return path.stat().st_size < _LARGEST_BYTES or path.name in {"enum.py", "ast.py"}
