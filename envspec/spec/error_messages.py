"""Problems of a spec from pydantic's errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from envspec.names import RENAMED
from envspec.spec.conda import unsecret
from envspec.spec.errors import BadValue, KeyPath, dotted, nearest, quoted
from envspec.spec.fact_rows import SpecWithFacts

#: pydantic's type of an error -> the expected value.
_EXPECTED: Final = {
    "string_type": "a string in quotes",
    "int_type": "an integer",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
}


def problems_of(
    findings: list[dict[str, Any]], written: Callable[[KeyPath], str | None]
) -> list[tuple[KeyPath, BadValue]]:
    """Problems from `ValidationError.errors()`: a mistyped key is not also reported as missing."""
    unknown = [found["loc"] for found in findings if found["type"] == "extra_forbidden"]
    mistyped = {(*path[:-1], _close(path)) for path in unknown}
    return [_problem(found, written) for found in findings if not _repeats(found, mistyped)]


def _repeats(found: dict[str, Any], mistyped: set[KeyPath]) -> bool:
    """Whether another problem covers it: the mistyped key, or the values that a list lost."""
    if found["type"] == "too_short":
        return bool(found["input"])
    return found["type"] == "missing" and found["loc"] in mistyped


def _close(path: KeyPath) -> str | None:
    return nearest(str(path[-1]), _keys(_section(path[:-1])))


def _problem(found: dict[str, Any], written: Callable[[KeyPath], str | None]) -> tuple[KeyPath, BadValue]:
    path = tuple(part for part in found["loc"] if part != "[key]")
    kind = found["type"]
    if kind == "value_error" and isinstance(found["ctx"]["error"], BadValue):
        return path, found["ctx"]["error"]
    if kind == "extra_forbidden":
        return path, _unknown(path)
    if kind == "missing":
        return path, _missing(path)
    if kind in _EXPECTED:
        return path, _wrong_type(found, path, written(path))
    return path, _out_of_bounds(found)


def _unknown(path: KeyPath) -> BadValue:
    if renamed := RENAMED.get(".".join(map(str, path))):
        return BadValue("unknown key", f"write {renamed}")
    key = str(path[-1])
    close = _close(path)
    if close:
        return BadValue("unknown key", f"did you mean `{close}`?")
    elsewhere = [home for home in _homes(SpecWithFacts, ()) if home[-1] == key.replace("-", "_").lower()]
    if elsewhere:
        return BadValue("unknown key", f"did you mean `{dotted(elsewhere[0])}`?")
    names = ", ".join(f"`{name}`" for name in _keys(_section(path[:-1])))
    if len(path) == 1:
        return BadValue("unknown key", f"the sections are {names}")
    return BadValue("unknown key", f"known keys: {names}")


def _missing(path: KeyPath) -> BadValue:
    field = _keys(_section(path[:-1]))[str(path[-1])]
    example = _written((field.examples or ["..."])[0])
    if len(path) == 1:
        return BadValue("missing", f'add [{path[-1]}] with `name = "my-env"` and `python = "3.11"`')
    return BadValue("missing", f"add `{path[-1]} = {example}`. {field.description or ''}".rstrip())


#: Lists of words, which other files have as one line.
_COMMAND_LINES: Final = (("image", "entrypoint"), ("image", "command"))


def _wrong_type(found: dict[str, Any], path: KeyPath, written: str | None) -> BadValue:
    # Many branches: one for each mistake that has a hint of its own.
    expected = _EXPECTED[found["type"]]
    value = found["input"]
    if isinstance(value, str) and path[:2] == ("conda", "channels"):
        value = unsecret(value)
    found_text = f"expected {expected}, found {_described(value, written)}"
    if found["type"] == "string_type" and isinstance(value, (int, float, date, time)) and written:
        return BadValue(found_text, f'put it in quotes: "{written}"')
    if found["type"] == "int_type" and isinstance(value, str) and value.isdigit():
        return BadValue(found_text, f"write it without quotes: {value}")
    if found["type"] == "tuple_type" and isinstance(value, str):
        words = [value]
        if path in _COMMAND_LINES:
            words = value.split()
        return BadValue(found_text, f"put it in brackets: [{', '.join(map(quoted, words))}]")
    if path[0] == "conda" and path[-2:-1] == ("dependencies",) and isinstance(value, Mapping) and "pip" in value:
        return BadValue(found_text, "move PyPI's packages to [pip] `dependencies`")
    return BadValue(found_text, _how_to_write(found["type"], path))


def _how_to_write(kind: str, path: KeyPath) -> str:
    """How a table, a list or a number is written at `path`."""
    if isinstance(path[-1], int) and kind == "string_type":
        path = path[:-1]
    if kind == "model_type" and isinstance(path[-1], int):
        listed = _field_at(path[:-1])
        if listed and listed.examples:
            return f"write {_written(listed.examples[0][0])}"
        return f"write each as a table of its own: [[{dotted(path[:-1])}]]"
    field = _field_at(path)
    if kind == "tuple_type" and field and _model_in(field.annotation):
        return f"write each as a table of its own: [[{dotted(path)}]]"
    if field and isinstance(path[-1], str):
        for example in field.examples or ():
            if not isinstance(example, bool):
                return f"write `{path[-1]} = {_written(example)}`"
    if kind in ("int_type", "bool_type"):
        return f"write {_EXPECTED[kind]} without quotes"
    return f"write [{dotted(path)}] on a line of its own, and its keys below"


def _described(value: object, written: str | None) -> str:
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    number = str(value)[:40]
    if written and len(written) <= 40:
        number = written
    found_text = {
        bool: f"the boolean {str(value).lower()}",
        int: f"the number {number}",
        float: f"the number {number}",
        datetime: f"the time {number}",
        date: f"the date {number}",
        time: f"the time {number}",
        dict: "a table",
        list: "a list",
        tuple: "a list",
    }
    return found_text.get(type(value), "something else")


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
    if isinstance(example, dict):
        return "{ " + ", ".join(f"{dotted((key,))} = {_written(value)}" for key, value in example.items()) + " }"
    return str(example)


def _keys(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a section, as they are written."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _field_at(path: KeyPath) -> FieldInfo | None:
    return _keys(_section(path[:-1])).get(str(path[-1]))


def _section(path: KeyPath) -> type[BaseModel]:
    """The section that stands at `path`."""
    section: type[BaseModel] = SpecWithFacts
    for part in path:
        # What is no field is a key that the user chose, of a table of tables, whose section the field named already.
        if isinstance(part, str) and (field := _keys(section).get(part)):
            section = _model_in(field.annotation) or section
    return section


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in get_args(annotation))
    return next(filter(None, inner), None)


def _homes(section: type[BaseModel], path: KeyPath) -> list[KeyPath]:
    """Every key of a spec."""
    homes: list[KeyPath] = []
    for name, field in _keys(section).items():
        homes.append((*path, name))
        model = _model_in(field.annotation)
        if model:
            homes += _homes(model, (*path, name))
    return homes
