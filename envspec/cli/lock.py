"""`envspec lock`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envspec.cli import terminal
from envspec.cli.options import MIRROR, OFFLINE, UNCONFINED, context_of, jobs
from envspec.cli.progress import TerminalReporter, reporting
from envspec.errors import EnvspecError, StaleLock, UsageError
from envspec.resolve import RESOLVERS, SOLVERS

if TYPE_CHECKING:
    from envspec.context import Context, Reporter
    from envspec.lockfile.check import Reason
    from envspec.operations.lock_state import LockRequest


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Output folder: DIR for one spec, DIR/<name> for several (default: locks/<name>).",
)
@click.option(
    "--resolver",
    "resolvers",
    type=click.Choice([*RESOLVERS, *SOLVERS]),
    multiple=True,
    metavar="NAME",
    help=f"Resolver of PyPI's packages ({', '.join(RESOLVERS)}) or of conda's ({', '.join(SOLVERS)}); once for each.",
)
@click.option(
    "--channel-repodata",
    multiple=True,
    metavar="CHANNEL=DIR",
    help="Solve this channel from DIR/<subdir>/repodata.json; the lock records it.",
)
@OFFLINE
@click.option(
    "--upgrade",
    is_flag=True,
    help="Upgrade all packages to the newest that the spec's as_of allows; without as_of, to the newest now.",
)
@click.option(
    "--upgrade-package", multiple=True, metavar="NAME", help="Upgrade this package, and only what it requires."
)
@click.option("--as-of", metavar="DATE|now", help="Set as_of in the spec to this time, then lock.")
@click.option("--image", is_flag=True, help="Also record the ID of each linux platform's image.")
@click.option("--check", is_flag=True, help="Only check that the locks are up to date; exit 3 if not. Uses no network.")
@click.option(
    "--verify",
    is_flag=True,
    help="Resolve again and compare every byte of the locks, without writing them; exit 3 if they differ.",
)
@jobs("platforms to resolve", "4, or the number of processors")
@MIRROR
@UNCONFINED
def command(
    specs: tuple[str, ...],
    output: Path | None,
    check: bool,
    verify: bool,
    as_of: str | None,
    **chosen: Any,
) -> int:
    """Compile specs into locks: pinned, hashed, coherent.

    SPEC is a .toml file, or a name under specs/. The lock is written to locks/<name>/. Prints the paths that changed.
    """
    from envspec.spec.identity import find_spec

    paths = [find_spec(spec, Path()) for spec in specs]
    if check:
        if chosen["image"]:
            raise UsageError("--image and --check exclude each other", hint="remove one of them")
        if verify:
            raise UsageError("--verify includes --check", hint="remove --check")
        stale = StaleLock.exit_code
        return _each(paths, lambda path: stale if _check(path, _directory(path, output, len(paths))) else 0)
    if verify and (as_of or any(chosen[name] for name in ("offline", "upgrade", "upgrade_package", "image"))):
        raise UsageError(
            "--verify writes no lock and needs the network",
            hint="remove --offline, --upgrade, --upgrade-package, --as-of and --image",
        )
    if as_of is not None:
        from envspec.operations.lock import set_as_of

        for path in paths:
            set_as_of(path, as_of)
    act = _verify if verify else _lock
    return _each(paths, lambda path: act(_request(path, _directory(path, output, len(paths)), chosen), chosen))


def _one_of(named: tuple[str, ...], engines: Iterable[str]) -> str:
    """The resolver of one ecosystem: the one that is named, else the first."""
    found = dict.fromkeys(name for name in named if name in engines)
    if len(found) > 1:
        raise UsageError(f"--resolver {' and '.join(found)}: both resolve the same packages", hint="name one of them")
    return next(iter(found), next(iter(engines)))


def _each(paths: list[Path], act: Callable[[Path], int]) -> int:
    """Do the same for every spec, also after one that fails. The first failure's exit code."""
    codes: list[int] = []
    for path in paths:
        try:
            codes.append(act(path))
        except EnvspecError as error:
            if len(paths) == 1:
                raise
            terminal.report(f"error: {path}: {error}")
            codes.append(error.exit_code)
    return next((code for code in codes if code), 0)


def _directory(path: Path, output: Path | None, count: int) -> Path:
    if output is not None and count == 1:
        return output
    from envspec.spec.identity import env_name

    return (output or Path("locks")) / env_name(path)


