"""Requirements added to a spec's text and removed from it: what changes, and that nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec import documents
from envspec.spec.edit import Listed, RequirementList, add, lists_of, remove
from envspec.spec.errors import BadValue

DEPENDENCIES: Final = Listed(RequirementList.DEPENDENCIES, ("pip", "dependencies"))
CONDA: Final = Listed(RequirementList.CONDA, ("conda", "dependencies"))
HEAD: Final = '[env]\nname = "x"\npython = "3.11"\n'


def pip(lines: str) -> str:
    return f"{HEAD}\n[pip]\n{lines}"


@pytest.mark.parametrize(
    ("before", "requirement", "after"),
    [
        ('dependencies = ["a", "c"]\n', "b>=2", 'dependencies = ["a", "b>=2", "c"]\n'),
        ('dependencies = ["c", "a"]\n', "b", 'dependencies = ["c", "a", "b"]\n'),
        ("dependencies = []\n", "a", 'dependencies = ["a"]\n'),
        (
            'dependencies = [\n  "a",  # first\n  # of c\n  "c"  # last\n]\n# end\n',
            "d",
            'dependencies = [\n  "a",  # first\n  # of c\n  "c",  # last\n  "d"\n]\n# end\n',
        ),
        ('dependencies = [\n    "a",\n    "c",\n]\n', "b", 'dependencies = [\n    "a",\n    "b",\n    "c",\n]\n'),
        (
            'dependencies = [\n  "Torch==2.8",  # pinned\n]\n',
            "torch>=2.9",
            'dependencies = [\n  "torch>=2.9",  # pinned\n]\n',
        ),
        ("prefer = []  # none\n", "a", 'prefer = []  # none\ndependencies = ["a"]\n'),
        (
            'prefer = []\n\n# the index\n[[pip.index]]\nname = "i"\n',
            "a",
            'prefer = []\ndependencies = ["a"]\n\n# the index\n[[pip.index]]\nname = "i"\n',
        ),
        (
            "dependencies = ['a']\n",
            'b; sys_platform == "linux"',
            'dependencies = [\'a\', "b; sys_platform == \\"linux\\""]\n',
        ),
    ],
)
def test_a_requirement_gets_its_place(before: str, requirement: str, after: str) -> None:
    text, edit = add(pip(before), DEPENDENCIES, requirement)
    assert text == pip(after)
    assert edit.new == requirement


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_table_that_is_missing_is_added_at_the_end(end: str) -> None:
    text = HEAD.rstrip("\n").replace("\n", end or "\n") + end
    newline = end or "\n"
    added, _ = add(text, CONDA, "ffmpeg >=7")
    assert added == f'{text}{"" if end else newline}{newline}[conda]{newline}dependencies = ["ffmpeg >=7"]{newline}'


def test_a_table_whose_other_tables_are_there_is_added() -> None:
    text, _ = add(f'{HEAD}[[pip.index]]\nname = "i"\n', DEPENDENCIES, "a")
    assert documents.parse_toml(text)["pip"] == {"index": [{"name": "i"}], "dependencies": ["a"]}


def test_tables_without_headers_are_edited() -> None:
    text, _ = add('env.name = "x"\npip.dependencies = ["a"]\n', DEPENDENCIES, "b")
    assert text == 'env.name = "x"\npip.dependencies = ["a", "b"]\n'
    text, _ = add('env = { name = "x" }\npip = { prefer = [] }\n', DEPENDENCIES, "b")
    assert text == 'env = { name = "x" }\npip = { prefer = [], dependencies = ["b"] }\n'


@pytest.mark.parametrize(
    ("before", "name", "after", "gone"),
    [
        ('dependencies = ["a", "b", "c"]\n', "b", 'dependencies = ["a", "c"]\n', ["b"]),
        (
            'dependencies = [\n  "a",\n  # of b\n  "b>=1",  # old\n  "c",  # last\n]\n',
            "b",
            'dependencies = [\n  "a",\n  # of b\n  "c",  # last\n]\n',
            ["b>=1"],
        ),
        (
            'dependencies = ["A; python_version < \'3.12\'", "c", "a; python_version >= \'3.12\'"]\n',
            "a",
            'dependencies = ["c"]\n',
            ["A; python_version < '3.12'", "a; python_version >= '3.12'"],
        ),
        ('dependencies = ["a"]\n', "b", 'dependencies = ["a"]\n', []),
    ],
)
def test_requirements_are_removed_with_the_comment_on_their_line(
    before: str, name: str, after: str, gone: list[str]
) -> None:
    text, edits = remove(pip(before), DEPENDENCIES, name)
    assert text == pip(after)
    assert [each.old for each in edits] == gone


def test_what_is_required_twice_is_not_replaced() -> None:
    text = pip("dependencies = [\"a; python_version < '3.12'\", \"a; python_version >= '3.12'\"]\n")
    with pytest.raises(BadValue, match="is in \\[pip\\] dependencies 2 times"):
        add(text, DEPENDENCIES, "a>=2")


PYPROJECT: Final = """\
[project]
name = "mine"
requires-python = "==3.12.*"
dependencies = ["torch"]

