"""Memory: patterns through the free part, what the checks used, and what a model of N parameters needs on this GPU."""

from __future__ import annotations

from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import MULTIPLIER, elements
from envspec.conformance.results import NotRun

_MODELS = (1e9, 3e9, 7e9, 13e9, 34e9, 70e9)


def check(context: CheckContext) -> None:
    """Write and read patterns, count the bytes of a real AdamW step, and extrapolate."""
    torch = context.load("torch")
    # Before the step, whose peak counts.
    with context.phase("patterns"):
        _patterns(torch, context)
        if context.request.cuda:
            torch.cuda.empty_cache()
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


def _patterns(torch: Any, context: CheckContext) -> None:
    """Each word of the free memory is written with a value of its own and read, then with the inverted one.

    So every bit is once 0 and once 1, and an address that leads to another place is found: all words are written before
    the first is read.
    """
    device, size = context.device, SIZES[f"memory.block_bytes.{context.device}"]
    words, count = size // 8, SIZES["memory.blocks.cpu"]
    made = torch.empty(words, dtype=torch.int64, device=device)
    # A GPU that shares the host's memory (GB10) gets as little: the system would end other programs.
    if context.request.cuda and not getattr(torch.cuda.get_device_properties(0), "is_integrated", False):
        free, _ = torch.cuda.mem_get_info()
        count = max(1, free * SIZES["memory.pattern_percent"] // 100 // size)

    def pattern(block: int, *, inverted: bool) -> Any:
        torch.arange(block * words, (block + 1) * words, dtype=torch.int64, device=device, out=made)
        return made.mul_(MULTIPLIER).bitwise_xor_(-1 if inverted else 0)

    blocks = [torch.empty_like(made) for _ in range(count)]
    wrong, first = 0, ""
    for inverted in (False, True):
        for number, block in enumerate(blocks):
            block.copy_(pattern(number, inverted=inverted))
        for number, block in enumerate(blocks):
            differs = block != pattern(number, inverted=inverted)
            if found := int(differs.sum()):
                place = int(differs.nonzero()[0])
                bits = int(block[place] ^ made[place]) & (2**64 - 1)
                first = first or f"; the first: word {place} of block {number}, bits {bits:#x}"
                wrong += found
    detail = f"{wrong} wrong words in {count} blocks of {size >> 20} MiB, two patterns{first}"
    hint = "test the memory with NVIDIA's diagnostics (`dcgmi diag -r 3`), and replace the card if it fails again"
    context.exact("memory patterns", ok=not wrong, detail=detail, hint=hint if context.request.cuda else "")


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
    for state in optimizer.state.values():
        # Not its counter of steps.
        tensors += [each for each in state.values() if torch.is_tensor(each) and each.dim()]
    held = sum(each.numel() * each.element_size() for each in tensors)
    if context.request.cuda:
        allocated = torch.cuda.max_memory_allocated()
        context.within("allocated for live tensors", allocated / held, limit("memory.allocated"))
    return float(held / elements(parameters))


def _models(torch: Any, context: CheckContext) -> None:
    run, tune = SIZES["memory.run_bytes"] * 1.2, SIZES["memory.tune_bytes"]
    if not context.request.cuda:
        context.not_run("models against the card", "no GPU is requested")
        return
    if not torch.cuda.is_available():
        raise NotRun("torch sees no GPU")
    total = torch.cuda.get_device_properties(0).total_memory
    context.measure("the card's memory", total, "bytes")
    context.measure("largest model that runs", total // run, "parameters", "bf16 weights and 20 % for everything else")
    context.measure(
        "largest model that can be fine-tuned", total // tune, "parameters", "AdamW in mixed precision, no batch"
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
