"""Memory that the checks used, and that a model of N parameters needs to run and to be fine-tuned on this GPU."""

from __future__ import annotations

from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.results import NotRun

_MODELS = (1e9, 3e9, 7e9, 13e9, 34e9, 70e9)


def check(context: CheckContext) -> None:
    """Count the bytes of a real AdamW step, and extrapolate."""
    torch = context.load("torch")
    with context.phase("an AdamW step"):
        counted = _step(torch, context)
    context.exact(
        "bytes for each parameter in training",
        ok=counted == SIZES["memory.training_bytes"],
        detail=f"{counted:g} in fp32: weight, gradient and AdamW's two moments",
    )
    if not context.is_first:
        return
    for name, peak in context.peaks.items():
        if context.request.cuda and peak.allocated_bytes is not None:
            context.measure(f"peak of {name}", peak.allocated_bytes, "bytes", f"{peak.reserved_bytes} reserved")
        if peak.host_bytes is not None:
            context.measure(f"peak of {name} on the host", peak.host_bytes, "bytes")
    _models(torch, context)


def _step(torch: Any, context: CheckContext) -> float:
    """Bytes per parameter after a step, by its tensors; on a GPU, allocated memory has to be close to them."""
    torch.manual_seed(context.request.seed)
    if context.request.cuda:
        torch.cuda.reset_peak_memory_stats()
    side, count = SIZES[f"memory.side.{context.device}"], SIZES["memory.layers"]
    layers = [torch.nn.Linear(side, side, bias=False) for _ in range(count)]
    model = torch.nn.Sequential(*layers).to(context.device)
    # One tensor after the other: the fast form copies all of them at the same time.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(1, side, device=context.device)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    tensors = [*parameters, *(each.grad for each in parameters)]
    tensors += [
        each for state in optimizer.state.values() for each in state.values() if torch.is_tensor(each) and each.dim()
    ]
    held = sum(each.numel() * each.element_size() for each in tensors)
    if context.request.cuda:
        allocated = torch.cuda.max_memory_allocated()
        context.within("allocated for what is held", allocated / held, limit("memory.allocated"))
    return float(held / sum(each.numel() for each in parameters))


def _models(torch: Any, context: CheckContext) -> None:
    run, tune = SIZES["memory.run_bytes"] * 1.2, SIZES["memory.tune_bytes"]
    if not context.request.cuda:
        context.not_run("models against the card", "no GPU is requested")
        return
    if not torch.cuda.is_available():
        raise NotRun("torch sees no GPU")
    total = torch.cuda.get_device_properties(0).total_memory
    context.measure("the card's memory", total, "bytes")
    context.measure("largest model that runs", total / run, "parameters", "bf16 weights and 20 % for everything else")
    context.measure(
        "largest model that can be fine-tuned", total / tune, "parameters", "AdamW in mixed precision, no batch"
    )
    for count in _MODELS:
        runs, tunes = count * run <= total, count * tune <= total
        detail = f"runs: {'yes' if runs else 'no'}; can be fine-tuned: {'yes' if tunes else 'no'}"
        context.measure(
            f"a model of {count / 1e9:g} billion parameters",
            count * run,
            "bytes",
            f"{detail} ({count * tune:.3g} bytes)",
        )
