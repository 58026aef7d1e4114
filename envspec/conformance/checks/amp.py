"""Training in mixed precision: it follows fp32, an overflow is skipped, and the scale comes down and goes up again.

The model's parameters are mostly an embedding's, so that a CPU without units for fp16 is done in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from envspec.conformance import imports
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial
from envspec.conformance.numerics import NO_BF16, best_time, deterministic, generator, has_bf16, joined, relative_error
from envspec.conformance.results import Peak

_CLASSES = 10
_WORDS = 8
_LAST = 5
#: Of learning: the loss comes down to a third, not to nothing, where its last bits would count.
_RATE = 0.25


@dataclass
class _Training:
    """A model in training. dtype: of autocast, None for fp32. batches: (words, classes), taken in turns."""

    torch: Any
    device: str
    dtype: Any
    model: Any
    optimizer: Any
    scaler: Any
    batches: list[tuple[Any, Any]]
    losses: list[float] = field(default_factory=list)
    out_dtype: Any = None

    def backward(self) -> None:
        """Gradients of the next batch, with the scale taken out of them."""
        words, classes = self.batches[len(self.losses) % len(self.batches)]
        self.optimizer.zero_grad()
        with self.torch.amp.autocast(self.device, dtype=self.dtype, enabled=self.dtype is not None):
            out = self.model(words)
            loss = self.torch.nn.functional.cross_entropy(out, classes)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.losses.append(float(loss.detach()))
        self.out_dtype = out.dtype

    def step(self) -> None:
        """The optimizer's step, if the scaler lets it be."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def gradient(self) -> Any:
        return joined(self.torch, (each.grad for each in self.model.parameters()))

    def parameters(self) -> list[Any]:
        return [each.detach().clone() for each in self.model.parameters()]


def check(trial: Trial) -> None:
    """bf16, and fp16 with GradScaler, against fp32 from the same start."""
    torch = imports.torch(trial)
    deterministic(torch)
    with trial.phase("fp32"):
        plain, gradient = _trained(torch, trial, None)
        count = sum(each.numel() for each in plain.model.parameters())
        trial.exact("parameters", ok=count >= SIZES["amp.parameters"], told=f"{count}")
        told = f"from {plain.losses[0]:.3g} to {_end(plain):.3g}"
        trial.within("fp32's loss", _end(plain) / plain.losses[0], limit("amp.learns"), told=told)
    with trial.phase("bf16"):
        if has_bf16(torch, trial.device):
            _compare(torch, trial, torch.bfloat16, plain, gradient)
        else:
            trial.not_run("bf16", NO_BF16)
    with trial.phase("fp16"):
        scaled = _compare(torch, trial, torch.float16, plain, gradient)
        _scale(trial, scaled)
    with trial.phase("an overflow"):
        _overflow(torch, trial)
    with trial.phase("speed and memory"):
        _cost(torch, trial)


