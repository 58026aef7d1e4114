"""Faults in real stacks, each of which a check has to find: a row of `FAULTS` for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.machines.stack import at_loss, spoiled, spoiled_ddp, spoiled_product
from tests.support.machines.suite import make_request, run

pytestmark = pytest.mark.stack

_BOTH: Final = ("torch_29", "torch_26")
_NORMS: Final = (
    "gradient against one process",
    "parameters against one process",
    "gradient norm against one process",
    "norm by torch's clipping, rank 0",
    "norm by torch's clipping, rank 1",
)
_INTEGERS: Final = frozenset(f"integers in {name}" for name in ("fp32", "fp16", "bf16"))
_ATTENTION: Final = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}


@dataclass(frozen=True)
class Fault:
    """environ: variables that bring the fault, made in a folder. wrong: findings that fail; is_exact: and no others.

    right: findings that do not fail. words: of the result. more: of the request. before: words before the command.
    """

    check: str
    environ: Callable[[Path], Mapping[str, str]]
    wrong: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    is_exact: bool = False
    right: frozenset[str] = frozenset()
    cause: str = "found"
    stacks: tuple[str, ...] = ("torch_29",)
    more: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()


def in_module(module: str, body: str, **environ: str) -> Callable[[Path], Mapping[str, str]]:
    return lambda folder: {**environ, **spoiled(folder, body, module)}


def in_torch(body: str, **environ: str) -> Callable[[Path], Mapping[str, str]]:
    return in_module("torch", body, OMP_NUM_THREADS="1", **environ)


def in_product(body: str) -> Callable[[Path], Mapping[str, str]]:
    return lambda folder: spoiled_product(folder, body)


def in_ddp(body: str) -> Callable[[Path], Mapping[str, str]]:
    return lambda folder: spoiled_ddp(folder, body)


def in_rank(body: str) -> Callable[[Path], Mapping[str, str]]:
    return lambda folder: at_loss(folder, body)


def compiler(script: str) -> Callable[[Path], Mapping[str, str]]:
    """A PATH with this g++ alone; with none if the script is empty."""

    def environ(folder: Path) -> Mapping[str, str]:
        folder.mkdir()
        if script:
            (folder / "g++").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (folder / "g++").chmod(0o755)
        return {"OMP_NUM_THREADS": "1", "PATH": str(folder)}

    return environ


def norms(launch: str) -> frozenset[str]:
    return frozenset(f"{launch}: {each}" for each in _NORMS)


def worker_ends(end: str) -> Callable[[Path], Mapping[str, str]]:
    return in_module(
        "torch.utils.data._utils.fetch",
        f"""
        import os
        parent = os.getpid()
        fetched = fetch._MapDatasetFetcher.fetch
        def dies(self, indices):
            if os.getpid() != parent and 100 in indices:
                {end}
            return fetched(self, indices)
        fetch._MapDatasetFetcher.fetch = dies
        """,
    )


FAULTS: Final = {
    "first kernel": Fault(
        "coldstart", in_product("return product(left, right) + 1"), frozenset({"the first kernel's result"})
    ),
    "an optimizer that needs more memory": Fault(
        "memory",
        in_module(
            "torch.optim.adamw",
            """
            made = adamw.AdamW.__init__
            def greedy(optimizer, *given, **named):
                made(optimizer, *given, amsgrad=True, **named)
            adamw.AdamW.__init__ = greedy
            """,
        ),
        words=("bytes for each parameter in training: 20",),
    ),
    "nms": Fault(
        "family",
        in_module("torchvision.ops.boxes", "boxes.nms = lambda boxes, scores, iou: scores.argsort(descending=True)"),
        frozenset({"torchvision.ops.nms"}),
    ),
    "lfilter": Fault(
        "family",
        in_module("torchaudio.functional", "functional.lfilter = lambda heard, feedback, direct: heard"),
        frozenset({"torchaudio.functional.lfilter"}),
    ),
    "a product without one k": Fault(
        "matmul",
        in_product("""
        kept = torch.ones(left.shape[1], dtype=torch.bool)
        kept[7] = False
        return product(left[:, kept], right[kept])
        """),
        _INTEGERS | {"fp32, K = 64", "fp32, K = 16384", "fp16, K = 1024", "bf16, K = 64"},
        ("differ from the product in int64",),
    ),
    "one element is zero": Fault(
        "matmul",
        in_product("""
        found = product(left, right)
        found[3, 5] = 0
        return found
        """),
        _INTEGERS | {"fp32, K = 64, by element", "fp32, K = 16384, by element"},
        ("the worst is row 3, column 5",),
    ),
    # Only the integers show it.
    "a flipped low bit": Fault(
        "matmul",
        in_product("""
        found = product(left, right)
        if found.dtype == torch.bfloat16:
            found.view(torch.int16)[100, 100] ^= 1
        return found
        """),
        frozenset({"integers in bf16"}),
        is_exact=True,
    ),
    # Integers are as exact in TF32.
    "fp32 in tf32": Fault(
        "matmul",
        in_product("""
        if left.dtype != torch.float32:
            return product(left, right)
        cut = [(each.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (left, right)]
        return product(*cut)
        """),
        frozenset({"fp32 is not TF32"}),
        ("fp32 is computed in TF32",),
        right=_INTEGERS | {"bf16, K = 64", "fp16, K = 64"},
    ),
    "a gradient 16 times too large": Fault(
        "amp",
        in_torch("""
        unscale = torch.amp.GradScaler.unscale_

        def wrong(self, optimizer):
            unscale(self, optimizer)
            for group in optimizer.param_groups if self.is_enabled() else []:
                for parameter in group["params"]:
                    parameter.grad.mul_(16)

        torch.amp.GradScaler.unscale_ = wrong
        """),
        frozenset({"the first gradient in fp16"}),
        ("its norm is 16 times fp32's",),
        right=frozenset({"the first gradient in bf16"}),
    ),
    "half a gradient": Fault(
        "amp",
        in_torch("""
        scale = torch.amp.GradScaler.scale
        torch.amp.GradScaler.scale = lambda self, loss: scale(self, loss) / (2 if self.is_enabled() else 1)
        """),
        frozenset({"the first gradient in fp16"}),
    ),
    "a scaler that never skips": Fault(
        "amp",
        in_torch(
            "torch.amp.GradScaler._maybe_opt_step = "
            "lambda self, optimizer, state, *more, **words: optimizer.step(*more, **words)"
        ),
        frozenset({"a step that overflows is skipped", "training goes on after an overflow"}),
        is_exact=True,
        stacks=_BOTH,
    ),
    "a scale that stays": Fault(
        "amp",
        in_torch("""
        update = torch.amp.GradScaler.update

        def wrong(self, new_scale=None):
            before = self.get_scale()
            update(self, new_scale)
            if self.is_enabled():
                self._scale.fill_(before)

        torch.amp.GradScaler.update = wrong
        """),
        frozenset(
            {
                "the scale grows after its interval",
                "a step that overflows halves the scale",
                "training goes on after an overflow",
            }
        ),
        is_exact=True,
    ),
    "autocast and scaler are off": Fault(
        "amp",
        in_torch("""
        cast, start = torch.amp.autocast.__init__, torch.amp.GradScaler.__init__

        def without(self, device, dtype=None, enabled=True, cache_enabled=None):
            cast(self, device, dtype, False, cache_enabled)

        def off(self, *more, **words):
            start(self, *more, **{**words, "enabled": False})

        torch.amp.autocast.__init__, torch.amp.GradScaler.__init__ = without, off
        """),
        frozenset({"the output's type in bf16", "the output's type in fp16", "GradScaler is enabled"}),
        ("torch.float32",),
    ),
    # Ranks that are wrong in the same way are equal bit by bit, and no cosine shows a factor.
    "ddp: a sum that is not divided": Fault(
        "ddp",
        in_ddp("""
        def summed(_, bucket):
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

        replica.register_comm_hook(None, summed)
        """),
        norms("gloo, 2 ranks"),
        is_exact=True,
    ),
    "ddp: a gradient 16 times too large": Fault(
        "ddp",
        in_ddp("""
        def scaled(_, inputs, output):
            output.register_hook(lambda gradient: 16 * gradient)

        replica.module[-1].register_forward_hook(scaled)
        """),
        norms("gloo, 2 ranks"),
        is_exact=True,
        stacks=("torch_26",),
    ),
    "ddp: a sum of integers that is wrong by one": Fault(
        "ddp",
        in_module(
            "torch",
            """
            import os
            reduce = torch.distributed.all_reduce

            def wrong(tensor, *others, **named):
                work = reduce(tensor, *others, **named)
                if os.environ["RANK"] == "1" and tensor.dtype == torch.int64:
                    tensor[-1] += 1
                return work

            torch.distributed.all_reduce = wrong
            """,
        ),
        frozenset({"gloo, 2 ranks: collectives of integers are exact"}),
        ("all-reduce of int64 at rank 1",),
        is_exact=True,
    ),
    # One bit: within every bound, and yet these replicas diverge.
    "ddp: a rank out of step": Fault(
        "ddp",
        in_rank("""
        import gc
        weight = next(each for each in gc.get_objects() if type(each) is torch.nn.Linear).weight
        with torch.no_grad():
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
        """),
        frozenset({"gloo, 2 ranks: parameters are equal bit by bit across ranks"}),
        ("rank 1 differs from rank 0",),
        is_exact=True,
    ),
    "ddp: a killed rank": Fault(
        "ddp",
        in_rank("os.kill(os.getpid(), 9)"),
        words=("rank 1 was killed by signal 9 (SIGKILL) in the phase 'step 2'",),
        cause="raised",
        stacks=_BOTH,
    ),
    "ddp: a rank that raises": Fault(
        "ddp",
        in_rank("raise ArithmeticError('no loss today')"),
        words=("rank 1 raised in the phase 'step 2': ArithmeticError: no loss today",),
        cause="raised",
    ),
    # Its limit is well below the time that the other rank waits (`distributed.timeout_s`).
    "ddp: a rank that hangs": Fault(
        "ddp",
        in_rank("import time; time.sleep(3600)"),
        words=("still running after 30 s, in the phase 'ranks of gloo, 2 ranks'", "sitecustomize.py"),
        cause="over its limit",
        more={"limits": {"ddp": 30}},
    ),
    "fsdp2: a sum that is not divided": Fault(
        "fsdp",
        in_module(
            "torch",
            """
            scatter, ReduceOp = torch.distributed.reduce_scatter_tensor, torch.distributed.ReduceOp

            def summed(output, input, op=ReduceOp.SUM, **named):
                return scatter(output, input, op=ReduceOp.SUM if op == ReduceOp.AVG else op, **named)

            torch.distributed.reduce_scatter_tensor = summed
            """,
        ),
        norms("FSDP2, gloo, 2 ranks"),
        is_exact=True,
    ),
    "fsdp1: a sum that is doubled": Fault(
        "fsdp",
        in_module(
            "torch",
            """
            scatter = torch.distributed.reduce_scatter_tensor
            torch.distributed.reduce_scatter_tensor = (
                lambda output, input, **named: scatter(output, input.mul(2), **named)
            )
            """,
        ),
        norms("FSDP1, gloo, 2 ranks"),
        is_exact=True,
        stacks=("torch_26",),
    ),
    "a loader that drops a sample": Fault(
        "dataloader",
        in_module(
            "torch.utils.data.sampler",
            """
            batches = sampler.BatchSampler.__iter__
            def dropped(self):
                for batch in batches(self):
                    yield [index for index in batch if index != 70]
            sampler.BatchSampler.__iter__ = dropped
            """,
        ),
        words=("2 workers, epoch 1: 767 samples, must be 768; missing: 70",),
    ),
    "a loader in another order": Fault(
        "dataloader",
        in_module(
            "torch.utils.data._utils.fetch",
            """
            fetched = fetch._MapDatasetFetcher.fetch
            fetch._MapDatasetFetcher.fetch = lambda self, indices: fetched(self, indices[::-1])
            """,
        ),
        words=("sample 0 is (index, sum) (31, ",),
    ),
    "a sample with one wrong byte": Fault(
        "dataloader",
        in_module(
            "torch.utils.data._utils.collate",
            """
            stacked = collate.collate_tensor_fn
            def spoilt(batch, **more):
                found = stacked(batch, **more)
                if found.dim() == 4 and found.dtype.itemsize == 1:
                    found[3, 1, 2, 3] ^= 1
                return found
            import torch
            collate.default_collate_fn_map[torch.Tensor] = spoilt
            """,
        ),
        words=("sample 3 is (index, sum) (3, ",),
    ),
    "a worker that exits": Fault(
        "dataloader",
        worker_ends("os._exit(1)"),
        words=("2 workers: DataLoader worker", "exited unexpectedly"),
        stacks=_BOTH,
    ),
    "a worker that is killed": Fault(
        "dataloader",
        worker_ends("os.kill(os.getpid(), 9)"),
        words=("2 workers: DataLoader worker", "Killed"),
        stacks=_BOTH,
    ),
    "no compiler": Fault(
        "transformer",
        compiler(""),
        frozenset({"torch.compile runs"}),
        # A price needs no currency.
        ("InvalidCxxCompiler: No working C++ compiler found", "[image] compiler = ", "1/currency unit", "2.5 an hour"),
        is_exact=True,
        stacks=_BOTH,
        more={"price_per_hour": 2.5},
        before=("/usr/bin/env", "-u", "CC", "-u", "CXX"),
    ),
    "a compiler that fails": Fault(
        "transformer",
        compiler('case "$*" in *--version*) echo "g++ 12.2.0";; *) echo "as: error: no assembler" >&2; exit 1;; esac'),
        words=("as: error: no assembler",),
        before=("/usr/bin/env", "-u", "CC", "-u", "CXX"),
    ),
    "torch.compile is off": Fault(
        "transformer", lambda _: _ATTENTION, frozenset({"torch.compile runs"}), ("0 graphs were compiled",)
    ),
    # What is compiled plays no part here, and takes the longest.
    "attention without its scale": Fault(
        "transformer",
        in_torch(
            """
            attend = torch.nn.functional.scaled_dot_product_attention
            wrong = lambda *inputs, **words: attend(*inputs, **{**words, "scale": 1.0})
            torch.nn.functional.scaled_dot_product_attention = wrong
            """,
            TORCHDYNAMO_DISABLE="1",
        ),
        frozenset(
            f"{kernel} attention in {dtype}, {part}"
            for kernel in ("math", "flash")
            for dtype in ("fp32", "bf16", "fp16")
            for part in ("output", "gradient")
        ),
    ),
    "attention that is wrong in one type": Fault(
        "transformer",
        in_torch(
            """
            attend = torch.nn.functional.scaled_dot_product_attention

            def wrong(query, key, value, *more, **words):
                output = attend(query, key, value, *more, **words)
                return output * 1.05 if query.dtype == torch.bfloat16 else output

            torch.nn.functional.scaled_dot_product_attention = wrong
            """,
            TORCHDYNAMO_DISABLE="1",
        ),
        frozenset({"flash attention in bf16, output"}),
        right=frozenset(f"flash attention in {dtype}, output" for dtype in ("fp32", "fp16")),
    ),
    "messages that do not arrive": Fault(
        "pyg",
        in_module(
            "torch_geometric.nn.conv.message_passing",
            """
            def aggregate(self, inputs, index, ptr=None, dim_size=None):
                return inputs.new_zeros(dim_size, inputs.shape[-1])
            message_passing.MessagePassing.aggregate = aggregate
            """,
        ),
        words=("accuracy on nodes not trained on: ", "must be >= 0.95"),
        stacks=_BOTH,
    ),
    "messages that arrive elsewhere": Fault(
        "pyg",
        in_module(
            "torch_geometric.utils._scatter",
            """
            summed = _scatter.scatter
            _scatter.scatter = lambda src, index, *more, **named: summed(src, index.flip(0), *more, **named)
            """,
        ),
        words=("accuracy on nodes not trained on: ", "must be >= 0.95"),
        stacks=_BOTH,
    ),
    "an optimizer that does nothing": Fault(
        "widedeep",
        in_module("torch.optim.adam", "adam.Adam.step = lambda self, closure=None: None"),
        words=("accuracy above the baseline: ", "must be >= 0.35"),
    ),
    "labels of other rows": Fault(
        "widedeep",
        in_module(
            "pytorch_widedeep.training.trainer",
            """
            fit = trainer.Trainer.fit
            def mixed(self, *more, target, **named):
                import numpy
                return fit(self, *more, target=numpy.random.RandomState(0).permutation(target), **named)
            trainer.Trainer.fit = mixed
            """,
        ),
        words=("accuracy above the baseline: ", "must be >= 0.35"),
    ),
}


@pytest.mark.parametrize(("name", "stack"), [(name, stack) for name, fault in FAULTS.items() for stack in fault.stacks])
def test_a_fault_is_found(name: str, stack: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fault = FAULTS[name]
    python: Path = request.getfixturevalue(stack)
    requested = make_request(fault.check, **fault.more)
    output = run(python, requested, tmp_path / "run", environ=fault.environ(tmp_path / "fault"), before=fault.before)
    result, wrong = output.results[fault.check], output.wrong(fault.check)
    assert (output.status, result["status"], result["cause"]) == (0, "failed", fault.cause), result["reason"]
    assert wrong == fault.wrong if fault.is_exact else wrong >= fault.wrong
    assert not wrong & fault.right
    text = json.dumps(result, ensure_ascii=False)
    assert [words for words in fault.words if words not in text] == []
