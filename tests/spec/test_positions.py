"""Lines of keys and items, in every form that TOML has for them."""

from __future__ import annotations

import pytest

from envspec import documents
from envspec.spec.errors import KeyPath, dotted
from envspec.spec.positions import positions_of

TEXT = '''# [comment] = "no key"
top = 1
"quoted key" = "a # no comment ] } ["
'literal' = 'C:\\path\\'
dotted.inner . "third part" = true

[env]   # trailing [comment]
name = "x"
multi = """
name = "not a key"
[not-a-table]
""\\""" # a comment """"
after = 1
raw = \'\'\'
[[no]] "quotes" '' \'\'\'\'
empty = ["", '', """""", \'\'\'\'\'\']
when = 2026-11-15 00:00:00Z # moment

[pip]
list = [ # first
  "one", "two",   # ] not the end

  [ "nested", [
    3 ] ],
  { a = 1, b.c = [ 4,
    5 ] },
]
inline = { one = { two = "}" }, "three" = [] }

[[pip.index]]
name = "first"
[pip.index.deep]
key = 1
[[pip.index.more]]
key = 2
[[pip.index.more]]
key = 3
[[pip.index]]
name = "second"
[[pip.index.more]]
key = 4
[ late . "er" ]
x = 1
[late]
y = 2'''


#: Lines of keys; above all of tables in lists of tables, which the properties do not write.
LINES: dict[KeyPath, int | None] = {
    ("literal",): 4,
    ("dotted", "inner", "third part"): 5,
    ("env", "after"): 13,
    ("env", "empty", 3): 16,
    ("pip", "list", 2, 1, 0): 24,
    ("pip", "list", 3, "b", "c", 1): 26,
    ("pip", "inline", "one", "two"): 28,
    ("pip", "index"): 30,
    ("pip", "index", 0, "deep", "key"): 33,
    ("pip", "index", 0, "more", 0, "key"): 35,
    ("pip", "index", 0, "more", 1): 36,
    ("pip", "index", 1, "name"): 39,
    ("pip", "index", 1, "more", 0, "key"): 41,
    ("late", "er", "x"): 43,
    ("late",): 44,
    ("env", "missing"): 7,
    ("pip", "index", 1, "missing"): 38,
    ("pip", "list", 99): 20,
    ("missing",): None,
    (): None,
}


def test_lines() -> None:
    documents.parse_toml(TEXT)
    places = positions_of(TEXT)
    assert {path: places.line(path) for path in LINES} == LINES


@pytest.mark.parametrize(
    ("path", "written"),
    [
        (("quoted key",), '"a # no comment ] } ["'),
        (("env", "when"), "2026-11-15 00:00:00Z"),
        (("env", "empty", 2), '""""""'),
        (("pip", "list", 2, 1), "[\n    3 ]"),
        (("pip", "inline", "one"), '{ two = "}" }'),
        (("missing",), None),
    ],
)
def test_written(path: KeyPath, written: str | None) -> None:
    assert positions_of(TEXT).written(path) == written


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("pip", "dependencies", 3), "pip.dependencies[3]"),
        (("registry", "mirrors", "docker.io"), 'registry.mirrors."docker.io"'),
        (("a", 0, 1, "b c"), 'a[0][1]."b c"'),
        (("", "\x1b"), '""."\\u001b"'),
    ],
)
def test_dotted(path: KeyPath, text: str) -> None:
    assert dotted(path) == text
