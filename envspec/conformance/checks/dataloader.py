"""Data loading: the same batches in the same order with all options, enough shared memory, and enough speed."""

from __future__ import annotations

import importlib
import os
import random
import re
import shutil
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import spread, wait
from envspec.conformance.nvml import Sensors
from envspec.conformance.results import Level, error_chain
from envspec.conformance.text import lines_of

_SHM = "/dev/shm"  # noqa: S108 (only its size is read)
_SHM_HINT = "give the container more shared memory: --shm-size=1g or larger, or --ipc=host"
_WORKER = re.compile(r"DataLoader worker")
_NO_ROOM = re.compile(r"bus error|shared memory|no space left", re.IGNORECASE)
_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "no worker": {"num_workers": 0},
    "2 workers": {"num_workers": 2},
    "4 workers, prefetch 4": {"num_workers": 4, "prefetch_factor": 4},
    "2 persistent workers": {"num_workers": 2, "persistent_workers": True},
    "2 workers, pinned": {"num_workers": 2, "pin_memory": True},
    "4 persistent workers, prefetch 4, pinned": {
        "num_workers": 4,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "pin_memory": True,
    },
}
#: Of a picture: channels, rows, columns.
SHAPE = (3, 64, 64)
_BYTES = SHAPE[0] * SHAPE[1] * SHAPE[2]
_DIFFERENT = 32
_LARGE_SHAPE = (3, 224, 224)


class Pictures:
    """Items are (uint8 of SHAPE, index), compressed so that unpacking one takes about 0.1 ms."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        numbers = random.Random(seed)  # noqa: S311 (the same on every machine)
        # Sixteen values: random bytes would be stored uncompressed, and unpacking would be a copy.
        self._packed = [zlib.compress(bytes(numbers.choices(range(0, 256, 16), k=_BYTES))) for _ in range(_DIFFERENT)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        torch: Any = importlib.import_module("torch")
        flat = torch.frombuffer(bytearray(zlib.decompress(self._packed[index % _DIFFERENT])), dtype=torch.uint8)
        return flat.roll(index).view(SHAPE), index


class LargePictures:
    """Blank pictures as ImageNet's networks take them, fp32; every value is the picture's index."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        torch: Any = importlib.import_module("torch")
        return torch.full(_LARGE_SHAPE, float(index))


def check(context: CheckContext) -> None:
    """The variants, shared memory, and a training loop compared with one whose data is on the device already."""
    torch = context.load("torch")
    size = SIZES["loader.batch"]
    with context.phase("pictures"):
        pictures = Pictures(SIZES["loader.pictures"], context.request.seed)
        expected = []
        for first in range(0, len(pictures), size):
            items, indices = zip(*map(pictures.__getitem__, range(first, min(first + size, len(pictures)))))
            expected.append(_sums(torch, torch.stack(items), torch.tensor(indices)))
    context.fingerprint("pictures", [repr(expected).encode()], Level.UNIVERSAL)
    for name, options in _VARIANTS.items():
        if not context.is_first and not options.get("pin_memory"):
            continue
        if options.get("pin_memory") and not context.request.cuda:
            # Without CUDA the loader ignores it: silently in torch 2.6, with a warning from 2.9 on.
            context.not_run(name, "memory is pinned for a GPU, and none is requested")
        else:
            _variant(context, torch, pictures, name, options, expected)
    if context.is_first:
        _shared_memory(context, torch)
    with _worker_loss(context, "training"):
        _training(context, torch, pictures)


def _sums(torch: Any, pictures: Any, indices: Any) -> list[tuple[int, int]]:
    """(index, sum over a picture's bytes, each times its position) of a batch, in its order."""
    flat = pictures.flatten(1).to(torch.int64)
    positions = torch.arange(1, flat.shape[1] + 1)
    return list(zip(indices.tolist(), (flat * positions).sum(1).tolist()))


def _variant(
    context: CheckContext,
    torch: Any,
    pictures: Pictures,
    name: str,
    options: Mapping[str, Any],
    expected: Sequence[list[tuple[int, int]]],
) -> None:
    with context.phase(name), _worker_loss(context, name):
        loader = torch.utils.data.DataLoader(pictures, batch_size=SIZES["loader.batch"], **options)
        for epoch in range(2 if options.get("persistent_workers") else 1):
            part = f"{name}, epoch {epoch + 1}"
            batches = list(loader)
            found = [_sums(torch, *batch) for batch in batches]
            context.exact(part, ok=found == list(expected), detail=_difference(found, expected))
            if options.get("pin_memory"):
                pinned = sum(bool(each.is_pinned()) for each, _ in batches)
                context.exact(
                    f"{part}, pinned", ok=pinned == len(batches), detail=f"{pinned} of {len(batches)} batches"
                )


def _difference(found: Sequence[list[tuple[int, int]]], expected: Sequence[list[tuple[int, int]]]) -> str:
    samples, right = list(chain.from_iterable(found)), list(chain.from_iterable(expected))
    if samples == right:
        return f"{len(samples)} samples are correct and in order"
    if len(samples) != len(right):
        missing = sorted(dict(right).keys() - dict(samples).keys())
        return f"{len(samples)} samples, must be {len(right)}; missing: {', '.join(map(str, missing[:5])) or 'none'}"
    number = next(number for number, (one, other) in enumerate(zip(samples, right)) if one != other)
    return f"sample {number} is (index, sum) {samples[number]}, must be {right[number]}"


