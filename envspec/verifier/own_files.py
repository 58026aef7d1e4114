"""Files of an environment that are no package's: the programs and settings of a venv, and the Python behind it.

`envspec install` lists them in the environment, in RECORD's form; the row of a link has `link=` and its target.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.verifier.programs import BIN
from envspec.verifier.record import BadRecord, RecordEntry, record_entries
from envspec.verifier.scan import PythonEnvironment, walk

#: The list, relative to the environment.
LIST: Final = ".envspec/RECORD"
CONFIG: Final = "pyvenv.cfg"
#: The algorithm of a link's row.
LINK: Final = "link"
#: What Python, a shell or the loader read in a venv; the last is the Python that `envspec install` unpacks.
_OF_VENV: Final = (BIN, "lib", "lib64", ".envspec/python")
#: What venv, virtualenv and uv create in bin/. Python 3.14 adds a link whose name begins with U+1D70B.
_OF_TOOLS: Final = re.compile(
    r"bin/(?:python[\d.]*t?|\U0001d70bthon|(?:de)?activate(?:\.\w+)?|Activate\.ps1|activate_this\.py|pydoc\.bat)"
)
#: Files of no package by their SHA-256: README.txt in the site-packages of CPython 3.6 to 3.14, in standalone builds
#: and in Docker's images; and the programs `pip` and `pip3` of images whose environment has no pip.
_KNOWN: Final = {
    "cba8fece8f62c36306ba27a128f124a257710e41fc619301ee97be93586917cb": "README.txt",
    "dc1639482e9f79a872316174bd63104d21af3fe9beffa256cdec38c018707d06": "pip",
    "a650d3c77569a8e7291534f4fd822615fc62be21e2ca637d29b896af3a6cabfd": "pip3",
}


@dataclass(frozen=True)
class OwnFiles:
    """listed: path -> its row; None without a list. problem: why the list can't be read.

    found: files and links, sorted; bytecode: below `__pycache__`. Both are relative to the environment, without those
    in site-packages. unreadable: folders with the reason. is_conda: everything in bin/ is a package's.
    """

    listed: Mapping[str, RecordEntry] | None
    problem: str
    found: tuple[str, ...]
    bytecode: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]
    is_conda: bool

    def may_be_of_tools(self, path: str, prefix: Path) -> bool:
        """Whether a tool that creates a venv may have written a file of this name, without a list of them."""
        if self.is_conda or self.listed is not None:
            return False
        if path == "lib64":
            return (prefix / path).is_symlink()
        return path == CONFIG or _OF_TOOLS.fullmatch(path) is not None


def read_own_files(environment: PythonEnvironment) -> OwnFiles:
    """The list of an environment, and what there is in its folders."""
    listed, problem = _read_list(environment.prefix / LIST)
    found: list[str] = []
    bytecode: list[str] = []
    unreadable: list[tuple[str, str]] = []
    is_conda = (environment.prefix / "conda-meta").is_dir()
    if is_conda:
        folders = (BIN, *(environment.relative(site.parent) for site in environment.sites))
    elif listed is not None or (environment.prefix / CONFIG).is_file():
        folders = _OF_VENV
    else:
        # A Python that is no environment, as in /usr or in an image, has files of its own everywhere.
        folders = ()
    for folder in folders:
        path = environment.prefix / folder
        if path.is_symlink() or not path.is_dir():
            if os.path.lexists(path):
                found.append(folder)
            continue
        files, compiled, failed = walk(str(path), frozenset(map(str, environment.sites)))
        if is_conda and folder != BIN:
            # Python and programs of conda write other files there while they run.
            files = [file for file in files if file.endswith((".py", ".so"))]
        found += map(environment.inside, files)
        bytecode += map(environment.inside, compiled)
        unreadable += failed
    if os.path.lexists(environment.prefix / CONFIG):
        found.append(CONFIG)
    return OwnFiles(listed, problem, tuple(sorted(found)), tuple(bytecode), tuple(unreadable), is_conda)


def _read_list(path: Path) -> tuple[Mapping[str, RecordEntry] | None, str]:
    try:
        # A link to a device or a pipe has no end.
        if not path.is_file():
            return None, ""
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        return {row.path: row for row in record_entries(text)}, ""
    except (OSError, BadRecord) as error:
        return None, str(error)


def is_known(path: Path) -> bool:
    """Whether a file of no package is CPython's or the image's own."""
    try:
        if path.name not in _KNOWN.values() or path.is_symlink() or not path.is_file():
            return False
        return _KNOWN.get(hashlib.sha256(path.read_bytes()).hexdigest()) == path.name
    except OSError:
        return False


def has_system_packages(prefix: Path) -> bool:
    """Whether pyvenv.cfg lets Python import packages from outside of the environment.

    Source: `site.venv` of CPython: the last line with the key counts.
    """
    value = text = ""
    with contextlib.suppress(OSError):
        if (prefix / CONFIG).is_file():
            text = (prefix / CONFIG).read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        key, separator, rest = line.partition("=")
        if separator and key.strip().lower() == "include-system-site-packages":
            value = rest.strip().lower()
    return value == "true"
