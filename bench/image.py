"""Makes, pushes and pulls images with envspec and its peers, side by side in one run: `python -m bench.image --help`.

Needs root on Linux, and docker.io, docker-registry, buildah and skopeo of Debian; what is missing is reported as not
run. It locks and fetches with the machine's network, then measures in a network namespace of its own, in which an
engine, a registry and an index meet on loopback: the machine's own engine and its bridge are left alone.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final

from bench import wheel_index
from bench.harness import (
    Absence,
    Goal,
    NotHere,
    Results,
    Sample,
    Watch,
    clean,
    descendants,
    memory_of,
    names_of,
    parser_of,
    published,
    run,
    sampled,
    shown,
    table,
)
from bench.image_tools import (
    DIRECT,
    DIRECT_PYC,
    MISSING,
    SPECS,
    TOOLS,
    UV,
    UV_PYC,
    Base,
    Direct,
    Engine,
    Fresh,
    ImageStack,
    Locked,
    Order,
    Place,
    Registry,
    Stock,
    Tool,
    specs,
)
from envspec.structs import replace

COLD: Final = "build + push, empty caches"
CACHED: Final = "build + push, wheels in the tool's cache"
CHANGED: Final = "build + push, one small package changed"
UNCHANGED: Final = "build + push, nothing changed"
CODE: Final = "build + push, one line of the project's code changed"
PULL: Final = "first pull by the engine"
PULL_CHANGED: Final = "pull by the engine after the change"
COPY: Final = "first copy by skopeo"
COPY_CHANGED: Final = "copy by skopeo after the change"
IMPORT: Final = "biggest import in a fresh container"
RUN: Final = "`true` in a new container by `envspec run`"
RUN_ENGINE: Final = "the same by `docker run`"
SCENARIOS: Final = (
    *(COLD, CACHED, CHANGED, UNCHANGED, CODE, PULL, PULL_CHANGED, COPY, COPY_CHANGED, IMPORT),
    *(RUN, RUN_ENGINE),
)
#: Words of the command line for what is measured; a build with empty caches is the start of each.
_WORDS: Final = {
    "cached": (CACHED,),
    "changed": (CHANGED,),
    "unchanged": (UNCHANGED,),
    "code": (CODE,),
    "pull": (PULL, PULL_CHANGED),
    "skopeo": (COPY, COPY_CHANGED),
    "import": (IMPORT,),
    "run": (RUN, RUN_ENGINE),
}
#: Go through one round, whatever --rounds says.
_SLOW: Final = ("docker + pip, pyc", "buildah + uv, no pyc", "buildah + uv, zstd")
_BASE: Final = "nvidia/cuda:12.8.1-base-ubuntu24.04"
#: envspec's way, its peer's, and how many times as long the peer has to take.
_PAIRS: Final = ((DIRECT, UV, 10.0), (DIRECT_PYC, UV_PYC, 5.0))
_CHANGED_TIMES: Final = 50.0
_UNCHANGED_S: Final = 0.3
_CODE_S: Final = 1.0
_CODE_MB: Final = 1.0
#: `envspec run` of an image that the engine has, as a multiple of the engine's own client.
_RUN_TIMES: Final = 1.5
#: The failure of a build that did not notice the change.
STALE: Final = "the image is the one of before the change"
#: Fresh containers in which the biggest import is tried.
IMPORTS: Final = 3
#: Pairs of containers that are started by envspec and by the engine's client, in turns.
RUNS: Final = 9
_TIMED: Final = "import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
_SAMPLE_S: Final = 0.1
_HOW: Final = (
    "Medians over the rounds. Each tool goes through its round alone, with a home, caches and a store of its own",
    "on one disk; builds by Docker and all pulls are by an engine that the round starts empty. Base image: a small",
    "Debian with Python under nvidia/cuda's name, in the registry and in each builder's store before the clock",
    "starts. Wheels and registry (docker-registry, emptied before each first push) are on loopback.",
    "",
    f"- {COLD}: nothing but the base exists; the wheels come from the loopback index.",
    f"- {CACHED}: an empty registry again, no layer, and the wheels in the tool's own cache",
    "  (for Docker and buildah the cache mount, with `--no-cache`: uv has them unpacked there, pip as they came).",
    "- one small package changed: another version of humanize, into the same repository.",
    "- nothing changed: the same once more.",
    "- one line of the project's code changed: the image has a project of 100 modules (1 MB) in its last layer.",
    "- pulls: base and image into an empty engine, which unpacks them; then the changed image beside them. skopeo",
    "  copies into an OCI layout and unpacks nothing.",
    "- the import: timed inside a new container, three in a round, files in the page cache.",
    "- `true`: nine pairs in a round, of an image that the engine has; envspec mounts its folders, docker nothing.",
    "- Memory: the largest sum of resident sets of the command and of the engine with all that it started, sampled",
    "  every 0.1 s. Disk: the most that the file system held beyond the state before the first build, without the",
    "  registry's copy. CPU: of the command and the engine. Registry and index are counted nowhere.",
)


# --------------------------------------------------------------------------------------------------------- the rounds


@dataclass(slots=True)
class Bench:
    """A run of the benchmark. root: where all of it lies but the wheels. index: simple pages on loopback.

    servers: processes whose memory is no tool's. sizes: (stack, tool) -> the image without its base.
    """

    root: Path
    registry: Registry
    base: Base
    index: str
    servers: frozenset[int]
    scenarios: frozenset[str]
    limit_s: float
    results: Results
    sizes: dict[tuple[str, str], Size]

    def round(self, stack: ImageStack, tool: Tool, turn: int) -> None:
        """A tool through its scenarios, in an order in which each finds what it starts from."""
        engine, host = Engine(self.root / "engine"), self.registry.host
        place = Place(self.root / "tool", engine, host, f"{host}/{self.base.name}", self.index)
        self.registry.start_empty(self.base)
        try:
            tool.open(place)
            step = _Steps(self, stack, tool, place, turn)
            is_built = step.builds()
        except NotHere as why:
            self.results.absences.append(Absence(stack.name, tool.name, "all", published(str(why))))
            return
        finally:
            tool.close(place)
        if not is_built:
            return
        try:
            step.sized(None)
            if self.scenarios & {PULL, PULL_CHANGED, IMPORT, RUN}:
                engine.start_empty(place.environ)
                step.pulls(engine)
            if self.scenarios & {COPY, COPY_CHANGED}:
                step.copies()
        except NotHere as why:
            self.results.absences.append(Absence(stack.name, tool.name, "pulls", published(str(why))))
        finally:
            engine.remove()
            shutil.rmtree(self.root / "copies", ignore_errors=True)
            shutil.rmtree(self.registry.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Size:
    """An image without its base. packed_bytes: as the registry has it. unpacked_bytes: of files, as the engine says."""

    layers: int
    packed_bytes: int
    unpacked_bytes: int | None


class _Steps:
    """A tool's way through one round. Disk is counted from here on."""

    def __init__(self, bench: Bench, stack: ImageStack, tool: Tool, place: Place, turn: int) -> None:
        self._bench, self._stack, self._tool, self._place, self._turn = bench, stack, tool, place, turn
        self._disk_from = used_bytes(bench.root)
        self._of_base = bench.registry.stored_bytes()

    def builds(self) -> bool:
        """Build and push; whether the image and the changed one are in the registry."""
        bench, wanted = self._bench, self._bench.scenarios
        # Without empty caches there is nothing that the others could start from.
        if not self._build(COLD, self._stack.first, Fresh.ALL):
            return False
        if CACHED in wanted:
            bench.registry.start_empty(bench.base)
            if not self._build(CACHED, self._stack.first, Fresh.WHEELS):
                return False
        if wanted - {COLD, CACHED} and not self._build(CHANGED, self._stack.changed, Fresh.ALL):
            return False
        if UNCHANGED in wanted:
            self._build(UNCHANGED, self._stack.changed, Fresh.ALL)
        if CODE in wanted:
            self._stack.changed.change_a_line(f"{self._tool.name}, round {self._turn}, {time.time_ns()}")
            self._build(CODE, self._stack.changed, Fresh.ALL)
        return True

    def pulls(self, engine: Engine) -> None:
        """Pull both images into an empty engine; import in fresh containers in between."""
        pull = engine.command("pull", "--quiet", self._image(COLD))
        if not self._measured(PULL, Order(pull), engine):
            return
        self.sized(engine)
        if IMPORT in self._bench.scenarios:
            self._imports(engine)
        if RUN in self._bench.scenarios and isinstance(self._tool, Direct):
            self._runs(engine, self._tool)
        if PULL_CHANGED in self._bench.scenarios:
            self._measured(PULL_CHANGED, Order(engine.command("pull", "--quiet", self._image(CHANGED))), engine)

    def copies(self) -> None:
        """Copy both images into one OCI layout, by skopeo."""
        if shutil.which("skopeo") is None:
            raise NotHere("skopeo is not installed (Debian's package skopeo)")
        for scenario, of in ((COPY, COLD), (COPY_CHANGED, CHANGED)):
            if scenario in self._bench.scenarios:
                image = self._image(of)
                target = f"oci:{self._bench.root / 'copies'}:{image.rpartition(':')[2]}"
                command = ["skopeo", "copy", "--quiet", "--src-tls-verify=false", f"docker://{image}", target]
                self._measured(scenario, Order(command), None)

    def sized(self, engine: Engine | None) -> None:
        """Note the image's size, without its base. engine: one that has it, for the size of its files."""
        registry = self._bench.registry
        repository, _, tag = self._image(COLD).partition("/")[2].rpartition(":")
        base_name, _, base_tag = self._bench.base.name.rpartition(":")
        below = {layer["digest"] for layer in registry.manifest(base_name, base_tag)["layers"]}
        manifest = registry.manifest(repository, tag)
        layers = [layer for layer in manifest["layers"] if layer["digest"] not in below]
        packed = sum(layer["size"] for layer in layers) + manifest["config"]["size"]
        unpacked = None if engine is None else self._unpacked_bytes(engine)
        self._bench.sizes[self._stack.name, self._tool.name] = Size(len(layers), packed, unpacked)

    def _unpacked_bytes(self, engine: Engine) -> int:
        environ = self._place.environ
        engine.output(environ, "pull", "--quiet", self._place.base)
        images = (self._image(COLD), self._place.base)
        whole, base = (int(engine.output(environ, "image", "inspect", "-f", "{{.Size}}", name)) for name in images)
        return whole - base

    def _image(self, scenario: str) -> str:
        tag = "changed" if scenario in (CHANGED, UNCHANGED) else "code" if scenario == CODE else "first"
        return f"{self._place.registry}/bench/{self._stack.name}:{tag}"

    def _build(self, scenario: str, locked: Locked, fresh: Fresh) -> bool:
        engine = self._place.engine if self._place.engine.is_running else None
        order = self._tool.order(self._place, locked, self._image(scenario), fresh)
        return self._measured(scenario, order, engine)

    def _imports(self, engine: Engine) -> None:
        code = _TIMED.format(module=self._stack.module)
        words = ("run", "--rm", "--network=none", "--entrypoint=/opt/env/bin/python", self._image(COLD))
        for _ in range(IMPORTS):
            took_s = float(engine.output(self._place.environ, *words, "-c", code).split()[-1])
            figures = {"wall_s": round(took_s, 4)}
            self._bench.results.note(Sample(self._stack.name, self._tool.name, IMPORT, self._turn, figures))

    def _runs(self, engine: Engine, tool: Direct) -> None:
        """Start containers with `true`, by envspec and by the engine's client in turns.

        The first pair is not timed: in it, envspec finds out once more which image the lock's is.
        """
        place = self._place
        place.folder.mkdir(parents=True)
        own = tool.run_of(place, self._stack.first, engine, "true")
        plain = Order(engine.command("run", "--rm", "--network=none", self._image(COLD), "true"))
        for turn in range(-1, RUNS):
            for scenario, order in ((RUN, own), (RUN_ENGINE, plain)):
                environ = {**place.environ, **order.environ}
                cost = run(order.build, cwd=place.folder, env=environ, limit_s=self._bench.limit_s, watch=Watch.TIME)
                if not cost.is_done:
                    raise NotHere(f"{scenario}: {cost.output}")
                if turn >= 0:
                    self._bench.results.note(sampled(self._stack.name, tool.name, scenario, turn, cost))
        tool.close(place)

    def _measured(self, scenario: str, order: Order, engine: Engine | None) -> bool:
        bench, registry = self._bench, self._bench.registry
        environ = {**self._place.environ, **order.environ}
        stored, read = registry.stored_bytes(), registry.read_bytes()
        spent = cpu_s(engine.pid) if engine else 0.0
        folder = self._place.folder if self._place.folder.exists() else bench.root
        costs = []
        with watched(
            bench.servers | {registry.pid},
            lambda: used_bytes(bench.root) - self._disk_from - (registry.stored_bytes() - self._of_base),
        ) as peaks:
            for command in filter(None, (order.build, order.push)):
                costs.append(run(command, cwd=folder, env=environ, limit_s=bench.limit_s))
                if not costs[-1].is_done:
                    break
        cost = costs[-1]
        spent = cpu_s(engine.pid) - spent if engine else 0.0
        sent = registry.stored_bytes() - stored
        # buildah 1.28 does not always see that the file behind a mount has changed, and takes the layer of before.
        is_stale = scenario in (CHANGED, CODE) and cost.is_done and not sent
        whole = replace(
            cost,
            wall_s=sum(each.wall_s for each in costs),
            cpu_s=sum(each.cpu_s for each in costs) + spent,
            peak_bytes=peaks["memory"],
            exit_code=1 if is_stale else cost.exit_code,
            output=STALE if is_stale else cost.output,
        )
        sample = sampled(
            self._stack.name,
            self._tool.name,
            scenario,
            self._turn,
            whole,
            push_s=round(cost.wall_s, 4) if len(costs) > 1 else None,
            disk_bytes=peaks["disk"],
            sent_bytes=sent,
            read_bytes=registry.read_bytes() - read,
        )
        bench.results.note(sample)
        return sample.exit_code == 0


