"""How single values of a spec are read: one function a kind of value, BadValue for what is none."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from envspec.credentials import has_secret_path, without_registry_login
from envspec.models import CudaVersion, Platform
from envspec.names import normalised
from envspec.origins import PYTORCH, origin_of
from envspec.spec.conda import (
    read_channel,
    read_conda_name,
    read_match_spec,
    read_preferred_record,
    read_virtual_value,
)
from envspec.spec.dates import Age, read_as_of, read_time
from envspec.spec.errors import BadValue, nearest, quoted, refuse_open_secrets
from envspec.spec.requirements import (
    Requirement,
    read_constraint,
    read_name,
    read_override,
    read_preference,
    read_requirement,
    read_sdist_name,
)

T = TypeVar("T")


class OfText:
    """The annotation of a value that `read` makes of text; `schema` is what JSON schema can say of that text."""

    def __init__(self, read: Callable[[str], object], **schema: object) -> None:
        self.read = read
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: object) -> object:
            if not isinstance(value, str):
                raise PydanticKnownError("string_type")
            return self.read(value)

        return core_schema.no_info_plain_validator_function(validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", **self.schema}


def matching(expression: str, problem: str, hint: str, **schema: object) -> OfText:
    """The annotation of text that has to match. problem: `is not ...`."""

    def read(text: str) -> str:
        if re.fullmatch(expression, text):
            return text
        raise BadValue(f"{quoted(text)} {problem}", hint)

    return OfText(read, **schema)


_ValueT = TypeVar("_ValueT", bound=Enum | str)


class OneOf:
    """The annotation of a key with a value of an Enum, or a text that is one of `values`. aliases: other names of
    the values. unsupported: what exists but is none of the values: its form, the problem and the hint.
    """

    def __init__(
        self,
        aliases: Mapping[str, str] | None = None,
        unsupported: Iterable[tuple[str, str, str]] = (),
        *,
        values: Iterable[str] = (),
    ) -> None:
        self.aliases = aliases or {}
        self.unsupported = tuple(unsupported)
        self.values = tuple(values)

    def __get_pydantic_core_schema__(self, source: type[Enum | str], handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: object) -> Enum | str:
            if not isinstance(value, str):
                raise PydanticKnownError("string_type")
            return self.read(source, value)

        values = self._values(source)
        return core_schema.no_info_plain_validator_function(validate, metadata={"values": values})

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": schema.get("metadata", {})["values"]}

    def _values(self, kind: type[Any]) -> list[str]:
        return [member.value for member in kind] if issubclass(kind, Enum) else list(self.values)

    def read(self, kind: type[_ValueT], text: str) -> _ValueT:
        """The value that `text` names; BadValue if it names none."""
        values = self._values(kind)
        if text in values:
            return kind(text)
        shown = ", ".join(f"`{value}`" for value in values)
        alias = self.aliases.get(text.lower())
        unsupported = () if alias else self.unsupported
        for form, problem, hint in unsupported:
            if re.fullmatch(form, text.lower()):
                raise BadValue(f"{quoted(text)} {problem}", f"{hint}; known: {shown}")
        if close := alias or nearest(text, values):
            raise BadValue(f"{quoted(text)} is unknown", f"did you mean `{close}`? Known: {shown}")
        raise BadValue(f"{quoted(text)} is unknown", f"known: {shown}")


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


ListOf = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]


# An OCI repository's name, so that the lock's folder and the image can be called the same on every system.
# Source: OCI distribution specification 1.1, "Pulling manifests", <name>.
_ENV_NAME: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"

#: A variant's, after the environment's and a `-`.
VARIANT: Final = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"


def _read_env_name(text: str) -> str:
    if (name := env_name(text)) == text:
        return text
    raise BadValue(
        f"{quoted(text)} can't name a folder and an image",
        f"lower-case letters and digits, joined by `.`, `_` or `-`, 64 at most: `{name}`",
    )


def env_name(text: str) -> str:
    """A name for an environment, as close to `text` as folders and images can have it."""
    if re.fullmatch(_ENV_NAME, text) and len(text) <= 64:
        return text
    mended = re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\.{2,}", "-", text.lower()))
    return re.sub(r"-?\.-|-\.", "-", mended).strip("-.")[:64].rstrip("-.") or "my-env"


# torch 1.8 to 2.4 have wheels for 3.8; nothing older is supported by uv.
_PYTHON: Final = r"3\.(?:[89]|[1-9]\d)(?:\.(?:0|[1-9]\d?))?"


def read_python(text: str) -> str:
    """A series (`3.11`) or an exact patch (`3.11.7`)."""
    if re.fullmatch(_PYTHON, text):
        return text
    raise BadValue(f"{quoted(text)} is not a supported Python", _python_hint(text))


def _python_hint(text: str) -> str:
    if re.fullmatch(r"3\.\d+(?:\.\d+)?t", text):
        return f'free-threaded builds are not supported; write "{text[:-1]}"'
    series = "3.10" if text == "3.1" else "3.11"
    if found := re.search(r"3\.(?:[89]|[1-9]\d)", text):
        series = found[0]
    return f'write one series, "{series}", or an exact patch such as "{series}.7"; 3.8 is the oldest'


_CUDA: Final = r"[1-9]\d\.\d{1,2}"
_GLIBC: Final = r"2\.[1-9]\d?"


def _read_cuda(text: str) -> CudaVersion:
    if re.fullmatch(_CUDA, text):
        return CudaVersion.parse(text)
    raise BadValue(f"{quoted(text)} is not a CUDA version", _cuda_hint(text))


def _cuda_hint(text: str) -> str:
    patch = re.fullmatch(r"([1-9]\d\.\d{1,2})\.\d+", text)
    if patch:
        return f'write "{patch[1]}": the patch release follows from the locked packages'
    variant = re.fullmatch(r"cu([1-9]\d)(\d)", text)
    if variant:
        return f'write "{variant[1]}.{variant[2]}"'
    # Only a mistake needs the facts.
    from envspec.facts import load_facts

    published = {name for row in load_facts().torch for name in row.published}
    minors = sorted(CudaVersion.parse(name) for name in published - {"cpu"})
    known = [minor for minor in minors if text == str(minor.major)] or minors
    listed = ", ".join(f'"{minor}"' for minor in known)
    return f"write the minor version too, in quotes; torch has builds for {listed}"


_DATES: Final = "write a date (2026-11-15) or a time (2026-11-15T12:00:00Z)"


def _read_time(value: object) -> datetime:
    return _dated(read_time, value, _DATES)


def _read_snapshot(value: object) -> datetime | Literal[False]:
    if value is False:
        return False
    return _dated(read_time, value, f"{_DATES}, or false for today's archive")


def _read_as_of(value: object) -> datetime | Age:
    return _dated(read_as_of, value, f'{_DATES}, or an age: "36 hours ago", "7 days ago", "2 weeks ago"')


def _dated(read: Callable[[object], T], value: object, hint: str) -> T:
    shown = ""
    if isinstance(value, str):
        shown = quoted(value)
    elif isinstance(value, date):
        shown = value.isoformat()
    try:
        return read(value)
    except OverflowError:
        raise BadValue(f"{shown} is outside the years 1 to 9999", "write a time in UTC") from None
    except ValueError:
        if isinstance(value, datetime):
            raise BadValue(f"{shown} has no timezone", f"write {shown}Z, which is UTC") from None
        raise BadValue(f"{shown} is not a date" if shown else "not a date", hint) from None


def _read_glibc(text: str) -> tuple[int, int]:
    if not re.fullmatch(_GLIBC, text):
        raise BadValue(f"{quoted(text)} is not a glibc version", 'write it as `ldd --version` prints it: "2.35"')
    return 2, int(text.partition(".")[2])


def read_index_url(text: str) -> str:
    """An index's address without a slash at its end; it may hold credentials."""
    shown = quoted(text)
    refuse_open_secrets(text)
    try:
        parts = urlsplit(text)
        reachable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        reachable = False
    if not reachable or re.search(r"\s", text):
        raise BadValue(f"{shown} is not an index's address", "write it as `https://host/simple`")
    if parts.query or parts.fragment:
        raise BadValue(
            f"{shown} has a query or a fragment", "an index's address ends with its path: `https://host/simple`"
        )
    if has_secret_path(parts.path):
        raise BadValue(
            f"the path of {shown} has a part that looks like a token",
            "write it as a login, `https://${TOKEN}@host/simple`: what is in a path is written into the lock",
        )
    return text.rstrip("/")


