"""The Dockerfiles of the peers, each at its best: one layer, wheels in a cache mount, the tool not in the image."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from bench.workshop import uv


class Installer(Enum):
    UV = "uv"
    PIP = "pip"


@dataclass(frozen=True, slots=True)
class Recipe:
    """installer: what fills the environment. options: of its install command."""

    installer: Installer
    options: tuple[str, ...] = ()


# `/mnt` is in every base: a mount point that had to be made would stay in the layer.
_HEAD: Final = """\
ARG BASE
FROM scratch AS tools
COPY {tool} /{tool}
COPY requirements.txt /requirements.txt

FROM ${{BASE}}
ARG {index}
ENV PATH="/opt/env/bin:$PATH"
RUN --mount=type=bind,from=tools,target=/mnt --mount=type=cache,target=/root/.cache \\
"""
_UV: Final = (
    _HEAD
    + """\
    export UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never \\
 && /mnt/uv venv --quiet --python python3.11 /opt/env \\
 && /mnt/uv pip install --quiet --python /opt/env/bin/python --no-deps --require-hashes {options} \
--requirement /mnt/requirements.txt
"""
)
_PIP: Final = (
    _HEAD
    + """\
    python3.11 -m venv --without-pip /opt/env \\
 && PIP_ROOT_USER_ACTION=ignore /opt/env/bin/python /mnt/pip install --quiet --disable-pip-version-check \
--no-deps --require-hashes {options} --requirement /mnt/requirements.txt
"""
)
_INDEX: Final = {Installer.UV: "UV_DEFAULT_INDEX", Installer.PIP: "PIP_INDEX_URL"}


def text(recipe: Recipe) -> str:
    """The Dockerfile."""
    template = _UV if recipe.installer is Installer.UV else _PIP
    filled = template.format(
        tool=recipe.installer.value, index=_INDEX[recipe.installer], options=" ".join(recipe.options)
    )
    return filled.replace("  ", " ") if not recipe.options else filled


def write(recipe: Recipe, folder: Path, requirements: str) -> Path:
    """The folder that is built: Dockerfile, requirements with hashes, and the tool as its wheel has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(text(recipe))
    (folder / "requirements.txt").write_text(requirements)
    tool = folder / recipe.installer.value
    if not tool.exists():
        if recipe.installer is Installer.UV:
            shutil.copy2(uv(), tool)
        else:
            import pip

            shutil.copytree(Path(pip.__file__).parent, tool, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def arguments(recipe: Recipe, base: str, index: str) -> list[str]:
    """Build arguments: where base and wheels are."""
    return ["--build-arg", f"BASE={base}", "--build-arg", f"{_INDEX[recipe.installer]}={index}"]
