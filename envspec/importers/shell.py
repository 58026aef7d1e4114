"""Lines of shell scripts that install packages, as Dockerfiles, dev containers and cog have them.

Each command gets its entry in the ledger, or one for each of its packages; nothing is run.
"""

from __future__ import annotations

import posixpath
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envspec.importers.shell_flow import Flow, Runs, result_of_test
from envspec.importers.shell_notes import NOTES, OTHERS, Note
from envspec.importers.shell_programs import OF_NO_PACKAGE, READERS, assign, read_apt, read_export
from envspec.importers.shell_state import Command, Reader, Shell, split_options
from envspec.importers.shell_syntax import BadScript, Expanded, Script, Step, expand, expand_text, steps
from envspec.importers.types import Import, Outcome, Source
from envspec.importers.variables import INDEXES, READ, ignored, read_variable
from envspec.importers.yaml_lines import Value

#: Scripts in scripts: `bash -c "sh -c ..."`.
MAX_NESTED: Final = 8
#: Of a script of the project: further lines are not read.
MAX_LINES: Final = 5_000

_ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.ASCII | re.DOTALL)
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
#: Commands whose result decides about others, not about the build.
_RESULTS: Final = {
    "true": Runs.YES,
    ":": Runs.YES,
    "echo": Runs.YES,
    "false": Runs.NO,
    **dict.fromkeys(("command", "which", "type", "hash", "grep", "dpkg", "nvidia-smi", "nvcc"), Runs.MAYBE),
}
#: Programs that run what the command before them prints.
_READ_INPUT: Final = _SHELLS | {"python"}
#: Files that a command may read later.
_READ_LATER: Final = re.compile(r"\.(txt|in|sh)$")
_TESTS: Final = frozenset({"[", "[[", "test"})
#: Words in front of a program that leave open what it does: program -> its options with a value.
_WRAPPERS: Final = {
    "sudo": ("-u", "-g", "-C", "--user"),
    "env": ("-u",),
    "exec": ("-a",),
    "nohup": (),
    "time": (),
    "command": (),
    "eatmydata": (),
    "conda run": ("-n", "-p", "--name", "--prefix", "--cwd"),
    "mamba run": ("-n", "-p", "--name", "--prefix", "--cwd"),
    "micromamba run": ("-n", "-p", "--name", "--prefix", "--cwd", "-r"),
    "uv run": ("-p", "--python", "--project", "--with", "--extra", "--group"),
    "poetry run": (),
}
#: Modules of `python -m` that are programs of this name.
_MODULES: Final = frozenset({"pip", "uv", "venv", "virtualenv", "pipx", "poetry"})


def read_script(shell: Shell, parts: Sequence[tuple[int, str]], nested: int = 0) -> None:
    """Read a script in a shell, whose state it changes.

    parts: line in the source, and text: with a line end, unless the next part continues its line.
    """
    try:
        found = steps(Script.of(parts))
    except BadScript as error:
        text = "".join(part for _, part in parts)[:200]
        shell.imported.add(Source(shell.file, error.line), text, Outcome.NOT_UNDERSTOOD, str(error))
        return
    flow = Flow()
    folders: list[str] = []
    for step in found:
        if step.words == ("(",):
            folders.append(shell.workdir)
        elif step.words == (")",) and folders:
            shell.workdir = folders.pop()
        elif step.words[:1] in (("for",), ("select",), ("read",), ("unset",)):
            shell.variables.update(dict.fromkeys(step.words[1:2]))
        command = flow.enter(step)
        if command is not None:
            flow.end(_read_step(shell, command, flow.runs, nested))


