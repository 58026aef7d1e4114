"""From a spec's text to a Spec, or to every fault in it at once."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from pydantic import ValidationError

from envspec import documents
from envspec.documents import table_of
from envspec.spec.consistency import check
from envspec.spec.document import root_of
from envspec.spec.errors import BadValue, KeyPath, Problem, SpecError, dotted, quoted
from envspec.spec.positions import Positions, positions_of
from envspec.spec.pyproject import Place, WholeSpec, read_whole
from envspec.spec.sections import Spec
from envspec.spec.values import VARIANT
from envspec.spec.variants import BASE, SHARED, WITHOUT, Merged, variant_names

#: Of a list, of [pip] dependencies above all. 10,000 are locked in a minute and a half.
_MOST_ENTRIES: Final = 20_000
_SMALLEST = '[env] with `name = "my-env"` and `python = "3.11"`, and [pip] with `dependencies = ["torch"]`'


def load_spec(path: Path, now: datetime, where: str | None = None) -> Spec:
    """Read the spec in the file `path`, which messages call `where`.

    Raises:
        SpecError: the file can't be read, or is not a valid spec; with every problem.
    """
    return parse_spec(read_text(path, where), where or str(path), now, path.parent)


def read_text(path: Path, where: str | None = None) -> str:
    """The text of a spec's file, line ends as they are.

    Raises:
        SpecError: no such file, a folder, not readable, not UTF-8.
    """
    name = where or str(path)
    try:
        data = documents.spec_bytes(path)
    except IsADirectoryError:
        raise _whole(name, "is a folder, not a spec", "name the `.toml` file in it") from None
    except FileNotFoundError:
        raise _whole(name, "there is no such file", "check the path") from None
    except documents.DocumentTooLarge as error:
        raise _whole(name, str(error), "split it into several specs") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _whole(name, f"can't be read: {reason}", "check the path and who may read it") from None
    return _decoded(data, name)


def _decoded(data: bytes, where: str) -> str:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise _whole(where, "starts with a byte-order mark", "save it as UTF-8 without one")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise SpecError([Problem(where, line, "", found, "save the file as UTF-8")]) from None


def parse_spec(text: str, where: str, now: datetime, folder: Path | None = None) -> Spec:
    """Read a spec's text; `where` is what messages call it, `now` bounds `as_of`.

    folder: of the spec, from which paths in it go, and files that hints read. The last part of `where` is the file's
    name: of a pyproject.toml, [tool.envspec] is the spec.

    Raises:
        SpecError: with every problem.
    """
    data, positions = _document(text, where)
    if not data:
        raise _whole(where, "the file has no settings", f"the smallest spec is {_SMALLEST}")
    _refuse_other_documents(data, where, positions)
    positions = positions.below(root_of(Path(where)))
    path = (folder or Path()) / Path(where).name
    whole = read_whole(data, path)
    if not whole.document:
        raise _whole(where, "there is no [tool.envspec]", f"the smallest spec is {_SMALLEST}")
    data = whole.document
    _check_lengths(data, where)
    spec, problems = _checked(Merged(data, BASE), positions, now)
    wrong = list(_of_variants(data))
    variants: dict[str, Spec | None] = {}
    if not wrong:
        variants, wrong = _read_variants(data, positions, now, known={path for path, _ in problems})
    places = _Places(where, path.parent, positions, whole)
    found = list(whole.problems)
    known_places = {place for place, _ in found}
    for key, bad in [*problems, *wrong]:
        if (place := places.of(key)) not in known_places:
            found.append((place, bad))
    if found or spec is None:
        raise SpecError(places.problem(place, bad.found, bad.hint_in(folder)) for place, bad in found)
    return spec.model_copy(update={"variants": variants})


def _refuse_other_documents(data: Mapping[str, Any], where: str, positions: Positions) -> None:
    """Raise SpecError for a lock, and for a pyproject.toml with a spec's tables at its top."""
    root = root_of(Path(where))
    misplaced = [key for key in data if root and key in _TABLES]
    if misplaced:
        below = ".".join(root)
        raise SpecError(
            Problem(
                *(where, positions.line((key,)), key, f"belongs below [{below}]"),
                hint=f"write [{below}.{key}], and the same for tables in it",
            )
            for key in misplaced
        )
    if "input_sha256" in data:
        named = ""
        if isinstance(own := data.get("spec"), str):
            named = f", {posixpath.normpath(posixpath.join(posixpath.dirname(where), own))}"
        raise _whole(where, "this is a lock, not a spec", f"name its spec{named}")


