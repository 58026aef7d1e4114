"""torch's companions: each is built for one torch, and fails with another at import or at its first operator."""

from __future__ import annotations

from typing import Any, Callable

from envspec.conformance.events import CheckContext


def check(context: CheckContext) -> None:
    """Import them and run an operator of each; their versions are not compared."""
    companions = [each for each in _COMPANIONS if context.has(each)]
    for name in sorted(set(_COMPANIONS) - set(companions)):
        context.not_run(name, context.absence(name))
    torch = context.load("torch")
    for name in companions:
        companion = context.load(name)
        with context.phase(f"{name}'s operator"):
            _COMPANIONS[name](context, torch, companion)


def _vision(context: CheckContext, torch: Any, torchvision: Any) -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]], dtype=torch.float32, device=context.device)
    scores = torch.tensor([0.9, 0.8, 0.7], device=context.device)
    boxes_kept = torchvision.ops.nms(boxes, scores, 0.5).tolist()
    context.exact(
        "torchvision.ops.nms", ok=boxes_kept == [0, 2], detail=f"keeps the boxes {boxes_kept}, must be [0, 2]"
    )


def _audio(context: CheckContext, torch: Any, torchaudio: Any) -> None:
    # y[n] = x[n] + y[n-1] / 2: every value is a power of two, exact in fp32.
    impulse = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 0]], device=context.device)
    feedback = torch.tensor([1.0, -0.5], device=context.device)
    direct = torch.tensor([1.0, 0.0], device=context.device)
    found = torchaudio.functional.lfilter(impulse, feedback, direct).flatten().tolist()
    context.exact(
        "torchaudio.functional.lfilter", ok=found == [2.0**-n for n in range(8)], detail=f"an impulse gives {found}"
    )


_COMPANIONS: dict[str, Callable[[CheckContext, Any, Any], None]] = {"torchvision": _vision, "torchaudio": _audio}
