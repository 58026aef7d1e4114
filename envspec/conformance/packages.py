"""Packages that a stack may hold or not: what is locked has to import; what is neither locked nor there is not run."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from envspec.conformance.trial import Trial
from envspec.conformance.values import NotRun


def is_to_run(trial: Trial, module: str, *names: str) -> bool:
    """Whether a package is there, or the lock has it, so that a failing import is a fault.

    module: as it is imported. names: under which locks have it besides (normalised): conda's, most often.
    """
    locked = any(trial.order.version(name) for name in (module.replace("_", "-"), *names))
    return locked or importlib.util.find_spec(module) is not None


def why_not(trial: Trial, module: str) -> str:
    """What is to be said of a package that is not to run."""
    return f"{module} is not in the lock" if trial.order.locked else f"{module} is not installed"


def require(trial: Trial, module: str, *names: str) -> None:
    """Go on only with a package that is to run.

    Raises:
        NotRun: it is neither in the lock nor there.
    """
    if not is_to_run(trial, module, *names):
        raise NotRun(why_not(trial, module))


def load(trial: Trial, module: str, *names: str) -> Any:
    """A package, imported in a phase of its own; its version is told.

    Raises:
        NotRun: it is neither in the lock nor there.
        ImportError, OSError: it is in the lock or there, and can't be imported.
    """
    require(trial, module, *names)
    with trial.phase(f"import {module}"):
        loaded = importlib.import_module(module)
    trial.ran(module, str(getattr(loaded, "__version__", "unknown")))
    return loaded


def torch(trial: Trial) -> Any:
    """torch, as `load` does it."""
    return load(trial, "torch", "pytorch")
