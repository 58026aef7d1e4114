"""Packages of the default index that pages about errors name: each of them fails in its own way."""

from __future__ import annotations

from typing import Final

from tests.support.builders.cuda_library import CUBIN, Code, container, library
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, sdist, wheel


def broken_packages() -> list[File]:
    """All of them."""
    code = library([(".nv_fatbin", container([Code(CUBIN, 80), Code(CUBIN, 90)]))])
    extension = wheel(
        *("causal-conv1d", "1.5.0"),
        requires=["torch"],
        tag="py3-none-manylinux_2_28_x86_64",
        files={"causal_conv1d/__init__.py": b"", "causal_conv1d/kernels.so": code},
    )
    made = [
        # Both contain cv2, built with and without windows.
        wheel("opencv-python", "4.12.0", files={"cv2/__init__.py": b"has_windows = True\n"}),
        wheel("opencv-python-headless", "4.12.0", files={"cv2/__init__.py": b"has_windows = False\n"}),
        sdist("dbdriver", "2.1.0", on_build='raise SystemExit("Error: pg_config executable not found.")'),
        sdist("fastmath", "1.4.0", on_build='import subprocess; subprocess.run(["cc", "fast.c"], check=True)'),
        # As distutils wrote it: its requirements, if any, are in its setup.py alone.
        sdist("wordlists", "0.42", metadata_version="1.0"),
        sdist("stamped", "1.0.0", on_build=_STAMP),
        extension,
    ]
    return [File(each) for each in made]


def placeholder() -> Artifact:
    """An sdist without content, which advises another index."""
    return sdist("acme-kernels", "1.0.0", on_build=_PLACEHOLDER)


#: Of a build whose wheel has other bytes each time.
_STAMP: Final = """
import time
from pathlib import Path
Path("stamped/__init__.py").write_text(f"BUILT_AT = {time.time()}")
"""
_PLACEHOLDER: Final = """
raise SystemExit("Run: pip install --extra-index-url https://gpu.example.com/simple acme-kernels")
"""
