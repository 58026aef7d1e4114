"""`envspec audit-project`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envspec.cli import output
from envspec.cli.inspect import driver_version, exit_code_of
from envspec.cli.options import OFFLINE, PLATFORMS, context_of, platform_option
from envspec.cli.output import Result, in_formats
from envspec.errors import UsageError
from envspec.report import AUDIT

if TYPE_CHECKING:
    from envspec.models import Platform


@click.command()
@click.argument("sources", nargs=-1, metavar="[FROM...]", type=click.Path(path_type=Path))
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME",
    help='A GPU that must run it: H100, "RTX 5090", or a compute capability such as 9.0. Once for each kind.',
)
@click.option("--driver", metavar="V", help="The NVIDIA driver that must run it, such as 535 or 570.124.06.")
@platform_option(PLATFORMS, "The platform to examine (default: linux-64).")
@click.option("--python", metavar="V", help="The Python to examine (default: the one that the sources name).")
@click.option("--ignore", "ignored", multiple=True, metavar="CODE", help="Skip a rule, such as ENV401.")
@OFFLINE
@output.output(AUDIT, "Text for people, JSON for programs, annotations of a GitHub workflow, or SARIF.")
def command(
    sources: tuple[Path, ...],
    gpus: tuple[str, ...],
    driver: str | None,
    platform: Platform | None,
    python: str | None,
    ignored: tuple[str, ...],
    offline: bool,
) -> Result:
    """Report what is wrong with a project's environment, from the project's files.

    FROM is a requirements file, pyproject.toml, a lock file of uv or poetry, environment.yml, pixi.toml, a Dockerfile,
    devcontainer.json, cog.yaml, or a folder: an environment, or a project with such files. Default: the current folder.
    Needs no spec, and changes nothing.

    Checks that the torch family imports together, that GPUs and driver run it, that the image has CUDA once, and that
    the index still has each version. Rules that did not run are listed, and do not count as passed. A comment
    `# envspec: ignore[ENV401]` on a line, or above it, suppresses a finding there.

    \b
    envspec audit-project                                     this folder
    envspec audit-project --gpu "RTX 5090" --driver 570       for a machine
    envspec audit-project Dockerfile requirements-train.txt   certain files

    Exit code: 0 without errors (warnings don't count), 10 with errors.
    """
    from envspec.diagnostics.audit import RULES
    from envspec.diagnostics.audit.types import Severity
    from envspec.models import Platform
    from envspec.operations.audit_project import AuditRequest, audit_project

    if unknown := [code for code in ignored if code.upper() not in RULES]:
        raise UsageError(f"--ignore {unknown[0]}: no such rule", hint=f"rules: {', '.join(RULES)}")
    request = AuditRequest(
        Path(), sources, gpus, driver_version(driver), platform or Platform.LINUX_64, python, tuple(ignored)
    )
    report = audit_project(request, context_of({"offline": offline}))
    return in_formats(AUDIT, report, exit_code_of(is_different=report.count(Severity.ERROR) > 0))