@contextmanager
def watched(but: Collection[int], disk: Callable[[], int]) -> Iterator[dict[str, int]]:
    """The peaks while it is entered, known at its end: `memory` and `disk`, bytes.

    Memory: the sum of resident sets of all processes below this one, but for those in `but` and what is below them, and
    for forks that have not executed a program; pages that two share count twice. disk: what is held at a moment; others
    who write there count.
    """
    peaks = {"memory": 0, "disk": 0}
    is_over = threading.Event()

    def look() -> None:
        found = [memory_of(pid) for pid in descendants(os.getpid(), but)]
        peaks["memory"] = max(peaks["memory"], sum(resident for resident, own in found if own))
        peaks["disk"] = max(peaks["disk"], disk())

    def watch() -> None:
        while not is_over.wait(_SAMPLE_S):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        is_over.set()
        watcher.join()
        look()


def used_bytes(path: Path) -> int:
    """What the file system at a path holds, with blocks that are not written yet."""
    about = os.statvfs(path)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process and those children that it waited for have taken."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")


# -------------------------------------------------------------------------------------------------------- the results


def goals(results: Results, sizes: dict[tuple[str, str], Size], stack: str) -> list[Goal]:
    """The goals that could be measured on a stack: how many times envspec's figure the peer's is, at least."""
    found = []
    for ours, theirs, times in _PAIRS:
        for scenario, bound in ((COLD, times), (CACHED, times), (CHANGED, _CHANGED_TIMES)):
            own, other = (results.mid(stack, tool, scenario) for tool in (ours, theirs))
            if own and other:
                what = f"{scenario}: {ours} ({own:.2f} s) against {theirs} ({other:.2f} s)"
                found.append(Goal(what, stack, other / own, bound, "x", at_least=True))
        own = results.mid(stack, ours, UNCHANGED)
        if own:
            found.append(Goal(f"{UNCHANGED}: {ours}", stack, own, _UNCHANGED_S, "s"))
        for figure, scale, bound, unit in (("wall_s", 1.0, _CODE_S, "s"), ("sent_bytes", 1e-6, _CODE_MB, "MB")):
            if own := results.mid(stack, ours, CODE, figure):
                found.append(Goal(f"{CODE}: {ours}", stack, own * scale, bound, unit))
        found += _run_goals(results, ours, stack)
        mine, peers = (sizes.get((stack, tool)) for tool in (ours, theirs))
        if mine and peers:
            pairs = {"packed": (mine.packed_bytes, peers.packed_bytes)}
            if mine.unpacked_bytes and peers.unpacked_bytes:
                pairs["unpacked"] = (mine.unpacked_bytes, peers.unpacked_bytes)
            for form, (one, two) in pairs.items():
                what = f"image, {form}: {ours} ({one / 1e6:.1f} MB) against {theirs} ({two / 1e6:.1f} MB)"
                found.append(Goal(what, stack, two / one, 1.0, "x", at_least=True))
    return found


