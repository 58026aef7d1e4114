"""The results of images as a page to read."""

from __future__ import annotations

from collections.abc import Sequence

from bench.image_results import BUILDS, ImageGoal, ImageResults, Scenario, StackFacts, mid
from bench.markdown import table


def page(results: ImageResults) -> str:
    """Goals first, then tables for each stack, then what failed and how it was measured."""
    parts = ["# Making, pushing and pulling an image, side by side", ""]
    parts += [" · ".join(f"{key}: {value}" for key, value in results.machine.items()), ""]
    parts += ["Tools: " + " · ".join(f"{tool} {version}" for tool, version in results.versions.items()), ""]
    parts += ["## Goals", "", *_goals(results.goals), ""]
    for stack in results.stacks:
        parts += [*_stack(results, stack), ""]
    parts += ["## What failed or did not run", "", *_faults(results), "", "## How", "", *_how(results), ""]
    return "\n".join(parts)


def _goals(goals: Sequence[ImageGoal]) -> list[str]:
    if not goals:
        return ["None could be measured: envspec or its peer did not run."]
    rows = [
        [
            goal.what,
            goal.stack,
            f"{goal.ours:.2f} {goal.unit}",
            "-" if goal.theirs is None else f"{goal.theirs:.2f} {goal.unit}",
            "-" if goal.ratio is None else f"{goal.ratio:.2f} x",
            f"< {goal.bound:g} {goal.unit}" if goal.ratio is None else f">= {goal.bound:g} x",
            "met" if goal.is_met else "MISSED",
        ]
        for goal in goals
    ]
    return table(["goal", "stack", "envspec", "peer", "peer / envspec", "bound", "verdict"], rows)


def _stack(results: ImageResults, stack: StackFacts) -> list[str]:
    tools = list(dict.fromkeys(sample.tool for sample in results.samples if sample.stack == stack.name))
    head = f"## {stack.name}: {stack.wheels} wheels, {stack.wheels_bytes / 1e6:,.0f} MB"
    times = [[tool, *(_time(results, stack.name, tool, scenario) for scenario in Scenario)] for tool in tools]
    moved = [
        [tool, *(_figure(results, stack.name, tool, scenario, what) for scenario, what in _MOVED.values())]
        for tool in tools
    ]
    held = [[tool, *_size(results, stack.name, tool), *_held(results, stack.name, tool)] for tool in tools]
    imported = f"import {stack.module}"
    names = [imported if scenario is Scenario.IMPORT else scenario.value for scenario in Scenario]
    return [
        *(head, "", "Seconds; in brackets what of them was the push, where it is a command of its own.", ""),
        *_filled(["tool", *names], times),
        *("", "MB to and from the registry.", ""),
        *_filled(["tool", *_MOVED], moved),
        *("", "The image without its base; memory, disk and CPU of building and pushing it.", ""),
        *_filled(["tool", *_HELD], held),
    ]


def _filled(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table without the columns that were not measured."""
    kept = [place for place in range(len(names)) if any(row[place] != "-" for row in rows)]
    return table([names[place] for place in kept], [[row[place] for place in kept] for row in rows])


_MOVED = {
    "sent, first": (Scenario.COLD, "sent_bytes"),
    "sent, after the change": (Scenario.CHANGED, "sent_bytes"),
    "sent, nothing changed": (Scenario.UNCHANGED, "sent_bytes"),
    "read by the engine, first": (Scenario.PULL, "read_bytes"),
    "read by the engine, after the change": (Scenario.PULL_CHANGED, "read_bytes"),
    "read by skopeo, first": (Scenario.COPY, "read_bytes"),
    "read by skopeo, after the change": (Scenario.COPY_CHANGED, "read_bytes"),
}
_HELD = ("layers", "packed MB", "unpacked MB", "peak memory MB", "peak disk MB", "CPU s", "peak memory of a pull MB")


def _time(results: ImageResults, stack: str, tool: str, scenario: Scenario) -> str:
    wall, push = (mid(results.samples, stack, tool, scenario, what) for what in ("wall_s", "push_s"))
    if wall is None:
        return "-"
    return f"{wall:.2f}" + (f" ({push:.2f})" if push is not None else "")


def _figure(results: ImageResults, stack: str, tool: str, scenario: Scenario, what: str, scale: float = 1e-6) -> str:
    value = mid(results.samples, stack, tool, scenario, what)
    return "-" if value is None else f"{value * scale:,.1f}"


def _size(results: ImageResults, stack: str, tool: str) -> list[str]:
    found = next((size for size in results.sizes if (size.stack, size.tool) == (stack, tool)), None)
    if found is None:
        return ["-", "-", "-"]
    unpacked = "-" if found.unpacked_bytes is None else f"{found.unpacked_bytes / 1e6:,.1f}"
    return [str(found.layers), f"{found.packed_bytes / 1e6:,.1f}", unpacked]


def _held(results: ImageResults, stack: str, tool: str) -> list[str]:
    return [
        _figure(results, stack, tool, Scenario.COLD, "peak_bytes"),
        _figure(results, stack, tool, Scenario.COLD, "disk_bytes"),
        _figure(results, stack, tool, Scenario.COLD, "cpu_s", 1.0),
        _figure(results, stack, tool, Scenario.PULL, "peak_bytes"),
    ]


def _faults(results: ImageResults) -> list[str]:
    lines = []
    for gone in results.absences:
        what = "" if gone.scenario == "all" else f", {gone.scenario}"
        lines.append(f"- {gone.stack}, {gone.tool}{what}: not run: {' '.join(gone.why.split())}")
    for sample in results.samples:
        if sample.exit_code != 0:
            end = "over its limit" if sample.exit_code is None else f"exit {sample.exit_code}"
            told = " ".join(sample.said.split()) or "no message"
            lines.append(f"- {sample.stack}, {sample.tool}, {sample.scenario}: {end}: {told}")
    return list(dict.fromkeys(lines)) or ["Nothing."]


def _how(results: ImageResults) -> list[str]:
    options = ", ".join(f"{key} {value}" for key, value in results.options.items())
    return [
        "Medians over the rounds. Each tool goes through its round alone, with a home, caches and a store of its own",
        "on one disk; builds by Docker and all pulls are by an engine that the round starts empty. Base image: a small",
        "Debian with Python under nvidia/cuda's name, in the registry and in each builder's store before the clock",
        "starts. Wheels and registry (docker-registry, emptied before each first push) are on loopback.",
        "",
        f"- {Scenario.COLD.value}: nothing but the base is there; the wheels come from the loopback index.",
        f"- {Scenario.CACHED.value}: an empty registry again, no layer, and the wheels in the tool's own cache",
        "  (for Docker and buildah the cache mount, with `--no-cache`: uv has them unpacked there, pip as they came).",
        "- one small package changed: another version of humanize, into the same repository.",
        "- nothing changed: the same once more.",
        "- pulls: base and image into an empty engine, which unpacks them; then the changed image beside them. skopeo",
        "  copies into an OCI layout and unpacks nothing.",
        "- the import: timed inside a container that was not there before, three in a round, files in the page cache.",
        "- Memory: the largest sum of resident sets of the command and of the engine with all that it started, sampled",
        "  every 0.1 s. Disk: the most that the file system held beyond the state before the first build, without the",
        "  registry's copy. CPU: of the command and the engine. Registry and index are counted nowhere.",
        "",
        f"Options: {options}. Build scenarios: {', '.join(scenario.value for scenario in BUILDS)}.",
        "",
        *(f"- {tool}: {note}" for tool, note in results.notes.items() if note),
    ]
