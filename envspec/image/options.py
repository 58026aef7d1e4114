"""Options of an image build, and its stages. Values only."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from msgspec import Struct

from envspec.context import Stages
from envspec.image.layers.types import Compression
from envspec.models import Lock, Platform


class ImageStage(Stages):
    """Stages of a build, in order."""

    BASE = "resolving the base image"
    FETCHING = "fetching and checking packages"
    SYSTEM = "building the system layer"
    LINKING = "linking conda's packages"
    LAYERS = "writing layers"
    BASE_LAYERS = "fetching the base's layers"
    WRITING = "writing the image"
    PUSHING = "pushing"
    LOADING = "loading into the engine"
    PULLING = "pulling the image"
    READING = "reading layers"


class Bytecode(Enum):
    """Whether the image contains bytecode next to the sources."""

    COMPILED = "compiled"
    NONE = "none"


class ImageParts(Enum):
    """Which layers are built: all, or those whose content the lock's packages alone determine: neither system packages
    nor the project's code.
    """

    ALL = "all"
    PACKAGES = "packages"


class ImageOptions(Struct, frozen=True):
    """What image to build.

    identity: of the lock, `lockfile.document.identity`. python: an interpreter that the user names for compiling.
    parts: an image of some of them is only compared.
    """

    lock: Lock
    identity: str
    platforms: tuple[Platform, ...]
    bytecode: Bytecode = Bytecode.COMPILED
    compression: Compression = Compression.GZIP
    python: Path | None = None
    parts: ImageParts = ImageParts.ALL
