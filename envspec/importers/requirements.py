"""Requirements files as pip reads them, and what pip-compile, uv and `pip freeze` write."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from envspec.adopt.rows import Row
from envspec.importers.conda_explicit import read_explicit
from envspec.importers.pip import Use, add_option, add_requirement, is_flag, is_required_by_torch
from envspec.importers.python_locks import PYTHONS, on_linux
from envspec.importers.types import Import, Locked, Outcome, Source, Unreadable
from envspec.names import normalised
from envspec.origins import INDEX_FAMILY
from envspec.spec.pip_lines import NAME, name_in, option_of

#: Files of one import: they include each other.
_MOST_FILES: Final = 100
#: As many as a spec may have requirements.
_MOST_LINES: Final = 20_000
#: From so many pins on, and if there is nothing else, a file was probably written by `pip freeze`.
_FROZEN: Final = 20
#: A line copied from a README.
_COMMAND: Final = re.compile(r"(?:python3?\s+-m\s+|uv\s+)?pip3?\s+install\s")
_COMMENT: Final = re.compile(r"(?:^|\s)#(.*)$")
_PIN: Final = re.compile(rf"\s*({NAME})\s*(?:\[[^\]]*\])?\s*(?:===?\s*[^\s,;*]+\s*(?:$|[;\s\\])|@\s)")


class _Line(NamedTuple):
    """A line without comments, continued lines joined. number: its first. via: what requires it, if a comment says."""

    number: int
    text: str
    via: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of what it requires, normalised; empty for options."""
        return name_in(self.text)

    @property
    def shown(self) -> str:
        """As the ledger has it: a compiled line can have a hundred hashes."""
        return re.sub(r"(?:\s+--hash[=\s]\S+){2,}", " --hash=...", self.text)

    @property
    def is_option(self) -> bool:
        return self.text.startswith("-") and option_of(self.text)[0] != "editable"

    @property
    def is_pin(self) -> bool:
        return self.text.startswith("-") or bool(_PIN.match(self.text))


def read_requirements(path: Path, imported: Import) -> None:
    """Read a requirements file.

    A file that pip-compile or uv wrote, with comments such as `# via torch`, says what is required directly: the
    others are preferred versions. If the files that it was compiled from exist (`-r requirements.in` in its comments,
    or a file `.in` beside it), these have the requirements, and all of its pins are preferred versions. The pins of
    any other file are requirements, as written. A list of conda packages under `@EXPLICIT` has the same ending.
    """
    if re.search(r"^@EXPLICIT\s*$", imported.read(path), re.MULTILINE):
        read_explicit(path, imported)
        return
    _read(path, imported, Use.DEPENDENCIES)
    compiled = path.with_suffix(".txt")
    if path.suffix == ".in" and compiled.is_file() and compiled.resolve() not in imported.done:
        lines = _lines(compiled, imported)
        if _is_pinned(lines):
            imported.done.add(compiled.resolve())
            name = imported.shown(compiled)
            note = f"compiled from {imported.shown(path)}: its pins are preferred versions"
            imported.add(Source(name), name, Outcome.TRANSLATED, note)
            _add(compiled, lines, imported, Use.VERSIONS)


def add_line(
    text: str, by: Source, imported: Import, folder: Path, use: Use = Use.DEPENDENCIES, shown: str = ""
) -> None:
    """Read a line of a requirements file, or an argument of `pip install` with its value.

    text: without comments, continued lines joined. by: where it is written; its entries are added to the ledger, one
    for each option. folder: that relative paths start from. shown: the line as its entry has it.
    """
    command = _COMMAND.match(text)
    if not text.startswith("-") and not command:
        imported.add(by, shown or text, *add_requirement(text, by, imported, folder, use))
        return
    try:
        options = list(_split(shlex.split(text[command.end() :] if command else text)))
    except ValueError as error:
        imported.add(by, text, Outcome.NOT_UNDERSTOOD, f"it is not an option of pip: {str(error).lower()}")
        return
    for option in options:
        name, value = option_of(option)
        if name in ("requirement", "constraint"):
            _include(option, name, value, by, imported, folder)
        elif name:
            imported.add(by, option, *add_option(name, value, by, imported, folder, use))
        else:
            imported.add(by, option, *add_requirement(option, by, imported, folder, use))


