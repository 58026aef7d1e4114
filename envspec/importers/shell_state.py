"""The state of a shell whose commands are read, and the commands' options."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, MutableMapping
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct, field

from envspec.importers.types import Clue, Import, Outcome, Rank, Source

#: Of files and folders that are copied to one path of a container.
_MOST_COPIES: Final = 20
#: Source: Linux, PATH_MAX.
_LONGEST_PATH: Final = 4096

#: Variables that name an environment's folder.
_FOLDERS: Final = (
    *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONUSERBASE", "CONDA_PREFIX", "CONDA_DIR", "MAMBA_ROOT_PREFIX"),
)
#: Usual names of environments' folders, and of folders with wheels for one.
_USUAL: Final = re.compile(
    r"(^|/)(\.?venv|env|envs|virtualenvs?|site-packages|dist-packages|(mini|micro|ana|mamba)?(conda|forge|mamba)\d*"
    r"|\.local|install|wheels|wheelhouse|python[\d.]*)(/|$)|^/usr/local(/lib|/bin)?/?$"
)


def is_at_or_below(path: str, folder: str) -> bool:
    """Whether a path is a folder, or below it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


class InstallSelection(Struct, frozen=True):
    """The extras and groups of a project that commands install, normalised."""

    extras: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def __or__(self, other: InstallSelection) -> InstallSelection:
        return InstallSelection(self.extras | other.extras, self.groups | other.groups)


class Command(NamedTuple):
    """One command.

    words: the program without its folder, then its arguments.
    text: as it is written.
    whole: words with what is in front of the program.
    environment: in which the program runs, as far as it is named.
    output: the file that its output is written to; empty if there is none.
    unknown: in words, what no value is known of.
    """

    words: tuple[str, ...]
    source: Source
    text: str
    whole: tuple[str, ...] = ()
    environment: str = ""
    output: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """The series of the Python that runs the command: `3.11` of `python3.11 -m pip`. Empty if it is not named."""
        front = self.whole[: len(self.whole) - len(self.words) + 1]
        for word in front:
            if found := re.search(r"(?:^|/)(?:python|pip)(3\.\d+)$", word):
                return found[1]
        return ""


class Clone(NamedTuple):
    """A repository that was cloned."""

    url: str
    revision: str


