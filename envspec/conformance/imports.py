"""Packages that a stack may hold or not: what is locked has to import; what is neither locked nor there is not run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from envspec.conformance.events import Trial
from envspec.conformance.results import NotRun

#: Module -> names that locks have for it (normalised) besides its own: conda's, most often.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "torch": ("pytorch",),
    "torch_geometric": ("pytorch-geometric", "pyg"),
}


def is_to_run(trial: Trial, module: str, *names: str) -> bool:
    """Whether a package is there, or the lock has it, so that a failing import is a fault.

    module: as it is imported. names: under which locks have it besides (normalised).
    """
    known = (module.replace("_", "-"), *_NAMES.get(module, ()), *names)
    locked = any(trial.order.version(name) for name in known)
    return locked or importlib.util.find_spec(module) is not None


def why_not(trial: Trial, module: str) -> str:
    """What is to be said of a package that is not to run."""
    return f"{module} is not in the lock" if trial.order.locked else f"{module} is not installed"


def load(trial: Trial, module: str, *names: str) -> Any:
    """A package, or a part of one, imported in a phase of its own, once; a package's version is told.

    Raises:
        NotRun: it is neither in the lock nor there.
        ImportError, OSError: it is in the lock or there, and can't be imported.
    """
    if module not in trial.loaded:
        if not is_to_run(trial, module, *names):
            raise NotRun(why_not(trial, module))
        with trial.phase(f"import {module}"):
            trial.loaded[module] = importlib.import_module(module)
        if "." not in module:
            trial.ran(module, str(getattr(trial.loaded[module], "__version__", "unknown")))
    return trial.loaded[module]


def torch(trial: Trial) -> Any:
    """torch, as `load` does it."""
    return load(trial, "torch")