def _read_variants(
    data: dict[str, Any], positions: Positions, now: datetime, known: Collection[KeyPath]
) -> tuple[dict[str, Spec | None], list[tuple[KeyPath, BadValue]]]:
    """The variants of a spec by name, and the problems that only they have. known: where the spec itself has some."""
    variants: dict[str, Spec | None] = {}
    problems: list[tuple[KeyPath, BadValue]] = []
    for name in variant_names(data):
        merged = Merged(data, name)
        variants[name], found = _checked(merged, positions, now)
        for at in merged.unmatched:
            problems.append((("variants", name, WITHOUT, at), BadValue("not in the spec's dependencies", "remove it")))
        for path, bad in found:
            if path[0] == "variants":
                problems.append((path, bad))
            elif path not in known:
                problems.append((path, BadValue(f"in [variants.{name}], {bad.found}", bad.hint)))
    return variants, problems


class _Places(Struct, frozen=True):
    """Where the values of a spec are written: in its own text, or in a pyproject.toml that it takes lines from."""

    where: str
    folder: Path
    positions: Positions
    whole: WholeSpec

    def of(self, path: KeyPath) -> Place:
        return self.whole.lines.get(path, Place("", path))

    def problem(self, place: Place, found: str, hint: str) -> Problem:
        where, positions, root = self.where, self.positions, root_of(Path(self.where))
        if root:
            # What is to be pasted goes below the spec's own table.
            found, hint = (_HEADER.sub(rf"\1{'.'.join(root)}.\2", text) for text in (found, hint))
        if place.file:
            where = os.path.normpath(Path(where).parent / place.file)
            positions = positions_of(read_text(self.folder / place.file, where))
            root = ()
        return Problem(where, positions.line(place.path), dotted((*root, *place.path)), found, hint)


#: The tables of a spec, and the header of one in a text.
_TABLES: Final = tuple(Spec.model_fields)
_HEADER: Final = re.compile(rf"(\[{{1,2}})((?:{'|'.join(_TABLES)})[.\]])")


def spec_error(
    path: Path, found: Iterable[tuple[KeyPath, str, str]], variant: str = BASE, text: str | None = None
) -> SpecError:
    """The error for values of a spec, or of its variant, that a later stage refuses: key, problem and hint of each.

    text: the spec's, if it is not that of its file.
    """
    if text is None:
        text = read_text(path)
    data, positions = _document(text, str(path))
    whole = read_whole(data, path)
    merged = Merged(whole.document, variant)
    places = _Places(str(path), path.parent, positions.below(root_of(path)), whole)
    return SpecError(places.problem(places.of(merged.origin(key)), problem, hint) for key, problem, hint in found)


def _checked(merged: Merged, positions: Positions, now: datetime) -> tuple[Spec | None, list[tuple[KeyPath, BadValue]]]:
    """The spec of a whole document, and its problems where they are written."""
    data = merged.document
    spec, problems = _validated(data, lambda path: positions.written(merged.origin(path)))
    unreadable = {path for path, _ in problems}
    problems += [(path, bad) for path, bad in check(data, now) if path not in unreadable]
    return spec, [(merged.origin(path), bad) for path, bad in problems]


