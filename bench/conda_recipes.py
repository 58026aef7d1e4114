"""Packages that never were, shaped like conda-forge's: what each is built from and when, and the rows that come of it.

Time runs in waves of a quarter, from 2017. A package has a version a wave; it is built again when its version moves or
when what it is pinned to does, as a migration would have it, for every Python series and CUDA release of that wave. So
all that was built up to the wave CLOSED fits together; a tenth of the packages missed what came after, and a solver
that wants the newest has to find out where they stop fitting.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from random import Random
from typing import Final

START: Final = datetime(2017, 1, 1, tzinfo=timezone.utc)
WAVE: Final = timedelta(days=91)
LAST: Final = 38
CLOSED: Final = LAST - 3
#: A Python series, its first wave and its last. Source: the dates of its releases, to the quarter.
PYTHONS: Final = (
    ("3.6", 0, 19),
    ("3.7", 6, 25),
    ("3.8", 11, 31),
    ("3.9", 15, 35),
    ("3.10", 19, LAST),
    ("3.11", 23, LAST),
    ("3.12", 27, LAST),
    ("3.13", 31, LAST),
    ("3.14", 35, LAST),
)
#: A CUDA release, the first wave that was built for it and the last.
CUDAS: Final = (("11.8", 23, 31), ("12.6", 30, 32), ("12.8", 32, 33), ("12.9", 33, LAST), ("13.0", 35, LAST))
#: What a build for CUDA needs of it, besides `cuda-version`.
CUDA_LIBRARIES: Final = (
    "cuda-cudart",
    "cuda-cupti",
    "cuda-nvrtc",
    "cuda-nvtx",
    "libcublas",
    "libcufft",
    "libcufile",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libnvjitlink",
)


class Kind(Enum):
    """How many builds a version has."""

    LIBRARY = "one"
    NOARCH = "one, for all platforms"
    EXTENSION = "one a Python series"
    CUDA_LIBRARY = "one for the CPU and one a CUDA release"
    CUDA_EXTENSION = "one a Python series, for the CPU and for each CUDA release"

    @property
    def has_python(self) -> bool:
        return self in (Kind.EXTENSION, Kind.CUDA_EXTENSION)

    @property
    def has_cuda(self) -> bool:
        return self in (Kind.CUDA_LIBRARY, Kind.CUDA_EXTENSION)


class Bound(Enum):
    """How an edge is bounded, above and below."""

    MAJOR = "up to the next major version"
    MINOR = "up to the next minor version"
    LOWER = "from a version on"
    ANY = "not at all"
    EXACT = "this version, built for the same CUDA"


@dataclass(frozen=True, slots=True)
class Need:
    """An edge to another package, until a wave: what a package needed once keeps its old rows in reach."""

    name: str
    bound: Bound
    until: int = LAST


@dataclass(frozen=True, slots=True)
class Recipe:
    """A package. versions: one a wave, from the wave `birth` on, up to the last one that it was built in."""

    name: str
    kind: Kind
    birth: int
    versions: tuple[str, ...]
    needs: tuple[Need, ...]
    constrains: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        return self.birth + len(self.versions) - 1

    def version(self, wave: int) -> str:
        """The version that others are pinned to in a wave: none that is newer than what was built by then."""
        return self.versions[max(0, min(wave, self.last) - self.birth)]


@dataclass(frozen=True, slots=True)
class Row:
    """One build. wave: when it was built."""

    name: str
    version: str
    build: str
    number: int
    depends: tuple[str, ...]
    constrains: tuple[str, ...]
    wave: int
    noarch: str = ""


@dataclass(frozen=True, slots=True)
class _Variant:
    python: str | None
    cuda: str | None

    @property
    def words(self) -> str:
        """The beginning of the build string: `cuda129_py313`."""
        parts = [] if self.cuda is None else ["cuda" + self.cuda.replace(".", "") if self.cuda else "cpu"]
        return "_".join(parts + ([] if self.python is None else ["py" + self.python.replace(".", "")]))

    @property
    def depends(self) -> list[str]:
        found = []
        if self.cuda:
            above = int(self.cuda.split(".")[0]) + 1
            found = ["__cuda", f"cuda-version >={self.cuda},<{above}"]
            found += [f"{name} >={self.cuda},<{above}.0a0" for name in CUDA_LIBRARIES]
        if self.python:
            above = int(self.python.split(".")[1]) + 1
            tag = self.python.replace(".", "")
            found += [f"python >={self.python},<3.{above}.0a0", f"python_abi {self.python}.* *_cp{tag}"]
        return found


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def word(number: int, syllables: int) -> str:
    """A word for a number below 16 to the power of `syllables`; greater numbers' words come later in the alphabet."""
    parts = [number >> 4 * place for place in reversed(range(syllables))]
    return "".join("bdfgklmnprstvwxz"[part & 15] + "aeiou"[part % 5] for part in parts)


