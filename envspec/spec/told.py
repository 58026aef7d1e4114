"""pydantic's findings in the words of a spec: what was found, and what to do."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from envspec.spec.faults import BadValue, KeyPath, dotted
from envspec.spec.locate import Places
from envspec.spec.rows import RowOf
from envspec.spec.sections import Spec
from envspec.spec.words import nearest, shown

#: By pydantic's type of an error: what the key wants, and an example.
_WANTED: Final = {
    "string_type": ("text in quotes", '"..."'),
    "int_type": ("a whole number", "8888"),
    "tuple_type": ("a list", "[...]"),
    "dict_type": ("a table", "{ key = ... }"),
    "mapping_type": ("a table", "{ key = ... }"),
    "model_type": ("a table", "{ key = ... }"),
}


def tell_all(findings: list[dict[str, Any]], places: Places) -> list[tuple[KeyPath, BadValue]]:
    """pydantic's findings (`ValidationError.errors()`) as faults: a mistyped key is not also told as missing."""
    mistyped = {(*path[:-1], _close(path)) for path in (f["loc"] for f in findings if f["type"] == "extra_forbidden")}
    return [_tell(found, places) for found in findings if found["type"] != "missing" or found["loc"] not in mistyped]


def _close(path: KeyPath) -> str | None:
    return nearest(str(path[-1]), _fields(_section(path[:-1])))


def _tell(found: dict[str, Any], places: Places) -> tuple[KeyPath, BadValue]:
    path = tuple(part for part in found["loc"] if part != "[key]")
    kind = found["type"]
    if kind == "value_error" and isinstance(found["ctx"]["error"], BadValue):
        return path, found["ctx"]["error"]
    if kind == "extra_forbidden":
        return path, _unknown(path)
    if kind == "missing":
        return path, _missing(path)
    if kind in _WANTED:
        return path, _wrong_type(found, places.written(path))
    return path, _out_of_bounds(found)


def _unknown(path: KeyPath) -> BadValue:
    key = str(path[-1])
    known = list(_fields(_section(path[:-1])))
    close = _close(path)
    if close:
        return BadValue("unknown key", f"did you mean `{close}`?")
    elsewhere = [home for home in _homes(Spec, ()) if home[-1] == key.replace("-", "_").lower()]
    if elsewhere:
        return BadValue("unknown key", f"did you mean `{dotted(elsewhere[0])}`?")
    names = ", ".join(f"`{name}`" for name in known)
    return BadValue("unknown key", f"known here: {names}" if len(path) > 1 else f"the sections are {names}")


def _missing(path: KeyPath) -> BadValue:
    field = _fields(_section(path[:-1]))[str(path[-1])]
    example = _written((field.examples or ["..."])[0])
    hint = (
        f"add `{path[-1]} = {example}`"
        if len(path) > 1
        else f'add [{path[-1]}] with `name = "my-env"` and `python = "3.11"`'
    )
    return BadValue("missing", f"{hint}: {_uncapitalised(field.description or '')}".rstrip(": "))


def _uncapitalised(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _wrong_type(found: dict[str, Any], written: str | None) -> BadValue:
    wanted, example = _WANTED[found["type"]]
    value = found["input"]
    told = f"expected {wanted}, found {_described(value, written)}"
    if found["type"] == "string_type" and isinstance(value, (int, float, date, time)) and written:
        return BadValue(told, f'put it in quotes: "{written}"')
    if found["type"] == "int_type" and isinstance(value, str) and value.isdigit():
        return BadValue(told, f"write it without quotes: {value}")
    if found["type"] == "tuple_type" and isinstance(value, str):
        return BadValue(told, f"put it in brackets: [{shown(value)}]")
    return BadValue(told, f"write {example}")


def _described(value: object, written: str | None) -> str:
    number = written if written and len(written) <= 40 else str(value)[:40]
    told = {
        bool: f"the truth value {str(value).lower()}",
        int: f"the number {number}",
        float: f"the number {number}",
        str: f"the text {shown(value)}" if isinstance(value, str) else "",
        datetime: f"the moment {number}",
        date: f"the date {number}",
        time: f"the time {number}",
        dict: "a table",
        list: "a list",
        tuple: "a list",
    }
    return told.get(type(value), "something else")


def _out_of_bounds(found: dict[str, Any]) -> BadValue:
    bounds = found.get("ctx", {})
    if found["type"] == "too_short":
        return BadValue("an empty list", "name at least one, or leave the key out")
    if found["type"] == "greater_than_equal":
        return BadValue(f"{found['input']} is too small", f"the smallest is {bounds['ge']}")
    if found["type"] == "less_than_equal":
        return BadValue(f"{found['input']} is too large", f"the largest is {bounds['le']}")
    return BadValue(str(found["msg"]), "see `envspec schema`")


def _written(example: object) -> str:
    if isinstance(example, str):
        return f'"{example}"'
    if isinstance(example, list):
        return "[" + ", ".join(map(_written, example)) + "]"
    return str(example)


def _section(path: KeyPath) -> type[BaseModel]:
    """The section that stands at `path`."""
    section: type[BaseModel] = Spec
    for part in path:
        if isinstance(part, str):
            section = _model_in(_fields(section)[part].annotation) or section
    return section


def _fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    return dict(section.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for extra in getattr(annotation, "__metadata__", ()):
        if isinstance(extra, RowOf):
            return extra.model
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in get_args(annotation))
    return next(filter(None, inner), None)


def _homes(section: type[BaseModel], path: KeyPath) -> list[KeyPath]:
    """Every key of a spec."""
    homes: list[KeyPath] = []
    for name, field in _fields(section).items():
        homes.append((*path, name))
        model = _model_in(field.annotation)
        if model:
            homes += _homes(model, (*path, name))
    return homes
