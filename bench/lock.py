"""Locks the same stacks with envspec and its peers, side by side in one run: `python -m bench.lock --help`.

Four scenarios for each tool and stack. cold: empty caches. warm: the same request again, its result deleted.
one package added: a name that no cache has yet, the old result in place. nothing changed: the result in place; the
tool's own command for it if there is one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from bench import proxy, recorded_index
from bench.harness import (
    Absence,
    Cost,
    Goal,
    NotHere,
    Results,
    clean,
    names_of,
    parser_of,
    published,
    run,
    sampled,
    say,
    shown,
    table,
    uv,
)
from bench.peers import (
    ADDED,
    DEFAULT,
    PEERS,
    Command,
    Job,
    Pace,
    Peer,
    Setup,
    Stack,
    family_of,
    load_stack,
    pins_of,
    stack_names,
)
from bench.proxy import Proxy

REFERENCE: Final = "uv pip compile"
OURS: Final = "envspec"
COLD, WARM, PLUS, UNCHANGED = SCENARIOS = ("cold", "warm", "one package added", "nothing changed")
#: Bounds on envspec's time as a multiple of the reference's, and on its memory, MB.
BOUNDS: Final = {COLD: 1.0, WARM: 0.15, PLUS: 0.5}
MEMORY_MB: Final = 250
#: Runs of the commands that take hundredths of a second.
STARTS: Final = 15
#: Bound on four platforms, as a multiple of one.
PLATFORMS: Final = 1.5
#: The round that is not timed: bytes are counted in it, and what the recorded index lacks is fetched.
UNTIMED: Final = -1
#: Added to the stack's name where the index's pages count as stale at once.
LATER: Final = ", a day later"
#: Of installing a lock, seconds.
INSTALL_S: Final = 900
_HOW: Final = (
    "Medians over the rounds; the tools take turns within each round. Each tool has a home, a cache and an environment",
    "of its own. Bytes are counted by a forward proxy on loopback: in a round of its own that is not timed for the",
    "quick tools, in every run of the slow ones. Peak memory is the sum of the resident sets of the process tree,",
    "sampled every 20 ms. The recorded index is the default one's pages and metadata on loopback, each answer 20 ms",
    "late (`bench/recorded_index.py`); its pages are fresh for ten minutes, and `a day later` not at all.",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool locked for a stack: how many packages, the torch family's versions, and whether they fit together."""

    stack: str
    tool: str
    packages: int
    family: dict[str, str]
    verdict: str
    imports: str = "not tried"