def _of_variants(data: dict[str, Any]) -> Iterator[tuple[KeyPath, BadValue]]:
    """What is wrong with `[variants]` as such."""
    variants = data.get("variants", {})
    if not isinstance(variants, dict):
        yield ("variants",), BadValue("not a table of variants", "write [variants.cpu] and what differs below")
        return
    for name, own in variants.items():
        path = ("variants", name)
        if not re.fullmatch(VARIANT, name):
            yield path, BadValue(f"{quoted(name)} can't name a variant", "lower-case letters and digits, joined by `-`")
        if not isinstance(own, dict):
            yield path, BadValue("not a table", f"write [variants.{name}] and what differs below")
            continue
        env = own.get("env")
        for key in SHARED:
            if isinstance(env, dict) and key in env:
                yield (*path, "env", key), BadValue("a variant can't set it", "set it in [env]")
        if "facts" in own:
            yield (*path, "facts"), BadValue("a variant can't add facts", "add them to [facts], for all variants")
        if not isinstance(own.get(WITHOUT, []), list):
            yield (*path, WITHOUT), BadValue("not a list of names", f'write `{WITHOUT} = ["flash-attn"]`')


def _document(text: str, where: str) -> tuple[dict[str, Any], Positions]:
    try:
        data = documents.parse_toml(text)
        _check_lengths(data, where)
        return data, positions_of(text)
    except (documents.NestedTooDeeply, RecursionError):
        raise _whole(where, "lists or tables are nested too deeply to read", "no key of a spec needs it") from None
    except ValueError as error:
        raise SpecError([_syntax(error, text, where)]) from None


def _check_lengths(data: dict[str, Any], where: str) -> None:
    values = list(data.values())
    for each in data.values():
        values += table_of(each).values()
    longest = max((len(value) for value in values if isinstance(value, list)), default=0)
    if longest > _MOST_ENTRIES:
        raise _whole(where, f"a list has {longest} entries", f"at most {_MOST_ENTRIES} are read: split the spec")


#: Part of tomllib's or tomli's message, which differ between versions; the problem; the hint.
_SYNTAX: Final = (
    ("Illegal character '\\n'", "unterminated string", 'close it with a quote, or write it in """three"""'),
    ("Illegal character", "a control character, which TOML does not allow", "remove it, or write it as an escape"),
    ("Unterminated string", "unterminated string", "add the closing quote"),
    ('Expected "\'"', "unterminated string", "add the closing quote"),
    ("Unclosed array", "unterminated list", "close it with ]"),
    ("Unclosed inline table", "unterminated table", "close it with }"),
    ("Cannot", "duplicate key or table", "remove one of the two"),
    ("Duplicate", "duplicate key or table", "remove one of the two"),
    ("Invalid value", "invalid value", "write a string in quotes, a list in brackets"),
    ("Expected '=' after", "a key without an equals sign", "write `key = value`"),
    ("Invalid date", "invalid date or time", "write it as 2026-11-15T00:00:00Z"),
)


def _syntax(error: ValueError, text: str, where: str) -> Problem:
    message = str(error)
    position = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if not position:
        return Problem(where, None, "", "not valid TOML", "a number in it may be far too long")
    found, hint = "not valid TOML", "write `key = value` or `[table]` on a line of its own"
    for words, problem, advice in _SYNTAX:
        if words in message:
            found, hint = problem, advice
            break
    if position[1]:
        line, column = int(position[1]), int(position[2])
    else:
        end = text.rstrip()
        line, column = end.count("\n") + 1, len(end) - end.rfind("\n")
    return Problem(where, line, "", f"column {column}: {found}", hint)


def _validated(
    data: dict[str, Any], written: Callable[[KeyPath], str | None]
) -> tuple[Spec | None, list[tuple[KeyPath, BadValue]]]:
    form = Spec
    if "facts" in data:
        from envspec.spec.fact_rows import SpecWithFacts

        form = SpecWithFacts
    try:
        with _without_plugins():
            return form.model_validate(data), []
    except ValidationError as error:
        # Both know the form of every fact, which only few specs need.
        from envspec.spec.error_messages import problems_of

        return None, problems_of([dict(found) for found in error.errors(include_url=False)], written)


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Without pydantic's plugins: what this environment has installed must not change a spec, and to look for them in
    all distributions takes a tenth of the time of `lock --check`.
    """
    variable = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(variable)
    os.environ[variable] = "__all__"
    try:
        yield
    finally:
        # Another thread may have removed it.
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before


def _whole(where: str, found: str, hint: str) -> SpecError:
    return SpecError([Problem(where, None, "", found, hint)])