def _run_goals(results: Results, tool: str, stack: str) -> list[Goal]:
    own, plain = (results.mid(stack, tool, scenario) for scenario in (RUN, RUN_ENGINE))
    if not own or not plain:
        return []
    return [Goal(f"{RUN}: {tool}", stack, own / plain, _RUN_TIMES, "x `docker run`")]


_MOVED: Final = {
    "sent, first": (COLD, "sent_bytes"),
    "sent, after the change": (CHANGED, "sent_bytes"),
    "sent, nothing changed": (UNCHANGED, "sent_bytes"),
    "sent, a line of code changed": (CODE, "sent_bytes"),
    "read by the engine, first": (PULL, "read_bytes"),
    "read by the engine, after the change": (PULL_CHANGED, "read_bytes"),
    "read by skopeo, first": (COPY, "read_bytes"),
    "read by skopeo, after the change": (COPY_CHANGED, "read_bytes"),
}
_HELD: Final = {
    "peak memory MB": (COLD, "peak_bytes", 1e-6),
    "peak disk MB": (COLD, "disk_bytes", 1e-6),
    "CPU s": (COLD, "cpu_s", 1.0),
    "peak memory of a pull MB": (PULL, "peak_bytes", 1e-6),
}


def stack_tables(results: Results, sizes: dict[tuple[str, str], Size], stack: ImageStack) -> list[str]:
    tools, name = results.tools_of(stack.name), stack.name

    def time(tool: str, scenario: str) -> str:
        wall, push = (results.mid(name, tool, scenario, what) for what in ("wall_s", "push_s"))
        return shown(wall) + ("" if push is None else f" ({push:.2f})")

    def size(tool: str) -> list[str]:
        found = sizes.get((name, tool))
        if found is None:
            return ["-"] * 3
        return [str(found.layers), shown(found.packed_bytes, ",.1f", 1e-6), shown(found.unpacked_bytes, ",.1f", 1e-6)]

    times = [[tool, *(time(tool, scenario) for scenario in SCENARIOS)] for tool in tools]
    moved = [
        [tool, *(shown(results.mid(name, tool, *what), ",.1f", 1e-6) for what in _MOVED.values())] for tool in tools
    ]
    held = [
        [tool, *size(tool)]
        + [shown(results.mid(name, tool, scenario, what), ",.1f", scale) for scenario, what, scale in _HELD.values()]
        for tool in tools
    ]
    return [
        f"{len(stack.first.packages)} wheels, {stack.wheels_bytes / 1e6:,.0f} MB; biggest import: {stack.module}.",
        *("", "Seconds; in brackets the part of the push, if it is a command of its own.", ""),
        *_filled(["tool", *SCENARIOS], times),
        *("", "MB to and from the registry.", ""),
        *_filled(["tool", *_MOVED], moved),
        *("", "The image without its base; memory, disk and CPU of building and pushing it.", ""),
        *_filled(["tool", "layers", "packed MB", "unpacked MB", *_HELD], held),
    ]


