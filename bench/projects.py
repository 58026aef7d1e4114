"""Locks the specs of real projects with envspec and with `uv pip compile`, one after the other with empty caches, and
writes what comes of it into docs/measurements/projects.md: `python -m bench.projects FOLDER`.

Nothing of a project is in the page but its name, its spec's file name, and what was locked.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from bench.harness import Command, Cost, clean, describe, published, run, say, table, uv
from bench.peers import Stack, pins_of
from envspec.documents import parse_toml

PAGE: Final = Path(__file__).parents[1] / "docs" / "measurements" / "projects.md"
LIMIT_S: Final = 600
#: The bound on envspec's time over the projects that both lock.
BOUND: Final = 1.5
#: glibc of the systems that a spec's [cuda] os names; of the first, if it names none.
_GLIBC: Final = {"ubuntu22.04": "2_35", "ubuntu20.04": "2_31", "ubuntu24.04": "2_39"}
#: Of a reason, in characters.
_REASON: Final = 220


@dataclass(frozen=True, slots=True)
class Row:
    """What both tools made of a project. older, newer: `NAME OURS (THEIRS)` of its own requirements.

    others: how many other packages have another version. pins: empty where the tool refuses.
    """

    name: str
    ours: Cost
    theirs: Cost
    pins: Mapping[str, str]
    their_pins: Mapping[str, str]
    older: tuple[str, ...]
    newer: tuple[str, ...]
    others: int


def locked(path: Path) -> Row:
    """Lock one spec with both. Empty caches: each has a home of its own."""
    stack = Stack(path.stem, path.read_text(encoding="utf-8"))
    spec = parse_toml(stack.spec)
    required = {canonicalize_name(name) for text in stack.requirements if (name := _name(text))}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "spec.toml").write_text(stack.spec, encoding="utf-8")
        (folder / "requirements.in").write_text("".join(f"{text}\n" for text in stack.requirements), encoding="utf-8")
        glibc = _GLIBC.get(spec.get("cuda", {}).get("os", ""), next(iter(_GLIBC.values())))
        compiled: Command = [
            *(uv(), "pip", "compile", "requirements.in", "-o", "requirements.txt", "--quiet", "--generate-hashes"),
            *("--python-version", stack.python, "--python-platform", f"x86_64-manylinux_{glibc}"),
            *("--exclude-newer", stack.as_of.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ]
        ours = _run([sys.executable, "-m", "envspec", "lock", "spec.toml", "--output", "lock"], folder, "ours")
        theirs = _run(compiled, folder, "theirs")
        pins = pins_of(folder / "lock") if ours.is_done else {}
        their_pins = pins_of(folder / "requirements.txt") if theirs.is_done else {}
    differing = {name for name in pins.keys() & their_pins.keys() if Version(pins[name]) != Version(their_pins[name])}
    older = {name for name in differing if Version(pins[name]) < Version(their_pins[name])}

    def shown(names: set[str]) -> tuple[str, ...]:
        return tuple(f"{name} {pins[name]} ({their_pins[name]})" for name in sorted(names & required))

    found = shown(older), shown(differing - older), len(differing - required)
    return Row(stack.name, ours, theirs, pins, their_pins, *found)


def _name(text: str) -> str | None:
    try:
        return Requirement(text).name
    except InvalidRequirement:
        return None


def _run(command: Command, folder: Path, name: str) -> Cost:
    home = folder / "homes" / name
    home.mkdir(parents=True)
    # The Pythons that pyenv installed, which build sdists, are below the true home.
    pythons = {"PYENV_ROOT": os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")}
    return run(command, cwd=folder, env=clean(os.environ, home=home) | pythons, limit_s=LIMIT_S)


def seconds(rows: Sequence[Row]) -> tuple[float, float]:
    """Of envspec and of uv, over the projects that both lock."""
    both = [row for row in rows if row.pins and row.their_pins]
    return sum(row.ours.wall_s for row in both), sum(row.theirs.wall_s for row in both)


def page(rows: Sequence[Row]) -> str:
    """The page: what the projects' totals are, and a line for each."""
    both = sum(bool(row.pins and row.their_pins) for row in rows)
    ours, theirs = seconds(rows)
    machine = describe()
    head = ["project", "packages", "s", "uv: packages", "s", "older than uv's", "newer", "others that differ"]
    lines = [
        [
            row.name,
            _outcome(row.pins, row.ours),
            f"{row.ours.wall_s:.1f}",
            _outcome(row.their_pins, row.theirs),
            f"{row.theirs.wall_s:.1f}",
            ", ".join(row.older),
            ", ".join(row.newer),
            str(row.others) if row.others else "",
        ]
        for row in rows
    ]
    refused = [f"- {row.name}: {_reason(row.ours)}" for row in rows if not row.pins]
    text = [
        "# Real projects",
        "",
        f"The dependency files of {len(rows)} public projects as specs, locked for linux-64 by `envspec lock`",
        f"and by `uv pip compile --generate-hashes` (uv {version('uv')}) with empty caches, one after the other.",
        "Written by `python -m bench.projects FOLDER`,",
        f"{machine['date']}, {machine['cores']} cores of an {machine['cpu']}.",
        "",
        f"envspec locks {sum(bool(row.pins) for row in rows)}, uv {sum(bool(row.their_pins) for row in rows)}.",
        f"Time over the {both} that both lock: {ours:.0f} s, uv {theirs:.0f} s.",
        "",
        "`older` and `newer` list requirements of a project for which uv's version (in parentheses) differs.",
        "",
        *table(head, lines),
        "",
        "## Refused by `envspec lock`",
        "",
        *(refused or ["None."]),
    ]
    return "\n".join(text) + "\n"


def _outcome(pins: Mapping[str, str], cost: Cost) -> str:
    if pins:
        return str(len(pins))
    return "over its limit" if cost.exit_code is None else f"refused ({cost.exit_code})"


def _reason(cost: Cost) -> str:
    """The error in one line."""
    lines = cost.output.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), 0)
    text = published(" ".join(" ".join(lines[first:]).removeprefix("error: ").split()), 10_000)
    return text if len(text) <= _REASON else f"{text[:_REASON]} ..."


def main(arguments: Sequence[str] | None = None) -> int:
    """Lock all, and write the page; 0 if the time is within its bound, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.projects", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("specs", type=Path, nargs="+", metavar="SPEC", help="specs, or folders of them")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page")
    options = parser.parse_args(arguments)
    rows = []
    for path in (
        each for given in options.specs for each in (sorted(given.glob("*.toml")) if given.is_dir() else [given])
    ):
        row = locked(path)
        rows.append(row)
        sides = ((row.pins, row.ours), (row.their_pins, row.theirs))
        ours, theirs = (f"{_outcome(pins, cost):>14} {cost.wall_s:6.1f} s" for pins, cost in sides)
        say(f"{row.name:24} envspec {ours}  uv {theirs}  {', '.join(row.older)}")
    options.output.write_text(page(rows), encoding="utf-8")
    ours_s, theirs_s = seconds(rows)
    return 0 if ours_s <= BOUND * theirs_s else 1


if __name__ == "__main__":
    sys.exit(main())
