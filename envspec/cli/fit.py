"""`envspec fit`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envspec.cli import terminal
from envspec.errors import UnfitMachine, UsageError
from envspec.report import FIT

if TYPE_CHECKING:
    from envspec.diagnostics.machine import Machine
    from envspec.facts import Facts
    from envspec.models import Lock, Platform

_PLATFORMS: Final = ("linux-64", "linux-aarch64", "osx-arm64", "win-64")


@click.command()
@click.argument("lock", metavar="LOCK", shell_complete=terminal.complete_lock)
@click.argument("more", nargs=-1, metavar="")
@click.option("--driver", metavar="V", help="Version of its NVIDIA driver, such as 570.124.06.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME",
    help='A GPU of it: H100, "RTX 4090", or a compute capability such as 9.0. Once for each kind.',
)
@click.option(
    "--platform",
    type=click.Choice(_PLATFORMS),
    help="Its platform (default: this machine's if it is in the lock, else the lock's first).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FIT)),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs.",
)
def command(
    lock: str, more: tuple[str, ...], driver: str | None, gpus: tuple[str, ...], platform: str | None, form: str
) -> int:
    """Check whether a machine can run a lock, and if not, show the smallest change that helps.

    LOCK is a folder, its envspec.lock, or a name under locks/. Without --driver, --gpu and --platform: this machine, as
    its driver and NVML describe it. With any of them: the machine that they describe; the rest is not checked.

    Exit code: 0 if it can, 6 if it can't or if that is unknown.
    """
    if more:
        raise UsageError(f"`fit` takes one LOCK, not also {' '.join(more)}", hint=_advice(more, gpus))
    from envspec.diagnostics import fit
    from envspec.diagnostics.machine import described_machine, read_machine
    from envspec.lockfile.folder import find_lock, read_lock

    locked = read_lock(find_lock(lock, Path()))
    facts = _facts(locked, Path("specs", f"{locked.name}.toml"))
    machine: Machine
    if driver is None and not gpus and platform is None:
        machine = read_machine()
    else:
        machine = described_machine(_platform(locked, platform), _version(driver), gpus, facts)
    report = fit.fits(locked, machine, facts)
    terminal.answer_report(form, FIT.render(form, report, terminal.width()))
    return 0 if report.verdict is fit.FitVerdict.FITS else UnfitMachine.exit_code


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


def _platform(lock: Lock, named: str | None) -> Platform:
    """The platform of a described machine."""
    from envspec.diagnostics.machine import this_platform
    from envspec.models import Platform

    if named is not None:
        return Platform(named)
    platforms = [resolution.target.platform for resolution in lock.resolutions]
    try:
        here = this_platform()
    except UnfitMachine:
        return platforms[0]
    return here if here in platforms or not platforms else platforms[0]


def _facts(lock: Lock, spec: Path) -> Facts:
    """The facts, with the rows under `[facts]` of the lock's spec if the spec is available."""
    from envspec import documents
    from envspec.facts import load_facts
    from envspec.spec.identity import input_sha256

    try:
        data = documents.read_spec(spec)
    except (OSError, ValueError):
        return load_facts()
    if "facts" not in data or input_sha256(data) != lock.input_sha256:
        return load_facts()
    from datetime import datetime, timezone

    from envspec.spec import load_spec

    return load_facts(load_spec(spec, datetime.now(timezone.utc)).facts.tables())
