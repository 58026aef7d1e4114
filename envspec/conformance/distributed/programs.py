"""What ranks run."""

from __future__ import annotations

import importlib
import math
import time
from typing import Any, Callable

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed import training
from envspec.conformance.distributed.rank import Rank, tell
from envspec.conformance.distributed.training import Trainee, digest
from envspec.conformance.numerics import wait


def run_fsdp(rank: Rank) -> None:
    """Shard the model, then the steps."""
    torch: Any = importlib.import_module("torch")
    training.prepare(torch)
    with rank.words.phase("shard"):
        module = training.model(torch, rank.task.seed, rank.device)
        trainee = {"fsdp2": _fsdp2, "fsdp1": _fsdp1}[rank.task.sharding](torch, rank, module)
    share = training.Share(rank.number, 1, rank.world)
    step = training.by_sgd(torch, trainee.module)
    trained = training.train(torch, trainee, step, rank.task.seed, share, rank.words.phase)
    with rank.words.phase("compare"):
        tell(torch, rank, trained)


def _fsdp2(torch: Any, rank: Rank, module: Any) -> Trainee:
    whole = sum(each.numel() for each in module.parameters())
    mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh(rank.device.type, (rank.world,))
    fully_shard = _fully_shard()
    for layer in module:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    parameters = list(module.parameters())
    rank.words.value("share", [sum(each.to_local().numel() for each in parameters), whole])
    return Trainee(
        module,
        lambda: training.flat(torch, [each.grad.full_tensor() for each in parameters]),
        lambda: training.flat(torch, [each.detach().full_tensor() for each in parameters]),
        lambda: float(torch.nn.utils.clip_grad_norm_(parameters, float("inf")).full_tensor()),
    )


def _fully_shard() -> Any:
    """Public from torch 2.6 on."""
    public: Any = importlib.import_module("torch.distributed.fsdp")
    if hasattr(public, "fully_shard"):
        return public.fully_shard
    return importlib.import_module("torch.distributed._composable.fsdp").fully_shard


def _fsdp1(torch: Any, rank: Rank, module: Any) -> Trainee:
    whole = sum(each.numel() for each in module.parameters())
    fsdp: Any = importlib.import_module("torch.distributed.fsdp").FullyShardedDataParallel
    policy = importlib.import_module("torch.distributed.fsdp.wrap").ModuleWrapPolicy({torch.nn.Linear})
    # The sharded parameters keep their names, without which their gradients can't be gathered.
    sharded = fsdp(module, auto_wrap_policy=policy, use_orig_params=True, device_id=rank.device)
    rank.words.value("share", [sum(each.numel() for each in sharded.parameters()), whole])

    def gathered(what: str) -> Any:
        with fsdp.summon_full_params(sharded, with_grads=True):
            parameters = list(sharded.parameters())
            return training.flat(torch, [each.grad if what == "gradient" else each for each in parameters])

    return Trainee(
        sharded,
        lambda: gathered("gradient"),
        lambda: gathered("parameters"),
        lambda: float(sharded.clip_grad_norm_(float("inf"))),
    )


def integers(torch: Any, dist: Any, rank: Rank) -> None:
    """Tell which collectives gave what every rank can compute by itself from the seeds."""
    types = [torch.int64, torch.int32, torch.float32]
    if rank.device.type == "cuda":
        types += [torch.float16, torch.bfloat16]
    exact: dict[str, bool] = {}
    for kind in types:
        name = str(kind).rpartition(".")[2]
        for collective, is_exact in _of_type(torch, dist, rank, kind).items():
            exact[f"{collective} of {name}"] = is_exact
    rank.words.value("integers", exact)


