"""The generated parts of the reference pages are those of the code; what the pages show is what the code accepts.

`ENVSPEC_WRITE_DOCS=1 python -m pytest tests/docs -k reference` writes them.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import click
import pytest
import tomlkit
from msgspec import NODEFAULT, Struct

from envspec import documents
from envspec.cli.main import cli
from envspec.data import DATA
from envspec.lockfile.document import _columns
from envspec.lockfile.header import Header
from envspec.models import Lock, Platform, Target, Unbuilt
from envspec.reasons import Reason
from envspec.settings import OTHER_VARIABLES, OWN_VARIABLES, SETTINGS
from envspec.spec import json_schema, parse_spec
from envspec.spec.variants import WITHOUT
from tests.docs.pages import is_writing
from tests.docs.reference import CONTAINER_VARIABLES, commands, examples, names, rewritten
from tests.support.user import ROOT

REFERENCE: Final = ROOT / "docs" / "reference"
GENERATED: Final = sorted(path for path in REFERENCE.glob("*.md") if names(path.read_text(encoding="utf-8")))
SCHEMA: Final = json_schema()
#: Without the tables of a variant, which have the keys and examples of the spec's.
DEFINITIONS: Final[Mapping[str, Any]] = {
    name: definition
    for name, definition in SCHEMA["definitions"].items()
    if name == "Variant" or not name.startswith("Variant")
}


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: str(path.name))
def test_generated_parts_are_those_of_the_code(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    if is_writing():
        path.write_text(rewritten(text), encoding="utf-8")
        return
    assert rewritten(text) == text, "run `ENVSPEC_WRITE_DOCS=1 python -m pytest tests/docs -k reference`"


# --- commands and variables ----------------------------------------------------------------------------------------


def test_every_command_is_on_its_page() -> None:
    found = names((REFERENCE / "commands.md").read_text(encoding="utf-8"))
    assert sorted(found) == sorted(["commands", *(f"command {words}" for words, _ in commands(cli))])


COMMANDS: Final = dict(commands(cli))


@pytest.mark.parametrize("words", COMMANDS)
def test_examples_have_options_of_their_command(words: str) -> None:
    """A pipe and what follows it is for the shell. Examples are not wrapped."""
    assert max(map(len, COMMANDS[words].get_help(click.Context(COMMANDS[words], info_name=words)).splitlines())) <= 80
    for example, _ in examples(COMMANDS[words]):
        arguments = shlex.split(re.split(" [|<>] ", example)[0])[1:]
        assert arguments[: len(words.split())] == words.split()
        context = click.Context(COMMANDS[words], info_name=words)
        COMMANDS[words].make_parser(context).parse_args(arguments[len(words.split()) :])


#: Variables of the environment that are read and that no user sets for envspec.
_INTERNAL: Final = {
    *("PATH", "HOME", "USER", "LOGNAME", "USERNAME", "TERM", "COLORTERM", "LD_LIBRARY_PATH"),
    # Of the shell's own standards, and of processes that envspec or torchrun starts.
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_DIRS", "JUPYTER_CONFIG_PATH", "GIT_CONFIG_COUNT"),
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "MACOSX_DEPLOYMENT_TARGET", "FLASHINFER_DISABLE_JIT"),
    *("ENVSPEC_GIT_USER", "ENVSPEC_GIT_PASSWORD"),
}


def test_every_variable_is_in_a_table() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "envspec").rglob("*.py"))
    read = {
        *re.findall(r"""environ(?:\.get\(|\[)"([A-Z_]+)\"""", sources),
        *re.findall(r"\bENVSPEC_[A-Z]+_[A-Z_]*[A-Z]\b", sources),
    }
    tables = (*OWN_VARIABLES, *OTHER_VARIABLES, *CONTAINER_VARIABLES)
    known = {name for each in tables for name in each.names} | {each.variable for each in SETTINGS}
    assert read - known - _INTERNAL == set()
    assert len(read & known) > 30


# --- examples of keys ----------------------------------------------------------------------------------------------

#: Definition -> where it is in a spec; `*` is an item of a list, `NAME` a key of the reader's.
PLACES: Final = {
    "Env": "env",
    "Cuda": "cuda",
    "CudaTarget": "cuda.platform.linux-64",
    "Pip": "pip",
    "PipBuild": "pip.build",
    "Override": "pip.overrides.*",
    "IndexSection": "pip.index.*",
    "BuildSection": "build.flash-attn",
    "Conda": "conda",
    "CondaPlatform": "conda.platform.linux-64",
    "System": "system",
    "Services": "services",
    "Jupyter": "services.jupyter",
    "Tensorboard": "services.tensorboard",
    "Ssh": "services.ssh",
    "ImageSection": "image",
    "RegistrySection": "registry",
    "ConformanceSection": "conformance",
    "ExportSection": "export",
}
#: What an example needs beside it.
_BASE: Final = '[image]\nbase = "docker.io/library/debian:12"\nglibc = "2.36"\npython = "3.11.2"\n'
BESIDE: Final[Mapping[tuple[str, str], str]] = {
    **{
        ("Pip", key): '[pip]\nfrom = "uv.lock"\n'
        for key in ("extras", "groups", "without_groups", "default_groups", "members")
    },
    ("Conda", "only"): '[conda]\nchannels = ["conda-forge", "https://conda.example.com/channel"]\n',
    ("Cuda", "platform"): 'platforms = ["linux-64", "linux-aarch64"]\n',
    ("Override", "remove"): '[[pip.overrides]]\nrequirement = "numpy"\n',
    **{("ImageSection", key): _BASE for key in ("base", "glibc", "python", "os", "packages")},
}


