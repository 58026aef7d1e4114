"""However many packages, and however deep the base: an image has at most 120 layers, and all is in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.context import Connectivity, Context
from envspec.diagnostics.machine import this_platform
from envspec.image.base_layers import PythonLayers
from envspec.image.build import MAX_LAYERS, wheel_sources
from envspec.image.config import Base
from envspec.image.layers.partition import OWN_LAYER_BYTES
from envspec.image.layers.types import Layer
from envspec.image.sources.conda import CondaSource
from envspec.models import CondaPackage, Package, Platform, Python
from envspec.registry.types import Descriptor
from envspec.structs import replace
from tests.support.builders import locks

#: As the assembler counts them: what `[system] apt` needs, and the settings at the end.
SYSTEM, SETTINGS = 1, 1
SIZES = st.one_of(
    st.none(),
    st.integers(0, 100),
    st.integers(OWN_LAYER_BYTES - 2, OWN_LAYER_BYTES + 2),
    st.integers(OWN_LAYER_BYTES, 3_000_000_000),
)
ROWS = st.one_of(st.lists(SIZES, max_size=30), st.lists(SIZES, min_size=100, max_size=250))
CACHE = Path("/nowhere")


def wheels(sizes: list[int | None]) -> list[Package]:
    rows = [(f"pack{number}", size) for number, size in enumerate(sizes)]
    return [locks.package(name, "1.0", file=locks.wheel(name, "1.0", size_bytes=size)) for name, size in rows]


def conda(sizes: list[int | None]) -> list[CondaPackage]:
    named = [locks.conda(f"lib{number}", "1.0", size_bytes=size) for number, size in enumerate(sizes)]
    return [*named, locks.conda("python", "3.12.11")]


def parts() -> PythonLayers:
    context = Context({}, CACHE, CACHE, Connectivity.OFFLINE, jobs=1)
    return PythonLayers(context, this_platform(), lambda _: False)


def base(layers: int) -> Base:
    digest = f"sha256:{0:064}"
    made = tuple(Layer(digest, Descriptor("", digest, 1), "") for _ in range(layers))
    return Base("docker.io/nvidia/cuda:1", digest, digest, {"config": {}}, made)


@settings(deadline=None)
@given(ROWS, ROWS, st.integers(0, 115), st.booleans(), st.booleans())
def test_never_more_than_the_engines_take(
    of_wheels: list[int | None], of_conda: list[int | None], depth: int, has_apt: bool, has_conda: bool
) -> None:
    rows = wheels(of_wheels)
    if has_conda:
        resolution = locks.conda_resolution(Platform.LINUX_64, conda(of_conda), *rows)
    else:
        resolution = locks.resolution(Platform.LINUX_64, *rows)
        target = replace(resolution.target, python=Python("3.11.2", "system"))
        resolution = replace(resolution, target=target)
    budget = MAX_LAYERS - depth - SYSTEM * has_apt - SETTINGS
    below = parts().below(resolution, base(depth), None, budget - 1)
    above = wheel_sources(resolution, CACHE, None, budget - len(below.sources))
    assert depth + SYSTEM * has_apt + len(below.sources) + len(above) + SETTINGS <= MAX_LAYERS
    held = Counter(wheel.name for source in above for wheel in source.wheels)
    assert held == Counter(row.name for row in rows)
    if has_conda:
        made = [source for source in below.sources if isinstance(source, CondaSource)]
        linked = Counter(package.name for source in made for package in source.packages)
        assert linked == Counter(row.name for row in resolution.conda)
    keys = [source.key for source in (*below.sources, *above)]
    assert len(set(keys)) == len(keys)
