"""Importer of Dockerfiles.

What counts is the last stage (or the target) and the stages that it starts from. Of the other stages, one counts if its
environment is copied: the folder of a venv or a conda prefix, by whatever name, a part of it or a folder that has it
(`Shell.has_environment`). Its Python and its packages are the image's then; the packages of its system and its CUDA
are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from envspec.errors import UsageError
from envspec.importers.base_images import leave_replaced
from envspec.importers.dockerfile_stage import StageReader, flags_of, read_argument
from envspec.importers.dockerfile_syntax import Instruction, read_instructions
from envspec.importers.shell_state import InstallSelection, Shell
from envspec.importers.shell_syntax import expand_text
from envspec.importers.types import Import, Outcome, Source


class _Stage(Struct, eq=False):
    """A stage of a Dockerfile.

    name: empty if it has none.
    base: as FROM names it.
    shell: its state behind the instructions that were read.
    seen: its state at its end, with nothing read from files.
    parent: the stage that it starts from.
    """

    name: str
    base: str
    shell: Shell
    seen: Shell
    parent: _Stage | None = None
    instructions: list[Instruction] = field(default_factory=list)


def read_dockerfile(path: Path, imported: Import) -> None:
    """Read a Dockerfile. Files that it copies are in its own folder, or in one above, up to that of the import."""
    root = imported.root.resolve()
    above = [each for each in path.resolve().parents if each.is_relative_to(root)]
    read_build(path, imported, above or (path.parent,), imported.target)


def read_build(
    path: Path, imported: Import, contexts: Sequence[Path], target: str = "", args: Mapping[str, str] | None = None
) -> None:
    """Read a Dockerfile as it is built.

    contexts: folders of the files that it copies; the first that has a file counts. target: the stage to build, empty
    for the last one. args: of the build, instead of its defaults.

    Raises:
        Unreadable: it can't be read, or is no Dockerfile.
        UsageError: it has no such stage.
    """
    given = dict(args or {})
    #: Arguments before the first FROM: for the names of base images, and as defaults in stages.
    before: dict[str, str | None] = {}
    stages = _stages(path, imported, contexts[0], before, given)
    if not stages:
        imported.add(Source(imported.shown(path)), path.name, Outcome.NOT_UNDERSTOOD, "no FROM: it builds no image")
        return
    contexts = _sort_contexts(contexts, stages)

    def find_shell(name: str) -> Shell | None:
        found = _find(name, stages)
        return found.seen if found else None

    # What all stages make and copy, read without the project's files, decides which of them count.
    quiet = Import(imported.root, lambda _: None, tops=imported.tops)
    for stage in stages:
        stage.seen = Shell(quiet, stage.shell.file, contexts[0])
        if stage.parent is not None:
            stage.seen.start_from(stage.parent.seen)
        StageReader(quiet, stage.seen, contexts, find_shell, before, given).read_image(stage.instructions, "", {})
    built = _target(target, stages, imported.shown(path))
    final = list(_chain(built))
    sources = _environments(final, stages)
    syncs = _syncs([*final, *sources], imported)
    counted = frozenset[Source]().union(*(stage.seen.packages for stage in (*final, *sources)))
    main = final[0].seen.main_environment()
    last = _last_instructions(final)
    for number, stage in enumerate(stages):
        stage.shell.context, stage.shell.syncs = contexts[0], syncs
        stage.shell.main = main if stage in final else ""
        if stage.parent is not None:
            stage.shell.start_from(stage.parent.shell)
        reader = StageReader(imported, stage.shell, contexts, find_shell, before, given, counted)
        base = stage.base if stage.parent is None else ""
        if stage in final:
            reader.read_image(stage.instructions, base, last)
        elif stage in sources:
            reader.read_environment(stage.instructions, base)
        else:
            reason = f"the stage {stage.name or number} is not in the image"
            if stage.name and _is_last(stage, stages):
                reason += f": `--target {stage.name}` imports it instead"
            reader.read_unused(stage.instructions, reason)
    leave_replaced(imported)


def _target(name: str, stages: Sequence[_Stage], file: str) -> _Stage:
    """The stage that is built: the named one, or the last."""
    found = _find(name, stages) if name else stages[-1]
    if found is None:
        names = ", ".join(each.name for each in stages if each.name) or "none has a name"
        raise UsageError(f"{file} has no stage {name}", hint=f"its stages: {names}")
    return found


def _syncs(stages: Sequence[_Stage], imported: Import) -> dict[Path, InstallSelection]:
    """The extras and groups that the stages install, of each project."""
    found: dict[Path, InstallSelection] = {}
    for stage in stages:
        for path, selection in stage.seen.syncs.items():
            found[path] = found.get(path, InstallSelection()) | selection
    for path, selection in found.items():
        imported.installed[path] = selection.extras, selection.groups
    return found


def _sort_contexts(contexts: Sequence[Path], stages: Sequence[_Stage]) -> tuple[Path, ...]:
    """The folders, first the one that has most of the files that are copied: nothing else says which one it is."""
    copied: set[str] = set()
    for stage in stages:
        for each in stage.instructions:
            if each.name not in ("COPY", "ADD"):
                continue
            given, words = flags_of(each)
            if "from" not in given:
                copied.update(words[:-1])
    names = [[word] for word in copied if _NAME.fullmatch(word)]
    if not copied.isdisjoint((".", "./", "/")):
        names.append(_PROJECT_FILES)

    def count_missing(folder: Path) -> int:
        missing = 0
        for alternatives in names:
            paths = [folder / name.lstrip("/") for name in alternatives]
            missing += not any(map(Path.exists, paths))
        return missing

    return tuple(sorted(dict.fromkeys(contexts), key=count_missing))


#: Of a file or a folder.
_NAME: Final = re.compile(r"(?!\.\.?/?$)[\w./-]{1,500}", re.ASCII)
#: One of them is in a folder that is copied as a whole.
_PROJECT_FILES: Final = ["pyproject.toml", "setup.py", "requirements.txt", "environment.yml"]


def _stages(
    path: Path, imported: Import, context: Path, before: dict[str, str | None], given: Mapping[str, str]
) -> list[_Stage]:
    """The stages with their instructions. before: gets the arguments before the first one."""
    file = imported.shown(path)
    stages: list[_Stage] = []
    for each in read_instructions(path, imported):
        source = Source(file, each.line)
        if each.name == "FROM":
            stages.append(_open(each, stages, Shell(imported, file, context), before))
        if stages:
            stages[-1].instructions.append(each)
        elif each.name == "ARG":
            read_argument(imported, source, each, before, given, {})
        else:
            imported.add(source, each.text, Outcome.NOT_UNDERSTOOD, "an instruction before FROM")
    return stages


def _open(each: Instruction, stages: Sequence[_Stage], shell: Shell, before: Mapping[str, str | None]) -> _Stage:
    words = [word for word in each.value.split() if not word.startswith("--")]
    name = ""
    if len(words) == 3 and words[1].upper() == "AS":
        name = words[2].lower()
    base = expand_text(next(iter(words), ""), before).words[0]
    return _Stage(name, base, shell, shell, _named(base, stages))


def _find(name: str, stages: Sequence[_Stage]) -> _Stage | None:
    """A stage by its name or its number."""
    if name.isdecimal() and len(name) < 6 and int(name) < len(stages):
        return stages[int(name)]
    return _named(name, stages)


def _named(name: str, stages: Sequence[_Stage]) -> _Stage | None:
    named = {stage.name: stage for stage in stages if stage.name}
    return named.get(name.lower())


def _chain(stage: _Stage | None) -> Iterator[_Stage]:
    """A stage, the one that it starts from, ..."""
    while stage is not None:
        yield stage
        stage = stage.parent


def _environments(final: Sequence[_Stage], stages: Sequence[_Stage]) -> list[_Stage]:
    """The stages whose environments are copied into the image, and those that they start from."""
    found: list[_Stage] = []
    waiting = [*final]
    while waiting:
        for name, path in waiting.pop().seen.taken:
            copied = _find(name, stages)
            if copied is None or not copied.seen.has_environment(path):
                continue
            for stage in _chain(copied):
                if stage not in (*found, *final):
                    found.append(stage)
                    waiting.append(stage)
    return found


def _is_last(stage: _Stage, stages: Sequence[_Stage]) -> bool:
    """Whether a stage is an image of its own: no other stage starts from it or copies from it."""
    for each in stages:
        sources = [_find(name, stages) for name, _ in each.seen.taken]
        if stage in (each.parent, *sources):
            return False
    return True


def _last_instructions(final: Sequence[_Stage]) -> dict[str, Instruction]:
    """The last instruction of each name, which decides for the image. final: the last stage first."""
    found: dict[str, Instruction] = {}
    for stage in final:
        own = {each.name: each for each in stage.instructions}
        if "ENTRYPOINT" in found:
            # It drops the CMD of the stage that it starts from. Source: Dockerfile reference, "ENTRYPOINT".
            own.pop("CMD", None)
        for name, each in own.items():
            found.setdefault(name, each)
    return found
