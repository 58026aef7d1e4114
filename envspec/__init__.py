"""Reproducible GPU environments from one TOML spec. The public names below are imported on first use."""

from __future__ import annotations

# Imported by nothing else here: an interrupt before `__main__` runs would print a traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Final

    from envspec.api import (
        add,
        build_image,
        check,
        init,
        install,
        lock,
        read_lock,
        remove,
        run,
        test,
    )
    from envspec.context import Connectivity, Context, Reporter, Step
    from envspec.errors import (
        EnvspecError,
        NetworkError,
        NoSolution,
        StaleLock,
        UnfitMachine,
        UsageError,
    )
    from envspec.models import Lock, Platform
    from envspec.operations.environment import verify
    from envspec.operations.export import export
    from envspec.operations.inspect import diff, explain, fit
    from envspec.spec.errors import SpecError

    __version__: str

__all__ = [
    "Connectivity",
    "Context",
    "EnvspecError",
    "Lock",
    "NetworkError",
    "NoSolution",
    "Platform",
    "Reporter",
    "SpecError",
    "StaleLock",
    "Step",
    "UnfitMachine",
    "UsageError",
    "add",
    "build_image",
    "check",
    "diff",
    "explain",
    "export",
    "fit",
    "init",
    "install",
    "lock",
    "read_lock",
    "remove",
    "run",
    "test",
    "verify",
]
#: Where the public names are that are not in `envspec.api`.
_MODULES: Final = {
    "envspec.context": ("Connectivity", "Context", "Reporter", "Step"),
    "envspec.errors": ("EnvspecError", "NetworkError", "NoSolution", "StaleLock", "UnfitMachine", "UsageError"),
    "envspec.models": ("Lock", "Platform"),
    "envspec.operations.environment": ("verify",),
    "envspec.operations.export": ("export",),
    "envspec.operations.inspect": ("diff", "explain", "fit"),
    "envspec.spec.errors": ("SpecError",),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "__version__":
        return import_module("envspec.version").VERSION
    if name not in __all__:
        raise AttributeError(f"module 'envspec' has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "envspec.api")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
