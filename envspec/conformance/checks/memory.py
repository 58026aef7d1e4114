"""What the checks needed, and what a model of N parameters needs, to run and to be fine-tuned, on this card."""

from __future__ import annotations

from typing import Any

from envspec.conformance import imports
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial
from envspec.conformance.results import NotRun

_MODELS = (1e9, 3e9, 7e9, 13e9, 34e9, 70e9)


def check(trial: Trial) -> None:
    """Count the bytes of a real AdamW step, parameter by parameter, and go on from them."""
    torch = imports.torch(trial)
    with trial.phase("an AdamW step"):
        counted = _step(torch, trial)
    trial.exact(
        "bytes for each parameter in training",
        ok=counted == SIZES["memory.training_bytes"],
        told=f"{counted:g} in fp32: weight, gradient and AdamW's two moments",
    )
    for name, peak in trial.peaks.items():
        if trial.order.cuda and peak.allocated_bytes is not None:
            trial.inform(f"peak of {name}", peak.allocated_bytes, "bytes", f"{peak.reserved_bytes} reserved")
        if peak.host_bytes is not None:
            trial.inform(f"peak of {name} on the host", peak.host_bytes, "bytes")
    _tell_models(torch, trial)


def _step(torch: Any, trial: Trial) -> float:
    """Bytes for each parameter after a step, by the tensors; on a GPU, what was allocated is held to them."""
    torch.manual_seed(trial.order.seed)
    if trial.order.cuda:
        torch.cuda.reset_peak_memory_stats()
    side, count = SIZES[f"memory.side.{trial.device}"], SIZES["memory.layers"]
    layers = [torch.nn.Linear(side, side, bias=False) for _ in range(count)]
    model = torch.nn.Sequential(*layers).to(trial.device)
    # One tensor after the other: the fast form makes copies of all of them for a moment.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(1, side, device=trial.device)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    tensors = [*parameters, *(each.grad for each in parameters)]
    tensors += [
        each for state in optimizer.state.values() for each in state.values() if torch.is_tensor(each) and each.dim()
    ]
    held = sum(each.numel() * each.element_size() for each in tensors)
    if trial.order.cuda:
        allocated = torch.cuda.max_memory_allocated()
        trial.within("allocated for what is held", allocated / held, limit("memory.allocated"))
    return float(held / sum(each.numel() for each in parameters))


def _tell_models(torch: Any, trial: Trial) -> None:
    """Models against the card."""
    run, tune = SIZES["memory.run_bytes"] * 1.2, SIZES["memory.tune_bytes"]
    if not trial.order.cuda:
        trial.not_run("models against the card", "no GPU is asked for")
        return
    if not torch.cuda.is_available():
        raise NotRun("torch sees no GPU")
    card = torch.cuda.get_device_properties(0).total_memory
    trial.inform("the card's memory", card, "bytes")
    trial.inform("largest model that runs", card / run, "parameters", "bf16 weights and a fifth for all else")
    trial.inform("largest model that is fine-tuned", card / tune, "parameters", "AdamW in mixed precision, no batch")
    for count in _MODELS:
        runs, tunes = count * run <= card, count * tune <= card
        told = f"runs: {'yes' if runs else 'no'}; is fine-tuned: {'yes' if tunes else 'no'}"
        trial.inform(
            f"a model of {count / 1e9:g} billion parameters", count * run, "bytes", f"{told} ({count * tune:.3g} bytes)"
        )
