"""What importers make of a project's files: a draft of a spec, and a ledger of every line."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from datetime import datetime
from enum import Enum, IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct, field

from envspec.adopt.rows import Selection
from envspec.credentials import shown
from envspec.errors import UsageError
from envspec.escaping import cut
from envspec.models import Platform
from envspec.spec.dates import Age
from envspec.verifier.regular import read_regular

#: Series of Python if the sources allow several, the preferred one first: 3.12 has wheels of every torch since 2.2.
PYTHON_SERIES: Final = ("3.12", "3.11", "3.10", "3.13", "3.9", "3.14", "3.8")
#: In bytes: lock files of large projects have several megabytes.
MAX_SOURCE_BYTES: Final = 32 << 20
#: Of a text in the ledger, in characters: a line can be as long as its file.
_LONGEST: Final = 1000

#: A value of `Draft.cudas`: a source says that the environment is for the CPU.
CPU: Final = "cpu"


class Outcome(Enum):
    """What became of a line of a source.

    KEPT: the spec has it as it is.
    TRANSLATED: the spec has it in another form, or it decided a value of the spec.
    REFUSED: a package, an index or a setting that no spec can have, or an option of one that the spec has.
    NOT_UNDERSTOOD: nothing is known of its meaning.
    NOT_DECIDED: a command that installs packages, if it runs: it is in a branch, a loop, a function or a here-document.
    OUTSIDE: it concerns no package, index or setting: labels, ports, accounts, files, downloads, installers.
    """

    KEPT = "kept"
    TRANSLATED = "translated"
    REFUSED = "refused"
    NOT_UNDERSTOOD = "not understood"
    NOT_DECIDED = "not decided"
    OUTSIDE = "not of an environment"

    @property
    def is_lost(self) -> bool:
        """Whether the spec lacks what the line does."""
        return self in (Outcome.REFUSED, Outcome.NOT_UNDERSTOOD, Outcome.NOT_DECIDED)


class Source(NamedTuple):
    """Where a line is written. file: as messages name it. line: from 1; 0: the file as a whole, or no file."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class LedgerEntry(NamedTuple):
    """One line of a source. text: as it is written, in one line. reason: what it became, or why it is not in the spec;
    of a line that is kept, what else follows from it, or empty.
    """

    source: Source
    text: str
    outcome: Outcome
    reason: str = ""


class NamedLines(NamedTuple):
    """Lines that a spec does not have. names: a pattern of packages or variables. outcome, reason: of their entries."""

    names: str
    outcome: Outcome
    reason: str


class Rank(IntEnum):
    """Which of several Pythons or CUDA versions is that of the environment, the first one first.

    COMMAND: a command runs it. FILE: a file requires it. IMAGE: a base image has it. SYSTEM: it is only installed.
    PACKAGE: a package other than torch is built for it.
    """

    COMMAND = 0
    FILE = 1
    IMAGE = 2
    SYSTEM = 3
    PACKAGE = 4


class Clue(NamedTuple):
    """A value that a source implies: a Python, a CUDA version, a GPU, a driver.

    why: in a few words, with the line.
    kind: what importers know it by, such as `tag`: the tag of a base image. Most have none.
    """

    value: str
    source: Source
    why: str
    rank: Rank = Rank.FILE
    kind: str = ""


class SpecDecision(NamedTuple):
    """A choice that was made for the spec.

    what: the dotted key of the spec that has it.
    why: in words.
    source: the file and line, or what else states it.
    """

    what: str
    value: str
    why: str
    source: str = ""


class DraftRequirement(NamedTuple):
    """A line for [pip] dependencies.

    text: PEP 508, as a spec takes it.
    source: where it is written.
    project: the folder of a local project, whose path from the spec's folder on replaces `{path}` in the text.
    """

    text: str
    source: Source
    project: Path | None = None


class DraftIndex(NamedTuple):
    """A [[pip.index]].

    url, source: its address, and where it is written.
    name: letters, digits and `-`; empty: made of the URL.
    packages: the names that come from it; empty if the source does not say which.
    format: `simple` or `links`.
    """

    url: str
    source: Source
    name: str = ""
    packages: tuple[str, ...] = ()
    format: str = "simple"


class Locked(NamedTuple):
    """Where a version of a lock counts. pythons: series of Python for which linux-64 has it. is_default: whether it
    comes from the default index. source: where it is written.
    """

    pythons: tuple[str, ...]
    is_default: bool
    source: Source


