"""Options of an image build, and its stages. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from envspec.fetch.types import Network, Step
from envspec.image.layers.types import Compression
from envspec.io.confine import Unconfined
from envspec.models import Lock, Platform


class Stage(Enum):
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


class Bytecode(Enum):
    """Whether the image contains bytecode next to the sources."""

    COMPILED = "compiled"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ImageOrder:
    """What image is to be made.

    identity: of the lock, `lock.document.identity`. python: an interpreter that the user names for compiling.
    jobs: how many layers are made, and files fetched, at once.
    """

    lock: Lock
    identity: str
    platforms: tuple[Platform, ...]
    bytecode: Bytecode = Bytecode.COMPILED
    compression: Compression = Compression.GZIP
    python: Path | None = None
    network: Network = Network.USE
    jobs: int = 4


@dataclass(frozen=True, slots=True)
class ImageWorld:
    """The machine around it. cache: envspec's own folder. mirrors: registries that stand in for others.

    report: called for every step. warn: called with every warning.
    unconfined: whether a lock's code may run where nothing confines it.
    """

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    cache: Path
    report: Callable[[Step], None] = field(repr=False)
    warn: Callable[[str], None] = field(repr=False)
    mirrors: Mapping[str, str] = field(default_factory=dict)
    unconfined: Unconfined = Unconfined.REFUSED