class Shell(Struct):
    """The state in which commands are read.

    file: of the script, as messages name it.
    context: the project's folder, which paths of requirements start from.
    variables: name -> value; of None and of others it is not known.
    copies: the container's paths -> what is copied there, the last one first.
    clones: repositories by their folder in the container.
    has_system: False in a stage whose packages of the system are not in the final image.
    environments: folders of Python environments, where commands make them and variables name them.
    taken: name of a stage, and a path that is copied from it.
    syncs: a project's file -> extras and groups that commands install of it.
    packages: where commands install packages for Python.
    scripts: of the project, that were read.
    active: the environment that the script activated.
    main: the environment of the image, of several; empty if any may be.
    built: folders of wheels, and of what a stage installed.
    exports: files with the requirements of a project -> the command that writes them.
    """

    imported: Import
    file: str
    context: Path
    variables: MutableMapping[str, str | None] = field(default_factory=dict)
    workdir: str = "/"
    copies: dict[str, list[Path]] = field(default_factory=dict)
    clones: dict[str, Clone] = field(default_factory=dict)
    has_system: bool = True
    environments: dict[str, None] = field(default_factory=dict)
    taken: list[tuple[str, str]] = field(default_factory=list)
    syncs: dict[Path, InstallSelection] = field(default_factory=dict)
    packages: list[Source] = field(default_factory=list)
    scripts: set[Path] = field(default_factory=set)
    active: str = ""
    main: str = ""
    built: dict[str, None] = field(default_factory=dict)
    exports: dict[str, tuple[Path, InstallSelection]] = field(default_factory=dict)

    def path(self, name: str) -> str:
        """A path in the container, in full."""
        return posixpath.normpath(posixpath.join(self.workdir, name))

    def start_from(self, other: Shell) -> None:
        """Take the state of another stage, which is not changed afterwards."""
        self.workdir, self.variables = other.workdir, dict(other.variables)
        self.copies, self.clones = dict(other.copies), dict(other.clones)
        self.environments, self.packages = dict(other.environments), [*other.packages]
        self.built, self.exports = dict(other.built), dict(other.exports)

    def copy(self, target: str, source: Path) -> None:
        """A file or a folder of the project that is at a path in the container from now on."""
        self.copies[target] = [source, *self.copies.get(target, [])][:_MOST_COPIES]

    def host(self, name: str) -> Path | None:
        """The project's file or folder at a path in the container; None if none is copied there."""
        path = self.path(name)
        if len(path) > _LONGEST_PATH or not path.isprintable():
            return None
        parents = ["", *(part for part in path.split("/") if part)]
        for length in range(len(parents), 0, -1):
            folder, rest = "/".join(parents[:length]) or "/", parents[length:]
            for source in self.copies.get(folder, []):
                found = source.joinpath(*rest)
                if found.exists() and found.resolve().is_relative_to(source.resolve()):
                    return found
        return None

    def has_environment(self, name: str) -> bool:
        """Whether a path is an environment, a part of one, or a folder that contains one."""
        path = self.path(name)
        named = [self.variables.get(each) for each in _FOLDERS]
        made = [*self.environments, *self.built, *(self.path(each) for each in named if each)]
        is_part = any(is_at_or_below(path, each) for each in made)
        contains_one = any(is_at_or_below(each, path) for each in made)
        return bool(_USUAL.search(path)) or is_part or contains_one

    def is_built(self, name: str) -> bool:
        """Whether a path is in a folder of wheels or of an environment that commands made."""
        path = self.path(name)
        return any(is_at_or_below(path, each) for each in self.built)

    def is_elsewhere(self, environment: str) -> bool:
        """Whether an environment is another one than the image's."""
        return bool(self.main and environment in self.environments and environment != self.main)

    def main_environment(self) -> str:
        """The environment that VIRTUAL_ENV or PATH names, else the one that was made last; empty if there is none."""
        path = (self.variables.get("PATH") or "").split(":")
        named = [self.variables.get("VIRTUAL_ENV") or "", *(re.sub(r"/bin/?$", "", each) for each in path)]
        for each in named:
            if each in self.environments:
                return each
        return next(reversed(self.environments), "")

    def clone(self, name: str) -> tuple[Clone, str] | None:
        """The repository that was cloned to a folder in the container, and a path in it; empty for the whole."""
        path = self.path(name)
        for folder, clone in self.clones.items():
            if is_at_or_below(path, folder):
                return clone, path[len(folder) + 1 :]
        return None

    def use_python(self, command: Command, version: str, why: str, kind: str = "") -> None:
        """Note a Python that a command of the image runs."""
        self.imported.draft.pythons.append(Clue(version, command.source, why, Rank.COMMAND, kind))

    def add(self, command: Command, outcome: Outcome, reason: str = "", text: str = "") -> None:
        """An entry for a command, or for a part of it."""
        self.imported.add(command.source, text or command.text, outcome, reason)


Reader = Callable[[Shell, Command], None]


def names_of(text: str) -> frozenset[str]:
    """The names in a text, with blanks between them."""
    return frozenset(text.split())


def split_options(words: Iterable[str], valued: Collection[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and the other words. valued: the options that have a value."""
    given: list[tuple[str, str]] = []
    others: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if word == "--":
            others += remaining
        elif word in ("-", "") or not word.startswith("-"):
            others.append(word)
        elif word.startswith("--") or word in valued:
            if not equals and name in valued:
                value = next(remaining, "")
            given.append((name, value))
        elif word[:2] in valued:
            given.append((word[:2], word[2:].removeprefix("=")))
        else:
            for letter in word[1:]:
                flag, value = f"-{letter}", ""
                if flag in valued:
                    value = next(remaining, "")
                given.append((flag, value))
    return given, others


def value_of(given: Iterable[tuple[str, str]], options: Collection[str], default: str = "") -> str:
    """The first value of one of these options."""
    for option, value in given:
        if option in options:
            return value
    return default


def values_of(given: Iterable[tuple[str, str]], options: Collection[str]) -> list[str]:
    """The values of some options. given: as `split_options` returns them."""
    return [value for option, value in given if option in options]
