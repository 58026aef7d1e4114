"""Locks each CUDA extension of envspec's data beside each minor version of torch, with envspec and with
`uv pip compile`, and writes what comes of it into docs/measurements/extensions.md: `python -m bench.extensions`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from bench.harness import Command, Cost, clean, describe, published, run, say, table, uv
from bench.peers import pins_of
from envspec.facts import load_facts
from envspec.facts.tables import numeric
from envspec.facts.torch import extra_requirements

PAGE: Final = Path(__file__).parents[1] / "docs" / "measurements" / "extensions.md"
#: The oldest torch of the page.
FIRST: Final = "2.6"
PYTHON: Final = "3.12"
LIMIT_S: Final = 300
#: Of a reason, in characters.
_REASON: Final = 240
#: The extra that brings the extension.
_EXTRAS: Final[Mapping[str, str]] = {"transformer-engine": "transformer-engine[pytorch]"}


@dataclass(frozen=True, slots=True)
class Cell:
    """What both tools lock of an extension beside a torch: a version, or empty with the reason.

    wrong: why uv's cannot be right.
    """

    ours: str
    theirs: str
    reason: str = ""
    wrong: str = ""


def families() -> list[str]:
    """The extensions that a spec may name: not those whose name is another package's, or in no index."""
    facts = load_facts()
    return [name for name in dict.fromkeys(row.package for row in facts.extensions) if name not in facts.misnamed]


def torches() -> list[str]:
    """The minor versions of torch from `FIRST` on, oldest first."""
    minors = dict.fromkeys(".".join(row.version.split(".")[:2]) for row in load_facts().torch)
    return [minor for minor in minors if numeric(minor) >= numeric(FIRST)]


def locked(name: str, torch: str, homes: Path) -> Cell:
    """Lock one extension beside one torch with both tools. homes: their caches, which all cells share."""
    required = [f"torch=={torch}.*", _EXTRAS.get(name, name)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = ", ".join(f'"{each}"' for each in required)
        (folder / "spec.toml").write_text(
            f'[env]\nname = "case"\npython = "{PYTHON}"\nplatforms = ["linux-64"]\n\n'
            f"[pip]\ndependencies = [{lines}]\n\n[cuda]\n",
            encoding="utf-8",
        )
        (folder / "requirements.in").write_text("".join(f"{each}\n" for each in required), encoding="utf-8")
        compiled: Command = [
            *(uv(), "pip", "compile", "requirements.in", "-o", "requirements.txt", "--quiet"),
            *("--python-version", PYTHON, "--python-platform", "x86_64-manylinux_2_39"),
        ]
        ours = _run([sys.executable, "-m", "envspec", "lock", "spec.toml", "--output", "lock"], folder, homes / "ours")
        theirs = _run(compiled, folder, homes / "theirs")
        pins = pins_of(folder / "lock") if ours.is_done else {}
        their_pins = pins_of(folder / "requirements.txt") if theirs.is_done else {}
    wrong = _wrong(name, their_pins) if their_pins else ""
    return Cell(pins.get(name, ""), their_pins.get(name, ""), _reason(ours), wrong)


def _wrong(name: str, pins: Mapping[str, str]) -> str:
    """What the facts say of an extension's release beside another torch than its own."""
    for line, row in extra_requirements(load_facts(), name, pins[name]):
        requirement = Requirement(line)
        if requirement.name == "torch" and not requirement.specifier.contains(Version(pins["torch"]).public):
            return f"{name} {pins[name]} beside torch {pins['torch']}: {row.reason}"
    return ""


def _run(command: Command, folder: Path, home: Path) -> Cost:
    home.mkdir(parents=True, exist_ok=True)
    # The Pythons that pyenv installed, which build sdists, are below the true home.
    pythons = {"PYENV_ROOT": os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")}
    return run(command, cwd=folder, env=clean(os.environ, home=home) | pythons, limit_s=LIMIT_S)


def _reason(cost: Cost) -> str:
    """The error in one line; empty without one."""
    if cost.is_done:
        return ""
    lines = cost.output.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), 0)
    text = published(" ".join(" ".join(lines[first:]).removeprefix("error: ").split()), 10_000)
    return text if len(text) <= _REASON else f"{text[:_REASON]} ..."


