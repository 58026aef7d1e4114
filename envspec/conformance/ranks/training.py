"""The training that every way of sharing it must repeat: a small model, made data, a few steps.

Every step's gradient is that of the mean loss over the joined batch, whoever holds which rows of it. tanh and not ReLU:
where one rounding decides between two branches, a bound on the difference would mean nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any, Callable

from envspec.conformance.bounds import SIZES
from envspec.conformance.tensors import raw

_LEARNING_RATE = 0.05
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Trainee:
    """A model in one of the ways to share it.

    gradient, parameters: all of it, gathered, as one vector of fp32 on the CPU. norm: of the gradient, as torch's own
    clipping tells it.
    """

    module: Any
    gradient: Callable[[], Any]
    parameters: Callable[[], Any]
    norm: Callable[[], float]


@dataclass(frozen=True)
class Trained:
    """What came of the steps: of each the gradient and its norm, and the parameters at the end."""

    gradients: list[Any]
    norms: list[float]
    parameters: Any


def prepare(torch: Any) -> None:
    """Computing of fp32 in fp32, and the same way every time."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(mode=True)


def model(torch: Any, seed: int, device: Any) -> Any:
    """The same parameters on every device: they are drawn on the CPU. Several layers, for several buckets or shards."""
    torch.manual_seed(seed)
    width = SIZES["distributed.width"]
    nn = torch.nn
    layers = [nn.Linear(SIZES["distributed.inputs"], width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, SIZES["distributed.outputs"])).to(device)


def alone(torch: Any, module: Any) -> Trainee:
    """A model that one process holds wholly, as DDP's replicas do too."""
    parameters = list(module.parameters())
    return Trainee(
        module,
        lambda: flat(torch, [each.grad for each in parameters]),
        lambda: flat(torch, [each.detach() for each in parameters]),
        # The largest norm that is allowed is no bound: nothing is clipped.
        lambda: float(torch.nn.utils.clip_grad_norm_(parameters, float("inf"))),
    )


def flat(torch: Any, tensors: list[Any]) -> Any:
    """Tensors as one vector of fp32 on the CPU."""
    return torch.cat([each.detach().reshape(-1).float().cpu() for each in tensors])


@dataclass(frozen=True)
class Share:
    """Which rows of the joined batch one process has: those of `count` ranks from `first` on, of `world` ranks."""

    first: int
    count: int
    world: int

    @property
    def rows(self) -> slice:
        """Of the joined batch."""
        batch = SIZES["distributed.batch"]
        return slice(self.first * batch, (self.first + self.count) * batch)


def by_sgd(torch: Any, module: Any) -> Callable[[], None]:
    """A step of torch's SGD with momentum, which then forgets the gradient."""
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_hand(torch: Any, module: Any) -> Callable[[], None]:
    """The same step by its formula, for a process that nothing of torch's own joins with others.

    Nor does it wait for `torch._dynamo`, all of which torch's first optimizer imports: up to 3 s.
    """
    parameters = list(module.parameters())
    velocities = [torch.zeros_like(each) for each in parameters]

    def step() -> None:
        with torch.no_grad():
            for parameter, velocity in zip(parameters, velocities):
                velocity.mul_(_MOMENTUM).add_(parameter.grad)
                parameter.sub_(velocity, alpha=_LEARNING_RATE)
                parameter.grad = None

    return step


def train(
    torch: Any,
    trainee: Trainee,
    step: Callable[[], None],
    seed: int,
    share: Share,
    begin: Callable[[str], contextlib.AbstractContextManager[None]],
) -> Trained:
    """A few steps. step: what follows each gradient. begin: makes the phase of a step."""
    device = next(trainee.module.parameters()).device
    gradients, norms = [], []
    for number in range(1, SIZES["distributed.steps"] + 1):
        with begin(f"step {number}"):
            inputs, targets = _batch(torch, seed + number, share.world)
            outputs = trainee.module(inputs[share.rows].to(device))
            torch.nn.functional.mse_loss(outputs, targets[share.rows].to(device)).backward()
            gradients.append(trainee.gradient())
            norms.append(trainee.norm())
            step()
    return Trained(gradients, norms, trainee.parameters())


def digest(tensor: Any) -> str:
    """SHA-256 of a tensor's bytes."""
    return hashlib.sha256(raw(tensor)).hexdigest()


def _batch(torch: Any, seed: int, world: int) -> tuple[Any, Any]:
    source = torch.Generator().manual_seed(seed)
    rows = SIZES["distributed.batch"] * world
    inputs = torch.randn(rows, SIZES["distributed.inputs"], generator=source)
    return inputs, torch.randn(rows, SIZES["distributed.outputs"], generator=source)
