"""The table of PyPI engines: a new one is one file and one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from envspec.resolve.engine import Engine
from envspec.resolve.pip_tools import PipTools
from envspec.resolve.uv import Uv

ENGINES: Final[Mapping[str, Engine]] = {"uv": Uv(), "pip-tools": PipTools()}
