"""`envspec schema`."""

from __future__ import annotations

import click

from envspec.cli import terminal


@click.command()
def command() -> int:
    """Print the JSON schema of spec.toml, from which editors complete and check.

    A spec names it in its first line: `#:schema ../envspec.schema.json` (Even Better TOML, Taplo, Tombi). To write it:
    envspec schema > envspec.schema.json
    """
    import json

    from envspec.spec import json_schema

    terminal.answer_json(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
    return 0
