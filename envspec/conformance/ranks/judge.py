"""What the ranks have said, held against one process that has the joined batch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from envspec.conformance.bounds import limit
from envspec.conformance.launch import Launched
from envspec.conformance.ranks import training
from envspec.conformance.ranks.said import Said
from envspec.conformance.ranks.training import Share, Trained
from envspec.conformance.trial import Trial
from envspec.conformance.values import Level, Peak


def one_process(torch: Any, trial: Trial, device: str, world: int) -> Trained:
    """The steps by this process alone, over the batches that `world` ranks have together."""
    training.prepare(torch)
    whole = training.alone(torch, training.model(torch, trial.order.seed, torch.device(device)))
    share = Share(0, world, world)
    with trial.phase(f"one process with the batches of {world} ranks"):
        step = training.by_hand(torch, whole.module)
        return training.train(torch, whole, step, trial.order.seed, share, lambda _: contextlib.nullcontext())


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
    trial.fingerprint(f"{name}: gradients", [training.digest(each).encode() for each in gradients], Level.KEYED, key)


def _place(torch: Any, launched: Launched) -> list[str]:
    if launched.launch.task.device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        nccl = ".".join(str(each) for each in torch.cuda.nccl.version())
        arch = f"sm_{gpu.major}{gpu.minor} x {gpu.multi_processor_count}"
        return [arch, f"CUDA {torch.version.cuda}", f"cuDNN {torch.backends.cudnn.version()}", f"NCCL {nccl}"]
    return [torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