class PipFrom(NamedTuple):
    """[pip] `from`: a lock of another tool, and what is selected of it."""

    path: Path
    selection: Selection


class Started(NamedTuple):
    """What an image starts. words: as ENTRYPOINT or CMD in exec form."""

    words: tuple[str, ...]
    source: Source


class LabelledPin(Struct, frozen=True):
    """A pin of the torch family with a label: `torch==2.8.0+cu128`. version: without it. is_url: of a wheel's URL."""

    name: str
    version: str
    label: str
    source: Source
    is_url: bool

    def __str__(self) -> str:
        return f"{self.name}=={self.version}+{self.label}"


class Draft(Struct):
    """What a spec is written from. Importers add and replace; the writer of the spec decides."""

    name: str = ""
    #: A series, an exact version, or a specifier such as `>=3.9,<3.13`; by rank.
    pythons: list[Clue] = field(default_factory=list)
    #: By conda's names.
    platforms: list[Clue] = field(default_factory=list)
    dependencies: list[DraftRequirement] = field(default_factory=list)
    constraints: list[DraftRequirement] = field(default_factory=list)
    #: Requirement and reason.
    overrides: list[tuple[str, str]] = field(default_factory=list)
    #: Normalised names of PyPI packages -> the version that is installed or locked, with its local label.
    versions: dict[str, str] = field(default_factory=dict)
    indexes: list[DraftIndex] = field(default_factory=list)
    build_packages: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    #: Match spec, and the platform if it is of one only.
    conda: list[tuple[str, str]] = field(default_factory=list)
    #: conda's names -> `VERSION BUILD`, or `VERSION` if the source has no builds.
    conda_versions: dict[str, str] = field(default_factory=dict)
    #: Of `versions`, those that do not count everywhere.
    locked: dict[str, Locked] = field(default_factory=dict)
    #: Of requirements and of URLs of PyTorch's.
    labelled: list[LabelledPin] = field(default_factory=list)
    #: In place of the default one, and folders of wheels.
    unread_indexes: list[str] = field(default_factory=list)
    #: It then has all packages for Python.
    pip_from: PipFrom | None = None
    #: `12.4`, or CPU; by rank.
    cudas: list[Clue] = field(default_factory=list)
    #: Names and compute capabilities, as [cuda] gpus.
    gpus: list[Clue] = field(default_factory=list)
    #: `535`, `535.104.05`.
    drivers: list[Clue] = field(default_factory=list)
    #: `ubuntu22.04`.
    systems: list[Clue] = field(default_factory=list)
    #: As [cuda] flavor.
    flavors: list[Clue] = field(default_factory=list)
    #: References of base images that a spec names itself.
    bases: list[Clue] = field(default_factory=list)
    #: References of base images that were never published, each with the reason.
    unpublished: list[Clue] = field(default_factory=list)
    #: As [env] as_of.
    as_ofs: list[Clue] = field(default_factory=list)
    #: Normalised names -> as [env] package_as_of.
    package_as_ofs: dict[str, str] = field(default_factory=dict)
    #: What the project is for that envspec does not support.
    unsupported: list[Clue] = field(default_factory=list)
    apt: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    #: Commands that a container starts, with the text of scripts of the project.
    starts: list[Clue] = field(default_factory=list)
    #: `entrypoint` and `command` of [image].
    started: dict[str, Started] = field(default_factory=dict)
    #: That a container publishes.
    ports: list[Clue] = field(default_factory=list)

    @property
    def match_specs(self) -> list[str]:
        """Those of conda, whatever their platforms."""
        return [text for text, _ in self.conda]


class Choices(Struct, frozen=True):
    """What the user decides, before anything that the sources imply. Empty: not decided."""

    as_of: datetime | Age | None = None
    name: str = ""
    python: str = ""
    platforms: tuple[Platform, ...] = ()
    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""


class Unreadable(UsageError, code="unreadable-source"):
    """A source that can't be read at all."""

    def __init__(self, message: str, *, hint: str = "correct it, or leave it out of the import") -> None:
        super().__init__(message, hint=hint)


