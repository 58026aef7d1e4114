"""Writes a channel of any size, shaped like conda-forge: `python -m bench.conda_channel OUT --rows 650000`.

The rows are made up, and the same on every machine. What they were fitted to, as it stands in 4,049 rows of
conda-forge that came from lock files (in brackets what is written here): two of three rows in the platform's subdir; a
mean of 5.7 [8.4] dependencies a row there and of 2.8 [2.7] in noarch; of 100 dependencies 83 [89] and 71 [90] bounded
from below, 56 [43] and 12 [0] from above; constraints in 20 [20] of 100 rows; 490 [550] and 420 [430] bytes a row. Not
from there, since a part of a channel says nothing of it: 17 and 10 rows a name, and archives in the old format up to
2022's end. What a request reaches is the same at every size, see `bench.conda_stack`.

`--rows` counts linux-64 and noarch, which is what a solve for linux-64 reads; every other platform comes on top of it,
with three fifths of linux-64's rows. `--real DIR` mixes in the rows of a folder of `<subdir>/repodata.json`; made rows
of the same names step back. Such a channel is for requests of real packages: the made stack may not be solvable in it.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import shutil
import sys
import tempfile
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Final

from bench.conda_recipes import LAST, Bound, Kind, Need, Recipe, Row, history, moment_ms, rows, word
from bench.conda_stack import special, stack

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
    """One line of a repodata.json. text: the row as JSON."""

    filename: str
    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """What a channel holds: rows and bytes of each subdir."""

    rows: dict[str, int]
    size_bytes: dict[str, int]


def write(out: Path, count_of_rows: int, platforms: Sequence[str] = PLATFORMS[:1], real: Path | None = None) -> Written:
    """Write `out/<subdir>/repodata.json` for these platforms and noarch.

    count_of_rows: of linux-64 and noarch together. real: a folder of rows to mix in.

    Raises:
        ValueError: fewer rows than the part that a solver walks through has, about 20,000.
    """
    native = round(count_of_rows * _NATIVE_SHARE)
    sizes = {"noarch": count_of_rows - native}
    sizes |= {platform: native if platform == "linux-64" else round(native * _OTHERS_SHARE) for platform in platforms}
    return Written(
        sizes,
        {subdir: _write_subdir(out / subdir, entries(subdir, wanted, real)) for subdir, wanted in sizes.items()},
    )


def entries(subdir: str, wanted: int, real: Path | None = None) -> Iterator[Entry]:
    """So many rows of a subdir, by file name.

    Raises:
        ValueError: `wanted` is less than what the stack takes.
    """
    taken, kept = _real(real / subdir / "repodata.json") if real else ([], set[str]())
    recipes = stack()
    made = [row for recipe in recipes.values() for row in rows(recipe, subdir, recipes.__getitem__)]
    core = [_entry(row, subdir) for row in (*made, *special(subdir, recipes)) if row.name not in kept]
    fixed = sorted([*core, *taken], key=lambda entry: entry.filename)
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


def _real(path: Path) -> tuple[list[Entry], set[str]]:
    """The rows of a file and their names."""
    if not path.exists():
        return [], set()
    document = json.loads(path.read_text(encoding="utf-8"))
    found = {**document["packages"], **document["packages.conda"]}
    listed = [Entry(filename, json.dumps(row, separators=(",", ":"))) for filename, row in found.items()]
    return listed, {row["name"] for row in found.values()}


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.conda_channel", description="Write a channel like conda-forge."
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--rows", type=int, default=650_000, help="of linux-64 and noarch together (650000)")
    parser.add_argument("--platforms", default="linux-64", help=f"separated by commas: {', '.join(PLATFORMS)}")
    parser.add_argument("--real", type=Path, metavar="DIR", help="rows to mix in: DIR/<subdir>/repodata.json")
    options = parser.parse_args(arguments)
    written = write(options.out, options.rows, options.platforms.split(","), options.real)
    for subdir, number in written.rows.items():
        print(f"{subdir:14} {number:8} rows {written.size_bytes[subdir] / 1e6:7.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
