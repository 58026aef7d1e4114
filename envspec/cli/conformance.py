"""`envspec conformance`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envspec.cli import terminal
from envspec.cli.options import LOCK, MIRROR, UNCONFINED, combined
from envspec.conformance.checks import CHECKS
from envspec.errors import EnvspecError, UsageError
from envspec.report import RECEIPT

if TYPE_CHECKING:
    from envspec.cli.proving import Proving
    from envspec.operations.conformance import Price
    from envspec.receipts.model import Receipt


#: How many reasons of a failure the error names.
_REASONS: Final = 3


class Failed(EnvspecError):
    """The suite was run, and says that the stack does not do what it should."""

    exit_code = 7


_where: Final = combined(
    click.option("--image", metavar="REF", help="The image to test; the lock's own, made where it is not there."),
    click.option("--local", is_flag=True, help="Test the active environment's Python, without a container."),
    click.option("--python", type=click.Path(path_type=Path), metavar="PATH", help="The Python that --local tests."),
    click.option("--gpus", default="auto", metavar="all|none|IDS", help="GPUs of the container: 0,1. All of them."),
    click.option("--no-pyc", is_flag=True, help="The lock's image without compiled Python."),
    click.option("--offline", is_flag=True, help="Make the image from what is in the cache, if it has to be made."),
    MIRROR,
    UNCONFINED,
)
_what: Final = combined(
    click.option("--device", type=click.Choice(["cuda", "cpu"]), help="GPUs where the lock has CUDA, if left out."),
    click.option(
        "--check", "checks", multiple=True, metavar="NAME", help=f"A check to run, or several: {', '.join(CHECKS)}."
    ),
    click.option("--limit", "limits", multiple=True, metavar="NAME=S", help="Another limit for a check, in seconds."),
    click.option("--world-size", metavar="N|all", help="Processes of the distributed checks on this machine."),
    click.option("--nodes", type=click.IntRange(min=1), default=1, metavar="N", help="Machines of this run."),
    click.option("--node-rank", type=click.IntRange(min=0), default=0, metavar="R", help="This machine's number."),
    click.option("--rendezvous", metavar="HOST:PORT", help="Where the machines meet: on the first of them."),
    click.option("--price", metavar="AMOUNT[CURRENCY]", help="What an hour of this machine costs: 2.50EUR."),
)
_answer: Final = combined(
    click.option(
        "--report",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write the receipt there: JSON, JUnit, Markdown and HTML.",
    ),
    click.option(
        "--baseline",
        type=click.Path(path_type=Path, exists=True),
        metavar="RECEIPT",
        help="A receipt of the same kind of machine: being slower than it fails.",
    ),
    click.option(
        "--format", "form", type=click.Choice(list(RECEIPT)), default="text", help="Format of the receipt on stdout."
    ),
)


@click.command()
@LOCK
@_where
@_what
@_answer
def command(lock: str, report: Path | None, form: str, **chosen: Any) -> int:
    """Prove that this machine runs a lock's stack: on its GPUs, in the lock's image.

    Every check is a process with a limit of its own; what this machine can't do is `not run`, and never passed. The
    exit code is 7 where a check failed, or one that the spec requires did not run; 6 where there is no GPU to test.
    """
    from envspec.cli.proving import prove
    from envspec.receipts.model import Verdict
    from envspec.report import check_writable

    asked = _proving(chosen)
    if report is not None:
        check_writable(report)
    # Who ends a run half-way has what was found by then.
    found = prove(lock, asked, lambda until_then: _write(until_then, report))
    try:
        _write(found, report)
    finally:
        # A disk that is full by now does not cost what the suite has found.
        _tell(found, form)
    if found.verdict is Verdict.FAILED:
        raise Failed(_failure(found), hint=_hint(found, report))
    return 0


def _write(found: Receipt, report: Path | None) -> None:
    from envspec.report import write_receipt

    for path in write_receipt(found, report) if report else ():
        terminal.tell(f"wrote {path}")


def _tell(found: Receipt, form: str) -> None:
    terminal.answer_report(form, RECEIPT.render(form, found, terminal.width()))


def _failure(found: Receipt) -> str:
    """The error's message: the first reasons. The answer has all of them."""
    more = len(found.reasons) - _REASONS
    told = [*found.reasons[:_REASONS], *([f"and {more} more"] if more > 0 else [])]
    return f"{found.lock.name}: conformance failed: {'; '.join(told)}"


def _proving(chosen: Mapping[str, Any]) -> Proving:
    from envspec.cli.proving import Proving
    from envspec.operations.conformance import nodes_of
    from envspec.receipts.model import read

    if chosen["local"] and chosen["image"]:
        raise UsageError("--local and --image exclude each other", hint="remove one of them")
    if chosen["python"] and not chosen["local"]:
        raise UsageError("--python needs --local", hint="add --local")
    if chosen["local"]:
        _refuse_containers(chosen)
    return Proving(
        local=chosen["local"],
        python=chosen["python"],
        image=chosen["image"],
        gpus=chosen["gpus"],
        bytecode=not chosen["no_pyc"],
        offline=chosen["offline"],
        mirrors=chosen["mirrors"],
        unconfined=chosen["unconfined"],
        device=chosen["device"],
        checks=chosen["checks"],
        limits=dict(_limit(text) for text in chosen["limits"]),
        world_size=_world_size(chosen["world_size"]),
        nodes=nodes_of(chosen["nodes"], chosen["node_rank"], chosen["rendezvous"]),
        price=_price(chosen["price"]),
        baseline=read(chosen["baseline"]) if chosen["baseline"] else None,
    )


def _refuse_containers(chosen: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that --local would ignore."""
    given = {
        "--gpus": chosen["gpus"] != "auto",
        "--no-pyc": chosen["no_pyc"],
        "--offline": chosen["offline"],
        "--mirror": bool(chosen["mirrors"]),
        "--unconfined": chosen["unconfined"],
    }
    for option, is_given in given.items():
        if is_given:
            hint = "set CUDA_VISIBLE_DEVICES" if option == "--gpus" else f"leave {option} out"
            raise UsageError(f"{option} is for containers, and --local uses none", hint=hint)


def _limit(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    try:
        if float(seconds) > 0:
            return name, float(seconds)
    except ValueError:
        pass
    raise UsageError(f"--limit {text}: the form is NAME=SECONDS", hint="--limit transformer=300")


def _world_size(text: str | None) -> int | None:
    if text in (None, "all"):
        return None
    if text is not None and text.isdigit() and int(text) > 0:
        return int(text)
    raise UsageError(f"--world-size {text}: neither a number nor all", hint="--world-size 2")


def _price(text: str | None) -> Price | None:
    import re

    from envspec.operations.conformance import Price

    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]{3}|[^\d\s.]{1,4})?", text)
    if not found or not float(found[1]):
        raise UsageError(f"--price {text}: not an amount", hint="--price 2.50EUR, for an hour")
    return Price(float(found[1]), found[2] or "")


def _hint(found: Receipt, report: Path | None) -> str:
    """What helps with the first check that failed, and where the rest is told."""
    hints = [each.hint for each in found.checks if each.hint and each.status.value != "passed"]
    where = f"the receipt in {report} has all of it" if report else "`--report DIR` keeps all of it"
    return "; ".join([*hints[:1], where])
