"""Which Python packages conda packages hold: what tells, in which order, and what stays unknown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from envspec.documents import parse_toml
from envspec.facts.tables import CondaNames, conda_names
from envspec.io.store import Store
from envspec.models import CondaPackage, Dependent, Provided
from envspec.names import normalised
from envspec.resolve.conda.pypi_names import (
    PypiNames,
    UnmappedName,
    needs_python,
    provided_by,
    provided_in,
    with_provided,
)
from envspec.resolve.types import CondaProvided
from envspec.structs import replace

FORGE = "https://conda.anaconda.org/conda-forge"
PYTHON = ("python >=3.11,<3.12.0a0", "python_abi 3.11.* *_cp311")
FACTS = CondaNames(
    channels={
        "conda-forge": {
            "numpy": ("numpy",),
            "pytorch": ("torch",),
            "docker-compose": ("docker-compose",),
            "attr": (),
            "meta": (),
            "jsonschema": ("functools32", "jsonschema"),
        },
        "pytorch": {"faiss-cpu": ("faiss",), "meta": ("meta-of-pytorch",)},
    },
    contained={"libopencv": ("opencv-python", "opencv-python-headless"), "msgpack-python": ("msgpack",)},
)


def row(
    name: str,
    version: str = "1.0",
    depends: tuple[str, ...] = PYTHON,
    channel: str = FORGE,
    askers: tuple[Dependent, ...] = (),
    noarch: str = "",
) -> CondaPackage:
    filename = f"{name}-{version}-0.conda"
    place = channel.rpartition("/")[2], "linux-64", filename, f"{channel}/linux-64/{filename}"
    sha256 = name.encode().hex().ljust(64, "0")
    release = CondaPackage(name, version, "0", 0, *place, sha256, depends=depends)
    return replace(release, required_by=askers, noarch=noarch)


def paths(*files: str) -> bytes:
    """An archive's `info/paths.json`."""
    entries = [{"_path": file, "path_type": "hardlink", "size_in_bytes": 1} for file in files]
    return json.dumps({"paths": entries, "paths_version": 1}).encode()


class Archives:
    """A reader of some archives. asked: the names that it was called with."""

    def __init__(self, held: Mapping[str, bytes] = {}) -> None:
        self.held = held
        self.asked: list[str] = []

    async def __call__(self, package: CondaPackage) -> bytes | None:
        self.asked.append(package.name)
        return self.held.get(package.name)


def names(tmp_path: Path, own: Mapping[str, tuple[str, ...]] = {}) -> PypiNames:
    return PypiNames(own, FACTS, Store(tmp_path))


def provided(known: PypiNames, package: CondaPackage, archives: Archives | None = None) -> tuple[Provided, ...] | None:
    """What one package provides; None where that stays unknown."""
    (filled,), unmapped = asyncio.run(with_provided([package], known, archives or Archives()))
    assert unmapped in ((), (package,))
    return None if unmapped else filled.provides


@pytest.mark.parametrize(
    ("package", "provides"),
    [
        pytest.param(row("numpy", "2.2.6"), [("numpy", "2.2.6")], id="same name"),
        pytest.param(row("pytorch", "2.8.0"), [("torch", "2.8.0")], id="another name"),
        pytest.param(row("attr"), [], id="listed as none"),
        pytest.param(row("corp-libs", depends=("libstdcxx >=13",)), [], id="unknown, and not for Python"),
        pytest.param(row("docker-compose", "5.1.1", ()), [], id="a Python package once"),
        pytest.param(row("msgpack-python", "1.1.0"), [("msgpack", "1.1.0")], id="read by hand"),
        pytest.param(
            row("libopencv", "4.10.0", ("numpy >=1.19,<3",)),
            [("opencv-python", "4.10.0"), ("opencv-python-headless", "4.10.0")],
            id="read by hand, not for Python by its row",
        ),
        pytest.param(row("numpy", "2.0.0_rc1"), [("numpy", "2.0.0rc1")], id="version in PEP 440's spelling"),
        pytest.param(row("faiss-cpu", channel="https://h/pytorch"), [("faiss", "1.0")], id="of its own channel"),
        pytest.param(row("numpy", channel="https://h/corp"), [("numpy", "1.0")], id="as conda-forge calls it"),
        pytest.param(
            row("meta", channel="https://mirror.corp/x/conda-forge/label/rc"), [], id="a mirror, known by its last part"
        ),
        pytest.param(
            row("meta", channel="https://h/pytorch"), [("meta-of-pytorch", "1.0")], id="its own channel first"
        ),
    ],
)
def test_what_is_known_without_an_archive(
    tmp_path: Path, package: CondaPackage, provides: list[tuple[str, str]]
) -> None:
    archives = Archives()
    assert provided(names(tmp_path), package, archives) == tuple(Provided(*each) for each in provides)
    assert archives.asked == []


