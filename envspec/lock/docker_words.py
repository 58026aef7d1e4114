"""How things are said in a Dockerfile, for BuildKit and for the builder before it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

# In double quotes both builders take a backslash before these for an escape. Source: moby, shell lexer of dockerfiles.
_ESCAPED: Final = re.compile(r'["\\$]')
_INDENT: Final = "    "


def quoted(text: str) -> str:
    """A word of ENV or LABEL that stands for itself, whatever is in it.

    Raises:
        ValueError: it holds a line feed, which no word of a Dockerfile can.
    """
    if set(text) & {"\n", "\r"}:
        raise ValueError(f"a Dockerfile can't hold a line feed: {text!r}")
    return '"' + _ESCAPED.sub(lambda found: f"\\{found[0]}", text) + '"'


def pairs(instruction: str, values: Mapping[str, str]) -> str:
    """`ENV` or `LABEL` with a line for each pair; the values are words of the Dockerfile already."""
    return f"{instruction} " + f" \\\n{_INDENT}".join(f"{name}={value}" for name, value in values.items())


def run(*commands: str) -> str:
    """A RUN whose commands follow each other as long as they succeed."""
    return "RUN " + " \\\n && ".join(commands)


def words(command: str, each: Iterable[str]) -> str:
    """A command of a shell with a line for each of its words."""
    return f" \\\n{_INDENT}  ".join((command, *each))


def by_architecture(values: Mapping[str, str], template: str) -> Sequence[str]:
    """Commands of a shell that set what differs between architectures (Docker's names), or say it where nothing does.

    template: `NAME=%s`, the value a word of the shell's.
    """
    if len(set(values.values())) == 1:
        return (template % next(iter(values.values())),)
    cases = " ".join(f"{name}) {template % value} ;;" for name, value in values.items())
    return (f'case "$ARCHITECTURE" in {cases} esac',)