@contextmanager
def _worker_loss(context: CheckContext, part: str) -> Iterator[None]:
    """Report the loss of a worker in the block as a finding, and go on."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        detail = "; ".join(_lines(error))
        if _NO_ROOM.search(detail):
            context.exact(part, ok=False, detail=f"out of shared memory: {detail}", hint=_SHM_HINT)
        elif _WORKER.search(detail):
            context.exact(part, ok=False, detail=detail)
        else:
            raise


def _lines(error: BaseException) -> Iterator[str]:
    """An error and its causes, a line each: only the second one names the signal that ended a worker."""
    for each in error_chain(error):
        lines = lines_of(str(each)) or [type(each).__name__]
        yield lines[0]
        if lines[0].startswith("Caught "):
            # An error within a worker: the last line of its traceback.
            yield lines[-1]


def _shared_memory(context: CheckContext, torch: Any) -> None:
    """Compare the free size with what workers prefetch of batches of a common size, then fill it with them."""
    workers, prefetch, size = SIZES["loader.shm_workers"], SIZES["loader.shm_prefetch"], SIZES["loader.shm_batch"]
    batch_bytes = size * 4 * _LARGE_SHAPE[0] * _LARGE_SHAPE[1] * _LARGE_SHAPE[2]
    needed = workers * prefetch * batch_bytes
    with context.phase("shared memory"):
        free = shutil.disk_usage(_SHM).free if Path(_SHM).is_dir() else 0
        detail = (
            f"{workers} workers x {prefetch} batches x {batch_bytes / 1e6:.0f} MB = {needed / 1e6:.0f} MB; "
            f"{free / 1e6:.0f} MB are free in {_SHM}"
        )
        context.exact("shared memory, free", ok=free >= needed, detail=detail, hint=_SHM_HINT)
        with _worker_loss(context, "shared memory, used"):
            # A list, so that all batches exist at the same time.
            batches = list(
                torch.utils.data.DataLoader(
                    LargePictures(workers * prefetch * size),
                    batch_size=size,
                    num_workers=workers,
                    prefetch_factor=prefetch,
                )
            )
            used = sum(each.numel() * each.element_size() for each in batches)
            right = all(int(batch[0, 0, 0, 0]) == number * size for number, batch in enumerate(batches))
            context.exact("shared memory, used", ok=right, detail=f"{used / 1e6:.0f} MB of batches at a time")


_SAMPLE_S = 0.05
_RATE = 0.01
_UNCALIBRATED = "not judged: too few GPUs have been measured"
_BUSY = "GPU busy while training"


def _training(context: CheckContext, torch: Any, pictures: Pictures) -> None:
    """Train a small network twice; measure what the loader costs and how busy the GPU is meanwhile."""
    kind = context.device
    steps, size = SIZES[f"loader.steps.{kind}"], SIZES["loader.batch"]
    with context.phase("training"):
        torch.manual_seed(context.request.seed)
        if not context.request.cuda:
            # The other cores are the workers'; threads that wait for a shared core make every step slow.
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - SIZES["loader.workers.cpu"]))
        nn, width = torch.nn, SIZES[f"loader.width.{kind}"]
        first, second = nn.Conv2d(SHAPE[0], width, 3, stride=2, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        layers = [first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Linear(2 * width, 8)).to(kind)
        loader = torch.utils.data.DataLoader(
            pictures,
            batch_size=size,
            # Without an end: between two passes the GPU would wait for workers that start again.
            sampler=range(sys.maxsize),
            num_workers=SIZES[f"loader.workers.{kind}"],
            pin_memory=context.request.cuda,
            persistent_workers=True,
        )
        resident = [(each.to(kind), indices) for each, indices in islice(loader, steps)]
        _seconds(torch, kind, model, resident[:2])
        resident_s = [_seconds(torch, kind, model, resident) for _ in range(2)]
        batches, loaded_s = iter(loader), list[float]()
        # Without the start of the workers.
        next(batches)
        with context.sensors(_SAMPLE_S) as sensors:
            while not loaded_s or sum(loaded_s) < SIZES[f"loader.milliseconds.{kind}"] / 1e3:
                loaded_s.append(_seconds(torch, kind, model, islice(batches, steps)))
        _report_busy(context, sensors)
    for name, seconds in (("data on the device", resident_s), ("from the loader", loaded_s)):
        apart = None
        # One time has no spread.
        if len(seconds) > 1 and context.request.cuda:
            apart = spread(seconds)
        context.measure(f"training, {name}", steps * size / min(seconds), "1/s", "pictures", apart)
    detail = ""
    if context.request.cuda:
        bound = limit("loader.kept_up")
        detail = f"{_UNCALIBRATED}; planned bound: {bound.relation.value} {bound.value:g} %"
    context.measure("the loader's pace", 100 * min(resident_s) / min(loaded_s), "%", detail)


def _report_busy(context: CheckContext, sensors: Sensors | None) -> None:
    if sensors is None:
        context.not_run(_BUSY, "no GPU is requested")
        return
    shares = sensors.samples.get("busy")
    if shares:
        share = sum(shares) / len(shares)
        context.measure(_BUSY, share, "%", f"the mean of {len(shares)} samples; {_UNCALIBRATED}")
    else:
        context.not_run(_BUSY, sensors.problem("busy"))


def _seconds(torch: Any, device: str, model: Any, batches: Iterable[tuple[Any, Any]]) -> float:
    began = time.perf_counter()
    for pictures, indices in batches:
        inputs = pictures.to(device, non_blocking=True).float().div(255)
        loss = torch.nn.functional.cross_entropy(model(inputs), indices.to(device, non_blocking=True) % 8)
        parameters = list(model.parameters())
        # On the CPU the imports of torch.optim take longer than the whole training.
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter.sub_(gradient, alpha=_RATE)
    wait(torch, device)
    return time.perf_counter() - began
