"""Commands that only read: explain, diff, fit, doctor, config, receipts, explain-error, schema."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envspec.cli import output, terminal
from envspec.cli.options import LOCK, PLATFORMS, context_of, path_option, platform_option
from envspec.cli.output import Result, in_formats, plain
from envspec.errors import UnfitMachine, UsageError
from envspec.report import COMPARISON, DOCTOR, EXPLANATION, FIT, LOCK_DIFF

if TYPE_CHECKING:
    from envspec.models import Platform

#: Exit code if there are differences.
DIFFERENT: Final = 10
_FORMATS: Final = "Text for people, JSON for programs, Markdown for a pull request"


@click.command()
@LOCK
@click.argument("package", required=False, metavar="[PACKAGE]")
@output.output(EXPLANATION)
def explain(lock: str, package: str | None) -> Result:
    """Show every decision of a lock with its reason and source, or one of its packages.

    LOCK is a folder, its envspec.lock, a name under locks/, or a lock of another tool, such as uv.lock. For a PACKAGE,
    by its PyPI or conda name: what requires it, the newest version up to the lock's date (the locked one, or why it was
    rejected), its GPU code, its files and sizes. Reads the lock only: resolves and fetches nothing.

    \b
    envspec explain pytorch-2.9            every decision
    envspec explain pytorch-2.9 numpy      why this version?
    """
    from envspec.operations.inspect import explain

    return in_formats(EXPLANATION, explain(lock, package, context=context_of({})))


@click.command()
@click.argument("old", metavar="OLD", shell_complete=terminal.complete_lock)
@click.argument("new", metavar="NEW", shell_complete=terminal.complete_lock)
@output.output(LOCK_DIFF, f"{_FORMATS}.")
def diff(old: str, new: str) -> Result:
    """Show what differs between two locks: conda packages, wheels, the image, the driver, decisions.

    OLD and NEW are folders, names under locks/, or either of them in a git revision: HEAD~1:locks/pytorch-2.9.

    Shows files that were replaced at the same version first.

    \b
    envspec diff HEAD~1:locks/NAME HEAD:locks/NAME    of the last commit
    envspec diff HEAD:locks/NAME NAME                 not committed yet
    envspec diff cpu pytorch-2.9 --format markdown    for a pull request

    Exit code: 0 if they are equal, 10 if they differ.
    """
    from envspec.operations.inspect import diff

    found = diff(old, new)
    return in_formats(LOCK_DIFF, found, exit_code_of(is_different=not found.is_empty))


def exit_code_of(*, is_different: bool) -> int:
    return DIFFERENT if is_different else 0


@click.command()
@LOCK
@click.argument("more", nargs=-1, metavar="")
@click.option("--driver", metavar="V", help="Version of its NVIDIA driver, such as 570.124.06, or its branch: 570.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME",
    help='One of its GPUs: H100, "RTX 4090", or a compute capability such as 9.0. Once for each kind.',
)
@platform_option(PLATFORMS, "Its platform (default: this machine's if it is in the lock, else the lock's first).")
@output.output(FIT)
def fit(
    lock: str, more: tuple[str, ...], driver: str | None, gpus: tuple[str, ...], platform: Platform | None
) -> Result:
    """Check whether a machine can run a lock, and if not, show the smallest change that helps.

    LOCK is a folder, its envspec.lock, a name under locks/, or a lock of another tool, such as uv.lock. Without
    --driver, --gpu and --platform: this machine, as its driver and NVML describe it. With any of them: the machine that
    they describe; the rest is not checked.

    \b
    envspec fit pytorch-2.9                                this machine
    envspec fit pytorch-2.9 --gpu T4 --driver 535.183      another machine
    envspec fit pytorch-2.9 --gpu H100 --gpu "RTX 4090"    two kinds of GPUs
    envspec fit pytorch-2.9 --gpu 9.0 --format json        for a program

    Exit code: 0 if it can, 6 if it can't or if that is unknown.
    """
    if more:
        raise UsageError(f"`fit` accepts one LOCK, not also {' '.join(more)}", hint=_advice(more, gpus))
    from envspec.diagnostics.fit import FitVerdict
    from envspec.operations.inspect import fit

    report = fit(lock, driver=driver_version(driver), gpus=gpus, platform=platform, context=context_of({}))
    return in_formats(FIT, report, 0 if report.verdict is FitVerdict.FITS else UnfitMachine.exit_code)


def _advice(more: tuple[str, ...], gpus: tuple[str, ...]) -> str:
    if gpus:
        hint = "each GPU needs its own option:"
        for name in (*gpus, *more):
            hint += f" --gpu {name!r}" if " " in name else f" --gpu {name}"
        return hint
    return "name a GPU by --gpu, a driver by --driver"


def driver_version(driver: str | None) -> str | None:
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
@output.output(DOCTOR)
def doctor() -> Result:
    """Check this machine: driver, GPUs, container engine, NVIDIA's toolkit, /dev/shm, disk, Python, network.

    Shows for each finding what to do. Changes nothing. Sends one request to the package index and one to docker.io;
    this takes about 15 seconds in a network that drops packets.

    Exit code: 0 if nothing is missing for locking, building and running here (warnings don't count), else 6. For
    whether this machine runs a certain lock, see `envspec fit`.
    """
    from envspec.cli.progress import waiting
    from envspec.diagnostics.doctor import examine_machine
    from envspec.diagnostics.doctor.types import FindingState

    with waiting("checking this machine"):
        findings = examine_machine(os.environ)
    exit_code = 0
    if any(finding.state is FindingState.MISSING for finding in findings):
        exit_code = UnfitMachine.exit_code
    return in_formats(DOCTOR, findings, exit_code, width=terminal.row_width)


@click.command()
@output.output()
def config() -> Result:
    """Show the settings of this machine, and where each comes from.

    Options of commands come first, then ENVSPEC_* variables, then $XDG_CONFIG_HOME/envspec/config.toml (default:
    ~/.config/envspec/config.toml), then defaults. A variable is named after its key: registry.mirrors is
    ENVSPEC_REGISTRY_MIRRORS. Variables of other tools that envspec uses, such as HTTPS_PROXY, are listed if they are
    set. Passwords are not shown.

    \b
    cache_dir = "/data/envspec"
    jobs = 8
    [registry.mirrors]
    "docker.io" = "registry.corp:5000"
    """
    from envspec.report.format import listing, row, text
    from envspec.settings import read_settings

    settings = read_settings(os.environ)
    settings.check()
    path, found, variables, rows, others = settings.path, [], [], [], []
    head = f"file: {path}"
    if not path.is_file():
        head += " (does not exist)"
    for each, value, source in settings.rows():
        rows.append(row(each.key, value or "-", source))
        found.append(
            {"key": each.key, "value": value, "source": source, "variable": each.variable, "description": each.what}
        )
    for name, value, what in settings.other_variables():
        others.append(row(f"{name}={value}"))
        variables.append({"variable": name, "value": value, "description": what})
    document = {"file": str(path), "exists": path.is_file(), "settings": found, "variables": variables}
    tables = [listing("", rows), listing("other variables that are set:", others)]
    return plain(lambda: document, text([head], tables, terminal.row_width()).splitlines())


@click.command()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT RECEIPT...", type=click.Path(path_type=Path))
@path_option("--output", "FILE", "Write the report to FILE.", to="path", dir_okay=False)
@output.output(
    COMPARISON, "Text for people, JSON for programs, Markdown for a pull request, or an HTML page with plots."
)
def receipts(receipts: tuple[Path, ...], path: Path | None) -> Result:
    """Compare receipts: stack, machine, outcome, results; and list what is slower than in the first one.

    Each is a receipt.json, or a folder that contains one. If exact results differ, one of the machines computes wrong
    results. Numbers are compared between machines of the same kind; times are shown but do not count.

    \b
    envspec receipts receipts/node-7 receipts/node-8
    envspec receipts before after --format html --output comparison.html

    Exit code: 0 if nothing that counts differs, else 10.
    """
    from envspec.io.files import replace_user_file
    from envspec.receipts.compare import compare
    from envspec.receipts.model import read

    if len(receipts) < 2:
        raise UsageError("one receipt can't be compared", hint="name two receipts or more")
    found = compare(list(zip(_names(receipts), map(read, receipts), strict=True)))
    result = in_formats(COMPARISON, found, exit_code_of(is_different=found.differs))
    if path is None:
        return result
    replace_user_file(path, COMPARISON.render(output.SETTINGS.form, found).encode())
    output.info(f"wrote {path}")
    return plain(lambda: {"output": str(path)}, [], result.exit_code)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of receipts: their folder or file, or the whole path if that is not unique."""
    short = list(map(_short_name, paths))
    names = []
    for name, path in zip(short, paths, strict=True):
        names.append(str(path) if short.count(name) > 1 else name)
    # The same file twice needs two names as well.
    unique = []
    for number, name in enumerate(names, 1):
        unique.append(f"{name} ({number})" if names.count(name) > 1 else name)
    return unique


def _short_name(path: Path) -> str:
    if path.name == "receipt.json":
        return path.parent.name or path.name
    return path.name


@click.command("explain-error")
@click.argument("code", required=False, metavar="[CODE]")
@output.output()
def explain_error(code: str | None) -> Result:
    """Explain an error by its code: what it means, an example, what to do. Without CODE, list all codes.

    An error's last line and its JSON object (`error.code`) have the code. The pages are part of envspec: no network is
    needed.

    \b
    envspec explain-error no-torch-build
    """
    from envspec.diagnostics.error_pages import error_page, error_pages

    if code is None:
        pages = error_pages()
        width = max(len(page.code) for page in pages)
        lines = [f"{page.code:<{width}}  {page.exit_code:>3}  {page.summary}" for page in pages]
        return plain(lambda: {"errors": [page._asdict() for page in pages]}, lines)
    page = error_page(code)
    return plain(page._asdict, page.text.splitlines(), write=terminal.answer_markdown)


@click.command()
@click.argument("document", type=click.Choice(["spec", "receipt"]), default="spec")
@output.output(["json"], "The format of schemas.")
def schema(document: str) -> Result:
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

    return plain(json_schema, [])
