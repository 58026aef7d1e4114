"""Locks the conda half with envspec and its peers, side by side in one run: `python -m bench.conda --help`.

Two ways to grow: more rows for one platform, and more platforms on the largest channel; then that channel over http.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import conda_channel, machine
from bench.conda_memory import OwnMemory
from bench.conda_questions import Question
from bench.conda_report import Agreement, Case, CondaResults, Sample, page, plot
from bench.conda_tools import BARE, CONDA_LOCK, ENVSPEC, STAGE, TOOLS, Answer, Place
from bench.environment import clean
from bench.measure import run
from bench.results import published

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_PACKAGES: Final = {BARE: "py-rattler", STAGE: "envspec", ENVSPEC: "envspec", CONDA_LOCK: "conda-lock"}
#: What the channel's bytes depend on: another text of these, another channel.
_MAKERS: Final = ("conda_channel.py", "conda_recipes.py", "conda_stack.py")


@dataclass(slots=True)
class CondaBench:
    """A run of the benchmark. root: where channels and jobs are; channels are kept between runs."""

    root: Path
    tools: Sequence[str]
    limit_s: float
    samples: list[Sample] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    channels: dict[str, dict[str, object]] = field(default_factory=dict)

    def measure(self, case: Case, address: str, rounds: int) -> None:
        """All tools on one case, taking turns."""
        question = Question(address, conda_channel.PLATFORMS[: case.platforms])
        answers: dict[str, Answer] = {}
        for turn in range(rounds):
            for name in self.tools:
                found = self._turn(name, case, question, turn)
                if found is not None:
                    answers.setdefault(name, found)
        if BARE in answers:
            self.agreements += [
                Agreement(case, name, len(answer), len(answer ^ answers[BARE])) for name, answer in answers.items()
            ]

    def channel(self, rows: int, platforms: int) -> Path:
        """A channel of this size, written if it is not there yet."""
        here = Path(__file__).parent
        key = hashlib.sha256("".join((here / name).read_text() for name in _MAKERS).encode()).hexdigest()[:12]
        folder = self.root / "channels" / f"{rows}-{platforms}-{key}"
        about = folder / "about.json"
        if not about.exists():
            _say(f"writing a channel of {rows:,} rows for {platforms} platforms")
            for old in folder.parent.glob(f"{rows}-{platforms}-*"):
                shutil.rmtree(old)
            written = conda_channel.write(folder, rows, conda_channel.PLATFORMS[:platforms])
            about.write_text(
                json.dumps(
                    {name: f"{n:,} in {written.size_bytes[name] / 1e6:.0f} MB" for name, n in written.rows.items()}
                )
            )
        self.channels[f"{rows:,}"] = json.loads(about.read_text())
        return folder

    def _turn(self, name: str, case: Case, question: Question, turn: int) -> Answer | None:
        tool = TOOLS[name]
        job = self.root / "jobs" / name.replace(" ", "-").replace("'", "")
        place = Place(job / "project", job / "cache")
        for folder in (place.folder, *([place.cache, job / "home"] if case.is_cold else [])):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (place.folder, place.cache, job / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        tool.prepare(place, question)
        environ = {**clean(os.environ, home=job / "home", proxy=None), **tool.environ(place)}
        with OwnMemory() as own:
            cost = run(tool.command(place), cwd=place.folder, env=environ, limit_s=self.limit_s, stdout=place.stdout)
        said = "" if cost.is_done else published(cost.said)
        sample = Sample(
            case,
            name,
            turn,
            round(cost.wall_s, 4),
            round(cost.cpu_s, 4),
            cost.peak_bytes,
            own.peak_bytes,
            cost.exit_code,
            said,
        )
        self.samples.append(sample)
        _say(_line(sample))
        return tool.answer(place) if cost.is_done else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and write its results; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _options().parse_args(arguments)
    about = machine.describe()
    bench = CondaBench(Path(options.home), options.tools, options.limit)
    _measure(bench, options)
    results = CondaResults(
        machine=about,
        tools={name: version(_PACKAGES[name]) for name in options.tools},
        notes={name: TOOLS[name].note for name in options.tools},
        options={name: getattr(options, name) for name in ("rounds", "rows", "platforms", "http", "limit")},
        channels=bench.channels,
        samples=tuple(bench.samples),
        agreements=tuple(bench.agreements),
    )
    _write(results, Path(options.output), options.label or about["date"])
    return 1 if any(not goal.is_met for goal in results.goals) else 0


def _measure(bench: CondaBench, options: argparse.Namespace) -> None:
    sizes = sorted(options.rows)
    for rows in sizes[:-1]:
        bench.measure(Case(rows, 1), bench.channel(rows, 1).as_uri(), options.rounds)
    largest = bench.channel(sizes[-1], options.platforms)
    for platforms in range(1, options.platforms + 1):
        bench.measure(Case(sizes[-1], platforms), largest.as_uri(), options.rounds)
    if options.http == "yes":
        _compress(largest)
        with _served(largest) as address:
            for is_cold in (True, False):
                bench.measure(Case(sizes[-1], 1, "http", is_cold), address, options.rounds)


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


def _write(results: CondaResults, folder: Path, label: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = page(results)
    (folder / f"conda-{label}.json").write_text(json.dumps(results.document(), indent=1) + "\n")
    plot(results, folder / f"conda-{label}.png")
    (folder / f"conda-{label}.md").write_text(f"{text}\n![How CPU and memory grow](conda-{label}.png)\n")
    print(text)


def _line(sample: Sample) -> str:
    end = "over its limit" if sample.exit_code is None else f"exit {sample.exit_code}"
    memory = f"{sample.peak_bytes / 1e6:6.0f} MB peak {sample.own_bytes / 1e6:6.0f} MB own"
    shape = f"{sample.wall_s:7.2f} s {sample.cpu_s:7.2f} CPU s {memory}"
    return f"{sample.case.title:44} {sample.tool:22} {shape} {end if sample.exit_code else ''}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _known(text: str) -> list[str]:
    wanted = [name.strip() for name in text.split(",")]
    if strange := [name for name in wanted if name not in TOOLS]:
        raise argparse.ArgumentTypeError(f"{', '.join(strange)}: not one of {', '.join(TOOLS)}")
    return wanted


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.conda", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    add: Callable[..., Any] = parser.add_argument
    add("--rounds", type=int, default=5, help="runs of every tool on every case (5)")
    add("--rows", type=_numbers, default=[20_000, 80_000, 200_000, 650_000], metavar="N,N", help="sizes of channels")
    add("--platforms", type=int, choices=(1, 2, 3, 4), default=4, help="how many on the largest channel (4)")
    add("--tools", type=_known, default=list(TOOLS), metavar="A,B", help=", ".join(TOOLS))
    add("--http", choices=("yes", "no"), default="yes", help="the largest channel over http on loopback as well (yes)")
    add("--limit", type=float, default=300, help="seconds after which a run is ended and reported (300)")
    add(
        "--home",
        default=Path(tempfile.gettempdir()) / f"envspec-bench-conda-{os.getuid()}",
        help="where channels are made and kept (a temporary folder, about 2 GB)",
    )
    add("--output", default="bench/results", help="folder for the JSON, Markdown and PNG files")
    add("--label", help="in the files' names, instead of the date")
    return parser


if __name__ == "__main__":
    sys.exit(main())
