"""A conda channel of any size, shaped like conda-forge, of packages that never were: the same on every machine.

What its records were fitted to, as it stands in 4,049 records of conda-forge that came from lock files (in brackets
what is written here): two of three in the platform's subdir; a mean of 5.7 [8.4] dependencies a record there and of 2.8
[2.7] in noarch; of 100 dependencies 83 [89] and 71 [90] bounded from below, 56 [43] and 12 [0] from above; constraints
in 20 [20] of 100 records; 490 [550] and 420 [430] bytes a record. Not from there, since a part of a channel says
nothing of it: 17 and 10 records a name, and archives in the old format up to 2022's end.

Time runs in waves of a quarter, from 2017. A package has a version a wave; it is built again when its version moves or
when what it is pinned to does, as a migration would have it, for every Python series and CUDA release of that wave. So
all that was built up to the wave CLOSED fits together; a tenth of the packages missed what came after, and a solver
that wants the newest has to find out where they stop fitting.

The part that a solver walks through, `stack`, is the same at every size: Python with its libraries, a native stack on
top of it, a package with builds for the CPU and for CUDA whose pins reach through all of it, and the packages that only
their older records need. Some 110 of them are installed, 450 are in reach with 23 records each, 1.7 times the channel's
mean; in the records of conda-forge that came from lock files, what pytorch reaches has 1.7 to 2.2 times the mean.
"""

from __future__ import annotations

import hashlib
import heapq
import shutil
import tempfile
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Final

from envspec.structs import replace

# ----------------------------------------------------------------------------------------------- packages and records

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


# ----------------------------------------------------------------------------- the part that a solver walks through

#: What the benchmark asks for; the first has builds for CUDA.
WANTED: Final = ("tensorkit", "gridarray-signal", "gridarray-plot", "notebook-desk", "tabular")
_LIBRARIES: Final = 56
_PYTHON_LIBRARIES: Final = 12
_NOARCH: Final = 42
_FORMER: Final = 440


def stack() -> dict[str, Recipe]:
    """The packages by name; each needs only packages that stand before it."""
    random = Random("the stack")
    found: dict[str, Recipe] = {}

    def add(name: str, kind: Kind, needs: list[Need], pace: float = 0.45, birth: int = 0) -> None:
        is_late = random.random() < 0.1 and birth < CLOSED
        waves = (CLOSED if is_late else LAST) - birth + 1
        found[name] = Recipe(name, kind, birth, history(random, waves, pace), tuple(needs))

    former = [f"former-{word(place, 3)}" for place in range(_FORMER)]
    for name in former:
        kind = random.choice((Kind.LIBRARY, Kind.LIBRARY, Kind.NOARCH, Kind.EXTENSION))
        older = [other for other in found if kind is not Kind.LIBRARY or found[other].kind is Kind.LIBRARY]
        add(name, kind, _edges(random, older, random.randrange(3), kind))
        found[name] = _until(found[name], random.randrange(14, CLOSED))

    def once(kind: Kind) -> list[Need]:
        """Former packages: what older rows need and newer ones don't."""
        names = [name for name in former if kind is not Kind.LIBRARY or found[name].kind is Kind.LIBRARY]
        return [Need(name, Bound.LOWER, found[name].last - 1) for name in random.sample(names, random.randrange(4, 11))]

    libraries: list[str] = []
    for place in range(_LIBRARIES):
        name = f"lib{word(place * 7, 3)}"
        add(
            name,
            Kind.LIBRARY,
            _edges(random, libraries, min(place, random.randrange(4)), Kind.LIBRARY) + once(Kind.LIBRARY),
        )
        libraries.append(name)
    add("libtensorkit", Kind.CUDA_LIBRARY, _edges(random, libraries, 14, Kind.LIBRARY), pace=0.6, birth=6)
    pure: list[str] = []
    for place in range(_NOARCH):
        name = f"pure-{word(place * 5, 3)}"
        add(name, Kind.NOARCH, _edges(random, pure, min(place, random.randrange(3)), Kind.NOARCH) + once(Kind.NOARCH))
        pure.append(name)
    native: list[str] = []
    for name in ("gridarray", "gridarray-image", "gridarray-signal", "tabular", "gridarray-plot", "socketry", "wire"):
        needs = _edges(random, libraries, random.randrange(3, 9), Kind.LIBRARY) + _edges(random, pure, 4, Kind.NOARCH)
        add(
            name,
            Kind.EXTENSION,
            needs + _edges(random, native, len(native), Kind.NOARCH) + once(Kind.EXTENSION),
            pace=0.7,
        )
        native.append(name)
    desk = [Need(name, Bound.LOWER) for name in (*pure[-14:], "socketry", "wire")]
    add("notebook-desk", Kind.NOARCH, desk, pace=0.8)
    core = [Need("libtensorkit", Bound.EXACT), Need("gridarray", Bound.LOWER)]
    found["tensorkit"] = Recipe(
        "tensorkit",
        Kind.CUDA_EXTENSION,
        found["libtensorkit"].birth,
        found["libtensorkit"].versions,
        (*core, *_edges(random, libraries, 12, Kind.LIBRARY), *_edges(random, pure, 8, Kind.NOARCH)),
    )
    return found


