"""Which ranks a distributed check starts on this machine."""

from __future__ import annotations

from envspec.conformance import nvidia
from envspec.conformance.bounds import SIZES
from envspec.conformance.launch import Launch
from envspec.conformance.ranks.said import Task
from envspec.conformance.trial import Trial
from envspec.conformance.values import NotRun


def parts(trial: Trial, program: str) -> list[Launch]:
    """The launches of a check: one over what is asked for, and where that is one rank of NCCL, another over gloo.

    One rank proves no exchange between ranks.

    Raises:
        NotRun: more ranks are asked for than there are GPUs.
    """
    if not trial.order.cuda:
        return [_launch(trial, program, "cpu", trial.order.world_size or SIZES["distributed.ranks.cpu"])]
    gpus = nvidia.devices()
    processes = trial.order.world_size or gpus
    if processes > gpus:
        raise NotRun(f"{processes} ranks are asked for, and there are {gpus} GPUs", "--world-size all")
    launches = [_launch(trial, program, "cuda", processes)]
    if launches[0].world == 1:
        reason = "there is one GPU" if gpus == 1 else "one rank is asked for"
        trial.not_run("NCCL between ranks", f"{reason}: NCCL runs with one rank, and two ranks of gloo on the CPU")
        launches.append(_launch(trial, program, "cpu", SIZES["distributed.ranks.cpu"]))
    return launches


def _launch(trial: Trial, program: str, device: str, processes: int) -> Launch:
    nodes = trial.order.nodes
    backend = "nccl" if device == "cuda" else "gloo"
    world = processes * nodes.count
    name = f"{backend}, {world} {'rank' if world == 1 else 'ranks'}"
    task = Task(program, device, backend, trial.order.seed, nodes.count)
    return Launch(name if nodes.count == 1 else f"{name} on {nodes.count} nodes", task, processes, nodes)
