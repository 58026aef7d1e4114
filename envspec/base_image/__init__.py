"""From resolved pins to CUDA release, base image, driver and GPU code: pure functions over the facts.

`plan_base_image` decides; `shared_libraries` tells what image and wheels both hold.
"""

from __future__ import annotations

from envspec.base_image.plan import plan_base_image
from envspec.base_image.request import (
    BaseImagePlan,
    CudaMismatch,
    CudaRequest,
    GpuNotServed,
    NoCudaRelease,
    NoSuchImage,
)
from envspec.base_image.shared_libraries import SharedLibrary, shared_libraries

__all__ = [
    "BaseImagePlan",
    "CudaMismatch",
    "CudaRequest",
    "GpuNotServed",
    "NoCudaRelease",
    "NoSuchImage",
    "SharedLibrary",
    "plan_base_image",
    "shared_libraries",
]
