"""Who asked for a package, from the spec down, through both halves of an environment."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from envspec.models import SPEC, CondaPackage, Dependent, Package, Resolution
from envspec.names import normalised


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: `name` at `version` asked in the words of `requirement`. version: None for the spec.

    channel: where conda took the package from; None for a wheel and for the spec.
    """

    name: str
    version: str | None
    requirement: str
    channel: str | None = None


class Half(Enum):
    """The two halves of an environment."""

    WHEELS = "wheels"
    CONDA = "conda"


class _Step(NamedTuple):
    """A package of one half, or None for what no half holds (the spec), and what it asks for."""

    half: Half
    asker: Dependent

    @property
    def key(self) -> tuple[Half, str]:
        return self.half, self.asker.name


class Pins:
    """The packages of one platform by name: wheels, conda's, and conda's by PyPI's names of what is in them."""

    def __init__(self, resolution: Resolution) -> None:
        self.wheels = {package.name: package for package in resolution.packages}
        self.conda = {package.name: package for package in resolution.conda}
        self._provided = {each.name: package for package in resolution.conda for each in package.provides}

    def named(self, wanted: str) -> tuple[Package | None, tuple[CondaPackage, ...]]:
        """The wheel and the conda packages that `wanted` means, by conda's name or PyPI's. wanted: normalised."""
        conda = [
            package
            for package in self.conda.values()
            if wanted == normalised(package.name) or any(each.name == wanted for each in package.provides)
        ]
        return self.wheels.get(wanted), tuple(conda)

    def to_wheel(self, package: Package) -> tuple[tuple[Link, ...], ...]:
        """For each who asked for a wheel the shortest way from the spec down to it."""
        return self._ways(Half.WHEELS, package.name, package.required_by)

    def to_conda(self, package: CondaPackage) -> tuple[tuple[Link, ...], ...]:
        """For each who asked for a conda package the shortest way from the spec down to it."""
        return self._ways(Half.CONDA, package.name, package.required_by)

    def _ways(self, half: Half, name: str, askers: Sequence[Dependent]) -> tuple[tuple[Link, ...], ...]:
        return tuple(self._way(self._step(half, asker), (half, name)) for asker in askers)

    def _way(self, last: _Step, asked: tuple[Half, str]) -> tuple[Link, ...]:
        """The shortest way from the spec to `last`; where none begins at the spec, as far up as it goes.

        It does not lead through the package that was asked for. Of ways of one length the first by name, so that the
        same lock always tells the same.
        """
        waiting: deque[tuple[_Step, ...]] = deque([(last,)])
        seen = {asked, last.key}
        longest: tuple[_Step, ...] = (last,)
        while waiting:
            way = waiting.popleft()
            longest = way
            if way[0].asker.name == SPEC:
                break
            above = self._package(way[0])
            for asker in sorted(above.required_by) if above else ():
                higher = self._step(way[0].half, asker)
                if higher.key not in seen:
                    seen.add(higher.key)
                    waiting.append((higher, *way))
        return tuple(map(self._link, longest))

    def _step(self, half: Half, asker: Dependent) -> _Step:
        """Who asks. What asks for a wheel may be in a conda package: then it is that package."""
        if half is Half.WHEELS and asker.name not in self.wheels and asker.name in self._provided:
            return _Step(Half.CONDA, Dependent(self._provided[asker.name].name, asker.requirement))
        return _Step(half, asker)

    def _package(self, step: _Step) -> Package | CondaPackage | None:
        return (self.wheels if step.half is Half.WHEELS else self.conda).get(step.asker.name)

    def _link(self, step: _Step) -> Link:
        package = self._package(step)
        channel = package.channel if isinstance(package, CondaPackage) else None
        return Link(step.asker.name, package.version if package else None, step.asker.requirement, channel)
