"""The instructions of a stage of a Dockerfile -> the draft of a spec."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from envspec.importers.base_images import read_base_image
from envspec.importers.dockerfile_syntax import Instruction
from envspec.importers.shell import NO_PACKAGE, note_here_document, read_script, without_launcher
from envspec.importers.shell_state import Shell, is_at_or_below
from envspec.importers.shell_syntax import Expanded, expand_text
from envspec.importers.types import Clue, Draft, Import, Outcome, Source, Started
from envspec.importers.variables import READ, ignored, read_variable
from envspec.models import Platform
from envspec.structs import replace

#: Those of the platform, for linux-64. Source: Dockerfile reference, "Automatic platform ARGs in the global scope".
_OF_PLATFORM: Final = {
    f"{where}{name}": value
    for where in ("TARGET", "BUILD")
    for name, value in {"PLATFORM": "linux/amd64", "OS": "linux", "ARCH": "amd64", "VARIANT": ""}.items()
}
#: Docker's words for platforms of a spec.
_PLATFORMS: Final = {"linux/amd64": Platform.LINUX_64, "linux/arm64": Platform.LINUX_AARCH64}
#: Of CMD and ENTRYPOINT in their shell form. Source: Dockerfile reference, "SHELL".
_SHELL: Final = ("/bin/sh", "-c")
#: Of files that a pattern in COPY matches.
_MOST_MATCHES: Final = 100

#: Instructions that concern containers, not environments.
NOTES: Final = {
    **dict.fromkeys(("CMD", "ENTRYPOINT"), "a later instruction replaces it"),
    "EXPOSE": "publish ports at the start: `envspec run --port HOST:CONTAINER`",
    "USER": "`envspec run` starts containers as the caller; images with [services] as `envspec`, 1000",
    "VOLUME": "folders are mounted at the start: `envspec run --mount SRC:DST`",
    **dict.fromkeys(("LABEL", "MAINTAINER", "HEALTHCHECK", "STOPSIGNAL", "SHELL", "ONBUILD"), NO_PACKAGE),
}


def read_argument(
    imported: Import,
    source: Source,
    each: Instruction,
    variables: MutableMapping[str, str | None],
    given: Mapping[str, str],
    defaults: Mapping[str, str | None],
) -> None:
    """Read an ARG into `variables`. given: arguments of the build. defaults: of arguments that have a value before."""
    for word in each.words:
        name, equals, raw = word.partition("=")
        value = expand_text(raw, ChainMap(dict(defaults), variables)) if equals else None
        text, reason = f"ARG {word}", "its default is used"
        if name in given:
            variables[name], reason = given[name], f"the build has {given[name]!r}"
        elif value is not None and not value.unknown:
            variables[name] = value.words[0]
        elif name in defaults:
            variables[name], reason = defaults[name], "its value is that before FROM"
        elif name in _OF_PLATFORM:
            variables[name], reason = _OF_PLATFORM[name], f"{_OF_PLATFORM[name]!r}, as for linux-64"
        elif name not in variables:
            variables[name] = None
            reason = "it has no default: lines that need its value are not understood"
        imported.add(source, text, Outcome.OUTSIDE, reason)


def flags_of(each: Instruction) -> tuple[dict[str, str], list[str]]:
    """The options of an instruction, and its words, also those of its JSON form."""
    given: dict[str, str] = {}
    value = each.value
    while found := re.match(r"\s*--([a-z-]+)(?:=(\S*))?(?:\s+|$)", value):
        given[found[1]] = found[2] or ""
        value = value[found.end() :]
    rest = each._replace(value=value)
    return given, rest.json_words or rest.words


class StageReader(Struct):
    """Reads the instructions of one stage.

    contexts: folders of files that are copied.
    stage: the shell at the end of another stage, by its name or number.
    defaults: of arguments.
    given: arguments of the build.
    counted: where packages are installed that the spec has.
    base: the base image, empty if it is a stage.
    last: name of an instruction -> the one that decides for the image.
    """

    imported: Import
    shell: Shell
    contexts: tuple[Path, ...]
    stage: Callable[[str], Shell | None]
    defaults: Mapping[str, str | None]
    given: Mapping[str, str]
    counted: Set[Source] = frozenset()
    base: str = ""
    last: Mapping[str, Instruction] = field(default_factory=dict)

    def read_image(self, instructions: Sequence[Instruction], base: str, last: Mapping[str, Instruction]) -> None:
        """A stage of the image."""
        self.base, self.last = base, last
        for each in instructions:
            self._read(each)

    def read_environment(self, instructions: Sequence[Instruction], base: str) -> None:
        """A stage whose environment is copied into the image: its Python and its packages count."""
        self.base, self.shell.has_system = base, False
        for each in instructions:
            if each.name in ("ARG", "WORKDIR", "RUN", "COPY", "ADD"):
                self._read(each)
            elif each.name == "FROM":
                self._base_of_environment(each)
            else:
                # For which GPUs the environment is compiled, a variable of the stage says.
                scratch = replace(self.imported, draft=Draft(), ledger=[])
                if each.name == "ENV":
                    replace(self, imported=scratch).read_env(each)
                outcome, reason = Outcome.OUTSIDE, "only the stage's environment is in the image"
                if gpus := scratch.draft.gpus:
                    self.imported.draft.gpus += gpus
                    outcome = Outcome.TRANSLATED
                    reason += f"; [cuda] gpus: {', '.join(gpu.value for gpu in gpus)}"
                self._add(each, outcome, reason)

    def read_unused(self, instructions: Sequence[Instruction], reason: str) -> None:
        """A stage that is not in the image."""
        for each in instructions:
            self._add(each, Outcome.OUTSIDE, reason)

    def _read(self, each: Instruction) -> None:
        read, note = READERS.get(each.name), NOTES.get(each.name)
        if each.name in ("CMD", "ENTRYPOINT"):
            self.read_start(each)
        elif each.name == "EXPOSE":
            self.read_ports(each)
        if read is not None:
            read(self, each)
        elif each.name in ("CMD", "ENTRYPOINT") and self.last.get(each.name) is each:
            self._take_start(each)
        elif note is not None:
            self._add(each, Outcome.OUTSIDE, note)
        else:
            self._add(each, Outcome.NOT_UNDERSTOOD, "no instruction of a Dockerfile")

    def read_start(self, each: Instruction) -> None:
        """CMD and ENTRYPOINT: what a container starts, with the text of a script of the project."""
        words = each.json_words or each.value.split()
        lines = [" ".join(words)]
        for word in words:
            if not word.endswith(".sh"):
                continue
            path = self.shell.host(word)
            if path is not None and path.is_file():
                text = self.imported.read(path)
                lines += [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        self.imported.draft.starts.append(Clue("\n".join(lines), self.at(each), each.name))

    def _take_start(self, each: Instruction) -> None:
        """The CMD or ENTRYPOINT that the image has, without what activates an environment in front of a program."""
        words = tuple(each.json_words)
        is_shell = not words and each.value != "[]"
        if is_shell:
            words = tuple(each.value.split())
        if words[:1] in ((), ("",)):
            self._add(each, Outcome.OUTSIDE, "the base's is not used")
            return
        if any("\0" in word for word in words):
            self._add(each, Outcome.NOT_UNDERSTOOD, "it has a NUL character")
            return
        needed = [self.imported.shown(file) for file in map(self.shell.host, words) if file and file.is_file()]
        started = self._in_environment(words)
        if is_shell:
            text = each.value if started == words else " ".join(started)
            shell = self.last["SHELL"].json_words if "SHELL" in self.last else _SHELL
            started = (*shell, text)
        key = "command" if each.name == "CMD" else "entrypoint"
        self.imported.draft.started[key] = Started(started, self.at(each))
        reason = f"[image] {key}"
        if needed:
            reason += f"; it needs {', '.join(needed)} in the image: [image] copy"
        self._add(each, Outcome.TRANSLATED, reason)

    def _in_environment(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The same in an image, whose one environment is always active."""
        words = without_launcher(words)
        folder, name = posixpath.split(words[0])
        place, bin_folder = posixpath.split(self.shell.path(folder))
        if folder and bin_folder == "bin" and place in self.shell.environments:
            return (name, *words[1:])
        return words

    def read_ports(self, each: Instruction) -> None:
        """EXPOSE."""
        for word in each.words:
            if port := re.match(r"\d+", word):
                self.imported.draft.ports.append(Clue(port[0], self.at(each), "EXPOSE"))

    def _add(self, each: Instruction, outcome: Outcome, reason: str = "", text: str = "") -> None:
        self.imported.add(self.at(each), text or each.text, outcome, reason)

    def at(self, each: Instruction) -> Source:
        """Where an instruction begins."""
        return Source(self.shell.file, each.line)

    def _value(self, each: Instruction, text: str) -> str | None:
        """A text with its variables; None, with an entry, if one is not known."""
        expanded = expand_text(text, self.shell.variables)
        if expanded.problem:
            self._add(each, Outcome.NOT_UNDERSTOOD, expanded.problem)
            return None
        return expanded.words[0]

    def read_from(self, each: Instruction) -> None:
        """FROM: what the base image's name says."""
        given, _ = flags_of(each)
        if platform := _PLATFORMS.get(given.get("platform", "")):
            self.imported.draft.platforms.append(Clue(platform.value, self.at(each), each.text))
        if not self.base:
            self._add(each, Outcome.OUTSIDE, "starts from a stage before")
        elif unknown := tuple(re.findall(r"\$\{?\w+\}?", self.base)):
            self._add(each, Outcome.NOT_UNDERSTOOD, Expanded((self.base,), unknown).problem)
        else:
            read_base_image(self.base, self.at(each), each.text, self.imported)

    def _base_of_environment(self, each: Instruction) -> None:
        scratch = replace(self.imported, draft=Draft(), ledger=[])
        replace(self, imported=scratch).read_from(each)
        draft, own = self.imported.draft, scratch.draft
        draft.pythons += own.pythons
        draft.dependencies += own.dependencies
        for name, version in own.versions.items():
            draft.versions.setdefault(name, version)
        reason = "only the environment of the stage is in the image"
        if own.pythons:
            reason += f": [env] python {own.pythons[0].value}"
        self._add(each, Outcome.TRANSLATED, reason)

    def read_arg(self, each: Instruction) -> None:
        """ARG, whose value a variable of ENV precedes."""
        read_argument(self.imported, self.at(each), each, self.shell.variables, self.given, self.defaults)

    def read_env(self, each: Instruction) -> None:
        """ENV, also in its older form `ENV NAME VALUE`."""
        words = each.words
        if words and "=" not in words[0]:
            words = [f"{words[0]}={each.value.partition(words[0])[2].strip()}"]
        values: dict[str, str | None] = {}
        for word in words:
            name, _, raw = word.partition("=")
            text, own = f"ENV {word}", raw
            if name not in self.shell.variables:
                # Of the base image's variables nothing is known: `PYTHONPATH=$PYTHONPATH:/app` adds to an empty one.
                before = rf"\$(?:{re.escape(name)}\b|\{{{re.escape(name)}\}})"
                own = re.sub(rf"{before}:|:{before}$", "", raw)
            expanded = expand_text(own, self.shell.variables)
            value = expanded.words[0]
            values[name] = None if expanded.unknown else value
            if ignored(name) is not None:
                read_variable(name, own, self.at(each), text, self.imported)
            elif name == "LD_LIBRARY_PATH":
                # Of the base image's folders nothing is known, and the environment has its own.
                read_variable(name, value, self.at(each), text, self.imported)
            elif expanded.unknown and all(map(self._is_argument, expanded.unknown)):
                self._add(each, Outcome.OUTSIDE, "its value is a build argument without a default", text)
            elif expanded.unknown:
                self._add(each, Outcome.NOT_UNDERSTOOD, expanded.problem, text)
            elif own == raw or name in READ:
                read_variable(name, value, self.at(each), text, self.imported)
            else:
                self.imported.draft.env[name] = value
                self._add(each, Outcome.TRANSLATED, f"{value}, without what the base image may set", text)
        # Variables of one instruction do not see each other. Source: Dockerfile reference, "Environment replacement".
        self.shell.variables.update(values)

    def _is_argument(self, word: str) -> bool:
        """Whether a variable is declared by an ARG without a value."""
        name = re.sub(r"\W", "", word)
        return name in self.shell.variables and self.shell.variables[name] is None

    def read_workdir(self, each: Instruction) -> None:
        """WORKDIR: the image has the last one."""
        value = self._value(each, each.value)
        if value is None:
            return
        self.shell.workdir = self.shell.path(value)
        if each is self.last.get("WORKDIR"):
            self.imported.draft.workdir = self.shell.workdir
            self._add(each, Outcome.TRANSLATED, f"[image] workdir {self.shell.workdir}")
        else:
            self._add(each, Outcome.OUTSIDE, "paths after it start there")

    def read_run(self, each: Instruction) -> None:
        """RUN: its commands, each with an entry of its own."""
        parts = [*each.parts]
        words = each.json_words
        if words:
            parts = [(each.line, f"{shlex.join(words)}\n")]
        for at, (line, text) in enumerate(parts):
            rest = self._without_flags(text)
            parts[at] = (line, rest)
            if rest.strip():
                break
        parts += each.documents
        variables = ChainMap[str, str | None]({}, self.shell.variables)
        shell = replace(self.shell, imported=self.imported, variables=variables)
        read_script(shell, parts)

    def _without_flags(self, text: str) -> str:
        while found := re.match(r"\s*--[a-z]+=(\S*)\s*", text):
            text = text[found.end() :]
            mount: dict[str, str] = {}
            for part in str(found[1]).split(","):
                key, _, value = part.partition("=")
                mount[key] = value
            source = mount.get("source", mount.get("src", "."))
            target = mount.get("target", mount.get("dst", ""))
            if mount.get("type", "bind") != "bind" or not target:
                continue
            if "from" in mount:
                self._take_from(mount["from"], [posixpath.join("/", source)], self.shell.path(target))
                continue
            for file in self._files(source):
                self.shell.copy(self.shell.path(target), file)
        return text

    def read_copy(self, each: Instruction) -> None:
        """COPY and ADD: which of the project's files are where."""
        given, words = flags_of(each)
        if "from" in given and len(words) > 1:
            self._copy_stage(each, given["from"], [expand_text(word, self.shell.variables) for word in words])
            return
        values = [value for word in words if (value := self._value(each, word)) is not None]
        if len(values) < len(words):
            return
        if len(values) < 2:
            self._add(each, Outcome.NOT_UNDERSTOOD, "no destination")
            return
        *sources, target = values
        if each.documents:
            self._add(each, Outcome.OUTSIDE, NO_PACKAGE)
            note_here_document(replace(self.shell, imported=self.imported), each.documents)
        elif any(re.match(r"[a-z+]+://|git@", source) for source in sources):
            self._add(each, Outcome.OUTSIDE, NO_PACKAGE)
        else:
            self._copy_files(each, sources, target)

    def _copy_stage(self, each: Instruction, name: str, words: Sequence[Expanded]) -> None:
        """words: the paths in the stage, and the destination."""
        found = self.stage(name)
        if found is None:
            if re.search(r"astral(-sh)?/uv\b", name):
                self._add(each, Outcome.OUTSIDE, "envspec installs packages itself")
            else:
                reason = f"an image has no files of {name}: install them by [system] apt, or choose it as [image] base"
                self._add(each, Outcome.OUTSIDE, reason)
            return
        sources = []
        for word in words[:-1]:
            if word.unknown:
                # It may be any path: what the stage makes is not lost.
                sources.append("/")
            else:
                sources.append(posixpath.join("/", word.words[0]))
        if self._take_from(name, sources, words[-1].words[0]):
            self._add(each, Outcome.TRANSLATED, f"the packages that the stage {name} installs")
        else:
            reason = f"what the stage {name} builds is not in the image: build it into a wheel, or into [image] base"
            outcome = Outcome.REFUSED if {*found.packages} - self.counted else Outcome.OUTSIDE
            self._add(each, outcome, reason)

    def _take_from(self, name: str, sources: Sequence[str], target: str) -> bool:
        """Take over what is in folders of a stage; whether a Python environment or wheels are among it."""
        found = self.stage(name)
        if found is None:
            return False
        place = self.shell.path(target)
        for source in sources:
            self.shell.taken.append((name, source))
            for folder, clone in found.clones.items():
                if is_at_or_below(folder, source):
                    inside = posixpath.join(place, posixpath.relpath(folder, source))
                    self.shell.clones[posixpath.normpath(inside)] = clone
            if source in found.environments:
                self.shell.environments[place] = None
            if (host := found.host(source)) is not None:
                self.shell.copy(self._target(target, host, sources), host)
            file = posixpath.join(place, posixpath.basename(source)) if target.endswith(("/", ".")) else place
            if (export := found.exports.get(source)) is not None:
                self.shell.exports[file] = export
        is_environment = any(map(found.has_environment, sources))
        if is_environment:
            self.shell.built[place] = None
        return is_environment

    def _copy_files(self, each: Instruction, sources: Sequence[str], target: str) -> None:
        found: list[Path] = []
        for source in sources:
            found += self._files(source)
        for file in found:
            self.shell.copy(self._target(target, file, sources), file)
        names = ", ".join(json.dumps(self.imported.shown(file)) for file in found[:5])
        if not found:
            self._add(each, Outcome.OUTSIDE, f"no such file in {' or '.join(map(self.imported.shown, self.contexts))}")
        elif all(map(self._is_source, found)):
            self._add(each, Outcome.OUTSIDE, "read where a command names it")
        else:
            self._add(each, Outcome.OUTSIDE, f"the project's files are not in this spec: [image] copy = [{names}]")

    def _is_source(self, file: Path) -> bool:
        """Whether a file is read where a command names it, or a folder has only such files."""
        if file in self.contexts:
            return False
        files = list(islice(file.iterdir(), _MOST_MATCHES + 1)) if file.is_dir() else [file]
        return len(files) <= _MOST_MATCHES and all(each.is_file() and self.imported.find(each) for each in files)

    def _target(self, target: str, file: Path, sources: Sequence[str]) -> str:
        """Where a file is afterwards; of a folder, the content is copied."""
        path = self.shell.path(target)
        is_folder = target.endswith("/") or len(sources) > 1 or path == self.shell.workdir or "*" in sources[0]
        if file.is_file() and (is_folder or path in self.shell.copies):
            return posixpath.join(path, file.name)
        return path

    def _files(self, source: str) -> list[Path]:
        """The project's files that COPY names, which are in its folder."""
        relative = source.lstrip("/") or "."
        if ".." in relative.split("/") or not relative.isprintable() or len(relative) > 1000:
            return []
        for context in self.contexts:
            matches = iter([context / relative])
            if re.search(r"[*?\[]", relative):
                matches = context.glob(re.sub(r"\*+", "*", relative))
            found = [file for file in islice(matches, _MOST_MATCHES) if _is_in(file, context)]
            if found:
                return sorted(found)
        return []


def _is_in(file: Path, folder: Path) -> bool:
    return file.exists() and file.resolve().is_relative_to(folder.resolve())


#: Instruction -> what reads it.
READERS: Final[dict[str, Callable[[StageReader, Instruction], None]]] = {
    "FROM": StageReader.read_from,
    "ARG": StageReader.read_arg,
    "ENV": StageReader.read_env,
    "WORKDIR": StageReader.read_workdir,
    "RUN": StageReader.read_run,
    "COPY": StageReader.read_copy,
    "ADD": StageReader.read_copy,
}
