"""Locks the same stacks with envspec and its peers, side by side in one run: `python -m bench.lock --help`.

Scenarios of each tool and stack, in this order. cold: empty caches. again: the same request, its result in place.
check: the tool's own command that checks its result. one package added: a package that no cache has, the old result in
place. On the recorded index all but the third follow once more with pages that caches have to request again, as a day
later. Tools that take long, and all tools on the real index, are run cold alone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from bench.harness import (
    Absence,
    Command,
    Cost,
    Goal,
    NotHere,
    Results,
    Watch,
    names_of,
    parser_of,
    published,
    run,
    sampled,
    say,
    shown,
    table,
    use_realtime,
)
from bench.peers import ADDED, DEFAULT, FOUR, PEERS, Job, Pace, Peer, Setup, Stack, load_stack, pins_of, stack_names
from bench.recorded_index import Recorded, running

REFERENCE: Final = "uv pip compile"
OURS: Final = "envspec"
#: Added to a scenario's name if caches have to request the index's pages again.
LATER: Final = ", a day later"
COLD, AGAIN, CHECK, PLUS = "cold", "again", "check", "one package added"
AGAIN_LATER, PLUS_LATER = AGAIN + LATER, PLUS + LATER
_FURTHER: Final = (AGAIN, AGAIN_LATER, CHECK, PLUS, PLUS_LATER)
#: Bounds on envspec's time as a multiple of the reference's, on each stack, and on the median of the stacks.
TIMES: Final = {COLD: 1.1, AGAIN: 1.0, AGAIN_LATER: 0.15, PLUS: 3.0, PLUS_LATER: 1.0}
COLD_MEDIAN: Final = 1.0
#: On the CPU time of a cold lock, as a multiple, and on its memory without uv's, MB.
CPU: Final = 2.2
MEMORY_MB: Final = 150
#: Of a cold lock of four platforms, beside one platform of the reference.
FOUR_TIMES: Final = 1.7
FOUR_MB: Final = 220
#: An interpreter that does nothing, and the CPU times of commands as multiples of its.
PASS: Final = "python -c pass"
STARTS: Final = {"--help": 4, "lock --check": 8, "lock --check, again": 8, "lock --check, empty cache": 25}
#: Beside the stacks: what takes hundredths of a second.
STARTS_ALONE: Final = "starts"
#: Lines of a table without rows.
_EMPTY: Final = 2
DOCS: Final = Path(__file__).parent.parent / "docs" / "measurements" / "benchmarks.md"
#: The round that is not timed: memory is sampled and bytes are counted in it, and the recording is completed.
UNTIMED: Final = -1
_HOW: Final = (
    "The tools take turns within each round, and in turns are the first. Seconds are medians over the rounds, ratios",
    "are medians of the ratios within the rounds. Each tool has a home, a cache and an environment of its own. uv",
    "resolves for the exact Python and the glibc that envspec resolves for. Memory and bytes are those of a round of",
    "its own that is not timed (slow tools: of the timed one). Memory is the sum of the processes' resident sets,",
    "sampled every 20 ms; envspec's is without that of its uv. CPU time is that of all processes. The recorded index",
    "is the default one's pages and metadata on loopback, each answer 20 ms late (`bench/recorded_index.py`); its",
    "pages are fresh for ten minutes, and `a day later` not at all.",
)


class Bench:
    """A run of the benchmark. recorded: None on the real index.

    pins: (stack, tool) -> what it locked. fetched: how many answers the recorded index lacked in timed rounds.
    """

    def __init__(self, setup: Setup, recorded: Recorded | None, limit_s: float, results: Results) -> None:
        self.setup, self.recorded, self.limit_s, self.results = setup, recorded, limit_s, results
        self.pins: dict[tuple[str, str], dict[str, str]] = {}
        self.fetched = 0

    def stack(self, stack: Stack, peers: Iterable[Peer], runs: int, slow_runs: int) -> None:
        """All tools on one stack."""
        jobs = dict(self._jobs(stack, peers))
        quick = {name: job for name, job in jobs.items() if PEERS[name].pace is Pace.QUICK}
        is_whole = self.recorded is not None and stack.name != FOUR
        scenarios = (COLD, AGAIN, CHECK, PLUS) if is_whole else (COLD,)
        for turn in range(UNTIMED, max(runs, slow_runs)):
            before = self.recorded.counts().fetched if self.recorded else 0
            if turn < runs:
                self._round(quick, turn, scenarios)
                if is_whole and self.recorded:
                    later = {name: replace(job, index=self.recorded.later_url) for name, job in quick.items()}
                    self._round(later, turn, (COLD, AGAIN, PLUS), LATER)
            if UNTIMED < turn < slow_runs:
                self._round({name: job for name, job in jobs.items() if name not in quick}, turn, (COLD,))
            if turn != UNTIMED and self.recorded:
                self.fetched += self.recorded.counts().fetched - before

    def starts(self, stack: Stack, runs: int) -> None:
        """CPU time of `--help` and of `lock --check`: the first after a lock, the same again, and on another machine.

        A check is remembered, so the first one starts each time from the cache as the lock left it.
        """
        peer = PEERS[OURS]
        job = self.setup.job(peer, stack)
        peer.prepare(job)
        made = self._run(peer, job, peer.lock(job), Watch.TIME)
        if not made.is_done:
            self.results.absences.append(Absence("starts", OURS, "all", f"no lock: {published(made.output)}"))
            return
        check = [*peer.lock(job), "--check"]
        locked = job.cache.with_name("locked")
        shutil.copytree(job.cache, locked)
        first = replace(job, cache=job.cache.with_name("first"))
        empty = replace(job, cache=job.cache.with_name("empty"))
        commands: dict[str, tuple[Job, Command]] = {
            PASS: (job, [sys.executable, "-c", "pass"]),
            "--help": (job, [job.bin / "envspec", "--help"]),
            "lock --check": (first, check),
            "lock --check, again": (job, check),
            "lock --check, empty cache": (empty, check),
        }
        for turn in range(UNTIMED, runs):
            for name in _in_turn(commands, turn):
                job, command = commands[name]
                for changed in (first.cache, empty.cache):
                    shutil.rmtree(changed, ignore_errors=True)
                shutil.copytree(locked, first.cache)
                cost = self._run(peer, job, command, Watch.TIME)
                if turn != UNTIMED:
                    self.results.note(sampled("starts", name, "CPU", turn, cost))

    def _jobs(self, stack: Stack, peers: Iterable[Peer]) -> Iterator[tuple[str, Job]]:
        for peer in peers:
            try:
                job = self.setup.job(peer, stack)
            except NotHere as why:
                self.results.absences.append(Absence(stack.name, peer.name, "all", published(str(why))))
                continue
            self.results.tools[peer.name] = self.setup.version(peer, job.bin)
            yield peer.name, job

    def _round(self, jobs: Mapping[str, Job], turn: int, scenarios: Sequence[str], later: str = "") -> None:
        """later: added to the scenarios' names."""
        left = dict(jobs)
        for scenario in scenarios:
            for name in _in_turn(left, turn):
                peer, job = PEERS[name], left[name]
                if scenario == CHECK and peer.check is None:
                    continue
                if not self._turn(peer, job, scenario, turn, later) and scenario == COLD:
                    why = "its cold run failed"
                    self.results.absences.append(Absence(job.stack.name, name, "all but cold", why))
                    del left[name]

    def _turn(self, peer: Peer, job: Job, scenario: str, turn: int, later: str) -> bool:
        if scenario == COLD:
            shutil.rmtree(job.folder)
            shutil.rmtree(job.cache.parent)
            job.folder.mkdir()
            job.cache.mkdir(parents=True)
            peer.prepare(job)
        elif scenario == PLUS:
            peer.prepare(replace(job, stack=job.stack.plus(ADDED)))
        command = peer.lock(job)
        if scenario == CHECK and peer.check:
            command = peer.check(job)
        is_quick_timed = peer.pace is Pace.QUICK and turn != UNTIMED
        before = self.recorded.counts().sent if self.recorded else 0
        cost = self._run(peer, job, command, Watch.TIME if is_quick_timed else Watch.MEMORY)
        figures: dict[str, float] = {}
        if not is_quick_timed:
            figures["rest_bytes"] = cost.rest_bytes
            if self.recorded:
                figures["received_bytes"] = self.recorded.counts().sent - before
        sample = sampled(job.stack.name, peer.name, scenario + later, turn, cost, **figures)
        if turn == UNTIMED:
            sample = replace(sample, figures=figures)
        self.results.note(sample)
        if cost.is_done and scenario == COLD:
            self.pins[job.stack.name, peer.name] = pins_of(job.folder / peer.result)
        return cost.is_done

    def _run(self, peer: Peer, job: Job, command: Command, watch: Watch) -> Cost:
        environ = self.setup.environ(peer, job)
        without = (peer.engine,)
        return run(command, cwd=job.folder, env=environ, limit_s=self.limit_s, watch=watch, without=without)