def _of_type(torch: Any, dist: Any, rank: Rank, kind: Any) -> dict[str, bool]:
    given = [_given(torch, rank.task.seed + each, rank.world).to(kind) for each in range(rank.world)]
    total = torch.stack([each.to(torch.int64) for each in given]).sum(0)
    mine = given[rank.number].to(rank.device)
    results: dict[str, tuple[Any, Any]] = {}

    reduced = mine.clone()
    dist.all_reduce(reduced)
    results["all-reduce"] = (reduced, total)
    if kind == torch.int64:
        rank.words.value("sum", digest(reduced.cpu()))

    sent = mine.clone()
    dist.broadcast(sent, src=rank.world - 1)
    results["broadcast"] = (sent, given[-1])

    gathered = torch.empty(rank.world * mine.numel(), dtype=kind, device=rank.device)
    dist.all_gather_into_tensor(gathered, mine)
    results["all-gather"] = (gathered, torch.cat(given))

    chunk = mine.numel() // rank.world
    scattered = torch.empty(chunk, dtype=kind, device=rank.device)
    dist.reduce_scatter_tensor(scattered, mine[: chunk * rank.world].clone())
    results["reduce-scatter"] = (scattered, total[rank.number * chunk : (rank.number + 1) * chunk])
    return {
        name: bool(torch.equal(got.cpu().to(torch.int64), asked.to(torch.int64)))
        for name, (got, asked) in results.items()
    }


def _given(torch: Any, seed: int, world: int) -> Any:
    largest = max(1, SIZES["distributed.largest_sum"] // world)
    count = SIZES["distributed.integers"]
    return torch.randint(-largest, largest + 1, (count,), generator=torch.Generator().manual_seed(seed))


def bandwidth(torch: Any, dist: Any, rank: Rank) -> None:
    """Tell the bus bandwidth of large collectives, in bytes a second: the best of several.

    It is bytes/time x 2(n-1)/n for all-reduce, (n-1)/n for the two others, with the bytes of the whole buffer.
    Source: nccl-tests, `doc/PERFORMANCE.md`.
    """
    world = rank.world
    count = math.ceil(SIZES[f"distributed.bytes.{rank.device.type}"] / 4 / world) * world
    whole = torch.ones(count, device=rank.device)
    part = torch.ones(count // world, device=rank.device)
    moves: dict[str, tuple[Callable[[], object], float]] = {
        "all-reduce": (lambda: dist.all_reduce(whole), 2.0),
        "all-gather": (lambda: dist.all_gather_into_tensor(whole, part), 1.0),
        "reduce-scatter": (lambda: dist.reduce_scatter_tensor(part, whole), 1.0),
    }
    best = {name: _best_s(torch, dist, rank, move) for name, (move, _) in moves.items()}
    speeds = {name: 4 * count / best[name] * factor * (world - 1) / world for name, (_, factor) in moves.items()}
    rank.words.value("bus", speeds)


def _best_s(torch: Any, dist: Any, rank: Rank, move: Callable[[], object]) -> float:
    times = []
    # The first one sets up connections.
    for _ in range(1 + SIZES["distributed.repeats"]):
        dist.barrier()
        wait(torch, rank.device.type)
        began = time.perf_counter()
        move()
        wait(torch, rank.device.type)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def run_ddp(rank: Rank) -> None:
    """Collectives of integers, the steps, then bandwidth."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    training.prepare(torch)
    with rank.words.phase("integers"):
        integers(torch, dist, rank)
    with rank.words.phase("wrap"):
        module = training.model(torch, rank.task.seed, rank.device)
        bucket_mb = SIZES["distributed.bucket_bytes"] / 2**20
        devices = [rank.device] if rank.device.type == "cuda" else None
        replica = torch.nn.parallel.DistributedDataParallel(module, device_ids=devices, bucket_cap_mb=bucket_mb)
    share = training.Share(rank.number, 1, rank.world)
    step = training.by_sgd(torch, replica)
    trained = training.train(torch, training.alone(torch, replica), step, rank.task.seed, share, rank.words.phase)
    with rank.words.phase("compare"):
        tell(torch, rank, trained)
    if rank.world > 1:
        with rank.words.phase("bandwidth"):
            bandwidth(torch, dist, rank)
    if rank.task.backend == "nccl":
        rank.words.value("NCCL", ".".join(str(each) for each in torch.cuda.nccl.version()))
