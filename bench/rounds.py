"""The rounds of the benchmark: every tool in every scenario, taking turns, and what came of each run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Final

from bench import imports, pins, stacks
from bench.measure import Cost, run
from bench.peers import PEERS, Job, Pace, Peer
from bench.proxy import Proxy
from bench.results import OURS, Absence, Answer, Goal, Sample, Scenario, mid, published, verdict_on
from bench.stacks import Stack
from bench.workshop import NotHere, Workshop

#: Runs of the commands that take hundredths of a second.
STARTS: Final = 15
#: The round in which bytes are counted.
COUNTING: Final = -1


@dataclass(slots=True)
class Bench:
    """A run of the benchmark: its options, and what it has found so far.

    proxy: counts the bytes of a round of its own, whose times are left out, and of all runs of slow tools; None for no
    counting.
    """

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
        if self.proxy is not None:
            self._round(stack, {name: job for name, job in jobs.items() if PEERS[name].pace is Pace.QUICK}, COUNTING)
        for turn in range(runs):
            allowed = {Pace.QUICK: runs, Pace.SLOW: slow_runs}
            self._round(stack, {name: job for name, job in jobs.items() if turn < allowed[PEERS[name].pace]}, turn)

    def _round(self, stack: Stack, jobs: Mapping[str, Job], turn: int) -> None:
        failed: set[str] = set()
        for scenario in Scenario:
            for name, job in jobs.items():
                if name in failed:
                    self.absences.append(Absence(stack.name, name, scenario.value, "its cold run failed"))
                elif not self._turn(PEERS[name], job, scenario, turn) and scenario is Scenario.COLD:
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
        base = median(spent.pop("pass"))
        for name, seconds in spent.items():
            if seconds:
                self.goals.append(Goal(f"`{name}`, CPU", stack.name, median(seconds) / base, 8, "x `python -c pass`"))

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
        proxy = self.proxy if turn == COUNTING or peer.pace is Pace.SLOW else None
        before = proxy.counts().received if proxy else 0
        cost = self._run(peer, job, command, proxy)
        received = proxy.counts().received - before if proxy else None
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

    def _run(self, peer: Peer, job: Job, command: Sequence[str | Path], proxy: Proxy | None = None) -> Cost:
        environ = self.workshop.environ(peer, job, proxy.url if proxy else None)
        return run(command, cwd=job.folder, env=environ, limit_s=self.limit_s)


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
