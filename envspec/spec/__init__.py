"""spec.toml: what a user asks for.

Names are looked up when they are first used: `lock --check` needs `find_spec` and must not pay for pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envspec.spec.edit import set_as_of
    from envspec.spec.faults import Fault, SpecError
    from envspec.spec.find import find_spec
    from envspec.spec.parse import load_spec, parse_spec
    from envspec.spec.requirements import Requirement, RequirementKind
    from envspec.spec.rows import Facts
    from envspec.spec.schema import json_schema
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
    "Fault",
    "Flavor",
    "Image",
    "Index",
    "Os",
    "Pip",
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
    "Facts": "rows",
    "Fault": "faults",
    "Requirement": "requirements",
    "RequirementKind": "requirements",
    "SpecError": "faults",
    "find_spec": "find",
    "json_schema": "schema",
    "load_spec": "parse",
    "parse_spec": "parse",
    "set_as_of": "edit",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'sections')}"), name)
