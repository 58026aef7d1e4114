"""The rounds of the benchmark of images: every tool through the scenarios, one tool at a time."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.image_engine import Engine
from bench.image_registry import Base, Registry
from bench.image_results import Sample, Scenario, Size
from bench.image_stack import ImageStack, Locked
from bench.image_tools import Command, Fresh, Order, Place, Tool
from bench.image_watch import Watch, cpu_s, used_bytes
from bench.measure import run
from bench.results import Absence, published
from bench.workshop import NotHere

#: Fresh containers in which the biggest import is tried.
#: Said of a build that took no notice of the change.
STALE: Final = "the image is the one of before the change"
IMPORTS: Final = 3
_TIMED: Final = "import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"


@dataclass(slots=True)
class ImageBench:
    """A run of the benchmark. root: where all of it lies but the wheels. index: simple pages on loopback.

    servers: processes whose memory is no tool's.
    """

    root: Path
    registry: Registry
    base: Base
    index: str
    servers: frozenset[int]
    scenarios: AbstractSet[Scenario]
    limit_s: float
    samples: list[Sample] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)

    def round(self, stack: ImageStack, tool: Tool, turn: int) -> None:
        """A tool through its scenarios, in an order in which each finds what it starts from."""
        place = Place(
            self.root / "tool",
            Engine(self.root / "engine"),
            self.registry.host,
            f"{self.registry.host}/{self.base.name}",
            self.index,
        )
        self.registry.start_empty(self.base)
        try:
            tool.open(place)
            step = _Steps(self, stack, tool, place, turn)
            is_built = step.builds()
        except NotHere as why:
            self.absences.append(Absence(stack.name, tool.name, "all", published(str(why))))
            return
        finally:
            tool.close(place)
        if is_built:
            self._pulls(step)

    def _pulls(self, step: _Steps) -> None:
        engine = step.place.engine
        try:
            step.sized(None)
            if self.scenarios & {Scenario.PULL, Scenario.PULL_CHANGED, Scenario.IMPORT}:
                engine.start_empty(step.place.environ)
                step.pulls(engine)
            if self.scenarios & {Scenario.COPY, Scenario.COPY_CHANGED}:
                step.copies()
        except NotHere as why:
            self.absences.append(Absence(step.stack.name, step.tool.name, "pulls", published(str(why))))
        finally:
            engine.remove()
            shutil.rmtree(self.root / "copies", ignore_errors=True)
            shutil.rmtree(self.registry.folder, ignore_errors=True)


class _Steps:
    """A tool's way through one round. Disk is counted from here on."""

    def __init__(self, bench: ImageBench, stack: ImageStack, tool: Tool, place: Place, turn: int) -> None:
        self.stack, self.tool, self.place = stack, tool, place
        self._bench, self._turn = bench, turn
        self._disk_from = used_bytes(bench.root)
        self._of_base = bench.registry.stored_bytes()

    def builds(self) -> bool:
        """Build and push; whether the image and the changed one are in the registry."""
        bench = self._bench
        wanted = set(bench.scenarios)
        # Without empty caches there is nothing that the others could start from.
        if not self._build(Scenario.COLD, self.stack.first, Fresh.ALL):
            return False
        if Scenario.CACHED in wanted:
            bench.registry.start_empty(bench.base)
            if not self._build(Scenario.CACHED, self.stack.first, Fresh.WHEELS):
                return False
        if wanted - {Scenario.COLD, Scenario.CACHED} and not self._build(
            Scenario.CHANGED, self.stack.changed, Fresh.ALL
        ):
            return False
        if Scenario.UNCHANGED in wanted:
            self._build(Scenario.UNCHANGED, self.stack.changed, Fresh.ALL)
        return True

    def pulls(self, engine: Engine) -> None:
        """Pull both images into an empty engine; import in fresh containers in between."""
        wanted = self._bench.scenarios
        if not self._measured(
            Scenario.PULL, Order(engine.command("pull", "--quiet", self._image(Scenario.COLD))), engine
        ):
            return
        self.sized(engine)
        if Scenario.IMPORT in wanted:
            self._imports(engine)
        if Scenario.PULL_CHANGED in wanted:
            command = engine.command("pull", "--quiet", self._image(Scenario.CHANGED))
            self._measured(Scenario.PULL_CHANGED, Order(command), engine)

    def copies(self) -> None:
        """Copy both images into one OCI layout, by skopeo."""
        if shutil.which("skopeo") is None:
            raise NotHere("skopeo is not installed (Debian's package skopeo)")
        for scenario, of in ((Scenario.COPY, Scenario.COLD), (Scenario.COPY_CHANGED, Scenario.CHANGED)):
            if scenario in self._bench.scenarios:
                source, target = f"docker://{self._image(of)}", f"oci:{self._bench.root / 'copies'}:{of.name.lower()}"
                command: Command = ["skopeo", "copy", "--quiet", "--src-tls-verify=false", source, target]
                self._measured(scenario, Order(command), None)

    def sized(self, engine: Engine | None) -> None:
        """Note the image's size, without its base. engine: one that has it, for the size of its files."""
        bench = self._bench
        repository, _, tag = self._image(Scenario.COLD).partition("/")[2].rpartition(":")
        base_name, _, base_tag = bench.base.name.rpartition(":")
        below = {layer["digest"] for layer in bench.registry.manifest(base_name, base_tag)["layers"]}
        manifest = bench.registry.manifest(repository, tag)
        layers = [layer for layer in manifest["layers"] if layer["digest"] not in below]
        packed = sum(layer["size"] for layer in layers) + manifest["config"]["size"]
        unpacked = None
        if engine is not None:
            unpacked = self._files_of(engine)
        mine = Size(self.stack.name, self.tool.name, len(layers), packed, unpacked)
        others = [size for size in bench.sizes if (size.stack, size.tool) != (mine.stack, mine.tool)]
        bench.sizes = [*others, mine]

    def _files_of(self, engine: Engine) -> int:
        environ = self.place.environ
        engine.tell(environ, "pull", "--quiet", self.place.base)
        images = (self._image(Scenario.COLD), self.place.base)
        whole, base = (int(engine.tell(environ, "image", "inspect", "-f", "{{.Size}}", name)) for name in images)
        return whole - base

    def _image(self, scenario: Scenario) -> str:
        tag = "changed" if scenario in (Scenario.CHANGED, Scenario.UNCHANGED) else "first"
        return f"{self.place.registry}/bench/{self.stack.name}:{tag}"

    def _build(self, scenario: Scenario, locked: Locked, fresh: Fresh) -> bool:
        image = self._image(scenario)
        engine = self.place.engine if self.place.engine.is_running else None
        return self._measured(scenario, self.tool.order(self.place, locked, image, fresh), engine)

    def _imports(self, engine: Engine) -> None:
        code = _TIMED.format(module=self.stack.module)
        words = ("run", "--rm", "--network=none", "--entrypoint=/opt/env/bin/python", self._image(Scenario.COLD))
        for _ in range(IMPORTS):
            took_s = float(engine.tell(self.place.environ, *words, "-c", code).split()[-1])
            self._note(Sample(self.stack.name, self.tool.name, Scenario.IMPORT.value, self._turn, round(took_s, 4)))

    def _measured(self, scenario: Scenario, order: Order, engine: Engine | None) -> bool:
        bench = self._bench
        environ = {**self.place.environ, **order.environ}
        stored, read = bench.registry.stored_bytes(), bench.registry.read_bytes()
        spent = cpu_s(engine.pid) if engine else 0.0
        servers = bench.servers | {bench.registry.pid}
        folder = self.place.folder if self.place.folder.exists() else bench.root
        costs = []
        with Watch(bench.root, self._disk_from, servers, lambda: bench.registry.stored_bytes() - self._of_base) as seen:
            for command in filter(None, (order.build, order.push)):
                costs.append(run(command, cwd=folder, env=environ, limit_s=bench.limit_s))
                if not costs[-1].is_done:
                    break
        spent = cpu_s(engine.pid) - spent if engine else 0.0
        sent = bench.registry.stored_bytes() - stored
        # buildah 1.28 does not always see that the file behind a mount has changed, and takes the layer of before.
        is_stale = scenario is Scenario.CHANGED and costs[-1].is_done and not sent
        sample = Sample(
            stack=self.stack.name,
            tool=self.tool.name,
            scenario=scenario.value,
            round=self._turn,
            wall_s=round(sum(cost.wall_s for cost in costs), 4),
            push_s=round(costs[1].wall_s, 4) if len(costs) > 1 else None,
            cpu_s=round(sum(cost.cpu_s for cost in costs) + spent, 4),
            peak_bytes=seen.peak_bytes,
            disk_bytes=seen.disk_bytes,
            sent_bytes=sent,
            read_bytes=bench.registry.read_bytes() - read,
            exit_code=1 if is_stale else costs[-1].exit_code,
            said=STALE if is_stale else "" if costs[-1].is_done else published(costs[-1].said),
        )
        self._note(sample)
        return costs[-1].is_done and not is_stale

    def _note(self, sample: Sample) -> None:
        self._bench.samples.append(sample)
        _say(_line(sample))


def _line(sample: Sample) -> str:
    end = "over its limit" if sample.exit_code is None else f"exit {sample.exit_code}: {sample.said}"
    moved = f"{(sample.sent_bytes or 0) / 1e6:7.1f} MB sent {(sample.read_bytes or 0) / 1e6:7.1f} MB read"
    held = f"{(sample.peak_bytes or 0) / 1e6:5.0f} MB memory {(sample.disk_bytes or 0) / 1e6:6.0f} MB disk"
    shape = f"{sample.wall_s:7.2f} s {sample.cpu_s or 0:7.2f} CPU s {moved} {held}"
    return f"{sample.stack:8} {sample.tool:22} {sample.scenario:42} {shape} {'' if sample.exit_code == 0 else end}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
