"""`[facts]`: rows that a spec adds to envspec's data, of the same form as the rows of `envspec/data`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from pydantic import Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema

from envspec.facts import rows
from envspec.facts.rows import Row
from envspec.spec import fields as f
from envspec.spec.section import Section

_KEYS: Final[Mapping[str, str]] = {
    "source": "Where the fact comes from.",
    "read": "The day on which the source was read.",
    "confidence": "high, medium or low.",
    "version": "The exact version.",
    "default": "For each platform, the variant on the default index: cu128, cpu.",
    "variants": "The variants on PyTorch's own indexes.",
    "unsure": "Variants that were reported there, and are in no build matrix.",
    "uploaded": "The moment of its upload.",
    "requires_python": "The Pythons that its metadata allows.",
    "pythons": "The Python series that have wheels.",
    "cudart": "Version of the CUDA runtime.",
    "cudnn": "Version of cuDNN.",
    "nccl": "Version of NCCL.",
    "cublas": "Version of cuBLAS.",
    "torch": "A version of torch, or what is asked of it.",
    "variant": "The build: cu128, cpu.",
    "platform": "A platform, as conda calls it.",
    "platforms": "Platforms, as conda calls them.",
    "gpu_code": "The GPU code in its builds.",
    "sm": "Machine code for these GPUs: sm_80.",
    "ptx": "Portable code: compute_120.",
    "measured": "Releases whose wheels were asked themselves.",
    "note": "What else is to be said.",
    "name": "The name that people use.",
    "aliases": "Other names.",
    "compute_capability": "Such as 9.0 for sm_90.",
    "first_cuda": "The oldest CUDA version that compiles for it.",
    "memory_mib": "Memory sizes, in MiB.",
    "cuda": "A CUDA release (12.8.1) or minor version (12.8).",
    "minimum": "The oldest driver that runs it.",
    "bundled": "The driver that the release ships with.",
    "flavors": "The flavors that exist.",
    "os": "The systems that exist.",
    "status": "supported, ended or unknown.",
    "tag": "The tag, such as 12.8.1-base-ubuntu24.04.",
    "digest": "The digest, from sha256: on.",
    "kind": "index for a manifest list, manifest for one platform's.",
    "build": "The release it belongs to, as YYYYMMDD.",
    "url": "Where the file is.",
    "sha256": "SHA-256 of the file, in hexadecimal.",
    "package": "The package's normalised name.",
    "versions": "The versions that are meant, as a specifier.",
    "requires": "The requirements to add.",
    "reason": "Why.",
}


def _annotation(hint: Any) -> Any:
    """A row's type as a spec's: lists for tuples, and moments with their timezone."""
    if hint == datetime | None:
        return f.Moment | None
    if hint == date | None:
        return date | None
    return f.ListOf[get_args(hint)[0]] if get_origin(hint) is tuple else hint  # type: ignore[misc]


def _field(field: dataclasses.Field[Any]) -> Any:
    told = _KEYS.get(field.name)
    if field.default_factory is not dataclasses.MISSING:
        return Field(default_factory=field.default_factory, description=told)
    return Field(... if field.default is dataclasses.MISSING else field.default, description=told)


class RowOf:
    """The annotation of a row of the form `kind`."""

    def __init__(self, kind: type[Row]) -> None:
        hints = get_type_hints(kind)
        keys: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            keys[field.name] = (_annotation(hints[field.name]), _field(field))
        self.model: type[Section] = create_model(kind.__name__, __base__=Section, **keys)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self.model)


class Facts(Section):
    """Rows that extend envspec's own data, each with its source: nobody waits for a release."""

    torch: f.ListOf[Annotated[Section, RowOf(rows.TorchRelease)]] = Field(
        default=(), description="Releases of torch and their builds."
    )
    gpu_code: f.ListOf[Annotated[Section, RowOf(rows.GpuCodeRow)]] = Field(
        default=(), description="The GPU code in builds of torch."
    )
    edge: f.ListOf[Annotated[Section, RowOf(rows.EdgeRow)]] = Field(
        default=(), description="Requirements that a package's own metadata lacks."
    )
    gpu: f.ListOf[Annotated[Section, RowOf(rows.Gpu)]] = Field(
        default=(), description="GPUs and their compute capability."
    )
    digest: f.ListOf[Annotated[Section, RowOf(rows.DigestRow)]] = Field(
        default=(), description="Manifest digests of nvidia/cuda's tags."
    )
    driver: f.ListOf[Annotated[Section, RowOf(rows.DriverRow)]] = Field(
        default=(), description="The Linux drivers of CUDA releases."
    )
    image: f.ListOf[Annotated[Section, RowOf(rows.ImageRow)]] = Field(
        default=(), description="Tags of nvidia/cuda that exist."
    )
    parts: f.ListOf[Annotated[Section, RowOf(rows.PartsRow)]] = Field(
        default=(), description="Versions of the CUDA libraries of releases."
    )
    python: f.ListOf[Annotated[Section, RowOf(rows.PythonRow)]] = Field(
        default=(), description="Standalone builds of Python."
    )
    member: f.ListOf[Annotated[Section, RowOf(rows.MemberRow)]] = Field(
        default=(), description="What releases of the torch family ask of torch."
    )

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The rows as `envspec.facts.load_facts` takes them."""
        given = {table: getattr(self, table) for table in type(self).model_fields}
        return {
            table: [row.model_dump(exclude_unset=True) for row in listed] for table, listed in given.items() if listed
        }