def _read_step(shell: Shell, step: Step, runs: Runs, nested: int) -> Runs | None:
    """Read one command; whether it succeeds, None if the build does only if it does."""
    source = Source(shell.file, step.line)
    outer = Command((), source, step.text)
    words, assigned = _assignments(shell, step.words)
    expanded = expand(words, ChainMap(assigned, shell.variables))
    if runs is Runs.NO:
        shell.add(outer, Outcome.OUTSIDE, "does not run, by the conditions before it and the values of its variables")
        return Runs.YES
    if expanded.words[:1] and expanded.words[0] in _TESTS:
        return _read_test(shell, outer, expanded)
    program = program_words(expanded.words)
    outputs = [expand_text(each.target, shell.variables).words[0] for each in step.redirections if ">" in each.operator]
    target = next((each for each in outputs if not each.startswith(("/dev/", "&"))), "")
    environment = _environment(shell, expanded.words, assigned)
    command = Command(program, source, step.text, expanded.words, environment, target)
    script = _inner_script(command, step)
    file = _script_file(shell, command) if script is None and runs is Runs.YES and nested < MAX_NESTED else None
    if script is not None and nested < MAX_NESTED and runs is Runs.YES:
        read_script(shell, script, nested + 1)
    elif file is not None:
        _read_script_file(shell, command, file, nested + 1)
    elif step.before in ("|", "|&") and program[:1] and program[0] in _READ_INPUT and shell.imported.ledger:
        before = shell.imported.ledger[-1]
        shell.add(command, before.outcome, f"runs what the command before it prints: {before.reason}")
    elif not program:
        _read_files(shell, command, step)
        for name, value in assigned.items():
            assign(shell, command, name, value if runs is Runs.YES else None)
    elif (output := _output(shell, command, step)) is None:
        _read_program(shell, command, expanded, runs, assigned)
    elif runs is Runs.YES and not expanded.unknown:
        write(shell, command, *output)
    else:
        # A command that installs what it lists is the loss.
        shell.written.pop(shell.path(output[0]), None)
        reason = f"what {output[0]} has afterwards depends on the machine or on values that are not in this file"
        shell.add(command, Outcome.OUTSIDE, reason)
    # What a command writes to a file is needed later: its failure is that of the build.
    return None if command.output else _result_of(program)


def _assignments(shell: Shell, words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str | None]]:
    """The words after the assignments in front, and these."""
    assigned: dict[str, str | None] = {}
    at = 0
    while at < len(words) and (found := _ASSIGNMENT.fullmatch(words[at])):
        value = expand_text(found["value"], ChainMap(assigned, shell.variables))
        assigned[found["name"]] = None if value.unknown else value.words[0]
        at += 1
    return tuple(words[at:]), assigned


def _result_of(program: Sequence[str]) -> Runs | None:
    """Whether a command succeeds, None if the build does only if it does."""
    if program[:1] == ("dpkg",) and re.match(r"-i|--install|--add-architecture|--configure", " ".join(program[1:2])):
        return None
    return _RESULTS.get(program[0]) if program else None


def _environment(shell: Shell, words: Sequence[str], assigned: Mapping[str, str | None]) -> str:
    """The environment in which a command runs: of its program's path, its VIRTUAL_ENV, or the script's."""
    folders = (re.fullmatch(r"(/.+)/bin/(?:python|pip|uv)[\d.]*", word) for word in words[:4])
    by_path = next((found[1] for found in folders if found), "")
    return by_path or assigned.get("VIRTUAL_ENV") or shell.active or shell.variables.get("VIRTUAL_ENV") or ""


def _read_test(shell: Shell, command: Command, expanded: Expanded) -> Runs:
    result = result_of_test(expanded.words, expanded.unknown)
    match [word for word in expanded.words[1:] if word not in ("]", "]]")]:
        case ["-f" | "-e" | "-d" | "-s" | "-r", path] if not expanded.unknown and _exists(shell, path):
            result = Runs.YES
        case ["!", "-f" | "-e" | "-d" | "-s" | "-r", path] if not expanded.unknown and _exists(shell, path):
            result = Runs.NO
    known = {Runs.YES: "it is true", Runs.NO: "it is false"}.get(result, "it depends on the machine")
    shell.add(command, Outcome.OUTSIDE, f"decides which commands run: {known}")
    return result


def _exists(shell: Shell, path: str) -> bool:
    """Whether a file is in the container: it is copied there, or a command writes it."""
    return shell.host(path) is not None or shell.path(path) in (*shell.written, *shell.exports, *shell.clones)


