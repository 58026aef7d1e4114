"""Projects for which no spec can be made: for AMD's and Intel's GPUs, and of nightly builds."""

from __future__ import annotations

import re
from typing import Final

from envspec.credentials import shown
from envspec.importers.types import Clue, Import, Source
from envspec.origins import INDEX_FAMILY

ROCM: Final = "AMD's GPUs (ROCm)"
XPU: Final = "Intel's GPUs (XPU)"
NIGHTLY: Final = "nightly builds of PyTorch"
#: Why a line for one of them is not in a spec.
SUPPORTED: Final = "only released builds for CUDA and the CPU are supported"
#: In a local label, a file's name or an address, the first that fits. Sources: PyTorch's "Get Started" page; AMD's
#: "Install PyTorch for ROCm" (repo.radeon.com, rocm.nightlies.amd.com); Intel's "Installation Guide" of its extension.
_ADDRESSES: Final = (
    (ROCM, re.compile(r"(?:^|[/+_.-])(?:rocm|gfx\d)|repo\.radeon\.com|rocm\.\w+\.amd\.com")),
    (XPU, re.compile(r"(?:^|[/+-])xpu|pytorch-extension\.intel\.com")),
    (NIGHTLY, re.compile(r"download\.pytorch\.org/whl/(?:nightly|test|preview)")),
)
#: Packages that are for them alone.
_PACKAGES: Final = (
    (
        ROCM,
        re.compile(r"(?:pytorch-)?triton-rocm|tensorflow-rocm|onnxruntime-(?:rocm|migraphx)|jax-rocm\d+-\w+|amd-aiter"),
    ),
    (XPU, re.compile(r"(?:pytorch-)?triton-xpu|torch-xpu-\w+|dpcpp-cpp-rt")),
)


def note_unsupported(imported: Import, text: str, by: Source, *, name: str = "", version: str = "") -> bool:
    """Note what a line is for, if no spec can have it. Returns whether it is so.

    text: an address; empty if it is of a requirement alone. name, version: of a requirement; the version has its label.
    """
    address = f"{text} +{version.partition('+')[2]}" if "+" in version else text
    kind = next((kind for kind, form in _ADDRESSES if form.search(address)), "")
    kind = kind or next((kind for kind, form in _PACKAGES if form.fullmatch(name)), "")
    if not kind and name in INDEX_FAMILY and re.search(r"\.dev\d", version):
        kind = NIGHTLY
    if kind:
        imported.draft.unsupported.append(Clue(kind, by, shown(text or f"{name} {version}".strip())))
    return bool(kind)
