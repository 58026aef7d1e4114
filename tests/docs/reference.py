"""What the pages of docs/reference/ have from the code: the keys of a spec, the commands, the exit codes, variables.

A page has it between `<!-- generated: NAME -->` and `<!-- end -->`. All else on the page is written by hand.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import click

from envspec.cli.main import cli
from envspec.conformance.hardware import TEGRA
from envspec.diagnostics.error_pages import error_pages
from envspec.errors import EXIT_CODES
from envspec.facts.gpu import ComputeCapability, Runs, capability_of, first_driver, runs
from envspec.facts.tables import GpuCodeRow, GpuRow, TorchRelease, load_facts, numeric, ranges_text
from envspec.facts.torch import Machines, builds_for, cuda_builds
from envspec.lockfile.toml_writer import bare_key
from envspec.models import CudaVersion, Platform
from envspec.settings import OTHER_VARIABLES, OWN_VARIABLES, SETTINGS, Variable
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
    """Text of the code on a page: options are code; what Markdown would read as a column or as HTML is escaped."""
    plain = [
        part if at % 2 else re.sub(r"(?<!\S)(--[a-z][a-z-]*(?:=[\w=-]+)?)", r"`\1`", part.replace("<", "\\<"))
        for at, part in enumerate(text.split("`"))
    ]
    return "`".join(plain).replace("|", "\\|").replace("\n", " ")


# --- keys of a spec -------------------------------------------------------------------------------------------------

#: Where the rules of a section or of a key are.
_RULES: Final[Mapping[str, str]] = {
    "[env]": "[dates and updates](specs.md#dates-and-updates), [Python and pyproject.toml](specs.md#pyprojecttoml)",
    "[cuda]": "[GPUs and driver](specs.md#gpus-and-driver)",
    "[pip]": "[on top of a system's packages](specs.md#on-top-of-a-systems-packages)",
    "[[pip.index]]": "[CUDA extensions](specs.md#cuda-extensions)",
    "[build.NAME]": "[packages compiled for torch](specs.md#packages-compiled-for-torch)",
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
            keys = (
                "Every key of a spec except `[facts]`, `[env] name`, `as_of` and `package_as_of`; `false` as the value "
                "of a key or table removes the spec's (`cuda = false`). And:\n\n" + keys
            )
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


#: TOML's own dates and times are accepted too, which JSON schema lacks.
_WITH_DATES: Final = {"as_of": "date, time or string", "package_as_of": "table of dates, times or strings"}


def _value(key: str, value: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """What a key takes, and its default."""
    default = value.get("default")
    text = _WITH_DATES.get(key) or _kind(value, default)
    if key in node.get("required", ()):
        return f"{text}, required"
    if default in (None, [], {}, "") or "(default)" in text:
        return text
    return f"{text}; default: `{toml(default)}`"


def _kind(value: Mapping[str, Any], default: object = None) -> str:
    if "enum" in value:
        return ", ".join(f'`"{one}"`' + (" (default)" if one == default else "") for one in value["enum"])
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
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
        return f"integer, {value['minimum']} to {value['maximum']}" if "maximum" in value else "integer"
    if value.get("format") == "date":
        return "date"
    return {"string": "string", "integer": "integer", "boolean": "`true` or `false`", None: "table"}[kind]


def _plural(kind: str) -> str:
    return {"string": "strings", "integer": "integers", "table": "tables"}.get(kind, kind)


# --- commands -------------------------------------------------------------------------------------------------------

#: Options of every command, which are on the page once.
_OF_EVERY_COMMAND: Final = ("quiet", "debug", "help")
#: A blank line's worth of columns between an example and what it is for.
_EXAMPLE: Final = re.compile(r"^(?P<command>envspec .*?)(?:  +(?P<purpose>\S.*))?$")


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """All commands below a command, with their words."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from commands(below, (*words, name))
    else:
        yield " ".join(words), command


def examples(command: click.Command) -> list[tuple[str, str]]:
    """The examples in a command's help, each with what it is for."""
    verbatim = [part for part in _paragraphs(command) if part.startswith("\b\n")]
    found = [_EXAMPLE.match(line) for part in verbatim for line in part.splitlines()[1:]]
    return [(match["command"], match["purpose"] or "") for match in found if match]


def _paragraphs(command: click.Command) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _commands(_: str) -> str:
    """Each command, with the first sentence of its help."""
    rows = []
    for words, command in commands(cli):
        first = " ".join(_paragraphs(command)[0].split())
        anchor = f"envspec-{words}".replace(" ", "-")
        rows.append([f"[`envspec {words}`](#{anchor})", cell(re.split(r"(?<=\.) ", first)[0])])
    return table(["command", "what it does"], iter(rows))


