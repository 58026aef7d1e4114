"""Spec, target and facts -> pins: PyPI's packages in `pypi/`, conda's in `conda/`.

A resolver is one module and one line in a table below. A name stands for a class, imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from envspec.resolve.conda.solver import CondaSolver
    from envspec.resolve.pypi.resolver import Resolver

#: Resolvers of PyPI's packages; the first is the default.
RESOLVERS: Final[Mapping[str, str]] = {
    "uv": "envspec.resolve.pypi.resolver:Uv",
    "pip-tools": "envspec.resolve.pypi.pip_tools:PipTools",
}
#: Solvers of conda's packages; the first is the default.
SOLVERS: Final[Mapping[str, str]] = {
    "rattler": "envspec.resolve.conda.solver:Rattler",
    "conda-lock": "envspec.resolve.conda.conda_lock:CondaLock",
}


def resolver(name: str) -> Resolver:
    """Raises KeyError if `name` is not in RESOLVERS."""
    return cast("Resolver", _instance(RESOLVERS[name]))


def solver(name: str) -> CondaSolver:
    """Raises KeyError if `name` is not in SOLVERS."""
    return cast("CondaSolver", _instance(SOLVERS[name]))


def _instance(path: str) -> object:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)()