def test_the_spec_goes_before_everything(tmp_path: Path) -> None:
    known = names(tmp_path, {"numpy": (), "attr": ("attr", "Attr.Extra"), "plain": ("plain",)})
    assert provided(known, row("numpy")) == ()
    assert provided(known, row("attr")) == (Provided("attr", "1.0"), Provided("attr-extra", "1.0"))
    assert provided(known, row("plain", depends=())) == (Provided("plain", "1.0"),)


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(row("corp-tools"), id="nobody lists it"),
        pytest.param(row("corp-tools", depends=(), noarch="python"), id="noarch Python"),
        pytest.param(row("jsonschema", "4.23.0"), id="several names over the years"),
        pytest.param(row("attr", channel="https://h/corp"), id="none, but of another channel"),
        pytest.param(row("numpy", "9e_p1"), id="no version of PEP 440"),
    ],
)
def test_what_only_the_archive_tells(tmp_path: Path, package: CondaPackage) -> None:
    known = names(tmp_path)
    assert provided(known, package) is None
    assert provided(known, package, Archives({package.name: b"not JSON"})) is None
    archives = Archives(
        {package.name: paths("site-packages/tools/__init__.py", "site-packages/tools-3.1.dist-info/METADATA")}
    )
    assert provided(known, package, archives) == (Provided("tools", "3.1"),)
    assert archives.asked == [package.name]
    # From then on it is remembered by the archive's hash, also by other runs.
    known.store.save()
    assert provided(names(tmp_path), package, again := Archives()) == (Provided("tools", "3.1"),)
    assert again.asked == []


def test_an_archive_that_holds_none_is_remembered_too(tmp_path: Path) -> None:
    known = names(tmp_path)
    assert provided(known, row("corp-libs"), Archives({"corp-libs": paths("lib/libcorp.so")})) == ()
    known.store.save()
    assert provided(names(tmp_path), row("corp-libs")) == ()


def test_packages_stay_in_order(tmp_path: Path) -> None:
    packages = [row("numpy"), row("corp-tools"), row("attr"), row("other-tools")]
    filled, unmapped = asyncio.run(with_provided(packages, names(tmp_path), Archives()))
    assert [replace(package, provides=()) for package in filled] == packages
    assert [package.name for package in unmapped] == ["corp-tools", "other-tools"]


@pytest.mark.parametrize(
    ("files", "held"),
    [
        (["site-packages/typing_extensions-4.12.0.dist-info/METADATA"], [("typing-extensions", "4.12.0")]),
        (["lib/python3.13/site-packages/numpy-2.2.6.dist-info/METADATA"], [("numpy", "2.2.6")]),
        (["lib/python3.14t/site-packages/numpy-2.2.6.dist-info/METADATA"], [("numpy", "2.2.6")]),
        (["Lib/site-packages/pywin32-311.dist-info/METADATA"], [("pywin32", "311")]),
        (["site-packages/nose-1.3.7-py3.9.egg-info/PKG-INFO"], [("nose", "1.3.7")]),
        (["site-packages/PyICU-2.14-py3.9.egg-info"], [("pyicu", "2.14")]),
        (["site-packages/ruamel.yaml-0.18.dist-info/METADATA"], [("ruamel-yaml", "0.18")]),
        (["site-packages/setuptools/_vendor/wheel-0.45.dist-info/METADATA"], []),
        (["share/tool/lib/python3.9/site-packages/six-1.0.dist-info/METADATA"], []),
        (["site-packages/six-1.0.dist-info/RECORD"], []),
        (["site-packages/six-unknown.dist-info/METADATA"], []),
        (
            ["site-packages/shiboken6-6.8.dist-info/METADATA", "site-packages/PySide6-6.8.dist-info/METADATA"],
            [("pyside6", "6.8"), ("shiboken6", "6.8")],
        ),
    ],
)
def test_what_an_archive_tells(files: list[str], held: list[tuple[str, str]]) -> None:
    assert provided_in(paths(*files)) == tuple(Provided(*each) for each in held)


