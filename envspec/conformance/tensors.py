"""What checks do with tensors: their bytes, how far apart they are, how long a function of the device takes."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

#: A time is the best of so many: the others were disturbed.
TIMES = 3
#: libraryPropertyType of cuBLAS: major, minor and patch level. Source: cuBLAS, "cublasGetProperty".
_PROPERTIES = (0, 1, 2)


def deterministic(torch: Any) -> None:
    """The same kernels in every run. The suite has set cuBLAS's workspace before this process began.

    What has no such kernel warns instead of ending the check.
    """
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def generator(torch: Any, device: str, seed: int) -> Any:
    """A source of random numbers on a device."""
    return torch.Generator(device=device).manual_seed(seed)


def raw(tensor: Any) -> bytes:
    """A tensor's bytes, in the order of its rows. Not by NumPy: the stack may have none."""
    here = tensor.detach().cpu().contiguous()
    return ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())


def joined(torch: Any, tensors: Iterable[Any]) -> Any:
    """Tensors as one vector in fp64."""
    return torch.cat([each.detach().double().flatten() for each in tensors])


def relative_error(found: Any, right: Any) -> float:
    """|found - right|F / |right|F in fp64; not a number where `found` holds one that is none."""
    right = right.double()
    return float((found.double() - right).norm() / right.norm())


def wait(torch: Any, device: str) -> None:
    """Until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def best_time(torch: Any, device: str, work: Callable[[], Any], times: int = TIMES) -> float:
    """The shortest time of a function, in seconds, after one time that does not count."""
    work()
    best = math.inf
    for _ in range(times):
        wait(torch, device)
        began = time.perf_counter()
        work()
        wait(torch, device)
        best = min(best, time.perf_counter() - began)
    return best


def key(torch: Any, device: str, shapes: Sequence[object]) -> str:
    """What the last bit of a float depends on: device, libraries, shapes."""
    words = [f"torch {torch.__version__}"]
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        words += [f"sm_{card.major}{card.minor}", f"{card.multi_processor_count} multiprocessors"]
        words += [f"cuBLAS {cublas_version()}", f"cuDNN {torch.backends.cudnn.version()}"]
    else:
        words += [torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
    return ", ".join([*words, *map(str, shapes)])


def cublas_version() -> str:
    """The version of the cuBLAS in this process, as it says itself; empty before its first use."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in maps if "/libcublas.so" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        number = ctypes.c_int()
        parts = [str(number.value) for each in _PROPERTIES if not library.cublasGetProperty(each, ctypes.byref(number))]
        return ".".join(parts)
    return ""
