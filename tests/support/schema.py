"""As much of JSON schema, draft 7, as envspec's own schema and an editor's view of a spec use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    # A TOML moment or date is text with a format to the editors' extensions.
    "string": (str, datetime, date),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_KNOWN = {
    *(
        "$schema",
        "title",
        "description",
        "examples",
        "default",
        "definitions",
        "type",
        "properties",
        "required",
        "items",
    ),
    *("additionalProperties", "enum", "const", "pattern", "maxLength", "minItems", "minimum", "maximum", "format"),
    *("minLength", "$ref", "allOf", "anyOf", "patternProperties"),
}


def refusals(schema: Schema, value: Any) -> Iterator[str]:
    """Where and why `schema` refuses `value`; nothing if it takes it. A keyword that is not known fails the test."""
    yield from _refused(schema, value, schema, "")


def _refused(schema: Schema, value: Any, root: Schema, at: str) -> Iterator[str]:
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "$ref" in schema:
        yield from _refused(root["definitions"][schema["$ref"].rpartition("/")[2]], value, root, at)
    for inner in schema.get("allOf", []):
        yield from _refused(inner, value, root, at)
    if "anyOf" in schema and all(any(_refused(inner, value, root, at)) for inner in schema["anyOf"]):
        yield f"{at}: none of anyOf"
    if "type" in schema and (
        not isinstance(value, _TYPES[schema["type"]]) or (value is True and schema["type"] != "boolean")
    ):
        yield f"{at}: not {schema['type']}"
        return
    yield from _out_of_bounds(schema, value, at)
    if isinstance(value, dict):
        yield from _table(schema, value, root, at)
    if isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            yield from _refused(schema["items"], item, root, f"{at}[{position}]")


def _out_of_bounds(schema: Schema, value: Any, at: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: not in enum"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: not {schema['const']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at}: does not match"
    if isinstance(value, (str, list)):
        least = schema.get("minLength" if isinstance(value, str) else "minItems", 0)
        if not least <= len(value) <= schema.get("maxLength", 1e9):
            yield f"{at}: length"
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{at}: bounds"


def _table(schema: Schema, value: dict[str, Any], root: Schema, at: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    yield from (f"{at}.{key}: missing" for key in schema.get("required", []) if key not in value)
    for key, inner in value.items():
        other = schema.get("additionalProperties", True)
        for pattern, matching in schema.get("patternProperties", {}).items():
            other = matching if re.search(pattern, key) else other
        if key in properties:
            yield from _refused(properties[key], inner, root, f"{at}.{key}")
        elif other is False:
            yield f"{at}.{key}: not allowed"
        elif isinstance(other, dict):
            yield from _refused(other, inner, root, f"{at}.{key}")
