"""`[facts]` rows of a spec, in the form of the rows of `envspec/data`, and the JSON schema of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import Field, create_model

from envspec.facts import tables as rows
from envspec.facts.tables import FactRow
from envspec.models import Platform
from envspec.spec import values as f
from envspec.spec.errors import BadValue, quoted
from envspec.spec.requirements import read_name, read_requirement
from envspec.spec.sections import NoFacts, Section, Spec
from envspec.spec.values import VARIANT
from envspec.spec.variants import SHARED, WITHOUT

#: What a key means, and an example.
_KEYS: Final[Mapping[str, tuple[str, Any]]] = {
    "source": ("Where the fact comes from.", "data sheet of the vendor, 2026-11"),
    "read": ("The day on which the source was read.", "2026-11-20"),
    "confidence": ("high, medium or low; of an extension also unverified.", "medium"),
    "version": ("The exact version.", "2.9.1"),
    "default": ("For each platform, the variant on the default index: cu128, cpu.", {"linux-64": "cu128"}),
    "variants": ("The variants on PyTorch's own indexes.", ["cpu", "cu126", "cu128"]),
    "unsure": ("Variants that someone reported there, and that no build matrix lists.", ["cu129"]),
    "uploaded": ("When it was uploaded.", "2025-11-12T15:00:00Z"),
    "created": ("When the image was made, as its config states it.", "2025-03-10T21:00:00Z"),
    "requires_python": ("The Python versions that its metadata allows.", ">=3.10"),
    "pythons": ("The Python series that have wheels.", ["3.10", "3.11"]),
    "cudart": ("Version of the CUDA runtime.", "12.8.90"),
    "cudnn": ("Version of cuDNN.", "9.10.2.21"),
    "nccl": ("Version of NCCL.", "2.27.5"),
    "torch": ("A version of torch, or a requirement on it.", "2.9.1"),
    "variant": ("The build: cu128, cpu.", "cu128"),
    "platform": ("A platform, by conda's name.", "linux-64"),
    "platforms": ("Platforms, by conda's names.", ["linux-64", "linux-aarch64"]),
    "gpu_code": ("The GPU code in its builds.", {"cu128": ["sm_80", "sm_90", "compute_120"]}),
    "sm": ("Machine code for these GPUs: sm_80.", ["sm_80", "sm_90"]),
    "ptx": ("Portable code: compute_120.", ["compute_120"]),
    "measured": ("Releases whose wheels were inspected.", ["2.9.1"]),
    "note": ("A comment.", "read of one wheel"),
    "name": ("The usual name.", "RTX 5090"),
    "aliases": ("Other names.", ["GeForce RTX 5090"]),
    "compute_capability": ("The compute capability, such as 9.0 for sm_90.", "12.0"),
    "first_cuda": ("The oldest CUDA version that compiles for it.", "12.8"),
    "cuda": ("A CUDA release (12.8.1) or minor version (12.8).", "12.8.1"),
    "minimum": ("The oldest driver that runs it.", "525.60.13"),
    "bundled": ("The driver that NVIDIA ships with the CUDA toolkit.", "570.124.06"),
    "os": ("Operating systems, as in `[cuda] os`.", ["ubuntu24.04"]),
    "tag": ("The tag, such as 12.8.1-base-ubuntu24.04.", "12.8.1-base-ubuntu24.04"),
    "digest": ("The digest, with its prefix sha256:.", "sha256:" + "0123456789abcdef" * 4),
    "kind": ("index: of a manifest list; manifest: of one platform.", "index"),
    "build": ("The release of the builds, as YYYYMMDD.", "20260814"),
    "url": ("URL of the file.", "https://downloads.example.com/python.tar.gz"),
    "sha256": ("SHA-256 of the file, in hexadecimal.", "0123456789abcdef" * 4),
    "package": ("The package's normalised name.", "flash-attn"),
    "versions": ("The versions to which the row applies, as a specifier.", ">=2.8,<3"),
    "requires": ("The requirements to add.", ["torch<2.15"]),
    "newer": ("An index that has newer releases than the default one.", "https://wheels.example.com/simple/"),
    "module": ("The module that Python imports.", "flash_attn"),
    "label": (
        "Form of the label, the local version of its wheels: {torch} is 2.8, {torch28} 28, {torch280} 280, {variant} "
        "cu128, {abi} TRUE or FALSE.",
        "{variant}torch{torch}cxx11abi{abi}",
    ),
    "pages": (
        "Pages on which the project publishes wheels; {version}, {torch} and {variant} are replaced.",
        ["https://wheels.example.com/torch-{torch}+{variant}.html"],
    ),
    "format": ("The format of its pages: links or simple, as in `[[pip.index]]`.", "simple"),
    "wheels": (
        "For each minor version of torch, the variants that the project publishes wheels for.",
        {"2.8": ["cu126", "cu128"]},
    ),
    "env": ("Environment variables of its build.", {"NVCC_THREADS": "1"}),
    "arch": ("The variable that contains the GPUs to build for.", "FLASH_ATTN_CUDA_ARCHS"),
    "arch_form": ("The form of GPUs in that variable: 8.0 or 80.", "80"),
    "archs": ("The GPU architectures that its sources compile for (default: any).", ["sm_80", "sm_90"]),
    "jobs": ("The variable that limits how many compilers run at the same time.", "CMAKE_BUILD_PARALLEL_LEVEL"),
    "serial": ("Whether its build runs only one compiler at a time.", True),
    "memory_mib": ("Memory in MiB: the sizes of a GPU's memory, or the need of one compiler.", 7168),
    "minutes": ("Minutes of one processor for a build for one GPU architecture.", 270),
    "base": ("SONAMEs of the libraries in its smallest installation.", ["libc.so.6"]),
    "packages": ("For each SONAME, the package that contains the library.", {"libGL.so.1": "libgl1"}),
    "contains": ("For each package, other packages of the table that it installs.", {"libgl-dev": ["libgl1"]}),
    "channel": ("The conda channel of the build (default: the project's own wheels).", "conda-forge"),
}

#: Examples of keys that are of another kind in this table.
_EXAMPLES: Final[Mapping[tuple[type[FactRow], str], Any]] = {
    (rows.CudaBuildRow, "cudnn"): 9,
    (rows.GpuCodeRow, "torch"): "2.9",
    (rows.GpuRow, "memory_mib"): [32607],
    (rows.PythonRow, "version"): "3.12.12",
    (rows.SystemLibrariesRow, "os"): "ubuntu24.04",
}


def _form(pattern: str, example: str) -> f.OfText:
    return f.matching(pattern, "has another form", f'write it like "{example}"', pattern=f"^(?:{pattern})$")


def _text_of(read: Callable[[str], object], example: str) -> f.OfText:
    """Text that `read` can read, as it is."""

    def check(text: str) -> str:
        try:
            read(text)
        except ValueError:
            raise BadValue(f"{quoted(text)} can't be read", f'write it like "{example}"') from None
        return text

    return f.OfText(check)


_PLATFORM: Final = _form("|".join(platform.value for platform in Platform), "linux-64")
_VARIANT: Final = _form(r"cpu|cu\d{3}|rocm\d+(?:\.\d+)*|xpu", "cu128")
_APT: Final = _form(r"[a-z0-9][a-z0-9.+-]+", "libgl1")
_SM: Final = _form(r"sm_\d{2,3}[af]?", "sm_90")
_DRIVER: Final = _form(r"\d+(?:\.\d+)*", "570.26")

#: The form of a text, or of the texts in a list, by the key's name: what other stages take for granted.
_FORMS: Final[Mapping[str, f.OfText]] = {
    "version": _text_of(Version, "2.9.1"),
    "versions": _text_of(SpecifierSet, ">=2.11,<3"),
    "requires": _text_of(read_requirement, "torch>=2.11"),
    "package": f.OfText(read_name),
    "variant": _VARIANT,
    "variants": _VARIANT,
    "unsure": _VARIANT,
    "platform": _PLATFORM,
    "platforms": _PLATFORM,
    "pythons": _form(r"3\.\d{1,2}t?", "3.11"),
    "compute_capability": _form(r"\d{1,2}\.\d", "9.0"),
    "sm": _SM,
    "archs": _SM,
    "ptx": _form(r"compute_\d{2,3}[af]?", "compute_120"),
    "cuda": _form(r"\d{2}\.\d{1,2}(?:\.\d+)?", "12.8.1"),
    "minimum": _DRIVER,
    "bundled": _DRIVER,
    "kind": _form("index|manifest", "index"),
    "digest": _form("sha256:[0-9a-f]{64}", "sha256:" + "0123456789abcdef" * 4),
    "sha256": _form("[0-9a-f]{64}", "0123456789abcdef" * 4),
    "build": _text_of(lambda text: datetime.strptime(text, "%Y%m%d").replace(tzinfo=timezone.utc), "20260814"),
    "url": _form(r"https?://\S+", "https://downloads.example.com/python.tar.gz"),
    "confidence": _form("high|medium|low|unverified", "high"),
    "format": _form("links|simple", "links"),
    "arch_form": _form(r"8\.0|80", "8.0"),
}

#: Tables inside a row, by the key's name: the form of their keys and values.
_INNER: Final[Mapping[str, Any]] = {
    "default": dict[Annotated[str, _PLATFORM], Annotated[str, _VARIANT]],
    "env": dict[str, str],
    "wheels": dict[
        Annotated[str, _form(r"\d+\.\d+", "2.8")], f.ListOf[Annotated[str, _form(r"cpu|cu\d{2,3}", "cu128")]]
    ],
    "packages": dict[str, Annotated[str, _APT]],
    "contains": dict[Annotated[str, _APT], f.ListOf[Annotated[str, _APT]]],
    "gpu_code": dict[
        Annotated[str, _VARIANT], f.ListOf[Annotated[str, _form(r"(?:sm|compute)_\d{2,3}[af]?", "sm_90")]]
    ],
}


def _annotation(key: str, hint: Any) -> Any:
    """A row's type as a spec's: lists for tuples, times with a time zone, text in its form."""
    if key in _INNER:
        return _INNER[key]
    if hint == datetime | None:
        return f.Time | None
    if hint == date | None:
        return date | None
    form = _FORMS.get(key)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if form:
            item = Annotated[item, form]
        return f.ListOf[item]  # type: ignore[valid-type]
    if form is None:
        return hint
    if hint is str:
        return Annotated[str, form]
    return Annotated[str, form] | None


def _field(field: FieldInfo, kind: type[FactRow]) -> Any:
    description, example = _KEYS[field.name]
    about: dict[str, Any] = {"description": description, "examples": [_EXAMPLES.get((kind, field.name), example)]}
    if field.default_factory is not NODEFAULT:
        return Field(default_factory=field.default_factory, **about)
    return Field(... if field.default is NODEFAULT else field.default, **about)


def _row_model(kind: type[FactRow]) -> type[Section]:
    hints = get_type_hints(kind)
    keys: dict[str, Any] = {
        field.name: (_annotation(field.name, hints[field.name]), _field(field, kind)) for field in fields(kind)
    }
    return create_model(kind.__name__, __base__=Section, **keys)


#: The tables of `[facts]`: what their rows are.
_TABLES: Final[Mapping[str, tuple[type[FactRow], str]]] = {
    "torch": (rows.TorchRelease, "Releases of torch, and their builds."),
    "gpu_code": (rows.GpuCodeRow, "The GPU code in builds of torch."),
    "gpu": (rows.GpuRow, "GPUs and their compute capability."),
    "digest": (rows.DigestRow, "Manifest digests of nvidia/cuda's tags."),
    "driver": (rows.DriverRow, "The Linux drivers of CUDA releases."),
    "cuda_build": (rows.CudaBuildRow, "The CUDA for which packages are built, if their metadata does not name it."),
    "extension": (rows.ExtensionRow, "Packages whose compiled code fits one build of torch, and how they are built."),
    "system_libraries": (rows.SystemLibrariesRow, "Which packages of Debian and Ubuntu contain which libraries."),
    "python": (rows.PythonRow, "Standalone builds of Python."),
}


_LISTS: Final[dict[str, Any]] = {
    table: (f.ListOf[_row_model(kind)], Field(default=(), description=description))  # type: ignore[misc]
    for table, (kind, description) in _TABLES.items()
}
AddedFacts: Final = create_model(
    "AddedFacts",
    __base__=NoFacts,
    __doc__="Rows that extend envspec's own data, each with its source.",
    **_LISTS,
)
_FACTS: Final[Any] = Field(
    default_factory=AddedFacts, description="Rows that extend envspec's own data, each with its source."
)
SpecWithFacts: Final = create_model(
    "SpecWithFacts", __base__=Spec, __doc__="One environment, as envspec locks it.", facts=(AddedFacts, _FACTS)
)


def json_schema() -> dict[str, Any]:
    """The schema as draft 7, which the TOML extensions of editors read."""
    schema = _plain(SpecWithFacts.model_json_schema(mode="validation", ref_template="#/definitions/{model}"))
    definitions = schema.pop("$defs")
    _add_variants(schema["properties"], definitions)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "envspec: spec.toml",
        **schema,
        "definitions": definitions,
    }


def _add_variants(sections: dict[str, Any], definitions: dict[str, Any]) -> None:
    """The schema of `[variants]`: a spec's sections, of which nothing is required, and `false` for one less."""
    env = definitions["Env"]
    properties = {key: value for key, value in env["properties"].items() if key not in SHARED}
    definitions["VariantEnv"] = {
        **_varied({**env, "properties": properties}, definitions),
        "description": "The keys of the environment that differ.",
    }
    descriptions = {field.alias or name: field.description for name, field in SpecWithFacts.model_fields.items()}
    parts = {}
    for key, value in sections.items():
        if key not in ("env", "facts", "variants"):
            parts[key] = {"description": descriptions[key], **_or_false(_varied(value, definitions))}
    definitions["Variant"] = {
        "type": "object",
        "description": "What differs from the spec itself.",
        "additionalProperties": False,
        "properties": {
            "env": {"$ref": "#/definitions/VariantEnv"},
            **parts,
            WITHOUT: {
                "type": "array",
                "items": {"type": "string"},
                "description": "Dependencies of the spec to remove, by name (PyPI's and conda's).",
                "examples": [["flash-attn"]],
            },
        },
    }
    sections["variants"] = {
        **sections["variants"],
        "patternProperties": {f"^{VARIANT}$": {"$ref": "#/definitions/Variant"}},
        "additionalProperties": False,
    }


