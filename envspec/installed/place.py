"""Where an environment keeps its distributions, and what Python looks at before them."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class NoEnvironment(Exception):
    """The folder is no Python environment."""


@dataclass(frozen=True)
class Place:
    """prefix: the environment's folder, without links on its way. sites: its site-packages.

    path: Python's path in order, without its own library, where somebody asks what comes before what.
    """

    prefix: Path
    sites: tuple[Path, ...]
    path: tuple[Path, ...] = ()


def place_of(prefix: Path, path: Sequence[str] = ()) -> Place:
    """The environment in a folder. path: a Python's `sys.path`, of the environment itself.

    Raises:
        NoEnvironment: there is no site-packages in it.
    """
    real = Path(os.path.realpath(prefix))
    found = [*sorted(real.glob("lib/python3*/site-packages")), real / "Lib" / "site-packages"]
    sites = tuple(folder for folder in found if folder.is_dir() and not folder.is_symlink())
    if not sites:
        raise NoEnvironment(f"{prefix} holds no lib/python3.*/site-packages")
    return Place(real, sites, search_path(path))


def search_path(path: Sequence[str]) -> tuple[Path, ...]:
    """`sys.path` as real folders, without this Python's own library: it comes first by design."""
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(folder, "lib-dynload") for folder in library}  # noqa: PTH118 (texts are compared)
    folders = dict.fromkeys(os.path.realpath(each) for each in path)
    return tuple(Path(each) for each in folders if each not in library and Path(each).is_dir())