def moment_ms(wave: int, of: str) -> int:
    """Some second of a wave's first two months, in milliseconds since 1970; the same for the same text."""
    return int((START + WAVE * wave).timestamp() + int(digest(of)[:8], 16) % (60 * 86400)) * 1000


def history(random: Random, waves: int, pace: float) -> tuple[str, ...]:
    """A version for each of so many waves. pace: how likely it moves; one move in ten is a major one."""
    major, minor, patch = random.randrange(1, 4), random.randrange(9), random.randrange(4)
    versions = []
    for wave in range(waves):
        if wave and random.random() < pace:
            step = random.random()
            if step < 0.1:
                major, minor, patch = major + 1, 0, 0
            elif step < 0.5:
                minor, patch = minor + 1, 0
            else:
                patch += 1
        versions.append(f"{major}.{minor}.{patch}")
    return tuple(versions)


def rows(recipe: Recipe, platform: str, look_up: Callable[[str], Recipe]) -> Iterator[Row]:
    """All builds of a package for a subdir, the oldest first; none in the wrong subdir."""
    if (recipe.kind is Kind.NOARCH) != (platform == "noarch"):
        return
    before: tuple[str, list[str], list[_Variant]] | None = None
    number = 0
    for wave in range(recipe.birth, recipe.last + 1):
        version = recipe.version(wave)
        edges = [(need, look_up(need.name).version(wave)) for need in recipe.needs if wave <= need.until]
        depends = _runtime(platform, wave) + [_words(need, other) for need, other in edges if _is_plain(need)]
        variants = _variants(recipe.kind, platform, wave)
        # A pin is a reason to build again, and so are other needs; a lower bound, which moves all the time, is none.
        state = (version, [text if "<" in text else text.split()[0] for text in depends], variants)
        if state == before:
            continue
        number = number + 1 if before and before[0] == version else 0
        before = state
        key = digest(f"{recipe.name} {version} {number} {platform}")[:7]
        for variant in variants:
            exact = [
                f"{need.name} {other} {variant.words.split('_')[0]}_*" for need, other in edges if not _is_plain(need)
            ]
            # As on conda-forge, where a machine with CUDA gets its builds without asking.
            own = number + 300 if variant.cuda else number
            yield Row(
                recipe.name,
                version,
                f"pyhd8ed1ab_{own}" if recipe.kind is Kind.NOARCH else _build(variant, key, own),
                own,
                tuple(sorted(depends + variant.depends + exact)),
                recipe.constrains,
                wave,
                "python" if recipe.kind is Kind.NOARCH else "",
            )


def _is_plain(need: Need) -> bool:
    return need.bound is not Bound.EXACT


def _words(need: Need, version: str) -> str:
    """An edge in conda-forge's manner: `libfoo >=1.2.3,<2.0a0`."""
    major, minor = version.split(".")[:2]
    above = {Bound.MAJOR: f"{int(major) + 1}.0a0", Bound.MINOR: f"{major}.{int(minor) + 1}.0a0"}.get(need.bound)
    if above:
        return f"{need.name} >={version},<{above}"
    return f"{need.name} >={major}.{minor}" if need.bound is Bound.LOWER else need.name


def _runtime(platform: str, wave: int) -> list[str]:
    """What everything is built against."""
    if platform == "noarch":
        return [f"python >=3.{6 + max(0, wave - 8) // 6}"]
    if platform.startswith("linux"):
        return ["__glibc >=2.17,<3.0.a0", f"libgcc >={7 + wave // 5}", f"libstdcxx >={7 + wave // 5}"]
    return ["__osx >=11.0"] if platform.startswith("osx") else ["__win"]


def _variants(kind: Kind, platform: str, wave: int) -> list[_Variant]:
    pythons = [name for name, first, last in PYTHONS if first <= wave <= last] if kind.has_python else [None]
    if not kind.has_cuda:
        return [_Variant(python, None) for python in pythons]
    releases = [] if platform.startswith("osx") else [name for name, first, last in CUDAS if first <= wave <= last]
    return [_Variant(python, cuda) for cuda in ("", *releases) for python in pythons]


def _build(variant: _Variant, key: str, number: int) -> str:
    if variant.python:
        return f"{variant.words}h{key}_{number}"
    return f"{variant.words}_h{key}_{number}" if variant.words else f"h{key}_{number}"
