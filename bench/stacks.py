"""The requests that are measured: envspec specs in `bench/stacks/`, from which the peers' requests are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import tomlkit

from envspec.toml import loads

FOLDER: Final = Path(__file__).parent / "stacks"
#: What EVIDENCE measured the peers on.
DEFAULT: Final = ("s26", "s27", "s28", "s29", "g")
#: Small, and asked for by none of the stacks: one is added each round, so that none is in a cache when its turn comes.
ADDED: Final = ("humanize", "toolz", "inflection", "sortedcontainers", "iniconfig", "blinker", "itsdangerous", "roman")


@dataclass(frozen=True, slots=True)
class Stack:
    """One request. spec: the text of envspec's spec; python: a series; as_of: nothing newer is considered."""

    name: str
    python: str
    as_of: datetime
    platforms: tuple[str, ...]
    requirements: tuple[str, ...]
    spec: str

    def plus(self, requirement: str) -> Stack:
        """The same request with one more package."""
        return self._with(requirements=(*self.requirements, requirement))

    def on(self, *platforms: str) -> Stack:
        """The same request for other platforms."""
        return self._with(platforms=platforms)

    def _with(self, requirements: Sequence[str] | None = None, platforms: Sequence[str] | None = None) -> Stack:
        new = replace(
            self,
            requirements=tuple(requirements or self.requirements),
            platforms=tuple(platforms or self.platforms),
        )
        document = tomlkit.parse(self.spec)
        document["env"]["platforms"] = list(new.platforms)
        document["pip"]["dependencies"] = list(new.requirements)
        return replace(new, spec=tomlkit.dumps(document))


def load(name: str) -> Stack:
    """Read `bench/stacks/NAME.toml`.

    Raises:
        FileNotFoundError: no such stack.
    """
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    values = loads(text)
    return Stack(
        name=name,
        python=values["env"]["python"],
        as_of=values["env"]["as_of"].astimezone(timezone.utc),
        platforms=tuple(values["env"]["platforms"]),
        requirements=tuple(values["pip"]["dependencies"]),
        spec=text,
    )


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
