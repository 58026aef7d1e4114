"""Locks the same stacks with envspec and its peers, side by side in one run: `python -m bench.lock --help`.

Four scenarios for each tool and stack. cold: empty caches. warm: the same request again, its result deleted.
one package added: a name that no cache has yet, the old result in place. nothing changed: the result in place; the
tool's own command for it where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench import imports, machine, markdown, pins, proxy, stacks
from bench.measure import Cost, run
from bench.peers import PEERS, Job, Pace, Peer
from bench.proxy import Proxy
from bench.results import (
    OURS,
    REFERENCE,
    Absence,
    Answer,
    Goal,
    Results,
    Sample,
    Scenario,
    lock_goals,
    mid,
    published,
    verdict_on,
)
from bench.stacks import Stack
from bench.workshop import NotHere, Workshop

STARTS: Final = 15


@dataclass(slots=True)
class Bench:
    """A run of the benchmark: its options, and what it has found so far."""

    workshop: Workshop
    proxy: Proxy | None
    limit_s: float
    samples: list[Sample] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def stack(self, stack: Stack, peers: Sequence[Peer], runs: int, slow_runs: int) -> None:
        """All tools on one stack, taking turns."""
        jobs = dict(self._jobs(stack, peers))
        for turn in range(runs):
            taking_part = [name for name in jobs if turn < (slow_runs if PEERS[name].pace is Pace.SLOW else runs)]
            failed: set[str] = set()
            for scenario in Scenario:
                for name in taking_part:
                    if name in failed:
                        why = "its cold run failed"
                        self.absences.append(Absence(stack.name, name, scenario.value, why))
                    elif not self._turn(PEERS[name], jobs[name], scenario, turn) and scenario is Scenario.COLD:
                        failed.add(name)

    def imports(self, jobs_of: Stack, peers: Sequence[Peer]) -> None:
        """Install and import what each tool locked."""
        for place, answer in enumerate(self.answers):
            peer = PEERS[answer.tool]
            if answer.stack != jobs_of.name or peer not in peers or not answer.family:
                continue
            kept = self.workshop.root / "kept" / f"{answer.stack}-{answer.tool}"
            python = self.workshop.python(jobs_of.python)
            outcome = imports.try_out(kept / peer.result, python, self.workshop.root / "imports")
            _say(f"{answer.stack:12} {answer.tool:26} imports: {outcome}")
            self.answers[place] = replace(answer, imports=outcome)

    def platforms(self, stack: Stack, runs: int) -> None:
        """Four platforms against one, both cold."""
        one = replace(stack.on("linux-64"), name="four: linux-64 alone")
        costs: dict[str, list[float]] = {}
        for turn in range(runs):
            for request in (one, stack):
                try:
                    job = self.workshop.job(PEERS[OURS], request)
                except NotHere as why:
                    self.absences.append(Absence(request.name, OURS, Scenario.COLD.value, str(why)))
                    return
                if self._turn(PEERS[OURS], job, Scenario.COLD, turn):
                    costs.setdefault(request.name, []).append(self.samples[-1].wall_s)
        single, whole = (mid(self.samples, name, OURS, Scenario.COLD) for name in (one.name, stack.name))
        if single and whole:
            self.goals.append(Goal("four platforms, time", stack.name, whole / single, 1.6, "x one platform"))

    def starts(self, stack: Stack) -> None:
        """CPU of `--help` and of `lock --check` against that of an interpreter that does nothing."""
        peer = PEERS[OURS]
        job = self.workshop.job(peer, stack)
        python, script = Path(sys.executable), job.bin / "envspec"
        commands: dict[str, list[str | Path]] = {"pass": [python, "-c", "pass"], "--help": [script, "--help"]}
        self._prepare(peer, job, Scenario.COLD, stack)
        if self._run(peer, job, peer.lock(job)).is_done and peer.again is not None:
            commands["lock --check"] = peer.again(job)
        else:
            self.absences.append(Absence(stack.name, OURS, "lock --check, CPU", "there is no lock to check"))
        spent: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(STARTS):
            for name, command in commands.items():
                cost = self._run(peer, job, command)
                if cost.is_done:
                    spent[name].append(cost.cpu_s)
        base = sorted(spent.pop("pass"))[STARTS // 2]
        for name, seconds in spent.items():
            if seconds:
                self.goals.append(
                    Goal(
                        f"`{name}`, CPU", stack.name, sorted(seconds)[len(seconds) // 2] / base, 8, "x `python -c pass`"
                    )
                )

    def _jobs(self, stack: Stack, peers: Sequence[Peer]) -> Iterator[tuple[str, Job]]:
        for peer in peers:
            try:
                job = self.workshop.job(peer, stack)
            except NotHere as why:
                for scenario in Scenario:
                    self.absences.append(Absence(stack.name, peer.name, scenario.value, published(str(why))))
                continue
            self.versions[peer.name] = self.workshop.version(peer, job.bin)
            yield peer.name, job

    def _turn(self, peer: Peer, job: Job, scenario: Scenario, turn: int) -> bool:
        request = job.stack.plus(stacks.ADDED[turn % len(stacks.ADDED)]) if scenario is Scenario.ADDED else job.stack
        self._prepare(peer, job, scenario, request)
        command = peer.again(job) if peer.again and scenario is Scenario.UNCHANGED else peer.lock(job)
        before = self.proxy.counts().received if self.proxy else 0
        cost = self._run(peer, job, command)
        received = self.proxy.counts().received - before if self.proxy else None
        said = "" if cost.is_done else published(cost.said)
        sample = Sample(
            job.stack.name,
            peer.name,
            scenario.value,
            turn,
            round(cost.wall_s, 4),
            round(cost.cpu_s, 4),
            cost.peak_bytes,
            received,
            cost.exit_code,
            said,
        )
        self.samples.append(sample)
        _say(_line(sample))
        if cost.is_done and scenario is Scenario.COLD:
            self._keep(peer, job)
        return cost.is_done

    def _prepare(self, peer: Peer, job: Job, scenario: Scenario, request: Stack) -> None:
        """Bring folder, result and caches into the scenario's state."""
        shutil.rmtree(job.folder)
        job.folder.mkdir()
        if scenario is Scenario.COLD:
            shutil.rmtree(job.cache.parent, ignore_errors=True)
        job.cache.mkdir(parents=True, exist_ok=True)
        peer.prepare(replace(job, stack=request))
        if scenario in (Scenario.ADDED, Scenario.UNCHANGED):
            _copy(self._kept(peer, job), job.folder / peer.result)

    def _keep(self, peer: Peer, job: Job) -> None:
        """Keep the result of a cold run: later scenarios start from it, and its pins are part of the report."""
        kept = self._kept(peer, job)
        shutil.rmtree(kept.parent, ignore_errors=True)
        kept.parent.mkdir(parents=True)
        _copy(job.folder / peer.result, kept)
        locked = pins.read(kept)
        family = pins.family_of(locked)
        answer = Answer(job.stack.name, peer.name, len(locked), family, verdict_on(family))
        others = [known for known in self.answers if (known.stack, known.tool) != (answer.stack, answer.tool)]
        self.answers = [*others, answer]

    def _kept(self, peer: Peer, job: Job) -> Path:
        return self.workshop.root / "kept" / f"{job.stack.name}-{peer.name}" / peer.result

    def _run(self, peer: Peer, job: Job, command: Sequence[str | Path]) -> Cost:
        return run(command, cwd=job.folder, env=self.workshop.environ(peer, job), limit_s=self.limit_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _options().parse_args(arguments)
    if options.quick:
        options.tools, options.stacks, options.runs = [REFERENCE, OURS], ["s29", "g"], 3
    root = Path(options.home)
    root.mkdir(parents=True, exist_ok=True)
    about = machine.describe()
    with proxy.running() if options.bytes == "proxy" else nullcontext() as counter:
        bench = Bench(Workshop(root, counter.url if counter else None), counter, options.limit)
        _measure(bench, options)
    measured = [stack for stack in options.stacks if any(sample.stack == stack for sample in bench.samples)]
    results = Results(
        machine=about,
        tools=bench.versions,
        notes={name: PEERS[name].note for name in options.tools if PEERS[name].note},
        options={name: getattr(options, name) for name in ("runs", "slow_runs", "limit", "bytes", "quick")},
        samples=tuple(bench.samples),
        absences=tuple(bench.absences),
        answers=tuple(bench.answers),
        goals=(*lock_goals(bench.samples, measured), *bench.goals),
    )
    _write(results, Path(options.output), options.label or about["date"])
    return 1 if any(not goal.is_met for goal in results.goals) else 0


def _measure(bench: Bench, options: argparse.Namespace) -> None:
    peers = [PEERS[name] for name in options.tools]
    for name in options.stacks:
        stack = stacks.load(name)
        bench.stack(stack, peers, options.runs, options.slow_runs)
        if options.imports:
            bench.imports(stack, peers)
    if OURS in options.tools:
        bench.starts(stacks.load(options.stacks[-1]))
        if not options.quick:
            bench.platforms(stacks.load("four"), options.runs)


def _write(results: Results, folder: Path, label: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown.page(results)
    (folder / f"lock-{label}.json").write_text(json.dumps(results.document(), indent=1) + "\n")
    (folder / f"lock-{label}.md").write_text(text)
    print(text)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _line(sample: Sample) -> str:
    read = "" if sample.received_bytes is None else f"{sample.received_bytes / 1e6:9.2f} MB"
    end = "over its limit" if sample.exit_code is None else f"exit {sample.exit_code}"
    shape = f"{sample.wall_s:8.2f} s {sample.cpu_s:8.2f} CPU s {sample.peak_bytes / 1e6:6.0f} MB peak {read}"
    return f"{sample.stack:12} {sample.tool:26} {sample.scenario:18} {shape} {end if sample.exit_code else ''}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _several(known: Collection[str]) -> Callable[[str], list[str]]:
    """An option's type: names separated by commas, each of them known."""

    def read(text: str) -> list[str]:
        wanted = [name.strip() for name in text.split(",")]
        if strange := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(strange)}: not one of {', '.join(known)}")
        return wanted

    return read


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.lock", description=__doc__.split("\n")[0] if __doc__ else "")
    tools = ["uv pip compile", OURS, *(name for name in PEERS if name not in (REFERENCE, OURS))]
    parser.add_argument("--tools", type=_several(PEERS), default=tools, metavar="A,B", help=", ".join(tools))
    parser.add_argument(
        "--stacks",
        type=_several(stacks.names()),
        default=list(stacks.DEFAULT),
        metavar="A,B",
        help=", ".join(stacks.names()),
    )
    parser.add_argument("--runs", type=int, default=5, help="rounds of the quick tools (5)")
    parser.add_argument("--slow-runs", type=int, default=1, help="rounds of the slow ones (1)")
    parser.add_argument(
        "--limit", type=float, default=1200, help="seconds after which a run is ended and reported (1200)"
    )
    parser.add_argument("--quick", action="store_true", help="uv and envspec alone, 3 rounds of s29 and g")
    parser.add_argument(
        "--imports", action="store_true", help="install each result and import it: 2 to 8 GB each, one at a time"
    )
    parser.add_argument(
        "--bytes", choices=("proxy", "none"), default="proxy", help="count bytes, or leave the proxy out"
    )
    default = Path(tempfile.gettempdir()) / f"envspec-bench-{os.getuid()}"
    parser.add_argument("--home", default=default, help="where tools and caches are (a temporary folder, kept)")
    parser.add_argument("--output", default="bench/results", help="folder for the JSON and Markdown files")
    parser.add_argument("--label", help="in the files' names, instead of the date")
    return parser


if __name__ == "__main__":
    sys.exit(main())
