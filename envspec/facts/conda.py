"""Which Python packages a conda package holds, as far as channels were looked through: `data/conda_names.toml`.

What is listed of a channel was gathered over all its archives, old ones among them. So a name with several PyPI names
is not known for any one archive, except where a `[[held]]` row says what today's hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from envspec.data import DATA

#: The channel whose names other channels follow.
_MODEL: Final = "conda-forge"


@dataclass(frozen=True, slots=True)
class ListedChannel:
    """What is known of one channel's packages.

    names: conda name -> the PyPI names (PEP 503) that its archives had: several where archives differ or hold several,
    none where they hold no Python package.
    """

    names: Mapping[str, tuple[str, ...]]
    source: str


@dataclass(frozen=True, slots=True)
class CondaNames:
    """held: conda name -> the PyPI names that its archives hold today, all of them with conda's version."""

    channels: Mapping[str, ListedChannel]
    held: Mapping[str, tuple[str, ...]]

    def listed(self, name: str, channel: str | None) -> tuple[str, ...] | None:
        """The PyPI names that archives of a conda package had; None where nobody looked.

        channel: a listed one, None for any other. That a name holds no Python package is said of its own channel only:
        another one's package of that name is another package.
        """
        own = self.channels.get(channel or "")
        if own is not None and name in own.names:
            return own.names[name]
        return self.channels[_MODEL].names.get(name) or None


@cache
def conda_names() -> CondaNames:
    """The table, read when it is first asked for."""
    from envspec.toml import loads

    tables = loads((DATA / "conda_names.toml").read_text(encoding="utf-8"))
    return CondaNames(
        channels={row["channel"]: ListedChannel(_names(row), row["source"]) for row in tables["channel"]},
        held={row["conda"]: tuple(row["pypi"]) for row in tables["held"]},
    )


def _names(row: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    named = (line.split() for line in row["named"].splitlines() if line)
    return {
        **{name: (pypi_form(name),) for name in row["same"].split()},
        **dict.fromkeys(row["none"].split(), ()),
        **{name: tuple(pypi) for name, *pypi in named},
    }


def pypi_form(name: str) -> str:
    """PEP 503's form of a name: lower case, and one dash for any run of dashes, dots and underscores."""
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)
