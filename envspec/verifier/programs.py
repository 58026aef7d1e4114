"""Programs that installers generate from entry points: recognised by their text, whichever installer wrote them.

Sources: "Entry points specification" (PyPA); the templates of pip (distlib), uv and installer; the first lines of their
programs, of uv's relocatable environments and of python-build-standalone.
"""

from __future__ import annotations

import configparser
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.verifier.scan import Distribution, PythonEnvironment

#: Where programs are, on all systems but Windows.
BIN: Final = "bin"
#: A generated program has 500 bytes, and the path of its interpreter.
_MAX_BYTES: Final = 16_384
_SECTIONS: Final = ("console_scripts", "gui_scripts")
_OBJECT: Final = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?\s*")
# pip renames the programs in its own wheel after the environment's Python.
_PIP: Final = re.compile(r"pip[\d.]*")
_PYTHON: Final = re.compile(r"python[\d.]*t?")
#: What a shell takes as it is, in quotes and without.
_QUOTED: Final = r"[^'\"$`\\\n]+"
_PLAIN: Final = r"[\w@%+=:,./-]+"
#: `'''exec' PATH "$0" "$@"` is a command for sh and the start of a string for Python.
_LAUNCHERS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"#!(?P<path>/{_PLAIN})\n",
        rf"#!/bin/sh\n'''exec' (?P<path>/{_PLAIN}) \"\$0\" \"\$@\"\n' '''\n",
        rf"#!/bin/sh\n'''exec' (?P<quote>['\"])(?P<path>/{_QUOTED})(?P=quote) \"\$0\" \"\$@\"\n' '''\n",
        r"#!/bin/sh\n'''exec' \"\$\(dirname -- \"\$\(realpath -- \"\$0\"\)\"\)"
        r"(?P<end>\"/')?(?(end)|/)(?P<path>[\w.]+)(?(end)'|\") \"\$0\" \"\$@\"\n' '''\n",
    )
)
#: Other declarations of an encoding could turn a comment into code.
_ENCODING: Final = "# -*- coding: utf-8 -*-\n"
_UV: Final = """\
import sys
from {module} import {name}
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({attribute}())
"""
#: installer, pip 20 to 24 by distlib, uv before 0.2.
_DISTLIB: Final = r"""import re
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\.pyw|\.exe)?$", "", sys.argv[0])
    sys.exit({attribute}())
"""
#: pip before 20.
_OLD_PIP: Final = r"""import re
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\.pyw?|\.exe)?$", "", sys.argv[0])
    sys.exit({attribute}())
"""
#: pip from 25 on.
_PIP_25: Final = """\
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit({attribute}())
"""
#: After the first line and the encoding, with quotes of one kind.
_TEMPLATES: Final = (_UV, _DISTLIB, _OLD_PIP, _PIP_25)


@dataclass(frozen=True)
class EntryPoint:
    """A program that a distribution declares. attribute: the object in `module` that the program calls."""

    package: str
    module: str
    attribute: str


def entry_points(one: Distribution) -> dict[str, EntryPoint]:
    """Path of each program of a distribution -> what it calls. Empty if its entry points can't be read."""
    if one.site.parent.name == "Lib":
        # Windows has executables.
        return {}
    file = one.site / one.folder / "entry_points.txt"
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        if not file.is_file():
            return {}
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    found: dict[str, EntryPoint] = {}
    for section in _SECTIONS:
        if not parser.has_section(section):
            continue
        for name, value in parser.items(section):
            called = _OBJECT.fullmatch(value.strip())
            if called and "/" not in name:
                found[f"{BIN}/{name}"] = EntryPoint(one.name, called[1], called[2])
    if one.name == "pip" and f"{BIN}/pip" in found:
        return _renamed(one, found[f"{BIN}/pip"])
    return found


def _renamed(pip: Distribution, point: EntryPoint) -> dict[str, EntryPoint]:
    """pip's programs, by the names in its RECORD."""
    names = {entry.path.rpartition("/")[2] for entry in pip.entries or () if entry.path.startswith("../")}
    return {f"{BIN}/{name}": point for name in names if _PIP.fullmatch(name)}


def programs(wheels: Iterable[Distribution]) -> dict[str, list[EntryPoint]]:
    """Path of each program of an environment -> what it may call: two distributions may declare one name."""
    found: dict[str, list[EntryPoint]] = {}
    for one in wheels:
        for path, point in entry_points(one).items():
            found.setdefault(path, []).append(point)
    return found


def read_program(path: Path) -> str | None:
    """The text of a program; None for what no installer generates: a link, something large, other encodings.

    Raises:
        OSError: it is missing, or can't be read.
    """
    state = path.lstat()
    if not stat.S_ISREG(state.st_mode) or state.st_size > _MAX_BYTES:
        return None
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None


def interpreter_of(text: str, points: Iterable[EntryPoint]) -> str | None:
    """The interpreter of a program; None unless it does nothing but call one of its entry points.

    Absolute, or the name of a program in the same folder.
    """
    for launcher in _LAUNCHERS:
        start = launcher.match(text)
        if start and text[start.end() :].removeprefix(_ENCODING).replace("'", '"') in _generated(points):
            return start["path"]
    return None


def _generated(points: Iterable[EntryPoint]) -> Iterator[str]:
    for point in points:
        name = point.attribute.partition(".")[0]
        for template in _TEMPLATES:
            yield template.format(module=point.module, name=name, attribute=point.attribute)


def is_own(interpreter: str, environment: PythonEnvironment) -> bool:
    """Whether an interpreter is the environment's, by any path that leads to its folder."""
    folder, name = os.path.split(interpreter)
    if not _PYTHON.fullmatch(name):
        return False
    if not folder:
        return True
    try:
        return Path(folder).samefile(environment.prefix / BIN)
    except OSError:
        return False
