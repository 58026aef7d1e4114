"""Lines of shell scripts that install packages, as Dockerfiles, dev containers and cog have them.

Commands of installers are read, and those that decide where they install to: `cd`, `git clone`, variables and
environments. Any other command adds no package. One that may not run is not read: if it installs packages, it is not
decided.
"""

from __future__ import annotations

import posixpath
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.importers.shell_programs import INSTALLERS, OTHERS, read_apt
from envspec.importers.shell_python import read_project
from envspec.importers.shell_state import Command, Reader, Shell, split_options, values_of
from envspec.importers.shell_syntax import Expanded, Piece, commands, expand
from envspec.importers.types import Import, Outcome, Source
from envspec.importers.variables import INDEXES, READ, gpus_of, ignored, read_variable
from envspec.io.yaml_lines import Value
from envspec.structs import replace

#: Scripts in scripts: `bash -c "sh -c ..."`.
MAX_NESTED: Final = 8
#: Of a script of the project: further lines are not read.
MAX_LINES: Final = 5_000

NO_PACKAGE: Final = "adds no package"
_ADD: Final = "add its packages to the spec if the image needs them"

#: A command that installs packages, wherever it is in a line: with these words, nothing may be lost without an entry.
_INSTALLS: Final = re.compile(
    r"(?<![\w-])(?:(?:pip[\d.]*|uv|pipx|poetry|pixi|pdm|conda|mamba|micromamba|apt|apt-get|yum|dnf|microdnf|apk|zypper)"
    r"\s(?:[^|;&]*\s)?(?:install|add|sync|wheel|create)|(?:conda|mamba|micromamba)\s+(?:env\s+)?update"
    r"|setup\.py\s(?:[^|;&]*\s)?(?:install|develop))(?![\w.-])"
)
#: Programs that only print or change such words.
_PRINTS: Final = frozenset({"echo", "printf", "sed", "grep", "cat", "awk", "tee", "alias"})

#: Commands whose packages no spec has, as patterns of their words without options -> why. The first that matches.
LOSSES: Final = (
    (
        r"(add-apt-repository|apt-add-repository) (?!.*(ppa:deadsnakes/ppa|universe|multiverse|main)).*",
        "[system] apt reads the release's own archive: install from elsewhere in an image that [image] base names",
    ),
    (
        r"dpkg (?!.*cuda-keyring).*\.deb.*|pacman .*|(yum|dnf|microdnf|apk|zypper) (.* )?(install|in|add\w*)( .*)?",
        "a spec lists packages of Ubuntu and Debian: write their names in [system] apt",
    ),
    (
        r"(uv )?pip uninstall .*",
        "a lock has what packages require; an entry of [pip] overrides with `remove = true` leaves a package out",
    ),
    (
        r"(uv tool|pipx) install .*",
        "a program in an environment of its own: require it in [pip] dependencies if the image needs it",
    ),
    (
        r"((ba|z|da)?sh |source |\. )?(?!\S*(uv-?install|_dockerfile_))"
        r"\S*(install|setup|requirements|depend|deps)\S*\.sh( .*)?",
        "the script is not among the files that are copied from the project: what it installs is not in the spec",
    ),
)
#: A program whose `install` may install packages of an environment.
_UNKNOWN: Final = (
    r"(?!(make|ninja|cmake|meson|go|cargo|rustup|npm|npx|yarn|pnpm|nvm|git|pre-commit|playwright|python|install|echo"
    r"|sed|cat|grep|awk|find|xargs) )\S+ (.* )?install( .*)?"
)

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
#: Words in front of a program that leave open what it does: program -> its options with a value.
_WRAPPERS: Final = {
    "sudo": ("-u", "-g", "-C", "--user"),
    "env": ("-u",),
    "exec": ("-a",),
    **dict.fromkeys(("nohup", "time", "command", "eatmydata", "poetry run"), ()),
    **dict.fromkeys(("conda run", "mamba run", "micromamba run"), ("-n", "-p", "--name", "--prefix", "--cwd", "-r")),
    "uv run": ("-p", "--python", "--project", "--with", "--extra", "--group"),
}
#: Modules of `python -m` that are programs of this name.
_MODULES: Final = frozenset({"pip", "uv", "venv", "virtualenv", "pipx", "poetry"})