def _check(path: Path, directory: Path) -> Sequence[Reason]:
    """Check a lock without a network, and print what was found; why it is stale."""
    from envspec.data import facts_version
    from envspec.lockfile.check import check

    result = check(path, directory, facts_version())
    for text in result.warnings:
        terminal.report(f"warning: {directory}: {text}")
    for reason in result.reasons:
        terminal.report(f"stale: {reason.text}")
        terminal.report(f"  hint: {reason.hint or f'run `envspec lock {path}` and commit what it writes'}")
    return result.reasons


def _lock(request: LockRequest, chosen: Mapping[str, Any]) -> int:
    """Lock one spec and print the paths that changed."""
    from envspec.operations.lock_cache import without_resolving

    with TerminalReporter(request.spec_path.stem) as reporter:
        context = _context(chosen, reporter)
        changed = without_resolving(request, context)
        if changed is None:
            from envspec.operations.lock import lock

            changed = lock(request, context)
    if chosen["image"]:
        from envspec.operations.image import record_images_of

        with reporting(request.spec_path.stem) as reporter:
            recorded = record_images_of(request.spec_path, request.directory, _context(chosen, reporter))
        changed = sorted({*changed, *recorded})
    for written in changed:
        terminal.answer(f"{written}\n")
    if not changed:
        terminal.report(f"{request.directory}: nothing changed")
    return 0


def _verify(request: LockRequest, chosen: Mapping[str, Any]) -> int:
    """Resolve one spec again and print every value of its lock that differs."""
    from envspec.lockfile.check import Why

    path, directory = request.spec_path, request.directory
    found = _check(path, directory)
    if any(reason.why in (Why.NO_LOCK, Why.FORMAT, Why.DAMAGED, Why.SPEC) for reason in found):
        # There is nothing to compare with what the spec compiles to.
        return StaleLock.exit_code
    from envspec.operations.lock_verify import verify_lock

    with TerminalReporter(path.stem) as reporter:
        verified = verify_lock(request, _context(chosen, reporter))
    for row in verified.differences:
        terminal.answer(f"{directory}: {row}\n")
    for text in verified.unverified:
        terminal.report(f"not verified: {directory}: {text}")
    if verified.differences:
        terminal.report(f"{directory}: differs from a new resolution as of {verified.at}")
        terminal.report(
            f"  hint: `envspec lock {path}` writes what was resolved. An index that lists other releases than it did "
            "leads to other versions and reasons; another file, URL or hash of one version is a lock that was changed"
        )
    elif not found:
        but = " except for what is not verified" if verified.unverified else ""
        terminal.report(f"{directory}: verified{but}: equal to a new resolution as of {verified.at}")
    return StaleLock.exit_code if found or verified.differences else 0


def _context(chosen: Mapping[str, Any], reporter: Reporter) -> Context:
    return context_of(chosen, reporter, usual_jobs=max(4, os.cpu_count() or 1))


def _request(path: Path, directory: Path, chosen: Mapping[str, Any]) -> LockRequest:
    from envspec.names import normalised
    from envspec.operations.lock_state import LockRequest, Upgrade

    return LockRequest(
        spec_path=path,
        directory=directory,
        resolver=_one_of(chosen["resolvers"], RESOLVERS),
        conda_resolver=_one_of(chosen["resolvers"], SOLVERS),
        channel_repodata=_folders(chosen["channel_repodata"]),
        upgrade=Upgrade.ALL if chosen["upgrade"] else Upgrade.KEEP,
        upgrade_packages=tuple(map(normalised, chosen["upgrade_package"])),
    )


def _folders(named: Sequence[str]) -> dict[str, Path]:
    """`--channel-repodata CHANNEL=DIR` -> channel and folder.

    Raises:
        UsageError: no `=`, or no such folder.
    """
    found: dict[str, Path] = {}
    for text in named:
        channel, equals, folder = text.partition("=")
        if not (channel and equals and Path(folder).is_dir()):
            why = f"{folder} is no folder" if channel and equals else "no channel with a folder"
            raise UsageError(
                f"--channel-repodata {text}: {why}", hint="write conda-forge=DIR, with DIR/linux-64/repodata.json"
            )
        found[channel] = Path(folder).absolute()
    return found
