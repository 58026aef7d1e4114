"""The results as a page to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.results import Goal, Results, Scenario, mid, ratio


def page(results: Results) -> str:
    """Goals first, then one table a stack, then what did not run or went wrong."""
    parts = ["# Locking, side by side", "", *_machine(results), "", "## Goals", "", *_goals(results), ""]
    for stack in _stacks(results):
        parts += [f"## {stack}", "", *_stack(results, stack), ""]
    parts += ["## What failed or did not run", "", *_faults(results), "", *_how(results)]
    parts += ["", "## What cannot be compared", "", *(f"- {tool}: {note}" for tool, note in results.notes.items())]
    return "\n".join(parts) + "\n"


def _machine(results: Results) -> list[str]:
    facts = [f"{key}: {value}" for key, value in results.machine.items()]
    tools = [f"{tool} {version}" for tool, version in results.tools.items()]
    return [" · ".join(facts), "", "Tools: " + " · ".join(tools)]


def _goals(results: Results) -> list[str]:
    if not results.goals:
        return ["None could be measured: envspec and the reference have no stack that both locked."]
    return goals_table(results.goals, "stack")


def goals_table(goals: Iterable[Goal], place: str) -> list[str]:
    """A line a goal. place: what the column is called that says on what it was measured."""
    rows = [
        [
            goal.what,
            goal.stack,
            f"{goal.measured:.2f}",
            f"<= {goal.bound:g} {goal.unit}",
            "met" if goal.is_met else "MISSED",
        ]
        for goal in goals
    ]
    return table(["goal", place, "measured", "bound", "verdict"], rows)


def _stack(results: Results, stack: str) -> list[str]:
    head = ["tool", "cold s", "x uv", "CPU s", "MB read", "peak MB", "warm s", "x uv", "added s", "x uv", "unchanged s"]
    tools = dict.fromkeys(sample.tool for sample in results.samples if sample.stack == stack)
    return table([*head, "packages", "family", "imports"], [_row(results, stack, tool) for tool in tools])


def _row(results: Results, stack: str, tool: str) -> list[str]:
    def figure(scenario: Scenario, what: str = "wall_s", scale: float = 1.0, form: str = ".2f") -> str:
        value = mid(results.samples, stack, tool, scenario, what)
        return "-" if value is None else format(value * scale, form)

    def times(scenario: Scenario) -> str:
        value = ratio(results.samples, stack, tool, scenario)
        return "-" if value is None else f"{value:.2f}"

    answer = next((found for found in results.answers if (found.stack, found.tool) == (stack, tool)), None)
    return [
        tool,
        figure(Scenario.COLD),
        times(Scenario.COLD),
        figure(Scenario.COLD, "cpu_s"),
        figure(Scenario.COLD, "received_bytes", 1e-6, ".1f"),
        figure(Scenario.COLD, "peak_bytes", 1e-6, ".0f"),
        figure(Scenario.WARM),
        times(Scenario.WARM),
        figure(Scenario.ADDED),
        times(Scenario.ADDED),
        figure(Scenario.UNCHANGED),
        *((str(answer.packages), answer.verdict, answer.imports) if answer else ("-", "no lock", "-")),
    ]


def _faults(results: Results) -> list[str]:
    lines = [f"- {gone.stack}, {gone.tool}, {gone.scenario}: not run: {gone.why}" for gone in results.absences]
    for sample in results.samples:
        if sample.exit_code == 0:
            continue
        end = "over its limit" if sample.exit_code is None else f"exit {sample.exit_code}"
        told = " ".join(sample.said.split()) or "no message"
        lines.append(f"- {sample.stack}, {sample.tool}, {sample.scenario}: {end} after {sample.wall_s:.1f} s: {told}")
    return list(dict.fromkeys(lines)) or ["Nothing."]


def _how(results: Results) -> list[str]:
    options = ", ".join(f"{key} {value}" for key, value in results.options.items())
    return [
        f"Medians over the rounds; the tools take turns within each round. Options: {options}. Each",
        "tool has a home, a cache and an environment of its own; bytes are counted by a forward proxy on loopback:",
        "in a round of its own that is not timed for the quick tools, in every run of the slow ones.",
        "Peak memory is the sum of the resident sets of the process tree, sampled every 20 ms.",
    ]


def _stacks(results: Results) -> Iterable[str]:
    found = [sample.stack for sample in results.samples] + [gone.stack for gone in results.absences]
    return dict.fromkeys(stack for stack in found if stack)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