def _command(words: str) -> str:
    """The help of a command."""
    command = dict(commands(cli))[words]
    context = click.Context(command, info_name=f"envspec {words}")
    text = f"`{' '.join(['envspec', words, *command.collect_usage_pieces(context)]).strip()}`\n"
    for part in _paragraphs(command):
        if not part.startswith("\b\n"):
            text += f"\n{cell(part)}\n"
        elif examples(command):
            width = max(len(example) for example, _ in examples(command))
            lines = [
                f"{example:<{width}}   # {purpose}" if purpose else example for example, purpose in examples(command)
            ]
            text += f"\n<!-- not run: {_TESTED} -->\n```sh\n" + "".join(f"{line}\n" for line in lines) + "```\n"
        else:
            text += f"\n<!-- not run: {_TESTED} -->\n```toml\n{part.partition(chr(10))[2]}\n```\n"
    rows = [_option(each, context) for each in command.params if isinstance(each, click.Option)]
    rows = [row for row in rows if row]
    return text + (f"\n{table(['option', 'meaning'], iter(rows))}" if rows else "")


_TESTED: Final = "an example of the help, whose options a test compares with the command's"


def _option(option: click.Option, context: click.Context) -> list[str]:
    """A row; empty for an option of every command."""
    if option.name in _OF_EVERY_COMMAND or {"--quiet", "--debug"} & set(option.opts):
        return []
    value = option.make_metavar(context) if not (option.is_flag or option.count) else ""
    names = ", ".join(sorted(option.opts, key=len, reverse=True))
    meaning = option.help or ""
    if option.show_default and option.default is not None:
        meaning = f"{meaning.removesuffix('.')} (default: `{option.default}`)."
    if option.multiple and not re.search("(?i)once", meaning):
        meaning += " May be given more than once."
    return ["`" + f"{names} {value}".strip().replace("|", "\\|") + "`", cell(meaning)]


def _exit_codes(_: str) -> str:
    rows = ([str(code), cell(meaning)] for code, meaning in EXIT_CODES.items())
    return table(["exit code", "meaning"], rows)


def _errors(_: str) -> str:
    """Each code of an error, by exit code."""
    pages = sorted(error_pages(), key=lambda page: page.exit_code)
    link = "[{0}](../../envspec/data/errors/{0}.md)"
    return table(
        ["code", "exit code", "error"],
        ([link.format(page.code), str(page.exit_code), cell(page.summary)] for page in pages),
    )


# --- variables ------------------------------------------------------------------------------------------------------


#: Read by the services of an image.
CONTAINER_VARIABLES: Final = (
    Variable(
        ("JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE"),
        "Jupyter's token, or a file with it (default: a new token at each start, in the container's log)",
    ),
    Variable(
        ("SSH_AUTHORIZED_KEYS",),
        "Public keys for the user `envspec`, instead of a mounted `~/.ssh/authorized_keys`",
    ),
    Variable(("NB_PREFIX",), "The path below which JupyterLab answers; Kubeflow sets it (default: `/`)"),
)


def _variables(which: str) -> str:
    if which == "settings":
        rows = [
            [f"`{each.variable}`", f"`{each.key}`", cell(each.what), cell(each.default or "none")] for each in SETTINGS
        ]
        return table(["variable", "key of the file", "meaning", "default"], iter(rows))
    groups = {"own": OWN_VARIABLES, "other": OTHER_VARIABLES, "container": CONTAINER_VARIABLES}
    rows = [
        [
            ", ".join(f"`{name}`" for name in each.names),
            ", ".join(f"`{file}`" for file in each.files),
            cell(each.what),
        ]
        for each in groups[which]
    ]
    if any(row[1] for row in rows):
        return table(["variable", "without it", "used for"], iter(rows))
    return table(["variable", "meaning"], ([row[0], row[2]] for row in rows))


# --- GPUs, drivers and builds of torch ------------------------------------------------------------------------------

_FACTS_OF_ENVSPEC: Final = load_facts()
#: Compute capability -> its GPUs, the oldest first.
_GPUS: Final[dict[ComputeCapability, list[GpuRow]]] = {
    capability: list(rows)
    for capability, rows in groupby(sorted(_FACTS_OF_ENVSPEC.gpus, key=capability_of), capability_of)
}


def _gpus(_: str) -> str:
    """Each compute capability, the newest first."""
    rows = []
    for capability, gpus in reversed(_GPUS.items()):
        first = first_driver(_FACTS_OF_ENVSPEC, capability)
        driver = f"{first.version} (CUDA {first.cuda})" if first else "not recorded"
        rows.append([", ".join(gpu.name for gpu in gpus), str(capability), driver])
    return table(["GPUs", "compute capability", "first driver"], iter(rows))


