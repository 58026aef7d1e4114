"""How packages are cut into layers: all of them once, never too many layers, and stable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.image.layers.partition import BUCKETS, OWN_LAYER_BYTES, partition

_SIZES = st.one_of(st.none(), st.integers(0, 10 * OWN_LAYER_BYTES))
_PACKAGES = st.dictionaries(st.text("abcdefgh-", min_size=1, max_size=6), _SIZES, max_size=200)


@given(_PACKAGES, st.integers(1, 130))
def test_each_name_is_in_one_layer_and_there_are_no_more_than_the_budget(
    sizes: dict[str, int | None], budget: int
) -> None:
    layers = partition(list(sizes.items()), budget)
    assert len(layers) <= budget
    assert sorted(name for layer in layers for name in layer) == sorted(sizes)
    assert all(layer for layer in layers)


@given(_PACKAGES, st.integers(1, 130), st.data())
def test_the_order_of_the_packages_does_not_matter(
    sizes: dict[str, int | None], budget: int, data: st.DataObject
) -> None:
    listed = list(sizes.items())
    assert partition(listed, budget) == partition(data.draw(st.permutations(listed)), budget)


@given(_PACKAGES)
def test_with_room_for_all_the_big_ones_are_alone_and_first(sizes: dict[str, int | None]) -> None:
    layers = partition(list(sizes.items()), 400)
    big = [name for name, size in sizes.items() if size is None or size >= OWN_LAYER_BYTES]
    assert sorted(name for layer in layers[: len(big)] for name in layer) == sorted(big)
    known = [sizes[layer[0]] for layer in layers[: len(big)] if sizes[layer[0]] is not None]
    assert known == sorted(known, key=lambda size: -(size or 0))
    assert len(layers) - len(big) <= BUCKETS


@given(_PACKAGES, st.text("xyz", min_size=1, max_size=4), st.integers(0, OWN_LAYER_BYTES - 1))
def test_another_small_package_changes_one_layer_at_most(sizes: dict[str, int | None], name: str, size: int) -> None:
    before = partition(list(sizes.items()), 400)
    after = partition([*sizes.items(), (name, size)], 400)
    assert len(set(after) - set(before)) == 1
    assert len(set(before) - set(after)) <= 1


@given(_PACKAGES, st.integers(1, 130))
def test_what_is_alone_is_never_smaller_than_what_is_merged(sizes: dict[str, int | None], budget: int) -> None:
    layers = partition(list(sizes.items()), budget)
    big = {name: size for name, size in sizes.items() if size is not None and size >= OWN_LAYER_BYTES}
    merged = [big[name] for layer in layers if len(layer) > 1 for name in layer if name in big]
    alone = [big[layer[0]] for layer in layers[:-BUCKETS] if len(layer) == 1 and layer[0] in big]
    assert not merged or not alone or min(alone) >= max(merged)


def test_the_layers_of_a_known_stack() -> None:
    sizes = [("torch", 900 << 20), ("numpy", 18 << 20), ("triton", 170 << 20), ("odd", None), ("six", 11_000)]
    assert partition(sizes, 120) == [("torch",), ("triton",), ("numpy",), ("odd",), ("six",)]
    assert partition(sizes, 2) == [("torch",), ("numpy", "odd", "six", "triton")]
    assert partition(sizes, 1) == [("numpy", "odd", "six", "torch", "triton")]
    assert partition([], 0) == []


def test_no_layer_for_something_and_a_name_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="1 packages, but no layer"):
        partition([("six", 1)], 0)
    with pytest.raises(ValueError, match="duplicate name"):
        partition([("six", 1), ("six", 2)], 9)
