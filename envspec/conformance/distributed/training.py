"""Reference training, and the comparison of ranks with it.

Every step's gradient is that of the mean loss over the joined batch, independent of how ranks share its rows. tanh
instead of ReLU, where a single rounding may choose another branch, so that the difference is bounded.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Callable

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.distributed import nccl
from envspec.conformance.distributed.launch import Launch, Launched, launched
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.libraries import LIBRARIES
from envspec.conformance.numerics import raw, relative_error, worst
from envspec.conformance.results import Level, Peak

_LEARNING_RATE = 0.05
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Trainee:
    """A model, whole or shared.

    step: after each gradient. gradient, parameters: gathered, as one vector of fp32 on the CPU. norm: of the gradient,
    from torch's clipping.
    """

    module: Any
    step: Callable[[], None]
    gradient: Callable[[], Any]
    parameters: Callable[[], Any]
    norm: Callable[[], float]


@dataclass(frozen=True)
class Trained:
    """The gradient and its norm of each step, and the final parameters."""

    gradients: list[Any]
    norms: list[float]
    parameters: Any


def prepare(torch: Any) -> None:
    """Compute fp32 in fp32, and deterministically."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(mode=True)


def model(torch: Any, seed: int, device: Any) -> Any:
    """A model whose parameters are drawn on the CPU, equal for every device; several layers for several buckets."""
    torch.manual_seed(seed)
    width = SIZES["distributed.width"]
    nn = torch.nn
    layers = [nn.Linear(SIZES["distributed.inputs"], width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, SIZES["distributed.outputs"])).to(device)


def alone(torch: Any, module: Any, step: Callable[[], None]) -> Trainee:
    """A model of which one process has all parameters; DDP's replicas, too."""
    parameters = list(module.parameters())
    return Trainee(
        module,
        step,
        lambda: flat_gradients(torch, parameters),
        lambda: flat(torch, parameters),
        # With an infinite maximum nothing is clipped.
        lambda: float(torch.nn.utils.clip_grad_norm_(parameters, float("inf"))),
    )


def flat(torch: Any, tensors: list[Any]) -> Any:
    """Tensors as one vector of fp32 on the CPU."""
    return torch.cat([each.detach().reshape(-1).float().cpu() for each in tensors])


def flat_gradients(torch: Any, parameters: list[Any]) -> Any:
    """As `flat`, of the gradients of parameters."""
    return flat(torch, [each.grad for each in parameters])


def by_sgd(torch: Any, module: Any) -> Callable[[], None]:
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_hand(torch: Any, module: Any) -> Callable[[], None]:
    """The same step by its formula: torch's first optimizer imports `torch._dynamo`, which takes up to 3 s."""
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
    seed: int,
    ranks: range,
    world: int,
    phase: Callable[[str], contextlib.AbstractContextManager[None]],
) -> Trained:
    """A few steps. ranks: whose rows of the joined batch of all `world` ranks. phase: for each step."""
    device, batch = next(trainee.module.parameters()).device, SIZES["distributed.batch"]
    rows = slice(ranks.start * batch, ranks.stop * batch)
    gradients, norms = [], []
    for number in range(1, SIZES["distributed.steps"] + 1):
        with phase(f"step {number}"):
            source = torch.Generator().manual_seed(seed + number)
            inputs = torch.randn(batch * world, SIZES["distributed.inputs"], generator=source)
            targets = torch.randn(batch * world, SIZES["distributed.outputs"], generator=source)
            outputs = trainee.module(inputs[rows].to(device))
            torch.nn.functional.mse_loss(outputs, targets[rows].to(device)).backward()
            gradients.append(trainee.gradient())
            norms.append(trainee.norm())
            trainee.step()
    return Trained(gradients, norms, trainee.parameters())


def digest(tensor: Any) -> str:
    return hashlib.sha256(raw(tensor)).hexdigest()


