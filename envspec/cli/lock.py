"""`envspec lock`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from envspec.cli import output, terminal
from envspec.cli.options import MIRROR, OFFLINE, UNCONFINED, combined, context_of, jobs, path_option
from envspec.cli.output import Result, plain
from envspec.cli.progress import TerminalReporter
from envspec.errors import EnvspecError, StaleLock, UsageError
from envspec.escaping import visible
from envspec.resolve import RESOLVERS, SOLVERS
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.context import Context
    from envspec.lockfile.check import StaleReason
    from envspec.operations.lock.cache import UpToDate
    from envspec.operations.lock_state import Compiled, LockRequest


#: Of a lock that stays as it is, and of one that `--check` finds right.
_NOTHING_CHANGED: Final = "nothing changed"
_UP_TO_DATE: Final = "up to date"
#: Values of a stale lock that are printed.
_MOST_FIELDS: Final = 20
#: Option -> those that exclude it: --verify writes no lock, and needs the network.
_EXCLUDED: Final = {
    "check": ("verify", "dry_run", "on_top_of", "image"),
    "verify": ("dry_run", "offline", "upgrade", "upgrade_package", "as_of", "on_top_of", "image"),
    "dry_run": ("image",),
    "upgrade_package": ("upgrade",),
}
#: Options of all commands that lock.
LOCKING: Final = combined(
    path_option(
        "--output",
        "DIR",
        "Output folder: DIR for one spec, DIR/<name> for several (default: locks/<name>).",
        to="folder",
    ),
    click.option(
        "--resolver",
        "resolvers",
        type=click.Choice([*RESOLVERS, *SOLVERS]),
        multiple=True,
        metavar="NAME",
        help=f"Resolver of PyPI's packages ({', '.join(RESOLVERS)}) or of conda's ({', '.join(SOLVERS)}); the first of "
        "each is the default. conda-lock requires `pip install 'envspec[conda-lock]'`.",
    ),
    click.option(
        "--channel-repodata",
        multiple=True,
        metavar="CHANNEL=DIR",
        help="Solve this channel from DIR/<subdir>/repodata.json; the lock records it.",
    ),
    OFFLINE,
    jobs("platforms to resolve", "4, or the number of processors"),
    MIRROR,
    UNCONFINED,
)


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option(
    "--upgrade",
    is_flag=True,
    help="Upgrade all packages to the newest releases that the spec's as_of allows; without a date in the spec, to the "
    "newest available.",
)
@click.option(
    "--upgrade-package",
    multiple=True,
    metavar="NAME",
    help="Upgrade this package, and others only if its new release requires it.",
)
@click.option(
    "--as-of",
    "--exclude-newer",
    "as_of",
    metavar="DATE|now",
    help="Set as_of in the spec to this date, then lock; with --upgrade-package, the date of these packages.",
)
@path_option(
    "--on-top-of",
    "FILE",
    "Set pip.on_top_of in the spec to this list of installed packages (pip inspect, pip list, pip freeze), then lock.",
    exists=True,
    dir_okay=False,
)
@click.option(
    "--image",
    is_flag=True,
    help="Also build the image of each linux platform, and record its ID, its system layer and the wheels built from "
    "sdists. With --upgrade, these may differ from the recorded ones.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Only check that each lock belongs to its spec, that every value follows from it, and that it allows the "
    "packages with their indexes, hosts and files; exit code 3 if not. Uses no network.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Resolve again and compare every byte of the locks; write nothing. If they differ, list the entries and exit "
    "with code 3.",
)
@click.option("--dry-run", is_flag=True, help="Resolve and show what would change; write no lock and no spec.")
@LOCKING
@output.output()
def command(specs: tuple[str, ...], folder: Path | None, **chosen: Any) -> Result:
    """Resolve specs, and write their locks: every version, file and hash, for each platform.

    SPEC is a .toml file, a pyproject.toml with [tool.envspec] or its folder, or a name under specs/. The lock is
    written to locks/<name>/, the locks of the spec's variants next to it. If a spec or a variant can't be locked, none
    of its locks is written. Prints the paths that changed.

    Versions in the lock stay wherever the spec allows them, until --upgrade, --upgrade-package or another as_of moves
    them. With a date in the spec, the lock follows from the spec alone, so another bound may move a version too.

    \b
    envspec lock pytorch-2.9                            specs/pytorch-2.9.toml
    envspec lock .                                      a pyproject.toml
    envspec lock pytorch-2.9 --upgrade                  move all packages
    envspec lock pytorch-2.9 --upgrade-package numpy    move one package
    envspec lock pytorch-2.9 --as-of now --dry-run      show what would move
    envspec lock specs/*.toml --check                   in CI: up to date?
    envspec lock pytorch-2.9 --image                    with IDs of images
    """
    from envspec.spec.identity import find_spec

    _refuse_pairs(chosen)
    paths = [find_spec(spec, Path()) for spec in specs]
    if chosen["verify"] and context_of(chosen).is_offline:
        raise UsageError(
            "--verify needs the network", hint="unset ENVSPEC_OFFLINE, or `offline` in the configuration file"
        )
    done: list[Done] = []
    for path in paths:
        try:
            done += _of_spec(path, folder, len(paths), chosen)
        except EnvspecError as error:
            done.append(_failed({"spec": str(path)}, error, len(paths)))
    document = {}
    if chosen["dry_run"]:
        document["dry_run"] = True
    return result_of(done, document)


def _of_spec(path: Path, folder: Path | None, specs: int, chosen: Mapping[str, Any]) -> list[Done]:
    """What the options request, for a spec and its variants. specs: how many there are."""
    from envspec.operations.lock_state import LockRequest, variants_of

    directory = directory_of(path, folder, specs)
    if chosen["check"]:
        requests = variants_of(LockRequest(path, directory))
        before = _observe(requests, _UP_TO_DATE)
    else:
        requests = requests_of(path, directory, chosen, _on_top_of(path, chosen["on_top_of"]))
    # An error of the only lock ends the command; one of several is reported, and the others follow.
    count = len(requests) + specs - 1
    if chosen["check"]:
        done = [_done(each, partial(_check, each), count) for each in requests]
        if before is not None and not output.SETTINGS.warnings and not any(each.exit_code for each in done):
            from envspec.operations.lock.cache import remember_up_to_date

            remember_up_to_date(before, requests)
        return done
    if chosen["verify"]:
        return [_done(each, partial(_verify, each, chosen), count) for each in requests]
    return lock_together(requests, chosen, count)


def _on_top_of(path: Path, file: Path | None) -> str | None:
    """The text of a spec on top of the packages that a file lists; None to leave it as it is."""
    if file is None:
        return None
    from envspec.spec.document import root_of
    from envspec.spec.load import load_spec, read_text
    from envspec.spec.positions import set_value

    # What is wrong with the spec is reported before it is changed.
    load_spec(path, datetime.now(timezone.utc))
    named = os.path.relpath(file, path.parent).replace(os.sep, "/")
    return set_value(read_text(path), (*root_of(path), "pip", "on_top_of"), json.dumps(named))


def _refuse_pairs(chosen: Mapping[str, Any]) -> None:
    """Raise UsageError for options that exclude each other."""
    for mode, others in _EXCLUDED.items():
        for other in others:
            if chosen[mode] and chosen[other]:
                raise UsageError(f"{_option(other)} and {_option(mode)} exclude each other", hint="remove one of them")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Done(Struct, frozen=True):
    """What was done for one spec. document: of its own JSON object. lines: of the text on stdout."""

    document: Mapping[str, object]
    lines: Sequence[str] = ()
    exit_code: int = 0


def _done(request: LockRequest, act: Callable[[], Done], count: int) -> Done:
    """Do it also for the locks after one that fails."""
    subject = str(request.spec_path)
    about: dict[str, object] = {"spec": subject, "directory": str(request.directory)}
    if request.variant:
        about["variant"] = request.variant
        subject += f" [variants.{request.variant}]"
    try:
        found = act()
    except EnvspecError as error:
        return _failed(about, error, count, subject)
    return replace(found, document={**about, **found.document})


def _failed(about: Mapping[str, object], error: EnvspecError, count: int, subject: str = "") -> Done:
    """Report the error of one of several, so that the others follow; raise that of the only one."""
    if count == 1:
        raise error
    output.report_error(error, subject)
    return Done({**about, "error": error.as_document()}, exit_code=error.exit_code)


def lock_together(requests: Sequence[LockRequest], chosen: Mapping[str, Any], count: int) -> list[Done]:
    """Lock a spec and its variants, or show what that would change: all of them, or with every error none.

    If the requests have a new text of the spec, what it changes in the locks is shown too.
    """
    from envspec.operations.lock.all import compile_all, write_all
    from envspec.operations.lock_state import Compiled

    found = compile_all(requests, partial(_running, chosen), cached=not chosen["dry_run"])
    made = [each for each in found if isinstance(each, Compiled)]
    errors = _errors_in(found)
    previews: list[Done] = []
    if not errors and (chosen["dry_run"] or requests[0].text is not None):
        previews = [_preview(request, each) for request, each in zip(requests, made, strict=True)]
    changed: list[tuple[Path, ...] | EnvspecError] = []
    if not errors and not chosen["dry_run"]:
        changed = write_all(requests, made)
        errors = _errors_in(changed)
    written = {at: each for at, each in enumerate(changed) if isinstance(each, tuple)}

    def outcome(at: int) -> Done:
        if at in errors:
            raise errors[at]
        if errors:
            paths = list(map(str, written.get(at, ())))
            return Done({"changed": paths}, paths)
        if chosen["dry_run"]:
            return previews[at]
        done = _written(requests[at], written[at], chosen)
        return _with_diff(done, previews[at]) if previews else done

    done = [_done(request, partial(outcome, at), count) for at, request in enumerate(requests)]
    if errors and len(requests) > 1:
        terminal.report(f"{requests[0].spec_path}: {_left_out(requests, [at for at in written if written[at]])}")
    if not errors:
        _remember_locked(requests, chosen)
    return done


def _remember_locked(requests: Sequence[LockRequest], chosen: Mapping[str, Any]) -> None:
    """Let the next run of the same words end at once, if it will have nothing to do."""
    from envspec.operations.lock.cache import have_nothing_to_do, remember_up_to_date

    now = _observe(requests, _NOTHING_CHANGED)
    if now is not None and have_nothing_to_do(requests, context_of(chosen)):
        remember_up_to_date(now, requests)


def _observe(requests: Sequence[LockRequest], message: str) -> UpToDate | None:
    """What the locks follow from now; None if the next run of the same words runs in full anyway.

    message: what is printed of each if it is up to date.
    """
    from envspec.operations.lock.cache import observe
    from envspec.operations.lock.up_to_date import is_plain

    words = output.SETTINGS.words
    if not is_plain(words):
        return None
    lines = [visible(f"{each.directory}: {message}") for each in requests]
    return observe(words, "".join(f"{line}\n" for line in lines), requests)


def _errors_in(outcomes: Sequence[object]) -> dict[int, EnvspecError]:
    """The errors among what was done for each of several locks, by its position."""
    return {at: each for at, each in enumerate(outcomes) if isinstance(each, EnvspecError)}


def _left_out(requests: Sequence[LockRequest], written: Sequence[int]) -> str:
    """What of the locks is not written. written: the positions of the others."""
    if not written:
        return "no lock is written: a spec and its variants are locked together"
    names = ", ".join(str(requests[at].directory) for at in written)
    return f"only {names} is written: `envspec lock {requests[0].spec_path}` writes the rest"


def _with_diff(written: Done, previewed: Done) -> Done:
    lines = list(previewed.lines[:-1])
    if lines:
        lines.append("")
    document = {**written.document, "diff": previewed.document["diff"]}
    return replace(written, document=document, lines=[*lines, *written.lines])


def result_of(done: Sequence[Done], document: Mapping[str, object]) -> Result:
    """All specs together, with the first failure's exit code. document: of what precedes the locks."""
    exit_code = 0
    lines: list[str] = []
    for each in done:
        exit_code = exit_code or each.exit_code
        lines += each.lines
    return plain(lambda: {**document, "locks": [each.document for each in done]}, lines, exit_code)


def _one_of(named: tuple[str, ...], engines: Iterable[str]) -> str:
    """The resolver of one ecosystem: the one that is named, else the first."""
    found = dict.fromkeys(name for name in named if name in engines)
    if len(found) > 1:
        raise UsageError(f"--resolver {' and '.join(found)}: both resolve the same packages", hint="name one of them")
    return next(iter(found), next(iter(engines)))


def directory_of(path: Path, output: Path | None, count: int) -> Path:
    if output is not None and count == 1:
        return output
    from envspec.spec.identity import env_name

    return (output or Path("locks")) / env_name(path)


def _check(request: LockRequest) -> Done:
    """Check a lock without a network, and print why it is stale."""
    reasons, done = _stale(request)
    if not reasons:
        output.info(f"{request.directory}: {_UP_TO_DATE}")
    return done


def _stale(request: LockRequest) -> tuple[Sequence[StaleReason], Done]:
    """Print why a lock is stale."""
    from envspec.lockfile.check import StaleCause
    from envspec.operations.lock.check import check_lock

    now = datetime.now(timezone.utc)
    result = check_lock(request, now, _existing_cache())
    if any(reason.why is StaleCause.NO_LOCK for reason in result.reasons):
        # `envspec lock`, which the hint names, fails if the spec is not valid. Imports pydantic.
        from envspec.operations.lock.gpus import check_spec

        check_spec(request.spec_path, request.variant, now)
    for text in result.warnings:
        output.warn(f"{request.directory}: {text}")
    found, exit_code = [], 0
    for reason in result.reasons:
        exit_code = StaleLock.exit_code
        hint = reason.hint or f"run `envspec lock {request.spec_path}` and commit what it writes"
        terminal.report(f"stale: {reason.text}")
        for line in _field_lines(reason):
            terminal.report(f"  {line}")
        terminal.report(f"  hint: {hint}")
        fields = [each._asdict() for each in reason.fields]
        why = reason.why
        found.append({"why": why.value, "code": why.code, "text": reason.text, "hint": hint, "fields": fields})
    for code in dict.fromkeys(reason.why.code for reason in result.reasons):
        output.refer_to(code)
    return result.reasons, Done({"fresh": not result.reasons, "reasons": found}, exit_code=exit_code)


def _existing_cache() -> Path | None:
    """The cache, unless there is none yet; one that can't be used only makes a check slower."""
    from envspec.io.cache import cache_path, cache_root
    from envspec.settings import read_settings

    with suppress(EnvspecError):
        environ = read_settings(os.environ).environ
        if cache_path(environ).is_dir():
            return cache_root(environ)
    return None


def _field_lines(reason: StaleReason) -> list[str]:
    """`linux-64: torch: file.index: default -> pytorch-cu128`."""
    lines = []
    for each in reason.fields[:_MOST_FIELDS]:
        place = "".join(f"{part}: " for part in (each.platform, each.package) if part)
        lines.append(f"{place}{each.what}: {each.locked} -> {each.resolved}")
    if len(reason.fields) > _MOST_FIELDS:
        lines.append(f"and {len(reason.fields) - _MOST_FIELDS} more: --format json lists all of them")
    return lines


def _written(request: LockRequest, changed: Sequence[Path], chosen: Mapping[str, Any]) -> Done:
    """The paths that changed, with those of the images if they are to be recorded."""
    if chosen["image"]:
        from envspec.operations.image import record_images_of

        with _running(chosen, request) as context:
            recorded = record_images_of(request.spec_path, request.directory, context, anew=chosen["upgrade"])
        changed = sorted({*changed, *recorded})
    if not changed:
        output.info(f"{request.directory}: {_NOTHING_CHANGED}")
    paths = list(map(str, changed))
    return Done({"changed": paths}, paths)


def _preview(request: LockRequest, made: Compiled) -> Done:
    """What a lock would change."""
    from envspec.conformance.text import counted
    from envspec.operations.lock.finish import preview
    from envspec.report import LOCK_DIFF

    found = preview(request, made)
    paths, diff = list(map(str, found.changed)), found.diff
    if diff is None:
        line = f"{request.directory}: would lock {counted(found.packages, 'package')}"
        return Done({"changed": paths, "diff": None}, [line])
    document = {"changed": paths, "diff": json.loads(LOCK_DIFF.render("json", diff))}
    if not paths:
        return Done(document, [f"{request.directory}: nothing would change"])
    lines = []
    if not diff.is_empty:
        lines = LOCK_DIFF.render("text", diff, terminal.width()).rstrip("\n").splitlines()
    lines.append(f"{request.directory}: would write {counted(len(paths), 'file')}")
    return Done(document, lines)


def _verify(request: LockRequest, chosen: Mapping[str, Any]) -> Done:
    """Resolve one spec again; every value of its lock that differs."""
    from envspec.lockfile.check import NOT_ITS_LOCK

    path, directory = request.spec_path, request.directory
    reasons, checked = _stale(request)
    if any(reason.why in NOT_ITS_LOCK for reason in reasons):
        # There is nothing to compare with what the spec compiles to.
        return checked
    from envspec.operations.lock.verify import verify_lock

    with _running(chosen, request) as context:
        verified = verify_lock(request, context)
    for text in verified.unverified:
        output.warn(f"not verified: {directory}: {text}", terminal.report)
    if verified.differences:
        terminal.report(f"{directory}: differs from a new resolution as of {verified.at}")
        terminal.report(
            f"  hint: `envspec lock {path}` writes what was resolved. An index that lists other releases than it did "
            "leads to other versions and reasons; another file, URL or hash of one version is a lock that was changed"
        )
        output.refer_to(StaleLock.code)
    elif not reasons:
        but = " except for what is not verified" if verified.unverified else ""
        output.info(f"{directory}: verified{but}: equal to a new resolution as of {verified.at}")
    exit_code, lines, differences = checked.exit_code, [], []
    for each in verified.differences:
        exit_code = StaleLock.exit_code
        lines.append(f"{directory}: {each}")
        differences.append(each._asdict())
    document = {**checked.document, "as_of": verified.at, "differences": differences, "unverified": verified.unverified}
    return Done(document, lines, exit_code)


@contextmanager
def _running(chosen: Mapping[str, Any], request: LockRequest) -> Iterator[Context]:
    """The context of one lock, whose progress is shown."""
    with TerminalReporter("-".join(filter(None, (request.spec_path.stem, request.variant)))) as reporter:
        yield context_of(chosen, reporter, usual_jobs=max(4, os.cpu_count() or 1))


def requests_of(
    path: Path, directory: Path, chosen: Mapping[str, Any], text: str | None = None
) -> tuple[LockRequest, ...]:
    """What the options request for a spec and its variants. text: the spec's new one, to be written with the locks."""
    from envspec.names import normalised
    from envspec.operations.lock_state import LockRequest, Upgrade, as_of_option, variants_of

    as_of = chosen["as_of"]
    if as_of and chosen["upgrade_package"] and as_of.endswith(" ago"):
        raise UsageError(
            "--upgrade-package gives packages dates of their own", hint="name a date with --as-of, or `now`"
        )
    request = LockRequest(
        spec_path=path,
        directory=directory,
        resolver=_one_of(chosen["resolvers"], RESOLVERS),
        conda_resolver=_one_of(chosen["resolvers"], SOLVERS),
        channel_repodata=_folders(chosen["channel_repodata"]),
        upgrade=Upgrade.ALL if chosen["upgrade"] else Upgrade.KEEP,
        upgrade_packages=tuple(map(normalised, chosen["upgrade_package"])),
        as_of=None if as_of is None else as_of_option(as_of, datetime.now(timezone.utc)),
        text=text,
    )
    return variants_of(request)


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
