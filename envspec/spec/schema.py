"""The JSON schema of a spec, for editors."""

from __future__ import annotations

from typing import Any

from envspec.spec.fact_rows import SpecWithFacts


def json_schema() -> dict[str, Any]:
    """The schema as draft 7, which the TOML extensions of editors read."""
    schema = _plain(SpecWithFacts.model_json_schema(mode="validation", ref_template="#/definitions/{model}"))
    definitions = schema.pop("$defs")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "envspec: spec.toml",
        **{key: value for key, value in schema.items() if key != "title"},
        "definitions": definitions,
    }


def _plain(node: Any) -> Any:
    """Without what TOML lacks (null), what draft 7 ignores (keys beside `$ref`), and titles made of key names."""
    if isinstance(node, list):
        return [_plain(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    node = {key: _plain(inner) for key, inner in node.items() if not (key == "title" and isinstance(inner, str))}
    if node.get("default", node) is None:
        del node["default"]
    options = [option for option in node.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        del node["anyOf"]
        node = {**options[0], **node}
    if "patternProperties" in node:
        node["additionalProperties"] = False
    if "$ref" in node and len(node) > 1:
        node = {"allOf": [{"$ref": node.pop("$ref")}], **node}
    return node
