"""A virtual environment of a Python that the image has already: the system's own, or one that the base says it holds.

Source: `venv` of the standard library, as Python 3.10 to 3.13 make it on Linux; `activate` and its like are left out,
since an image's PATH begins with the environment's programs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from envspec.image.content import PREFIX, Entry, InMemory, Kind
from envspec.image.folders import Folders
from envspec.image.owned import Owned
from envspec.model import Python

_FORM: Final = "venv 1"


@dataclass(frozen=True, slots=True)
class Venv:
    """python: the one that it is of. home: the folder of its programs in the image, absolute."""

    python: Python
    home: str = "/usr/bin"

    @property
    def key(self) -> str:
        """See `Source.key`."""
        told = [_FORM, PREFIX, self.python.version, self.home]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def title(self) -> str:
        """See `Source.title`."""
        return f"environment of {self.home}/python{self.python.series}"

    def owned(self) -> tuple[Owned, ...]:
        """Its files and links."""
        paths = [entry.path for entry in self.entries() if entry.kind is not Kind.FOLDER]
        return tuple(Owned(path, self.title, self.key) for path in paths)

    def entries(self) -> Iterator[Entry]:
        """See `Source.entries`."""
        series = self.python.series
        folders = Folders()
        yield from folders.to(f"{PREFIX}/bin")
        yield Entry(f"{PREFIX}/bin/python", 0o777, Kind.SYMLINK, target=f"{self.home}/python{series}")
        for name in ("python3", f"python{series}"):
            yield Entry(f"{PREFIX}/bin/{name}", 0o777, Kind.SYMLINK, target="python")
        yield from folders.to(f"{PREFIX}/include/site/python{series}")
        yield from folders.to(f"{PREFIX}/lib/python{series}/site-packages")
        yield Entry(f"{PREFIX}/lib64", 0o777, Kind.SYMLINK, target="lib")
        yield Entry(f"{PREFIX}/pyvenv.cfg", 0o644, data=InMemory(self._config().encode()))

    def _config(self) -> str:
        return (
            f"home = {self.home}\n"
            "include-system-site-packages = false\n"
            f"version = {self.python.version}\n"
            f"executable = {self.home}/python{self.python.series}\n"
        )


def home_of(python: Python, environ: Mapping[str, str]) -> str:
    """The folder of the interpreter in the image. environ: the base image's own variables.

    Debian and Ubuntu have theirs in `/usr/bin`; Docker's `python` images, which say their version in PYTHON_VERSION,
    in `/usr/local/bin`.
    """
    return "/usr/local/bin" if python.source == "base" and "PYTHON_VERSION" in environ else "/usr/bin"