[tool.envspec]
dependencies_from = ["project"]
"""


def test_dependencies_of_a_project_are_declared_once() -> None:
    path = Path("pyproject.toml")
    project, own = lists_of(PYPROJECT, path, RequirementList.DEPENDENCIES)
    assert (str(project), str(own)) == ("[project] dependencies", "[tool.envspec.pip] dependencies")
    text, _ = add(PYPROJECT, project, "numpy")
    assert text == PYPROJECT.replace('["torch"]', '["torch", "numpy"]')
    (conda,) = lists_of(PYPROJECT, path, RequirementList.CONDA)
    assert add(PYPROJECT, conda, "ffmpeg")[0] == f'{PYPROJECT}\n[tool.envspec.conda]\ndependencies = ["ffmpeg"]\n'
    alone = PYPROJECT.replace('["project"]', '["extra:gpu"]')
    assert [str(each) for each in lists_of(alone, path, RequirementList.DEPENDENCIES)] == [str(own)]


NAMES: Final = st.sampled_from(["a", "B_b", "c.c", "numpy", "torch", "z"])
COMMENTS: Final = st.sampled_from(["", "  # one", "# [pip]", " # \"quoted', ]"])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A spec with a list in some layout, and its items."""
    items = [f"{name}>={draw(st.integers(1, 9))}" for name in draw(st.lists(NAMES, unique=True, max_size=5))]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    if draw(st.booleans()):
        inner = ", ".join(f'"{each}"' for each in items)
        value = f"[{inner}]"
    else:
        comma = draw(st.booleans())
        indent = draw(st.sampled_from(["  ", "    ", "\t", ""]))
        lines = ["["]
        for at, each in enumerate(items):
            if draw(st.booleans()):
                lines.append(f"{indent}# about it")
            last = at == len(items) - 1
            lines.append(f'{indent}"{each}"{"" if last and not comma else ","}{draw(COMMENTS)}')
        value = end.join([*lines, "]"])
    rest = draw(st.sampled_from(["", '\n# then\n[conda]\nchannels = ["x"]  # all\n', "\n\n"]))
    text = f"{HEAD}\n[pip] # packages\ndependencies = {value}{draw(COMMENTS)}{end}{rest}"
    return text, items


@given(layouts(), NAMES)
def test_in_every_layout_nothing_else_changes(layout: tuple[str, list[str]], name: str) -> None:
    text, items = layout
    before = documents.parse_toml(text)
    added, edit = add(text, DEPENDENCIES, f"{name}==3")
    after = documents.parse_toml(added)
    assert sorted(after["pip"].pop("dependencies")) == sorted({*items, edit.new} - {edit.old})
    before["pip"].pop("dependencies")
    assert after == before
    assert [line for line in added.splitlines() if "#" in line] != [] and comments(added) == comments(text)
    removed, gone = remove(added, DEPENDENCIES, edit.name)
    assert [each.old for each in gone] == [edit.new]
    if not edit.old:
        assert documents.parse_toml(removed)["pip"]["dependencies"] == items


def comments(text: str) -> list[str]:
    return sorted(line[line.index("#") :].strip() for line in text.splitlines() if "#" in line)
