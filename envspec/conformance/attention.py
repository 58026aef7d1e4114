"""Attention's kernels, one by one, against the formula in fp64.

The formula is computed by plain products and a softmax: a kernel that is wrong in all its forms is found, too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.tensors import generator, joined, relative_error
from envspec.conformance.trial import Trial

#: Names of `torch.nn.attention.SDPBackend`; MATH runs everywhere, so where it does not, that is a fault.
_MATH = "MATH"
KERNELS: Mapping[str, str] = {
    _MATH: "math",
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "efficient",
    "CUDNN_ATTENTION": "cuDNN",
}
#: torch's words for a kernel that does not take these inputs on this device; all else that it raises is a fault.
_NOT_HERE = ("No available kernel", "No viable backend")


def kernels(torch: Any, trial: Trial, dtypes: Mapping[str, Any]) -> None:
    """Every kernel in every type, forward and backward; those that this machine does not have are told."""
    has = torch.nn.attention.SDPBackend
    ran: list[str] = []
    for type_name, dtype in dtypes.items():
        inputs, towards = _inputs(torch, trial, dtype)
        right = _formula(torch, inputs, towards)
        for member, name in KERNELS.items():
            case = f"{name} attention in {type_name}"
            if not hasattr(has, member):
                trial.not_run(case, f"torch {torch.__version__} has no such kernel")
                continue
            found, why = _attend(torch, getattr(has, member), inputs, towards)
            if found is None:
                _absent(trial, member, case, why)
                continue
            ran.append(f"{name} in {type_name}")
            bound = limit(f"transformer.attention.{type_name}")
            trial.within(f"{case}, output", relative_error(found[0], right[0]), bound)
            trial.within(f"{case}, gradient", relative_error(found[1], right[1]), bound)
    trial.tell("attention's kernels that ran", ", ".join(ran))


def _absent(trial: Trial, member: str, case: str, why: str) -> None:
    if member == _MATH:
        trial.exact(case, ok=False, told=why)
    else:
        trial.not_run(case, why if trial.order.cuda else "torch has no such kernel for the CPU")


def _inputs(torch: Any, trial: Trial, dtype: Any) -> tuple[list[Any], Any]:
    """Query, key and value (batch, heads, length, size) in `dtype`, and the gradient of the result."""
    shape = (2, 4, SIZES[f"transformer.attention_length.{trial.device}"], 64)
    numbers = generator(torch, "cpu", trial.order.seed)
    drawn = [torch.randn(shape, generator=numbers).to(trial.device, dtype) for _ in range(4)]
    return drawn[:3], drawn[3]


def _formula(torch: Any, inputs: list[Any], towards: Any) -> tuple[Any, Any]:
    query, key, value = (each.double().requires_grad_() for each in inputs)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    output = torch.softmax(scores, -1) @ value
    output.backward(towards.double())
    return output.detach(), joined(torch, (each.grad for each in (query, key, value)))


def _attend(torch: Any, kernel: Any, inputs: list[Any], towards: Any) -> tuple[tuple[Any, Any] | None, str]:
    """The output and the joined gradient by one kernel alone; or None, and why torch has none for these inputs."""
    own = [each.clone().requires_grad_() for each in inputs]
    with warnings.catch_warnings(record=True) as said, torch.nn.attention.sdpa_kernel(kernel):
        warnings.simplefilter("always")
        try:
            output = torch.nn.functional.scaled_dot_product_attention(*own)
        except RuntimeError as error:
            if not any(words in str(error) for words in _NOT_HERE):
                raise
            return None, _reason(error, [str(each.message) for each in said])
        output.backward(towards)
    return (output.detach(), joined(torch, (each.grad for each in own))), ""


def _reason(error: RuntimeError, said: list[str]) -> str:
    """torch tells by warnings what a kernel lacks, one for each of them, and where in its source it says so."""
    words = [each.partition(" (Triggered internally")[0].strip() for each in said]
    own = [each for each in words if "disabled" not in each and not each.endswith("because:")]
    return "; ".join(dict.fromkeys(own)) or str(error).partition(". ")[0]
