"""The suite's own command line, with the standard library alone: the single file, on a machine without envspec.

It tests the Python that runs it. Without `--request`, there is no lock: what its stack has to contain follows from the
stack itself. `envspec fleet` passes a request with the lock that the stack has to be, and reads receipts from logs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envspec.conformance.checks import CHECKS
from envspec.conformance.node import CRITICAL, OK, UNKNOWN, WARNING, node
from envspec.conformance.processes import RUN, TERMINATION_SIGNALS, adopt_orphans
from envspec.conformance.receipt import RECEIPT_MARK, ReceiptInputs, document, exit_code, why_ended
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import dumps
from envspec.conformance.selection import BadOption, selected
from envspec.conformance.suite import COMPLETED, NO_GPU
from envspec.conformance.text import lines_of
from envspec.verifier.regular import read_regular

#: Exit status besides the suite's and the receipt's: the suite left no results.
NO_RESULTS = 6
RECEIPT_FILE = "receipt.json"
#: Status of `--node` -> what its line begins with.
_NODE = {OK: "OK", WARNING: "WARNING", CRITICAL: "CRITICAL", UNKNOWN: "UNKNOWN"}
#: Characters of a reason in a line of a check; the receipt has all of it.
_REASON = 300


def main(arguments: Sequence[str], version: str, program: str = "envspec-conformance.pyz") -> int:
    """Run the suite. version: of envspec, for the receipt."""
    for number in TERMINATION_SIGNALS:
        # Folders for temporary files are removed; while the suite runs, it is ended instead.
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = _parser(program)
    options = parser.parse_args(arguments)
    if options.node or options.node_receipt:
        return _node(options)
    return _suite(parser, options, version)


def _node(options: argparse.Namespace) -> int:
    # What NVML leaves behind is below this process, and ended with it.
    adopt_orphans()
    most_age = None if options.max_age is None else datetime.timedelta(days=options.max_age)
    status, line = node(options.node_receipt, most_age)
    print(f"{_NODE[status]}: {line}")
    return status


def _suite(parser: argparse.ArgumentParser, options: argparse.Namespace, version: str) -> int:
    requested, lock = _requested(parser, options.request)
    try:
        request = selected(vars(options)).applied(requested)
    except BadOption as error:
        parser.error(f"{error}: {error.hint}")
    path = options.report and options.report / RECEIPT_FILE
    if path:
        try:
            # Before the run: its results would be lost.
            options.report.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=options.report).close()
        except OSError as error:
            parser.error(f"--report {options.report}: nothing can be written there: {error.strerror}")
    with tempfile.TemporaryDirectory(prefix="envspec-suite-") as folder:
        paths = Path(folder, "request.json"), Path(folder, "results.json")
        paths[0].write_text(dumps(request), encoding="utf-8")
        status, stderr = _run(paths)
        if status == NO_GPU:
            print(f"error: {stderr.strip()}\n  hint: `--device cpu` tests what needs no GPU", file=sys.stderr)
            return NO_GPU
        try:
            results = json.loads(paths[1].read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            lines = lines_of(stderr) or [str(error)]
            print(f"error: the suite exited with status {status} without results: {lines[-1]}", file=sys.stderr)
            return NO_RESULTS
    receipt = document(
        results,
        ReceiptInputs(
            envspec=version,
            made_at=datetime.datetime.now(datetime.timezone.utc).isoformat(),
            request=request,
            lock=lock,
            local={"python": sys.executable, "prefix": sys.prefix},
            ended=why_ended(status, stderr),
        ),
    )
    if path:
        path.write_text(json.dumps(receipt, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
        print(f"wrote {path}")
    _show_verdict(receipt)
    if options.print_receipt:
        _print_receipt(receipt)
        if options.wait:
            # Blocked signals are kept for `sigwait`: none that arrives before it is lost.
            signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
            signal.sigwait(TERMINATION_SIGNALS)
    if status != COMPLETED:
        return status
    return exit_code(receipt)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Test that this machine runs the stack of this Python: torch, its CUDA libraries, the GPUs.",
        epilog=f"Exit status: 0 passed, 7 failed or not known, {NO_GPU} no GPU and no driver, or no torch, 2 usage.",
    )
    parser.add_argument(
        "--request", type=Path, metavar="FILE", help="run what FILE requests; other options override it"
    )
    parser.add_argument(
        "--print-receipt",
        action="store_true",
        help=f"print the receipt as the last line, after {RECEIPT_MARK.strip()!r}",
    )
    parser.add_argument("--wait", action="store_true", help="with --print-receipt: then wait for SIGTERM")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write DIR/receipt.json, for `envspec receipts`")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="what to test (default: cuda)")
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        dest="checks",
        choices=CHECKS,
        metavar="NAME",
        help=f"run only this check: {', '.join(CHECKS)}",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        dest="limits",
        metavar="NAME=S",
        help="time limit of a check, in seconds",
    )
    parser.add_argument("--limit-factor", metavar="N", help="multiply all time limits by N")
    parser.add_argument(
        "--burn", metavar="MINUTES", help="run sustained this long; without --check, only device and health too"
    )
    parser.add_argument("--world-size", metavar="N|all", help="processes of the distributed checks on this machine")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="number of machines of this run")
    parser.add_argument("--node-rank", type=int, default=0, metavar="R", help="this machine's number")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="address on the first machine to which all connect")
    parser.add_argument(
        "--node", action="store_true", help="run no check; print NVML's current state; exit status 0 healthy, 2 fault"
    )
    parser.add_argument(
        "--node-receipt",
        type=Path,
        metavar="FILE",
        help="like --node, with this node's last receipt; exit status 3 without one",
    )
    parser.add_argument(
        "--max-age", type=float, metavar="DAYS", help="with --node-receipt: exit status 3 if it is older"
    )
    return parser


def _requested(parser: argparse.ArgumentParser, path: Path | None) -> tuple[SuiteRequest, dict[str, Any] | None]:
    """The request in a file, and the name of its lock for the receipt; without a file, all checks and no lock."""
    if path is None:
        return SuiteRequest(device="cuda", checks=tuple(CHECKS)), None
    try:
        data = json.loads(read_regular(path))
        return SuiteRequest.parse(data["request"]), data["lock"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        parser.error(f"--request {path}: it can't be read: {error}")


def _run(paths: tuple[Path, Path]) -> tuple[int, str]:
    """Exit status and stderr of the suite; it ends when this process does. paths: of request and results."""
    # Its errors go to a file: a pipe might fill up while its other one is read.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(  # noqa: S603 (this Python and this suite)
            [sys.executable, str(RUN), "--until-stdin-ends", *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        for number in TERMINATION_SIGNALS:
            signal.signal(number, lambda *_: process.terminate())
        if process.stdout is not None:
            for line in process.stdout:
                _show(line)
        status = process.wait()
        errors.seek(0)
        return status, errors.read()


def _show(line: str) -> None:
    """Print the end of a check; other lines are not the suite's, or for programs."""
    try:
        event: dict[str, Any] = json.loads(line)
        if "end" in event:
            print(f"{event['status']:8} {event['end']:12} {event['seconds']:6.1f} s", flush=True)
            if event["reason"]:
                print(f"         {' '.join(event['reason'].split())[:_REASON]}", flush=True)
    except (ValueError, TypeError, KeyError, AttributeError):
        return


def _show_verdict(receipt: Mapping[str, Any]) -> None:
    counts = receipt["summary"]["checks"]
    texts = (f"{counts[name]} {name.replace('_', ' ')}" for name in ("passed", "failed", "not_run", "not_known"))
    print(f"{receipt['verdict']}: {', '.join(texts)}")
    for reason in receipt["reasons"]:
        print(f"  {reason}")


def _print_receipt(receipt: Mapping[str, Any]) -> None:
    """Print it on one line, in UTF-8 whatever the locale."""
    line = f"{RECEIPT_MARK}{json.dumps(receipt, ensure_ascii=False)}\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(line.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
