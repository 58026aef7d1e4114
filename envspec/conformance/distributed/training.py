"""Reference training, and the verdict on it.

Every step's gradient is that of the mean loss over the joined batch, whoever holds which rows of it. tanh and not ReLU:
where one rounding decides between two branches, a bound on the difference would mean nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.distributed.launch import Launched
from envspec.conformance.distributed.messages import Said
from envspec.conformance.events import Trial
from envspec.conformance.numerics import raw
from envspec.conformance.results import Level, Peak

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


def one_process(torch: Any, trial: Trial, device: str, world: int) -> Trained:
    """The steps by this process alone, over the batches that `world` ranks have together."""
    prepare(torch)
    whole = alone(torch, model(torch, trial.order.seed, torch.device(device)))
    share = Share(0, world, world)
    with trial.phase(f"one process with the batches of {world} ranks"):
        step = by_hand(torch, whole.module)
        return train(torch, whole, step, trial.order.seed, share, lambda _: contextlib.nullcontext())


def judge(torch: Any, trial: Trial, launched: Launched, said: Sequence[Said], one: Trained) -> None:
    """Find whether the ranks are equal bit by bit, and whether they did what one process does."""
    name = launched.launch.name
    _equal(trial, name, said)
    *gradients, parameters = torch.load(launched.folder / "trained.pt", weights_only=True)
    bound, norm_bound = limit("distributed.gradient"), limit("distributed.norm")
    worst = max(_error(ours, theirs) for ours, theirs in zip(gradients, one.gradients))
    trial.within(f"{name}: gradient against one process", worst, bound)
    trial.within(f"{name}: parameters against one process", _error(parameters, one.parameters), bound)
    norms = [float(each.double().norm()) for each in gradients]
    trial.within(f"{name}: gradient norm against one process", _worst(norms, one), norm_bound, told=_told(norms, one))
    for each in said:
        norms = each.values["norms"]
        asked = f"{name}: norm by torch's clipping, rank {each.rank}"
        trial.within(asked, _worst(norms, one), norm_bound, told=_told(norms, one))
    _tell(torch, trial, launched, said, gradients)


def _equal(trial: Trial, name: str, said: Sequence[Said]) -> None:
    everyone = [digests for each in said for digests in each.values["digests"]]
    ranks = len(said[0].values["digests"])
    for what in ("gradients", "parameters"):
        differing = [rank for rank in range(ranks) if everyone[rank][what] != everyone[0][what]]
        told = f"rank {', '.join(map(str, differing))} differs from rank 0" if differing else f"{ranks} ranks"
        same = all(each[what] == everyone[0][what] for each in everyone)
        trial.exact(f"{name}: {what} are equal bit by bit across ranks", ok=same, told=told)


def _error(ours: Any, theirs: Any) -> float:
    """|ours - theirs| / |theirs|, in fp64."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def _worst(norms: Sequence[float], one: Trained) -> float:
    own = [float(each.double().norm()) for each in one.gradients]
    return max(abs(ours / theirs - 1) for ours, theirs in zip(norms, own))


def _told(norms: Sequence[float], one: Trained) -> str:
    return f"{norms[0]:.7g} at the first step, one process {float(one.gradients[0].double().norm()):.7g}"


def _tell(torch: Any, trial: Trial, launched: Launched, said: Sequence[Said], gradients: Sequence[Any]) -> None:
    name, world = launched.launch.name, launched.launch.world
    for each in said:
        if "peak" in each.values:
            trial.peak(Peak(*each.values["peak"]))
    seconds = dict(said[0].phases)
    for phase in ("import torch", "join"):
        trial.inform(f"{name}: {phase}", seconds[phase], "s")
    key = ", ".join([f"torch {torch.__version__}", *_place(torch, launched), f"{world} ranks"])
    trial.fingerprint(f"{name}: gradients", [digest(each).encode() for each in gradients], Level.KEYED, key)


def _place(torch: Any, launched: Launched) -> list[str]:
    if launched.launch.task.device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        nccl = ".".join(str(each) for each in torch.cuda.nccl.version())
        arch = f"sm_{gpu.major}{gpu.minor} x {gpu.multi_processor_count}"
        return [arch, f"CUDA {torch.version.cuda}", f"cuDNN {torch.backends.cudnn.version()}", f"NCCL {nccl}"]
    return [torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