def _read_origin(text: str) -> str:
    """The origin of an index's files: scheme, host and port, in the form in which origins are compared."""
    if not text or origin_of(text) != text.lower() or not text.startswith(("http://", "https://")):
        raise BadValue(
            f"{quoted(text)} is not the origin of files", "write scheme and host, without a path: `https://files.corp`"
        )
    return text.lower()


# Indexes that envspec names itself: the default one, a wheel named by URL, PyTorch's per CUDA version.
_RESERVED: Final = ("default", "url")


def _read_index_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", text):
        raise BadValue(f"{quoted(text)} can't name an index", "lower-case letters, digits and `-`")
    if text in _RESERVED or text.startswith(PYTORCH):
        raise BadValue(f"{quoted(text)} is envspec's own name for an index", f'choose another: "corp-{text}"')
    return text


def read_pattern(text: str) -> str:
    """A name, or a pattern of names in which `*` stands for any text, normalised as PEP 503 does."""
    if len(text) > 100 or not re.fullmatch(r"[A-Za-z0-9*](?:[A-Za-z0-9._*-]*[A-Za-z0-9*])?", text):
        raise BadValue(f"{quoted(text)} is not a name or a pattern of names", 'write "corp-utils" or "corp-*"')
    return normalised(text)


def _read_image(text: str) -> str:
    host = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?"
    repository = rf"(?:{host}/)?{_ENV_NAME}(?:/{_ENV_NAME})*"
    if re.fullmatch(rf"{repository}(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", text, re.ASCII):
        return text
    if "@" in re.sub(r"@sha256:.*", "", text):
        hint = "the text before an `@` is a login: run `docker login HOST`, and write the image alone"
        raise BadValue(f"{quoted(without_registry_login(text))} does not name an image", hint)
    hint = (
        "write `registry/repository:tag`, best with the digest: `registry.corp/cuda@sha256:` and 64 hexadecimal digits"
    )
    raise BadValue(f"{quoted(text)} does not name an image", hint)


