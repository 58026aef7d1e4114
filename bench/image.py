"""Makes, pushes and pulls images with envspec and its peers, side by side in one run: `python -m bench.image --help`.

Needs root on Linux, and docker.io, docker-registry, buildah and skopeo of Debian; what is missing is told as not run.
It locks and fetches where the network is, then measures in a network namespace of its own, where an engine, a registry
and an index meet on loopback: the machine's own engine and its bridge are left alone.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final

from bench import image_index, image_stack, machine
from bench.environment import clean
from bench.image_contestants import MISSING, TOOLS
from bench.image_plot import plot
from bench.image_registry import Base, Registry
from bench.image_report import page
from bench.image_results import ImageResults, Scenario, StackFacts
from bench.image_rounds import ImageBench
from bench.image_stack import ImageStack, Stock
from bench.results import Absence
from bench.workshop import NotHere

#: Words of the command line for what is measured; an empty-cache build is the start of each.
_SCENARIOS: Final = {
    "cached": (Scenario.CACHED,),
    "changed": (Scenario.CHANGED,),
    "unchanged": (Scenario.UNCHANGED,),
    "pull": (Scenario.PULL, Scenario.PULL_CHANGED),
    "skopeo": (Scenario.COPY, Scenario.COPY_CHANGED),
    "import": (Scenario.IMPORT,),
}
#: Go through one round, whatever --rounds says.
_SLOW: Final = ("docker + pip, pyc", "buildah + uv, no pyc", "buildah + uv, zstd")
_BASE: Final = "nvidia/cuda:12.8.1-base-ubuntu24.04"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and write its results; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _options().parse_args(arguments)
    # So that an engine, a registry and an index that were started are stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    about = machine.describe()
    root = Path(options.home)
    root.mkdir(parents=True, exist_ok=True)
    alone = (root / "running").open("w")
    fcntl.flock(alone, fcntl.LOCK_EX)  # a second run waits: both would empty the same folders
    registry = Registry.at(root / "registry")
    base = Base(Path(options.base), options.base_name)
    if not options.alone:
        return _elsewhere(registry, base, options, sys.argv[1:] if arguments is None else arguments, alone)
    try:
        registry.start_empty(base)
        cache = Path(options.wheels) if options.wheels else root / "stock"
        stock = Stock(root, cache.absolute(), registry.host)
        stack = stock.stack(_spec(options.spec))
        with image_index.running([stock.gather(stack)]) as index:
            bench = ImageBench(
                root, registry, base, index.url, frozenset({index.pid}), _scenarios(options.scenarios), options.limit
            )
            _measure(bench, stack, options)
    except NotHere as why:
        print(f"not run: {why}", file=sys.stderr)
        return 1
    finally:
        registry.stop()
        shutil.rmtree(registry.folder, ignore_errors=True)
    results = ImageResults(
        machine=about,
        versions=_versions(root),
        notes={name: TOOLS[name].note for name in options.tools},
        options={name: getattr(options, name) for name in ("rounds", "slow_rounds", "scenarios", "limit")},
        stacks=(StackFacts(stack.name, len(stack.first.packages), stack.wheels_bytes, stack.module),),
        samples=tuple(bench.samples),
        sizes=tuple(bench.sizes),
        absences=(*bench.absences, *(Absence(stack.name, name, "all", why) for name, why in MISSING.items())),
    )
    _write(results, Path(options.output), options.label or about["date"])
    return 1 if any(not goal.is_met for goal in results.goals) else 0


def _elsewhere(
    registry: Registry, base: Base, options: argparse.Namespace, arguments: Sequence[str], alone: IO[str]
) -> int:
    """Bring what has to be fetched, then measure in a network namespace that ends with the run."""
    try:
        registry.start_empty(base)
        cache = Path(options.wheels) if options.wheels else Path(options.home) / "stock"
        Stock(Path(options.home), cache.absolute(), registry.host).stack(_spec(options.spec))
    except NotHere as why:
        print(f"not run: {why}", file=sys.stderr)
        return 1
    finally:
        registry.stop()
        alone.close()
    # Two engines in one namespace destroy each other's bridge.
    inside = 'ip link set lo up && exec "$@"'
    command = ["unshare", "--net", "--", "sh", "-c", inside, "sh", sys.executable, "-m", "bench.image"]
    return subprocess.run([*command, *arguments, "--alone"], check=False).returncode


def _measure(bench: ImageBench, stack: ImageStack, options: argparse.Namespace) -> None:
    gone: set[str] = set()
    for turn in range(options.rounds):
        for name in options.tools:
            if name in gone or (name in _SLOW and turn >= options.slow_rounds):
                continue
            bench.round(stack, TOOLS[name], turn)
            gone = {absence.tool for absence in bench.absences if absence.scenario == "all"}


def _scenarios(words: Collection[str]) -> frozenset[Scenario]:
    return frozenset({Scenario.COLD, *(scenario for word in words for scenario in _SCENARIOS[word])})


def _spec(text: str) -> Path:
    return image_stack.SPECS / f"{text}.toml" if text in image_stack.specs() else Path(text)


def _versions(root: Path) -> dict[str, str]:
    """What the programs say of themselves."""
    asked = {
        "docker": ["dockerd", "--version"],
        "buildah": ["buildah", "--version"],
        "skopeo": ["skopeo", "--version"],
        "registry": ["docker-registry", "--version"],
    }
    found = {name: version(name) for name in ("envspec", "uv", "pip")}
    for name, command in asked.items():
        if shutil.which(command[0]) is not None:
            told = subprocess.run(
                command, env=clean(os.environ, home=root, proxy=None), capture_output=True, text=True, check=False
            )
            numbers = [word.strip(",v") for word in told.stdout.split() if word.strip("v")[:1].isdigit()]
            found[name] = numbers[0] if numbers else "?"
    return found


def _write(results: ImageResults, folder: Path, label: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = page(results)
    (folder / f"image-{label}.json").write_text(json.dumps(results.document(), indent=1) + "\n")
    plot(results, folder / f"image-{label}.png")
    (folder / f"image-{label}.md").write_text(f"{text}\n![Every figure as bars](image-{label}.png)\n")
    print(text)


def _several(known: Collection[str], separator: str = ",") -> Callable[[str], list[str]]:
    """An option's type: known names."""

    def read(text: str) -> list[str]:
        wanted = [name.strip() for name in text.split(separator) if name.strip()]
        if strange := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(strange)}: not one of {f'{separator} '.join(known)}")
        return wanted

    return read


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.image", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    add: Callable[..., argparse.Action] = parser.add_argument
    add("--base", required=True, metavar="DIR", help="the base image as an OCI layout")
    add("--base-name", default=_BASE, metavar="NAME:TAG", help=f"what specs call it, on docker.io ({_BASE})")
    add("--spec", default="middle", help=f"a spec's path, or one of {', '.join(image_stack.specs())} (middle)")
    add("--tools", type=_several(TOOLS, ";"), default=list(TOOLS), metavar="A;B", help="; ".join(TOOLS))
    add(
        "--scenarios",
        type=_several(_SCENARIOS),
        default=list(_SCENARIOS),
        metavar="A,B",
        help=f"beside the build with empty caches: {', '.join(_SCENARIOS)}; or nothing",
    )
    add("--rounds", type=int, default=2, help="rounds (2)")
    add("--slow-rounds", type=int, default=1, help=f"rounds of {'; '.join(_SLOW)} (1)")
    add("--limit", type=float, default=900, help="seconds after which a command is ended and reported (900)")
    add("--wheels", metavar="DIR", help="an envspec cache that has the wheels, or gets them (in --home)")
    home = Path(tempfile.gettempdir()) / f"envspec-bench-image-{os.getuid()}"
    add("--home", default=home, help="where all else is made; locks and wheels are kept (a temporary folder)")
    add("--output", default="bench/results", help="folder for the JSON, Markdown and PNG files")
    add("--alone", action="store_true", help=argparse.SUPPRESS)
    add("--label", help="in the files' names, instead of the date")
    return parser


if __name__ == "__main__":
    sys.exit(main())
