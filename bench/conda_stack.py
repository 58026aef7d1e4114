"""The part of the made channel that a solver walks through: the same at every size of the channel.

Python with its libraries, a native stack on top of it, and a package with builds for the CPU and for CUDA whose pins
reach through all of it; then the packages that only their older rows ask for. Some 110 of them are installed, 450 are
in reach with 23 rows each, 1.7 times the channel's mean; in the rows of conda-forge that came from lock files, what
pytorch reaches has 1.7 to 2.2 times the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from bench.conda_recipes import (
    CLOSED,
    CUDA_LIBRARIES,
    CUDAS,
    LAST,
    PYTHONS,
    Bound,
    Kind,
    Need,
    Recipe,
    Row,
    digest,
    history,
    word,
)

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
    return Recipe(recipe.name, recipe.kind, recipe.birth, recipe.versions[: wave + 1], recipe.needs)


def special(platform: str, recipes: dict[str, Recipe]) -> Iterator[Row]:
    """The rows that follow rules of their own: python, python_abi, the compilers' runtime, CUDA and its libraries."""
    if platform == "noarch":
        yield from _of_all_platforms()
        return
    yield from _python(platform, recipes)
    if platform.startswith("linux"):
        yield from _runtime(platform)
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


def _runtime(platform: str) -> Iterator[Row]:
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
