"""What of PyPI comes from conda: light, since both halves know it."""

from __future__ import annotations

from dataclasses import dataclass

from envspec.model import SPEC, Asker


@dataclass(frozen=True, slots=True)
class Provider:
    """A Python package that conda installs, and the conda package that it is in.

    name: in PEP 503's form. version: PEP 440's. package: the conda package. channel: what the spec calls its channel.
    askers: who asks for the conda package: the spec (`spec`), or conda packages.
    """

    name: str
    version: str
    package: str
    channel: str
    askers: tuple[Asker, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version} comes from {self.channel}"

    @property
    def whence(self) -> str:
        """`numpy 2.2.6 comes from conda-forge (conda's numpy, asked by scipy)`."""
        names = sorted({"the spec" if asker.name == SPEC else asker.name for asker in self.askers})
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        asked = f", asked by {', '.join(names[:3])}{more}" if names else ""
        return f"{self} (conda's {self.package}{asked})"
