"""A rank of the check `fsdp`."""

from __future__ import annotations

import importlib
from typing import Any

from envspec.conformance.ranks import training
from envspec.conformance.ranks.process import Rank
from envspec.conformance.ranks.telling import tell
from envspec.conformance.ranks.training import Trainee


def run(rank: Rank) -> None:
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