def program_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command without what is in front of its program: `sudo -E python3 -m pip install` is `pip install`."""
    words = tuple(words)
    while words:
        name = _plain_name(words[0])
        wrapper = name if name in _WRAPPERS else " ".join((name, *words[1:2]))
        if wrapper in _WRAPPERS and len(words) > wrapper.count(" ") + 1:
            words = _after_options(words[wrapper.count(" ") + 1 :], _WRAPPERS[wrapper])
        elif name == "python" and (module := _module(words)) is not None:
            words = module
        else:
            return (name, *words[1:])
    return ()


def _plain_name(word: str) -> str:
    name = posixpath.basename(word)
    return re.sub(r"^(python|pip)(?:3(?:\.\d+)?)?$", r"\1", name)


def _after_options(words: tuple[str, ...], valued: Sequence[str]) -> tuple[str, ...]:
    at = 0
    while at < len(words) and (words[at].startswith("-") or _ASSIGNMENT.fullmatch(words[at])):
        at += 2 if words[at] in valued else 1
    return words[at:]


def _module(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """What `python -m MODULE` runs, if it is an installer."""
    at = 1
    while at < len(words) and words[at] in ("-u", "-I", "-E", "-s", "-B"):
        at += 1
    if words[at : at + 1] == ("-m",) and len(words) > at + 1 and words[at + 1] in _MODULES:
        return words[at + 1 :]
    return None


def _inner_script(command: Command, step: Step) -> list[tuple[int, str]] | None:
    """The script that a command consists of: of `bash -c`, or a here-document that a shell reads."""
    bodies = [each.body for each in step.redirections if each.body]
    if command.words and command.words[0] not in _SHELLS:
        return None
    if not command.words:
        is_script = bool(bodies) and all(each.operator.startswith("<<") for each in step.redirections)
        return _body_script(bodies[0]) if is_script and not step.words else None
    given, names = split_options(command.words[1:], {"-o"})
    if names and any(option == "-c" for option, _ in given):
        # Its own lines are not known apart: quotes and line ends are gone.
        return [(command.source.line, f"{line}\n") for line in names[0].split("\n")]
    return _body_script(bodies[0]) if bodies and not names else None


def _script_file(shell: Shell, command: Command) -> Path | None:
    """The project's shell script that a command runs, unless it was read before."""
    words = command.words
    if words[:1] and (words[0] in _SHELLS or words[0] in ("source", ".")):
        words = tuple(word for word in words[1:] if not word.startswith("-"))
        name = words[0] if words else ""
    else:
        name = command.whole[-len(words)] if words else ""
    if not name.endswith(".sh"):
        return None
    found = shell.host(name)
    return found if found is not None and found.is_file() and found not in shell.scripts else None


def _read_script_file(shell: Shell, command: Command, file: Path, nested: int) -> None:
    """Read a script of the project, whose variables and folder are its own."""
    shell.scripts.add(file)
    shown = shell.imported.shown(file)
    shell.add(command, Outcome.TRANSLATED, f"its commands, from {shown}")
    lines = shell.imported.read(file).splitlines()[:MAX_LINES]
    variables = ChainMap[str, str | None]({}, shell.variables)
    read_script(
        replace(shell, file=shown, variables=variables),
        [(number, f"{line}\n") for number, line in enumerate(lines, start=1)],
        nested,
    )


def _body_script(body: tuple[tuple[int, str], ...]) -> list[tuple[int, str]] | None:
    """The lines of a here-document, unless another program than a shell is to run them."""
    first = body[0][1] if body else ""
    if first.startswith("#!") and not re.match(r"#!\s*\S*/(?:env\s+)?(?:ba|da|a|z)?sh\b", first):
        return None
    return list(body)


