"""The conformance suite's time, check by check, and `envspec verify` against hashing alone.

    python -m bench.conformance LOCK --python ENVIRONMENT/bin/python --device cpu --output bench/results --label NAME

suite: `envspec conformance LOCK --local`, twice: the second run finds its files in memory; torch.compile compiles in
both. verify: against `sha256sum` of the same files, in one process and in as many as there are cores, with the files in
the page cache and, for root, with the cache dropped before each run. If a goal is missed, the table says so
and the exit status is 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench import machine
from bench.measure import Cost, run

LIMIT_S: Final = 1800
#: The suite's goals, seconds, after the pull and warm.
GOALS_S: Final = {"cpu": 180.0, "cuda": 60.0}
_WHAT: Final = ["suite", "verify"]
_DROP: Final = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, slots=True)
class Round:
    """One run of the suite. seconds: of the whole command. checks: name -> (status, seconds)."""

    state: str
    seconds: float
    verdict: str
    checks: dict[str, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Hashing:
    """verify and its rivals over the same files. times: name -> seconds of each run."""

    state: str
    files: int
    size_bytes: int
    times: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is asked for; 1 where a goal is missed or a command failed."""
    asked = _parser().parse_args(words)
    environ = {**os.environ, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="envspec-bench-") as name:
        folder = Path(name)
        rounds = _suite(asked, environ, folder) if "suite" in asked.what else []
        hashing = _verify(asked, environ, folder) if "verify" in asked.what else []
    told = {
        "machine": machine.describe(),
        "lock": Path(asked.lock).name,
        "device": asked.device,
        "suite": [asdict(each) for each in rounds],
        "verify": [asdict(each) for each in hashing],
    }
    text = _markdown(told["machine"], asked, rounds, hashing)
    print(text)
    if asked.output:
        # Not by with_suffix: a label such as cpu-2.9 would lose its end.
        stem = f"conformance-{machine.describe()['date']}-{asked.label}"
        (asked.output / f"{stem}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        (asked.output / f"{stem}.md").write_text(text, encoding="utf-8")
    late = [each for each in rounds if each.state == "warm" and each.seconds > GOALS_S[asked.device]]
    return 1 if late or any(each.verdict != "passed" for each in rounds) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.conformance", description=__doc__)
    parser.add_argument("lock")
    parser.add_argument("--python", type=Path, required=True, help="of an environment that was made from the lock")
    parser.add_argument("--device", choices=list(GOALS_S), default="cpu")
    parser.add_argument("--what", nargs="+", choices=_WHAT, default=_WHAT)
    parser.add_argument("--rounds", type=int, default=3, help="of verify and its rivals")
    parser.add_argument("--output", type=Path, help="a folder for the results")
    parser.add_argument("--label", default="run")
    return parser


def _suite(asked: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> list[Round]:
    return [_round(state, asked, environ, folder) for state in ("first", "warm")]


def _round(state: str, asked: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> Round:
    command = [sys.executable, "-m", "envspec", "conformance", asked.lock, "--local", "--python", asked.python]
    command += ["--device", asked.device, "--report", folder / "receipt"]
    cost = run(command, cwd=Path(), env=environ, limit_s=LIMIT_S)
    document: dict[str, Any] = {"verdict": f"no receipt: {cost.said}", "checks": []}
    if (folder / "receipt" / "receipt.json").exists():
        document = json.loads((folder / "receipt" / "receipt.json").read_text(encoding="utf-8"))
    checks = {each["check"]: (each["status"], each["seconds"]) for each in document["checks"]}
    return Round(state, cost.wall_s, document["verdict"], checks)


def _verify(asked: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> list[Hashing]:
    prefix = Path(asked.python).parents[1]
    files = _listed(prefix)
    names = folder / "files"
    names.write_bytes(b"\0".join(os.fsencode(path) for path in files))
    ways: dict[str, list[str | Path]] = {
        "envspec verify": [sys.executable, "-m", "envspec", "verify", asked.lock, "--prefix", prefix],
        "sha256sum": ["xargs", "-0", "-a", names, "sha256sum"],
        "sha256sum, one a core": ["xargs", "-0", "-a", names, "-n", "200", "-P", str(os.cpu_count()), "sha256sum"],
    }
    states: dict[str, Callable[[], None]] = {"in the page cache": lambda: None}
    if os.access(_DROP, os.W_OK):
        states["read from the disk"] = _drop
    size = sum(path.stat().st_size for path in files)
    found = []
    for state, before in states.items():
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(asked.rounds):
            for name, command in ways.items():
                before()
                times[name].append(_seconds(name, run(command, cwd=Path(), env=environ, limit_s=LIMIT_S)))
        found.append(Hashing(state, len(files), size, times))
    return found


def _seconds(name: str, cost: Cost) -> float:
    if not cost.is_done:
        raise SystemExit(f"{name} failed: {cost.said}")
    return cost.wall_s


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


def _markdown(
    told: Mapping[str, str],
    asked: argparse.Namespace,
    rounds: Sequence[Round],
    hashing: Sequence[Hashing],
) -> str:
    lines = [f"# The conformance suite on {Path(asked.lock).name}, device {asked.device}", ""]
    lines += [f"{', '.join(f'{key}: {value}' for key, value in told.items())}", ""]
    if rounds:
        goal = GOALS_S[asked.device]
        lines += [f"Goal: {goal:.0f} s, warm.", "", f"| check | {' | '.join(each.state for each in rounds)} |"]
        lines += [f"|---|{'---|' * len(rounds)}"]
        for name in rounds[0].checks:
            cells = [_cell(each.checks.get(name)) for each in rounds]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        whole = [f"{each.verdict}, {each.seconds:.1f} s{_missed(each, goal)}" for each in rounds]
        lines += [f"| the whole command | {' | '.join(whole)} |", ""]
    if hashing:
        names = list(hashing[0].times)
        lines += [f"| {hashing[0].files} files, {hashing[0].size_bytes / 1e9:.1f} GB | {' | '.join(names)} |"]
        lines += [f"|---|{'---|' * len(names)}"]
        for each in hashing:
            cells = [f"{each.median(name):.2f} s, {each.median(name) / each.median(names[1]):.2f} x" for name in names]
            lines.append(f"| {each.state}, median of {len(each.times[names[0]])} | {' | '.join(cells)} |")
        if len(hashing) == 1:
            lines.append(f"| read from the disk | {' | '.join(['not run: only root drops the page cache'] * 3)} |")
    return "\n".join(lines) + "\n"


def _missed(each: Round, goal: float) -> str:
    return " (goal missed)" if each.state == "warm" and each.seconds > goal else ""


def _cell(found: tuple[str, float] | None) -> str:
    if found is None:
        return ""
    status, seconds = found
    return f"{seconds:.1f} s" if status == "passed" else f"{seconds:.1f} s, {status}"


if __name__ == "__main__":
    sys.exit(main())