def _in_turn(names: Iterable[str], turn: int) -> list[str]:
    """Forwards and backwards in turns: a machine's speed drifts."""
    return sorted(names, reverse=bool(turn % 2))


# ------------------------------------------------------------------------------------------------------------ results


def goals(results: Results, stacks: Sequence[str]) -> Iterator[Goal]:
    """envspec beside the reference, on each stack that both could lock. stacks: of one platform."""
    for scenario, bound in TIMES.items():
        ratios = _ratios(results, stacks, scenario)
        if scenario == COLD and ratios:
            yield Goal(f"{scenario}, time", "median", median(ratios.values()), COLD_MEDIAN, f"x {REFERENCE}")
        for stack, ratio in ratios.items():
            yield Goal(f"{scenario}, time", stack, ratio, bound, f"x {REFERENCE}")
    for stack, ratio in _ratios(results, stacks, COLD, "cpu_s").items():
        yield Goal("cold, CPU", stack, ratio, CPU, f"x {REFERENCE}")
    yield from _memory_goals(results, stacks, MEMORY_MB)
    for stack, ratio in _ratios(results, [FOUR], COLD).items():
        yield Goal("four platforms, cold, time", stack, ratio, FOUR_TIMES, f"x {REFERENCE} of one")
    yield from _memory_goals(results, [FOUR], FOUR_MB)
    for command, bound in STARTS.items():
        found = results.ratio("starts", command, PASS, "CPU", "cpu_s")
        if found is not None:
            yield Goal(f"`{command}`, CPU", "starts", found, bound, f"x `{PASS}`")


