"""Values that `image verify` compares: what an image's texts list, and who owns a file."""

from __future__ import annotations

from typing import Any

import pytest

from envspec.image.verification import compare_config, listed_packages, owner_of


@pytest.mark.parametrize(
    ("title", "packages"),
    [
        ("torch 2.9.1", {"torch": "2.9.1"}),
        ("2 wheels: attrs 25.1.0, zope-interface 7.2", {"attrs": "25.1.0", "zope-interface": "7.2"}),
        ("conda: _libgcc_mutex 0.1", {"_libgcc_mutex": "0.1"}),
        ("2 conda packages: python 3.11.9, zlib 1.3.1", {"python": "3.11.9", "zlib": "1.3.1"}),
        ("Python 3.11.14", {}),
        ("environment of /usr/bin/python3.11", {}),
        ("apt: git", {}),
        ("apt: git libgl1", {}),
        ("working folder /workspace", {}),
        ("user envspec; jupyter on port 8888, ssh on port 2222", {}),
        ("", {}),
    ],
)
def test_a_layer_s_text_lists_packages_and_nothing_else(title: str, packages: dict[str, str]) -> None:
    assert listed_packages([title]) == packages


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("opt/env/lib/python3.11/site-packages/torch/a.py", "torch"),
        ("opt/env/lib/python3.11/site-packages/torch/__pycache__/a.cpython-311.pyc", "torch"),
        ("opt/env/lib/python3.11/site-packages/Zope_Interface-7.2.dist-info/RECORD", "zope-interface"),
        ("opt/env/share/zlib.txt", "zlib"),
        ("opt/env/bin/python3", "python"),
        ("etc/passwd", ""),
    ],
)
def test_the_owner_of_a_file(path: str, owner: str) -> None:
    owners = {
        "opt/env/lib/python3.11/site-packages/torch/a.py": "torch 2.9.1",
        "opt/env/share/zlib.txt": "conda's zlib 1.3.1",
        "opt/env/bin/python3": "environment of /usr/bin/python3.11",
    }
    assert owner_of(path, owners, {"torch", "zlib"}) == owner


def test_a_config_of_another_shape_is_compared_as_values() -> None:
    expected = {"config": {"Labels": {"a.b": "1"}, "Env": ["A=1", "B="]}}
    shapes: list[dict[str, Any]] = [{}, {"config": None}, {"config": {"Labels": None, "Env": {}}}]
    for found in (*shapes, {"config": {"Labels": 7, "Env": [7]}}):
        paths = [each.path for each in compare_config(expected, found, whole=True)]
        assert {"config.Env.A", "a.b"} <= set(paths)
    assert not list(compare_config(expected, {**expected, "more": 1}, whole=False))
    # Programs differ in which one counts.
    twice = {"config": {"Env": ["A=2", "A=1", "B="], "Labels": {"a.b": "1"}}}
    assert "config.Env.A (again)" in [each.path for each in compare_config(expected, twice, whole=True)]
    # Order is no difference: a variable stands once.
    turned = {"config": {"Env": ["B=", "A=1"], "Labels": {"a.b": "1"}}}
    assert not list(compare_config(expected, turned, whole=True))