def train_each(
    context: CheckContext,
    launches: Sequence[Launch],
    examine: Callable[[Any, Launched, Mapping[int, ProcessEvents], Trained], None],
) -> None:
    """Run every launch at the same time: most of their time is that of imports.

    examine: torch, a launch, the events of its ranks, and the same steps by one process.
    """
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(launched(context, each)) for each in launches]
        torch = context.load("torch")
        for each in running:
            with context.phase(f"ranks of {each.launch.name}"):
                ranks = each.wait()
            # Not before the ranks end: a GPU may allow one process at a time.
            examine(torch, each, ranks, _one_process(torch, context, each.launch))


def _one_process(torch: Any, context: CheckContext, launch: Launch) -> Trained:
    """The same steps in this process alone, over the batches of all ranks of a launch."""
    prepare(torch)
    world = launch.world
    module = model(torch, launch.seed, torch.device(launch.device))
    with context.phase(f"one process with the batches of {world} ranks"):
        whole = alone(torch, module, by_hand(torch, module))
        return train(torch, whole, launch.seed, range(world), world, lambda _: contextlib.nullcontext())


def compare(
    torch: Any, context: CheckContext, running: Launched, ranks: Mapping[int, ProcessEvents], one: Trained
) -> None:
    """Compare ranks with each other bit by bit, and with one process; report NCCL's version and transport."""
    name, first = running.launch.name, next(iter(ranks.values()))
    _equal(context, name, ranks)
    *gradients, parameters = torch.load(running.folder / "trained.pt", weights_only=True)
    bound = limit("distributed.gradient")
    error = worst(map(relative_error, gradients, one.gradients))
    context.within(f"{name}: gradient against one process", error, bound)
    context.within(f"{name}: parameters against one process", relative_error(parameters, one.parameters), bound)
    expected = list(map(_norm, one.gradients))
    _compare_norms(context, f"{name}: gradient norm against one process", list(map(_norm, gradients)), expected)
    for rank, each in ranks.items():
        _compare_norms(context, f"{name}: norm by torch's clipping, rank {rank}", each.values["norms"], expected)
    if "NCCL" in first.values:
        context.ran("NCCL", first.values["NCCL"])
    if running.launch.backend == "nccl" and running.launch.world > 1:
        nccl.report(context, running.launch, running.folder)
    for each in ranks.values():
        if "peak" in each.values:
            context.peak(Peak(*each.values["peak"]))
    seconds = {each.name: each.seconds for each in first.phases}
    for phase in ("import torch", "join"):
        context.measure(f"{name}: {phase}", seconds[phase], "s")
    key = ", ".join([f"torch {torch.__version__}", *_stack(torch, running.launch), f"{running.launch.world} ranks"])
    context.fingerprint(f"{name}: gradients", [digest(each).encode() for each in gradients], Level.KEYED, key)


def _compare_norms(context: CheckContext, finding: str, found: Sequence[float], expected: Sequence[float]) -> None:
    detail = f"{found[0]:.7g} at the first step, one process {expected[0]:.7g}"
    error = worst(abs(each / right - 1) for each, right in zip(found, expected))
    context.within(finding, error, limit("distributed.norm"), detail=detail)


def _equal(context: CheckContext, name: str, ranks: Mapping[int, ProcessEvents]) -> None:
    # Each rank has the digests of all.
    by_rank = [each.values["digests"] for each in ranks.values()]
    first = by_rank[0]
    for what in ("gradients", "parameters"):
        right = first[0][what]
        different = [str(rank) for rank, each in enumerate(first) if each[what] != right]
        detail = f"rank {', '.join(different)} differs from rank 0" if different else f"{len(first)} ranks"
        same = all(each[what] == right for each in chain.from_iterable(by_rank))
        context.exact(f"{name}: {what} are equal bit by bit across ranks", ok=same, detail=detail)


def _norm(vector: Any) -> float:
    return float(vector.double().norm())


def _stack(torch: Any, launch: Launch) -> list[str]:
    if launch.device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        arch = f"sm_{gpu.major}{gpu.minor} x {gpu.multi_processor_count}"
        cudnn = LIBRARIES["cuDNN"].loaded()
        return [arch, f"CUDA {torch.version.cuda}", f"cuDNN {cudnn}", f"NCCL {nccl.version(torch)}"]
    return [torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