def _edges(random: Random, names: list[str], count: int, kind: Kind) -> list[Need]:
    """Edges to some of these: pins for what is compiled against, bounds from below for what is imported."""
    pins = (Bound.MAJOR, Bound.MAJOR, Bound.MINOR, Bound.LOWER)
    loose = (Bound.LOWER, Bound.LOWER, Bound.LOWER, Bound.ANY)
    bounds = pins if kind is Kind.LIBRARY else loose
    return [Need(name, random.choice(bounds)) for name in random.sample(names, min(count, len(names)))]


def _until(recipe: Recipe, wave: int) -> Recipe:
    return replace(recipe, versions=recipe.versions[: wave + 1])


def special(platform: str, recipes: dict[str, Recipe]) -> Iterator[Row]:
    """The rows that follow rules of their own: python, python_abi, the compilers' runtime, CUDA and its libraries."""
    if platform == "noarch":
        yield from _of_all_platforms()
        return
    yield from _python(platform, recipes)
    if platform.startswith("linux"):
        yield from _compilers_runtime(platform)
    if not platform.startswith("osx"):
        yield from _cuda_libraries(platform)


def _python(platform: str, recipes: dict[str, Recipe]) -> Iterator[Row]:
    libraries = [recipe for recipe in recipes.values() if recipe.kind is Kind.LIBRARY and recipe.name.startswith("lib")]
    for series, first, last in PYTHONS:
        tag = f"cp{series.replace('.', '')}"
        for wave in range(first, min(last + 1, LAST) + 1):
            depends = [f"{other.name} >={other.version(wave)}" for other in libraries[:_PYTHON_LIBRARIES]]
            version, key = f"{series}.{wave - first}", digest(f"python {series} {wave} {platform}")[:7]
            constrains = (f"python_abi {series}.* *_{tag}",)
            yield Row("python", version, f"h{key}_0_{tag}", 0, tuple(sorted(depends)), constrains, wave)


def _compilers_runtime(platform: str) -> Iterator[Row]:
    yield Row("_libgcc_mutex", "0.1", "conda_forge", 0, (), (), 0)
    for name, needs in (("libgcc", "_libgcc_mutex"), ("libstdcxx", "libgcc")):
        for wave in range(LAST + 1):
            version = f"{7 + wave // 5}.{wave % 5}.0"
            yield Row(name, version, f"h{digest(name + version + platform)[:7]}_0", 0, (needs,), (), wave)


def _cuda_libraries(platform: str) -> Iterator[Row]:
    for name in CUDA_LIBRARIES:
        for release, first, last in CUDAS:
            major, minor = release.split(".")
            depends = (f"cuda-version >={release},<{major}.{int(minor) + 1}.0a0",)
            for wave in range(first, last + 1):
                version = f"{release}.{19 + 60 * (wave - first)}"
                yield Row(name, version, f"h{digest(name + version + platform)[:7]}_0", 0, depends, (), wave)


def _of_all_platforms() -> Iterator[Row]:
    for series, first, _ in PYTHONS:
        tag = f"cp{series.replace('.', '')}"
        for number in (7, 8):
            python = f"python {series}.* *_{tag}"
            yield Row("python_abi", series, f"{number}_{tag}", number, (), (python,), first, "generic")
    for release, first, _ in CUDAS:
        pair = (f"__cuda >={release.split('.')[0]}", f"cudatoolkit {release}|{release}.*")
        yield Row("cuda-version", release, f"h{digest(release)[:7]}_3", 3, (), pair, first, "generic")