def read_script(shell: Shell, parts: Sequence[tuple[int, str]], nested: int = 0) -> None:
    """Read a script in a shell, whose state it changes.

    parts: line in the source, and text: with a line end, unless the next part continues its line.
    """
    folders: list[str] = []
    for piece in commands(parts):
        if piece.text == "(":
            folders.append(shell.workdir)
        elif piece.text == ")":
            shell.workdir = folders.pop()
        else:
            _read_piece(shell, piece, nested)


def _read_piece(shell: Shell, piece: Piece, nested: int) -> None:
    if named := re.match(r"(?:for|select|read|unset)\s+(\w+)", piece.text):
        shell.variables[named[1]] = None
    expanded = expand(piece.text, shell.variables)
    words, assigned = _assignments(expanded)
    expanded = expanded._replace(words=words)
    program = program_words(words)
    source = Source(shell.file, piece.line)
    output = next((each for each in expanded.outputs if not each.startswith(("/dev/", "&"))), "")
    environment = _environment(shell, words, assigned)
    command = Command(program, source, piece.text, words, environment, output, expanded.unknown)
    if piece.doubt:
        _note_undecided(shell, command, f"it is {piece.doubt}: {_ADD}")
        shell.variables.update(dict.fromkeys(assigned))
    elif nested < MAX_NESTED and (script := _inner_script(command, piece)):
        read_script(shell, script, nested + 1)
        return
    elif nested < MAX_NESTED and (file := _script_file(shell, command)):
        _read_script_file(shell, command, file, nested + 1)
    elif assigned and not program:
        _assign(shell, command, assigned)
    else:
        _read_program(shell, command, expanded, assigned)
    note_here_document(shell, piece.body)


def note_here_document(shell: Shell, lines: Sequence[tuple[int, str]]) -> None:
    """Entries for the commands that install packages in a here-document that no shell is known to run."""
    for number, line in lines:
        if _INSTALLS.search(line):
            reason = f"it is in a here-document: {_ADD}"
            shell.imported.add(Source(shell.file, number), line, Outcome.NOT_DECIDED, reason)


def _note_undecided(shell: Shell, command: Command, reason: str) -> None:
    """An entry for a command that is not read."""
    head = _head(command.words)
    is_script = _script_file(shell, command) is not None
    installs = _reader(INSTALLERS, head) or _loss(head) or re.fullmatch(_UNKNOWN, head, re.DOTALL)
    if (
        command.words[:1]
        and command.words[0] not in _PRINTS
        and (is_script or installs or _INSTALLS.search(command.text))
    ):
        shell.add(command, Outcome.NOT_DECIDED, reason)
    else:
        shell.add(command, Outcome.OUTSIDE, NO_PACKAGE)


def _loss(head: str) -> str:
    return next((reason for pattern, reason in LOSSES if re.fullmatch(pattern, head, re.DOTALL)), "")


def _assignments(expanded: Expanded) -> tuple[tuple[str, ...], dict[str, str | None]]:
    """The words after the assignments in front, and these; None for values that are not known."""
    assigned: dict[str, str | None] = {}
    words = expanded.words
    if words[:1] == ("export",):
        words = words[1:]
    for at, word in enumerate(words):
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            return words[at:], assigned
        assigned[found[1]] = found[2]
        if any(unknown in found[2] for unknown in expanded.unknown):
            assigned[found[1]] = None
    return (), assigned


