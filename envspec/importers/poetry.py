"""Poetry's requirements as PEP 508: carets, tildes, tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.importers.toml_lines import list_of, text_of
from envspec.spec.errors import BadValue, quoted

_TERM: Final = re.compile(r"(\^|~(?!=)|~=|[<>!=]=?=?)?\s*v?([0-9*][^\s,|]*)")
#: Of a requirement's table; `develop`, `optional` and `source` decide other things than its text.
_KEYS: Final = frozenset(
    {"version", "extras", "markers", "python", "platform", "git", "branch", "tag", "rev", "subdirectory", "path", "url"}
    | {"file", "develop", "optional", "source", "allow-prereleases"}
)


def requirement_of(name: str, value: Any) -> str:
    """A line of [tool.poetry.dependencies] as PEP 508.

    Raises:
        BadValue: it has no such form.
    """
    if isinstance(value, str):
        return f"{name}{specifier_of(value)}"
    if not isinstance(value, Mapping):
        raise BadValue(f"{name} is neither a version nor a table", f'write {name} = "^1.0"')
    if unknown := sorted(set(map(str, value)) - _KEYS):
        raise BadValue(f"{name} has {quoted(unknown[0])}, which is not a key of Poetry's", "remove it")
    if value.get("allow-prereleases") is True:
        raise BadValue(f"{name} allows pre-releases", f'name one: "{name}>=1.0rc1"')
    extras = [each for each in list_of(value, "extras") if isinstance(each, str)]
    named = f"{name}[{','.join(extras)}]" if extras else name
    path = text_of(value, "path") or text_of(value, "file")
    if text_of(value, "git"):
        text = f"{named} @ {git_address(value)}"
    elif path:
        text = f"{named} @ {path if path.startswith(('.', '/')) else f'./{path}'}"
    elif text_of(value, "url"):
        text = f"{named} @ {text_of(value, 'url')}"
    else:
        text = f"{named}{specifier_of(text_of(value, 'version') or '*')}"
    markers = [text_of(value, "markers")]
    if python := text_of(value, "python"):
        markers += [f'python_full_version {each.operator} "{each.version}"' for each in _set(specifier_of(python))]
    if platform := text_of(value, "platform"):
        markers.append(f'sys_platform == "{platform}"')
    kept = [f"({each})" if " or " in each else each for each in filter(None, markers)]
    return f"{text} ; {' and '.join(kept)}" if kept else text


def git_address(table: Mapping[str, Any]) -> str:
    """The repository, commit and folder in a table of Poetry or uv, as pip writes them."""
    ref = next((f"@{text_of(table, key)}" for key in ("rev", "tag", "branch") if text_of(table, key)), "")
    inner = f"#subdirectory={quote(text_of(table, 'subdirectory'))}" if text_of(table, "subdirectory") else ""
    url = re.sub(r"^git@([^:/]+):", r"ssh://git@\1/", text_of(table, "git"))
    return f"git+{url}{ref}{inner}"


def specifier_of(constraint: str) -> str:
    """A constraint of Poetry's (`^1.2`, `~1.2`, `1.2`, `>=1,<2`) as PEP 440; empty for `*`.

    Raises:
        BadValue: it has no such form.
    """
    text = constraint.strip()
    if "|" in text:
        raise BadValue(f"{quoted(text)} allows one range or another", "write one of them")
    if not _TERM.sub("", text).strip(" ,") == "":
        raise BadValue(f"{quoted(text)} is not a constraint of Poetry's", 'write "^1.2" or ">=1.2,<2"')
    parts = [part for operator, version in _TERM.findall(text) if (part := _part(operator, version))]
    return str(",".join(str(each) for part in parts for each in part.split(",") if _set(each)))


def _part(operator: str, version: str) -> str:
    if version == "*":
        return ""
    if operator in ("^", "~"):
        return f">={version},<{_after(operator, version)}"
    return f"{'==' if operator in ('', '=') else operator}{version}"


def _after(operator: str, version: str) -> str:
    """The first version that a caret or a tilde does not allow."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(each) for each in release[0].split(".")] if release else [0]
    if operator == "~":
        numbers = numbers[:2]
    else:
        first = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
        numbers = numbers[: first + 1]
    return ".".join(map(str, [*numbers[:-1], numbers[-1] + 1]))


def _set(text: str) -> SpecifierSet:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise BadValue(f"{quoted(text)} is not a specifier", 'write ">=1.2,<2"') from None
