"""Runs `envspec audit-project` on the files of real projects, and writes what it reports into
docs/measurements/audit-projects.md: `python -m bench.audit_projects [DIR]`.

DIR has a folder for each project, and a README.md with their table, as `bench/projects`. The file `checked.toml` there
has what somebody found who looked each finding up; one that it lacks is published as not checked.

`python -m bench.audit_projects DIR --snapshots bench/snapshots.toml` examines copies of repositories, whose files are
not kept here, at the commits of that file: `DIR/OWNER+NAME` for each. It writes docs/measurements/audit.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness import Cost, describe, run, say, table
from envspec.documents import parse_toml

PROJECTS: Final = Path(__file__).parent / "projects"
PAGE: Final = Path(__file__).parents[1] / "docs" / "measurements" / "audit-projects.md"
SNAPSHOTS_PAGE: Final = PAGE.with_name("audit.md")
LIMIT_S: Final = 120
RUNS: Final = 3
#: The bound on the time of each, with a warm cache.
BOUND_S: Final = 3.0
#: `| comfyui | requirements.txt | comfyanonymous/ComfyUI | RTX 4090, RTX 5090 |`
_ROW: Final = re.compile(r"\| (\S+) \| (\S+\.\S+|Dockerfile) \| (.+?) \| (.*?) \|")
#: Informing findings are counted, not listed.
_LISTED: Final = ("error", "warning")
_NOT_RUN: Final = "not run"
_DRIVER: Final = "driver"


@dataclass(frozen=True, slots=True)
class Project:
    """A row of the table in README.md, or a file of a snapshot. name: of its folder. commit: of a snapshot."""

    name: str
    file: str
    repository: str
    gpus: tuple[str, ...]
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Audited:
    """What was reported of a project. report: the JSON document; None if there was none. warm: of the fastest run after
    the first.
    """

    project: Project
    report: Mapping[str, Any] | None
    warm: Cost


def projects_in(folder: Path) -> list[Project]:
    """The table's rows; none without a table."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    return [
        Project(name, file, repository, tuple(filter(None, gpus.split(", "))))
        for name, file, repository, gpus in _ROW.findall(text)
    ]


def snapshots_in(path: Path) -> list[Project]:
    """The files of the snapshots that a file lists."""
    rows = parse_toml(path.read_text(encoding="utf-8"))["snapshot"]
    return [
        Project(row["repository"].replace("/", "+"), file, row["repository"], (), row["commit"])
        for row in rows
        for file in row["files"]
    ]


