"""The ways of making an image, by name. A new one is one entry of `TOOLS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.image_recipes import Installer, Recipe
from bench.image_tools import Buildah, Direct, Docker, Tool

DIRECT: Final = "envspec, no pyc"
DIRECT_PYC: Final = "envspec, pyc"
UV: Final = "docker + uv, no pyc"
UV_PYC: Final = "docker + uv, pyc"

_DOCKER: Final = "BuildKit of the engine, one RUN with a cache mount, then `docker push`"
TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        Direct(DIRECT, ("--no-pyc",), "`envspec image build --no-pyc --push`: one command makes and pushes"),
        Direct(DIRECT_PYC, (), "`envspec image build --push`: pyc checked by the hash of its source"),
        Docker(UV, Recipe(Installer.UV), _DOCKER),
        Docker(
            UV_PYC, Recipe(Installer.UV, ("--compile-bytecode",)), f"{_DOCKER}; `uv pip install --compile-bytecode`"
        ),
        Docker("docker + pip, pyc", Recipe(Installer.PIP), f"{_DOCKER}; pip compiles by itself"),
        Buildah(
            "buildah + uv, no pyc",
            Recipe(Installer.UV),
            "gzip",
            "the same Dockerfile, `--isolation=chroot`, then `buildah push`, which packs on all cores",
        ),
        Buildah(
            "buildah + uv, zstd",
            Recipe(Installer.UV),
            "zstd",
            "as before, layers packed by zstd: Docker engines before 23 can't pull those",
        ),
    )
}

#: What would be measured and cannot be had. -> why
MISSING: Final = {
    "docker buildx, zstd or plain layers": "they are pushed by a BuildKit of its own, or by an engine with "
    "containerd's image store (Docker 24 and later); Debian 12 has neither (Debian 13 has docker-buildx 0.13). "
    "buildah pushes zstd here",
}
