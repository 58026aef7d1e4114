"""`envspec lock`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envspec.cli import terminal
from envspec.cli.options import UNCONFINED
from envspec.errors import EnvspecError, StaleLock, UsageError
from envspec.resolve import RESOLVERS, SOLVERS

if TYPE_CHECKING:
    from envspec.lockfile.check import CheckResult


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where to write: one spec's lock to DIR, several specs' to DIR/<name>.",
)
@click.option(
    "--resolver",
    "resolvers",
    type=click.Choice([*RESOLVERS, *SOLVERS]),
    multiple=True,
    metavar="NAME",
    help="Resolver of PyPI's packages (uv, pip-tools) or of conda's (rattler, conda-lock); once for each.",
)
@click.option(
    "--channel-repodata",
    multiple=True,
    metavar="CHANNEL=DIR",
    help="Solve this channel from DIR/<subdir>/repodata.json; the lock records it.",
)
@click.option("--offline", is_flag=True, help="Use what is in the cache and no network.")
@click.option(
    "--upgrade", is_flag=True, help="Take the newest that the spec's as_of allows; without as_of, what is newest now."
)
@click.option(
    "--upgrade-package", multiple=True, metavar="NAME", help="Move this package, and what it must, and nothing else."
)
@click.option("--as-of", metavar="DATE|now", help="Set as_of in the spec to this moment, then lock.")
@click.option("--image", is_flag=True, help="Also record the ID that each linux platform's image is expected to have.")
@click.option(
    "--check", is_flag=True, help="Only tell whether the locks belong to their specs; exit 3 if not. No network."
)
@click.option(
    "--verify",
    is_flag=True,
    help="Resolve again and compare every byte of the locks, without writing them; exit 3 if they differ.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    metavar="N",
    help="How many platforms to resolve at the same time.",
)
@UNCONFINED
def command(
    specs: tuple[str, ...],
    output: Path | None,
    resolvers: tuple[str, ...],
    channel_repodata: tuple[str, ...],
    offline: bool,
    upgrade: bool,
    upgrade_package: tuple[str, ...],
    as_of: str | None,
    image: bool,
    check: bool,
    verify: bool,
    jobs: int,
    unconfined: bool,
) -> int:
    """Compile specs into locks: pinned, hashed, coherent.

    SPEC is a .toml file, or a name under specs/. The lock goes to locks/<name>/; its paths that changed are printed.
    """
    from envspec.spec.identity import find_spec

    paths = [find_spec(spec, Path()) for spec in specs]
    if check:
        if image:
            raise UsageError("--image with --check", hint="--check makes nothing: leave one of them out")
        if verify:
            raise UsageError("--verify with --check", hint="--verify does all that --check does: leave --check out")
        return _each(paths, lambda path: _check(path, _directory(path, output, len(paths))))
    from envspec.cli.locking import Options, folders, lock_one, set_moment, verify_one

    if verify and (offline or upgrade or upgrade_package or as_of or image):
        raise UsageError(
            "--verify with an option that changes the lock, or without a network",
            hint="leave out --offline, --upgrade, --upgrade-package, --as-of and --image",
        )
    if as_of is not None:
        for path in paths:
            set_moment(path, as_of)
    pypi = _one_of(resolvers, RESOLVERS)
    conda = _one_of(resolvers, SOLVERS)
    options = Options(
        pypi, conda, folders(channel_repodata), offline, upgrade, upgrade_package, image, jobs, unconfined
    )
    act = verify_one if verify else lock_one
    return _each(paths, lambda path: act(path, _directory(path, output, len(paths)), options))


def _one_of(named: tuple[str, ...], half: Iterable[str]) -> str:
    """The resolver of one half: the one that is named, else the half's first."""
    found = dict.fromkeys(name for name in named if name in half)
    if len(found) > 1:
        raise UsageError(f"--resolver {' and '.join(found)}: both resolve the same half", hint="name one of them")
    return next(iter(found), next(iter(half)))


def _each(paths: list[Path], act: Callable[[Path], int]) -> int:
    """Do the same for every spec; one that fails does not keep the others back. The first failure's exit code."""
    codes: list[int] = []
    for path in paths:
        try:
            codes.append(act(path))
        except EnvspecError as error:
            if len(paths) == 1:
                raise
            terminal.tell(f"error: {path}: {error}")
            codes.append(error.exit_code)
    return next((code for code in codes if code), 0)


def _directory(path: Path, output: Path | None, count: int) -> Path:
    if output is not None and count == 1:
        return output
    return (output or Path("locks")) / _name(path)


def _name(path: Path) -> str:
    """The environment's name. A spec that has none is no spec: all its faults are told."""
    from envspec import documents

    try:
        name = documents.read_spec(path)["env"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if isinstance(name, str) and name and "/" not in name and "\\" not in name and name not in (".", ".."):
        return name
    from envspec.spec import load_spec

    return load_spec(path, datetime.now(timezone.utc)).env.name


def _check(path: Path, directory: Path) -> int:
    return StaleLock.exit_code if report_check(path, directory).reasons else 0


def report_check(path: Path, directory: Path) -> CheckResult:
    """Check a lock without a network, and print what was found."""
    from envspec.data import facts_version
    from envspec.lockfile.check import check

    result = check(path, directory, facts_version())
    for text in result.warnings:
        terminal.tell(f"warning: {directory}: {text}")
    for reason in result.reasons:
        terminal.tell(f"stale: {reason.text}")
        terminal.tell(f"  hint: {reason.hint or f'run `envspec lock {path}` and commit what it writes'}")
    return result
