"""What of conda an engine's words exclude: a version that they name is a reason, a name alone is none."""

from __future__ import annotations

import pytest

from envspec.models import Asker
from envspec.resolve.pypi.errors import excluded_conda_versions
from envspec.resolve.types import CondaProvided

PROVIDED = {
    "torch": CondaProvided("torch", "2.8.0", "pytorch", "conda-forge", (Asker("spec", "pytorch"),)),
    "numpy": CondaProvided("numpy", "2.3.5", "numpy", "conda-forge", (Asker("pytorch", "numpy >=1.23,<3"),)),
    "ruamel-yaml": CondaProvided("ruamel-yaml", "0.18.1", "ruamel.yaml", "conda-forge"),
    "because": CondaProvided("because", "1.0", "because", "conda-forge"),
}


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (
            "Because there is no version of torch==2.3.1 and vllm<=0.5.3 depends on torch==2.3.1, we can conclude",
            ["torch"],
        ),
        ("vllm==0.6.5 depends on torch{platform_machine != 'aarch64'}==2.5.1, we can conclude", ["torch"]),
        ("Because numba==0.61.0 depends on numpy>=1.24,<2.2 and only numpy==2.3.5 is available", ["numpy"]),
        ("Because only numpy==2.3.5 is available and lib depends on numpy>=2.3, and lib==2", []),
        ("you require Torch[opt-einsum]>=2.9 and ruamel.yaml<0.18.", ["ruamel-yaml", "torch"]),
        ("these exclude each other: app 1.0 needs numpy<2; the spec asks lib>=3", ["numpy"]),
        ("Could not find a version that satisfies the requirement torch!=2.8.0 (from versions: 2.8.0)", ["torch"]),
        ("torch and numpy were found, because nothing else was; torch==unreadable", []),
        ("pytorch==1.0 and torch-scatter==1.0 and my.numpy==1", []),
        ("", []),
    ],
)
def test_what_is_excluded(message: str, names: list[str]) -> None:
    found = list(excluded_conda_versions(message, PROVIDED))
    assert [whence for whence, _ in found] == [PROVIDED[name].description for name in names]
    assert all(PROVIDED[name].package in hint for name, (_, hint) in zip(names, found, strict=True))
