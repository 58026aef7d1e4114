"""spec.toml: the requirements of an environment.

Names are looked up when they are first used: `lock --check` needs `find_spec` and must not pay for pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envspec.spec.errors import Problem, SpecError
    from envspec.spec.fact_rows import Facts, json_schema
    from envspec.spec.identity import find_spec
    from envspec.spec.load import load_spec, parse_spec
    from envspec.spec.positions import set_as_of
    from envspec.spec.requirements import Requirement, RequirementKind
    from envspec.spec.sections import (
        Check,
        Compiler,
        Conda,
        CondaPlatform,
        Conformance,
        Cuda,
        Env,
        Flavor,
        Image,
        Index,
        Os,
        Pip,
        PythonSource,
        Registry,
        Services,
        Spec,
        System,
        Undated,
    )

__all__ = [
    "Check",
    "Compiler",
    "Conda",
    "CondaPlatform",
    "Conformance",
    "Cuda",
    "Env",
    "Facts",
    "Flavor",
    "Image",
    "Index",
    "Os",
    "Pip",
    "Problem",
    "PythonSource",
    "Registry",
    "Requirement",
    "RequirementKind",
    "Services",
    "Spec",
    "SpecError",
    "System",
    "Undated",
    "find_spec",
    "json_schema",
    "load_spec",
    "parse_spec",
    "set_as_of",
]

_HOMES = {
    "Facts": "fact_rows",
    "Problem": "errors",
    "Requirement": "requirements",
    "RequirementKind": "requirements",
    "SpecError": "errors",
    "find_spec": "identity",
    "json_schema": "fact_rows",
    "load_spec": "load",
    "parse_spec": "load",
    "set_as_of": "positions",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'sections')}"), name)
