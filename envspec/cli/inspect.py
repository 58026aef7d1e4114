"""Commands that only read: explain, diff, fit, doctor, config, receipts, schema."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envspec.cli import terminal
from envspec.cli.options import FORMAT, LOCK, PLATFORMS, context_of, format_option, platform_option, read_lock_of
from envspec.errors import UnfitMachine, UsageError
from envspec.report import COMPARISON, EXPLANATION, FIT, LOCK_DIFF

if TYPE_CHECKING:
    from envspec.models import Platform

#: Exit code if there are differences.
DIFFERENT: Final = 10
_FORMATS: Final = "Text for people, JSON for programs, Markdown for a pull request"


@click.command()
@LOCK
@click.argument("package", required=False, metavar="[PACKAGE]")
@FORMAT
def explain(lock: str, package: str | None, form: str) -> int:
    """Show every decision of a lock with its reason and source, or one of its packages.

    LOCK is a folder, its envspec.lock, or a name under locks/. For a PACKAGE, by its PyPI or conda name: what requires
    it, the newest version that was rejected and why, its GPU code, its files and sizes. Reads the lock only: resolves
    and fetches nothing.
    """
    from envspec.operations.inspect import explain

    terminal.answer_in(form, EXPLANATION, explain(read_lock_of(lock), package, context_of({})))
    return 0


@click.command()
@click.argument("old", metavar="OLD", shell_complete=terminal.complete_lock)
@click.argument("new", metavar="NEW", shell_complete=terminal.complete_lock)
@format_option(LOCK_DIFF, f"{_FORMATS}.")
def diff(old: str, new: str, form: str) -> int:
    """Show what differs between two locks: conda packages, wheels, the image, the driver, decisions.

    OLD and NEW are folders, names under locks/, or either of them in a git revision: HEAD~1:locks/pytorch-2.9.

    \b
    What the last commit changed:  envspec diff HEAD~1:locks/NAME HEAD:locks/NAME
    What is not committed yet:     envspec diff HEAD:locks/NAME NAME

    Exit code: 0 if they are equal, 10 if they differ.
    """
    from envspec.operations.inspect import diff

    found = diff(old, new)
    terminal.answer_in(form, LOCK_DIFF, found)
    return 0 if found.is_empty else DIFFERENT


@click.command()
@LOCK
@click.argument("more", nargs=-1, metavar="")
@click.option("--driver", metavar="V", help="Version of its NVIDIA driver, such as 570.124.06.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME",
    help='One of its GPUs: H100, "RTX 4090", or a compute capability such as 9.0. Once for each kind.',
)
@platform_option(PLATFORMS, "Its platform (default: this machine's if it is in the lock, else the lock's first).")
@FORMAT
def fit(
    lock: str, more: tuple[str, ...], driver: str | None, gpus: tuple[str, ...], platform: Platform | None, form: str
) -> int:
    """Check whether a machine can run a lock, and if not, show the smallest change that helps.

    LOCK is a folder, its envspec.lock, or a name under locks/. Without --driver, --gpu and --platform: this machine, as
    its driver and NVML describe it. With any of them: the machine that they describe; the rest is not checked.

    Exit code: 0 if it can, 6 if it can't or if that is unknown.
    """
    if more:
        raise UsageError(f"`fit` takes one LOCK, not also {' '.join(more)}", hint=_advice(more, gpus))
    from envspec.diagnostics.fit import FitVerdict
    from envspec.operations.inspect import fit

    report = fit(read_lock_of(lock), driver=_version(driver), gpus=gpus, platform=platform)
    terminal.answer_in(form, FIT, report)
    return 0 if report.verdict is FitVerdict.FITS else UnfitMachine.exit_code


def _advice(more: tuple[str, ...], gpus: tuple[str, ...]) -> str:
    if gpus:
        every = " ".join(f"--gpu {name!r}" if " " in name else f"--gpu {name}" for name in (*gpus, *more))
        return f"each GPU needs its own option: {every}"
    return "name a GPU by --gpu, a driver by --driver"


def _version(driver: str | None) -> str | None:
    """The version of a driver; a leading `v` is accepted."""
    if driver is None:
        return None
    found = re.fullmatch(r"[vV]?(\d{2,4}(?:\.\d{1,4}){0,3})", driver.strip())
    if not found:
        raise UsageError(
            f"--driver {driver!r} is not the version of an NVIDIA driver",
            hint="write it as `nvidia-smi` shows it, such as 570.124.06",
        )
    return found[1]


@click.command()
@FORMAT
def doctor(form: str) -> int:
    """Check this machine: driver, GPUs, container engine, NVIDIA's toolkit, /dev/shm, disk, Python, network.

    Shows for each finding what to do. Changes nothing. Sends one request to the package index and one to docker.io;
    that takes some 15 seconds in a network that drops packets.

    Exit code: 0 if nothing is missing for locking, building and running here (warnings don't count), else 6. For
    whether this machine runs a certain lock, see `envspec fit`.
    """
    from envspec.cli.progress import waiting
    from envspec.diagnostics.doctor import examine_machine
    from envspec.diagnostics.doctor.types import FindingState, as_json, render_text

    with waiting("checking this machine"):
        findings = examine_machine(os.environ)
    if form == "json":
        terminal.answer_json(as_json(findings) + "\n")
    else:
        width = terminal.width() if terminal.is_terminal(sys.stdout) else None
        terminal.answer_states(render_text(findings, width) + "\n")
    return UnfitMachine.exit_code if any(finding.state is FindingState.MISSING for finding in findings) else 0


@click.command()
@FORMAT
def config(form: str) -> int:
    """Show the settings of this machine, and where each comes from.

    Options of commands come first, then ENVSPEC_* variables, then $XDG_CONFIG_HOME/envspec/config.toml (default:
    ~/.config/envspec/config.toml), then defaults. A variable is named after its key: registry.mirrors is
    ENVSPEC_REGISTRY_MIRRORS. Passwords are not shown.

    \b
    cache_dir = "/data/envspec"
    jobs = 8
    [registry.mirrors]
    "docker.io" = "registry.corp:5000"
    """
    from envspec.settings import read_settings

    settings = read_settings(os.environ)
    settings.check()
    rows = settings.rows()
    if form == "json":
        found = [
            {"key": each.key, "value": value, "source": source, "variable": each.variable, "description": each.what}
            for each, value, source in rows
        ]
        path = settings.path
        terminal.answer_document({"file": str(path), "exists": path.is_file(), "settings": found})
        return 0
    keys, values = max(len(row.setting.key) for row in rows), max(len(row.value) for row in rows)
    lines = [f"{row.setting.key:<{keys}}  {row.value:<{values}}  {row.source}\n" for row in rows]
    missing = "" if settings.path.is_file() else " (does not exist)"
    terminal.answer("".join([f"file: {settings.path}{missing}\n", *lines]))
    return 0


@click.command()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT RECEIPT...", type=click.Path(path_type=Path))
@format_option(
    COMPARISON, "Text for people, JSON for programs, Markdown for a pull request, or an HTML page with plots."
)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the report to FILE."
)
def receipts(receipts: tuple[Path, ...], form: str, output: Path | None) -> int:
    """Compare receipts: stack, machine, outcome, results; and list what is slower than in the first one.

    Each is a receipt.json, or a folder that contains one. If exact results differ, one of the machines computes wrong
    results. Numbers are compared between machines of the same kind; times are shown but do not count.

    Exit code: 0 if nothing that counts differs, else 10.
    """
    from envspec.receipts.compare import compare
    from envspec.receipts.model import read

    if len(receipts) < 2:
        raise UsageError("one receipt can't be compared", hint="name two receipts or more")
    found = compare(list(zip(_names(receipts), map(read, receipts), strict=True)))
    if output is not None:
        _write(output, COMPARISON.render(form, found))
    else:
        terminal.answer_in(form, COMPARISON, found)
    return DIFFERENT if found.differs else 0


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of receipts: their folder or file, or the whole path if that is not unique."""
    short = [path.parent.name if path.name == "receipt.json" and path.parent.name else path.name for path in paths]
    names = [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
    # The same file twice needs two names as well.
    return [f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names, 1)]


def _write(path: Path, text: str) -> None:
    from envspec.io.files import write_file

    try:
        write_file(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}", hint="name another file") from error
    terminal.report(f"wrote {path}")


@click.command()
@click.argument("document", type=click.Choice(["spec", "receipt"]), default="spec")
def schema(document: str) -> int:
    """Print the JSON schema of spec.toml, which editors use for completion and checks, or that of receipt.json.

    A spec names its schema in its first line: `#:schema ../envspec.schema.json` (Even Better TOML, Taplo, Tombi). To
    write them:

    \b
    envspec schema > envspec.schema.json
    envspec schema receipt > envspec-receipt.schema.json
    """
    if document == "receipt":
        from envspec.receipts.model import json_schema
    else:
        from envspec.spec import json_schema

    terminal.answer_document(json_schema())
    return 0
