"""Where the facts lie, which version of them this is, and the templates of scripts beside them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jinja2 import Template

DATA: Final = Path(__file__).resolve().parent


def facts_version() -> str:
    """Twelve hex digits of SHA-256 over the data files' names and bytes; nothing is parsed: a millisecond."""
    summed = sha256()
    for path in sorted(DATA.glob("*.toml")):
        summed.update(path.name.encode() + b"\0" + path.read_bytes())
    return summed.hexdigest()[:12]


def read_template(name: str, **filters: Callable[..., str]) -> Template:
    """A template of a script or another text that is no HTML. Its filter `quote` makes a word of a shell.

    name: of the file in this folder. filters: more of them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=False,  # noqa: S701 (no HTML: the filters write words of a shell, of YAML and of a Dockerfile)
        keep_trailing_newline=True,
        loader=FileSystemLoader(DATA),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters.update(filters)
    return environment.get_template(name)
