"""What every operation takes: environment, cache, network, progress and clock. Values only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from envspec.io.confine_types import Unconfined
from envspec.io.http_types import Timeouts
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.io.cache import FolderInUse


class Stages(str, Enum):
    """Base of enumerations of stages, in words for the user."""

    def __str__(self) -> str:
        return str(self.value)


class Connectivity(Enum):
    """Whether the network may be used."""

    ONLINE = "online"
    OFFLINE = "offline"


class Step(Struct, frozen=True):
    """Progress of a stage. A total of 0 is unknown.

    Args:
        stage: Its name, for the user.
        done: How many items of `total` are done.
        total: How many items there are.
        bytes_done: How many bytes of `bytes_total` are done.
        bytes_total: How many bytes there are.
        of: The platform, if there are several.
    """

    stage: str
    done: int = 0
    total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    of: str = ""


def ranges(found: Sequence[int], width: int = 0) -> str:
    """Ascending numbers as `1-3,7`."""
    parts: list[list[int]] = []
    for number in found:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = []
    for one, last in parts:
        text = f"{one:0{width}d}"
        if last > one:
            text += f"-{last:0{width}d}"
        texts.append(text)
    return ",".join(texts)


def comma_separated(found: Iterable[Enum]) -> str:
    """`linux-64, linux-aarch64`."""
    return ", ".join(each.value for each in found)


class Reporter(Protocol):
    """Gets what an operation reports while it runs. Its methods may be called from any thread."""

    def progress(self, step: Step, /) -> None:
        """Report the progress of a stage."""
        ...

    def warning(self, text: str, /) -> None:
        """Report a warning for the user, on one line."""
        ...


class ReporterOf:
    """A reporter that passes everything on, except for the methods that are given."""

    def __init__(
        self,
        to: Reporter | None = None,
        *,
        progress: Callable[[Step], None] | None = None,
        warning: Callable[[str], None] | None = None,
    ) -> None:
        self.progress: Callable[[Step], None] = _ignore
        self.warning: Callable[[str], None] = _ignore
        if to is not None:
            self.progress, self.warning = to.progress, to.warning
        self.progress = progress or self.progress
        self.warning = warning or self.warning


def _ignore(_: object) -> None:
    return None


#: Reports nothing.
SILENT: Final[Reporter] = ReporterOf()


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(timezone.utc)


@dataclass(frozen=True, slots=True)
class Context:
    """The machine and the choices of its user, which apply to every operation.

    Args:
        environ: Environment variables, with the settings of the configuration file.
        home: The user's home, which has files with logins.
        cache: Folder of envspec's cache.
        connectivity: Whether the network may be used.
        jobs: How many tasks run at the same time.
        timeouts: Timeouts of HTTP requests.
        mirrors: Registry -> the registry to use instead.
        unconfined: Whether code from outside may run if nothing can confine it.
        reporter: Where progress and warnings are reported.
        now: The clock.
        in_use: Keeps the cache from being removed while this context or a copy of it exists.
    """

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    cache: Path
    in_use: FolderInUse | None = field(default=None, repr=False, compare=False, kw_only=True)
    connectivity: Connectivity = Connectivity.ONLINE
    jobs: int = 4
    timeouts: Timeouts = field(default_factory=Timeouts)
    mirrors: Mapping[str, str] = field(default_factory=dict)
    unconfined: Unconfined = Unconfined.REFUSED
    reporter: Reporter = field(default=SILENT, repr=False)
    now: Callable[[], datetime] = field(default=utc_now, repr=False)

    @classmethod
    def from_environment(  # noqa: PLR0913 (every wish of a user may be left out)
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        connectivity: Connectivity | None = None,
        jobs: int | None = None,
        usual_jobs: int | None = None,
        mirrors: Mapping[str, str] | None = None,
        unconfined: Unconfined = Unconfined.REFUSED,
        reporter: Reporter | None = None,
    ) -> Context:
        """Create a context from arguments, environment variables, the configuration file and defaults, in this order.

        Args:
            environ: By default the environment variables of this process.
            usual_jobs: The default of `jobs`: by default the number of processors.
            reporter: By default, warnings are written to the logger `envspec`.

        Raises:
            UsageError: a setting that can't be used.
            UnsafeCache: other users could write to the cache.
        """
        from envspec.io.cache import FolderInUse, cache_root
        from envspec.io.http_settings import timeouts
        from envspec.settings import read_settings

        if environ is None:
            environ = os.environ
        if reporter is None:
            import logging

            reporter = ReporterOf(warning=logging.getLogger("envspec").warning)
        settings = read_settings(environ)
        found = settings.environ
        cache = cache_root(found)
        if connectivity is None and settings.offline:
            connectivity = Connectivity.OFFLINE
        return cls(
            environ=found,
            home=Path(found.get("HOME") or Path.home()),
            cache=cache,
            in_use=FolderInUse(cache),
            connectivity=connectivity or Connectivity.ONLINE,
            jobs=jobs or settings.jobs or usual_jobs or os.cpu_count() or 1,
            timeouts=timeouts(found, Timeouts()),
            mirrors={**settings.mirrors, **(mirrors or {})},
            unconfined=unconfined,
            reporter=reporter,
        )

    @property
    def is_offline(self) -> bool:
        return self.connectivity is Connectivity.OFFLINE

    def without_progress(self) -> Context:
        """For a stage inside another one, whose progress is reported."""
        return replace(self, reporter=ReporterOf(self.reporter, progress=_ignore))

    def with_spec(self, mirrors: Mapping[str, str], *, unconfined: bool) -> Context:
        """With the mirrors and the permission of a spec; the machine's own mirrors come first."""
        return replace(
            self,
            mirrors={**mirrors, **self.mirrors},
            unconfined=Unconfined.ALLOWED if unconfined else self.unconfined,
        )
