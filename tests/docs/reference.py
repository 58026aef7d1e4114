"""What the pages of docs/reference/ have from the code: the keys of a spec, the commands, the exit codes, variables.

A page has it between `<!-- generated: NAME -->` and `<!-- end -->`. All else on the page is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from envspec.lockfile.toml_writer import bare_key
from envspec.spec import json_schema

_PART: Final = re.compile(r"^<!-- generated: (?P<name>.+?) -->\n(?P<text>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def rewritten(page: str) -> str:
    """The page with what the code has now in its generated parts."""
    return _PART.sub(lambda part: f"<!-- generated: {part['name']} -->\n\n{text_of(part['name'])}\n<!-- end -->", page)


def names(page: str) -> list[str]:
    """The generated parts of a page."""
    return [part["name"] for part in _PART.finditer(page)]


def text_of(name: str) -> str:
    """A generated part. name: as on its page, `spec` or `command lock`."""
    kind, _, argument = name.partition(" ")
    return PARTS[kind](argument)


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)


def cell(text: str) -> str:
    """Text of the code in a cell: what Markdown would read as a column or as HTML is escaped."""
    plain = [part if at % 2 else part.replace("<", "\\<") for at, part in enumerate(text.split("`"))]
    return "`".join(plain).replace("|", "\\|").replace("\n", " ")


# --- keys of a spec -------------------------------------------------------------------------------------------------

#: Where the rules of a section or of a key are.
_RULES: Final[Mapping[str, str]] = {
    "[env]": "[dates and updates](specs.md#dates-and-updates), [Python and pyproject.toml](specs.md#pyprojecttoml)",
    "[cuda]": "[GPUs and driver](specs.md#gpus-and-driver)",
    "[pip]": "[on top of a system's packages](specs.md#on-top-of-a-systems-packages)",
    "[[pip.index]]": "[CUDA extensions](specs.md#cuda-extensions)",
    "[build.NAME]": "[packages compiled beside torch](specs.md#packages-compiled-beside-torch)",
    "[conda]": "[conda](../how-to/conda.md)",
    "[system]": "[images](../how-to/images.md#add-system-packages)",
    "[services]": "[services](../how-to/services.md)",
    "[image]": "[on top of a base's packages](../explanation/images.md#on-top-of-a-bases-packages), "
    "[the project's own code](../explanation/images.md#the-projects-own-code)",
    "[conformance]": "[conformance](conformance.md)",
    "[variants.NAME]": "[variants](specs.md#variants)",
    "[facts]": "[rows of facts](facts.md)",
}
_FACTS: Final = "[[facts."
#: Keys of every row of [facts].
_OF_FACTS: Final = ("source", "read", "confidence")


def _spec(_: str) -> str:
    """All sections but the tables of [facts]."""
    schema = json_schema()
    seen: dict[str, Mapping[str, Any]] = {}
    text = "## Keys before all tables\n\n" + _keys("", schema, schema)
    for heading, definition in _sections("", schema, schema):
        if heading.startswith(_FACTS):
            continue
        text += f"\n## `{heading}`\n\n{cell(definition['description'])}\n"
        if heading in _RULES:
            text += f"See {_RULES[heading]}.\n"
        properties = definition["properties"]
        same = next((one for one, keys in seen.items() if properties.items() <= keys.items()), None)
        seen[heading] = properties
        keys = _keys(heading, definition, schema)
        if heading == "[variants.NAME]":
            keys = "Every key of a spec but `[env] name`, `as_of` and `package_as_of`, and:\n\n" + keys
        elif same:
            keys = f"Keys: {', '.join(f'`{key}`' for key in properties)}, as in `{same}`.\n"
        text += f"\n{keys}" if keys else ""
    return text


def _facts(_: str) -> str:
    """The tables of [facts]."""
    schema = json_schema()
    return "\n".join(
        f"## `{heading}`\n\n{cell(definition['description'])}\n\n{_keys(heading, definition, schema)}"
        for heading, definition in _sections("", schema, schema)
        if heading.startswith(_FACTS)
    )


def _sections(path: str, node: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables of a spec below a table: `[pip]`, `[[pip.index]]`, `[build.NAME]`; with their schemas."""
    for key, value in node["properties"].items():
        found = _table_of(value)
        if found is None:
            continue
        reference, form = found
        heading = form.format(f"{path}{key}")
        definition = schema["definitions"][reference]
        if value.get("description"):
            definition = {**definition, "description": value["description"]}
        if reference == "Override":
            continue
        yield heading, definition
        if reference != "Variant":
            yield from _sections(heading.strip("[]") + ".", definition, schema)


