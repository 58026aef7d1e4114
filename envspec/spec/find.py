"""From the command line's word for a spec to its file."""

from __future__ import annotations

from pathlib import Path

from envspec.errors import UsageError
from envspec.spec.words import nearest, shown

_FOLDER = "specs"


def find_spec(argument: str, cwd: Path) -> Path:
    """The file that SPEC names: a `.toml` file, or a name under `specs/` in `cwd`.

    A relative `cwd`, such as `Path()`, gives a relative answer, which messages then show as the user knows it.

    Raises:
        UsageError: there is no such file.
    """
    is_path = argument.endswith(".toml") or "/" in argument or "\\" in argument
    path = cwd / argument if is_path else cwd / _FOLDER / f"{argument}.toml"
    if "\0" not in argument and path.is_file():
        return path
    if is_path:
        raise _no_file(argument, path)
    raise _no_name(argument, cwd)


def _no_file(argument: str, path: Path) -> UsageError:
    if "\0" not in argument and path.is_dir():
        specs = _specs_in(path)
        hint = f"name a file, such as {Path(argument) / specs[0]}.toml" if specs else "name a `.toml` file"
        return UsageError(f"{shown(argument)} is a folder, not a spec", hint=hint)
    close = nearest(path.stem, _specs_in(path.parent))
    hint = (
        f"did you mean {Path(argument).parent / close}.toml?"
        if close
        else "check the path; a name without `.toml` is looked up under specs/"
    )
    return UsageError(f"there is no file {shown(argument)}", hint=hint)


def _no_name(argument: str, cwd: Path) -> UsageError:
    known = _specs_in(cwd / _FOLDER)
    close = nearest(argument, known)
    if close:
        hint = f"did you mean `{close}`?"
    elif known:
        hint = f"there are: {', '.join(known)}"
    elif (cwd / argument).is_file():
        hint = f"a file must end in `.toml`: rename {shown(argument)}"
    else:
        hint = "name a `.toml` file, or put one under specs/"
    return UsageError(f"there is no spec {shown(argument)} under {_FOLDER}/", hint=hint)


def _specs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.stem for path in folder.iterdir() if path.suffix == ".toml")
    except (OSError, ValueError):
        return []