def _varied(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema of a table as a variant may write it: no key is required, and `false` removes one of the spec.

    Adds those of the tables in it to `definitions`. Lists are replaced or extended: their items stay as they are.
    """
    if not isinstance(node, dict):
        return node
    if (reference := node.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        varied = f"Variant{name}"
        if varied not in definitions:
            definitions[varied] = _varied(definitions[name], definitions)
        return {**node, "$ref": f"#/definitions/{varied}"}
    node = {key: value for key, value in node.items() if key != "required"}
    for key in ("properties", "patternProperties"):
        if key in node:
            node[key] = {name: _or_false(_varied(inner, definitions)) for name, inner in node[key].items()}
    if isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _or_false(_varied(node["additionalProperties"], definitions))
    if "allOf" in node:
        node["allOf"] = [_varied(each, definitions) for each in node["allOf"]]
    return node


def _or_false(node: dict[str, Any]) -> dict[str, Any]:
    """A schema that also accepts `false`. What editors show of a key stays beside it."""
    if node.get("type") == "boolean" or {"const": False} in node.get("anyOf", ()):
        return node
    shown: dict[str, Any] = {}
    inner = dict(node)
    for key in ("description", "examples", "default"):
        if key in inner:
            shown[key] = inner.pop(key)
    return {**shown, "anyOf": [inner, {"const": False}]}


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
    elif options:
        node["anyOf"] = options
    if "patternProperties" in node:
        node["additionalProperties"] = False
    if "$ref" in node and len(node) > 1:
        node = {"allOf": [{"$ref": node.pop("$ref")}], **node}
    return node
