"""The tools that lock the conda half: how each is asked, how its answer is read. A new one is one entry of `TOOLS`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.conda_questions import Question

_HERE: Final = Path(__file__).parent
#: Rows as (subdir of the platform, URL).
Answer = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tool works. folder: its project. cache: emptied for a cold run. stdout: what it printed."""

    folder: Path
    cache: Path

    @property
    def stdout(self) -> Path:
        return self.folder / "stdout"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. note: what its numbers cannot be compared in."""

    name: str
    prepare: Callable[[Place, Question], None]
    command: Callable[[Place], list[str | Path]]
    answer: Callable[[Place], Answer]
    environ: Callable[[Place], Mapping[str, str]] = lambda _: {}
    note: str = ""


def _question(place: Place, question: Question) -> None:
    (place.folder / "question.json").write_text(json.dumps(question.document()))


def _spec(place: Place, question: Question) -> None:
    (place.folder / "spec.toml").write_text(question.spec)


def _conda_lock_files(place: Place, question: Question) -> None:
    (place.folder / "environment.yml").write_text(question.environment())
    (place.folder / "virtual-packages.yml").write_text(question.virtual_packages())
    # Without one it downloads a table of names, which nothing here asks for.
    (place.folder / "names.json").write_text("{}")
    shim = place.folder / "conda"
    shim.write_text(
        f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(_HERE / 'conda_shim.py')!r}, run_name='__main__')\n"
    )
    shim.chmod(0o755)


def _conda_lock(place: Place) -> list[str | Path]:
    return [
        Path(sys.executable).with_name("conda-lock"),
        *("lock", "--conda", place.folder / "conda", "--file", "environment.yml", "--lockfile", "conda-lock.yml"),
        *("--virtual-package-spec", "virtual-packages.yml", "--log-level", "WARNING"),
        *("--pypi_to_conda_lookup_file", (place.folder / "names.json").as_uri()),
    ]


def _printed(place: Place) -> Answer:
    pairs = (line.split(" ", 1) for line in place.stdout.read_text().splitlines())
    return frozenset((subdir, url) for subdir, url in pairs)


def _explicit_files(place: Place) -> Answer:
    return frozenset(
        (path.stem.removeprefix("conda-"), line.split("#")[0])
        for path in (place.folder / "lock").glob("conda-*-*.lock")
        for line in path.read_text().splitlines()
        if "://" in line and not line.startswith("#")
    )


def _conda_lock_yml(place: Place) -> Answer:
    """Read by its lines: every package names its platform and its URL."""
    found = []
    for package in re.split(r"^- ", (place.folder / "conda-lock.yml").read_text(), flags=re.MULTILINE):
        platform, url = (re.search(rf"^ *{key}: (\S+)$", package, re.MULTILINE) for key in ("platform", "url"))
        if platform and url:
            found.append((platform[1], url[1]))
    return frozenset(found)


def _script(name: str) -> Callable[[Place], list[str | Path]]:
    return lambda place: [sys.executable, _HERE / name, "question.json", place.cache]


BARE: Final = "py-rattler"
STAGE: Final = "envspec's conda stage"
ENVSPEC: Final = "envspec lock"
CONDA_LOCK: Final = "conda-lock"

TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        Tool(
            BARE,
            _question,
            _script("conda_bare.py"),
            _printed,
            note="a script that solves and prints URLs: the floor",
        ),
        Tool(
            STAGE,
            _question,
            _script("conda_stage.py"),
            _printed,
            note="with why each package is there and which newer one was not taken, without writing files",
        ),
        Tool(
            ENVSPEC,
            _spec,
            lambda place: [
                Path(sys.executable).with_name("envspec"),
                "lock",
                "spec.toml",
                "--output",
                place.folder / "lock",
            ],
            _explicit_files,
            environ=lambda place: {"ENVSPEC_CACHE_DIR": str(place.cache)},
            note="the whole command: spec, solve, base image, driver, all files of the lock",
        ),
        Tool(
            CONDA_LOCK,
            _conda_lock_files,
            _conda_lock,
            _conda_lock_yml,
            environ=lambda place: {"PATH": f"{place.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
            note="the real `conda-lock lock`; its conda is a small program over py-rattler, one process a platform, so "
            "nothing of conda's own time is in it; it knows no date, so it solves for today",
        ),
    )
}
