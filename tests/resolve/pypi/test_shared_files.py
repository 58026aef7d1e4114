"""Whose a file is that several packages have: by its name, its content, or the spec."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from envspec.models import CONFLICT, FILE_OWNER, INCIDENTAL, NAMESPACE, ONLY_CODE, SharedFiles
from envspec.resolve.pypi.shared_files import (
    MAX_INIT_BYTES,
    InitKind,
    best_key,
    decide,
    init_kind,
    is_incidental,
    shared_files,
)
from envspec.verifier.owned import Overlap
from tests.support.builders.zips import record_digest

_PKGUTIL = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
_PKG_RESOURCES = "__import__('pkg_resources').declare_namespace(__name__)\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", InitKind.NOTHING),
        ("\ufeff# A licence\n\n", InitKind.NOTHING),
        ('"""A docstring."""\nfrom __future__ import annotations\n', InitKind.NOTHING),
        (_PKGUTIL, InitKind.EXTENDS),
        (_PKG_RESOURCES, InitKind.EXTENDS),
        ("import pkgutil; __path__ = pkgutil.extend_path(__path__, __name__)", InitKind.EXTENDS),
        (
            "from pkgutil import extend_path\n__path__ = extend_path(  # type: ignore\n    __path__, __name__\n)\n",
            InitKind.EXTENDS,
        ),
        (f"try:\n    {_PKG_RESOURCES}except ImportError:\n    {_PKGUTIL}", InitKind.EXTENDS),
        (f"{_PKGUTIL}from space.a import a\n", InitKind.CODE),
        ("'text'.join(open('x'))", InitKind.CODE),
        ("__version__ = '1'", InitKind.CODE),
        ("__path__ = []", InitKind.CODE),
        ("try:\n    import torch\nexcept ImportError:\n    pass\n", InitKind.CODE),
        ("lambda: 0", InitKind.CODE),
        ("(" * 5000, InitKind.CODE),
        ("-" * 60_000, InitKind.CODE),
        ("\0", InitKind.CODE),
        ("  x\n y", InitKind.CODE),
    ],
)
def test_what_an_init_does(text: str, kind: InitKind) -> None:
    assert init_kind(text.encode()) is kind


def test_what_is_no_text_is_code() -> None:
    assert init_kind(b"# \xff\n") is InitKind.CODE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *((path, True) for path in ("build_backend.py", "setup.py", "conftest.py", "setup.cfg", "tests/a/b.py")),
        *((path, True) for path in ("README", "Readme.rst", "LICENSE", "LICENCE.txt", "COPYING", "NOTICE.md")),
        *((path, True) for path in ("ThirdPartyNotices.txt", "<data>/README.md", "pkg/py.typed", "licenses/a.txt")),
        *((path, False) for path in ("pkg/setup.py", "license.py", "readme/a.py", "third_party/lib.so", "tests.py")),
        *((path, False) for path in ("a/third_party/data", "notice.cpython-311-x86_64-linux-gnu.so", "pkg/README")),
    ],
)
def test_names_that_no_program_needs(path: str, expected: bool) -> None:
    assert is_incidental(path) is expected


def of_content(path: str, **contents: str) -> tuple[SharedFiles, ...]:
    """What is decided of a file with these contents."""

    async def read(name: str, of_path: str) -> bytes | None:
        assert of_path == path
        content = contents[name].encode()
        return content if len(content) <= MAX_INIT_BYTES else None

    digests = {name: record_digest(text.encode()).partition("=")[2][:8] for name, text in contents.items()}
    return asyncio.run(shared_files([Overlap(path, digests)], read))


@pytest.mark.parametrize(
    ("contents", "owner", "why"),
    [
        ({"a": "", "b": _PKGUTIL, "c": f"# A licence\n{_PKGUTIL}"}, "c", NAMESPACE),
        ({"a": "# a", "b": "# longer"}, "b", NAMESPACE),
        ({"b": "# b", "c": "# c", "d": ""}, "b", NAMESPACE),
        ({"a": "", "b": "import os"}, "b", ONLY_CODE),
        ({"a": "# a", "b": "import os", "c": "import os"}, "b", ONLY_CODE),
        ({"a": "import sys", "b": "import os"}, "", CONFLICT),
        ({"a": _PKGUTIL, "b": "import os"}, "", CONFLICT),
        ({"a": "", "b": "#" * (MAX_INIT_BYTES + 1)}, "", CONFLICT),
    ],
)
def test_the_owner_of_an_init(contents: Mapping[str, str], owner: str, why: str) -> None:
    others = tuple(sorted(contents.keys() - {owner}))
    assert of_content("space/__init__.py", **contents) == (SharedFiles(others, why, ("space/__init__.py",), owner),)
    # The order in which packages are found does not matter.
    backwards = {name: contents[name] for name in sorted(contents, reverse=True)}
    assert of_content("space/__init__.py", **backwards) == of_content("space/__init__.py", **contents)


def test_a_module_matters_whatever_is_in_it() -> None:
    assert of_content("space/a.py", one="", two="# Nothing") == (
        SharedFiles(("one", "two"), CONFLICT, ("space/a.py",)),
    )


def test_paths_that_no_wheel_may_have() -> None:
    async def read(_: str, __: str) -> bytes | None:
        raise AssertionError("it is not read")

    paths = ["../__init__.py", "/etc/__init__.py", "a/../__init__.py", "a\x1b/__init__.py"]
    assert asyncio.run(shared_files([Overlap(path, {"a": "1", "b": "2"}) for path in paths], read)) == ()


def test_the_owner_that_the_spec_names() -> None:
    base, overlay = SharedFiles(("base", "overlay"), CONFLICT, ("<data>/bin/x", "dsl/ir.py")), "overlay"
    incidental = SharedFiles(("overlay",), INCIDENTAL, ("setup.py",), "base")
    by_spec = SharedFiles(("base",), FILE_OWNER, ("<data>/bin/x", "dsl/ir.py"), overlay)
    locked = ["base", "overlay"]
    assert decide([base, incidental], {"base": overlay}, locked) == (
        replaced(by_spec, "<data>/bin/x", "dsl/ir.py", "setup.py"),
    )
    assert decide([base], {"bin/x": overlay, "dsl": overlay}, locked) == (by_spec,)
    # As a lock has it already, and after the spec has dropped it.
    assert decide([by_spec], {"*": overlay}, locked) == (by_spec,)
    assert decide([by_spec], {}, locked) == (base,)
    assert decide([by_spec], {"*": "other"}, [*locked, "other"]) == (base,)
    # What was written by hand: a package that is not locked, a file whose name decides nothing.
    assert decide([by_spec], {"*": overlay}, ["overlay"]) == ()
    assert decide([replaced(incidental, "dsl/a.py")], {}, locked) == (
        SharedFiles(("base", "overlay"), CONFLICT, ("dsl/a.py",)),
    )
    assert decide([SharedFiles(("base",), INCIDENTAL, ("setup.py",), overlay)], {}, locked) == (incidental,)
    assert decide([SharedFiles(("base",), NAMESPACE, ("dsl/a.py",), overlay)], {}, locked)[0].why == CONFLICT


def replaced(shared: SharedFiles, *paths: str) -> SharedFiles:
    return SharedFiles(shared.others, shared.why, paths, shared.owner)


@pytest.mark.parametrize(
    ("owners", "key"),
    [
        ({"cv2/*": "a", "cv2/__init__.py": "b"}, "cv2/__init__.py"),
        ({"*": "b", "cv2/*": "a"}, "cv2/*"),
        ({"cv2": "a", "cv": "b", "cv2/other.py": "b"}, "cv2"),
        ({"cv2/": "a"}, "cv2/"),
        ({"a": "b", "c": "a"}, "a"),
        ({"cv2/*": "c"}, None),
    ],
)
def test_the_key_that_counts(owners: Mapping[str, str], key: str | None) -> None:
    assert best_key("cv2/__init__.py", ("a", "b"), owners) == key
