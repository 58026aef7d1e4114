"""The changes that docs/contributing shows apply to this repository, and pass the commands that the pages show.

A page has steps (`## 2. The table`) with `diff` and `sh` blocks. All are taken in order, in a copy of the working tree;
`sh` blocks may need a stack (see `pages.py`). If a page says "the tests fail without step 2 or 3", its last `sh` block
has to fail without the diffs of each of them.

`ENVSPEC_WRITE_DOCS=1 python -m pytest tests/docs/test_contributing.py -k PAGE -m "not stack"` writes the diffs again,
with the lines that are around them today: review where they are now. The lines above or below a change must be as
before. It counts the lines of a diff itself, so a diff can be edited by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import Block, blocks, is_writing, rewritten, tiers
from tests.support.user import ROOT

PAGES: Final = {path.stem: path for path in sorted((ROOT / "docs" / "contributing").glob("add-*.md"))}
_STEP: Final = re.compile(r"^## (\d+)\. ", re.MULTILINE)
_CLAIM: Final = re.compile(r"tests? fails?\s+without\s+steps?\s+(\d(?:(?:,\s|\sor\s|,\sor\s)\d)*)")
_FILE: Final = re.compile(r"^(?:--- a|\+\+\+ b)/(.+)$", re.MULTILINE)
_FILE_STARTS: Final = re.compile(r"^(?=--- (?:a/|/dev/null$))", re.MULTILINE)
_NONE: Final = "/dev/null"
#: Lines around a change.
_CONTEXT: Final = 2


def steps(text: str) -> dict[int, int]:
    """Line of each block's fence -> number of its step; 0 before the first one."""
    starts = {text.count("\n", 0, found.start()) + 1: int(found[1]) for found in _STEP.finditer(text)}
    return {
        block.line: next((number for line, number in reversed(starts.items()) if line < block.line), 0)
        for block in blocks(text)
    }


def claims(text: str) -> list[int]:
    """The steps without which the page says that its tests fail."""
    return [int(number) for found in _CLAIM.finditer(text) for number in re.findall(r"\d", found[1])]


