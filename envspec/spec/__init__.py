"""spec.toml: the requirements of an environment.

Names are imported on first use: `lock --check` needs `find_spec` without pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envspec.spec.edit import without_preferences as without_preferences
    from envspec.spec.errors import SpecError as SpecError
    from envspec.spec.fact_rows import json_schema as json_schema
    from envspec.spec.identity import find_spec as find_spec
    from envspec.spec.load import load_spec as load_spec
    from envspec.spec.load import parse_spec as parse_spec
    from envspec.spec.positions import set_as_of as set_as_of
    from envspec.spec.positions import set_package_as_of as set_package_as_of
    from envspec.spec.requirements import Requirement as Requirement
    from envspec.spec.requirements import RequirementKind as RequirementKind
    from envspec.spec.sections import Compiler as Compiler
    from envspec.spec.sections import Conda as Conda
    from envspec.spec.sections import Libraries as Libraries
    from envspec.spec.sections import PythonSource as PythonSource
    from envspec.spec.sections import Spec as Spec
    from envspec.spec.sections import System as System
    from envspec.spec.sections import UndatedFiles as UndatedFiles

_NAMES = {
    "edit": "without_preferences",
    "errors": "SpecError",
    "fact_rows": "json_schema",
    "identity": "find_spec",
    "load": "load_spec parse_spec",
    "positions": "set_as_of set_package_as_of",
    "requirements": "Requirement RequirementKind",
    "sections": "Compiler Conda Libraries PythonSource Spec System UndatedFiles",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