def _assign(shell: Shell, command: Command, assigned: Mapping[str, str | None]) -> None:
    """Variables of the script itself, for the commands after them."""
    for name, value in assigned.items():
        shell.variables[name] = value
        text = f"{name}={value}"
        if value is None:
            shell.add(command, Outcome.OUTSIDE, "lines that need its value are not understood")
        elif name == "TORCH_CUDA_ARCH_LIST":
            gpus_of(value, command.source, text, shell.imported)
        else:
            shell.add(command, Outcome.OUTSIDE, "its value is used in the commands after it", text)


def _environment(shell: Shell, words: Sequence[str], assigned: Mapping[str, str | None]) -> str:
    """The environment in which a command runs: of its program's path, its VIRTUAL_ENV, or the script's."""
    for word in words[:4]:
        if found := re.fullmatch(r"(/.+)/bin/(?:python|pip|uv)[\d.]*", word):
            return found[1]
    return assigned.get("VIRTUAL_ENV") or shell.active or shell.variables.get("VIRTUAL_ENV") or ""


def program_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command without what is in front of its program: `sudo -E python3 -m pip install` is `pip install`."""
    words = tuple(words)
    while words:
        name = re.sub(r"^(python|pip)(?:3(?:\.\d+)?)?$", r"\1", posixpath.basename(words[0]))
        wrapper = name if name in _WRAPPERS else " ".join((name, *words[1:2]))
        length = wrapper.count(" ") + 1
        if wrapper in _WRAPPERS and len(words) > length:
            words = _after_options(words[length:], _WRAPPERS[wrapper])
        elif name == "python" and (module := _module(words)):
            words = module
        else:
            return (name, *words[1:])
    return ()


def without_launcher(words: tuple[str, ...]) -> tuple[str, ...]:
    """What `uv run`, `poetry run` or `conda run` starts; the words themselves without one of them."""
    launcher = " ".join((posixpath.basename(words[0]), *words[1:2]))
    if not launcher.endswith(" run") or launcher not in _WRAPPERS:
        return words
    rest = _after_options(words[2:], _WRAPPERS[launcher])
    if not rest:
        return words
    options = words[2 : len(words) - len(rest)]
    if "-m" in options or "--module" in options:
        return ("python", "-m", *rest)
    # uv runs these with its Python.
    return ("python", *rest) if rest[0].endswith(".py") else rest


def _after_options(words: tuple[str, ...], valued: Sequence[str]) -> tuple[str, ...]:
    at = 0
    while at < len(words) and (words[at].startswith("-") or _ASSIGNMENT.fullmatch(words[at])):
        at += 2 if words[at] in valued else 1
    return words[at:]


def _module(words: tuple[str, ...]) -> tuple[str, ...]:
    """What `python -m MODULE` runs, if it is an installer."""
    at = 1
    while at < len(words) and words[at] in ("-u", "-I", "-E", "-s", "-B"):
        at += 1
    is_module = words[at : at + 1] == ("-m",) and len(words) > at + 1 and words[at + 1] in _MODULES
    return words[at + 1 :] if is_module else ()


def _inner_script(command: Command, piece: Piece) -> Sequence[tuple[int, str]]:
    """The script that a command consists of: of `bash -c`, or a here-document that a shell reads."""
    if command.words and command.words[0] not in _SHELLS:
        return ()
    given, names = split_options(command.words[1:], {"-o"})
    if names and values_of(given, ("-c",)):
        # Its own lines are not known apart: quotes and line ends are gone.
        return [(command.source.line, f"{line}\n") for line in names[0].split("\n")]
    if names or not piece.body or (command.output and not command.words):
        return ()
    first = piece.body[0][1]
    if first.startswith("#!") and not re.match(r"#!\s*\S*/(?:env\s+)?(?:ba|da|a|z)?sh\b", first):
        return ()
    return piece.body


def _script_file(shell: Shell, command: Command) -> Path | None:
    """The project's shell script that a command runs, unless it was read before."""
    words = command.words
    if words[:1] and (words[0] in _SHELLS or words[0] in ("source", ".")):
        names = [word for word in words[1:] if not word.startswith("-")]
    else:
        names = [*command.whole[len(command.whole) - len(words) :]]
    if not names or not names[0].endswith(".sh"):
        return None
    found = shell.host(names[0])
    if found is None or not found.is_file() or found in shell.scripts:
        return None
    return found