def _newest_torch(platform: str) -> str:
    """The newest torch for each compute capability that has one: on the default index, and by CUDA's major version."""
    facts = _FACTS_OF_ENVSPEC
    families = sorted(facts.driver_families, key=lambda row: row.cuda, reverse=True)
    rows = []
    for capability, gpus in reversed(_GPUS.items()):
        machines = Machines(gpus=(gpus[0],))
        builds = [
            (release.version, cuda, cuda.variant == release.default.get(platform))
            for release in reversed(facts.torch)
            for cuda in builds_for(facts, release, Platform(platform), machines)
        ]
        if builds:
            default = _newest_of(build for build in builds if build[2])
            majors = [_newest_of(build for build in builds if build[1].major == row.cuda) for row in families]
            rows.append([str(capability), default, *majors])
    heads = [f"CUDA {row.cuda} (driver {row.minimum})" for row in families]
    return table(["compute capability", "default index", *heads], iter(rows))


def _newest_of(builds: Iterator[tuple[str, CudaVersion, bool]]) -> str:
    """The first build; none if there is none."""
    return next((f"{version}, CUDA {cuda}" for version, cuda, _ in builds), "none")


def _torch_builds(platform: str) -> str:
    """The CUDA builds of each torch, the newest first. Releases of a minor version with the same builds are one."""
    facts = _FACTS_OF_ENVSPEC

    def builds(release: TorchRelease) -> tuple[tuple[CudaVersion, bool, GpuCodeRow | None], ...]:
        return tuple(
            (cuda, cuda.variant == release.default.get(platform), code)
            for cuda in cuda_builds(facts, release, Platform(platform))
            for code in [facts.gpu_code_of(release.version, cuda.variant, Platform(platform))]
        )

    rows = []
    for (_, found), releases in groupby(reversed(facts.torch), lambda each: (numeric(each.version)[:2], builds(each))):
        versions = ", ".join(release.version for release in releases)
        for cuda, is_default, code in found:
            index = "default" if is_default else f"`{cuda.variant}`"
            rows.append([versions, str(cuda), index, _driver_of(cuda), *(_code(code) if code else ("unknown", ""))])
            versions = ""
    return table(["torch", "CUDA", "index", "oldest driver", "compute capabilities", "GPU code"], iter(rows))


def _conda_builds(channel: str) -> str:
    """The builds of pytorch on a conda channel; versions with the same code are one row."""
    of_channel = [row for row in _FACTS_OF_ENVSPEC.gpu_code if row.channel == channel]
    known = sorted({row.torch for row in of_channel}, key=numeric)
    rows = []
    for platform in sorted({row.platform for row in of_channel}):
        by_code: dict[tuple[str, ...], list[str]] = {}
        for row in (row for row in of_channel if row.platform == platform):
            cuda = CudaVersion.parse(row.variant)
            by_code.setdefault((str(cuda), _driver_of(cuda), *_code(row)), []).append(row.torch)
        rows += [[f"`{platform}`", ranges_text(versions, known), *key] for key, versions in reversed(by_code.items())]
    return table(["platform", "pytorch", "CUDA", "oldest driver", "compute capabilities", "GPU code"], iter(rows))


def _driver_of(cuda: CudaVersion) -> str:
    return _FACTS_OF_ENVSPEC.driver_of(str(cuda)).minimum


def _code(code: GpuCodeRow) -> tuple[str, str]:
    """The compute capabilities that run a build, and its code."""
    known = [str(capability) for capability in _GPUS if (capability.major, capability.minor) not in TEGRA]
    how = {text: runs(ComputeCapability.parse(text), code.sm, code.ptx) for text in known}
    text = ranges_text([each for each in known if how[each] is Runs.SASS], known)
    if by_ptx := [each for each in known if how[each] is Runs.PTX]:
        bundled = _FACTS_OF_ENVSPEC.driver_of(str(CudaVersion.parse(code.variant))).bundled
        text += f"; by PTX, with driver {bundled}: {ranges_text(by_ptx, known)}"
    parts = [f"sm {' '.join(target.removeprefix('sm_') for target in code.sm)}"]
    parts += [f"PTX {' '.join(target.removeprefix('compute_') for target in code.ptx)}"] if code.ptx else []
    return text, ", ".join(parts)


#: Kind of a generated part -> what makes its text of the words after it.
PARTS: Final[Mapping[str, Callable[[str], str]]] = {
    "spec": _spec,
    "facts": _facts,
    "commands": _commands,
    "command": _command,
    "exit-codes": _exit_codes,
    "errors": _errors,
    "variables": _variables,
    "gpus": _gpus,
    "newest-torch": _newest_torch,
    "torch-builds": _torch_builds,
    "conda-builds": _conda_builds,
}