def _table_of(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """The definition of a key that is a table, and the form of its heading; None for other keys."""
    inner = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
    for node, form in [
        (value, "[{}]"),
        *((each, "[{}]") for each in value.get("allOf", ())),
        (value.get("items", {}), "[[{}]]"),
        *((each, "[{}.NAME]") for each in inner if isinstance(each, Mapping)),
    ]:
        if "$ref" in node:
            return node["$ref"].rpartition("/")[2], form
    return None


def _keys(heading: str, node: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The table of the keys that are no tables; empty if there are none."""
    rows = []
    is_fact = heading.startswith(_FACTS)
    properties: dict[str, Mapping[str, Any]] = node["properties"]
    if heading == "[facts]":
        properties = {key: schema["definitions"]["TorchRelease"]["properties"][key] for key in _OF_FACTS}
        node = schema["definitions"]["TorchRelease"]
    if heading == "[variants.NAME]":
        properties = {"without": properties["without"]}
    for key, value in properties.items():
        inline = _table_of(value)
        if (inline and inline[0] != "Override") or (is_fact and key in _OF_FACTS):
            continue
        examples = ", ".join(f"`{_line(key, example, value)}`" for example in value["examples"])
        rows.append([f"`{key}`", _value(key, value, node), f"{cell(value['description'])}<br>{examples}"])
        if inline:
            definition = schema["definitions"][inline[0]]
            rows += [
                [f"`{key}` … `{name}`", _value(name, each, definition), cell(each["description"])]
                for name, each in definition["properties"].items()
            ]
    return table(["key", "value", "meaning, and an example"], iter(rows)) if rows else ""


def _line(key: str, example: object, value: Mapping[str, Any]) -> str:
    """An example as a line of a spec."""
    return f"{key} = {example if value.get('format') == 'date' else toml(example)}".replace("|", "\\|")


def toml(value: object) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{bare_key(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def _value(key: str, value: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """What a key takes, and its default."""
    default = value.get("default")
    text = _kind(value, default)
    if key in node.get("required", ()):
        return f"{text}, required"
    if default in (None, [], {}, "") or "(default)" in text:
        return text
    return f"{text}; default: `{toml(default)}`"


def _kind(value: Mapping[str, Any], default: object = None) -> str:
    if "enum" in value:
        return ", ".join(f'`"{one}"`' + (" (default)" if one == default else "") for one in value["enum"])
    if "const" in value:
        return f'`"{value["const"]}"`'
    if "anyOf" in value:
        return " or ".join(map(_kind, value["anyOf"]))
    kind = value.get("type")
    if kind == "array":
        return f"list of {_plural(_kind(value['items']))}"
    if kind == "object":
        inner = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
        items = next(each for each in inner if isinstance(each, Mapping))
        return f"table of {_plural(_kind(items))}"
    if kind == "integer" and "minimum" in value:
        return f"whole number, {value['minimum']} to {value['maximum']}" if "maximum" in value else "whole number"
    if value.get("format") == "date":
        return "date"
    return {"string": "text", "integer": "whole number", "boolean": "`true` or `false`", None: "table"}[kind]


def _plural(kind: str) -> str:
    return {"text": "texts", "whole number": "whole numbers", "table": "tables"}.get(kind, kind)


#: Kind of a generated part -> what makes its text of the words after it.
PARTS: Final[Mapping[str, Callable[[str], str]]] = {"spec": _spec, "facts": _facts}
