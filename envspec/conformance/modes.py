"""The types in which a device multiplies matrices, and those in which it can't."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NO_BF16 = "bf16 needs a GPU of compute capability 8.0"


def has_bf16(torch: Any, device: str) -> bool:
    """Whether the device computes in bf16, and does not only emulate it; every CPU counts."""
    return device != "cuda" or tuple(torch.cuda.get_device_capability()) >= (8, 0)


@dataclass(frozen=True)
class Mode:
    """A type of the inputs, and a product in it.

    rounded: a matrix in fp32 -> the same, rounded to the type. product: (M, K) and (K, N), both rounded -> (M, N).
    """

    name: str
    rounded: Callable[[Any], Any]
    product: Callable[[Any, Any], Any]


def modes(torch: Any, device: str) -> tuple[list[Mode], dict[str, str]]:
    """The modes that run on the device, and why the others do not: name -> reason.

    Source of the compute capabilities: CUDA C++ programming guide, "Tensor Core Input Precisions".
    """
    run = [_plain("fp32", torch.float32), _plain("fp16", torch.float16), _plain("bf16", torch.bfloat16)]
    if device != "cuda":
        reason = "no GPU is asked for"
        return run, {"tf32": reason, "fp8": reason}
    capability = tuple(torch.cuda.get_device_capability())
    sm = "this GPU is of compute capability {}.{}".format(*capability)
    lacking: dict[str, str] = {}
    if capability >= (8, 0):
        run.insert(1, Mode("tf32", _as_it_is, _in_tf32(torch)))
    else:
        run.pop()
        lacking |= dict.fromkeys(("tf32", "bf16"), f"it needs compute capability 8.0, {sm}")
    if capability >= (8, 9):
        run.append(_fp8(torch))
    else:
        lacking["fp8"] = f"it needs compute capability 8.9, {sm}"
    return run, lacking


def _as_it_is(matrix: Any) -> Any:
    return matrix


def _times(left: Any, right: Any) -> Any:
    return left @ right


def _plain(name: str, dtype: Any) -> Mode:
    return Mode(name, lambda matrix: matrix.to(dtype), _times)


def _in_tf32(torch: Any) -> Callable[[Any, Any], Any]:
    def product(left: Any, right: Any) -> Any:
        # Of the ways to say it, this one is in every torch and goes together with the older and the newer one: 2.9 and
        # later raise where both are used in a process.
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return left @ right
        finally:
            torch.set_float32_matmul_precision(before)

    return product


def _fp8(torch: Any) -> Mode:
    """e4m3, with a result in bf16. cuBLAS wants the right matrix by columns."""
    one = torch.ones((), device="cuda")

    def product(left: Any, right: Any) -> Any:
        by_columns = right.t().contiguous().t()
        # Under its own name, since torch 2.4 to 2.15 have no other for it; 2.4 adds the largest element to the result.
        found = torch._scaled_mm(left, by_columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return found[0] if isinstance(found, tuple) else found

    return Mode("fp8", lambda matrix: matrix.to(torch.float8_e4m3fn), product)
