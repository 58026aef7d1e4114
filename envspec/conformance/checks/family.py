"""torch's own companions: built for one torch, they fail beside another at import or at their first operator."""

from __future__ import annotations

from typing import Any, Callable

from envspec.conformance import imports
from envspec.conformance.events import Trial


def check(trial: Trial) -> None:
    """Equal minor versions are not asked for: what imports and computes is right."""
    companions = [each for each in _COMPANIONS if imports.is_to_run(trial, each)]
    for name in sorted(set(_COMPANIONS) - set(companions)):
        trial.not_run(name, imports.why_not(trial, name))
    torch = imports.torch(trial)
    for name in companions:
        companion = imports.load(trial, name)
        with trial.phase(f"{name}'s operator"):
            _COMPANIONS[name](trial, torch, companion)


def _vision(trial: Trial, torch: Any, torchvision: Any) -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]], dtype=torch.float32, device=trial.device)
    scores = torch.tensor([0.9, 0.8, 0.7], device=trial.device)
    kept = torchvision.ops.nms(boxes, scores, 0.5).tolist()
    trial.exact("torchvision.ops.nms", ok=kept == [0, 2], told=f"keeps the boxes {kept} where 0 and 2 are right")


def _audio(trial: Trial, torch: Any, torchaudio: Any) -> None:
    # y[n] = x[n] + y[n-1] / 2: every value is a power of two, exact in fp32.
    impulse = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 0]], device=trial.device)
    feedback = torch.tensor([1.0, -0.5], device=trial.device)
    direct = torch.tensor([1.0, 0.0], device=trial.device)
    heard = torchaudio.functional.lfilter(impulse, feedback, direct).flatten().tolist()
    trial.exact(
        "torchaudio.functional.lfilter", ok=heard == [2.0**-n for n in range(8)], told=f"an impulse gives {heard}"
    )


_COMPANIONS: dict[str, Callable[[Trial, Any, Any], None]] = {"torchvision": _vision, "torchaudio": _audio}
