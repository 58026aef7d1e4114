"""Conflicts between [pip] and conda's packages beyond tests/operations/golden/lock_conda_refusals."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from envspec.models import Dependent
from envspec.resolve.pypi.errors import PypiCondaConflict, check_conflicts, torch_family_conflict
from envspec.resolve.pypi.no_solution import excluded_versions
from envspec.resolve.types import CondaProvided
from envspec.spec import Spec, parse_spec

BY_SPEC = Dependent("spec", "pytorch 2.8.*")
BY_SCIPY = Dependent("scipy", "numpy >=1.23,<3")
NUMPY = CondaProvided("numpy", "2.2.6", "numpy", "conda-forge", (BY_SCIPY,))
TORCH = CondaProvided("torch", "2.8.0", "pytorch", "conda-forge", (Dependent("torchvision", "pytorch"), BY_SPEC))
PROVIDED = {provider.name: provider for provider in (NUMPY, TORCH)}
CORP = '[[pip.index]]\nname = "corp"\nurl = "https://wheels.example.com/simple"\npackages = ["num*"]\n'


def spec(*asked: str, constraints: tuple[str, ...] = (), index: str = "") -> Spec:
    text = (
        '[env]\nname = "x"\npython = "3.12"\n'
        f"[pip]\ndependencies = {list(asked)}\nconstraints = {list(constraints)}\n{index}"
    )
    return parse_spec(text, "spec.toml", datetime(2026, 11, 1, tzinfo=timezone.utc))


def check(of: Spec) -> None:
    check_conflicts(of.pip.dependencies, of.pip.constraints, of.pip, PROVIDED)


@pytest.mark.parametrize("asked", ["numpy", "NumPy>=2", "numpy[all]==2.2.6", "numpy==2.2.*", "scikit-learn"])
def test_a_plain_requirement_that_conda_meets_is_met(asked: str) -> None:
    check(spec(asked, constraints=("numpy<3", "torch<3", "six>1")))


@pytest.mark.parametrize(
    ("conflicting", "message", "hint"),
    [
        (
            spec(constraints=("torch<2.8",)),
            "torch 2.8.0 comes from conda-forge (conda's pytorch, required by the spec, torchvision), "
            "but pip.constraints has torch<2.8",
            "bound pytorch in [conda] dependencies, and remove it from [pip]",
        ),
        (
            spec("numpy", index=CORP),
            "[pip] dependencies requires numpy from the index corp, "
            "but numpy 2.2.6 comes from conda-forge (conda's numpy, required by scipy)",
            "install numpy from conda only, or move what requires conda's numpy to [pip]",
        ),
        (
            spec("torch @ https://user:secret@h.example/torch-2.8.0-py3-none-any.whl"),
            "torch is required twice: [pip] dependencies has "
            "torch @ https://h.example/torch-2.8.0-py3-none-any.whl, "
            "[conda] dependencies has pytorch 2.8.*, which contains torch",
            "remove one of the two; other conda packages need conda's pytorch",
        ),
    ],
    ids=["a constraint", "an index of its own", "a wheel of what both require"],
)
def test_a_conflict(conflicting: Spec, message: str, hint: str) -> None:
    with pytest.raises(PypiCondaConflict) as caught:
        check(conflicting)
    assert (caught.value.message, caught.value.hint, caught.value.exit_code) == (message, hint, 4)


def test_an_index_pattern_that_fits_only_what_conda_provides() -> None:
    check(spec("six", index=CORP))


def test_members_of_the_family() -> None:
    vision = {"torchvision": [Dependent("timm", "torchvision"), Dependent("spec", "torchvision")]}
    assert torch_family_conflict({"numpy": [], "trainer": []}, PROVIDED) is None
    assert torch_family_conflict(vision, {"numpy": NUMPY}) is None
    held = CondaProvided("torchvision", "0.23.0", "torchvision", "conda-forge")
    assert torch_family_conflict(vision, PROVIDED | {"torchvision": held}) is None
    two = torch_family_conflict({"torchaudio": [Dependent("a", "torchaudio")], **vision}, PROVIDED)
    assert two is not None
    assert "PyPI's torchvision, torchaudio are built" in two.message
    assert two.hint == "put torchvision, torchaudio into [conda] dependencies"


CONDA = {
    "torch": CondaProvided("torch", "2.8.0", "pytorch", "conda-forge", (Dependent("spec", "pytorch"),)),
    "numpy": CondaProvided("numpy", "2.3.5", "numpy", "conda-forge", (Dependent("pytorch", "numpy >=1.23,<3"),)),
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
    found = list(excluded_versions(message, CONDA))
    assert [whence for whence, _ in found] == [CONDA[name].description for name in names]
    assert all(CONDA[name].package in hint for name, (_, hint) in zip(names, found, strict=True))
