"""What lies below the wheels of an image, decided from the lock, and made into layers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.context import Context
from envspec.diagnostics.machine import this_platform
from envspec.errors import NetworkError, UsageError
from envspec.image.base_layers import BaseLayers, PythonLayers, conda_layer_budget
from envspec.image.config import Base
from envspec.image.layers.ownership import OwnedPathCache
from envspec.image.layers.partition import partition
from envspec.image.layers.store import LayerStore
from envspec.image.layers.types import PREFIX, Compression, Layer
from envspec.image.sources.bytecode import PycCompiler
from envspec.io.http_types import Timeouts
from envspec.models import CondaPackage, Package, Python, Resolution, Target
from tests.support.builders import standalone
from tests.support.builders.environments import make_lock, pin
from tests.support.builders.standalone import SERIES, VERSION
from tests.support.builders.wheels import wheel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="images are made on Linux and macOS only")


def below(
    cache: Path, python: Python, *wheels: Package, environ: tuple[str, ...] = (), pyc: PycCompiler | None = None
) -> BaseLayers:
    (resolution,) = make_lock(python=python, wheels=wheels).resolutions
    base = Base("base", "sha256:0", "sha256:0", {"config": {"Env": list(environ)}})
    return parts(cache).below(resolution, base, pyc, 20)


def parts(cache: Path) -> PythonLayers:
    context = Context({}, cache, cache, jobs=2, timeouts=Timeouts(backoff_s=0.01))
    return PythonLayers(context, this_platform(), lambda _: False)


def locked(folder: Path) -> Python:
    archive = folder / "cpython-1+2.tar.gz"
    sha256 = standalone.write(archive, standalone.made_up())
    return Python(VERSION, "standalone", archive.as_uri().replace("+", "%2B"), sha256)


def fetched(layers: BaseLayers) -> BaseLayers:
    asyncio.run(layers.fetch())
    return layers


def owners(folder: Path, layers: BaseLayers) -> dict[str, str]:
    return OwnedPathCache(folder / "cache").owners(layers.sources)


@pytest.mark.parametrize("compression", Compression)
def test_a_standalone_python_is_the_same_layer_from_every_cache(compression: Compression, tmp_path: Path) -> None:
    python = locked(tmp_path)
    pyc = PycCompiler(Path(sys.executable), VERSION)
    made: list[Layer] = []
    for name in ("one", "two/deeper"):
        mask = os.umask(0o077 if made else 0o022)
        try:
            (source,) = fetched(below(tmp_path / name, python, pyc=pyc)).sources
            made.append(LayerStore(tmp_path / name).write(source, compression))
        finally:
            os.umask(mask)
    assert made[0] == made[1]
    assert made[0].created_by == f"Python {VERSION}"
    assert (tmp_path / "one/archives" / str(python.sha256) / "cpython-1+2.tar.gz").is_file()


def test_what_a_standalone_python_owns(tmp_path: Path) -> None:
    found = owners(tmp_path, fetched(below(tmp_path / "cache", locked(tmp_path))))
    assert found[f"{PREFIX}/bin/pip"] == f"Python {VERSION}"
    # Cached: the archive is not needed again.
    again = below(tmp_path / "cache", locked(tmp_path))
    (tmp_path / "cache/archives").rename(tmp_path / "gone")
    assert owners(tmp_path, again) == found


def test_a_locked_pip_takes_the_place_of_the_archives(tmp_path: Path) -> None:
    python = locked(tmp_path)
    plain = below(tmp_path / "cache", python)
    other = below(tmp_path / "cache", python, pin(wheel("pip", "26.0")))
    assert f"{PREFIX}/bin/pip" not in owners(tmp_path, fetched(other))
    assert plain.sources[0].key != other.sources[0].key


def test_an_archive_that_is_not_to_be_had(tmp_path: Path) -> None:
    python = locked(tmp_path)
    (tmp_path / "cpython-1+2.tar.gz").unlink()
    with pytest.raises(NetworkError, match=f"Python {VERSION}"):
        fetched(below(tmp_path / "cache", python))


@pytest.mark.parametrize(
    ("origin", "environ", "home"),
    [
        ("system", ("PATH=/bin",), "/usr/bin"),
        ("base", ("PATH=/bin", f"PYTHON_VERSION={VERSION}"), "/usr/local/bin"),
        ("base", (), "/usr/bin"),
    ],
)
def test_an_images_own_python(origin: str, environ: tuple[str, ...], home: str, tmp_path: Path) -> None:
    layers = fetched(below(tmp_path, Python(VERSION, origin), environ=environ))
    (source,) = layers.sources
    target = {entry.path: entry.target for entry in source.entries()}[f"{PREFIX}/bin/python"]
    assert target == f"{home}/python{SERIES}"
    assert f"{PREFIX}/pyvenv.cfg" in owners(tmp_path, layers)


def test_a_python_that_nobody_can_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no build of Python .* for an image") as caught:
        below(tmp_path, Python(VERSION, "spec"))
    assert caught.value.hint


# Layers, shared with the wheels

_SIZES = st.lists(st.one_of(st.none(), st.integers(0, 8 << 20)), max_size=150)


def _resolution(conda: list[int | None], wheels: list[int | None]) -> Resolution:
    rows = tuple(
        CondaPackage(f"c{n}", "1", "0", 0, "c", "noarch", f"c{n}.conda", "u", "0" * 64, size_bytes=size)
        for n, size in enumerate(conda)
    )
    packages = tuple(pin(wheel(f"w{n}", "1"), size_bytes=size) for n, size in enumerate(wheels))
    return Resolution(Target(this_platform(), Python(VERSION, "conda")), packages, conda=rows)


@given(_SIZES, _SIZES, st.integers(1, 118))
def test_conda_leaves_layers_for_wheels(conda: list[int | None], wheels: list[int | None], most: int) -> None:
    resolution = _resolution(conda, wheels)
    share = conda_layer_budget(resolution, most)
    assert 1 <= share <= most
    mine = [(row.name, row.size_bytes) for row in resolution.conda]
    groups, wanted = partition(mine, share), partition(mine, most)
    left = most + 1 - len(groups)
    rows = [(package.name, package.file.size_bytes) for package in resolution.packages]
    assert left >= 1 and len(partition(rows, left)) <= left
    if len(wanted) + len(partition(rows, most)) <= most + 1:
        assert groups == wanted and left >= len(partition(rows, most))