def page(cells: Mapping[tuple[str, str], Cell]) -> str:
    """The page: a table for each tool, and the reasons."""
    names, minors = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    machine = describe()
    both = [(each.ours, each.theirs, each.wrong) for each in cells.values()]
    ours, theirs, wrong = (sum(map(bool, found)) for found in zip(*both, strict=True))

    def rows(tool: str) -> list[list[str]]:
        return [[name, *(_shown(cells[name, minor], tool) for minor in minors)] for name in names]

    def listed(texts: Sequence[str]) -> list[str]:
        return [f"- {text}" for text in dict.fromkeys(texts)] or ["None."]

    refused = [f"{name}, torch {minor}: {cells[name, minor].reason}" for name, minor in _first(cells)]
    return "\n".join(
        [
            "# CUDA extensions beside torch",
            "",
            "Each extension of `envspec/data/extensions.toml` that the default index may have, locked together with",
            f"each minor version of torch from {FIRST} on, for Python {PYTHON} on linux-64, by `envspec lock`",
            f"with `[cuda]`, and by `uv pip compile` (uv {version('uv')}). Written by",
            f"`python -m bench.extensions`, {machine['date']}, {machine['cores']} cores of an {machine['cpu']}.",
            "",
            f"Of {len(both)} pairs, envspec locks {ours}. Most others need a build, which `[pip.build]` allows, or the",
            f"project's own page of wheels, which the error names. uv locks {theirs}. Of these, {wrong} cannot be",
            "imported with their torch (**bold**). Those marked sdist fail when they are installed, or are compiled",
            "for whatever torch their build gets. How to lock an extension:",
            "[CUDA extensions](../how-to/cuda-extensions.md).",
            "",
            "## envspec",
            "",
            *table(["extension", *minors], rows("ours")),
            "",
            "build: there is only an sdist. no: another reason, below.",
            "",
            "## uv",
            "",
            *table(["extension", *minors], rows("theirs")),
            "",
            "sdist: uv locks an sdist. no: no release fits, or its metadata needs a build, which fails without torch.",
            "",
            "## Wrong choices of uv",
            "",
            *listed([each.wrong for each in cells.values() if each.wrong]),
            "",
            "## Refused by `envspec lock`",
            "",
            *listed(refused),
            "",
        ]
    )


def _first(cells: Mapping[tuple[str, str], Cell]) -> list[tuple[str, str]]:
    """The newest torch of each extension that envspec refuses."""
    found = {name: (name, minor) for (name, minor), each in cells.items() if not each.ours}
    return list(found.values())


def _shown(cell: Cell, tool: str) -> str:
    if tool == "ours":
        return cell.ours or ("build" if "only an sdist" in cell.reason else "no")
    is_sdist = cell.theirs and "only an sdist" in cell.reason
    return f"**{cell.theirs}**" if cell.wrong else f"{cell.theirs or 'no'}{' sdist' if is_sdist else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Lock all, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.extensions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="extensions (default: all)")
    parser.add_argument("--torch", nargs="*", metavar="MINOR", help="minor versions of torch (default: all)")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    options = parser.parse_args(arguments)
    keys = [(name, torch) for name in options.names or families() for torch in options.torch or torches()]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as threads:
        cells = {}
        found = threads.map(lambda key: locked(key[0], key[1], Path(temporary)), keys)
        for key, cell in zip(keys, found, strict=True):
            cells[key] = cell
            say(f"{key[0]:26} torch {key[1]:5} envspec {_shown(cell, 'ours'):12} uv {_shown(cell, 'theirs')}")
    options.output.write_text(page(cells), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
