"""YAML of the sources of `init`."""

from __future__ import annotations

from pathlib import Path

from envspec.importers.types import Import, Unreadable
from envspec.io import yaml_lines
from envspec.io.yaml_lines import Value


def read_yaml(path: Path, imported: Import) -> Value:
    """A YAML file of one document; an empty scalar for an empty file.

    Raises:
        Unreadable: as `Import.read`; it is not YAML, has a key twice, or is beyond the bounds.
    """
    return parse_yaml(imported.read(path), path, imported)


def parse_yaml(text: str, path: Path, imported: Import, form: str = "YAML") -> Value:
    """The text of a file, as `read_yaml`. form: of the file, as errors name it."""
    try:
        return yaml_lines.parse_yaml(text, imported.shown(path), form)
    except yaml_lines.InvalidYaml as error:
        raise Unreadable(str(error)) from None
