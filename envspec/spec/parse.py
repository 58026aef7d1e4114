"""From a spec's text to a Spec, or to every fault in it at once."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envspec import toml
from envspec.spec.checks import check
from envspec.spec.faults import BadValue, Fault, KeyPath, SpecError, dotted
from envspec.spec.locate import Places, locate
from envspec.spec.sections import Spec
from envspec.spec.told import tell_all
from envspec.spec.words import shown

_SMALLEST = '[env] with `name = "my-env"` and `python = "3.11"`, and [pip] with `dependencies = ["torch"]`'


def load_spec(path: Path, now: datetime, where: str | None = None) -> Spec:
    """Read the spec in the file `path`, which messages call `where`.

    Raises:
        SpecError: the file can't be read, or is not a valid spec; holds every fault.
    """
    return parse_spec(read_text(path, where), where or str(path), now)


def read_text(path: Path, where: str | None = None) -> str:
    """The text of a spec's file, line ends as they are.

    Raises:
        SpecError: no such file, a folder, not readable, not UTF-8.
    """
    name = where or str(path)
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise _whole(name, "is a folder, not a spec", "name the `.toml` file in it") from None
    except FileNotFoundError:
        raise _whole(name, "there is no such file", "check the path") from None
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
        raise SpecError([Fault(where, line, "", found, "save the file as UTF-8")]) from None


def parse_spec(text: str, where: str, now: datetime) -> Spec:
    """Read a spec's text; `where` is what messages call it, `now` bounds `as_of`.

    Raises:
        SpecError: holds every fault.
    """
    data, places = _document(text, where)
    if not data:
        raise _whole(where, "the file holds no settings", f"the smallest spec is {_SMALLEST}")
    spec, faults = _validated(data, places)
    faults += [(path, bad) for path, bad in check(data, now) if path not in {path for path, _ in faults}]
    if faults or spec is None:
        raise SpecError(Fault(where, places.line(path), dotted(path), bad.found, bad.hint) for path, bad in faults)
    return spec


def _document(text: str, where: str) -> tuple[dict[str, Any], Places]:
    try:
        data = toml.loads(text)
        return data, locate(text)
    except RecursionError:
        raise _whole(where, "lists or tables are nested too deeply to read", "no key of a spec needs it") from None
    except ValueError as error:
        raise SpecError([_syntax(error, text, where)]) from None


def _syntax(error: ValueError, text: str, where: str) -> Fault:
    found = re.fullmatch(r"(?s)(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
    hint = "mend the TOML at this place; text goes in quotes, a list in [ ]"
    if not found:
        return Fault(where, None, "", f"not valid TOML: {shown(str(error))}", hint)
    end = text.rstrip("\n")
    line = int(found[2]) if found[2] else end.count("\n") + 1
    column = int(found[3]) if found[3] else len(end) - end.rfind("\n")
    reason = re.sub(r"[^\x20-\x7e]", "?", found[1])
    return Fault(where, line, "", f"column {column}: not valid TOML: {reason}", hint)


def _validated(data: dict[str, Any], places: Places) -> tuple[Spec | None, list[tuple[KeyPath, BadValue]]]:
    try:
        return Spec.model_validate(data), []
    except ValidationError as error:
        return None, tell_all([dict(found) for found in error.errors(include_url=False)], places)


def _whole(where: str, found: str, hint: str) -> SpecError:
    return SpecError([Fault(where, None, "", found, hint)])