def _ratios(results: Results, stacks: Iterable[str], scenario: str, what: str = "wall_s") -> dict[str, float]:
    found = {}
    for stack in stacks:
        ratio = results.ratio(stack, OURS, REFERENCE, scenario, what)
        if ratio is not None:
            found[stack] = ratio
    return found


def _memory_goals(results: Results, stacks: Iterable[str], bound: float) -> Iterator[Goal]:
    for stack in stacks:
        peak = results.mid(stack, OURS, COLD, "rest_bytes")
        if peak is not None:
            yield Goal("cold, peak memory without uv's", stack, peak / 1e6, bound, "MB")


def pair_table(results: Results, stacks: Iterable[str]) -> list[str]:
    """envspec beside the reference: a row for each stack."""
    scenarios = (AGAIN, AGAIN_LATER, PLUS, PLUS_LATER)
    rows = []
    for stack in stacks:
        seconds = [shown(results.mid(stack, tool, COLD)) for tool in (REFERENCE, OURS)]
        ratios = [shown(results.ratio(stack, OURS, REFERENCE, COLD, what)) for what in ("wall_s", "cpu_s")]
        ratios += [shown(results.ratio(stack, OURS, REFERENCE, scenario)) for scenario in scenarios]
        memory = [shown(results.mid(stack, tool, COLD, "rest_bytes"), ".0f", 1e-6) for tool in (REFERENCE, OURS)]
        rows.append([stack, ", ".join(seconds), *ratios, ", ".join(memory)])
    head = ["stack", "cold: uv, envspec, s", "x", "CPU x", *(f"{scenario}, x" for scenario in scenarios)]
    return table([*head, "peak memory: uv, envspec, MB"], rows)


