"""The conformance suite's time, check by check, and `envspec verify` against hashing alone.

    python -m bench.conformance LOCK --python ENVIRONMENT/bin/python --device cpu --output bench/results --label NAME

suite: `envspec conformance LOCK --local`, twice: the second run finds its files in memory; torch.compile compiles in
both. verify: against `sha256sum` of the same files, in one process and in as many as there are cores, with the files in
the page cache and, for root, with the cache dropped before each run. A missed goal is in the table and exit status 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.harness import Command, Goal, Results, Sample, describe, run, sampled, shown, table

LIMIT_S: Final = 1800
#: The suite's goals, seconds, after the pull and warm; on a GPU 30 of them are `sustained`.
GOALS_S: Final = {"cpu": 180.0, "cuda": 90.0}
FIRST, WARM = "first", "warm"
_WHAT: Final = ("suite", "verify")
_DROP: Final = Path("/proc/sys/vm/drop_caches")


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is requested; 1 if a goal is missed or a command failed."""
    options = _parser().parse_args(words)
    name = Path(options.lock).name
    results = Results(
        f"The conformance suite on {name}, device {options.device}",
        {"device": options.device, "lock": name},
        tools={"envspec": version("envspec")},
    )
    environ = {**os.environ, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sections: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="envspec-bench-") as folder:
        if "suite" in options.what:
            sections["The suite"] = _suite(results, options, environ, Path(folder))
        if "verify" in options.what:
            sections["verify"] = _verify(results, options, environ, Path(folder))
    text = results.page(sections, ["Each command is a process of its own."])
    if options.output:
        status = results.write(options.output, f"conformance-{describe()['date']}-{options.label}", text)
    else:
        print(text)
        status = 0 if all(goal.is_met for goal in results.goals) else 1
    return 1 if any(sample.exit_code != 0 for sample in results.samples) else status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.conformance", description=__doc__)
    parser.add_argument("lock")
    parser.add_argument("--python", type=Path, required=True, help="of an environment that was made from the lock")
    parser.add_argument("--device", choices=list(GOALS_S), default="cpu")
    parser.add_argument("--what", nargs="+", choices=_WHAT, default=_WHAT)
    parser.add_argument("--rounds", type=int, default=3, help="of verify and the commands beside it")
    parser.add_argument("--output", type=Path, help="a folder for the results")
    parser.add_argument("--label", default="run")
    return parser


def _suite(results: Results, options: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> list[str]:
    checks: dict[str, dict[str, str]] = {}
    for state in (FIRST, WARM):
        receipt = folder / state
        command: Command = [sys.executable, "-m", "envspec", "conformance", options.lock, "--local"]
        command = [*command, "--python", options.python, "--device", options.device, "--report", receipt]
        cost = run(command, cwd=Path(), env=environ, limit_s=LIMIT_S)
        results.note(sampled("suite", "envspec conformance", state, 0, cost))
        document: dict[str, Any] = {"verdict": f"no receipt: {cost.output}", "checks": []}
        if (receipt / "receipt.json").exists():
            document = json.loads((receipt / "receipt.json").read_text(encoding="utf-8"))
        if document["verdict"] != "passed":
            results.samples.append(Sample("suite", "verdict", state, 0, {}, 1, document["verdict"]))
        for each in document["checks"]:
            status = "" if each["status"] == "passed" else f", {each['status']}"
            checks.setdefault(each["check"], {})[state] = f"{each['seconds']:.1f} s{status}"
        checks.setdefault("the whole command", {})[state] = f"{document['verdict']}, {cost.wall_s:.1f} s"
    warm = results.mid("suite", "envspec conformance", WARM)
    if warm is not None:
        results.goals.append(Goal("the suite, warm", options.device, warm, GOALS_S[options.device], "s"))
    results.facts["checks"] = checks
    last = checks.pop("the whole command")
    rows = [[name, *(cells.get(state, "") for state in (FIRST, WARM))] for name, cells in checks.items()]
    return table(["check", FIRST, WARM], [*rows, ["the whole command", *last.values()]])


def _verify(results: Results, options: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> list[str]:
    prefix = options.python.parents[1]
    files = _listed(prefix)
    names = folder / "files"
    names.write_bytes(b"\0".join(os.fsencode(path) for path in files))
    commands: dict[str, Command] = {
        "envspec verify": [sys.executable, "-m", "envspec", "verify", options.lock, "--prefix", prefix],
        "sha256sum": ["xargs", "-0", "-a", names, "sha256sum"],
        "sha256sum, one a core": ["xargs", "-0", "-a", names, "-n", "200", "-P", str(os.cpu_count()), "sha256sum"],
    }
    states: dict[str, Callable[[], None]] = {"in the page cache": lambda: None}
    if os.access(_DROP, os.W_OK):
        states["read from the disk"] = _drop
    size = sum(path.stat().st_size for path in files)
    rows = []
    for state, before in states.items():
        for turn in range(options.rounds):
            for name, command in commands.items():
                before()
                cost = run(command, cwd=Path(), env=environ, limit_s=LIMIT_S)
                results.note(sampled("verify", name, state, turn, cost))
        cells = [
            f"{shown(results.mid('verify', name, state))} s, "
            f"{shown(results.ratio('verify', name, 'sha256sum', state))} x"
            for name in commands
        ]
        rows.append([f"{state}, median of {options.rounds}", *cells])
    if len(states) == 1:
        rows.append(["read from the disk", *["not run: only root drops the page cache"] * len(commands)])
    return table([f"{len(files)} files, {size / 1e9:.1f} GB", *commands], rows)


def _drop() -> None:
    os.sync()
    _DROP.write_text("3", encoding="ascii")


def _listed(prefix: Path) -> list[Path]:
    """Every file that a RECORD of the environment lists with a hash."""
    found: dict[Path, None] = {}
    for record in sorted(prefix.glob("lib/python3*/site-packages/*.dist-info/RECORD")):
        site = record.parents[1]
        with record.open(encoding="utf-8", newline="") as rows:
            for row in csv.reader(rows):
                path = Path(os.path.normpath(site / row[0]))
                if row[1] and path.is_file():
                    found[path] = None
    return list(found)


if __name__ == "__main__":
    sys.exit(main())