def _training(torch: Any, trial: Trial, dtype: Any, batch: int, scale: float) -> _Training:
    """A model at its start, the same for every type; a scaler for fp16 only."""
    torch.manual_seed(trial.order.seed)
    device, width = trial.device, SIZES[f"amp.width.{trial.device}"]
    vocabulary, nn = SIZES["amp.vocabulary"], torch.nn
    layers = [nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, _CLASSES)]
    model = nn.Sequential(nn.Embedding(vocabulary, 256 // _WORDS), nn.Flatten(), *layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    scaler = torch.amp.GradScaler(
        device, init_scale=scale, growth_interval=SIZES["amp.growth_interval"], enabled=dtype == torch.float16
    )
    # Each class has words of its own: a rule that a model of this size learns in a few steps.
    numbers = generator(torch, "cpu", trial.order.seed)
    classes = torch.randint(_CLASSES, (batch * 8,), generator=numbers)
    own = vocabulary // _CLASSES
    words = classes[:, None] * own + torch.randint(own, (len(classes), _WORDS), generator=numbers)
    batches = list(zip(words.to(device).split(batch), classes.to(device).split(batch)))
    return _Training(torch, device, dtype, model, optimizer, scaler, batches)


def _trained(torch: Any, trial: Trial, dtype: Any) -> tuple[_Training, Any]:
    """A training after all its steps, and its first gradient."""
    training = _training(torch, trial, dtype, SIZES["amp.batch"], SIZES["amp.scale"])
    training.backward()
    gradient = training.gradient()
    training.step()
    for _ in range(SIZES["amp.steps"] - 1):
        training.backward()
        training.step()
    return training, gradient


def _end(training: _Training) -> float:
    return sum(training.losses[-_LAST:]) / _LAST


def _compare(torch: Any, trial: Trial, dtype: Any, plain: _Training, right: Any) -> _Training:
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    training, gradient = _trained(torch, trial, dtype)
    trial.exact(f"the output's type in {name}", ok=training.out_dtype == dtype, told=str(training.out_dtype))
    told = f"its norm is {float(gradient.norm() / right.norm()):.4g} times fp32's"
    trial.within(
        f"the first gradient in {name}", relative_error(gradient, right), limit(f"amp.gradient.{name}"), told=told
    )
    off = abs(_end(training) / _end(plain) - 1)
    told = f"{_end(training):.4g} after {len(training.losses)} steps, {_end(plain):.4g} in fp32"
    trial.within(f"the loss in {name}", off, limit("amp.loss"), told=told)
    return training


def _scale(trial: Trial, training: _Training) -> None:
    """What 60 steps without an overflow have made of the scale."""
    told = f"on {trial.device}: without its device it switches itself off"
    trial.exact("GradScaler is enabled", ok=training.scaler.is_enabled(), told=told)
    grown = SIZES["amp.scale"] * 2 ** (SIZES["amp.steps"] // SIZES["amp.growth_interval"])
    found = training.scaler.get_scale()
    trial.exact("the scale grows after its interval", ok=found == grown, told=f"{found:g} where {grown:g} is right")


def _overflow(torch: Any, trial: Trial) -> None:
    """A scale so large that the first gradients are no numbers in fp16: steps are skipped until it fits."""
    training = _training(torch, trial, torch.float16, SIZES["amp.batch"], SIZES["amp.scale_too_large"])
    before, scale = training.parameters(), training.scaler.get_scale()
    training.backward()
    infinite = not bool(training.gradient().isfinite().all())
    trial.exact("a scale that is too large overflows", ok=infinite, told=f"{scale:g}")
    training.step()
    same = all(torch.equal(one, other) for one, other in zip(before, training.parameters()))
    trial.exact("a step that overflows is skipped", ok=same, told="each parameter held against what it was, bit by bit")
    halved = training.scaler.get_scale()
    trial.exact("a step that overflows halves the scale", ok=halved == scale / 2, told=f"{scale:g} to {halved:g}")
    skipped = 1
    while torch.equal(before[-1], training.parameters()[-1]) and skipped < SIZES["amp.skipped"]:
        training.backward()
        training.step()
        skipped += 1
    after = training.parameters()
    recovered = all(bool(each.isfinite().all()) for each in after) and not torch.equal(before[-1], after[-1])
    told = f"{skipped} steps, the scale is {training.scaler.get_scale():g}"
    trial.exact("training goes on after an overflow", ok=recovered, told=told)


def _cost(torch: Any, trial: Trial) -> None:
    batch = SIZES[f"amp.speed_batch.{trial.device}"]
    samples: dict[str, float] = {}
    dtypes = {"fp32": None, "fp16": torch.float16}
    if has_bf16(torch, trial.device):
        dtypes["bf16"] = torch.bfloat16
    for name, dtype in dtypes.items():
        if trial.order.cuda:
            # The peak is measured anew for each type: what this check has held until here counts too.
            trial.peak(Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
            torch.cuda.reset_peak_memory_stats()
        training = _training(torch, trial, dtype, batch, SIZES["amp.scale"])
        samples[name] = batch / best_time(torch, trial.device, partial(_whole_step, training))
        told = f"{samples[name] / samples['fp32']:.2g} times fp32, {batch} samples a step"
        trial.inform(f"{name}'s speed", samples[name], "1/s", told)
        if trial.order.cuda:
            trial.inform(f"{name}'s memory", torch.cuda.max_memory_allocated(), "bytes", "the most at once")
    if not trial.order.cuda:
        trial.not_run("memory against fp32", "torch counts a GPU's memory only")


def _whole_step(training: _Training) -> None:
    training.backward()
    training.step()