class Bench:
    """A run of the benchmark.

    proxy: counts the bytes of a round of its own, whose times are left out, and of all runs of slow tools; None for no
    counting. index: simple pages that replace the default index's.
    """

    def __init__(self, setup: Setup, counter: Proxy | None, limit_s: float, results: Results, index: str = "") -> None:
        self.setup, self.proxy, self.limit_s, self.results, self.index = setup, counter, limit_s, results, index
        self.answers: list[Answer] = []

    def stack(self, stack: Stack, peers: Sequence[Peer], runs: int, slow_runs: int, index: str = "") -> None:
        """All tools on one stack, taking turns. index: instead of the benchmark's."""
        jobs = dict(self._jobs(stack, peers, index or self.index))
        allowed = {Pace.QUICK: runs, Pace.SLOW: slow_runs}
        if self.proxy is not None or self.index:
            self._round(stack, {name: job for name, job in jobs.items() if PEERS[name].pace is Pace.QUICK}, UNTIMED)
        for turn in range(runs):
            self._round(stack, {name: job for name, job in jobs.items() if turn < allowed[PEERS[name].pace]}, turn)

    def imports(self, stack: Stack, peers: Sequence[Peer]) -> None:
        """Install and import what each tool locked."""
        for place, answer in enumerate(self.answers):
            peer = PEERS[answer.tool]
            if answer.stack == stack.name and peer in peers and answer.family:
                python, folder = self.setup.python(stack.python), self.setup.root / "imports"
                outcome = try_out(self._kept(peer, stack), python, folder)
                say(f"{answer.stack:12} {answer.tool:26} imports: {outcome}")
                self.answers[place] = replace(answer, imports=outcome)

    def platforms(self, stack: Stack, runs: int) -> None:
        """Four platforms against one, both cold."""
        one = replace(stack.on("linux-64"), name="four: linux-64 alone")
        for turn in range(UNTIMED if self.index else 0, runs):
            for request in (one, stack):
                try:
                    job = self.setup.job(PEERS[OURS], request, self.index)
                except NotHere as why:
                    self.results.absences.append(Absence(request.name, OURS, COLD, str(why)))
                    return
                self._turn(PEERS[OURS], job, COLD, turn)
        alone, four = (self.results.mid(name, OURS, COLD) for name in (one.name, stack.name))
        if alone and four:
            self.results.goals.append(
                Goal("four platforms, time", stack.name, four / alone, PLATFORMS, "x one platform")
            )

    def starts(self, stack: Stack) -> None:
        """CPU time of `--help` and `lock --check` against an interpreter that does nothing."""
        peer = PEERS[OURS]
        job = self.setup.job(peer, stack, self.index)
        commands: dict[str, Command] = {
            "pass": [sys.executable, "-c", "pass"],
            "--help": [job.bin / "envspec", "--help"],
        }
        self._prepare(peer, job, COLD, stack)
        if self._run(peer, job, peer.lock(job)).is_done and peer.again is not None:
            commands["lock --check"] = peer.again(job)
        else:
            self.results.absences.append(Absence(stack.name, OURS, "lock --check, CPU", "there is no lock to check"))
        spent: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(STARTS):
            for name, command in commands.items():
                cost = self._run(peer, job, command)
                if cost.is_done:
                    spent[name].append(cost.cpu_s)
        base = median(spent.pop("pass"))
        for name, seconds in spent.items():
            if seconds:
                ratio = median(seconds) / base
                self.results.goals.append(Goal(f"`{name}`, CPU", stack.name, ratio, 8, "x `python -c pass`"))

    def _round(self, stack: Stack, jobs: Mapping[str, Job], turn: int) -> None:
        failed: set[str] = set()
        for scenario in SCENARIOS:
            for name, job in jobs.items():
                if name in failed:
                    self.results.absences.append(Absence(stack.name, name, scenario, "its cold run failed"))
                elif not self._turn(PEERS[name], job, scenario, turn) and scenario == COLD:
                    failed.add(name)

    def _jobs(self, stack: Stack, peers: Sequence[Peer], index: str) -> Iterator[tuple[str, Job]]:
        for peer in peers:
            try:
                job = self.setup.job(peer, stack, index)
            except NotHere as why:
                self.results.absences.append(Absence(stack.name, peer.name, "all", published(str(why))))
                continue
            self.results.tools[peer.name] = self.setup.version(peer, job.bin)
            yield peer.name, job

    def _turn(self, peer: Peer, job: Job, scenario: str, turn: int) -> bool:
        request = job.stack.plus(ADDED[turn % len(ADDED)]) if scenario == PLUS else job.stack
        self._prepare(peer, job, scenario, request)
        command = peer.again(job) if peer.again and scenario == UNCHANGED else peer.lock(job)
        counter = self.proxy if turn == UNTIMED or peer.pace is Pace.SLOW else None
        before = counter.counts().received if counter else 0
        cost = self._run(peer, job, command, counter)
        received = counter.counts().received - before if counter else None
        sample = sampled(job.stack.name, peer.name, scenario, turn, cost, received_bytes=received)
        if turn == UNTIMED:
            # The proxy takes part of a core.
            sample = replace(sample, figures={} if received is None else {"received_bytes": received})
        self.results.note(sample)
        if cost.is_done and scenario == COLD:
            self._keep(peer, job)
        return cost.is_done

    def _prepare(self, peer: Peer, job: Job, scenario: str, request: Stack) -> None:
        """Bring folder, result and caches into the scenario's state."""
        shutil.rmtree(job.folder)
        job.folder.mkdir()
        if scenario == COLD:
            shutil.rmtree(job.cache.parent, ignore_errors=True)
        job.cache.mkdir(parents=True, exist_ok=True)
        peer.prepare(replace(job, stack=request))
        if scenario in (PLUS, UNCHANGED):
            _copy(self._kept(peer, job.stack), job.folder / peer.result)

    def _keep(self, peer: Peer, job: Job) -> None:
        """Keep the result of a cold run: later scenarios start from it, and its pins are part of the report."""
        kept = self._kept(peer, job.stack)
        shutil.rmtree(kept.parent, ignore_errors=True)
        kept.parent.mkdir(parents=True)
        _copy(job.folder / peer.result, kept)
        locked = pins_of(kept)
        family = family_of(locked)
        answer = Answer(job.stack.name, peer.name, len(locked), family, verdict_on(family))
        others = [known for known in self.answers if (known.stack, known.tool) != (answer.stack, answer.tool)]
        self.answers = [*others, answer]

    def _kept(self, peer: Peer, stack: Stack) -> Path:
        return self.setup.root / "kept" / f"{stack.name}-{peer.name}" / peer.result

    def _run(self, peer: Peer, job: Job, command: Command, counter: Proxy | None = None) -> Cost:
        environ = self.setup.environ(peer, job, counter.url if counter else None)
        return run(command, cwd=job.folder, env=environ, limit_s=self.limit_s)


