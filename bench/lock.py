"""Locks the same stacks with envspec and its peers, side by side in one run: `python -m bench.lock --help`.

Four scenarios for each tool and stack. cold: empty caches. warm: the same request again, its result deleted.
one package added: a name that no cache has yet, the old result in place. nothing changed: the result in place; the
tool's own command for it where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path

from bench import machine, markdown, proxy, stacks
from bench.peers import PEERS
from bench.results import (
    OURS,
    REFERENCE,
    Results,
    lock_goals,
)
from bench.rounds import Bench
from bench.workshop import Workshop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _options().parse_args(arguments)
    if options.quick:
        options.tools, options.stacks, options.runs = [REFERENCE, OURS], ["s29", "g"], 3
    root = Path(options.home)
    root.mkdir(parents=True, exist_ok=True)
    about = machine.describe()
    with proxy.running() if options.bytes == "proxy" else nullcontext() as counter:
        bench = Bench(Workshop(root), counter, options.limit)
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