def _filled(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table without the columns that were not measured."""
    kept = [place for place in range(len(names)) if any(row[place] != "-" for row in rows)]
    return table([names[place] for place in kept], [[row[place] for place in kept] for row in rows])


# -------------------------------------------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and write its results; 0 when it ran, 1 when a goal that could be measured is missed."""
    options = _options().parse_args(arguments)
    # So that an engine, a registry and an index that were started are stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = options.home
    root.mkdir(parents=True, exist_ok=True)
    alone = (root / "running").open("w")
    fcntl.flock(alone, fcntl.LOCK_EX)  # a second run waits: both would empty the same folders
    registry = Registry.at(root / "registry")
    base = Base(options.base, options.base_name)
    results = Results(
        "Making, pushing and pulling an image, side by side",
        {name: getattr(options, name) for name in ("rounds", "slow_rounds", "scenarios", "limit")},
        tools=_versions(root),
        notes={name: TOOLS[name].note for name in options.tools},
    )
    stock = Stock(root, (options.wheels or root / "stock").absolute(), registry.host)
    spec = SPECS / f"{options.spec}.toml" if options.spec in specs() else Path(options.spec)
    sizes: dict[tuple[str, str], Size] = {}
    try:
        registry.start_empty(base)
        stack = stock.stack(spec)
        if not options.alone:
            registry.stop()
            return _in_a_namespace(sys.argv[1:] if arguments is None else arguments, alone)
        with wheel_index.running([stock.gather(stack)]) as (url, pid):
            wanted = frozenset({COLD, *(scenario for word in options.scenarios for scenario in _WORDS[word])})
            bench = Bench(root, registry, base, url, frozenset({pid}), wanted, options.limit, results, sizes)
            _measure(bench, stack, options)
    except NotHere as why:
        print(f"not run: {why}", file=sys.stderr)
        return 1
    finally:
        registry.stop()
        shutil.rmtree(registry.folder, ignore_errors=True)
    results.goals = goals(results, sizes, stack.name)
    results.absences += [Absence(stack.name, name, "all", why) for name, why in MISSING.items()]
    results.facts["sizes"] = [{"stack": key[0], "tool": key[1], **asdict(size)} for key, size in sizes.items()]
    text = results.page({stack.name: stack_tables(results, sizes, stack)}, _HOW)
    return results.write(options.output, f"image-{options.label}", text)


def _in_a_namespace(arguments: Sequence[str], alone: IO[str]) -> int:
    """Measure in a network namespace that ends with the run: two engines in one destroy each other's bridge."""
    alone.close()
    inside = 'ip link set lo up && exec "$@"'
    command = ["unshare", "--net", "--", "sh", "-c", inside, "sh", sys.executable, "-m", "bench.image"]
    return subprocess.run([*command, *arguments, "--alone"], check=False).returncode


def _measure(bench: Bench, stack: ImageStack, options: argparse.Namespace) -> None:
    for turn in range(options.rounds):
        for name in options.tools:
            is_gone = any((gone.tool, gone.scenario) == (name, "all") for gone in bench.results.absences)
            if not is_gone and (name not in _SLOW or turn < options.slow_rounds):
                bench.round(stack, TOOLS[name], turn)


def _versions(root: Path) -> dict[str, str]:
    """What the programs say of themselves."""
    found = {name: version(name) for name in ("envspec", "uv", "pip")}
    for program in ("dockerd", "buildah", "skopeo", "docker-registry"):
        if shutil.which(program) is not None:
            environ = clean(os.environ, home=root)
            done = subprocess.run([program, "--version"], env=environ, capture_output=True, text=True, check=False)
            numbers = [word.strip(",v") for word in done.stdout.split() if word.strip("v")[:1].isdigit()]
            found[program] = numbers[0] if numbers else "?"
    return found


def _options() -> argparse.ArgumentParser:
    parser = parser_of("image", __doc__, "envspec-bench-image", "all else that is made; locks and wheels are kept")
    add = parser.add_argument
    add("--base", type=Path, required=True, metavar="DIR", help="the base image as an OCI layout")
    add("--base-name", default=_BASE, metavar="NAME:TAG", help=f"what specs call it, on docker.io ({_BASE})")
    add("--spec", default="middle", help=f"a spec's path, or one of {', '.join(specs())} (middle)")
    add("--tools", type=names_of(TOOLS, ";"), default=list(TOOLS), metavar="A;B", help="; ".join(TOOLS))
    scenarios = f"beside the build with empty caches: {', '.join(_WORDS)}; or nothing"
    add("--scenarios", type=names_of(_WORDS), default=list(_WORDS), metavar="A,B", help=scenarios)
    add("--rounds", type=int, default=2, help="rounds (2)")
    add("--slow-rounds", type=int, default=1, help=f"rounds of {'; '.join(_SLOW)} (1)")
    add("--limit", type=float, default=900, help="seconds after which a command is ended and reported (900)")
    add("--wheels", type=Path, metavar="DIR", help="an envspec cache that has the wheels, or gets them (in --home)")
    add("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
