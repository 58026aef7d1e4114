"""Locks conda packages with envspec and its peers, side by side in one run: `python -m bench.conda --help`.

Two ways to grow: more records for one platform, and more platforms on the largest channel; then that channel over http.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import conda_channel
from bench.conda_channel import PLATFORMS, WANTED
from bench.harness import Command, Goal, Results, clean, names_of, parser_of, run, sampled, say, shown, table
from envspec.facts import load_facts
from envspec.models import Platform
from envspec.resolve.conda.request import channels_of, conda_request
from envspec.resolve.types import CondaRequest, Cutoffs
from envspec.spec import parse_spec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BARE: Final = "py-rattler"
STAGE: Final = "envspec's conda stage"
ENVSPEC: Final = "envspec lock"
CONDA_LOCK: Final = "conda-lock"
CPU_BOUND: Final = 1.2
MEMORY_BOUND_MB: Final = 600
#: Records from which the goals count; below, starting an interpreter is most of what there is.
GOAL_ROWS: Final = 650_000
AS_OF: Final = datetime(2026, 11, 15, tzinfo=timezone.utc)
PYTHON: Final = "3.13"
CUDA: Final = "12.9"
#: With its digest in the spec no registry is needed: nothing here uses a network but the channel.
_BASE: Final = f"registry.example.com/cuda@sha256:{'0' * 64}"
#: conda-lock's words for the platforms to which a line of environment.yml applies.
_SELECTORS: Final = {"linux-64": "linux64", "linux-aarch64": "aarch64", "osx-arm64": "arm64", "win-64": "win"}
_SOLVERS: Final = Path(__file__).with_name("conda_solvers.py")
_HOW: Final = (
    "Medians over the rounds; the tools take turns within each round. Every run is a process of its own with an empty",
    "home and, unless the heading says otherwise, an empty cache; the channel's files are in the page cache. CPU is",
    "user and system time of the whole tree of processes, a server's not. Peak memory is the sum of resident sets,",
    "sampled every 20 ms: rattler maps a channel's file, so what it has read of it counts; the column beside it is",
    "what is left without mapped files. The channel is written by `bench/conda_channel.py`, the same on every machine:",
)
#: Records as (subdir of the platform, URL).
Answer = frozenset[tuple[str, str]]


# ------------------------------------------------------------------------------------------------------- the question


@dataclass(frozen=True, slots=True)
class Question:
    """One request for all tools: the channel, the platforms and the packages, of which the first has CUDA builds."""

    channel: str
    platforms: tuple[str, ...]
    wanted: tuple[str, ...] = WANTED

    @property
    def spec(self) -> str:
        """For envspec."""
        return "\n".join(
            [
                f'[env]\nname = "bench-conda"\npython = "{PYTHON}"\nas_of = {AS_OF.strftime("%Y-%m-%dT%H:%M:%SZ")}',
                f"platforms = {json.dumps(self.platforms)}",
                f'[cuda]\nversion = "{CUDA}"',
                f'[conda]\nchannels = ["{self.channel}"]\ndependencies = {json.dumps(self.wanted)}',
                f'[image]\nbase = "{_BASE}"\nglibc = "2.39"\n',
            ]
        )

    def document(self) -> dict[str, Any]:
        """For py-rattler and the stage: JSON. complete: the requirements with the CUDA builds named."""
        return {
            "channel": self.channel,
            "as_of": AS_OF.isoformat(),
            "platforms": [
                {
                    "subdir": request.platform.value,
                    "requirements": request.requirements,
                    "complete": [self._complete(text, request) for text in request.requirements],
                    "constraints": request.constraints,
                    "virtual_packages": [(each.name, each.version, each.build) for each in request.virtual_packages],
                    "cuda": str(request.cuda) if request.cuda else None,
                }
                for request in self.requests()
            ],
        }

    def environment(self) -> str:
        """For conda-lock: environment.yml. It has no constraints: `cuda-version` is a requirement if there is CUDA."""
        lines = [f"channels: [{json.dumps(self.channel)}]", f"platforms: {json.dumps(self.platforms)}", "dependencies:"]
        for request in self.requests():
            texts = [self._complete(text, request) for text in request.requirements]
            texts += [text for text in request.constraints if text.startswith("cuda-version")]
            lines += [f"  - {text}  # [{_SELECTORS[request.platform.value]}]" for text in texts]
        return "\n".join(lines) + "\n"

    def virtual_packages(self) -> str:
        """For conda-lock: virtual-packages.yml."""
        subdirs = {
            request.platform.value: {
                "packages": {
                    each.name: each.version if each.build == "0" else f"{each.version} {each.build}"
                    for each in request.virtual_packages
                }
            }
            for request in self.requests()
        }
        return json.dumps({"subdirs": subdirs}, indent=1) + "\n"

    def requests(self) -> Sequence[CondaRequest]:
        """As envspec composes them."""
        spec, facts = parse_spec(self.spec, "bench-conda.toml", AS_OF), load_facts()
        channels = channels_of(spec, {}, {})
        moments = Cutoffs(AS_OF, {})
        return [conda_request(spec, Platform(name), facts, moments, (), channels) for name in self.platforms]

    def _complete(self, text: str, request: CondaRequest) -> str:
        return f"{text} * cuda*" if request.cuda and text == self.wanted[0] else text


# ---------------------------------------------------------------------------------------------------------- the tools


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tool works. folder: its project. cache: emptied for a cold run."""

    folder: Path
    cache: Path

    @property
    def stdout(self) -> Path:
        return self.folder / "stdout"


