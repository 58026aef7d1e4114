"""The draft of a spec -> its text. Reads and writes no file, but corrects the ledger, and may add requirements."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envspec.documents import parse_toml
from envspec.errors import UsageError
from envspec.facts import Facts
from envspec.importers.project import not_included
from envspec.importers.python_locks import python_versions
from envspec.importers.result import Imported
from envspec.importers.services import services_of, start_of
from envspec.importers.spec_cuda import WITH_CUDA, WITHOUT_CUDA, CudaTable, TableWriter
from envspec.importers.spec_lines import Overrides, is_implied
from envspec.importers.types import (
    CPU,
    PYTHON_SERIES,
    Choices,
    Clue,
    DraftIndex,
    DraftRequirement,
    Import,
    LedgerEntry,
    Outcome,
    PipFrom,
    Source,
)
from envspec.lockfile.toml_writer import Value, bare_key, string
from envspec.models import Platform
from envspec.names import normalised
from envspec.origins import INDEX_FAMILY
from envspec.spec.conda import read_match_spec, read_preferred_record
from envspec.spec.dates import Age, read_as_of, time_text
from envspec.spec.errors import BadValue
from envspec.spec.pip_lines import index_name, name_in
from envspec.spec.requirements import Requirement, local_address, read_constraint, read_preference, read_requirement
from envspec.spec.values import env_name, read_index_url, read_python

#: Images upgrade them before they install a lock.
_INSTALLERS: Final = frozenset({"pip", "setuptools", "wheel"})
#: Of editors, at the top of the project.
SCHEMA: Final = "envspec.schema.json"


def spec_of(imported: Import, choices: Choices, facts: Facts, folder: Path, now: datetime) -> Imported:
    """The spec of a draft, which is not written yet. Lines that no spec can have become refused entries of the ledger.

    folder: of the spec's file, from which it names local projects. now: its as_of unless something else is said.
    """
    writer = _SpecWriter(imported, choices, facts, folder, now)
    text = "".join(writer.tables())
    note_unused(imported, parse_toml(text))
    with_cuda = text.replace(WITHOUT_CUDA, WITH_CUDA)
    if with_cuda == text:
        with_cuda = ""
    # Last: the writer corrects entries, and adds some.
    ledger, decisions = tuple(imported.ledger), tuple(writer.decisions)
    return Imported(writer.name, folder / f"{writer.name}.toml", text, ledger, decisions, with_cuda=with_cuda)


def note_unused(imported: Import, spec: Mapping[str, Any]) -> None:
    """Name in the ledger what the spec has in place of a source's value: the writer chooses one of several, or none."""
    draft = imported.draft
    for clues, table, key in (
        (draft.cudas, "cuda", "version"),
        (draft.flavors, "cuda", "flavor"),
        (draft.pythons, "env", "python"),
    ):
        actual = str(spec.get(table, {}).get(key, ""))
        instead = f"the spec has [{table}] {key} {actual}" if actual else f"the spec has no [{table}] {key}"
        for clue in clues:
            is_range = table == "env" and not re.fullmatch(r"3\.\d+(?:\.\d+)?", clue.value)
            is_used = actual and f"{clue.value}.".startswith(f"{actual}.")
            if not (is_range or is_used or clue.value == CPU):
                _note(imported.ledger, clue.source, instead)


def _note(ledger: list[LedgerEntry], source: Source, note: str) -> None:
    """Add a note to the entry of a source."""
    for at, entry in enumerate(ledger):
        if entry.source == source and entry.outcome is not Outcome.OUTSIDE and note not in entry.reason:
            outcome = Outcome.TRANSLATED if entry.outcome is Outcome.KEPT else entry.outcome
            reason = "; ".join(filter(None, (entry.reason, note)))
            ledger[at] = entry._replace(outcome=outcome, reason=reason)
            return