def audited(folder: Path, project: Project, times: int = RUNS) -> Audited:
    """Audit it; the first run fills the cache."""
    gpus = [word for name in project.gpus for word in ("--gpu", name)]
    command = [sys.executable, "-m", "envspec", "audit-project", project.file, *gpus, "--format", "json"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with tempfile.TemporaryDirectory() as temporary:
        answer = Path(temporary, "report.json")
        costs = [
            run(command, cwd=folder / project.name, env=environ, limit_s=LIMIT_S, stdout=answer) for _ in range(times)
        ]
        report = json.loads(answer.read_text(encoding="utf-8") or "{}")
    # Other programs on the machine only add to the time.
    return Audited(
        project, report if "findings" in report else None, min(costs[1:] or costs, key=lambda cost: cost.wall_s)
    )


def checked(folder: Path) -> dict[tuple[str, str, int], str]:
    """Project, code and line of a finding -> whether it is right, and how that was checked."""
    path = folder / "checked.toml"
    rows = parse_toml(path.read_text(encoding="utf-8")).get("finding", []) if path.is_file() else []
    return {(row["project"], row["code"], row["line"]): f"{row['verdict']}: {row['how']}" for row in rows}


def page(rows: Sequence[Audited], verdicts: Mapping[tuple[str, str, int], str]) -> str:
    """The page: totals, a line for each project, and each finding with its check."""
    machine = describe()
    ran = [row for row in rows if row.report is not None]
    findings = [(row, each) for row in ran if row.report for each in row.report["findings"]]
    listed = [(row, each) for row, each in findings if each["severity"] in _LISTED]
    outcomes = [verdicts.get((row.project.name, each["code"], each["line"]), "not checked") for row, each in listed]
    right = sum(text.startswith("right") for text in outcomes)
    slowest = max((row.warm.wall_s for row in ran), default=0.0)
    text = [
        "# `envspec audit-project` on real projects",
        "",
        f"The dependency files of {len(rows)} public projects ([bench/projects](../../bench/projects/README.md)),",
        "unchanged, for the GPUs that they name. Written by `python -m bench.audit_projects`,",
        f"{machine['date']}, {machine['cores']} cores of an {machine['cpu']}.",
        "",
        f"Audited: {len(ran)} of {len(rows)}.",
        f"Errors and warnings: {len(listed)}; checked by hand and right: {right}.",
        f"The slowest took {slowest:.1f} s with a warm cache; the machine's load was",
        f"{os.getloadavg()[1]:.0f} for {machine['cores']} cores, from other programs too.",
        "",
        *table(
            ["project", "Python", "errors", "warnings", "notes", "not run", "s", "CPU s"], [_line(row) for row in rows]
        ),
        "",
        "## Errors and warnings",
        "",
        *table(
            ["project", "line", "rule", "what", "checked"],
            [
                [row.project.name, f"{each['file']}:{each['line']}", each["code"], each["what"], outcome]
                for (row, each), outcome in zip(listed, outcomes, strict=True)
            ],
        ),
        "",
        "## What was not run",
        "",
        *(
            f"- {row.project.name}: {each['what']}: {each['reason']}"
            for row in ran
            if row.report
            for each in row.report["not_run"]
            if each["what"] != _DRIVER
        ),
        "",
        f"Not listed: the driver, which was checked in {len(ran) - sum(map(_lacks_driver, ran))} of {len(ran)}.",
    ]
    return "\n".join(text) + "\n"


def snapshots_page(rows: Sequence[Audited], path: Path) -> str:
    """The page of snapshots: totals, the errors with their checks, and a line for each file."""
    checks = parse_toml(path.read_text(encoding="utf-8")).get("checked", [])
    outcomes = {(each["repository"], each["file"], each["code"], each["line"]): each["how"] for each in checks}
    errors: list[list[str]] = []
    for row in rows:
        for each in row.report["findings"] if row.report else ():
            if each["severity"] == "error":
                key = (row.project.repository, each["file"], each["code"], each["line"])
                place = f"{row.project.repository}: {each['file']}:{each['line']}"
                errors.append([place, each["code"], each["what"], outcomes.get(key, "not checked")])
    unchecked = sum(error[3] == "not checked" for error in errors)
    text = [
        "# `envspec audit-project` on snapshots of repositories",
        "",
        f"{len(rows)} files of {len({row.project.repository for row in rows})} public repositories as they are, with",
        "what these files include. The copies are not kept here; `python -m bench.audit_projects DIR --snapshots",
        f"bench/snapshots.toml` repeats it on copies at the commits below, in `DIR/OWNER+NAME`. {describe()['date']}.",
        "",
        f"Errors: {len(errors)}; checked by hand and true: {len(errors) - unchecked}. Warnings were not checked. The",
        "requirements of other projects are on [another page](audit-projects.md).",
        "",
        "## Errors",
        "",
        *table(["line", "rule", "what", "how it was checked"], errors),
        "",
        "## Files",
        "",
        *table(["repository", "commit", "file", "Python", "errors", "warnings"], [_snapshot_line(row) for row in rows]),
    ]
    return "\n".join(text) + "\n"


def _snapshot_line(row: Audited) -> list[str]:
    project, report = row.project, row.report
    cells = [project.repository, project.commit[:12], project.file]
    if report is None:
        return [*cells, _NOT_RUN, "", ""]
    codes = {
        severity: [each["code"] for each in report["findings"] if each["severity"] == severity] for severity in _LISTED
    }
    return [*cells, report["python"], *(", ".join(dict.fromkeys(codes[severity])) for severity in _LISTED)]


def _lacks_driver(row: Audited) -> bool:
    return row.report is not None and any(each["what"] == _DRIVER for each in row.report["not_run"])


def _line(row: Audited) -> list[str]:
    if row.report is None:
        return [
            row.project.name,
            "",
            _NOT_RUN,
            _NOT_RUN,
            _NOT_RUN,
            "",
            f"{row.warm.wall_s:.1f}",
            f"{row.warm.cpu_s:.1f}",
        ]
    counts = {name: sum(each["severity"] == name for each in row.report["findings"]) for name in (*_LISTED, "info")}
    numbers = [str(count) if count else "" for count in counts.values()]
    missing = len(row.report["not_run"])
    return [
        row.project.name,
        row.report["python"],
        *numbers,
        str(missing) if missing else "",
        f"{row.warm.wall_s:.1f}",
        f"{row.warm.cpu_s:.1f}",
    ]


def _reported(row: Audited) -> Audited:
    """The same, after a line on the terminal."""
    found = ", ".join(each["code"] for each in row.report["findings"]) if row.report else _NOT_RUN
    say(f"{row.project.name:24} {row.project.file:24} {row.warm.wall_s:5.1f} s  {found}")
    if row.report is None:
        say(row.warm.output)
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit all, and write the page; 0 if each was audited, right as far as it was checked, and within the bound."""
    parser = argparse.ArgumentParser(prog="python -m bench.audit_projects", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=PROJECTS, metavar="DIR", help="the projects")
    parser.add_argument("--snapshots", type=Path, metavar="FILE", help="the snapshots of repositories in DIR")
    parser.add_argument("--output", type=Path, help="the page")
    options = parser.parse_args(arguments)
    if options.snapshots:
        rows = [_reported(audited(options.folder, project, 1)) for project in snapshots_in(options.snapshots)]
        text = snapshots_page(rows, options.snapshots)
        (options.output or SNAPSHOTS_PAGE).write_text(text, encoding="utf-8")
        return int(any(row.report is None for row in rows) or "not checked |" in text)
    projects = projects_in(options.folder)
    if not projects:
        say(f"{_NOT_RUN}: {options.folder} has no projects (README.md with their table)")
        return 1
    rows = []
    for project in projects:
        rows.append(_reported(audited(options.folder, project)))
    verdicts = checked(options.folder)
    (options.output or PAGE).write_text(page(rows, verdicts), encoding="utf-8")
    wrong = any(verdict.startswith("wrong") for verdict in verdicts.values())
    return 0 if not wrong and all(row.report is not None and row.warm.wall_s <= BOUND_S for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