def try_out(result: Path, python: Path, folder: Path) -> str:
    """Install what was locked and import its torch family: `yes`, or what failed. folder: deleted afterwards.

    A CUDA build of torch imports on a machine without a GPU. An environment takes 2 to 8 GB.
    """
    locked = pins_of(result)
    if several := [name for name, version in locked.items() if "|" in version]:
        return f"not tried: {len(several)} names have several versions in this universal lock"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Exactly the pins, without their dependencies: what is tested is the lock, not another resolution.
    (folder / "pins").write_text("".join(f"{name}=={version}\n" for name, version in sorted(locked.items())))
    own = folder / "venv" / "bin" / "python"
    commands: dict[str, Command] = {
        "does not install": [uv(), "venv", "-q", "--python", python, folder / "venv"],
        "does not install: ": [uv(), "pip", "install", "-q", "--no-deps", "--python", own, "-r", folder / "pins"],
        "no": [own, "-c", "; ".join(f"import {name}" for name in family_of(locked))],
    }
    try:
        for failure, command in commands.items():
            done = run(command, cwd=folder, env=clean(os.environ, home=folder), limit_s=INSTALL_S)
            if not done.is_done:
                return f"{failure.rstrip(': ')}: {published((done.output or 'no message').splitlines()[-1], 200)}"
        return "yes"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def verdict_on(family: Mapping[str, str]) -> str:
    """Whether locked versions of the torch family can be imported together, by what is known of their builds.

    torchaudio up to 2.10 is built for the torch of its own minor version, whatever its metadata says; torchtext 0.18.0,
    the last, for torch 2.3. Source: imports that were tried (docs and `--imports`).
    """
    torch, audio, text = (family.get(name, "").split("+")[0] for name in ("torch", "torchaudio", "torchtext"))
    faults = []
    if audio and _minor(audio) != _minor(torch) and _minor(torch) < (2, 11):
        faults.append(f"torchaudio {audio} beside torch {torch}")
    if text and _minor(torch) >= (2, 4):
        faults.append(f"torchtext {text} beside torch {torch}")
    return "; ".join(faults) or ("coherent" if torch else "")


def goals(results: Results, stacks: Iterable[str]) -> list[Goal]:
    """The goals that compare with the reference, for each stack that both could lock."""
    found = []
    for stack in stacks:
        for scenario, bound in BOUNDS.items():
            ratio = results.ratio(stack, OURS, REFERENCE, scenario)
            if ratio is not None:
                found.append(Goal(f"{scenario}, time", stack, ratio, bound, f"x {REFERENCE}"))
        peak = results.mid(stack, OURS, COLD, "peak_bytes")
        if peak is not None:
            found.append(Goal("cold, peak memory", stack, peak / 1e6, MEMORY_MB, "MB"))
    return found


