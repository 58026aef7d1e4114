"""Options that several commands share, and the context that they make."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from envspec.cli import output, terminal
from envspec.cli.output import SETTINGS
from envspec.cli.selection import SELECTION, adopted, mention
from envspec.errors import StaleLock, UsageError

if TYPE_CHECKING:
    from envspec.context import Context, Reporter
    from envspec.models import Platform
    from envspec.operations.adopt import Adopted
    from envspec.operations.container import Mount

_F = TypeVar("_F", bound=Callable[..., Any])

#: All that envspec locks for.
PLATFORMS: Final = ("linux-64", "linux-aarch64", "osx-arm64", "win-64")
#: What images are for.
IMAGE_PLATFORMS: Final = PLATFORMS[:2]


def combined(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """One decorator that does what these do, written in this order one below the other."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def path_option(
    name: str,
    metavar: str,
    help_text: str,
    *,
    to: str | None = None,
    required: bool = False,
    multiple: bool = False,
    **kind: bool,
) -> Callable[[_F], _F]:
    """An option whose value is a Path. to: the parameter's name. kind: what `click.Path` accepts."""
    names = (name, to) if to else (name,)
    path = click.Path(path_type=Path, **kind)
    return click.option(*names, type=path, metavar=metavar, required=required, multiple=multiple, help=help_text)


def _set_locked(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    SETTINGS.locked = value


def compare_with_spec(
    ctx: click.Context, _param: click.Parameter, value: str | None, *, report: Callable[[Adopted], None] = mention
) -> str | None:
    """The callback of an argument that names a lock: warn if its spec has changed since; with `--locked`, fail.

    That there is no such lock, the command reports that reads it. A lock of another tool becomes one of envspec.

    report: reports on a lock of another tool.
    """
    if value is not None and not ctx.resilient_parsing:
        from envspec.lockfile.folder import find_lock

        folder = adopted(ctx, value, lambda: context_of({}), report)
        if folder != value:
            return folder

        with suppress(UsageError):
            _compare(find_lock(value, Path()))
    return value


def _compare(folder: Path) -> None:
    from envspec.lockfile.stale import stale_lock

    try:
        stale = stale_lock(folder)
    except UsageError as unknown:
        if SETTINGS.locked:
            raise StaleLock(unknown.message, hint=unknown.hint) from unknown
        return
    if stale is None:
        return
    if SETTINGS.locked:
        raise stale
    SETTINGS.stale.append(str(folder))
    output.warn(f"{stale.message}: {stale.hint}")


LOCKED: Final = click.option(
    "--locked",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_set_locked,
    help="Fail if the spec of LOCK has changed since it was locked, or is not there (default: only warn of a change).",
)


def lock_argument(*, required: bool = True, report: Callable[[Adopted], None] = mention) -> Callable[[_F], _F]:
    """LOCK, compared with its spec, and `--locked`; of a lock of another tool, which part of it, on which `report`
    reports.
    """
    argument = click.argument(
        "lock",
        required=required,
        shell_complete=terminal.complete_lock,
        callback=partial(compare_with_spec, report=report),
    )
    return combined(argument, LOCKED, *SELECTION)


LOCK: Final = lock_argument()
OFFLINE: Final = click.option("--offline", is_flag=True, help="Use only the cache, no network.")
UNCONFINED: Final = click.option(
    "--no-sandbox",
    is_flag=True,
    help="Run builds, and a Python that only the lock names, with your rights if nothing can confine them.",
)
MIRROR: Final = click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="REGISTRY=HOST",
    help="Use HOST instead of REGISTRY, like [registry.mirrors]; may be given more than once.",
)


DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")

#: Of a container, and of the lock's image if it has to be built first.
GPUS: Final = click.option(
    "--gpus",
    default="auto",
    metavar="all|none|IDS",
    help="GPUs by number or UUID: 0,1 (default: all if the lock uses CUDA).",
)
MOUNTS: Final = click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", help="Mount a folder or file.")
ENV: Final = click.option(
    "--env", "-e", "env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable (default: the host's value)."
)
IMAGE_OFFLINE: Final = click.option(
    "--offline", is_flag=True, help="If the image must be built, use only the cache, no network."
)


def platform_option(names: Iterable[str], help_text: str) -> Callable[[_F], _F]:
    """`--platform`: a Platform, or None."""
    # Eager: which platforms are wanted is known before LOCK is read.
    return click.option(
        "--platform", type=click.Choice(list(names)), callback=_platform_of, is_eager=True, help=help_text
    )


def _platform_of(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Platform | None:
    from envspec.models import Platform

    return Platform(value) if value else None


def mount_of(text: str) -> Mount:
    """The value of `--mount`."""
    from envspec.operations.container import Mount, MountAccess

    found = re.fullmatch(r"(.+?):(/[^:]*)(?::(ro|rw))?", text)
    if not found:
        raise UsageError(f"--mount {text}: the form is SRC:DST[:ro]", hint="--mount /data:/data:ro")
    source = str(Path(found[1]).expanduser().absolute())
    return Mount(source, found[2].rstrip("/") or "/", MountAccess(found[3] or "rw"))


def variables_of(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The values of `--env`; a variable without a value that is not set on this machine is left out."""
    found: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"--env {text}: the variable has no name", hint="--env NAME=VALUE")
        if equals:
            found.append((name, value))
        elif name in os.environ:
            found.append((name, os.environ[name]))
    return tuple(found)


def size_of(option: str, text: str | None, base: int, example: str) -> int | None:
    """The bytes of a size such as `20GB`. base: 1000 or 1024."""
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if not found:
        raise UsageError(f"{option} {text}: not a size", hint=f"write it as {example}")
    unit: int = base ** ("", "k", "m", "g", "t").index(found[2])
    return round(float(found[1]) * unit)


def jobs(what: str, default: str) -> Callable[[_F], _F]:
    """`--jobs`. what: is done at the same time."""
    help_text = f"How many {what} at the same time (default: {default})."
    return click.option("--jobs", type=click.IntRange(min=1), default=None, metavar="N", help=help_text)


def context_of(
    chosen: Mapping[str, Any], reporter: Reporter | None = None, *, usual_jobs: int | None = None
) -> Context:
    """The context of a command: its options, else the variables, else the user's file.

    chosen: of the options `offline`, `jobs`, `mirrors` and `no_sandbox`, those that the command has.

    Raises:
        UsageError: an option or a setting that can't be used. UnsafeCache: other users could write to the cache.
    """
    from envspec.context import SILENT, Connectivity, Context
    from envspec.io.confine_types import Unconfined
    from envspec.settings import parse_mirrors

    return Context.from_environment(
        os.environ,
        connectivity=Connectivity.OFFLINE if chosen.get("offline") else None,
        jobs=chosen.get("jobs"),
        usual_jobs=usual_jobs,
        mirrors=parse_mirrors(chosen.get("mirrors", ())),
        unconfined=Unconfined.ALLOWED if chosen.get("no_sandbox") else Unconfined.REFUSED,
        reporter=reporter or SILENT,
    )
