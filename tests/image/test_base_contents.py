"""Which Python a base's PATH finds, and which of its folders of packages that Python imports from."""

from __future__ import annotations

import pytest

from envspec.errors import UsageError
from envspec.image.base_contents import PATTERNS, contents_of
from envspec.image.layers.contents import FILE, LINK, Kept, LayerContents, merged, read_layer
from envspec.resolve.types import FoundEnvironment
from tests.support.builders.base_packages import Folder, Link, layer

NAME = "registry.example/base:1"


def program(path: str, version: str = "3.12.3") -> dict[str, Kept]:
    return {path: Kept(FILE, version)}


def package(site: str, name: str, version: str) -> dict[str, Kept]:
    folder = f"{site}/{name}-{version}.dist-info"
    return {
        f"{folder}/METADATA": Kept(FILE, f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\ntext"),
        f"{folder}/RECORD": Kept(FILE, "ab" * 32),
    }


def read(*parts: dict[str, Kept], **env: str) -> FoundEnvironment:
    return contents_of(
        {path: entry for part in parts for path, entry in part.items()}, {"PATH": "/usr/bin", **env}, NAME
    )


def versions(found: FoundEnvironment) -> dict[str, str]:
    return {name: each.version for name, each in found.packages.items()}


def test_debian() -> None:
    """Of two packages of one name, Python imports the first on its path."""
    found = read(
        {"usr/bin/python3": Kept(LINK, "python3.12")},
        program("usr/bin/python3.12"),
        package("usr/lib/python3/dist-packages", "numpy", "1.26.0"),
        package("usr/local/lib/python3.12/dist-packages", "numpy", "1.26.4"),
        package("usr/local/lib/python3.11/dist-packages", "other", "1.0"),
        {"usr/lib/x86_64-linux-gnu/libc.so.6": Kept(FILE, "2.39")},
    )
    assert (found.python, found.glibc, found.home, found.nested) == ("3.12.3", (2, 39), "/usr/bin", "")
    assert found.site == "/usr/local/lib/python3.12/dist-packages"
    assert versions(found) == {"numpy": "1.26.4"}
    assert found.packages["numpy"].record_sha256 == "ab" * 32


def test_fedora_whose_lib64_is_its_own_folder() -> None:
    found = read(
        {"bin": Kept(LINK, "usr/bin"), "usr/bin/python3": Kept(LINK, "python3.12")},
        program("usr/bin/python3.12", ""),
        {"usr/lib64/libpython3.12.so.1.0": Kept(FILE, "3.2.0 3.12.3")},
        package("usr/lib64/python3.12/site-packages", "numpy", "1.26.4"),
        PATH="/bin",
    )
    assert (found.python, versions(found)) == ("3.12.3", {"numpy": "1.26.4"})


def test_a_folder_in_the_place_of_a_link() -> None:
    blob = (
        layer({"bin": Link("usr/bin")}),
        layer({"bin": Folder()}),
        layer({"bin/python3.12": b"\x7fELF\0" + b"3.12.3\0"}),
    )
    layers = [read_layer([each], len(each), PATTERNS) for each in blob]
    found = contents_of(
        merged([*layers, LayerContents({"bin/python3": Kept(LINK, "python3.12")}, [], [])]), {"PATH": "/bin"}, NAME
    )
    assert found.home == "/bin"


def test_conda_before_the_system_on_path() -> None:
    found = read(
        {"usr/bin/python3": Kept(LINK, "python3.11"), "opt/conda/bin/python": Kept(LINK, "python3.12")},
        program("usr/bin/python3.11", "3.11.2"),
        program("opt/conda/bin/python3.12"),
        package("opt/conda/lib/python3.12/site-packages", "torch", "2.8.0+cu126"),
        package("usr/lib/python3/dist-packages", "pygobject", "3.48"),
        PATH="/opt/conda/bin:/usr/bin",
    )
    assert (found.python, found.home) == ("3.12.3", "/opt/conda/bin")
    assert (versions(found), found.torch_build) == ({"torch": "2.8.0+cu126"}, "cpu")


@pytest.mark.parametrize("shared", [True, False])
def test_a_virtual_environment(shared: bool) -> None:
    found = read(
        {"opt/venv/bin/python3": Kept(LINK, "/usr/bin/python3.12")},
        {"opt/venv/pyvenv.cfg": Kept(FILE, f"home = /usr/bin\nInclude-System-Site-Packages = {str(shared).lower()}\n")},
        program("usr/bin/python3.12"),
        package("opt/venv/lib/python3.12/site-packages", "numpy", "2.0.0"),
        package("usr/lib/python3/dist-packages", "numpy", "1.26.4"),
        package("usr/lib/python3/dist-packages", "below", "1.0"),
        PATH="/opt/venv/bin:/usr/bin",
    )
    assert versions(found) == {"numpy": "2.0.0", **({"below": "1.0"} if shared else {})}
    assert found.nested == "/opt/venv/lib/python3.12/site-packages"
    assert bool(found.site) is shared


def test_what_names_no_version_is_reported() -> None:
    site = "usr/lib/python3/dist-packages"
    found = read(
        {"usr/bin/python3": Kept(LINK, "python3.12")},
        program("usr/bin/python3.12"),
        {f"{site}/odd-1.egg-info": Kept(FILE, "Name: odd\nVersion: not a version\n")},
        {f"{site}/old-1.0.egg-info/PKG-INFO": Kept(FILE, "Name: Old_One\nVersion: 1.0\n")},
        PYTHONPATH="/opt/more",
    )
    assert versions(found) == {"old-one": "1.0"}
    assert len(found.notes) == 2 and "sets PYTHONPATH" in found.notes[0] and "odd-1.egg-info" in found.notes[1]


@pytest.mark.parametrize(
    "entries",
    [{}, {"usr/bin/python3": Kept(LINK, "python3")}, {"usr/bin/python3": Kept(FILE)}, {"usr": Kept(LINK, "usr")}],
    ids=["none", "circle", "no series", "folders in a circle"],
)
def test_no_python(entries: dict[str, Kept]) -> None:
    with pytest.raises(UsageError, match="no program python3"):
        read(entries)


@pytest.mark.parametrize(
    ("version", "env", "expected"),
    [
        ("2.8.0+cpu", {"CUDA_VERSION": "12.8.1"}, "cpu"),
        ("2.8.0+cu126", {"CUDA_VERSION": "12.8.1"}, "cu126"),
        ("2.9.0a0+145a3a7.nv25.9", {"CUDA_VERSION": "13.0.1.012"}, "cu130"),
        ("2.9.0a0+145a3a7", {"NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=tesla"}, "cu128"),
        ("2.9.0", {}, ""),
    ],
)
def test_the_cuda_of_torch(version: str, env: dict[str, str], expected: str) -> None:
    site = "usr/lib/python3/dist-packages"
    found = read(
        {"usr/bin/python3": Kept(LINK, "python3.12")},
        program("usr/bin/python3.12"),
        package(site, "torch", version),
        {f"{site}/torch/lib/libtorch_cuda.so": Kept(FILE, "sm_90 sm_80 compute_90")},
        **env,
    )
    assert found.torch_build == expected
    assert found.gpu_code is not None and found.gpu_code.sm == ("sm_80", "sm_90")