def is_table(value: Mapping[str, Any]) -> bool:
    """Whether the key's own keys have the examples."""
    inner = [value, value.get("items", {}), *value.get("anyOf", ()), *value.get("allOf", ())]
    return any("$ref" in each or "allOf" in each or "examples" in each for each in inner)


def examples_of_keys() -> Iterator[object]:
    for name, definition in DEFINITIONS.items():
        for key, value in definition["properties"].items():
            # Other keys of a variant, and their examples, are the spec's.
            for at, example in enumerate(value.get("examples", ()) if name != "Variant" or key == WITHOUT else ()):
                yield pytest.param(name, key, example, id=f"{name}-{key}-{at}")


def test_every_key_has_an_example() -> None:
    without = [
        f"{name}.{key}"
        for name, definition in DEFINITIONS.items()
        for key, value in definition["properties"].items()
        if not value.get("examples") and not is_table(value)
    ]
    assert without == []
    assert all(SCHEMA["properties"][key]["examples"] for key in ("dependencies_from", "build", "variants"))


@pytest.mark.parametrize(("name", "key", "example"), list(examples_of_keys()))
def test_examples_are_accepted(name: str, key: str, example: Any) -> None:
    value = DEFINITIONS[name]["properties"][key]
    if value.get("format") == "date":
        example = date.fromisoformat(example)
    document = documents.parse_toml('[env]\nname = "small"\npython = "3.11"\n' + BESIDE.get((name, key), ""))
    if name == "Variant":
        document |= {"pip": {"dependencies": example}, "variants": {"cpu": {key: example}}}
    elif name in PLACES:
        table = at(document, PLACES[name].split("."))
        for each in DEFINITIONS[name].get("required", ()):
            table.setdefault(each, DEFINITIONS[name]["properties"][each]["examples"][0])
        table[key] = example
    else:
        facts = next(key for key, each in DEFINITIONS["AddedFacts"]["properties"].items() if name in str(each))
        document["facts"] = {facts: [{**row_of(facts), key: example}]}
    spec = parse_spec(tomlkit.dumps(document), "spec.toml", datetime(2026, 11, 20, 12, tzinfo=timezone.utc))
    assert spec.env.name


def at(document: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """The table at a path, which is made if it is missing."""
    for step, following in zip(path, [*path[1:], ""], strict=True):
        if step != "*":
            made: Any = [{}] if following == "*" else {}
            document = document.setdefault(step, made)
            document = document[0] if isinstance(document, list) else document
    return document


@cache
def rows() -> list[tuple[str, dict[str, Any]]]:
    """Every table and row of envspec's own."""
    found = [documents.parse_toml(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.toml"))]
    return [(table, row) for each in found for table in each if isinstance(each[table], list) for row in each[table]]


def row_of(table: str) -> dict[str, Any]:
    """The row with the most keys."""
    return max((row for name, row in rows() if name == table), key=len)


# --- keys of a lock ------------------------------------------------------------------------------------------------

_KEYS: Final = re.compile(r"^<!-- keys: (?P<name>\w+) -->\n(?P<table>(?:\|.*\n)+)", re.MULTILINE)


def test_every_key_of_a_lock_is_on_its_page() -> None:
    page = (REFERENCE / "lock.md").read_text(encoding="utf-8")
    found = {
        match["name"]: [
            (cells[0].strip("` "), re.sub(r": \[[^]]*\]\(#[^)]*\)", "", cells[1].strip()))
            for cells in (line[1:].split("|") for line in match["table"].splitlines()[2:])
        ]
        for match in _KEYS.finditer(page)
    }
    header = found.pop("header")
    assert found == {kind.__name__: keys_of(kind) for kind in tables_below(Lock)}
    assert {key for key, _ in header} == {*Header._fields, "requires_envspec"}


def tables_below(kind: type) -> set[type]:
    """The types of all tables of a lock, but for reasons: their keys depend on their codes."""
    found: set[type] = set()
    left: list[object] = [kind, Target]
    while left:
        hint = left.pop()
        left += get_args(hint)
        if not isinstance(hint, type) or hint is Reason or hint in found:
            continue
        if issubclass(hint, Struct) or dataclasses.is_dataclass(hint):
            found.add(hint)
            hints = get_type_hints(hint)
            left += [hints[field] for field, _ in _columns(hint).values()]
    return found


def keys_of(kind: type) -> list[tuple[str, str]]:
    """The keys that the writer can write, each with its type in words."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for key, (field, codec) in _columns(kind).items():
        required = ", required" if codec.default is NODEFAULT else ""
        found.append((key, type_of(hints[field]) + required))
    return found


def type_of(hint: Any) -> str:
    simple = {
        str: "string",
        int: "integer",
        bool: "true or false",
        datetime: "time",
        Platform: "platform",
        Unbuilt: "string",
        tuple[int, int]: "version",
        tuple[tuple[str, str], ...]: "table of strings",
        Annotated[int | None, "all"]: "integer or `all`",
    }
    if hint in simple:
        return simple[hint]
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        return "list of strings" if type_of(inner[0]) == "string" else "list of tables"
    return type_of(inner[0]) if inner else "table"