def _one_or_several(value: object) -> object:
    if isinstance(value, str):
        return (read_name(value),)
    if not isinstance(value, list):
        raise BadValue(
            "neither a name nor a list of names", 'write "msgpack", or [] for a package without Python in it'
        )
    return tuple(value)


def _read_word(text: str) -> str:
    if not text or text != text.strip() or not text.isprintable():
        raise BadValue(f"{quoted(text)} is blank, or has blanks around it", "write the plain word")
    return text


def _read_project_path(text: str) -> str:
    # Imports the parsers of archives, which few specs need.
    from envspec.io.archives import path_problem

    path = posixpath.normpath(_read_word(text))
    inner = path.removeprefix("../")
    if inner not in (".", "..") and (why := path_problem(inner)):
        raise BadValue(f"{quoted(text)} {why}", 'write a path from the spec\'s folder on: "src", "../src"')
    return path


def _read_build_requirement(text: str) -> Requirement:
    requirement = read_requirement(text)
    if requirement.url is not None:
        raise BadValue(f"{quoted(text)} has a URL", "require it by name: builds get their requirements from indexes")
    return requirement


def _read_host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?(?:/[a-z0-9._/-]+)?", text):
        named = quoted(without_registry_login(text))
        raise BadValue(f"{named} is not a registry", 'write its host, without `https://`: "registry.corp:5000"')
    return text


