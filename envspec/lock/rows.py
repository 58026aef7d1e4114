"""The tables of envspec.lock, column by column, in the order in which they are written."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from envspec.lock.row import (
    FLAG,
    LEVEL,
    MOMENT,
    NUMBER,
    OPTIONAL_MOMENT,
    OPTIONAL_NUMBER,
    OPTIONAL_PLATFORM,
    OPTIONAL_TEXT,
    PAIRS,
    PLATFORM,
    TEXT,
    TEXT_OR_EMPTY,
    TEXTS,
    Kind,
    Row,
    optional_table,
    table,
    tables,
)
from envspec.model import (
    Asker,
    BaseImage,
    BuiltWheel,
    ChannelPart,
    CondaChannel,
    CondaPackage,
    Conformance,
    Decision,
    Driver,
    GpuCode,
    ImageId,
    ImageSettings,
    NamedIndex,
    Package,
    PinnedDigest,
    Provided,
    Python,
    Refusal,
    Service,
    SystemLayer,
    Target,
    WheelFile,
)


class OwnMoment(NamedTuple):
    """A package with a moment of its own; equal to the model's pair."""

    name: str
    as_of: datetime


OWN_MOMENT: Final = Row(OwnMoment, (("name", TEXT), ("as_of", MOMENT)))

DECISION: Final = Row(
    Decision,
    (
        ("what", TEXT),
        ("platform", OPTIONAL_PLATFORM),
        ("value", TEXT),
        ("why", TEXT),
        ("source", TEXT_OR_EMPTY),
    ),
)

_DIGEST: Final = Row(
    PinnedDigest,
    (
        ("platform", PLATFORM),
        ("digest", OPTIONAL_TEXT),
        ("source", TEXT),
        ("kind", TEXT_OR_EMPTY),
        ("note", TEXT_OR_EMPTY),
    ),
)

BASE_IMAGE: Final = Row(
    BaseImage,
    (
        ("repository", TEXT),
        ("tag", TEXT),
        ("cuda_release", OPTIONAL_TEXT),
        ("flavor", OPTIONAL_TEXT),
        ("os", TEXT),
        ("digests", tables(_DIGEST)),
    ),
)

DRIVER: Final = Row(Driver, (("minimum", TEXT), ("bundled", OPTIONAL_TEXT), ("why", TEXT), ("source", TEXT)))

GPU_CODE: Final = Row(
    GpuCode,
    (
        ("package", TEXT),
        ("version", TEXT),
        ("platform", PLATFORM),
        ("variant", TEXT),
        ("sm", TEXTS),
        ("ptx", TEXTS),
        ("source", TEXT),
    ),
)

_SERVICE: Final = Row(Service, (("name", TEXT), ("port", NUMBER), ("logdir", OPTIONAL_TEXT)))

IMAGE: Final = Row(
    ImageSettings,
    (
        ("workdir", TEXT),
        ("env", PAIRS),
        ("compiler", TEXT),
        ("apt", TEXTS),
        ("snapshot", OPTIONAL_MOMENT),
        ("services", tables(_SERVICE)),
    ),
)

SYSTEM_LAYER: Final = Row(
    SystemLayer,
    (
        ("platform", PLATFORM),
        ("base", TEXT),
        ("apt", TEXTS),
        ("packages", TEXTS),
        ("diff_id", TEXT),
        ("digest", TEXT),
        ("size_bytes", NUMBER),
    ),
)

#: A number, or `all`.
_WORLD_SIZE: Final[Kind[int | None]] = Kind(
    lambda number: "all" if number is None else number, lambda item, key: item.number_or_all(key)
)

CONFORMANCE: Final = Row(Conformance, (("checks", TEXTS), ("world_size", _WORLD_SIZE)))

IMAGE_ID: Final = Row(ImageId, (("platform", PLATFORM), ("id", TEXT), ("pyc", FLAG)))

_PYTHON: Final = Row(Python, (("version", TEXT), ("source", TEXT), ("url", OPTIONAL_TEXT), ("sha256", OPTIONAL_TEXT)))

TARGET: Final = Row(Target, (("platform", PLATFORM), ("python", table(_PYTHON)), ("glibc", LEVEL), ("macos", LEVEL)))

_FILE: Final = Row(
    WheelFile,
    (
        ("index", TEXT),
        ("filename", TEXT),
        ("size_bytes", OPTIONAL_NUMBER),
        ("sha256", TEXT),
        ("url", OPTIONAL_TEXT),
    ),
)
_BUILT: Final = Row(BuiltWheel, (("filename", TEXT), ("size_bytes", NUMBER), ("sha256", TEXT)))
_ASKER: Final = Row(Asker, (("name", TEXT), ("requirement", TEXT)))
_REFUSAL: Final = Row(Refusal, (("version", TEXT), ("why", TEXT)))

PACKAGE: Final = Row(
    Package,
    (
        ("name", TEXT),
        ("version", TEXT),
        ("extras", TEXTS),
        ("uploaded", OPTIONAL_MOMENT),
        ("file", table(_FILE)),
        ("built", optional_table(_BUILT)),
        ("contents", OPTIONAL_TEXT),
        ("askers", tables(_ASKER)),
        ("newest", optional_table(_REFUSAL)),
    ),
)

_PROVIDED: Final = Row(Provided, (("name", TEXT), ("version", TEXT)))

CONDA_PACKAGE: Final = Row(
    CondaPackage,
    (
        ("name", TEXT),
        ("version", TEXT),
        ("build", TEXT),
        ("build_number", NUMBER),
        ("channel", TEXT),
        ("subdir", TEXT),
        ("filename", TEXT),
        ("url", TEXT),
        ("sha256", TEXT),
        ("md5", OPTIONAL_TEXT),
        ("size_bytes", OPTIONAL_NUMBER),
        ("timestamp_ms", OPTIONAL_NUMBER),
        ("depends", TEXTS),
        ("constrains", TEXTS),
        ("noarch", TEXT_OR_EMPTY),
        ("license", OPTIONAL_TEXT),
        ("license_family", OPTIONAL_TEXT),
        ("features", OPTIONAL_TEXT),
        ("track_features", TEXTS),
        ("python_site_packages_path", OPTIONAL_TEXT),
        ("provides", tables(_PROVIDED)),
        ("askers", tables(_ASKER)),
        ("newest", optional_table(_REFUSAL)),
    ),
)

_PART: Final = Row(ChannelPart, (("rows", NUMBER), ("sha256", TEXT)))

CHANNEL: Final = Row(CondaChannel, (("name", TEXT), ("url", TEXT), ("part", optional_table(_PART))))

INDEX: Final = Row(NamedIndex, (("name", TEXT), ("url", TEXT), ("packages", TEXTS), ("undated", FLAG)))
