"""Spec, target and facts -> pins: PyPI's packages in `pypi/`, conda's in `conda/`.

A resolver is one module and one line in a table below.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from envspec.resolve.conda.solver import CondaSolver
    from envspec.resolve.pypi.resolver import Resolver


class Implementation(NamedTuple):
    """A class, imported on first use, as `module:name`, and the distributions whose versions its results depend on."""

    path: str
    distributions: tuple[str, ...]


#: Resolvers of PyPI's packages; the first is the default.
RESOLVERS: Final[Mapping[str, Implementation]] = {
    "uv": Implementation("envspec.resolve.pypi.resolver:Uv", ("uv",)),
    "pip-tools": Implementation("envspec.resolve.pypi.pip_tools:PipTools", ("pip-tools", "pip")),
}
#: Solvers of conda's packages; the first is the default.
SOLVERS: Final[Mapping[str, Implementation]] = {
    "rattler": Implementation("envspec.resolve.conda.solver:Rattler", ("py-rattler",)),
    "conda-lock": Implementation("envspec.resolve.conda.conda_lock:CondaLock", ("conda-lock",)),
}


def resolver(name: str) -> Resolver:
    """Raises KeyError if `name` is not in RESOLVERS."""
    return cast("Resolver", _instance(RESOLVERS[name].path))


def solver(name: str) -> CondaSolver:
    """Raises KeyError if `name` is not in SOLVERS."""
    return cast("CondaSolver", _instance(SOLVERS[name].path))


def _instance(path: str) -> object:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)()
