"""From resolved pins to CUDA release, base image, driver and GPU code: pure functions over the facts.

`plan_base_image` decides; `shared_libraries` lists libraries in both image and wheels.
"""

from __future__ import annotations

from envspec.base_image.cuda import (
    BaseImagePlan,
    CudaMismatch,
    CudaRequest,
    GpuNotServed,
    NoCudaRelease,
    NoSuchImage,
    SharedLibrary,
    shared_libraries,
)
from envspec.base_image.plan import plan_base_image

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
