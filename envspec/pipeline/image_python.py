"""The layers of Python in an image, by where the lock has it from; and the Python that compiles."""

from __future__ import annotations

from collections.abc import Mapping

from envspec.errors import UsageError
from envspec.image.assembling import Below, Foundation
from envspec.image.pyc import Pyc
from envspec.model import Platform, Python
from envspec.pipeline.image_work import ImageWork


async def below(foundation: Foundation, work: ImageWork) -> Below:
    """Python's layers, and those of conda's packages.

    Raises:
        UsageError: the lock does not say where its Python comes from.
    """
    python = foundation.resolution.target.python
    if python.source in {"system", "base"}:
        return _venv(foundation)
    if python.url and python.sha256:
        return _standalone(foundation, work)
    raise UsageError(
        f"the lock names Python {python.version} and not where an image gets it from",
        hint="set [env] python to its series alone, or name a base that has it: [image] base and [image] python",
    )


async def compiler(python: Python, platform: Platform, work: ImageWork) -> Pyc:
    """An interpreter on this machine whose bytecode is that of the image's."""
    import sys
    from pathlib import Path

    return Pyc(Path(sys.executable), python.version, work.order.jobs)


def _venv(foundation: Foundation) -> Below:
    from envspec.image.venv_source import Venv, home_of

    run = foundation.base.config.get("config") or {}
    environ = dict(text.partition("=")[::2] for text in run.get("Env") or ())
    python = foundation.resolution.target.python
    return Below((Venv(python, home_of(python, environ)),), _nothing, _nobody)


def _standalone(foundation: Foundation, work: ImageWork) -> Below:
    raise NotImplementedError


async def _nothing() -> None:
    """Nothing has to be fetched."""


def _nobody() -> Mapping[str, str]:
    return {}