def peer_table(results: Results, stacks: Sequence[str]) -> list[str]:
    """Cold locks of all tools: seconds, and as multiples of the reference's."""
    tools = dict.fromkeys(tool for stack in stacks for tool in results.tools_of(stack))
    rows = []
    for tool in tools:
        cells = []
        for stack in stacks:
            seconds, ratio = results.mid(stack, tool, COLD), results.ratio(stack, tool, REFERENCE, COLD)
            cells.append("-" if seconds is None else f"{shown(seconds)} ({shown(ratio, '.3g')})")
        rows.append([tool, *cells])
    return table(["tool", *(f"{stack}, s (x)" for stack in stacks)], rows)


def pin_table(pins: Mapping[tuple[str, str], Mapping[str, str]]) -> list[str]:
    """Where the reference and envspec locked other versions. torchaudio's metadata allows more than its build."""
    rows = []
    for stack, tool in pins:
        if tool != OURS or (stack, REFERENCE) not in pins:
            continue
        own, other = pins[stack, OURS], pins[stack, REFERENCE]
        changed = [
            f"{name} {other.get(name, '-')}, {own.get(name, '-')}"
            for name in sorted(own.keys() | other.keys())
            if own.get(name) != other.get(name)
        ]
        verdicts = [verdict_on(found) for found in (other, own)]
        rows.append([stack, f"{len(other)}, {len(own)}", "; ".join(changed) or "none", *verdicts])
    head = ["stack", "packages: uv, envspec", "other pins: uv, envspec", "torch family of uv", "of envspec"]
    return table(head, rows)


def verdict_on(pins: Mapping[str, str]) -> str:
    """Whether locked versions of the torch family can be imported together, by what is known of their builds.

    torchaudio up to 2.10 is built for the torch of its own minor version, whatever its metadata says; torchtext 0.18.0,
    the last, for torch 2.3. Source: imports that were tried (bench/results/lock-2026-11-20-imports.md).
    """
    torch, audio, text = (pins.get(name, "").split("+")[0] for name in ("torch", "torchaudio", "torchtext"))
    faults = []
    if audio and _minor(audio) != _minor(torch) and _minor(torch) < (2, 11):
        faults.append(f"torchaudio {audio} with torch {torch}: its import fails")
    if text and _minor(torch) >= (2, 4):
        faults.append(f"torchtext {text} with torch {torch}: its import fails")
    return "; ".join(faults) or ("coherent" if torch else "-")