# ---------------------------------------------------------------------------------------------------------- the channel

PLATFORMS: Final = ("linux-64", "linux-aarch64", "osx-arm64", "win-64")
_OTHERS_SHARE: Final = 0.6
_NATIVE_SHARE: Final = 2 / 3
#: conda-forge's builds are `.conda` from the end of 2022 on.
_CONDA_FORMAT_WAVE: Final = 24
_LICENSES: Final = ("MIT", "BSD-3-Clause", "Apache-2.0", "GPL-3.0-or-later", "LGPL-2.1-or-later")
_SYLLABLES: Final = 5
#: About as many as come of it.
_ROWS_OF_A_FAMILY: Final = {"noarch": 110, "native": 240}
#: Every so manieth family has a package with builds for CUDA.
_CUDA_FAMILY: Final = 8
#: What the packages of a family are called after its name, in alphabetical order: a family's rows stand together.
_PARTS: Final = (
    ("", Kind.LIBRARY),
    ("-api", Kind.NOARCH),
    ("-base", Kind.LIBRARY),
    ("-client", Kind.NOARCH),
    ("-codec", Kind.LIBRARY),
    ("-core", Kind.LIBRARY),
    ("-data", Kind.NOARCH),
    ("-engine", Kind.EXTENSION),
    ("-fast", Kind.LIBRARY),
    ("-fonts", Kind.NOARCH),
    ("-io", Kind.EXTENSION),
    ("-kernels", Kind.CUDA_EXTENSION),
    ("-lab", Kind.NOARCH),
    ("-math", Kind.LIBRARY),
    ("-py", Kind.EXTENSION),
    ("-server", Kind.NOARCH),
    ("-sphinx", Kind.NOARCH),
    ("-stubs", Kind.NOARCH),
    ("-tests", Kind.NOARCH),
    ("-tools", Kind.LIBRARY),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a repodata.json. text: the record as JSON."""

    filename: str
    text: str


def write(out: Path, count_of_rows: int, platforms: Sequence[str] = PLATFORMS[:1]) -> dict[str, tuple[int, int]]:
    """Write `out/<subdir>/repodata.json` for these platforms and noarch: subdir -> records and bytes.

    count_of_rows: of linux-64 and noarch together; every other platform has three fifths of linux-64's records.

    Raises:
        ValueError: fewer than the part that a solver walks through has, about 20,000.
    """
    native = round(count_of_rows * _NATIVE_SHARE)
    sizes = {"noarch": count_of_rows - native}
    sizes |= {platform: native if platform == "linux-64" else round(native * _OTHERS_SHARE) for platform in platforms}
    return {subdir: (size, _write_subdir(out / subdir, entries(subdir, size))) for subdir, size in sizes.items()}


def entries(subdir: str, wanted: int) -> Iterator[Entry]:
    """So many records of a subdir, by file name.

    Raises:
        ValueError: `wanted` is less than what the stack takes.
    """
    recipes = stack()
    made = [row for recipe in recipes.values() for row in rows(recipe, subdir, recipes.__getitem__)]
    fixed = sorted((_entry(row, subdir) for row in (*made, *special(subdir, recipes))), key=lambda each: each.filename)
    if len(fixed) > wanted:
        raise ValueError(f"{subdir}: {wanted} rows are too few, the stack alone has {len(fixed)}")
    filled = islice(_filling(subdir, wanted, recipes), wanted - len(fixed))
    return heapq.merge(fixed, filled, key=lambda entry: entry.filename)


def _filling(subdir: str, wanted: int, recipes: dict[str, Recipe]) -> Iterator[Entry]:
    """Rows of families without end, each of packages that need one another and the stack."""
    # The step spreads the names of as many families as it takes over the alphabet.
    rows_each = _ROWS_OF_A_FAMILY["noarch" if subdir == "noarch" else "native"]
    step = max(1, 16**_SYLLABLES // 2 // (wanted // rows_each + 1))
    libraries = [name for name, recipe in recipes.items() if recipe.kind is Kind.LIBRARY and recipe.last == LAST]
    others = [name for name, recipe in recipes.items() if recipe.kind in (Kind.NOARCH, Kind.EXTENSION)]
    for place in count():
        family = _family(word(place * step, _SYLLABLES), libraries, others)
        known = ChainMap(family, recipes)
        found = [row for recipe in family.values() for row in rows(recipe, subdir, known.__getitem__)]
        yield from sorted((_entry(row, subdir) for row in found), key=lambda entry: entry.filename)


def _family(prefix: str, libraries: list[str], others: list[str]) -> dict[str, Recipe]:
    random = Random(prefix)
    found: dict[str, Recipe] = {}
    for suffix, usual in _PARTS:
        kind = Kind.LIBRARY if usual.has_cuda and random.randrange(_CUDA_FAMILY) else usual
        birth = random.randrange(LAST)
        waves = min(LAST + 1 - birth, 2 + int(random.expovariate(1 / 14)))
        native = kind is not Kind.NOARCH
        mates = [name for name, recipe in found.items() if native == (recipe.kind is not Kind.NOARCH)]
        needs = [Need(name, Bound.LOWER) for name in random.sample(mates, min(len(mates), random.randrange(3)))]
        if native:
            bounds = (Bound.MAJOR, Bound.MAJOR, Bound.MINOR, Bound.LOWER)
            chosen = random.sample(libraries, min(8, int(random.expovariate(1 / 2.4))))
            needs += [Need(name, random.choice(bounds)) for name in chosen]
        if not native or kind.has_python:
            chosen = random.sample(others, min(12, int(random.expovariate(1 / 1.3))))
            needs += [Need(name, random.choice((Bound.LOWER, Bound.LOWER, Bound.ANY))) for name in chosen]
        constrains = (f"{random.choice(libraries)} <0a0",) if random.random() < 0.2 else ()
        name = prefix + suffix
        found[name] = Recipe(
            name, kind, birth, history(random, waves, 0.5 if native else 0.9), tuple(needs), constrains
        )
    return found


def _entry(row: Row, subdir: str) -> Entry:
    stem = f"{row.name}-{row.version}-{row.build}"
    filename = stem + (".conda" if row.wave >= _CONDA_FORMAT_WAVE else ".tar.bz2")
    sha256 = hashlib.sha256(f"{subdir}/{filename}".encode()).hexdigest()
    size = 10_000 + int(sha256[:6], 16)
    fields = [
        f'"build":"{row.build}"',
        f'"build_number":{row.number}',
        *([f'"constrains":{_listed(row.constrains)}'] if row.constrains else []),
        f'"depends":{_listed(row.depends)}',
        f'"license":"{_LICENSES[size % len(_LICENSES)]}"',
        *([f'"license_family":"{_LICENSES[size % len(_LICENSES)].split("-")[0]}"'] if size % 2 else []),
        f'"md5":"{sha256[32:][::-1]}"',
        f'"name":"{row.name}"',
        *([f'"noarch":"{row.noarch}"'] if row.noarch else []),
        f'"sha256":"{sha256}"',
        f'"size":{size}',
        f'"subdir":"{subdir}"',
        f'"timestamp":{moment_ms(row.wave, row.name + subdir)}',
        f'"version":"{row.version}"',
    ]
    return Entry(filename, "{" + ",".join(fields) + "}")


def _listed(words: Iterable[str]) -> str:
    return "[" + ",".join(f'"{word}"' for word in words) + "]"


def _write_subdir(folder: Path, found: Iterable[Entry]) -> int:
    """Write the rows as they come, the two formats' tables one after the other; the file's bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "repodata.json"
    with path.open("w", encoding="utf-8") as file, tempfile.TemporaryFile("w+", encoding="utf-8") as newer:
        file.write(f'{{"info":{{"subdir":"{folder.name}"}},"packages":{{')
        separators = {file: "", newer: ""}
        for entry in found:
            table = newer if entry.filename.endswith(".conda") else file
            table.write(f'{separators[table]}"{entry.filename}":{entry.text}')
            separators[table] = ",\n"
        file.write('},"packages.conda":{')
        newer.seek(0)
        shutil.copyfileobj(newer, file)
        file.write('},"removed":[],"repodata_version":1}\n')
    return path.stat().st_size
