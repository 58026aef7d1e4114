"""The one way out of every command: its result, by `--format`; messages, by `--quiet`; errors.

stdout has the result and nothing else: with `--format json` exactly one JSON object, also if the command fails. stderr
has progress, warnings and errors as text, whatever the format.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from envspec.cli import terminal
from envspec.credentials import shown
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from envspec.report import Formats

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

#: Of `--quiet`: no progress and no information; no warnings either.
QUIET: Final = 1
ONLY_ERRORS: Final = 2


@dataclass
class OutputSettings:
    """What this run's user chose, and what was written so far.

    words: of the command line.
    locked: `--locked`.
    stale: the folders of the locks whose specs have changed since.
    answered: stdout is complete, or a container's.
    """

    words: Sequence[str] = ()
    form: str = "text"
    quiet: int = 0
    debug: bool = False
    locked: bool = False
    warnings: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    answered: bool = False

    def begin(self, words: Sequence[str]) -> None:
        """Forget the run before; a process of tests has several."""
        self.__init__(words)  # type: ignore[misc]

    def read_ahead(self, words: Sequence[str]) -> None:
        """From a command line with a mistake, whose options were not parsed."""
        pairs = set(itertools.pairwise(words))
        if "--format=json" in words or ("--format", "json") in pairs:
            self.form = "json"
        self.debug = self.debug or "--debug" in words


SETTINGS: Final = OutputSettings()


@dataclass(frozen=True, slots=True)
class Result:
    """What a command returns.

    render: format -> the whole text.
    write: prints the text of format `text`.
    error: reported besides the result; its exit code counts.
    sealed: a document whose schema allows no further keys.
    """

    render: Callable[[str], str]
    exit_code: int = 0
    write: Callable[[str], None] = terminal.answer
    error: EnvspecError | None = None
    sealed: bool = False


def in_formats(
    formats: Formats[_T],
    value: _T,
    exit_code: int = 0,
    *,
    error: EnvspecError | None = None,
    sealed: bool = False,
    width: Callable[[], int] = terminal.width,
) -> Result:
    """A value that `envspec.report` renders."""

    def render(form: str) -> str:
        return formats.render(form, value, width())

    return Result(render, exit_code, terminal.answer_sections, error, sealed)


def plain(
    document: Callable[[], Mapping[str, object]],
    lines: Iterable[str],
    exit_code: int = 0,
    *,
    write: Callable[[str], None] = terminal.answer,
    error: EnvspecError | None = None,
) -> Result:
    """A result that is its own JSON object. lines: its text."""

    def render(form: str) -> str:
        if form != "json":
            return "".join(f"{line}\n" for line in lines)
        from envspec.report.format import document as as_json

        return as_json(document())

    return Result(render, exit_code, write, error)


def output(
    names: Iterable[str] = ("text", "json"), help_text: str = "Text for people, or JSON for programs."
) -> Callable[[_F], _F]:
    """Decorate a command that returns a `Result`, or an exit code if it has none: `--format`, `--quiet`, `--debug`.

    names: of the formats, the default first.
    """
    choices = list(names)
    form = click.option(
        "--format",
        "form",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        expose_value=False,
        is_eager=True,
        callback=_set_form,
        help=help_text,
    )

    def decorate(function: _F) -> _F:
        @wraps(function)
        def command(*args: Any, **chosen: Any) -> int:
            result: Result | int = function(*args, **chosen)
            if isinstance(result, int):
                return result
            return show(result)

        return form(messages(cast("_F", command)))

    return decorate


def messages(function: _F) -> _F:
    """`--quiet` and `--debug`, which every command and group takes."""
    quiet = click.option(
        "-q",
        "--quiet",
        count=True,
        expose_value=False,
        is_eager=True,
        callback=_add_quiet,
        help="Print no progress and no information; -qq: no warnings either.",
    )
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_debug,
        help="Show the traceback of an error, and all that other programs report.",
    )
    return quiet(debug(function))


def _set_form(_ctx: click.Context, _param: click.Parameter, value: str) -> None:
    SETTINGS.form = value


def _add_quiet(_ctx: click.Context, _param: click.Parameter, value: int) -> None:
    SETTINGS.quiet += value


def _set_debug(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    SETTINGS.debug = SETTINGS.debug or value


def show(result: Result) -> int:
    """Print a result; its exit code."""
    text = result.render(SETTINGS.form)
    if SETTINGS.form == "json":
        if not result.sealed:
            text = _with_messages(text, result.error)
        terminal.answer_json(text)
    elif SETTINGS.form == "text":
        result.write(text)
    else:
        terminal.answer(text)
    SETTINGS.answered = True
    if result.error is None:
        return result.exit_code
    report_error(result.error)
    return result.error.exit_code


def _with_messages(text: str, error: EnvspecError | None) -> str:
    if error is None and not SETTINGS.warnings:
        return text
    import json

    return _json({**json.loads(text), **_messages(error)})


def _messages(error: EnvspecError | None) -> dict[str, object]:
    found: dict[str, object] = {}
    if SETTINGS.stale:
        found["stale_locks"] = SETTINGS.stale
    if SETTINGS.warnings:
        found["warnings"] = SETTINGS.warnings
    if error is not None:
        found["error"] = error.as_document()
    return found


def _json(document: object) -> str:
    import json

    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def fail(error: EnvspecError, text: str | None = None) -> int:
    """Report an error that ended the command; its exit code. text: for people, if not the error's own."""
    if SETTINGS.debug:
        import traceback

        # Errors of libraries quote URLs as they were requested.
        terminal.report(shown(traceback.format_exc()).rstrip("\n"))
    if text is None:
        report_error(error)
    else:
        terminal.report(text)
    if SETTINGS.form == "json" and not SETTINGS.answered:
        SETTINGS.answered = True
        try:
            terminal.answer_json(_json(_messages(error)))
        except terminal.CannotAnswer:
            return error.exit_code
    return error.exit_code


def report_error(error: EnvspecError, subject: str = "") -> None:
    """An error as text, with the command that explains it. subject: what failed, if the command does several things."""
    text = error.text(error.details) if SETTINGS.debug else str(error)
    if subject:
        text = f"{subject}: {text}"
    terminal.report_error(text)
    refer_to(error.code)


def refer_to(code: str) -> None:
    """Name the command that explains an error."""
    terminal.report(f"  more: envspec explain-error {code}")


def info(line: str) -> None:
    """One line for the user, on stderr, that is neither a warning nor an error."""
    if SETTINGS.quiet < QUIET:
        terminal.report(line)


def warn(text: str, write: Callable[[str], None] = terminal.report_warning) -> None:
    """A warning, on stderr and in the JSON object. write: prints it."""
    SETTINGS.warnings.append(text)
    if SETTINGS.quiet < ONLY_ERRORS:
        write(text)
