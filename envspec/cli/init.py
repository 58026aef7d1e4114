"""`envspec init`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envspec.cli import output, terminal
from envspec.cli.inspect import DIFFERENT
from envspec.cli.options import OFFLINE, PLATFORMS, UNCONFINED, context_of, jobs, path_option
from envspec.cli.output import Result, in_formats
from envspec.cli.progress import TerminalReporter
from envspec.errors import EnvspecError, UsageError
from envspec.importers import KINDS
from envspec.report import IMPORT
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.context import Context
    from envspec.importers.result import Imported
    from envspec.importers.types import Draft
    from envspec.operations.init import InitRequest
    from envspec.operations.lock_state import LockRequest


class _Lost(EnvspecError, exit_code=DIFFERENT, code="lines-lost"):
    """The spec lacks lines of the sources, or parts of them: shown beside the result, never raised."""


@click.command()
@click.argument("sources", nargs=-1, type=click.Path(path_type=Path), metavar="[FROM...]")
@path_option(
    "--prefix",
    "DIR",
    "A working environment: a venv or a conda prefix. Its packages are read; nothing is run.",
    to="prefixes",
    multiple=True,
)
@click.option("--name", metavar="NAME", default="", help="Name of the environment (default: the project's).")
@path_option("--output", "FILE", "The spec (default: specs/<name>.toml).", to="path")
@click.option("--force", is_flag=True, help="Replace a spec that exists.")
@click.option("--python", metavar="V", default="", help="Python series or exact version.")
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    type=click.Choice(PLATFORMS),
    help="A platform to lock for (default: linux-64); once for each.",
)
@click.option(
    "--gpu", "gpus", multiple=True, metavar="NAME", help="A GPU that must run the environment; once for each kind."
)
@click.option("--driver", metavar="V", default="", help="The oldest NVIDIA driver that must run the environment.")
@click.option("--cuda", metavar="V", default="", help="CUDA's minor version.")
@click.option("--extra", "extras", multiple=True, metavar="NAME", help="An extra of pyproject.toml to include.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of pyproject.toml to include.")
@click.option("--target", metavar="STAGE", default="", help="The stage of a Dockerfile to import (default: the last).")
@click.option(
    "--as",
    "kind",
    type=click.Choice(KINDS),
    help="What a file with another name is, such as `requirements.dev`.",
)
@click.option(
    "--as-of",
    "--exclude-newer",
    "as_of",
    metavar="DATE",
    help="The spec's as_of: later uploads are ignored (default: now).",
)
@click.option(
    "--allow-incomplete", is_flag=True, help="Exit with code 0 even if packages, indexes or settings are lost."
)
@click.option("--no-lock", is_flag=True, help="Write only the spec.")
@click.option("--dry-run", is_flag=True, help="Write nothing; print the spec.")
@OFFLINE
@jobs("platforms to resolve", "4, or the number of processors")
@UNCONFINED
@output.output(IMPORT)
def command(sources: tuple[Path, ...], prefixes: tuple[Path, ...], path: Path | None, **chosen: Any) -> Result:
    """Write a spec and its lock from a project's files or environments, with the versions that these have.

    FROM: files such as requirements.txt, pyproject.toml (with the lock file next to it), environment.yml, Dockerfile,
    devcontainer.json; the folder of a project (default: the current one), whose files you confirm on a terminal; or
    the folder of an environment. Shows the result of every line.

    \b
    envspec init requirements.txt --gpu A100
    envspec init pyproject.toml --extra gpu
    envspec init --prefix .venv           then compare it with the lock

    Exit code: 0 if the spec has all packages, indexes and settings of the sources, 10 if it lacks some.
    """
    from envspec.conformance.text import counted
    from envspec.importers.types import Choices
    from envspec.models import Platform
    from envspec.operations.init import InitRequest, write_spec
    from envspec.operations.lock_state import as_of_option

    now = datetime.now(timezone.utc).replace(microsecond=0)
    if not sources and not prefixes:
        sources = (Path(),)
    as_of = None
    if chosen["as_of"] is not None:
        as_of = as_of_option(chosen["as_of"], now)
    files, gpus = _files_in(sources, chosen["gpus"])
    request = InitRequest(
        root=Path(),
        sources=(*files, *prefixes),
        choices=Choices(
            as_of=as_of,
            name=chosen["name"],
            python=chosen["python"],
            platforms=tuple(map(Platform, chosen["platforms"])),
            gpus=gpus,
            driver=chosen["driver"],
            cuda=chosen["cuda"],
        ),
        output=path,
        extras=chosen["extras"],
        groups=chosen["groups"],
        overwrite=chosen["force"],
        target=chosen["target"],
        kind=chosen["kind"] or "",
    )
    found, draft = write_spec(request, now, dry_run=chosen["dry_run"])
    if chosen["dry_run"]:
        output.info(f"would write {found.spec}:")
        terminal.report(found.text)
    elif not chosen["no_lock"]:
        found = _locked(request, found, draft, chosen)
    error = found.error
    if error is None and found.lost and not chosen["allow_incomplete"]:
        are = "is" if len(found.lost) == 1 else "are"
        error = _Lost(
            f"{counted(len(found.lost), 'line')} of the sources {are} not in the spec",
            hint=f"add to {found.spec} those that you need; `--allow-incomplete` accepts the loss of the others",
        )
    return in_formats(IMPORT, found, error=error)


def _locked(request: InitRequest, found: Imported, draft: Draft, chosen: dict[str, Any]) -> Imported:
    from envspec.operations.init import lock_imported

    @contextmanager
    def running(_: LockRequest) -> Iterator[Context]:
        with TerminalReporter(found.name) as reporter:
            yield context_of(chosen, reporter)

    try:
        return lock_imported(found, draft, request, running)
    except EnvspecError as error:
        return replace(found, error=error)


def _files_in(sources: Sequence[Path], gpus: tuple[str, ...]) -> tuple[list[Path], tuple[str, ...]]:
    """The files and environments of the command, and the files in its folders of projects; and the GPUs.

    On a terminal, the user confirms the files of a project, and names GPUs.
    """
    from envspec.importers import project_sources
    from envspec.importers.prefix import is_environment

    files: list[Path] = []
    for path in sources:
        if not path.is_dir() or is_environment(path):
            files.append(path)
            continue
        found = project_sources(path)
        if not found:
            raise UsageError(
                f"no requirements, pyproject.toml, lock, environment.yml or Dockerfile in {path.absolute()}",
                hint="name the sources: `envspec init requirements.txt`, or an environment: "
                "`envspec init --prefix .venv`",
            )
        if not (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stderr)):
            output.info(f"importing {', '.join(map(str, found))}")
            files += found
            continue
        confirmed = [each for each in found if click.confirm(f"import {each}?", default=True, err=True)]
        if not confirmed:
            raise UsageError("no source is left", hint="name the sources: `envspec init requirements.txt`")
        files += confirmed
        gpus = gpus or _gpus()
    return files, gpus


def _gpus() -> tuple[str, ...]:
    text = click.prompt("GPUs that must run it, such as A100, H100 (empty: not known)", default="", err=True)
    return tuple(filter(None, (each.strip() for each in text.split(","))))