def stack_table(results: Results, answers: Sequence[Answer], stack: str) -> list[str]:
    head = ["tool", "cold s", "x uv", "CPU s", "MB read", "peak MB", "warm s", "x uv", "added s", "x uv", "unchanged s"]
    rows = []
    for tool in results.tools_of(stack):
        answer = next((found for found in answers if (found.stack, found.tool) == (stack, tool)), None)
        cells = [
            cell
            for scenario in (COLD, WARM, PLUS)
            for cell in (
                shown(results.mid(stack, tool, scenario)),
                shown(results.ratio(stack, tool, REFERENCE, scenario)),
            )
        ]
        cold = [
            shown(results.mid(stack, tool, COLD, what), form, scale)
            for what, form, scale in (("cpu_s", ".2f", 1), ("received_bytes", ".1f", 1e-6), ("peak_bytes", ".0f", 1e-6))
        ]
        locked = [str(answer.packages), answer.verdict, answer.imports] if answer else ["-", "no lock", "-"]
        rows.append([tool, *cells[:2], *cold, *cells[2:], shown(results.mid(stack, tool, UNCHANGED)), *locked])
    return table([*head, "packages", "family", "imports"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _options().parse_args(arguments)
    if options.quick:
        options.tools, options.stacks, options.runs = [REFERENCE, OURS], ["s29", "g"], 3
    options.home.mkdir(parents=True, exist_ok=True)
    results = Results(
        "Locking, side by side",
        {name: getattr(options, name) for name in ("runs", "slow_runs", "limit", "index", "bytes", "quick")},
        notes={name: PEERS[name].note for name in options.tools},
    )
    with ExitStack() as opened:
        counter, recorded = None, None
        if options.index == "recorded":
            recorded = opened.enter_context(recorded_index.running(options.home / "recording"))
            # The others fetch wheels, which are not recorded.
            options.tools = [name for name in options.tools if PEERS[name].pace is Pace.QUICK]
        elif options.bytes == "proxy":
            counter = opened.enter_context(proxy.running())
        bench = Bench(Setup(options.home), counter, options.limit, results, recorded.url if recorded else "")
        _measure(bench, options, recorded.stale_url if recorded else "")
        if recorded and (fetched := recorded.fetched()):
            say(f"{fetched} answers were not in the recording: run again for times that compare")
            results.facts["fetched"] = fetched
    stacks = dict.fromkeys(sample.subject for sample in results.samples)
    results.goals[:0] = goals(results, [name for name in stacks if name.removesuffix(LATER) in options.stacks])
    results.facts["answers"] = [asdict(answer) for answer in bench.answers]
    sections = {stack: stack_table(results, bench.answers, stack) for stack in stacks}
    return results.write(options.output, f"lock-{options.label}", results.page(sections, _HOW))


def _measure(bench: Bench, options: argparse.Namespace, later: str) -> None:
    peers = [PEERS[name] for name in options.tools]
    for name in options.stacks:
        stack = load_stack(name)
        bench.stack(stack, peers, options.runs, options.slow_runs)
        if later:
            bench.stack(replace(stack, name=stack.name + LATER), peers, options.runs, 0, later)
        if options.imports:
            bench.imports(stack, peers)
    if OURS in options.tools:
        bench.starts(load_stack(options.stacks[-1]))
        if not options.quick:
            bench.platforms(load_stack("four"), options.runs)


def _options() -> argparse.ArgumentParser:
    parser = parser_of("lock", __doc__, "envspec-bench", "tools and caches")
    add, stacks = parser.add_argument, stack_names()
    tools = list(dict.fromkeys((REFERENCE, OURS, *PEERS)))
    add("--tools", type=names_of(PEERS), default=tools, metavar="A,B", help=", ".join(tools))
    add("--stacks", type=names_of(stacks), default=list(DEFAULT), metavar="A,B", help=", ".join(stacks))
    add("--runs", type=int, default=5, help="rounds of the quick tools (5)")
    add("--slow-runs", type=int, default=1, help="rounds of the slow ones (1)")
    add("--limit", type=float, default=1200, help="seconds after which a run is ended and reported (1200)")
    add("--quick", action="store_true", help="uv and envspec alone, 3 rounds of s29 and g")
    add("--imports", action="store_true", help="install each result and import it: 2 to 8 GB each, one at a time")
    add("--index", choices=("recorded", "real"), default="recorded", help="a recording on loopback, or the real one")
    add("--bytes", choices=("proxy", "none"), default="proxy", help="count bytes, or leave the proxy out")
    return parser


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


if __name__ == "__main__":
    sys.exit(main())