class Copy:
    """A folder for a copy of the working tree, and the environment of commands that run its code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ENVSPEC_WRITE_"))
        } | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": str(folder),
            "PYTEST_ADDOPTS": "-q -p no:cacheprovider",
        }

    def fill(self) -> None:
        """Copy the files that git knows, or would, into a repository of its own."""
        listed = self._git("ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=ROOT)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_symlink() or (ROOT / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.folder / name, follow_symlinks=False)
        for words in (["init", "--quiet"], ["add", "--all"]):
            done = self._git(*words, folder=self.folder)
            assert not done.returncode, done.stderr

    def restore(self) -> None:
        """Make every file as it was after `fill`. Compiled modules stay: compiling them takes seconds."""
        for words in (["checkout", "--quiet", "--", "."], ["clean", "--quiet", "--force", "-d"]):
            done = self._git(*words, folder=self.folder)
            assert not done.returncode, done.stderr

    def apply(self, diff: str, *options: str) -> str:
        """Apply a diff. Returns why it does not apply; empty if it did."""
        done = self._git("apply", *options, "-", folder=self.folder, stdin=diff)
        return done.stderr if done.returncode else ""

    def place(self, diff: str) -> str:
        """Apply a diff some of whose context has changed. Returns why it does not apply; empty if it did.

        Its files one by one: `--recount` takes the `---` of the next file for a line that is removed.
        """
        return "".join(map(self._place_in_a_file, _FILE_STARTS.split(diff)))

    def _place_in_a_file(self, diff: str) -> str:
        if not diff.strip():
            return ""
        problem = self.apply(diff, "--recount", "-C1")
        for end in ("above", "below"):
            if problem:
                problem = self.apply(without_context(diff, end), "--recount", "--unidiff-zero")
        return problem

    def run(self, block: Block) -> str:
        """Run a block's commands. Returns what they printed if one failed; empty if none did."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return f"`{block.text.strip()}` failed:\n{done.stdout}{done.stderr}" if done.returncode else ""

    def texts(self, diff: str) -> Mapping[str, str]:
        """The files that a diff names, those that exist."""
        found = {name: self.folder / name for name in _FILE.findall(diff)}
        return {name: path.read_text(encoding="utf-8") for name, path in found.items() if path.is_file()}

    def _git(self, *words: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return subprocess.run(
            ["git", *words],
            cwd=folder,
            env=environ | {"GIT_CEILING_DIRECTORIES": str(self.folder.parent), "LC_ALL": "C"},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The unified diff of files; a file that is in one of both only is new or deleted."""
    lines: list[str] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = (each.get(name, "").splitlines(keepends=True) for each in (before, after))
        source, target = (f"a/{name}" if name in before else _NONE, f"b/{name}" if name in after else _NONE)
        lines += unified_diff(old, new, source, target, n=_CONTEXT)
    return "".join(lines)


def without_context(diff: str, end: str) -> str:
    """A diff whose hunks have no lines `above` or `below` their changes."""
    found = []
    for hunk in re.split(r"^(?=--- |@@ )", diff, flags=re.MULTILINE):
        head, *lines = hunk.splitlines(keepends=True) or [""]
        while head.startswith("@@") and lines and lines[0 if end == "above" else -1][0] in " \n":
            del lines[0 if end == "above" else -1]
        found += [head, *lines]
    return "".join(found)


def apply_all(copy: Copy, name: str, diffs: list[Block]) -> dict[int, str]:
    """Apply the diffs of the page `name`.

    Returns the new texts of those that are written again: line of the fence -> text.
    """
    changed: dict[int, str] = {}
    for block in diffs:
        before = copy.texts(block.text)
        problem = copy.place(block.text) if is_writing() else copy.apply(block.text)
        assert not problem, f"line {block.line}: the diff does not apply:\n{problem}{_advice(name)}"
        if is_writing() and (new := difference(before, copy.texts(block.text))) != block.text:
            changed[block.line] = new
    return changed


def _advice(name: str) -> str:
    if is_writing():
        return "The lines above and below its changes are not those of the diff: edit the diff by hand"
    command = f"ENVSPEC_WRITE_DOCS=1 python -m pytest tests/docs/test_contributing.py -k {name} -m 'not stack'"
    return f"If the lines around its changes are new, run `{command}`, and review where the changes are"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_in_the_list_and_all_its_blocks_are_diffs_or_commands(name: str) -> None:
    assert f"(docs/contributing/{name}.md)" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = blocks(PAGES[name].read_text(encoding="utf-8"))
    assert {block.language for block in found if block.is_run} == {"diff", "sh"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The copy of the working tree that all pages change."""
    copy = Copy(tmp_path_factory.mktemp("repository"))
    copy.fill()
    return copy


@pytest.fixture
def copy(repository: Copy) -> Iterator[Copy]:
    yield repository
    repository.restore()


@pytest.mark.parametrize(("name", "needs"), tiers(PAGES))
def test_the_change_on_a_page_applies_and_passes(name: str, needs: str, copy: Copy) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    step_of, found = steps(text), blocks(text)
    diffs = [block for block in found if block.language == "diff"]
    commands = [block for block in found if block.language == "sh" and block.is_run and block.needs in {"", needs}]
    changed = apply_all(copy, name, diffs)
    if changed:
        PAGES[name].write_text(rewritten(text, changed), encoding="utf-8")
        return
    sources = sorted({each for block in diffs for each in copy.texts(block.text) if each.endswith(".py")})
    for check in (["check"], ["format", "--diff"]):
        ruff = [sys.executable, "-m", "ruff", *check, "--quiet", "--no-cache", *sources]
        linted = subprocess.run(ruff, cwd=copy.folder, capture_output=True, text=True, check=False) if sources else None
        assert linted is None or not linted.returncode, f"ruff {check[0]}:\n{linted.stdout}{linted.stderr}"
    for block in commands:
        failure = copy.run(block)
        assert not failure, f"line {block.line}: {failure}"
    for step in () if needs else claims(text):
        own = [block for block in diffs if step_of[block.line] == step]
        assert own, f"step {step} has no diff"
        assert not any(copy.apply(block.text, "--reverse") for block in reversed(own)), f"step {step} is not the last"
        assert copy.run(commands[-1]), f"nothing fails without step {step}"
        assert not any(copy.apply(block.text) for block in own)
