"""The file that SPEC names, and the SHA-256 of its canonical form.

On the path of `envspec lock --check`: it imports next to nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, time, timezone
from pathlib import Path
from typing import Any, Final

from envspec import documents
from envspec.credentials import channel_without_credentials, without_credentials
from envspec.errors import UsageError
from envspec.spec.document import DEPENDENCIES_FROM, PYPROJECT, SELECTED, read_spec, spec_in
from envspec.spec.variants import BASE, variant_names
from envspec.verifier.regular import read_regular


def read_document(path: Path) -> dict[str, Any]:
    """A spec's file as TOML, with what it takes from other files, see `whole_document`; it need not be a valid spec.

    Raises:
        OSError: it can't be read. ValueError: it is not TOML, or such a line can't be read.
    """
    return whole_document(documents.read_toml(path), path)


def variants_in(path: Path) -> tuple[str, ...]:
    """The spec itself and its variants; the spec alone if it can't be read, which whoever reads all of it reports."""
    try:
        return (BASE, *variant_names(read_spec(path)))
    except (OSError, ValueError):
        return (BASE,)


def whole_document(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The spec in a file, parsed, with the lines of `dependencies_from`, the hash of its `pip.on_top_of`, and that of
    the packages in the lock of `pip.from` instead of how they are selected.

    path: of that file.

    Raises:
        ValueError: such a line can't be read.
    """
    spec = spec_in(data, path)
    variants = documents.table_of(spec, "variants")
    tables = (spec, *variants.values())
    if any(isinstance(each, Mapping) and DEPENDENCIES_FROM in each for each in tables):
        # Imported here: `lock --check` has a small budget.
        from envspec.spec.pyproject import read_whole

        found = read_whole(data, path)
        for _, problem in found.problems:
            raise problem
        spec = found.document
    if any(_names_list(table) for table in tables):
        spec = _with_list(spec, path.parent)
        if variants:
            spec["variants"] = {name: _with_list(own, path.parent) for name, own in spec["variants"].items()}
    shared = documents.table_of(spec, "pip")
    if "from" in shared:
        own = spec.get("variants", {})
        spec = _with_packages(spec, shared, path.parent)
        if isinstance(own, Mapping):
            for name, table in own.items():
                if not _SELECTED.isdisjoint(documents.table_of(table, "pip")):
                    pip = {**shared, **table["pip"]}
                    spec["variants"] = {**spec["variants"], name: _with_packages(table, pip, path.parent)}
    return spec


#: In [pip] of a whole document: the hash of what is selected of another tool's lock.
PACKAGES_SHA256: Final = "packages_sha256"
#: Keys of [pip] that say which packages of another tool's lock are meant: other words may mean the same ones.
_SELECTED: Final = frozenset({"from", *SELECTED})


def _with_packages(table: Any, pip: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A spec or a variant with the SHA-256 of the packages that its [pip] selects of another tool's lock; empty for one
    that can't be read, which whoever reads its content reports.
    """
    from envspec.adopt import read_lock, selection_of
    from envspec.adopt.rows import packages_sha256

    digest = ""
    with suppress(OSError, ValueError, TypeError, UsageError):
        digest = packages_sha256(read_lock(folder / pip["from"], selection_of(pip)))
    rest = {key: value for key, value in documents.table_of(table, "pip").items() if key not in _SELECTED}
    return {**table, "pip": {**rest, PACKAGES_SHA256: digest}}


def _names_list(table: object) -> bool:
    return "on_top_of" in documents.table_of(table, "pip")


def _with_list(table: Any, folder: Path) -> Any:
    """A spec or a variant with the SHA-256 of the file of `pip.on_top_of`; empty for a file that can't be read, which
    whoever reads its content reports.
    """
    if not _names_list(table):
        return table
    try:
        digest = hashlib.sha256(read_regular(folder / table["pip"]["on_top_of"])).hexdigest()
    except (OSError, ValueError, TypeError):
        digest = ""
    return {**table, "pip": {**table["pip"], "on_top_of_sha256": digest}}


def input_sha256(data: Mapping[str, Any], variant: str = BASE) -> str:
    """SHA-256, in hexadecimal, of the canonical form of a parsed TOML document: of the spec itself, or of it and one
    variant. data: with the lines of `dependencies_from`.

    Comments, layout, the order of keys and tables, the offset a time is written in and credentials in URLs and in
    conda's channels do not matter; `[registry.mirrors]` and whether builds are confined do not belong. Every other
    value does, and so does its type.
    """
    own = {key: value for key, value in data.items() if key != "variants"}
    variants = data.get("variants", {})
    if not isinstance(variants, Mapping):
        # A mistake, which whoever reads the spec reports: no lock is up to date beside it.
        own["variants"] = variants
    if variant:
        own["variants"] = {variant: data["variants"][variant]}
    canonical = json.dumps(_canonical(_identity(own)), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _identity(data: Mapping[str, Any]) -> dict[str, Any]:
    # A registry's mirrors do not change the environment.
    result = _without(data, ("registry", "mirrors"))
    # How wheels are built says nothing about them.
    result = _without(result, ("pip", "build", "sandbox"))
    conda = result.get("conda")
    if isinstance(conda, Mapping) and isinstance(conda.get("channels"), (list, tuple)):
        channels = list(conda["channels"])
        for at, channel in enumerate(channels):
            if isinstance(channel, str):
                channels[at] = channel_without_credentials(channel)
        result["conda"] = {**conda, "channels": channels}
    return result


def _without(table: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """`table` less the value at `path`, and less the tables on the way that hold nothing else."""
    result = dict(table)
    first, rest = path[0], path[1:]
    inner = result.get(first)
    if not rest:
        result.pop(first, None)
    elif isinstance(inner, Mapping):
        result[first] = _without(inner, rest)
        if not result[first]:
            del result[first]
    return result


def _canonical(value: Any) -> Any:
    """JSON's values, with what TOML has beyond them as a one-key object that no TOML table turns into."""
    if isinstance(value, Mapping):
        return {f"={key}": _canonical(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(inner) for inner in value]
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, datetime):
        return {"datetime": _time_text(value)}
    if isinstance(value, (date, time)):
        return {type(value).__name__: value.isoformat()}
    return value


def _time_text(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    try:
        return value.astimezone(timezone.utc).isoformat()
    except OverflowError:  # within a day of year 1 or 9999: no time in UTC that Python can represent
        return value.isoformat()


_FOLDER = "specs"


def find_spec(argument: str, cwd: Path) -> Path:
    """The file that SPEC names: a `.toml` file, a folder with a pyproject.toml, or a name under `specs/` in `cwd`.

    A relative `cwd`, such as `Path()`, gives a relative answer, which messages then show as the user knows it.

    Raises:
        UsageError: there is no such file.
    """
    # A lock is named as one when it is read.
    is_path = argument.endswith((".toml", "envspec.lock")) or "/" in argument or "\\" in argument or argument == "."
    path = cwd / argument if is_path else cwd / _FOLDER / f"{argument}.toml"
    if is_path and (path / PYPROJECT).is_file():
        path /= PYPROJECT
    if path.is_file():
        if path.suffix != ".toml" or path.name == PYPROJECT or path.name.startswith("pylock."):
            _refuse_other(path, cwd)
        return path
    raise _no_spec(argument, path, cwd, is_path=is_path)


def specs_in(cwd: Path) -> list[Path]:
    """The specs of a project: those under `specs/` and in its folder."""
    files = sorted((cwd / _FOLDER).glob("*.toml")) + sorted(cwd.glob("*.toml"))
    return [path for path in files if _is_spec(path)]


def _is_spec(path: Path) -> bool:
    try:
        spec = read_spec(path)
        return "env" in spec or (path.name == PYPROJECT and bool(spec))
    except (OSError, ValueError):
        # What is wrong with it is reported when it is read as a spec.
        return path.parent.name == _FOLDER


def env_name(path: Path) -> str:
    """The environment's name, by which its lock is found.

    Raises:
        SpecError: there is none; with all problems of the spec.
    """
    try:
        name = read_spec(path)["env"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if isinstance(name, str) and name not in ("", ".", "..") and not any(each in name for each in "/\\\0"):
        return name
    from envspec.spec.load import load_spec

    return load_spec(path, datetime.now(timezone.utc)).env.name


#: In the first line of every file of a lock.
_LOCKED = b"written by `envspec lock`"
_LOCK = "envspec.lock"
#: Pattern of the name of a file that is imported -> what it is.
_IMPORTED = {"*.txt": "a requirements file", "*.in": "a requirements file", "*.y*ml": "a YAML file"}


def _refuse_other(path: Path, cwd: Path) -> None:
    """Raise UsageError for a file that is something else than a spec, as far as its name and first line show."""
    from fnmatch import fnmatchcase

    from envspec.adopt import is_foreign

    with path.open("rb") as file:
        head = file.read(1000)
    if _LOCKED in head:
        raise _is_lock(path, cwd)
    for pattern, what in _IMPORTED.items():
        if fnmatchcase(path.name, pattern):
            hint = f"write a spec from it: `envspec init {path} --name NAME`"
            raise UsageError(f"{path} is {what}, not a spec", hint=hint)
    if is_foreign(path):
        hint = f"commands take it as it is: `envspec image build {path}`; a spec names it as `from` in [pip]"
        raise UsageError(f"{path} is a lock of another tool, not a spec", hint=hint)
    if path.name != PYPROJECT:
        return
    try:
        has_spec = bool(read_spec(path))
    except (OSError, ValueError):
        # Whoever reads all of it says what is wrong.
        return
    if not has_spec:
        hint = f'add [tool.envspec] with `{DEPENDENCIES_FROM} = ["project"]`'
        raise UsageError(f"{path} is a pyproject.toml without [tool.envspec], not a spec", hint=hint)


def _is_lock(path: Path, cwd: Path) -> UsageError:
    """path: a file of a lock, or its folder."""
    folder, what = path, "a lock"
    if not path.is_dir():
        folder = path.parent
        if path.name != _LOCK:
            what = "a file of a lock"
    name = ""
    with suppress(OSError, ValueError, KeyError):
        name = documents.parse_toml(read_regular(folder / _LOCK).decode("utf-8"))["name"]
    instead = "name its spec"
    if (cwd / _FOLDER / f"{name}.toml").is_file():
        instead = f"lock its spec: `envspec lock {name}`"
    return UsageError(
        f"{path} is {what}, not a spec",
        hint=f"{instead}; locks are for `envspec install {folder} --prefix DIR`, `image build`, `explain` and others",
    )


def _no_spec(argument: str, path: Path, cwd: Path, *, is_path: bool) -> UsageError:
    # Imported here: `lock --check` has a small budget, and rarely comes here.
    from envspec.spec.errors import nearest, quoted

    if (cwd / argument / _LOCK).is_file():
        return _is_lock(cwd / argument, cwd)
    if not is_path and (cwd / argument).is_file():
        _refuse_other(cwd / argument, cwd)
    if is_path and path.is_dir():
        hint = "name a `.toml` file"
        if specs := _specs_in(path):
            hint = f"name a file, such as {Path(argument) / specs[0]}.toml"
        return UsageError(f"{quoted(argument)} is a folder, not a spec", hint=hint)
    names = _specs_in(path.parent)
    if is_path:
        hint = "check the path; a name without `.toml` is looked up under specs/"
        if close := nearest(path.stem, names):
            hint = f"did you mean {Path(argument).parent / close}.toml?"
        return UsageError(f"there is no file {quoted(argument)}", hint=hint)
    if close := nearest(argument, names):
        hint = f"did you mean `{close}`?"
    elif names:
        hint = f"there are: {', '.join(names)}"
    elif (cwd / argument).is_file():
        hint = f"a file must end in `.toml`: rename {quoted(argument)}"
    else:
        hint = "name a `.toml` file, or put one under specs/"
    return UsageError(f"there is no spec {quoted(argument)} under {_FOLDER}/", hint=hint)


def _specs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.stem for path in folder.iterdir() if path.suffix == ".toml")
    except (OSError, ValueError):
        return []
