"""Every block of code on the pages runs, with the output that the page shows, or has the reason why not.

`ENVSPEC_WRITE_DOCS=1 python -m pytest tests/docs -k PAGE` writes outputs that differ into the page: review them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Final

import pytest

from envspec.data import DATA
from envspec.structs import replace
from tests.docs.loopback import Servers, environment, servers
from tests.docs.pages import Block, Reader, blocks, is_writing, rewritten, tiers
from tests.support.machines.stack import stack
from tests.support.user import ROOT

DOCS: Final = ROOT / "docs"
PAGES: Final = {
    str(path.relative_to(ROOT)): path
    for path in [
        ROOT / "README.md",
        *sorted(DOCS.glob("*.md")),
        *(path for folder in ("how-to", "reference", "explanation") for path in sorted((DOCS / folder).glob("*.md"))),
        *sorted((DATA / "errors").glob("*.md")),
    ]
}
#: On pages the reader's folders have these names.
FOLDER: Final = "/home/me/train"
CACHE: Final = "/home/me/.cache"


@pytest.fixture(scope="session")
def loopback() -> Iterator[Servers]:
    with servers() as running:
        yield running


def reader_of(root: Path, running: Servers) -> Reader:
    """Somebody who uses these servers. root: has their folder and their home, both empty at first."""
    folder, home = root / "train", root / "home"
    for each in (folder, home):
        each.mkdir(exist_ok=True)
    variables = environment(home, Path(sys.executable).parent)
    return Reader(
        folder,
        {**variables, **running.variables},
        {**running.names, FOLDER: str(folder), CACHE: str(home / ".cache")},
    )


@contextmanager
def readers(found: Sequence[Block], root: Path, loopback: Servers) -> Iterator[Callable[[Block], Reader]]:
    """Block -> its reader. loopback: the servers of all pages that do not stop them; such a page has its own."""
    with ExitStack() as own:
        is_own = any("servers" in block.directives for block in found)
        reader = reader_of(root, own.enter_context(servers()) if is_own else loopback)

        def reader_for(block: Block) -> Reader:
            nonlocal reader
            action = block.directives.get("servers")
            if action == "stop":
                own.close()
            elif action == "start":
                reader = reader_of(root, own.enter_context(servers()))
            return reader

        yield reader_for


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_or_has_a_reason(name: str) -> None:
    found = blocks(PAGES[name].read_text(encoding="utf-8"))
    assert [block.problem for block in found if block.problem] == []


@pytest.mark.parametrize(("name", "needs"), tiers(PAGES))
def test_blocks_do_what_the_page_shows(name: str, needs: str, tmp_path: Path, loopback: Servers) -> None:
    path = PAGES[name]
    text = path.read_text(encoding="utf-8")
    found = blocks(text)
    changed: dict[int, str] = {}
    with readers(found, tmp_path, loopback) as reader_for:
        for block in found:
            if not block.is_run or block.needs not in {"", needs}:
                continue
            reader = reader_for(block)
            if needs == "stack":
                active = {"VIRTUAL_ENV": str(stack("pytorch-2.9").parents[1])}
                reader = replace(reader, environ={**reader.environ, **active}, limit_s=1200)
            new = reader.run_block(block)
            if new is not None:
                changed[block.line] = new
    if changed and is_writing():
        path.write_text(rewritten(text, changed), encoding="utf-8")
        return
    assert not changed, (
        f"{_differences(name, text, rewritten(text, changed))}\n"
        f"If the new output is right, run `ENVSPEC_WRITE_DOCS=1 python -m pytest tests/docs -k {path.stem}`"
    )


def _differences(name: str, before: str, after: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), name, f"{name}, as it is now", n=1, lineterm="")
    return "\n".join(["other output:", *lines])


def test_pages_have_no_address_of_this_machine() -> None:
    found = {name for name, path in PAGES.items() if re.search(r"127\.0\.0\.1:\d{5}", path.read_text(encoding="utf-8"))}
    assert found == set()