class Import(Struct):
    """One run of the importers: draft and ledger of all sources, and the files that were read.

    root: the folder from which messages name files.
    find: the importer of a file, for those that include others.
    extras, groups: that the user names, of every project that is read.
    target: the stage of Dockerfiles.
    tops: links that lead out of all of these folders are not read: see `allow`.
    platforms: those that the user chose; empty: the sources decide.
    installed: a project's file -> extras and groups of it that Dockerfiles install, normalised.
    """

    root: Path
    find: Callable[[Path], Importer | None]
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    target: str = ""
    draft: Draft = field(default_factory=Draft)
    ledger: list[LedgerEntry] = field(default_factory=list)
    done: set[Path] = field(default_factory=set)
    tops: list[Path] = field(default_factory=list)
    platforms: tuple[str, ...] = ()
    installed: dict[Path, tuple[frozenset[str], frozenset[str]]] = field(default_factory=dict)

    def allow(self, source: Path) -> None:
        """Let links lead to files in the repository of a source that the user named: git's top level, else its folder.

        A report quotes lines of the sources, and a repository may be someone else's: a link in it must not make the
        report of a CI job show `/proc/self/environ`.
        """
        folder = source.parent
        if source.is_dir():
            folder = source
            self.tops.append(source.resolve())
        self.tops.append(_top(folder))

    def leads_out(self, path: Path) -> bool:
        """Whether a path is that of a link, or behind one, to a file outside of all `tops`."""
        real = path.resolve()
        return real != Path(os.path.abspath(path)) and not any(real.is_relative_to(top) for top in self.tops)  # noqa: PTH100

    def shown(self, path: Path) -> str:
        """A path as messages name it."""
        try:
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return path.as_posix()

    def read(self, path: Path) -> str:
        """The text of a source.

        Raises:
            Unreadable: it is missing, too large, a link that leads out, or neither UTF-8 nor, with its mark, UTF-16.
        """
        if self.leads_out(path):
            raise Unreadable(
                f"{self.shown(path)} is a link to {path.resolve()}, which is outside of the project",
                hint="replace the link by the file, or name the file itself",
            )
        try:
            content = read_regular(path, MAX_SOURCE_BYTES)
        except OSError as error:
            raise Unreadable(f"{self.shown(path)} can't be read: {error.strerror}") from None
        # `pip freeze > requirements.txt` in Windows PowerShell 5.1 writes UTF-16; pip reads it by its mark.
        encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            raise Unreadable(f"{self.shown(path)} is not UTF-8 (byte {error.start})") from None

    def include(self, path: Path, by: Source, text: str, importer: Importer | None = None) -> None:
        """Import a file that a line of another one names; each file once.

        by, text: that line, which gets its entry here. importer: None for the one that its name says.
        """
        name = self.shown(path)
        if not path.is_file():
            self.add(by, text, Outcome.REFUSED, f"there is no file {name}")
        elif self.leads_out(path):
            self.add(by, text, Outcome.REFUSED, f"{name} is a link to a file outside of the project")
        elif (importer := importer or self.find(path)) is None:
            self.add(by, text, Outcome.NOT_UNDERSTOOD, f"envspec does not read {name}")
        else:
            self.add(by, text, Outcome.TRANSLATED, f"its lines, from {name}")
            self.run(importer, path)

    def run(self, importer: Importer, path: Path) -> None:
        """Import a source, unless it was."""
        if (real := path.resolve()) not in self.done:
            self.done.add(real)
            importer(path, self)
            self.draft.pythons.sort(key=lambda each: each.rank)
            self.draft.cudas.sort(key=lambda each: each.rank)

    def add(self, source: Source, text: str, outcome: Outcome, reason: str = "") -> None:
        """An entry of the ledger. text: the line. Credentials in it and in the reason are left out."""
        line = cut(shown(" ".join(text.split())), _LONGEST)
        self.ledger.append(LedgerEntry(source, line, outcome, shown(reason)))


def _top(folder: Path) -> Path:
    """git's top level, or the folder if it is not in a repository.

    Links above the top level are the user's; one in a repository does not lead to another top level.
    """
    top = None
    named = Path(os.path.abspath(folder))  # noqa: PTH100 (links stay)
    for each in (*reversed(named.parents), named):
        real = each.resolve()
        if top is not None and not real.is_relative_to(top):
            return top
        if (real / ".git").exists():
            top = real
    real = named.resolve()
    return top or next((each for each in (real, *real.parents) if (each / ".git").exists()), real)


#: Reads a source and adds what it finds to the draft, and an entry to the ledger for each line that has a meaning.
Importer = Callable[[Path, Import], None]