def _split(words: list[str]) -> Iterator[str]:
    """Each option of a line with its value, and each requirement."""
    option: list[str] = []
    for word in words:
        if option and (word.startswith("-") or is_flag(option[0]) or not option[0].startswith("-")):
            yield " ".join(option)
            option = []
        option.append(word)
    if option:
        yield " ".join(option)


def _include(text: str, name: str, value: str, by: Source, imported: Import, folder: Path) -> None:
    """Read the file of a `-r` or `-c`, each once."""
    path = folder / value
    shown = imported.shown(path)
    if "://" in value or not value:
        imported.add(by, text, Outcome.REFUSED, "only files are read: save it beside this one, and name its path")
    elif len(imported.done) > _MOST_FILES:
        imported.add(by, text, Outcome.REFUSED, f"more than {_MOST_FILES} files include each other")
    elif name == "requirement":
        imported.include(path, by, text)
    elif not path.is_file():
        imported.add(by, text, Outcome.REFUSED, f"there is no file {shown}")
    elif imported.find(path) is not read_requirements:
        imported.add(by, text, Outcome.NOT_UNDERSTOOD, f"{shown} is not named as a requirements file")
    else:
        imported.add(by, text, Outcome.TRANSLATED, f"[pip] constraints: the lines of {shown}")
        # What was read as requirements is bounded by them already.
        if not any(entry.source.file == shown for entry in imported.ledger):
            _read(path, imported, Use.CONSTRAINTS)


def _read(path: Path, imported: Import, use: Use) -> None:
    lines = _lines(path, imported)
    name = imported.shown(path)
    required = [line for line in lines if not line.is_option]
    if use is Use.DEPENDENCIES and _is_pinned(lines):
        sources = _compiled_from(path, lines, imported)
        if sources:
            use = Use.VERSIONS
            which = ", ".join(map(imported.shown, sources))
            note = f"compiled from {which}, whose lines are the requirements; its pins are preferred versions"
            imported.add(Source(name), name, Outcome.TRANSLATED, note)
            for source in sources:
                if importer := imported.find(source):
                    imported.run(importer, source)
        elif len(required) >= _FROZEN and not any(line.via for line in lines):
            note = (
                f"all {len(required)} requirements are pins, and the file does not list which are required by others: "
                "all are dependencies, as written; `envspec init --prefix` of the environment itself separates them"
            )
            imported.add(Source(name), name, Outcome.TRANSLATED, note)
    _add(path, lines, imported, use)


def _is_pinned(lines: list[_Line]) -> bool:
    required = [line for line in lines if not line.is_option]
    return bool(required) and all(line.is_pin for line in required)


def _compiled_from(path: Path, lines: list[_Line], imported: Import) -> list[Path]:
    """The files that a compiled one was made of; empty unless all that it names exist."""
    named: dict[str, None] = {}
    for line in lines:
        named.update(dict.fromkeys(map(_file_of, line.via)))
    named.pop("", None)
    beside = path.with_suffix(".in")
    if not named and path.suffix == ".txt" and beside.is_file():
        return [beside]
    found: list[Path] = []
    for file in named:
        # pip-compile writes paths from the folder where it was run.
        files = filter(Path.is_file, (path.parent / file, imported.root / file))
        source = next(filter(imported.find, files), None)
        if source is None or source.resolve() == path.resolve():
            return []
        found.append(source)
    return found


def _file_of(via: str) -> str:
    """The file of `-r requirements.in` and of `name (pyproject.toml)`; empty for a package."""
    found = re.fullmatch(rf"-r\s+(\S.*)|{NAME}(?:\[[^\]]*\])?\s+\(([^()]+)\)", via)
    return (found[1] or found[2]) if found else ""