@pytest.mark.parametrize("broken", [b"", b"[]", b"{}", b'{"paths": [1]}', b"\xff"])
def test_what_is_no_list_of_paths(broken: bytes) -> None:
    with pytest.raises(ValueError, match="no list of paths"):
        provided_in(broken)


@pytest.mark.parametrize("depends", ["python", "libc, python>=3.9", "python 3.11.*"])
def test_needing_python(depends: str) -> None:
    assert needs_python(row("a", depends=tuple(depends.split(", "))))
    assert not needs_python(row("a", depends=("python_abi 3.11.* *_cp311", "python-gil", "pythonnet", "")))


def test_of_two_packages_that_hold_one_the_one_of_its_name_counts(tmp_path: Path) -> None:
    asked = (Dependent("spec", "pytorch 2.8.*"),)
    packages = [row("torch-extras", "9"), row("pytorch", "2.8.0", askers=asked)]
    packages += [row("vtk-base", "9.4"), row("vtk", "9.5"), row("attr")]
    own = {"torch-extras": ("zeta", "alpha"), "vtk-base": ("vtk",), "vtk": ("vtk",)}
    filled, _ = asyncio.run(with_provided(packages, names(tmp_path, own), Archives()))
    found = provided_by(filled)
    assert list(found) == ["alpha", "torch", "vtk", "zeta"]
    assert (found["vtk"].version, found["vtk"].package) == ("9.5", "vtk")
    assert found["torch"] == CondaProvided("torch", "2.8.0", "pytorch", "conda-forge", asked)
    assert str(found["torch"]) == "torch 2.8.0 comes from conda-forge"
    assert found["torch"].description == "torch 2.8.0 comes from conda-forge (conda's pytorch, required by the spec)"


def test_a_description_names_three_dependants_at_most(tmp_path: Path) -> None:
    askers = tuple(Dependent(name, "numpy") for name in ("scipy", "pandas", "ml-dtypes", "contourpy", "numba"))
    filled, _ = asyncio.run(with_provided([row("numpy", askers=askers)], names(tmp_path), Archives()))
    assert provided_by(filled)["numpy"].description == (
        "numpy 1.0 comes from conda-forge (conda's numpy, required by contourpy, ml-dtypes, numba and 2 more)"
    )


def test_the_refusal_says_what_to_write(tmp_path: Path) -> None:
    packages = [row("corp-tools", channel="https://h/corp"), row("jsonschema"), row("numpy", "9e_p1"), row("corp.x")]
    error = UnmappedName(packages, names(tmp_path))
    assert error.exit_code == 4
    assert "corp-tools 1.0 comes from corp and needs Python; its PyPI package is unknown" in error.message
    assert "jsonschema 1.0 comes from conda-forge" in error.message and "functools32, jsonschema" in error.message
    assert "numpy 9e_p1 comes from conda-forge, no version of a Python package" in error.message
    hint = error.hint or ""
    assert 'corp-tools = "corp-tools"' in hint and 'jsonschema = "jsonschema"' in hint and "`[]`" in hint
    assert hint.startswith("require numpy in [pip] instead")
    lines = hint.partition("[conda.names]: ")[2].partition(";")[0].split(", ")
    assert parse_toml("\n".join(lines))["corp.x"] == "corp-x"


def test_the_table_is_coherent() -> None:
    facts = conda_names()
    for channel in facts.channels.values():
        for conda, pypi in channel.items():
            assert conda == conda.strip() and conda
            assert len(set(pypi)) == len(pypi)
    every = [*facts.contained.values(), *(pypi for channel in facts.channels.values() for pypi in channel.values())]
    assert all(name == canonicalize_name(name) for pypi in every for name in pypi)


@pytest.mark.parametrize(
    ("name", "channel", "listed"),
    [
        ("pytorch", "conda-forge", ("torch",)),
        ("typing_extensions", None, ("typing-extensions",)),
        ("torchtriton", "pytorch", ("triton",)),
        ("torchtriton", "conda-forge", None),
        ("libgcc", "conda-forge", ()),
        ("libgcc", None, None),
        ("no-such-package-at-all", "conda-forge", None),
    ],
)
def test_names_in_the_table(name: str, channel: str | None, listed: tuple[str, ...] | None) -> None:
    assert conda_names().listed(name, channel) == listed


@pytest.mark.parametrize("name", ["a", "A.b_c", "ruamel.yaml.clib", "a--b", "x-.-y"])
def test_names_in_pypis_form(name: str) -> None:
    assert normalised(name) == canonicalize_name(name)
