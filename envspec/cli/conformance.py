"""`envspec conformance`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envspec.cli import options, output
from envspec.cli.output import Result, in_formats, plain
from envspec.cli.progress import TerminalReporter
from envspec.cli.selection import IMAGE
from envspec.conformance.checks import CHECKS
from envspec.conformance.text import first_of
from envspec.errors import EnvspecError, UnfitMachine, UsageError
from envspec.report import RECEIPT
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.conformance.selection import SuiteSelection
    from envspec.operations.conformance import SuiteLocation
    from envspec.receipts.model import Receipt


#: How many reasons of a failure the error names.
_REASONS: Final = 3


class Failed(EnvspecError, exit_code=7, code="conformance-failed"):
    """The suite has run, and the stack or a node failed."""


class NotTested(EnvspecError, exit_code=7, code="not-tested"):
    """The suite has run, nothing failed, and checks that an answer needs were not run or ran out of time."""


class NoTorch(UnfitMachine, code="no-torch"):
    """The suite tests torch, which is not in the stack."""


#: What to test.
SELECTION: Final = options.combined(
    click.option(
        "--device", type=click.Choice(["cuda", "cpu"]), help="What to test (default: GPUs if the lock uses CUDA)."
    ),
    click.option(
        "--check",
        "checks",
        multiple=True,
        metavar="NAME",
        help=f"Run only this check; may be given more than once: {', '.join(CHECKS)}.",
    ),
    click.option("--limit", "limits", multiple=True, metavar="NAME=S", help="Time limit of a check, in seconds."),
    click.option("--limit-factor", metavar="N", help="Multiply all time limits by N."),
    click.option(
        "--burn",
        metavar="MINUTES",
        help="Run `sustained` this long, all types in turn; without --check, only `device` and `health` run as well.",
    ),
)


@click.command()
@options.lock_argument(required=False)
@options.combined(*IMAGE)
@click.option(
    "--image", metavar="REF", help="Image to test (default: the lock's, built if the engine does not have it)."
)
@click.option("--local", is_flag=True, help="Test the active environment's Python, without a container.")
@options.path_option("--python", "PATH", "The Python that --local tests.")
@click.option(
    "--compare-with",
    metavar="LOCK",
    help="With --local and without LOCK: compare with this lock; differences do not fail.",
)
@options.GPUS
@options.MOUNTS
@options.ENV
@click.option("--no-compile-bytecode", is_flag=True, help="Test the lock's image without compiled Python.")
@options.IMAGE_OFFLINE
@options.MIRROR
@options.UNCONFINED
@SELECTION
@click.option("--world-size", metavar="N|all", help="Processes of the distributed checks on this machine.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, metavar="N", help="Number of machines of this run.")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, metavar="R", help="This machine's number.")
@click.option(
    "--rendezvous",
    metavar="HOST:PORT",
    help="Address on the first machine at which the machines connect to each other.",
)
@options.path_option("--report", "DIR", "Write the receipt to DIR: JSON, JUnit, Markdown and HTML.", file_okay=False)
@options.path_option(
    "--baseline",
    "RECEIPT",
    "Fail if this machine is slower than in this receipt of the same kind of machine.",
    exists=True,
)
@options.path_option(
    "--write-suite",
    "FILE",
    "Only write the suite as one file, which needs Python and torch: `python3 FILE --report DIR`.",
    dir_okay=False,
)
@output.output(RECEIPT, "Format of the receipt on stdout.")
def command(lock: str | None, report: Path | None, **chosen: Any) -> Result:
    """Test that this machine runs a lock's stack: on its GPUs, in the lock's image.

    With --local and without LOCK, compares the Python's stack with what its torch requires. Every check is a process
    with its own time limit; what this machine can't do is `not run`, never `passed`. The exit code is 7 if a check
    failed, if a check that the spec requires did not run, or if too little ran for an answer: of the checks that
    --check or the spec names each one, without names device (on a GPU), matmul, amp and transformer. It is 6 if there
    is no GPU or no torch to test.

    \b
    envspec conformance pytorch-2.9                         the lock's image
    envspec conformance pytorch-2.9 --image corp/torch:1    another image
    envspec conformance pytorch-2.9 --local --device cpu    without a GPU
    envspec conformance --local                             without a lock
    envspec conformance pytorch-2.9 --burn 30               for half an hour
    envspec conformance pytorch-2.9 --report receipts/today
    """
    from envspec.lockfile.folder import find_lock, read_with_digest
    from envspec.operations.conformance import Observer, run_conformance
    from envspec.receipts.model import Verdict, read
    from envspec.report import check_writable

    if chosen["write_suite"]:
        from envspec.operations.fleet import write_suite_file

        if lock:
            raise UsageError("--write-suite writes a file for any stack, and accepts no LOCK", hint="leave LOCK out")
        path = write_suite_file(chosen["write_suite"])
        output.info(f"wrote {path}")
        return plain(lambda: {"suite": str(path)}, [])
    location, selection = _location(chosen), selection_of(chosen)
    baseline = read(chosen["baseline"]) if chosen["baseline"] else None
    if report is not None:
        check_writable(report)
    name, locked, digest = "the stack", None, ""
    if lock:
        name = Path(lock).name
        locked, digest = read_with_digest(find_lock(lock, Path()))
    with TerminalReporter(name) as reporter:
        as_if = read_with_digest(find_lock(chosen["compare_with"], Path())) if chosen["compare_with"] else None
        observer = Observer(reporter.check, lambda partial: _write(partial, report), baseline, as_if)
        context = options.context_of(chosen, reporter)
        found = run_conformance(locked, digest, location, selection, context, observer)
    # A receipt has no other keys than its schema's.
    result = in_formats(RECEIPT, found, sealed=True)
    try:
        _write(found, report)
    except EnvspecError:
        # The disk is full by now.
        output.show(result)
        raise
    if found.verdict is Verdict.PASSED:
        return result
    return replace(result, error=_error(found, report))


def _write(found: Receipt, report: Path | None) -> None:
    from envspec.report import write_receipt

    if report is not None:
        for path in write_receipt(found, report):
            output.info(f"wrote {path}")


def _error(found: Receipt, report: Path | None) -> EnvspecError:
    """What a run ends with that did not pass: the first reasons. The receipt has all of them."""
    from envspec.receipts.model import Verdict

    reasons = "; ".join(first_of(found.reasons, _REASONS))
    if found.verdict is Verdict.FAILED:
        return Failed(f"{found.subject}: conformance failed: {reasons}", hint=_hint(found, report))
    if not found.summary.question:
        hint = "add torch, or name what to test: `--check lock` compares the files with the lock"
        return NoTorch(f"{found.subject}: {reasons}", hint=hint)
    return NotTested(f"{found.subject}: whether it works is not known: {reasons}", hint=_hint(found, report))


def _location(chosen: Mapping[str, Any]) -> SuiteLocation:
    from envspec.operations.conformance import SuiteLocation
    from envspec.operations.container import parse_gpus

    if chosen["local"]:
        _refuse_containers(chosen)
    return SuiteLocation(
        chosen["local"],
        chosen["python"],
        chosen["image"],
        parse_gpus(chosen["gpus"]),
        not chosen["no_compile_bytecode"],
        tuple(map(options.mount_of, chosen["mounts"])),
        options.variables_of(chosen["env"]),
    )


def selection_of(chosen: Mapping[str, Any]) -> SuiteSelection:
    """What is chosen by SELECTION, and by options that are about this machine, if the command has them."""
    from envspec.conformance.selection import BadOption, selected

    try:
        return selected(chosen)
    except BadOption as error:
        raise UsageError(str(error), hint=error.hint) from error


def _refuse_containers(chosen: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that --local would ignore."""
    given = {
        "--gpus": chosen["gpus"] != "auto",
        "--mount": bool(chosen["mounts"]),
        "--env": bool(chosen["env"]),
        "--no-compile-bytecode": chosen["no_compile_bytecode"],
        "--offline": chosen["offline"],
        "--mirror": bool(chosen["mirrors"]),
        "--no-sandbox": chosen["no_sandbox"],
    }
    for option, is_given in given.items():
        if is_given:
            hints = {"--gpus": "set CUDA_VISIBLE_DEVICES", "--env": "set the variable in this shell"}
            hint = hints.get(option, f"leave {option} out")
            raise UsageError(f"{option} is for containers, and --local uses none", hint=hint)


def _hint(found: Receipt, report: Path | None) -> str:
    """The hint of a check that failed, or that has no result if the verdict is `not known`, and where the rest is."""
    from envspec.conformance.results import Status
    from envspec.receipts.model import Verdict

    wanted = {Status.NOT_KNOWN, Status.NOT_RUN}
    if found.verdict is Verdict.FAILED:
        wanted = {Status.FAILED}
    hints = [each.hint for each in found.checks if each.hint and each.status in wanted]
    where = f"the receipt in {report} has all of it" if report else "`--report DIR` writes all of it"
    return "; ".join([*hints[:1], where])
