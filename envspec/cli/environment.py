"""`envspec install` and `envspec verify`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import asdict

from envspec.cli import options, output, terminal
from envspec.cli.output import Result, plain
from envspec.cli.progress import TerminalReporter
from envspec.cli.selection import this_adopted
from envspec.errors import EnvspecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envspec.models import Lock, Platform
    from envspec.verifier.types import VerifyCounts, VerifyResult

#: Lines of one package: a removed folder need not list each of its files.
_MOST_LINES: Final = 12


class Drifted(EnvspecError, exit_code=8, code="environment-differs"):
    """The environment differs from its lock."""


@click.command()
@options.LOCK
@options.path_option(
    "--prefix", "DIR", "The environment's folder, which must be empty or not exist yet.", required=True
)
@options.platform_option(options.PLATFORMS, "The platform, which must be this machine's.")
@options.path_option("--python", "PATH", "An interpreter of the locked series, for a lock without conda.")
@options.OFFLINE
@options.DRY_RUN
@options.jobs("files to fetch", "8")
@options.UNCONFINED
@output.output()
def install(
    lock: str, prefix: Path, platform: Platform | None, python: Path | None, dry_run: bool, **chosen: Any
) -> Result:
    """Install the environment of a lock on this machine, completely or not at all.

    LOCK is a folder, its envspec.lock, a name under locks/, or a lock of another tool, such as uv.lock. Resolves
    nothing: checks the hash of every archive, and builds packages that are locked as sources. An interrupted run leaves
    no environment; the next run uses the files that are already fetched. Prints the path of the environment.

    \b
    envspec install pytorch-2.9 --prefix .venv
    envspec install pytorch-2.9 --prefix .venv --dry-run    how many bytes?
    envspec install pytorch-2.9 --prefix .venv --offline    from the cache
    envspec install pytorch-2.9 --prefix .venv --python /usr/bin/python3.12
    """
    from envspec.conformance.text import counted
    from envspec.lockfile.folder import find_lock, read_with_digest
    from envspec.operations.environment import InstallOutcome, install, install_request, plan_install
    from envspec.report.format import size

    locked, digest = read_with_digest(find_lock(lock, Path()))
    request = install_request(locked, digest, prefix, platform, python)
    about = {"lock": locked.name, "platform": request.platform.value, "prefix": str(request.prefix)}
    if dry_run:
        plan = plan_install(request)
        line = f"would install {counted(plan.packages + plan.conda, 'package')} ({size(plan.size_bytes)})"
        if plan.outcome is InstallOutcome.UNCHANGED:
            line = "already installed"
        return plain(lambda: {"dry_run": True, **about, **asdict(plan)}, [f"{request.prefix}: {line}"])
    with TerminalReporter(request.lock.name) as reporter:
        outcome = install(request, options.context_of(chosen, reporter, usual_jobs=8))
    if outcome is InstallOutcome.UNCHANGED:
        output.info(f"{request.prefix}: already installed")
    return plain(lambda: {**about, "outcome": outcome}, [str(request.prefix)])


@click.command()
@options.LOCK
@options.path_option(
    "--prefix", "DIR", "The environment's folder (default: the active one, by VIRTUAL_ENV or CONDA_PREFIX)."
)
@options.platform_option(options.PLATFORMS, "The platform (default: this machine's).")
@click.option(
    "--strict", is_flag=True, help="Compile all modules again with the environment's Python, and compare the bytecode."
)
@output.output()
def verify(lock: str, prefix: Path | None, platform: Platform | None, strict: bool) -> Result:
    """Check that an environment contains exactly what is locked, file by file.

    LOCK is a folder, its envspec.lock, a name under locks/, or a lock of another tool, such as uv.lock. Resolves,
    fetches and changes nothing. Exit code 8, with all differences, if the environment differs.

    \b
    envspec verify pytorch-2.9                     the active environment
    envspec verify pytorch-2.9 --prefix .venv
    envspec verify pytorch-2.9 --strict            bytecode too
    """
    from envspec.diagnostics.machine import this_platform
    from envspec.lockfile.folder import find_lock, read_lock
    from envspec.operations.environment import verify

    folder = find_lock(lock, Path())
    locked = read_lock(folder)
    where = platform or this_platform()
    environment = prefix or _active(os.environ)
    result = verify(locked, environment, platform=where, strict=strict)
    document = {"lock": locked.name, "platform": where.value, "prefix": str(environment), **result.as_json()}
    if result.is_same:
        return plain(lambda: document, [f"{environment} matches {locked.name}: {_counted(result.counts)}"])
    error = _drifted(result, environment, folder, locked, where)
    return plain(lambda: document, _lines(result), write=terminal.answer_sections, error=error)


def _active(environ: Mapping[str, str]) -> Path:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name):
            return Path(environ[name])
    raise UsageError("no environment is active", hint="name its folder: `envspec verify LOCK --prefix DIR`")


def _lines(result: VerifyResult) -> Iterator[str]:
    by_package: dict[str, list[str]] = {}
    for finding in result.findings:
        by_package.setdefault(finding.package, []).append(finding.text)
    for package, texts in by_package.items():
        yield package or "of no package"
        yield from (f"  {text}" for text in texts[:_MOST_LINES])
        if len(texts) > _MOST_LINES:
            yield f"  and {len(texts) - _MOST_LINES} more (--format json has all)"


def _counted(counts: VerifyCounts) -> str:
    from envspec.conformance.text import counted

    held = []
    if counts.packages:
        held.append(counted(counts.packages, "package"))
    if counts.conda:
        held.append(counted(counts.conda, "conda package"))
    held.append(f"{counts.files:,} files ({counts.size_bytes / 1e9:.1f} GB)")
    notes = []
    if counts.against_record:
        of = counted(counts.against_record, "package")
        notes.append(f"{of} without a digest in the lock, compared with RECORD only")
    if counts.allowed:
        notes.append(
            f"{counted(counts.allowed, 'package')} that the lock allows, such as pip, compared with RECORD only"
        )
    if counts.record_only:
        notes.append(
            f"{counted(counts.record_only, 'file')} of installers, such as INSTALLER, compared with RECORD only"
        )
    if not counts.listed and not counts.conda:
        notes.append(
            "files of Python itself, such as bin/python and pyvenv.cfg, not compared: no list of them, which newer "
            "versions of `envspec install` write"
        )
    if counts.bytecode_by_time:
        number = f"{counts.bytecode_by_time:,} bytecode files"
        notes.append(f"{number} not compared: Python checks their times (--strict compares them)")
    if counts.bytecode_other_python:
        notes.append(f"{counts.bytecode_other_python:,} bytecode files of another Python not checked")
    text = ", ".join(held)
    return f"{text} ({'; '.join(notes)})" if notes else text


def _drifted(result: VerifyResult, environment: Path, folder: Path, locked: Lock, platform: Platform) -> Drifted:
    from envspec.conformance.text import counted
    from envspec.verifier.types import PYTHON

    ways = counted(len(result.findings), "difference")
    packages = {finding.package for finding in result.findings} - {""}
    of = counted(len(packages), "package") if packages else "no package"
    adopted = this_adopted()
    named = adopted.found.path if adopted else folder
    anew = f"install the lock into a new folder: `envspec install {named} --prefix DIR`"
    requirements = folder / f"requirements.{platform.value}.txt"
    has_conda = any(each.conda for each in locked.resolutions)
    hint = anew
    # uv changes neither conda packages nor Python.
    if requirements.is_file() and not has_conda and PYTHON not in packages:
        command = f"uv pip sync --reinstall --require-hashes --python {environment} {requirements}"
        hint += f"; or repair it: `{command}`"
    return Drifted(f"{environment} differs from {locked.name}: {ways} in {of}", hint=hint)