def stack_table(results: Results, pins: Mapping[tuple[str, str], Mapping[str, str]], stack: str) -> list[str]:
    """All figures of one stack."""
    head = ["tool", "cold s", "CPU s", "MB read", "peak MB", *(f"{name} s" for name in _FURTHER), "packages", "family"]
    rows = []
    for tool in results.tools_of(stack):
        cells = [shown(results.mid(stack, tool, COLD, what)) for what in ("wall_s", "cpu_s")]
        cells += [shown(results.mid(stack, tool, COLD, what), ".1f", 1e-6) for what in ("received_bytes", "rest_bytes")]
        cells += [shown(results.mid(stack, tool, scenario), ".3f") for scenario in _FURTHER]
        locked = pins.get((stack, tool), {})
        rows.append([tool, *cells, str(len(locked)), verdict_on(locked)])
    return table(head, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _read(arguments)
    stated: dict[str, object] = {name: getattr(options, name) for name in _STATED}
    results = Results("Locking, side by side", stated, notes={name: PEERS[name].note for name in options.tools})
    with ExitStack() as opened:
        recorded, setup = None, Setup(options.home)
        try:
            if options.realtime:
                use_realtime()
            if options.index == "recorded":
                tls = options.home / "tls" if options.tls else None
                recorded = opened.enter_context(running(options.home / "recording", tls))
                setup = Setup(options.home, recorded.url, recorded.certificate)
        except NotHere as why:
            raise SystemExit(f"error: {why}") from None
        bench = Bench(setup, recorded, options.limit, results)
        peers = [PEERS[name] for name in options.tools]
        for name in options.stacks:
            if name == STARTS_ALONE:
                bench.starts(load_stack("s29"), options.runs)
            elif name == FOUR:
                bench.stack(load_stack(name), [PEERS[REFERENCE], PEERS[OURS]], options.runs, 0)
            else:
                bench.stack(load_stack(name), peers, options.runs, options.slow_runs)
    if recorded:
        stated["answers that the recording lacked"] = bench.fetched
    if bench.fetched:
        say(f"{bench.fetched} answers were not in the recording: run again for times that compare")
    return _write(results, bench, options)


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _options()
    options = parser.parse_args(arguments)
    if options.tls and options.index == "real":
        parser.error("--tls: the real index has TLS")
    if options.quick:
        options.tools, options.stacks, options.runs = [REFERENCE, OURS], ["s29", "g"], 3
    return options


def _write(results: Results, bench: Bench, options: argparse.Namespace) -> int:
    stacks = [name for name in options.stacks if name not in (FOUR, STARTS_ALONE)]
    results.goals = list(goals(results, stacks))
    results.facts["pins"] = {f"{stack}, {tool}": found for (stack, tool), found in bench.pins.items()}
    summary = {
        "envspec and uv": pair_table(results, [name for name in options.stacks if name != STARTS_ALONE]),
        "All tools, cold": peer_table(results, stacks),
        "Pins": pin_table(bench.pins),
    }
    details = {stack: stack_table(results, bench.pins, stack) for stack in stacks}
    summary = {heading: lines for heading, lines in summary.items() if len(lines) > _EMPTY}
    page = results.page({**summary, **details}, _HOW)
    if options.docs:
        _put_into(DOCS, "recorded with TLS" if options.tls else options.index, page, 1 + len(summary))
    return results.write(options.output, f"lock-{options.label}", page)


def _put_into(document: Path, part: str, page: str, sections: int) -> None:
    """Replace a part of a document, between its marker and the end's, by so many sections of the page."""
    summary = page.split("\n", 2)[2].split("\n## ")[: 1 + sections]
    # In bold: headings of one name on one page have no anchors of their own.
    found = "".join(re.sub("(.*)", r"\n**\1**", section, count=1) for section in summary[1:])
    options = page[page.index("\nOptions: ") :].split("\n")[1]
    marker = re.compile(f"(<!-- bench.lock: {part} -->\n).*?(<!-- end -->)", re.DOTALL)
    text = document.read_text(encoding="utf-8")
    text = marker.sub(lambda match: f"{match[1]}\n{summary[0]}{found}\n{options}\n\n{match[2]}", text)
    document.write_text(text, encoding="utf-8")


_STATED: Final = ("runs", "slow_runs", "limit", "index", "tls", "realtime")


def _options() -> argparse.ArgumentParser:
    parser = parser_of("lock", __doc__, "envspec-bench", "tools, caches and the recording")
    add, stacks = parser.add_argument, [*stack_names(), STARTS_ALONE]
    default = [*DEFAULT, FOUR, STARTS_ALONE]
    add("--tools", type=names_of(PEERS), default=list(PEERS), metavar="A,B", help=", ".join(PEERS))
    add("--stacks", type=names_of(stacks), default=default, metavar="A,B", help=", ".join(stacks))
    add("--runs", type=int, default=9, help="rounds of the quick tools (9)")
    add("--slow-runs", type=int, default=1, help="rounds of the slow ones (1)")
    add("--limit", type=float, default=1200, help="seconds after which a run is ended and reported (1200)")
    add("--quick", action="store_true", help="uv and envspec alone, 3 rounds of s29 and g")
    add("--index", choices=("recorded", "real"), default="recorded", help="a recording on loopback, or the real one")
    add("--tls", action="store_true", help="the recorded index with TLS and a certificate of its own")
    add("--realtime", action="store_true", help="before all other work of the machine (SCHED_FIFO; needs root)")
    add("--docs", action="store_true", help="also write the tables into docs/measurements/benchmarks.md")
    return parser


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


if __name__ == "__main__":
    sys.exit(main())
