"""What sdists state of their wheels, and whether it can be relied on without a build."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from envspec.models import Unbuilt
from envspec.resolve.pypi.index.file_metadata import metadata, source_of_metadata
from envspec.resolve.pypi.metadata import declared, is_dynamic
from tests.operations.test_build_sdists import with_files
from tests.support.builders.wheels import sdist

_OWN = "own.egg-info"


def _archive(fields: str, more: Mapping[str, str] = {}) -> bytes:
    """An sdist with these fields in its PKG-INFO, and more files."""
    files = {"PKG-INFO": fields, **more}
    return with_files(sdist("own", "1.0"), {name: text.encode() for name, text in files.items()}).data


def _info(version: str, *lines: str) -> str:
    return "\n".join([f"Metadata-Version: {version}", "Name: Own", "Version: 1.0.0", *lines, "", "A text."])


@pytest.mark.parametrize(
    ("archive", "source"),
    [
        (_archive(_info("2.2", "Requires-Dist: lib")), Unbuilt.STATIC),
        (_archive(_info("2.4")), Unbuilt.STATIC),
        (_archive(_info("2.10", "Dynamic: license-file")), Unbuilt.STATIC),
        (_archive(_info("2.2", "Dynamic: requires-dist")), Unbuilt.STATED),
        (_archive(_info("2.2", "Dynamic: Requires-Python")), Unbuilt.STATED),
        (_archive(_info("2.4", "Dynamic: Provides-Extra")), Unbuilt.STATED),
        (_archive(_info("2.1")), Unbuilt.STATED),
        (_archive(_info("1.2", "Requires-Dist: lib")), Unbuilt.STATED),
        (_archive(_info("1.1"), {f"{_OWN}/requires.txt": "lib\n"}), Unbuilt.STATED),
        # setuptools writes requires.txt only if there are requirements.
        (_archive(_info("1.0"), {f"src/{_OWN}/PKG-INFO": _info("1.0")}), Unbuilt.STATED),
        (_archive(_info("1.0")), None),
        (_archive(_info("1.1"), {"tests/data/other.egg-info/requires.txt": "lib\n"}), None),
        (_archive("no fields at all"), None),
    ],
)
def test_where_the_requirements_of_an_sdist_are_from(archive: bytes, source: Unbuilt | None) -> None:
    assert source_of_metadata(archive, "own-1.0.tar.gz", "own", "1.0") is source
    stated = metadata(archive, "own-1.0.tar.gz", "own", "1.0")
    assert is_dynamic(stated) is (source is not Unbuilt.STATIC)


def test_lines_that_old_tools_wrote_are_read_as_they_read_them() -> None:
    requires = "lib>=1.9.*\nother>=3.\n%nothing\n"
    archive = _archive(_info("1.0"), {f"{_OWN}/requires.txt": requires})
    assert declared(metadata(archive, "own-1.0.tar.gz", "own", "1.0")) == ("lib>=1.9", "other>=3")
