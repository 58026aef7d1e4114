"""`envspec fleet`: the suite on the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from envspec.cli import output
from envspec.cli.conformance import SELECTION, Failed, NotTested, selection_of
from envspec.cli.options import LOCK, context_of, path_option
from envspec.cli.output import Result, in_formats, plain
from envspec.report import FLEET

#: The keys of operations.fleet.SCHEDULERS, whose import takes longer.
_SCHEDULERS: Final = ("slurm", "kubernetes")


@click.group()
@output.messages
def command() -> None:
    """Test the nodes of a cluster with the conformance suite, and compare them."""


@command.command("job")
@LOCK
@click.option("--for", "scheduler", type=click.Choice(_SCHEDULERS), required=True, help="The cluster's scheduler.")
@click.option(
    "--minutes",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    metavar="N",
    help="Time limit of a node's suite.",
)
@SELECTION
@path_option(
    "--receipts", "DIR", "Slurm: folder for the suite and the receipts, which all nodes share.", file_okay=False
)
@click.option(
    "--python",
    metavar="COMMAND",
    help="Slurm: the command that starts the stack's Python on a node (default: the active environment's).",
)
@click.option("--image", metavar="REF", help="Kubernetes: the lock's image, in a registry that nodes can pull from.")
@click.option(
    "--gpus-per-node",
    "gpus",
    type=click.IntRange(min=0),
    metavar="N",
    help="Kubernetes: GPUs of a pod: as many as a node has.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Kubernetes: how many nodes, which train together (default: every node, each alone).",
)
@output.output()
def job(lock: str, scheduler: str, **chosen: Any) -> Result:
    """Print a job that runs the suite of a lock on every node of a cluster.

    Slurm: a shell script that submits with sbatch. Kubernetes: objects for `kubectl apply`. Change it as you need; then
    compare the receipts with `envspec fleet report`.

    \b
    envspec fleet job train --for slurm --receipts /shared/fleet > fleet.sh
    envspec fleet job train --for kubernetes --image REF --gpus-per-node 8
    """
    from envspec.lockfile.folder import find_lock, read_with_digest
    from envspec.operations.fleet import FleetJob, job_text

    fields = ("minutes", "receipts", "python", "image", "gpus")
    wanted = FleetJob(nodes=chosen["nodes"] or 0, **{name: chosen[name] for name in fields})
    locked, digest = read_with_digest(find_lock(lock, Path()))
    text = job_text(scheduler, locked, digest, selection_of(chosen), wanted, context_of(chosen))
    return plain(lambda: {"job": text}, text.splitlines())


@command.command("report")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@path_option("--report", "DIR", "Write fleet.html, fleet.md and fleet.json to DIR.", file_okay=False)
@output.output(FLEET, "Format of the comparison on stdout.")
def report_(folder: Path, report: Path | None) -> Result:
    """Compare the nodes whose receipts are in FOLDER/NODE/receipt.json. A node of FOLDER/nodes.txt without one is lost.

    Shows which nodes to drain (wrong results, a failed check, no receipt), which to watch (slower than most of their
    kind, another driver or stack), and what fails on all nodes. The exit code is 7 if a node is to be drained, if
    something fails on all of them, or if it is not known of a node whether the stack works.
    """
    from envspec.operations.fleet import read_fleet
    from envspec.receipts.model import Verdict
    from envspec.report import write_fleet
    from envspec.report.fleet import headline

    found = read_fleet(folder)
    if report is not None:
        for path in write_fleet(found, report):
            output.info(f"wrote {path}")
    errors = {Verdict.FAILED: Failed, Verdict.NOT_KNOWN: NotTested}
    error = None
    if found.verdict in errors:
        error = errors[found.verdict](headline(found), hint=f"`envspec fleet report {folder}` shows why")
    return in_formats(FLEET, found, error=error, sealed=True)
