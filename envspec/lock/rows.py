"""The tables of envspec.lock, column by column, in the order in which they are written."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from envspec import names
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
    all_formed,
    formed,
    optional_formed,
    optional_table,
    some_formed,
    table,
    tables,
)
from envspec.models import (
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


OWN_MOMENT: Final = Row(OwnMoment, (("name", formed(names.NAME)), ("as_of", MOMENT)))

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
        ("digest", optional_formed(names.DIGEST)),
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
        ("apt", all_formed(names.APT)),
        ("snapshot", OPTIONAL_MOMENT),
        ("services", tables(_SERVICE)),
    ),
)

SYSTEM_LAYER: Final = Row(
    SystemLayer,
    (
        ("platform", PLATFORM),
        ("base", formed(names.DIGEST)),
        ("apt", all_formed(names.APT)),
        ("packages", all_formed(names.APT)),
        ("diff_id", formed(names.DIGEST)),
        ("digest", formed(names.DIGEST)),
        ("size_bytes", NUMBER),
    ),
)

#: A number, or `all`.
_WORLD_SIZE: Final[Kind[int | None]] = Kind(
    lambda number: "all" if number is None else number, lambda item, key: item.number_or_all(key)
)

CONFORMANCE: Final = Row(Conformance, (("checks", TEXTS), ("world_size", _WORLD_SIZE)))

IMAGE_ID: Final = Row(ImageId, (("platform", PLATFORM), ("id", formed(names.DIGEST)), ("pyc", FLAG)))

_PYTHON: Final = Row(
    Python,
    (
        ("version", formed(names.VERSION)),
        ("source", TEXT),
        ("url", optional_formed(names.URL)),
        ("sha256", optional_formed(names.SHA256)),
    ),
)

TARGET: Final = Row(Target, (("platform", PLATFORM), ("python", table(_PYTHON)), ("glibc", LEVEL), ("macos", LEVEL)))

_FILE: Final = Row(
    WheelFile,
    (
        ("index", formed(names.NAME)),
        ("filename", formed(names.RELEASE_FILE)),
        ("size_bytes", OPTIONAL_NUMBER),
        ("sha256", formed(names.SHA256)),
        # A local project's is a path as its spec has it.
        ("url", optional_formed(names.LINE)),
    ),
)
_BUILT: Final = Row(
    BuiltWheel, (("filename", formed(names.WHEEL)), ("size_bytes", NUMBER), ("sha256", formed(names.SHA256)))
)
_ASKER: Final = Row(Asker, (("name", formed(names.NAME)), ("requirement", TEXT)))
_REFUSAL: Final = Row(Refusal, (("version", TEXT), ("why", TEXT)))

PACKAGE: Final = Row(
    Package,
    (
        ("name", formed(names.NAME)),
        ("version", formed(names.VERSION)),
        ("extras", all_formed(names.NAME)),
        ("uploaded", OPTIONAL_MOMENT),
        ("file", table(_FILE)),
        ("built", optional_table(_BUILT)),
        ("contents", optional_formed(names.SHA256)),
        ("askers", tables(_ASKER)),
        ("newest", optional_table(_REFUSAL)),
    ),
)

_PROVIDED: Final = Row(Provided, (("name", formed(names.NAME)), ("version", formed(names.VERSION))))

CONDA_PACKAGE: Final = Row(
    CondaPackage,
    (
        ("name", formed(names.NAME)),
        ("version", formed(names.VERSION)),
        ("build", formed(names.BUILD)),
        ("build_number", NUMBER),
        ("channel", formed(names.LINE)),
        ("subdir", formed(names.NAME)),
        ("filename", formed(names.CONDA_ARCHIVE)),
        ("url", formed(names.URL)),
        ("sha256", formed(names.SHA256)),
        ("md5", optional_formed(names.MD5)),
        ("size_bytes", OPTIONAL_NUMBER),
        ("timestamp_ms", OPTIONAL_NUMBER),
        ("depends", TEXTS),
        ("constrains", TEXTS),
        ("noarch", TEXT_OR_EMPTY),
        ("license", OPTIONAL_TEXT),
        ("license_family", OPTIONAL_TEXT),
        ("features", OPTIONAL_TEXT),
        ("track_features", TEXTS),
        ("python_site_packages_path", optional_formed(names.INNER_PATH)),
        ("provides", tables(_PROVIDED)),
        ("askers", tables(_ASKER)),
        ("newest", optional_table(_REFUSAL)),
    ),
)

_PART: Final = Row(ChannelPart, (("rows", NUMBER), ("sha256", formed(names.SHA256))))

CHANNEL: Final = Row(
    CondaChannel, (("name", formed(names.LINE)), ("url", formed(names.URL)), ("part", optional_table(_PART)))
)

INDEX: Final = Row(
    NamedIndex,
    (
        ("name", formed(names.NAME)),
        ("url", formed(names.URL)),
        ("packages", all_formed(names.NAME_PATTERN)),
        ("undated", FLAG),
        ("files", some_formed(names.URL)),
    ),
)