def _output(shell: Shell, command: Command, step: Step) -> tuple[str, tuple[tuple[int, str], ...]] | None:
    """The file that `cat`, `tee` and `echo` write, and its lines with those before; None if they write none."""
    outputs = [each.target for each in step.redirections if each.operator in (">", ">>", ">|")]
    bodies = [each.body for each in step.redirections if each.body]
    program, *words = command.words
    if program == "tee" and len(words) == 1:
        outputs = words
    if program == "echo" and not bodies and not any(word.startswith("-") for word in words):
        bodies = [tuple((command.source.line, f"{line}\n") for line in " ".join(words).split("\n"))]
    target = expand_text(outputs[-1], shell.variables).words[0] if outputs else "/dev/null"
    if program not in ("cat", "tee", "echo") or not bodies or target.startswith("/dev/"):
        return None
    appends = any(each.operator == ">>" for each in step.redirections)
    return target, (*(shell.written.get(shell.path(target), ()) if appends else ()), *bodies[0])


def write(shell: Shell, command: Command, name: str, body: tuple[tuple[int, str], ...]) -> None:
    """A file that a script writes."""
    shell.written[shell.path(name)] = body
    reason = "read where a command names it" if _READ_LATER.search(name) else OTHERS
    shell.add(command, Outcome.OUTSIDE, reason)


def _read_files(shell: Shell, command: Command, step: Step) -> None:
    """A redirection without a program: it makes an empty file, or a here-document that no shell reads."""
    if step.redirections and not step.words:
        shell.add(command, Outcome.OUTSIDE, OTHERS)


def _read_program(
    shell: Shell, command: Command, expanded: Expanded, runs: Runs, assigned: dict[str, str | None]
) -> None:
    head = _head(command.words)
    reader = next((read for pattern, read in READERS if re.fullmatch(pattern, head)), None)
    note = None if reader is not None else _note_of(head)
    if note is not None and (note.outcome is Outcome.OUTSIDE or runs is Runs.YES):
        shell.add(command, note.outcome, note.reason)
    elif runs is Runs.MAYBE:
        lost = Outcome.OUTSIDE if reader in OF_NO_PACKAGE else Outcome.NOT_UNDERSTOOD
        shell.add(command, lost, "whether it runs depends on the machine: see the condition before it")
    elif expanded.unknown and reader is not read_apt:
        lost = Outcome.OUTSIDE if reader in OF_NO_PACKAGE else Outcome.NOT_UNDERSTOOD
        shell.add(command, lost, expanded.problem)
        if reader is read_export:
            shell.variables.update(dict.fromkeys(word.partition("=")[0] for word in command.words[1:]))
    elif reader is not None:
        _read(shell, command, reader, assigned)


#: Programs whose `install` installs no packages of an environment.
_NO_INSTALLERS: Final = (
    r"(make|ninja|cmake|meson|go|cargo|rustup|npm|npx|yarn|pnpm|nvm|git|pre-commit|playwright|python|install|echo|sed"
    r"|cat|grep|awk|find|xargs) "
)


def _note_of(head: str) -> Note:
    found = next((note for note in NOTES if re.fullmatch(note.command, head, re.DOTALL)), None)
    if found is not None:
        return found
    if re.fullmatch(rf"(?!{_NO_INSTALLERS})\S+ (.* )?install( .*)?", head, re.DOTALL):
        return Note("", Outcome.NOT_UNDERSTOOD, "envspec does not know what this program installs")
    return Note("", Outcome.OUTSIDE, OTHERS)


def _read(shell: Shell, command: Command, reader: Reader, assigned: dict[str, str | None]) -> None:
    """Run a reader, after the variables in front of its program."""
    for name, value in assigned.items():
        text = f"{name}={value}"
        if value is not None and (ignored(name) or name in INDEXES or name in READ):
            read_variable(name, value, command.source, text, shell.imported)
        else:
            shell.add(
                command, Outcome.REFUSED, "a variable of a build: [build.NAME] env has those of one package", text
            )
    reader(shell, command)


def _head(words: Sequence[str]) -> str:
    """Program and first words without options, for the tables."""
    plain = [word for word in words[:40] if not word.startswith("-") or word in ("-", "--version")]
    return " ".join([words[0], *(plain[1:9])])[:1000].lower() if words else ""


@dataclass(slots=True)
class CommandsDocument:
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
