"""`envspec schema`."""

from __future__ import annotations

import click

from envspec.cli import terminal


@click.command()
@click.argument("document", type=click.Choice(["spec", "receipt"]), default="spec")
def command(document: str) -> int:
    """Print the JSON schema of spec.toml, from which editors complete and check, or that of receipt.json.

    A spec names its schema in its first line: `#:schema ../envspec.schema.json` (Even Better TOML, Taplo, Tombi). To
    write them:

    \b
    envspec schema > envspec.schema.json
    envspec schema receipt > envspec-receipt.schema.json
    """
    import json

    if document == "receipt":
        from envspec.receipts.model import json_schema
    else:
        from envspec.spec import json_schema

    terminal.answer_json(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
    return 0
