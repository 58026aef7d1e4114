"""`envspec fleet`: the suite on the nodes of a cluster."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envspec.cli import output
from envspec.cli.conformance import SELECTION, Failed, NotTested, selection_of
from envspec.cli.options import DRY_RUN, LOCK, context_of
from envspec.cli.output import Result, in_formats, plain
from envspec.errors import UsageError
from envspec.report import FLEET

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The keys of operations.fleet.SCHEDULERS, whose import takes longer.
_SCHEDULERS: Final = ("slurm", "kubernetes")
#: Parameter -> its option, whose form is NAME=VALUE.
_PAIRS: Final = {"selector": "selector", "resources": "resource"}


@click.group()
@output.messages
def command() -> None:
    """Run the conformance suite on the nodes of a cluster, and compare the nodes."""


@command.command("run")
@LOCK
@click.option("--on", "scheduler", type=click.Choice(_SCHEDULERS), required=True, help="The scheduler of the cluster.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the receipts; for Slurm, one that all nodes share. Required unless --dry-run is given.",
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="How many nodes (default: all).")
@click.option(
    "--minutes",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    metavar="N",
    help="Time limit of a node's suite.",
)
@SELECTION
@click.option(
    "--python",
    metavar="COMMAND",
    help="Slurm: the command that starts the stack's Python on a node (default: the active environment's).",
)
@click.option("--nodelist", metavar="LIST", help="Slurm: the nodes, such as `node[1-4]`.")
@click.option("--partition", metavar="NAME", help="Slurm: the partition.")
@click.option(
    "--sbatch",
    "options",
    multiple=True,
    metavar="OPTION",
    help="Slurm: an option of all jobs, such as --sbatch=--account=x.",
)
@click.option("--image", metavar="REF", help="Kubernetes: the lock's image, in a registry that nodes can pull from.")
@click.option(
    "--gpus-per-node", type=click.IntRange(min=0), metavar="N", help="Kubernetes: GPUs of a pod: as many as a node has."
)
@click.option("--namespace", metavar="NAME", help="Kubernetes: the namespace (default: the context's).")
@click.option("--context", metavar="NAME", help="Kubernetes: the context of the kubeconfig.")
@click.option(
    "--selector",
    "selector",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Kubernetes: nodes with this label (default: those with a GPU).",
)
@click.option("--toleration", "tolerations", multiple=True, metavar="TAINT", help="Kubernetes: KEY[=VALUE][:EFFECT].")
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME=COUNT",
    help="Kubernetes: another limit, such as rdma/hca=1.",
)
@click.option(
    "--pull-secret", "pull_secrets", multiple=True, metavar="NAME", help="Kubernetes: a Secret for the registry."
)
@click.option("--runtime-class", metavar="NAME", help="Kubernetes: the runtime class that gives pods GPUs.")
@click.option("--shm-size", "shm", metavar="SIZE", help="Kubernetes: size of /dev/shm (default: 16Gi).")
@DRY_RUN
@output.output(FLEET, "Format of the comparison on stdout.")
def run(lock: str, scheduler: str, report: Path | None, dry_run: bool, **chosen: Any) -> Result:
    """Run the suite of a lock on every node, and compare the receipts.

    Writes DIR/NODE/receipt.json for each node, DIR/nodes.json with the lost nodes and the reasons, and the
    files of `fleet report`. The exit code is 7 if a node is to be drained.

    \b
    envspec fleet run pytorch-2.9 --on slurm --report /shared/fleet
    envspec fleet run pytorch-2.9 --on kubernetes --image REF --report fleet
    envspec fleet run pytorch-2.9 --on kubernetes --image REF --dry-run
    """
    from envspec.lockfile.folder import find_lock, read_with_digest
    from envspec.operations.fleet import FleetSelection, prepare_fleet, run_fleet

    fields = {each.name for each in dataclasses.fields(FleetSelection)}
    own = {name: value for name, value in chosen.items() if name in fields}
    own |= {name: _pairs(f"--{option}", own[name]) for name, option in _PAIRS.items()}
    where = FleetSelection(**own)
    if report is None and not dry_run:
        raise UsageError("fleet run needs a folder for the receipts", hint="add --report DIR")
    locked, digest = read_with_digest(find_lock(lock, Path()))
    prepared = prepare_fleet(scheduler, locked, digest, selection_of(chosen), where, context_of(chosen))
    folder = report or Path("receipts")
    if dry_run:
        text = prepared.dry_run(folder)
        return Result(lambda _: text)
    run_fleet(prepared, folder, output.info)
    return _report(folder, folder)


@command.command("report")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write fleet.html, fleet.md and fleet.json to DIR.",
)
@output.output(FLEET, "Format of the comparison on stdout.")
def report_(folder: Path, report: Path | None) -> Result:
    """Compare the nodes whose receipts are in FOLDER/NODE/receipt.json.

    Shows which nodes to drain (wrong results, a failed check, no receipt), which to watch (slower than most of their
    kind, another driver or stack), and what fails on all nodes. The exit code is 7 if a node is to be drained, if
    something fails on all of them, or if it is not known of a node whether the stack works.
    """
    return _report(folder, report)


def _report(folder: Path, to: Path | None) -> Result:
    from envspec.operations.fleet import read_fleet
    from envspec.receipts.model import Verdict
    from envspec.report import write_fleet
    from envspec.report.fleet import headline

    found = read_fleet(folder)
    for path in write_fleet(found, to) if to else ():
        output.info(f"wrote {path}")
    errors = {Verdict.FAILED: Failed, Verdict.NOT_KNOWN: NotTested}
    error = None
    if found.verdict in errors:
        error = errors[found.verdict](headline(found), hint=f"`envspec fleet report {folder}` shows why")
    return in_formats(FLEET, found, error=error, sealed=True)


@command.command("programs")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--receipts",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder of `fleet run`, as the nodes see it.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    default=Path("/usr/bin/python3"),
    show_default=True,
    metavar="PATH",
    help="A Python 3.9 or newer of the nodes.",
)
@output.output()
def programs(folder: Path, receipts: Path, python: Path) -> Result:
    """Write programs for slurm.conf into FOLDER: `prolog` for Prolog, `health` for HealthCheckProgram.

    Both read the node's last receipt and NVML's current values, and print one line. They start no work on a GPU. A
    node with a fault is drained.
    """
    from envspec.operations.fleet import write_programs

    paths = write_programs(folder, receipts, python, os.environ)
    return plain(lambda: {"written": [str(each) for each in paths]}, map(str, paths))


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str] | None:
    """The values of an option whose form is NAME=VALUE; None without one."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} {text}: the form is NAME=VALUE", hint=f"write {option} {name or 'NAME'}=VALUE")
        found[name] = value
    return found or None
