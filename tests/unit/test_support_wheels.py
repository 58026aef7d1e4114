"""What `tests.support.wheels` makes is what installers and `packaging` take for real."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from tests.support.wheels import Artifact, Method, padding, sdist, wheel, wheels

KIT = wheel(
    "My.Kit",
    "2.0.0+cu126",
    requires=["core>=1", 'old; python_version < "3.11"'],
    extras={"fast": ["speed>=1", 'more; sys_platform == "linux"']},
    requires_python=">=3.10",
    tag="cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",
    build="2",
)


def test_the_file_name_says_what_was_asked() -> None:
    name, version, build, tags = parse_wheel_filename(KIT.filename)
    assert (name, str(version), build) == ("my-kit", "2.0.0+cu126", (2, ""))
    assert {tag.platform for tag in tags} == {"manylinux_2_17_x86_64", "manylinux2014_x86_64"}


def test_the_metadata_is_valid_and_gives_each_extra_its_marker() -> None:
    metadata = Metadata.from_email(KIT.metadata, validate=True)
    assert [str(requirement) for requirement in metadata.requires_dist or []] == [
        "core>=1",
        'old; python_version < "3.11"',
        'speed>=1; extra == "fast"',
        'more; sys_platform == "linux" and extra == "fast"',
    ]
    assert metadata.provides_extra == ["fast"]
    assert str(metadata.requires_python) == ">=3.10"


def test_every_file_of_a_wheel_is_in_its_record() -> None:
    archive = zipfile.ZipFile(io.BytesIO(KIT.data))
    rows = csv.reader(io.StringIO(archive.read("my_kit-2.0.0+cu126.dist-info/RECORD").decode()))
    assert sorted(row[0] for row in rows) == sorted(archive.namelist())


@pytest.mark.parametrize("method", Method)
def test_the_same_arguments_give_the_same_bytes(method: Method) -> None:
    def make() -> Artifact:
        return wheel("a", "1", files={"b.py": b"1" * 1000, "a.py": b"2"}, method=method)

    assert make().data == make().data


def test_stored_wheels_have_the_same_bytes_on_every_machine() -> None:
    assert wheel("a", "1").sha256 == "265a92f6bfd2c9de57e1669af1c68258a588824f602f8dd12a4afc954ffc7aca"
    assert sdist("a", "1").sha256 == "f7fdd140743e1b01fa201e76fd312b4d1d4da691df3b44e5f25212ab1cba38f7"
    assert (
        hashlib.sha256(padding(1000, seed=7)).hexdigest()
        == "77141ace04a7e05a5f58cd2ff5a6fdf0a2366e18f1f7727b157edbe93a8834e0"
    )


def test_one_wheel_for_each_tag() -> None:
    made = wheels("a", "1", ["cp310-cp310-win_amd64", "cp311-cp311-win_amd64"], requires=["b"])
    assert [artifact.filename for artifact in made] == [
        "a-1-cp310-cp310-win_amd64.whl",
        "a-1-cp311-cp311-win_amd64.whl",
    ]


def test_an_sdist_names_itself_and_holds_its_metadata() -> None:
    made = sdist("Only-Source", "1.0", requires=["core"])
    assert parse_sdist_filename(made.filename)[0] == "only-source"
    with tarfile.open(fileobj=io.BytesIO(made.data)) as archive:
        member = archive.extractfile("only_source-1.0/PKG-INFO")
        assert member is not None
        assert member.read() == made.metadata


def test_pip_installs_the_wheel_and_builds_the_sdist_without_an_index(tmp_path: Path) -> None:
    made = [wheel("base-lib", "1.5.0"), sdist("only-source", "1.0", requires=["base-lib"])]
    for artifact in made:
        (tmp_path / artifact.filename).write_bytes(artifact.data)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--target",
        str(tmp_path / "into"),
    ]
    subprocess.run(
        [*command, *(str(tmp_path / artifact.filename) for artifact in made)],
        check=True,
        env={**environment, "PIP_CONFIG_FILE": os.devnull, "PIP_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
    )
    installed = {path.name for path in (tmp_path / "into").iterdir()}
    assert {"base_lib", "base_lib-1.5.0.dist-info", "only_source", "only_source-1.0.dist-info"} <= installed
