"""A conda package's dependencies in the words of conda-lock's file: for each name one version spec.

conda-lock reads them by conda's own MatchSpec. Importing that costs a second and a half of CPU, and of all that it can
do the file needs a few rules, so they are here; tests hold them against conda-lock's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from typing import Final, NamedTuple

#: In characters, of what is read of one: lists of builds have some hundred.
_LONGEST: Final = 4096
_BRACKETS: Final = re.compile(r"\[(.*)\]")
_IN_BRACKETS: Final = re.compile(r"""(?<![a-zA-Z0-9_-])([a-zA-Z0-9_-]+)=(["']?)([^'"]*?)\2(?:[, ]|$)""")
_NAME: Final = re.compile(r"([^ =<>!~]+)(.*)", re.DOTALL)
# A build string comes after a blank or `=` that is no part of a version's operator, and holds no sign of a version's.
_BUILD: Final = re.compile(r"(.+?[^><!,|]?)(?:(?<![=!|,<>~])[ =]([^-=,|<>~]+?))?$", re.DOTALL)


class _Spec(NamedTuple):
    """What is asked of one name. version: normalized; None where any will do."""

    name: str
    version: str | None
    build: str | None


def dependencies(depends: Iterable[str]) -> dict[str, str]:
    """name -> version spec of a package's `depends`, sorted by name; an empty spec where any version will do.

    What is asked of one name several times is joined by commas. Builds that are asked for don't show.
    """
    by_name: dict[str, list[_Spec]] = {}
    for text in depends:
        spec = _parse(text)
        by_name.setdefault(spec.name, []).append(spec)
    return {name: _joined(specs) for name, specs in sorted(by_name.items())}


def _joined(specs: list[_Spec]) -> str:
    # conda joins two at a time, in the order of its own spelling of the whole spec.
    versions = [spec.version for spec in sorted(specs, key=_spelled) if spec.version is not None]
    return reduce(lambda one, other: ",".join(sorted((one, other))), versions) if versions else ""


def _parse(text: str) -> _Spec:
    words = text[:_LONGEST].partition("#")[0].partition(" if ")[0].strip()
    inside: dict[str, str] = {}
    brackets = _BRACKETS.search(words)
    if brackets:
        inside = {found[1]: found[3] for found in _IN_BRACKETS.finditer(brackets[1])}
        words = words.replace(brackets[0], "")
    # A channel may stand before `::`.
    found = _NAME.fullmatch(words.rpartition(":")[2])
    name, rest = (found[1].lower(), found[2].strip()) if found else (words.lower(), "")
    version, build = _split(rest) if rest else (None, None)
    version = inside.get("version", version)
    return _Spec(name, None if version is None else _normalized(version), inside.get("build", build))


def _split(text: str) -> tuple[str, str | None]:
    """Version and build; `=1.2` means 1.2.*, with a build behind it 1.2 itself."""
    found = _BUILD.match(text)
    version, build = (found[1], found[2]) if found else (text, None)
    version, build = version.replace(" ", ""), build.strip() if build else None
    if version.startswith("==") and build is None:
        return version[2:], None
    bare = version[1:]
    if version.startswith("=") and bare and not set(bare) & set("=,|"):
        return bare if build is not None or bare.endswith("*") else f"{bare}*", build
    return version, build


def _normalized(version: str) -> str:
    """`1.2*` is written 1.2.*, in every part of what commas and bars join."""
    if "^" in version:
        return version.strip()
    return "".join(_part(part.strip()) for part in re.split(r"([|,])", version))


def _part(part: str) -> str:
    fuzzy = part.endswith("*") and part != "*" and part[0] not in "=<>!~" and "*" not in part.rstrip("*")
    return f"{part[:-1]}.*" if fuzzy and not part.endswith(".*") else part


def _spelled(spec: _Spec) -> str:
    """conda's own spelling of a spec: `name==1.2=build`, `name=1.2`, `name[version='>=1',build=*_x]`."""
    version, build = spec.version or "", spec.build or ""
    outside, inside, is_exact = "", [], False
    if set(version) & set("><$^|,") or (version[:2] in ("!=", "~=") and build):
        inside.append(f"version='{version}'")
    elif version[:2] in ("!=", "~="):
        outside = version
    elif version.endswith("*"):
        outside = "=" + version.removesuffix("*").removesuffix(".")
    elif version:
        outside, is_exact = version if version.startswith("==") else f"=={version}", True
    if build and set(build) & set("><$^|,"):
        inside.append(f"build='{build}'")
    elif build and is_exact and "*" not in build:
        outside += f"={build}"
    elif build:
        inside.append(f"build={build}")
    return spec.name + outside + (f"[{','.join(inside)}]" if inside else "")