class _SpecWriter(TableWriter):
    def __init__(self, imported: Import, choices: Choices, facts: Facts, folder: Path, now: datetime) -> None:
        super().__init__(imported, choices, facts)
        self._folder = folder.resolve()
        self._now = now
        self.name = env_name(choices.name or self._draft.name or imported.root.resolve().name)

    def tables(self) -> Iterator[str]:
        """The text of each table."""
        draft, choices = self._draft, self._choices
        if draft.pip_from is not None:
            self._refuse_beside_lock(draft.pip_from)
        services = services_of(self._imported)
        started = start_of(self._imported, services)
        platforms = choices.platforms or [Platform(each.value) for each in draft.platforms]
        platforms = tuple(dict.fromkeys(platforms)) or (Platform.LINUX_64,)
        read = self._read(draft.dependencies, read_requirement)
        bounds = [line for _, line in self._read(draft.constraints, read_constraint)]
        constraints = list(dict.fromkeys(line.text for line in bounds))
        python = self._python(self._torch_bounds([line for _, line in read] + bounds))
        overrides = Overrides(draft.overrides, platforms, python)
        required = self._required(read, overrides)
        dependencies = [each.text for each in required]
        torch = self._torch_bounds([*required, *bounds])
        schema = os.path.relpath(self._imported.root.resolve() / SCHEMA, self._folder).replace(os.sep, "/")
        yield f"#:schema {schema}\n# Written by `envspec init`; `envspec schema > {SCHEMA}` writes what editors read.\n"
        yield _table(
            "env",
            {
                "name": self.name,
                "python": python,
                "platforms": [each.value for each in platforms],
                **self._times(),
            },
        )
        yield self._cuda(torch, dependencies)
        if draft.pip_from is not None:
            yield _table("pip", self._pip_from(draft.pip_from))
        else:
            pip: dict[str, Value] = {
                "dependencies": dependencies,
                "constraints": constraints,
                "prefer": self._preferences({*dependencies}, overrides.removed()),
                "overrides": list(overrides.tables({each.name for each in required})),
            }
            # As they are locked: packages of conda count for pip's.
            yield from self._conda()
            yield _table("pip", pip)
            yield from self._indexes()
        yield _table("pip.build", {"packages": sorted(set(draft.build_packages))})
        yield _table("system", {"apt": sorted(set(draft.apt))})
        yield _table("services", dict(services))
        image: dict[str, Value] = {}
        if draft.bases:
            image = {"base": draft.bases[0].value, "packages": "keep"}
        yield _table("image", {**image, "env": draft.env, "workdir": draft.workdir or None, **started})

    def _pip_from(self, named: PipFrom) -> dict[str, Value]:
        path = os.path.relpath(named.path.resolve(), self._folder).replace(os.sep, "/")
        selected = named.selection
        return {"from": path, "extras": selected.extras, "groups": selected.groups, "members": selected.members}

    def _refuse_beside_lock(self, named: PipFrom) -> None:
        """Refuse requirements of other sources than the lock that the spec names."""
        draft, name = self._draft, self._imported.shown(named.path)
        if self._has_conda():
            raise UsageError(
                f"a spec has the packages of {name} or those of conda, and the sources have both",
                hint="name only the sources of one of them",
            )
        of_images = {entry.source for entry in self._imported.ledger if entry.text.upper().startswith("FROM ")}
        for each in (*draft.dependencies, *draft.constraints):
            if each.project is not None and each.project.resolve() == named.path.resolve().parent:
                self._leave_project(each, named)
            elif name_in(each.text) in _INSTALLERS:
                self._correct(each.source, Outcome.OUTSIDE, "envspec installs packages itself")
            elif each.source not in of_images:
                self._refuse(each, f"{name} has all packages of the spec: add it to the project, and lock it there")
        for base in draft.bases:
            reason = f"{name} has all packages, so those of this base do not count: envspec chooses another base"
            self._correct(base.source, Outcome.TRANSLATED, reason)
        draft.dependencies, draft.constraints, draft.overrides, draft.bases = [], [], [], []
        # Of a base image, whose packages the spec's Python does not see.
        draft.versions = {each: version for each, version in draft.versions.items() if each in draft.locked}

    def _leave_project(self, line: DraftRequirement, named: PipFrom) -> None:
        """Correct the entry of a line that installs the project of the lock, perhaps with extras."""
        reason = "the project itself is not in this spec: [image] project"
        missing = sorted({*read_requirement(line.text).extras} - {*named.selection.extras})
        if missing:
            self._refuse(line, "; ".join([reason, *(not_included("extra", extra) for extra in missing)]))
        else:
            self._correct(line.source, Outcome.OUTSIDE, reason)

    def _preferences(self, required: Collection[str], removed: Collection[str]) -> list[str]:
        """The versions that the first lock prefers. required: texts. removed: names that overrides remove."""
        found: list[str] = []
        for name, version in sorted(self._draft.versions.items()):
            text = f"{name}=={version}"
            if name in removed or text in required:
                continue
            if _is_valid(read_preference, text):
                found.append(text)
        return found

    def _cuda(self, torch: SpecifierSet, dependencies: Sequence[str]) -> str:
        cuda = CudaTable(self._imported, self._choices, self._facts)
        values = cuda.values(torch, dependencies)
        self.decisions += cuda.decisions
        return values if isinstance(values, str) else _table("cuda", values)

    def _read(
        self, lines: Iterable[DraftRequirement], read: Callable[[str], Requirement]
    ) -> list[tuple[DraftRequirement, Requirement]]:
        """The lines of a list of the spec, without what a spec refuses."""
        found = []
        for each in lines:
            text = each.text
            if each.project is not None:
                path = os.path.relpath(each.project.resolve(), self._folder).replace(os.sep, "/")
                text = text.replace("{path}", local_address(path))
            try:
                found.append((each, read(text)))
            except BadValue as bad:
                why = bad.found
                if bad.hint:
                    why += f" ({bad.hint})"
                self._refuse(each, why)
        return found

    def _required(
        self, read: Iterable[tuple[DraftRequirement, Requirement]], overrides: Overrides
    ) -> list[Requirement]:
        """The requirements as overrides make them, without those of which others demand more."""
        lines: dict[str, Requirement] = {}
        for line, requirement in read:
            replaced = overrides.replaced(requirement)
            if replaced is None:
                lines.setdefault(requirement.text, requirement)
                continue
            reason = "removed by the overrides: it applies nowhere"
            if replaced:
                reason = f"as {', '.join(replaced)}, by the overrides"
            self._correct(line.source, Outcome.TRANSLATED, reason)
            for text in replaced:
                lines.setdefault(text, read_requirement(text))
        waiting, kept = list(lines.values()), list[Requirement]()
        while waiting:
            each = waiting.pop(0)
            # `fschat` beside `fschat[webui]`.
            if not is_implied(each, [*kept, *waiting]):
                kept.append(each)
        return kept

    def _refuse(self, line: DraftRequirement | DraftIndex, why: str) -> None:
        """Refuse a line that its importer could translate, and a spec can't have."""
        if self._correct(line.source, Outcome.REFUSED, why):
            return
        text = line.text if isinstance(line, DraftRequirement) else line.url
        self._imported.ledger.append(LedgerEntry(line.source, text, Outcome.REFUSED, why))

    def _correct(self, source: Source, outcome: Outcome, reason: str) -> bool:
        """Correct the first entry of a source that is not lost; whether there is one."""
        ledger = self._imported.ledger
        for at, entry in enumerate(ledger):
            if entry.source == source and not entry.outcome.is_lost:
                ledger[at] = LedgerEntry(entry.source, entry.text, outcome, reason)
                return True
        return False

    def _torch_bounds(self, lines: Sequence[Requirement]) -> SpecifierSet:
        """The versions of torch that the sources allow; the installed one alone if it is known."""
        if (version := self._draft.versions.get("torch")) is not None:
            return SpecifierSet(f"=={Version(version).public}")
        found = SpecifierSet()
        for line in lines:
            if line.name == "torch":
                found &= line.specifier
        return found

    def _as_of(self) -> datetime | str:
        chosen = self._choices.as_of
        if chosen is not None:
            return chosen if isinstance(chosen, datetime) else str(chosen)
        for clue in self._draft.as_ofs:
            try:
                found = read_as_of(clue.value)
            except ValueError:
                continue
            if isinstance(found, Age) or found < self._now:
                # What is locked or installed is not newer.
                self._decide("env.as_of", clue.value, clue.why, str(clue.source))
                return found if isinstance(found, datetime) else str(found)
        return self._now

    def _times(self) -> dict[str, Value]:
        """The keys of [env] that bound uploads; none beside a lock that has all packages."""
        if self._draft.pip_from is not None:
            return {}
        return {"as_of": self._as_of(), "package_as_of": self._package_as_of()}

    def _package_as_of(self) -> dict[str, Value]:
        """The bounds on single packages; one that is not reached yet bounds nothing before now."""
        found: dict[str, Value] = {}
        for name, text in sorted(self._draft.package_as_ofs.items()):
            time = read_as_of(text)
            found[name] = str(time) if isinstance(time, Age) else min(time, self._now)
        return found

    def _python(self, torch: SpecifierSet) -> str:
        if self._choices.python:
            return self._choices.python
        for clue in self._draft.pythons:
            if _is_valid(read_python, clue.value):
                return self._exact_python(clue)
        if not self._draft.pythons and (found := self._python_of_system()):
            return found
        return self._python_in_bounds(torch)

    def _exact_python(self, clue: Clue) -> str:
        """The version that a source names, or its series if nothing has this patch."""
        series = ".".join(clue.value.split(".")[:2])
        patches = {row.version for row in self._facts.standalone_pythons(series, Platform.LINUX_64)}
        if clue.value == series or clue.value in patches:
            return self._decide("env.python", clue.value, clue.why, str(clue.source))
        why = f"{clue.why}; {clue.value} has no standalone build, the series' newest patch is used"
        if self._has_conda():
            # conda's Python has whatever version its channel has.
            if "python" not in self._draft.conda_versions:
                return self._decide("env.python", clue.value, clue.why, str(clue.source))
            why = f"{clue.why}; {clue.value} is preferred"
        return self._decide("env.python", series, why, str(clue.source))

    def _python_in_bounds(self, torch: SpecifierSet) -> str:
        """The preferred series that all sources allow, for which torch has a wheel."""
        clues = [each for each in self._draft.pythons if _is_valid(SpecifierSet, each.value)]
        allowed = [each.rpartition(".")[0] for each in python_versions(self._imported)]
        chosen = allowed[0]
        why = "; ".join(dict.fromkeys(each.why for each in clues)) or "no source names a Python version"
        with_wheels: set[str] = set()
        for row in self._facts.torch:
            if torch and torch.contains(row.version):
                with_wheels.update(row.pythons)
        fitting = [series for series in allowed if series in with_wheels]
        if fitting and fitting[0] != chosen:
            why += f"; torch{torch} has no wheel for {chosen}"
            chosen = fitting[0]
        return self._decide("env.python", chosen, why, ", ".join(str(each.source) for each in clues))

    def _python_of_system(self) -> str:
        """The Python that the system of an image has, whose `pip` its lines run."""
        if not self._draft.systems:
            return ""
        clue = self._draft.systems[0]
        row = self._facts.system(clue.value)
        if row is None or row.python not in PYTHON_SERIES:
            return ""
        return self._decide("env.python", row.python, f"python3 of {clue.value}", str(clue.source))

    def _indexes(self) -> Iterator[str]:
        taken: set[str] = set()
        for each in self._draft.indexes:
            if not _is_valid(read_index_url, each.url):
                self._refuse(each, "it is no address that a spec can have")
                continue
            name = each.name or index_name(each.url)
            while name in taken:
                name += "-2"
            taken.add(name)
            packages = sorted(each.packages) or self._beside(each)
            table: dict[str, Value] = {"name": name, "url": each.url, "packages": packages}
            if each.format != "simple":
                table["format"] = each.format
            text = _table("pip.index", table, is_array=True)
            if each.packages:
                yield text
                continue
            self._refuse(each, "which packages come from it is not known: the spec has its [[pip.index]] as a comment")
            lines = "".join(f"# {line}\n" for line in text.strip().split("\n"))
            yield f"\n# Keep the packages that the default index does not have, and activate it:\n{lines}"

    def _has_conda(self) -> bool:
        """Whether the spec has packages of conda: pip alone is in an environment.yml to install the others."""
        draft = self._draft
        return bool(draft.conda or draft.channels) and {*draft.match_specs} != {"pip"}

    def _beside(self, index: DraftIndex) -> list[str]:
        """The names of the requirements in the line of an index, else of its file: those that may come from it."""
        names: dict[Source, list[str]] = {}
        for each in self._draft.dependencies:
            name = re.match(r"[\w.-]+(?=\s*(?:[\[<>=!~;(]|$))", each.text)
            if name and normalised(name[0]) not in INDEX_FAMILY:
                names.setdefault(each.source, []).append(normalised(name[0]))
        of_file: dict[str, None] = {}
        for source, own in names.items():
            if source.file == index.source.file:
                of_file.update(dict.fromkeys(own))
        return names.get(index.source) or list(of_file)

    def _conda(self) -> Iterator[str]:
        draft = self._draft
        if not self._has_conda():
            return
        #: Platform, empty for all -> its match specs.
        specs: dict[str, dict[str, None]] = {}
        for text, platform in draft.conda:
            specs.setdefault(platform, {})[text] = None
        preferred = [f"{name} =={record}" for name, record in sorted(draft.conda_versions.items())]
        conda: dict[str, Value] = {
            "channels": list(dict.fromkeys(draft.channels)) or ["conda-forge"],
            "dependencies": [text for text in specs.pop("", ()) if _is_valid(read_match_spec, text)],
            "prefer": [text for text in preferred if _is_valid(read_preferred_record, text)],
        }
        yield _table("conda", conda)
        for platform, texts in sorted(specs.items()):
            yield _table(f"conda.platform.{platform}", {"dependencies": list(texts)})


def _is_valid(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except (BadValue, InvalidSpecifier, InvalidVersion):
        return False
    return True


def _table(name: str, values: Mapping[str, Value], *, is_array: bool = False) -> str:
    """A table of a spec: lists of more than one line have an item in each; empty if there is no value."""
    lines = []
    for key, value in values.items():
        if value is None or value in ((), [], {}):
            continue
        lines.append(f"{key} = {_value(value)}\n")
    if not lines:
        return ""
    header = f"[[{name}]]" if is_array else f"[{name}]"
    return f"\n{header}\n{''.join(lines)}"


def _value(value: Value) -> str:
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        pairs = [f"{bare_key(key)} = {_value(each)}" for key, each in value.items()]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, Sequence):
        items = list(map(_value, value))
        short = f"[{', '.join(items)}]"
        return short if len(short) <= 90 else "[\n  " + ",\n  ".join(items) + ",\n]"
    return str(value).lower()


def _text(text: str) -> str:
    """A literal string if it has double quotes, as markers have."""
    is_plain = '"' in text and "'" not in text and text.isprintable()
    return f"'{text}'" if is_plain else string(text)
