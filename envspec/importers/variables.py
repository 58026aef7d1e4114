"""Environment variables of images and containers -> [image] env, and what they imply of GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial
from typing import Final

from envspec.facts.gpu import ComputeCapability
from envspec.importers.conda_specs import add_variable
from envspec.importers.pip import torch_backend
from envspec.importers.requirements import add_line
from envspec.importers.types import Clue, Import, NamedLines, Outcome, Source

#: Names in TORCH_CUDA_ARCH_LIST. Source: torch/utils/cpp_extension.py, _get_cuda_arch_flags.
ARCHITECTURES: Final = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
}

#: Variables of pip and uv that name indexes -> the same option of a requirements file; blanks separate several.
INDEXES: Final = {
    **dict.fromkeys(("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"), "--index-url"),
    **dict.fromkeys(("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX"), "--extra-index-url"),
    **dict.fromkeys(("PIP_FIND_LINKS", "UV_FIND_LINKS"), "--find-links"),
}


#: Variables that [image] env does not get: the first that matches.
VARIABLES: Final = (
    NamedLines(
        r"(PIP|UV)_(BUILD_)?(CONSTRAINT|REQUIREMENT|OVERRIDE)S?",
        Outcome.REFUSED,
        "a file of the image: write its lines into [pip] constraints",
    ),
    NamedLines(r"PIP_PRE|UV_PRERELEASE", Outcome.REFUSED, 'name each pre-release instead: "torch>=2.10.0rc1"'),
    NamedLines(
        r"(?i:(https?|ftp|no|all)_proxy)|DEBIAN_FRONTEND|DEBCONF_\w+|NEEDRESTART_\w+|PATH|VIRTUAL_ENV"
        r"|(PIP|UV|POETRY|PIPENV|PIPX|PDM|CONDA|MAMBA)_\w+|PYTHONDONTWRITEBYTECODE|CUDA_(HOME|PATH|ROOT|VERSION)"
        r"|(CUDNN|NCCL)_VERSION|MAX_JOBS|FORCE_CUDA|USE_NINJA|CMAKE_BUILD_PARALLEL_LEVEL|MAKEFLAGS",
        Outcome.OUTSIDE,
        "it concerns installers, builds or the base image, which envspec sets up itself",
    ),
    NamedLines(
        r"NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|NVIDIA_REQUIRE_\w+",
        Outcome.TRANSLATED,
        "envspec sets it for a lock with CUDA",
    ),
    NamedLines(
        r"CC|CXX|CFLAGS|CXXFLAGS|LDFLAGS|NVCC_\w+|TCNN_CUDA_ARCHITECTURES|LIBRARY_PATH|CPATH"
        r"|CMAKE_(ARGS|GENERATOR|BUILD_\w+|PREFIX_PATH|\w+_FLAGS|\w+_ARCHITECTURES|\w+_COMPILER)",
        Outcome.REFUSED,
        "a variable of builds: [build.NAME] env has those of one package",
    ),
)


def ignored(name: str) -> NamedLines | None:
    """Why [image] env does not get a variable, whatever its value is; None if its value counts."""
    if name in INDEXES or name in READ:
        return None
    return next((row for row in VARIABLES if re.fullmatch(row.names, name)), None)


def read_variable(name: str, value: str, source: Source, text: str, imported: Import) -> None:
    """A variable that an image or a container sets, with its entry."""
    if (read := READ.get(name)) is not None:
        read(value, source, text, imported)
    elif name in INDEXES:
        for url in value.split():
            # uv names an index by `NAME=URL`.
            address = re.sub(r"^[\w-]+=(?=https?:)", "", url)
            add_line(f"{INDEXES[name]} {shlex.quote(address)}", source, imported, imported.root)
    elif row := ignored(name):
        is_empty = value.strip("\"'") == ""
        outcome = Outcome.OUTSIDE if is_empty else row.outcome
        imported.add(source, text, outcome, row.reason)
    else:
        add_variable(imported, source, name, value, text)


#: Folders whose libraries and packages an environment has, or the base image.
_USUAL_FOLDERS: Final = re.compile(
    r"\$|/usr/local/(cuda|nvidia|lib)|/usr/lib|/lib|/opt/conda|.*(site|dist)-packages|.*/\.?v?env(/|$)"
)


def _folders(value: str, source: Source, text: str, imported: Import, name: str, reason: str) -> None:
    """A list of folders: those that are not usual are kept. reason: why the others are left out."""
    folders = filter(None, re.split(r":(?![-+?])", value))
    others = [each for each in folders if not _USUAL_FOLDERS.match(each)]
    if others:
        add_variable(imported, source, name, ":".join(others), text)
    else:
        imported.add(source, text, Outcome.OUTSIDE, reason)


def gpus_of(architectures: str, source: Source, text: str, imported: Import) -> None:
    """`8.0;9.0+PTX`, as TORCH_CUDA_ARCH_LIST has it: the GPUs for which the project compiles."""
    found, others = [], []
    names = filter(None, re.split(r"[;,\s]+", architectures))
    expanded = ";".join(ARCHITECTURES.get(name, name) for name in names)
    for each in expanded.split(";"):
        try:
            found.append(str(ComputeCapability.parse(re.sub(r"[af]?(\+PTX)?$", "", each))))
        except ValueError:
            others.append(each)
    imported.draft.gpus += [Clue(each, source, "TORCH_CUDA_ARCH_LIST") for each in dict.fromkeys(found)]
    if others:
        listed = ", ".join(map(repr, others))
        imported.add(source, text, Outcome.NOT_UNDERSTOOD, f"no compute capability: {listed}")
    else:
        imported.add(source, text, Outcome.TRANSLATED, f"[cuda] gpus: {', '.join(dict.fromkeys(found))}")


def _backend(value: str, source: Source, text: str, imported: Import) -> None:
    imported.add(source, text, *torch_backend(value, source, imported))


#: Variables whose value decides more than an environment: name -> what reads it.
READ: Final[dict[str, Callable[[str, Source, str, Import], None]]] = {
    "TORCH_CUDA_ARCH_LIST": gpus_of,
    "UV_TORCH_BACKEND": _backend,
    "PYTHONPATH": partial(_folders, name="PYTHONPATH", reason="Python finds the environment's packages by itself"),
    "LD_LIBRARY_PATH": partial(_folders, name="LD_LIBRARY_PATH", reason="wheels find their libraries by themselves"),
}
