"""The tables of engines, one for each half: a new one is one file and one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from envspec.resolve.conda.conda_lock import CondaLock
from envspec.resolve.conda.engine import CondaEngine
from envspec.resolve.conda.rattler import Rattler
from envspec.resolve.engine import Engine
from envspec.resolve.pip_tools import PipTools
from envspec.resolve.uv import Uv

ENGINES: Final[Mapping[str, Engine]] = {"uv": Uv(), "pip-tools": PipTools()}
CONDA_ENGINES: Final[Mapping[str, CondaEngine]] = {"rattler": Rattler(), "conda-lock": CondaLock()}