def _read_script_file(shell: Shell, command: Command, file: Path, nested: int) -> None:
    """Read a script of the project, whose variables and folder are its own."""
    shell.scripts.add(file)
    shown = shell.imported.shown(file)
    shell.add(command, Outcome.TRANSLATED, f"its commands, from {shown}")
    lines = shell.imported.read(file).splitlines()[:MAX_LINES]
    own = replace(shell, file=shown, variables=ChainMap[str, str | None]({}, shell.variables))
    read_script(own, [(number, f"{line}\n") for number, line in enumerate(lines, start=1)], nested)


def _read_program(shell: Shell, command: Command, expanded: Expanded, assigned: Mapping[str, str | None]) -> None:
    head = _head(command.words)
    installer = _reader(INSTALLERS, head)
    other = _reader(OTHERS, head)
    if installer is not None and expanded.problem and installer not in (read_apt, read_project):
        # What is not known may be an index: packages of another one would be wrong.
        shell.add(command, Outcome.NOT_UNDERSTOOD, expanded.problem)
    elif installer is not None:
        _read_installer(shell, command, installer, assigned)
    elif other is not None and not expanded.problem:
        other(shell, command)
    elif loss := _loss(head):
        shell.add(command, Outcome.REFUSED, loss)
    elif re.fullmatch(_UNKNOWN, head, re.DOTALL):
        shell.add(command, Outcome.NOT_UNDERSTOOD, "envspec does not know what this program installs")
    else:
        _note_undecided(shell, command, f"envspec does not read an installer in this form: {_ADD}")


def _reader(table: Sequence[tuple[str, Reader]], head: str) -> Reader | None:
    return next((reader for pattern, reader in table if re.fullmatch(pattern, head)), None)


def _read_installer(shell: Shell, command: Command, reader: Reader, assigned: Mapping[str, str | None]) -> None:
    """Run a reader, after the variables in front of its program."""
    for name, value in assigned.items():
        text = f"{name}={value}"
        if value is not None and (ignored(name) or name in INDEXES or name in READ):
            read_variable(name, value, command.source, text, shell.imported)
        else:
            reason = "a variable of a build: [build.NAME] env has those of one package"
            shell.add(command, Outcome.REFUSED, reason, text)
    reader(shell, command)


def _head(words: Sequence[str]) -> str:
    """Program and first words without options, for the tables. Blanks in a word, which was quoted, separate none."""
    # A `-` alone is a word: standard input.
    plain = [word for word in words[1:40] if not re.match("-.", word, re.DOTALL)]
    joined = [re.sub(r"\s+", "_", word) for word in (*words[:1], *plain[:8])]
    return " ".join(joined)[:1000]


class CommandsDocument(Struct):
    """A YAML document with commands among its values. shell: runs them, in the folder that they expect.

    A document of a tool has its own `read` for keys.
    """

    imported: Import
    path: Path
    shell: Shell
    document: Value

    def at(self, value: Value) -> Source:
        """Where a value is written."""
        return Source(self.shell.file, value.line)

    def add(self, key: str, value: Value, outcome: Outcome, reason: str = "") -> None:
        """An entry for a key."""
        self.imported.add(self.at(value), f"{key}: {value.shown()}", outcome, reason)

    def read(self, key: str, value: Value) -> None:
        """A key of the document, or of a table in it: `build.gpu`."""
        raise NotImplementedError(key)

    def below(self, key: str, value: Value) -> None:
        """Each key of a table."""
        if value.is_scalar:
            self.add(key, value, Outcome.NOT_UNDERSTOOD, "not a table")
        for name, own in value.keys.items():
            self.read(f"{key}.{name}", own)
