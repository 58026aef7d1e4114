"""Training in mixed precision: it follows fp32, an overflow is skipped, and the scale shrinks and grows again.

Most parameters are an embedding's, so that a CPU without units for fp16 takes seconds only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import (
    NO_BF16,
    best_time,
    case,
    deterministic,
    elements,
    has_bf16,
    joined_gradients,
    relative_error,
)
from envspec.conformance.results import Peak

_CLASSES = 10
_WORDS = 8
_LAST = 5
#: The loss falls to a third, not to nothing, where its last bits would count.
_RATE = 0.25


@dataclass
class _Training:
    """A model in training. dtype: of autocast, None for fp32. batches: (words, classes), repeated."""

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
        """Compute unscaled gradients of the next batch."""
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
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def whole_step(self) -> None:
        self.backward()
        self.step()

    def gradient(self) -> Any:
        return joined_gradients(self.torch, self.model.parameters())

    def parameters(self) -> list[Any]:
        return [each.detach().clone() for each in self.model.parameters()]


def check(context: CheckContext) -> None:
    """bf16, and fp16 with GradScaler, against fp32 from the same start."""
    torch = context.load("torch")
    deterministic(torch)
    with context.phase("fp32"):
        plain, gradient = _trained(torch, context, None)
        count = elements(plain.model.parameters())
        context.exact("parameters", ok=count >= SIZES["amp.parameters"], detail=f"{count}")
        detail = f"from {plain.losses[0]:.3g} to {_end(plain):.3g}"
        context.within("fp32's loss", _end(plain) / plain.losses[0], limit("amp.learns"), detail=detail)
    with context.phase("bf16"):
        if has_bf16(torch, context.device):
            with case(torch, context, "training in bf16"):
                _compare(torch, context, torch.bfloat16, plain, gradient)
        else:
            context.not_run("bf16", NO_BF16)
    with context.phase("fp16"), case(torch, context, "training in fp16"):
        scaled = _compare(torch, context, torch.float16, plain, gradient)
        scaler, found = scaled.scaler, scaled.scaler.get_scale()
        detail = f"on {context.device}: without its device it disables itself"
        context.exact("GradScaler is enabled", ok=scaler.is_enabled(), detail=detail)
        grown = SIZES["amp.scale"] * 2 ** (SIZES["amp.steps"] // SIZES["amp.growth_interval"])
        context.exact("the scale grows after its interval", ok=found == grown, detail=f"{found:g}, must be {grown:g}")
    with context.phase("an overflow"), case(torch, context, "an overflow in fp16"):
        _overflow(torch, context)
    with context.phase("speed and memory"):
        _cost(torch, context)


def _training(torch: Any, context: CheckContext, dtype: Any, batch: int, scale: float) -> _Training:
    """The same initial model for every type; a scaler for fp16 only."""
    torch.manual_seed(context.request.seed)
    device, width = context.device, SIZES[f"amp.width.{context.device}"]
    vocabulary, nn = SIZES["amp.vocabulary"], torch.nn
    layers = [nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, _CLASSES)]
    model = nn.Sequential(nn.Embedding(vocabulary, 256 // _WORDS), nn.Flatten(), *layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    scaler = torch.amp.GradScaler(
        device, init_scale=scale, growth_interval=SIZES["amp.growth_interval"], enabled=dtype == torch.float16
    )
    # Each class has its own words: a model of this size learns that in a few steps.
    numbers = torch.Generator().manual_seed(context.request.seed)
    classes = torch.randint(_CLASSES, (batch * 8,), generator=numbers)
    own = vocabulary // _CLASSES
    words = classes[:, None] * own + torch.randint(own, (len(classes), _WORDS), generator=numbers)
    batches = list(zip(words.to(device).split(batch), classes.to(device).split(batch)))
    return _Training(torch, device, dtype, model, optimizer, scaler, batches)


def _trained(torch: Any, context: CheckContext, dtype: Any) -> tuple[_Training, Any]:
    """A training after all its steps, and its first gradient."""
    training = _training(torch, context, dtype, SIZES["amp.batch"], SIZES["amp.scale"])
    training.backward()
    gradient = training.gradient()
    training.step()
    for _ in range(SIZES["amp.steps"] - 1):
        training.whole_step()
    return training, gradient


def _end(training: _Training) -> float:
    return sum(training.losses[-_LAST:]) / _LAST


def _compare(torch: Any, context: CheckContext, dtype: Any, plain: _Training, right: Any) -> _Training:
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    training, gradient = _trained(torch, context, dtype)
    context.exact(f"the output's type in {name}", ok=training.out_dtype == dtype, detail=str(training.out_dtype))
    detail = f"its norm is {float(gradient.norm() / right.norm()):.4g} times fp32's"
    context.within(
        f"the first gradient in {name}", relative_error(gradient, right), limit(f"amp.gradient.{name}"), detail=detail
    )
    off = abs(_end(training) / _end(plain) - 1)
    detail = f"{_end(training):.4g} after {len(training.losses)} steps, {_end(plain):.4g} in fp32"
    context.within(f"the loss in {name}", off, limit("amp.loss"), detail=detail)
    return training


def _overflow(torch: Any, context: CheckContext) -> None:
    """With a scale so large that the first gradients are infinite in fp16, steps are skipped until it fits."""
    training = _training(torch, context, torch.float16, SIZES["amp.batch"], SIZES["amp.scale_too_large"])
    before, scale = training.parameters(), training.scaler.get_scale()
    training.backward()
    infinite = not bool(training.gradient().isfinite().all())
    context.exact("a scale that is too large overflows", ok=infinite, detail=f"{scale:g}")
    training.step()
    same = all(torch.equal(one, other) for one, other in zip(before, training.parameters()))
    context.exact(
        "a step that overflows is skipped", ok=same, detail="each parameter compared with its old value, bit by bit"
    )
    halved = training.scaler.get_scale()
    context.exact("a step that overflows halves the scale", ok=halved == scale / 2, detail=f"{scale:g} to {halved:g}")
    skipped = 1
    while torch.equal(before[-1], training.parameters()[-1]) and skipped < SIZES["amp.skipped"]:
        training.whole_step()
        skipped += 1
    after = training.parameters()
    recovered = all(bool(each.isfinite().all()) for each in after) and not torch.equal(before[-1], after[-1])
    detail = f"{skipped} steps, the scale is {training.scaler.get_scale():g}"
    context.exact("training goes on after an overflow", ok=recovered, detail=detail)


def _cost(torch: Any, context: CheckContext) -> None:
    batch = SIZES[f"amp.speed_batch.{context.device}"]
    samples: dict[str, float] = {}
    dtypes = {"fp32": None, "fp16": torch.float16}
    if has_bf16(torch, context.device):
        dtypes["bf16"] = torch.bfloat16
    for name, dtype in dtypes.items():
        if context.request.cuda:
            # Record the peak up to here, then measure each type on its own.
            context.peak(Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
            torch.cuda.reset_peak_memory_stats()
        with case(torch, context, f"{name}'s speed"):
            training = _training(torch, context, dtype, batch, SIZES["amp.scale"])
            seconds, spread = best_time(torch, context.device, training.whole_step)
            samples[name] = batch / seconds
            detail = f"{batch} samples a step"
            if "fp32" in samples:
                detail = f"{samples[name] / samples['fp32']:.2g} times fp32, {detail}"
            context.measure(f"{name}'s speed", samples[name], "1/s", detail, spread)
            if context.request.cuda:
                context.measure(f"{name}'s memory", torch.cuda.max_memory_allocated(), "bytes", "at its peak")
    if not context.request.cuda:
        context.not_run("memory against fp32", "torch counts GPU memory only")
