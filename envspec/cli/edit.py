"""`envspec add` and `envspec remove`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from envspec.cli import output
from envspec.cli.lock import LOCKING, directory_of, lock_together, requests_of, result_of
from envspec.cli.options import combined
from envspec.cli.output import Result, plain
from envspec.context import utc_now
from envspec.errors import UsageError

if TYPE_CHECKING:
    from envspec.operations.lock.add_remove import EditedSpec
    from envspec.spec.edit import RequirementList

_EDITING: Final = combined(
    click.option("--conda", "where", flag_value="CONDA", help="Change [conda] dependencies (match specs)."),
    click.option("--constraint", "where", flag_value="CONSTRAINTS", help="Change [pip] constraints."),
    click.option("--no-lock", is_flag=True, help="Change the spec only."),
    click.option("--dry-run", is_flag=True, help="Resolve and show what would change; write no lock and no spec."),
    LOCKING,
    output.output(),
)
#: Of other tools, beside a pyproject.toml whose dependencies change.
_OTHER_LOCKS: Final = ("uv.lock", "poetry.lock", "pdm.lock")
#: Options of `lock` that these commands do not have.
_UNUSED: Final = {"upgrade": False, "upgrade_package": (), "as_of": None, "image": False}


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[SPEC] PACKAGE...")
@click.option(
    "--upgrade", is_flag=True, help="Use the newest releases of these packages, like `lock --upgrade-package`."
)
@_EDITING
def add(words: tuple[str, ...], where: str | None, folder: Path | None, upgrade: bool, **chosen: Any) -> Result:
    """Add requirements to a spec, and lock it. Other packages move only if a new one requires it.

    PACKAGE is a requirement as pip reads it; with --conda, a match spec. It replaces a requirement of the same package.
    Uses releases up to the lock's date; with --upgrade, the newest. SPEC is optional if there is only one. The spec's
    comments and layout stay. If it can't be locked, neither spec nor lock is changed. Prints what moved.

    \b
    envspec add pytorch-2.9 einops "transformers>=4.57,<5"
    envspec add pytorch-2.9 --conda "ffmpeg >=7"
    """
    from envspec.operations.lock.add_remove import add

    path, packages = _spec_and_packages(words)
    edited = add(path, packages, _list(where), utc_now())
    if upgrade:
        chosen["upgrade_package"] = [each.name for each, _ in edited.edits]
    return _done(path, edited, folder, chosen)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[SPEC] PACKAGE...")
@_EDITING
def remove(words: tuple[str, ...], where: str | None, folder: Path | None, **chosen: Any) -> Result:
    """Remove requirements from a spec, and lock it. Packages that nothing else requires are removed from the lock.

    PACKAGE is a name. SPEC is optional if there is only one. The spec's comments and layout stay.

    \b
    envspec remove pytorch-2.9 einops
    """
    from envspec.operations.lock.add_remove import lock_of, remove

    path, packages = _spec_and_packages(words)
    edited = remove(path, packages, _list(where), lock_of(directory_of(path, folder, 1)), utc_now())
    return _done(path, edited, folder, chosen)


def _list(where: str | None) -> RequirementList:
    from envspec.spec.edit import RequirementList

    return RequirementList[where or "DEPENDENCIES"]


def _spec_and_packages(words: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """The spec that the first word names, or the only one.

    Raises:
        UsageError: it is not clear which spec is meant.
    """
    from envspec.spec.identity import find_spec, specs_in

    first, *rest = words
    specs = specs_in(Path())
    by_name = {each.stem: each for each in specs}
    if first.endswith(".toml") or first == "." or first in by_name:
        if not rest:
            raise UsageError(f"{first} is a spec, and no PACKAGE is named", hint="name packages after it")
        return by_name.get(first) or find_spec(first, Path()), rest
    if len(specs) == 1:
        return specs[0], words
    if not specs:
        raise UsageError("there is no spec in specs/ or in this folder", hint="name a `.toml` file before the packages")
    names = ", ".join(each.stem for each in specs)
    raise UsageError(f"there are several specs: {names}", hint=f"name one of them before {first}")


def _done(path: Path, edited: EditedSpec, folder: Path | None, chosen: Mapping[str, Any]) -> Result:
    is_dry = bool(chosen["dry_run"])
    document: dict[str, object] = {}
    if is_dry:
        document["dry_run"] = True
    document["spec"] = str(path)
    document["edits"] = [{**each._asdict(), "list": str(listed)} for each, listed in edited.edits]
    if not edited.edits:
        output.info(f"{path}: nothing changed")
        return result_of((), document)
    if chosen["no_lock"]:
        lines = []
        if not is_dry:
            from envspec.io.files import replace_user_file

            replace_user_file(path, edited.text.encode())
            lines = [str(path)]
        _report(path, edited, is_dry=is_dry)
        return plain(lambda: {**document, "locks": []}, lines)
    chosen = {**_UNUSED, **chosen}
    requests = requests_of(path, directory_of(path, folder, 1), chosen, edited.text)
    done = lock_together(requests, chosen, len(requests))
    result = result_of(done, document)
    if not result.exit_code:
        _report(path, edited, is_dry=is_dry)
    return result


def _report(path: Path, edited: EditedSpec, *, is_dry: bool) -> None:
    """Print what was done to the spec."""
    replaced, added, removed = "replaced", "added", "removed"
    if is_dry:
        replaced, added, removed = "would replace", "would add", "would remove"
    for (_, old, new), listed in edited.edits:
        if old and new:
            what = f'{replaced} "{old}" by "{new}" in'
        elif new:
            what = f'{added} "{new}" to'
        else:
            what = f'{removed} "{old}" from'
        output.info(f"{path}: {what} {listed}")
    if any(listed.path[0] == "project" for _, listed in edited.edits):
        for name in _OTHER_LOCKS:
            if (path.parent / name).is_file():
                output.info(f"{path.parent / name} stays as it is")