@dataclass(frozen=True, slots=True)
class Tool:
    """A way of locking. prepare: writes the question. note: what its numbers cannot be compared in."""

    package: str
    prepare: Callable[[Place, Question], object]
    command: Callable[[Place], Command]
    answer: Callable[[Place], Answer]
    environ: Callable[[Place], Mapping[str, str]] = lambda _: {}
    note: str = ""


def _question(place: Place, question: Question) -> None:
    (place.folder / "question.json").write_text(json.dumps(question.document()))


def _solver(name: str) -> Callable[[Place], Command]:
    return lambda place: [sys.executable, _SOLVERS, name, "question.json", place.cache]


def _conda_lock_files(place: Place, question: Question) -> None:
    (place.folder / "environment.yml").write_text(question.environment())
    (place.folder / "virtual-packages.yml").write_text(question.virtual_packages())
    # Without one it downloads a table of names, which is not used here.
    (place.folder / "names.json").write_text("{}")
    shim = place.folder / "conda"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} {_SOLVERS} conda "$@"\n')
    shim.chmod(0o755)


def _conda_lock(place: Place) -> Command:
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


TOOLS: Final[Mapping[str, Tool]] = {
    BARE: Tool(
        "py-rattler", _question, _solver("bare"), _printed, note="a script that solves and prints URLs: the floor"
    ),
    STAGE: Tool(
        "envspec",
        _question,
        _solver("stage"),
        _printed,
        note="with why each package is there and which newer one was not taken, without writing files",
    ),
    ENVSPEC: Tool(
        "envspec",
        lambda place, question: (place.folder / "spec.toml").write_text(question.spec),
        lambda _: [Path(sys.executable).with_name("envspec"), "lock", "spec.toml", "--output", "lock"],
        _explicit_files,
        environ=lambda place: {"ENVSPEC_CACHE_DIR": str(place.cache)},
        note="the whole command: spec, solve, base image, driver, all files of the lock",
    ),
    CONDA_LOCK: Tool(
        "conda-lock",
        _conda_lock_files,
        _conda_lock,
        _conda_lock_yml,
        environ=lambda place: {"PATH": f"{place.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
        note="the real `conda-lock lock`; its conda is a small program over py-rattler, one process a platform, so "
        "nothing of conda's own time is in it; it has no date, so it solves for today",
    ),
}


# --------------------------------------------------------------------------------------------------------- the rounds


@dataclass(frozen=True, slots=True)
class Case:
    """One question on one channel. rows: of linux-64 and noarch. transport: `file` or `http`."""

    rows: int
    platforms: int
    transport: str = "file"
    is_cold: bool = True

    @property
    def title(self) -> str:
        many = "1 platform" if self.platforms == 1 else f"{self.platforms} platforms"
        how = "file://" if self.transport == "file" else f"http, {'empty' if self.is_cold else 'full'} cache"
        return f"{self.rows:,} rows, {many}, {how}"


class Bench:
    """A run of the benchmark. root: where channels and jobs are; channels are kept between runs."""

    def __init__(self, root: Path, tools: Sequence[str], limit_s: float, results: Results) -> None:
        self.root, self.tools, self.limit_s, self.results = root, tools, limit_s, results
        self.cases: dict[str, Case] = {}
        self.channels: dict[str, str] = {}
        #: (case, tool) -> how many records it has, and how many only one of it and py-rattler has.
        self.agreements: dict[tuple[str, str], tuple[int, int]] = {}

    def measure(self, case: Case, address: str, rounds: int) -> None:
        """All tools on one case, taking turns."""
        question = Question(address, PLATFORMS[: case.platforms])
        self.cases[case.title] = case
        answers: dict[str, Answer] = {}
        for turn in range(rounds):
            for name in self.tools:
                found = self._turn(name, case, question, turn)
                if found is not None:
                    answers.setdefault(name, found)
        if BARE in answers:
            for name, answer in answers.items():
                self.agreements[case.title, name] = (len(answer), len(answer ^ answers[BARE]))

    def channel(self, rows: int, platforms: int) -> Path:
        """A channel of this size, written unless it exists."""
        key = hashlib.sha256(Path(conda_channel.__file__).read_bytes()).hexdigest()[:12]
        folder = self.root / "channels" / f"{rows}-{platforms}-{key}"
        about = folder / "about"
        if not about.exists():
            say(f"writing a channel of {rows:,} rows for {platforms} platforms")
            for old in folder.parent.glob(f"{rows}-{platforms}-*"):
                shutil.rmtree(old)
            written = conda_channel.write(folder, rows, PLATFORMS[:platforms])
            about.write_text(", ".join(f"{name} {n:,} in {size / 1e6:.0f} MB" for name, (n, size) in written.items()))
        self.channels[f"{rows:,}"] = about.read_text()
        return folder

    def _turn(self, name: str, case: Case, question: Question, turn: int) -> Answer | None:
        tool = TOOLS[name]
        job = self.root / "jobs" / re.sub(r"\W+", "-", name)
        place = Place(job / "project", job / "cache")
        for folder in (place.folder, *([place.cache, job / "home"] if case.is_cold else [])):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (place.folder, place.cache, job / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        tool.prepare(place, question)
        environ = {**clean(os.environ, home=job / "home"), **tool.environ(place)}
        cost = run(tool.command(place), cwd=place.folder, env=environ, limit_s=self.limit_s, stdout=place.stdout)
        self.results.note(sampled(case.title, name, "", turn, cost, own_bytes=cost.own_bytes))
        return tool.answer(place) if cost.is_done else None


def goals(results: Results, cases: Mapping[str, Case]) -> list[Goal]:
    """CPU and peak memory on every case of the goals' size."""
    found = []
    for title in (title for title, case in cases.items() if case.rows >= GOAL_ROWS):
        for tool in (STAGE, ENVSPEC):
            times, peak = results.ratio(title, tool, BARE, "", "cpu_s"), results.mid(title, tool, "", "peak_bytes")
            if times is not None:
                found.append(Goal(f"{tool}, CPU", title, times, CPU_BOUND, f"x {BARE}"))
            if peak is not None:
                found.append(Goal(f"{tool}, peak memory", title, peak / 1e6, MEMORY_BOUND_MB, "MB"))
    return found


def case_table(results: Results, agreements: Mapping[tuple[str, str], tuple[int, int]], title: str) -> list[str]:
    rows = []
    for tool in results.tools_of(title):
        count, differing = agreements.get((title, tool), (None, None))
        figures = (
            ("cpu_s", ".2f", 1.0),
            ("wall_s", ".2f", 1.0),
            ("peak_bytes", ".0f", 1e-6),
            ("own_bytes", ".0f", 1e-6),
        )
        cpu, wall, *memory = (shown(results.mid(title, tool, "", what), form, scale) for what, form, scale in figures)
        times, wall_times = (shown(results.ratio(title, tool, BARE, "", what)) for what in ("cpu_s", "wall_s"))
        same = "-" if differing is None else f"{differing} differ" if differing else "yes"
        rows.append([tool, cpu, times, wall, wall_times, *memory, shown(count, ".0f"), same])
    head = ["tool", "CPU s", "x py-rattler", "wall s", "x py-rattler", "peak MB", "of it own MB", "rows", "same rows"]
    return table(head, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and write its results; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _options().parse_args(arguments)
    results = Results(
        "Locking conda packages, side by side",
        {name: getattr(options, name) for name in ("rounds", "rows", "platforms", "http", "limit")},
        tools={name: version(TOOLS[name].package) for name in options.tools},
        notes={name: TOOLS[name].note for name in options.tools},
    )
    bench = Bench(options.home, options.tools, options.limit, results)
    _measure(bench, options)
    results.goals = goals(results, bench.cases)
    results.facts["channels"] = bench.channels
    results.facts["agreements"] = [[*key, *value] for key, value in bench.agreements.items()]
    sections = {title: case_table(results, bench.agreements, title) for title in bench.cases}
    how = [*_HOW, "", *(f"- {rows} rows: {about}" for rows, about in bench.channels.items())]
    return results.write(options.output, f"conda-{options.label}", results.page(sections, how))


def _measure(bench: Bench, options: argparse.Namespace) -> None:
    *smaller, most = sorted(options.rows)
    for rows in smaller:
        bench.measure(Case(rows, 1), bench.channel(rows, 1).as_uri(), options.rounds)
    largest = bench.channel(most, options.platforms)
    for platforms in range(1, options.platforms + 1):
        bench.measure(Case(most, platforms), largest.as_uri(), options.rounds)
    if options.http == "yes":
        _compress(largest)
        with _served(largest) as address:
            for is_cold in (True, False):
                bench.measure(Case(most, 1, "http", is_cold), address, options.rounds)


def _compress(channel: Path) -> None:
    """What a channel's server has beside each repodata.json."""
    for path in channel.glob("*/repodata.json"):
        target = path.with_suffix(".json.zst")
        if not target.exists():
            with path.open("rb") as source, zstd.open(target.with_suffix(".part"), "wb", level=9) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
            target.with_suffix(".part").rename(target)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The folder over http on loopback, by a process of its own; its address."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            yield f"http://127.0.0.1:{words[words.index('port') + 1]}"
        finally:
            server.terminate()


def _options() -> argparse.ArgumentParser:
    parser = parser_of("conda", __doc__, "envspec-bench-conda", "channels, about 2 GB")
    add, sizes = parser.add_argument, [20_000, 80_000, 200_000, 650_000]
    numbers: Callable[[str], list[int]] = lambda text: [int(word) for word in text.split(",")]  # noqa: E731
    add("--rounds", type=int, default=5, help="runs of every tool on every case (5)")
    add("--rows", type=numbers, default=sizes, metavar="N,N", help="sizes of channels")
    add("--platforms", type=int, choices=(1, 2, 3, 4), default=4, help="how many on the largest channel (4)")
    add("--tools", type=names_of(TOOLS), default=list(TOOLS), metavar="A,B", help=", ".join(TOOLS))
    add("--http", choices=("yes", "no"), default="yes", help="the largest channel over http on loopback as well (yes)")
    add("--limit", type=float, default=300, help="seconds after which a run is ended and reported (300)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
