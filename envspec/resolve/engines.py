"""The tables of engines, one for each half: a new one is one file and one line.

A name stands for the class in a module, which is imported when it is asked for: nobody uses more than one of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from envspec.resolve.conda.solver import CondaEngine
    from envspec.resolve.pypi.resolver import Engine

#: What resolves PyPI's packages; the first is taken where none is named.
ENGINES: Final[Mapping[str, str]] = {
    "uv": "envspec.resolve.pypi.uv:Uv",
    "pip-tools": "envspec.resolve.pypi.pip_tools:PipTools",
}
#: What solves for conda's packages, likewise.
CONDA_ENGINES: Final[Mapping[str, str]] = {
    "rattler": "envspec.resolve.conda.rattler:Rattler",
    "conda-lock": "envspec.resolve.conda.conda_lock:CondaLock",
}


def engine(name: str) -> Engine:
    """A PyPI engine. KeyError: there is none of that name."""
    return cast("Engine", _made(ENGINES[name]))


def conda_engine(name: str) -> CondaEngine:
    """A conda engine. KeyError: there is none of that name."""
    return cast("CondaEngine", _made(CONDA_ENGINES[name]))


def _made(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)()
