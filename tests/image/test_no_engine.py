"""Images with system packages on a machine without a container engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from envspec.context import Context
from envspec.engine.errors import NoEngine
from envspec.image.sources.system import SystemLayerRequest, build_system_layer
from envspec.models import Platform

_DIGEST = f"sha256:{'0' * 64}"
_WAY_OUT = 'without torch.compile, leave out the compiler by `compiler = "none"` in [image]'


@pytest.mark.parametrize(
    ("apt", "is_offered"), [(("g++", "gcc", "libc6-dev"), True), (("ffmpeg", "g++", "gcc", "libc6-dev"), False)]
)
def test_the_compiler_can_be_left_out_if_nothing_else_needs_an_engine(
    tmp_path: Path, apt: tuple[str, ...], is_offered: bool
) -> None:
    request = SystemLayerRequest(Platform.LINUX_64, f"docker.io/nvidia/cuda@{_DIGEST}", _DIGEST, apt)
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PATH": "/nowhere"}
    context = Context(environ, tmp_path, tmp_path / "cache")

    def make_layer(_: object) -> None:
        raise AssertionError

    with pytest.raises(NoEngine, match="system packages need a container") as raised:
        asyncio.run(build_system_layer(request, context, make_layer, str))  # type: ignore[arg-type]
    assert (_WAY_OUT in (raised.value.hint or "")) is is_offered
