"""LOCK of every command may be a lock of another tool: the options that say which part of it is meant."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from envspec.cli import output
from envspec.errors import UsageError

if TYPE_CHECKING:
    from envspec.context import Context
    from envspec.operations.adopt import Adopted

_F = TypeVar("_F", bound=Callable[..., Any])

#: In the context of click: key of a spec, by table -> value of an option.
_META: Final = "envspec.selection"
#: In the context of click: what the lock of another tool is.
_ADOPTED: Final = "envspec.adopted"
#: In the context of click: the options that select, as they are written.
_GIVEN: Final = "envspec.selection.given"
_ALL: Final = "*"
_MOST_NAMED: Final = 4
_SELECTING: Final = "of a lock of another tool"


def _keep(
    table: str, key: str, read: Callable[[str], Any] | None
) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that keeps an option's value for the argument LOCK, which is read after all options of this kind.

    read: the value of the key, of the option's text; None: the same.
    """

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value in (None, False, ()):
            return
        ctx.meta.setdefault(_GIVEN, []).append(param.opts[0])
        values = ctx.meta.setdefault(_META, {}).setdefault(table, {})
        if value is True and key not in ("default_groups", "frozen"):
            value = (_ALL,)
        if read is not None:
            value = read(value)
        if isinstance(value, tuple):
            # `--extra` and `--all-extras` have one key.
            value = [*values.get(key, ()), *value]
            value = [_ALL] if _ALL in value else value
        values[key] = value

    return keep


def _option(
    *names: str,
    key: str,
    help_text: str,
    table: str = "pip",
    read: Callable[[str], Any] | None = None,
    **attributes: Any,
) -> Callable[[_F], _F]:
    parameter = f"selected_{names[0].strip('-').replace('-', '_')}"
    keep = _keep(table, key, read)
    return click.option(
        *names, parameter, help=help_text, expose_value=False, is_eager=True, callback=keep, **attributes
    )


def _words(text: str) -> list[str]:
    """The words of a command, as a shell splits them.

    Raises:
        UsageError: a quote is open.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--entrypoint {text}: {error}", hint='write it as in a shell: "python -m app"') from error


#: Which packages of the lock.
SELECTION: Final = (
    _option("--extra", key="extras", multiple=True, metavar="NAME", help_text=f"Extra {_SELECTING}."),
    _option("--all-extras", key="extras", is_flag=True, help_text="All of its extras."),
    _option("--group", key="groups", multiple=True, metavar="NAME", help_text=f"Dependency group {_SELECTING}."),
    _option("--all-groups", key="groups", is_flag=True, help_text="All of its groups."),
    _option("--default-groups", key="default_groups", is_flag=True, help_text="Its default groups, as `uv sync` has."),
    _option("--no-group", key="without_groups", multiple=True, metavar="NAME", help_text="A group to leave out."),
    _option(
        "--package",
        key="members",
        multiple=True,
        metavar="NAME",
        help_text=f"A package of the workspace, {_SELECTING}.",
    ),
    _option("--all-packages", key="members", is_flag=True, help_text="All packages of the workspace."),
    _option("--python-version", key="python", table="env", metavar="X.Y", help_text=f"The Python {_SELECTING}."),
    _option(
        "--frozen",
        key="frozen",
        table="lock",
        is_flag=True,
        help_text="Use it although its project has changed since it was locked.",
    ),
)
#: What its image is.
IMAGE: Final = (
    _option("--gpu", key="gpus", table="cuda", multiple=True, metavar="NAME", help_text="A GPU that must run it."),
    _option("--driver", key="driver", table="cuda", metavar="V", help_text="The oldest driver that must run it."),
    _option(
        "--base",
        key="base",
        table="image",
        metavar="REF",
        help_text="A base image of your own (requires [image] glibc or [cuda] os).",
    ),
    _option(
        "--compiler",
        key="compiler",
        table="image",
        type=click.Choice(("auto", "apt", "none")),
        help_text="none: no C compiler, so no torch.compile, and no container engine to install it (default: auto).",
    ),
    _option(
        "--project",
        key="project",
        table="image",
        type=click.Choice(("wheel", "editable", "none")),
        help_text="The project beside it, as the last layer (default: wheel if it can be built).",
    ),
)
#: What it runs, where no other option says that.
ENTRYPOINT: Final = _option(
    "--entrypoint",
    key="entrypoint",
    table="image",
    read=_words,
    metavar="WORDS",
    help_text='What a container runs, in one argument: "python -m app".',
)


def adopted(
    ctx: click.Context, value: str, make_context: Callable[[], Context], report: Callable[[Adopted], None]
) -> str:
    """LOCK as the other commands take it: the folder of the envspec.lock that a lock of another tool gives.

    report: reports on it.

    Raises:
        UsageError: options that select, beside a lock of envspec; and as `operations.adopt.adopt_lock`.
    """
    words: Mapping[str, Any] = ctx.meta.get(_META, {})
    path = Path(value)
    if not _is_candidate(path):
        # That there is no such file, the command reports that reads it.
        if words and (path.exists() or not _has_name_of_one(path)):
            raise UsageError(
                f"{value} is no lock of another tool, so there is nothing to select with {', '.join(ctx.meta[_GIVEN])}",
                hint="name the file, such as uv.lock, or remove the option",
            )
        return value
    from envspec.operations.adopt import adopt_lock

    named = ctx.params.get("platforms") or ctx.params.get("platform") or ()
    platforms = [named.value] if hasattr(named, "value") else list(named)
    found = adopt_lock(path, words, make_context(), platforms)
    report(found)
    ctx.meta[_ADOPTED] = found
    return str(found.folder)


def _is_candidate(path: Path) -> bool:
    """Whether a path may be a lock of another tool, by its name: few commands have one, and readers take a while."""
    return path.is_file() and _has_name_of_one(path)


def _has_name_of_one(path: Path) -> bool:
    if path.suffix not in (".lock", ".toml", ".txt", ".yml") or path.name == "envspec.lock":
        return False
    from envspec.adopt import is_foreign

    return is_foreign(path)


def this_adopted() -> Adopted | None:
    """The lock of another tool that this command's LOCK is; None for a lock of envspec."""
    found: Adopted | None = click.get_current_context().meta.get(_ADOPTED)
    return found


def mention(found: Adopted) -> None:
    """What is not selected, and whether there are warnings, in one line."""
    from envspec.conformance.text import counted, some_of

    parts = []
    if left_out := found.found.left_out:
        parts.append(f"left out: {some_of([each.words for each in left_out], _MOST_NAMED)}")
    if found.warnings:
        parts.append(f"`envspec image build --dry-run` shows {counted(len(found.warnings), 'warning')}")
    if parts:
        output.info("; ".join(parts))


def warn_of(found: Adopted) -> None:
    """The warnings, for a command that shows what is not selected itself."""
    for text in found.warnings:
        output.warn(text)