def _read_world_size(value: object) -> int | None:
    if value == "all":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise BadValue("neither a number of GPUs nor all of them", 'write an integer from 1 on, or "all"')


EnvName = Annotated[str, OfText(_read_env_name, pattern=f"^{_ENV_NAME}$", maxLength=64)]
PythonVersion = Annotated[str, OfText(read_python, pattern=f"^{_PYTHON}$")]
ExactPython = Annotated[
    str,
    matching(
        rf"(?=\d+\.\d+\.){_PYTHON}",
        "is not an exact Python",
        "write the patch release too, as `docker run --rm IMAGE python3 --version` prints it",
        pattern=r"^3\.\d{1,2}\.\d{1,2}$",
    ),
]
DriverVersion = Annotated[
    str,
    matching(
        r"[1-9]\d{2}(?:\.\d{1,3}){0,2}",
        "is not an NVIDIA driver",
        'write its branch, "535", or the version that nvidia-smi prints, "535.104.05"',
        pattern=r"^[1-9]\d{2}(?:\.\d{1,3}){0,2}$",
    ),
]
CudaMinor = Annotated[CudaVersion, OfText(_read_cuda, pattern=f"^{_CUDA}$")]
Time = Annotated[datetime, PlainValidator(_read_time), WithJsonSchema({"type": "string"})]
Snapshot = Annotated[
    datetime | Literal[False],
    PlainValidator(_read_snapshot),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"const": False}]}),
]
AsOf = Annotated[datetime | Age, PlainValidator(_read_as_of), WithJsonSchema({"type": "string"})]
DatedName = Annotated[
    str, matching(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?", "is not a package's name", 'write "numpy"')
]
Glibc = Annotated[tuple[int, int], OfText(_read_glibc, pattern=f"^{_GLIBC}$")]
RequirementText = Annotated[Requirement, OfText(read_requirement)]
BuildRequirementText = Annotated[Requirement, OfText(_read_build_requirement)]
ConstraintText = Annotated[Requirement, OfText(read_constraint)]
PreferenceText = Annotated[Requirement, OfText(read_preference)]
OverrideText = Annotated[Requirement, OfText(read_override)]
PackageName = Annotated[str, OfText(read_name)]
SdistName = Annotated[str, OfText(read_sdist_name)]
#: Of an extra, a group or a member; `*` for all.
SelectedName = SdistName
IndexName = Annotated[str, OfText(_read_index_name)]
Origin = Annotated[str, OfText(_read_origin, pattern="^https?://")]
IndexUrl = Annotated[str, OfText(read_index_url, pattern="^https?://")]
NamePattern = Annotated[str, OfText(read_pattern)]
ImageReference = Annotated[str, OfText(_read_image)]
SystemName = Annotated[
    str, matching(r"[a-z]+[0-9]+(?:\.[0-9]+)?", "is not the name of a system", 'write it like "debian12"')
]
Folder = Annotated[
    str, matching(r"/[^\0\n]*", "is not a folder of the image", 'write a whole path: "/workspace"', pattern="^/")
]
SharedPath = Annotated[
    str,
    matching(
        r"[^/\0-\x1f\x7f\\][^\0-\x1f\x7f\\]*",
        "is not a path in site-packages, nor a package",
        'write "cv2/__init__.py", "cv2/*" or "opencv-python"',
    ),
]
ListFile = Annotated[
    str, matching(r"[^/\0\n\\][^\0\n\\]*", "is not the path of a file beside the spec", 'write "colab.json"')
]
AptPackage = Annotated[
    str,
    # Source: Debian Policy 5.6.1 (names) and 5.6.12 (versions).
    matching(
        r"[a-z0-9][a-z0-9+.-]+(?:=[A-Za-z0-9.+~:-]+)?",
        "is not a package of apt's",
        'write "git", or "git=1:2.43.0-1" for one version',
    ),
]
ChannelText = Annotated[str, OfText(read_channel)]
PreferredRecord = Annotated[str, OfText(read_preferred_record)]
MatchSpec = Annotated[str, OfText(read_match_spec)]
CondaName = Annotated[str, OfText(read_conda_name, pattern=r"^[a-z0-9_][a-z0-9_.-]*$")]
PyPINames = Annotated[
    tuple[PackageName, ...],
    BeforeValidator(_one_or_several),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
VirtualName = Annotated[
    str,
    matching(
        r"(?=.{1,100}$)__[a-z][a-z0-9_]*",
        "is not the name of a virtual package",
        'two underscores and lower-case letters: "__linux"',
        pattern="^__[a-z][a-z0-9_]*$",
    ),
]
VirtualValue = Annotated[str, OfText(read_virtual_value)]
Word = Annotated[str, OfText(_read_word)]
ProjectPath = Annotated[str, OfText(_read_project_path)]
EnvVariable = Annotated[str, matching(r"[^\0]*", "has a NUL character, which no environment can carry", "remove it")]
Argument = Annotated[str, matching(r"(?s:[^\0]*)", "has a NUL character, which no argument can contain", "remove it")]
VariableName = Annotated[
    str,
    matching(
        r"[A-Za-z_][A-Za-z0-9_]*", "can't name an environment variable", "letters, digits and `_`, no digit first"
    ),
]
RegistryHost = Annotated[str, OfText(_read_host)]
WorldSize = Annotated[
    int | None,
    PlainValidator(_read_world_size),
    WithJsonSchema({"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}]}),
]

# Other tools' words for a platform: docker's, Python's, Rust's.
PLATFORM_ALIASES: Final = {
    "linux": "linux-64",
    "linux-x86_64": "linux-64",
    "linux-x86-64": "linux-64",
    "linux/amd64": "linux-64",
    "linux-amd64": "linux-64",
    "x86_64": "linux-64",
    "linux-arm64": "linux-aarch64",
    "linux/arm64": "linux-aarch64",
    "aarch64": "linux-aarch64",
    "macos": "osx-arm64",
    "macos-arm64": "osx-arm64",
    "darwin-arm64": "osx-arm64",
    "windows": "win-64",
    "win32": "win-64",
    "win-amd64": "win-64",
    "windows-64": "win-64",
}

_UNSUPPORTED_PLATFORMS: Final = (
    (
        r"(?:osx|macos|darwin)-(?:64|x86_64|amd64|intel)",
        "is not supported: Macs with Intel processors have no CUDA, and torch has had no wheels for them since 2.3",
        "remove it; Macs with Apple silicon are `osx-arm64`",
    ),
    (r"(?:linux|win|windows)-(?:32|ppc64le|s390x|riscv64|armv\dl?|arm64)", "is not supported", "remove it"),
)
PlatformName = Annotated[Platform, OneOf(PLATFORM_ALIASES, _UNSUPPORTED_PLATFORMS)]

#: Systems of NVIDIA's images and of others that are none of `Os`.
UNSUPPORTED_SYSTEMS: Final = (
    (
        r"(?:ubuntu|(?:debian|ubi|rhel|rocky(?:linux)?|alma(?:linux)?|centos|fedora|opensuse|sles)-?)\d[\d.]*",
        "is not supported",
        "for a base image of your own with that system, set [image] base, and glibc as its `ldd --version` prints it",
    ),
)


def _read_platform_key(text: str) -> Enum:
    return OneOf(PLATFORM_ALIASES).read(Platform, text)


_PLATFORMS: Final = "|".join(platform.value for platform in Platform)
#: A platform as the key of a table; JSON schema describes keys by a pattern.
PlatformKey = Annotated[Platform, OfText(_read_platform_key, pattern=f"^(?:{_PLATFORMS})$")]


def _read_subdir(text: str) -> str:
    return text if text == "noarch" else OneOf(PLATFORM_ALIASES).read(Platform, text).value


#: A part of a conda channel.
Subdir = Annotated[str, OfText(_read_subdir, pattern=f"^(?:noarch|{_PLATFORMS})$")]
Subdirs = Annotated[tuple[Subdir, ...], Field(min_length=1), BeforeValidator(_as_tuple)]
