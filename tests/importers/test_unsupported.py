"""Projects for AMD's and Intel's GPUs, and for nightly builds: one sentence, and no spec."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.importers.types import Choices
from envspec.operations.init import InitRequest, write_spec

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
UV = (
    "[project]\nname = 'a'\ndependencies = ['torch']\n[tool.uv.sources]\ntorch = {{ index = 'x'{} }}\n"
    "[[tool.uv.index]]\nname = 'x'\nurl = '{}'\nexplicit = true\n"
)
TORCH = "https://download.pytorch.org/whl"
ROCM, XPU, NIGHTLY = "AMD's GPUs", "Intel's GPUs", "nightly builds"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("pyproject.toml", UV.format("", f"{TORCH}/rocm7.2"), ROCM),
        ("pyproject.toml", UV.format(", marker = \"sys_platform == 'linux'\"", f"{TORCH}/xpu"), XPU),
        ("pyproject.toml", UV.format("", f"{TORCH}/nightly/cu130"), NIGHTLY),
        ("pyproject.toml", "[project]\nname = 'a'\n[tool.uv]\ntorch-backend = 'rocm6.4'\n", ROCM),
        ("requirements.txt", "torch==2.9.1+rocm6.4\n", ROCM),
        ("requirements.txt", "torch==2.9.1+xpu\n", XPU),
        ("requirements.txt", "torch==2.11.0.dev20260801+cu130\n", NIGHTLY),
        ("requirements.txt", f"--extra-index-url {TORCH}/nightly/rocm6.4\ntorch\n", ROCM),
        ("requirements.txt", "-f https://repo.radeon.com/rocm/manylinux/rocm-rel-6.4/\ntorch\n", ROCM),
        ("requirements.txt", "torch @ https://x.example.com/torch-2.9.0%2Brocm6.4-cp312-cp312-linux_x86_64.whl", ROCM),
        ("requirements.txt", "pytorch-triton-rocm>=3.5\n", ROCM),
        ("Dockerfile", "FROM ubuntu:24.04\nENV UV_TORCH_BACKEND=xpu\n", XPU),
        ("Dockerfile", "FROM rocm/pytorch:latest\nRUN pip install rich\n", ROCM),
    ],
)
def test_what_no_spec_can_have(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    request = InitRequest(tmp_path, (tmp_path / name,), Choices())
    with pytest.raises(UsageError, match=f"the project is for {what}.*: {name}:"):
        write_spec(request, NOW)
    assert not (tmp_path / "specs").exists()
    # Who wants CUDA gets the other lines.
    found, _ = write_spec(InitRequest(tmp_path, (tmp_path / name,), Choices(cuda="12.8")), NOW)
    assert 'version = "12.8"' in found.text and "rocm" not in found.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # The index is of an extra that is not included, or of another platform.
        ("pyproject.toml", UV.format(", extra = 'rocm'", f"{TORCH}/rocm7.2")),
        ("pyproject.toml", UV.format(", marker = \"sys_platform == 'win32'\"", f"{TORCH}/xpu")),
        ("requirements.txt", "torch==2.10.0rc1\nrocm-smi\n"),
        # What else is on PyTorch's index of tests is refused alone.
        (
            "pyproject.toml",
            UV.format("", f"{TORCH}/test/cu128")
            .replace("torch =", "flash-attn =")
            .replace("['torch", "['torch', 'flash-attn"),
        ),
    ],
)
def test_what_a_spec_can_have(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found, _ = write_spec(InitRequest(tmp_path, (tmp_path / name,), Choices()), NOW)
    assert '"torch' in found.text