def _add(path: Path, lines: list[_Line], imported: Import, use: Use) -> None:
    name = imported.shown(path)
    names = {line.name for line in lines}
    has_torch = not names.isdisjoint(INDEX_FAMILY)
    others = _for_others(lines, name, imported)
    for line in lines:
        by = Source(name, line.number)
        reason = "its version is preferred" if use is Use.VERSIONS else ""
        if use is Use.DEPENDENCIES and line.name and line.is_pin:
            if line.via and not _is_direct(line.via, names):
                reason = f"required by {', '.join(line.via[:3])}: its version is preferred"
            elif has_torch and is_required_by_torch(line.name):
                reason = "required by torch: its version is preferred"
        if line.is_option or not reason:
            add_line(line.text, by, imported, path.parent, use, line.shown)
        elif line.number in others:
            imported.add(by, line.shown, Outcome.TRANSLATED, others[line.number])
        else:
            text = line.text.removeprefix("-e ").strip()
            verdict = add_requirement(text, by, imported, path.parent, Use.VERSIONS, (reason,))
            imported.add(by, line.shown, *verdict)


def _for_others(lines: list[_Line], file: str, imported: Import) -> dict[int, str]:
    """The numbers of lines with pins of a name that has a better one, by their markers, and why."""
    by_name: dict[str, dict[int, Row]] = {}
    for line in lines:
        if line.name and _PIN.match(line.text):
            version = re.search(r"==+\s*([^\s;,]+)", line.text)
            marker = re.search(r";\s*([^#]*?)(?:\s--?[a-z].*)?$", line.text)
            row = Row(line.name, version[1] if version else "", marker=marker[1].strip() if marker else "")
            by_name.setdefault(line.name, {})[line.number] = row
    found_others: dict[int, str] = {}
    for name, rows in by_name.items():
        found = on_linux(rows.values(), imported)
        chosen = next(iter(found.values()), [*rows.values()][-1])
        series = tuple(each for each, row in found.items() if row is chosen)
        for number, row in rows.items():
            if row is not chosen:
                found_others[number] = f"not preferred: {chosen.version} is: it is the one for linux-64"
            elif len(series) < len(PYTHONS):
                imported.draft.locked.setdefault(name, Locked(series, is_default=True, source=Source(file, number)))
    return found_others


def _is_direct(via: tuple[str, ...], names: set[str]) -> bool:
    """Whether a file or a project requires it that is not in the file itself, as `uv export --no-emit-project` writes.

    names: those of the file.
    """
    others = [each for each in via if not each.startswith("-c ")]
    return any(_file_of(each) or normalised(each.partition("[")[0]) not in names for each in others)


def _lines(path: Path, imported: Import) -> list[_Line]:
    """The lines with a meaning, as pip joins them: a comment ends a continued line."""
    found: list[tuple[int, str, list[str]]] = []
    parts: list[str] = []
    comments: list[str] = []
    first = 0
    for number, line in enumerate([*imported.read(path).splitlines(), ""], 1):
        is_comment = bool(re.match(r"\s*#", line))
        if not parts:
            first = number
        if line.endswith("\\") and not is_comment:
            parts.append(line.rstrip("\\"))
            continue
        joined = "".join([*parts, line])
        comment = _COMMENT.search(joined)
        text = _COMMENT.sub("", joined).strip()
        if text:
            comments = []
            found.append((first, text, comments))
        # Below a requirement, indented, compilers write what requires it.
        if comment and (text or line[:1].isspace()):
            comments.append(comment[1])
        elif not text:
            comments = []
        parts = []
    if len(found) > _MOST_LINES:
        raise Unreadable(f"{imported.shown(path)} has more than {_MOST_LINES} requirements")
    return [_Line(number, text, tuple(_via(comments))) for number, text, comments in found]


def _via(comments: list[str]) -> Iterator[str]:
    """What requires a package, by `via torch, -r requirements.in`, or by `via` and an item on each line."""
    for at, comment in enumerate(map(str.strip, comments)):
        if re.match(r"via\b", comment):
            items = [*comment.removeprefix("via").split(","), *comments[at + 1 :]]
            yield from filter(None, map(str.strip, items))
            return
