"""What a change costs: this envspec beside an earlier one, in interleaved pairs: `python -m bench.before ENVSPEC`.

ENVSPEC is the earlier one's executable, in an environment of its own. Locks are made from the package index; images of
`bench/images/small.toml` on a base of one small layer, in a registry on loopback (Debian's docker-registry), with the
wheels in the cache. Prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.harness import Cost, NotHere, clean, describe, proxies, run
from bench.image_tools import SPECS, Base, Registry, Stock
from tests.support.builders.images import make_base
from tests.support.servers.registry import OCI_MANIFEST

_SPEC: Final = Path("specs/pytorch-2.9.toml")
_LIMIT_S: Final = 300.0

#: Prepares one run, from the envspec that runs, a folder of its own and its environment: the run's arguments and
#: environment. Each envspec reads locks that it made: formats may differ.
Call = tuple[Sequence[str | Path], Mapping[str, str]]
Command = Sequence[str | Path]
Prepare = Callable[[Command, Path, Mapping[str, str]], Call]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.before", description=__doc__)
    parser.add_argument("before", type=Path, help="the earlier envspec")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    commands = {"before": [options.before.absolute()], "now": [Path(sys.executable).with_name("envspec")]}
    with tempfile.TemporaryDirectory(prefix="envspec-bench-") as folder:
        root = Path(folder)
        environ = clean(os.environ, home=root) | proxies()
        print(", ".join(f"{name}: {value}" for name, value in describe().items()))
        print(f"\n{options.rounds} interleaved pairs; medians, CPU and wall time in seconds\n")
        print("| | before, CPU | now, CPU | ratio | before, wall | now, wall | ratio |\n|---|---|---|---|---|---|---|")
        for name, prepare in _locks().items():
            _row(name, commands, prepare, root, environ, options.rounds)
        try:
            registry = Registry.at(root / "registry")
            registry.start_empty(_base(root / "base"))
            try:
                for name, prepare in _images(root, registry).items():
                    _row(name, commands, prepare, root, environ, options.rounds)
            finally:
                registry.stop()
        except NotHere as why:
            print(f"not run, images: {why}", file=sys.stderr)
    return 0


def _row(
    name: str,
    commands: Mapping[str, Sequence[str | Path]],
    prepare: Prepare,
    root: Path,
    environ: Mapping[str, str],
    rounds: int,
) -> None:
    costs: dict[str, list[Cost]] = {which: [] for which in commands}
    for turn in range(rounds + 1):
        # In turns, and in turns the first: the machine's speed drifts.
        for which in sorted(commands, reverse=bool(turn % 2)):
            own = root / which
            own.mkdir(exist_ok=True)
            words, variables = prepare(commands[which], own, environ)
            cost = run([*commands[which], *words], cwd=Path.cwd(), env=variables, limit_s=_LIMIT_S)
            if not cost.is_done:
                raise SystemExit(f"{name}, {which}: {cost.exit_code}: {cost.output}")
            if turn:  # the first fills caches
                costs[which].append(cost)
    cells = []
    for kind in ("cpu_s", "wall_s"):
        before, now = ([float(getattr(cost, kind)) for cost in costs[which]] for which in ("before", "now"))
        ratio = statistics.median(b / a for a, b in zip(before, now, strict=True))
        cells += [f"{statistics.median(before):.3f}", f"{statistics.median(now):.3f}", f"{ratio:.2f}"]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _locks() -> dict[str, Prepare]:
    def lock(cache: str, *, is_cold: bool) -> Prepare:
        def prepare(command: Command, own: Path, environ: Mapping[str, str]) -> Call:  # noqa: ARG001
            shutil.rmtree(own / "out", ignore_errors=True)
            if is_cold:
                shutil.rmtree(own / cache, ignore_errors=True)
            words: list[str | Path] = ["lock", _SPEC, "--output", own / "out"]
            return words, {**environ, "ENVSPEC_CACHE_DIR": str(own / cache)}

        return prepare

    def check(command: Command, own: Path, environ: Mapping[str, str]) -> Call:
        _lock_once(command, _SPEC, own / "checked", environ)
        return ["lock", "--check", _SPEC, "--output", own / "checked"], environ

    def check_of_others(command: Command, own: Path, environ: Mapping[str, str]) -> Call:
        words, variables = check(command, own, environ)
        shutil.rmtree(own / "empty", ignore_errors=True)
        return words, {**variables, "ENVSPEC_CACHE_DIR": str(own / "empty")}

    def version(command: Command, own: Path, environ: Mapping[str, str]) -> Call:  # noqa: ARG001
        return ["--version"], environ

    return {
        "start-up (`--version`)": version,
        "`lock --check`, pytorch-2.9": check,
        "`lock --check`, made on another machine": check_of_others,
        "`lock`, cold": lock("cold", is_cold=True),
        "`lock`, again": lock("warm", is_cold=False),
    }


def _images(root: Path, registry: Registry) -> dict[str, Prepare]:
    spec = SPECS / "small.toml"
    Stock(root / "stock", root / "stock" / "cache", registry.host).stack(spec)
    # Earlier versions take the base's digest from the mirror of the spec alone.
    mirrored = root / "small.toml"
    mirrored.write_text(f'{spec.read_text("utf-8")}\n[registry.mirrors]\n"docker.io" = "{registry.host}"\n', "utf-8")

    def build(*, is_cold: bool) -> Prepare:
        def prepare(command: Command, own: Path, environ: Mapping[str, str]) -> Call:
            cache, layout = own / "image", own / "layout"
            shutil.rmtree(layout, ignore_errors=True)
            if is_cold:
                shutil.rmtree(cache, ignore_errors=True)
                shutil.copytree(root / "stock" / "cache" / "archives", cache / "archives", copy_function=os.link)
            variables = {
                **environ,
                "ENVSPEC_REGISTRY_MIRRORS": f"docker.io={registry.host}",
                "ENVSPEC_CACHE_DIR": str(cache),
            }
            _lock_once(command, mirrored, own / "small", variables)
            return ["image", "build", own / "small", "--layout", layout], variables

        return prepare

    return {"`image build`, wheels cached": build(is_cold=True), "`image build`, again": build(is_cold=False)}


def _lock_once(command: Command, spec: Path, folder: Path, environ: Mapping[str, str]) -> None:
    if not folder.exists():
        cost = run([*command, "lock", spec, "--output", folder], cwd=Path.cwd(), env=environ, limit_s=_LIMIT_S)
        if not cost.is_done:
            raise SystemExit(f"lock of {spec}: {cost.exit_code}: {cost.output}")


def _base(layout: Path) -> Base:
    """An image of one small layer, as an OCI layout."""
    made = make_base(layers=1)
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for body in (*made.blobs, made.index):
        (blobs / hashlib.sha256(body).hexdigest()).write_bytes(body)
    top = {"mediaType": OCI_MANIFEST, "digest": made.digest, "size": len(made.index)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}), encoding="utf-8")
    return Base(layout, "nvidia/cuda:12.8.1-base-ubuntu24.04")


if __name__ == "__main__":
    sys.exit(main())
