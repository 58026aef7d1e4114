"""What wheels ask for, and what of it counts on one target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from packaging.markers import UndefinedComparison
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

#: In characters; the longest on the default index have some hundred.
_LONGEST: Final = 8192
_FIELD: Final = re.compile(
    # Continuations are bounded, since `re` takes 100 bytes of memory for each.
    r"^(Requires-Dist|Provides-Extra|Requires-Python):[ \t]*(.+(?:\r?\n[ \t]+.+){0,99})",
    re.MULTILINE | re.IGNORECASE,
)


def declared(metadata: bytes) -> tuple[str, ...]:
    """The values of Requires-Dist in a METADATA file, in its order (core metadata 2.4)."""
    return _values(metadata, "requires-dist")


def extras_of(metadata: bytes) -> tuple[str, ...]:
    """The values of Provides-Extra, likewise."""
    return _values(metadata, "provides-extra")


def requires_python(metadata: bytes) -> str | None:
    """The value of Requires-Python; None where there is none."""
    return next(iter(_values(metadata, "requires-python")), None)


def _values(metadata: bytes, field: str) -> tuple[str, ...]:
    head = re.split(r"\r?\n\r?\n", metadata.decode("utf-8", "replace"), maxsplit=1)[0]
    return tuple(" ".join(value.split()) for name, value in _FIELD.findall(head) if name.lower() == field)


def is_of_extra(text: str) -> bool:
    """Whether a requirement is one of extras only, by its marker."""
    requirement = parsed(text)
    return requirement is not None and requirement.marker is not None and "extra" in str(requirement.marker)


def wanted(
    requirements: tuple[str, ...], environment: Mapping[str, str], extras: frozenset[str]
) -> Iterator[Requirement]:
    """Those requirements that hold on the target with these extras; what PEP 508 can't read is left out."""
    for text in requirements:
        # Most lines of most packages belong to extras that nobody asked for: not worth parsing.
        if not extras and "extra ==" in text and " or " not in text:
            continue
        requirement = parsed(text)
        if requirement is not None and _holds(requirement, environment, extras):
            yield requirement


def parsed(text: str) -> Requirement | None:
    """A requirement of PEP 508; None for what is none, and for one that is longer or nested deeper than any."""
    return _parsed(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None


def _holds(requirement: Requirement, environment: Mapping[str, str], extras: frozenset[str]) -> bool:
    if requirement.marker is None:
        return True
    try:
        return any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in (extras or {""}))
    except UndefinedComparison:
        return False


def allows(specifier: str, version: str) -> bool:
    """Whether a specifier takes a version, prereleases too; one that PEP 440 can't read takes all."""
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def shown(requirement: Requirement) -> str:
    """The requirement without its marker, in one spelling: `jinja2>=3.1`, `uvicorn[standard]<1`."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    address = f" @ {requirement.url}" if requirement.url else ""
    return f"{requirement.name}{extras}{requirement.specifier}{address}"
