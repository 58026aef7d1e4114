"""Loading speed and pictures for the data loader's check."""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
import zlib
from collections.abc import Iterable
from typing import Any

from envspec.conformance import hardware
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial
from envspec.conformance.numerics import wait

#: A picture's shape: channels, rows, columns; bytes.
SHAPE = (3, 64, 64)
_DIFFERENT = 32
_BYTES = SHAPE[0] * SHAPE[1] * SHAPE[2]


class Pictures:
    """`count` pictures; an item is (uint8 of SHAPE, its index). Packed so that unpacking one takes about 0.1 ms."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        made = random.Random(seed)  # noqa: S311 (the same on every machine)
        # Of sixteen values: bytes without a pattern would be stored, and unpacking would be a copy.
        self._packed = [zlib.compress(bytes(made.choices(range(0, 256, 16), k=_BYTES))) for _ in range(_DIFFERENT)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        torch: Any = importlib.import_module("torch")
        flat = torch.frombuffer(bytearray(zlib.decompress(self._packed[index % _DIFFERENT])), dtype=torch.uint8)
        return flat.roll(index).view(SHAPE), index


class Large:
    """`count` blank pictures as a network of ImageNet's takes them, fp32; what they hold is their index."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self._count = count
        self._shape = shape

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        torch: Any = importlib.import_module("torch")
        return torch.full(self._shape, float(index))


_SAMPLE_S = 0.05
_RATE = 0.01
_UNCALIBRATED = "informs until a GPU has calibrated it"


def training(trial: Trial, torch: Any, pictures: Pictures) -> None:
    """Train a small network twice, and tell what the loader costs and how busy the GPU is meanwhile."""
    kind = trial.device
    steps = SIZES[f"loader.steps.{kind}"]
    with trial.phase("training"):
        torch.manual_seed(trial.order.seed)
        if not trial.order.cuda:
            # The other cores are the workers'; and a thread that waits for another one's core makes every step slow.
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - SIZES["loader.workers.cpu"]))
        model = _network(torch, SIZES[f"loader.width.{kind}"]).to(kind)

        def train(batches: Iterable[tuple[Any, Any]]) -> float:
            return _seconds(torch, kind, model, batches)

        loader = _loader(trial, torch, pictures, steps)
        there = [(each.to(kind), indices) for each, indices in loader]
        train(there[:2])
        resident_s = min(train(there) for _ in range(2))
        batches = iter(loader)
        # The workers' start is not what is measured.
        next(batches)
        if trial.order.cuda:
            with _Sampler(_uuid(torch)) as sampler:
                loaded_s = train(batches) * steps / (steps - 1)
            _tell_busy(trial, sampler)
        else:
            loaded_s = train(batches) * steps / (steps - 1)
            trial.not_run("GPU busy while training", "no GPU is asked for")
    trial.inform("training, data on the device", steps * SIZES["loader.batch"] / resident_s, "1/s", "pictures")
    trial.inform("training, from the loader", steps * SIZES["loader.batch"] / loaded_s, "1/s", "pictures")
    asked = limit("loader.kept_up")
    told = f"{_UNCALIBRATED}; {asked.relation.value} {asked.value:g} % is to be asked" if trial.order.cuda else ""
    trial.inform("the loader's pace", 100 * resident_s / loaded_s, "%", told)


def _network(torch: Any, width: int) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(SHAPE[0], width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 8),
    )


def _loader(trial: Trial, torch: Any, pictures: Pictures, steps: int) -> Any:
    size = SIZES["loader.batch"]
    sampler = [index % len(pictures) for index in range(steps * size)]
    return torch.utils.data.DataLoader(
        pictures,
        batch_size=size,
        sampler=sampler,
        num_workers=SIZES[f"loader.workers.{trial.device}"],
        pin_memory=trial.order.cuda,
        persistent_workers=True,
    )


def _seconds(torch: Any, device: str, model: Any, batches: Iterable[tuple[Any, Any]]) -> float:
    began = time.perf_counter()
    for pictures, indices in batches:
        inputs = pictures.to(device, non_blocking=True).float().div(255)
        loss = torch.nn.functional.cross_entropy(model(inputs), indices.to(device, non_blocking=True) % 8)
        parameters = list(model.parameters())
        # By hand: on the CPU the import behind torch.optim takes longer than all of the training.
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter.sub_(gradient, alpha=_RATE)
    wait(torch, device)
    return time.perf_counter() - began


def _uuid(torch: Any) -> str:
    """The first GPU's, as far as torch tells it: from 2.5 on. Without it the machine's first GPU is sampled."""
    return str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))


def _tell_busy(trial: Trial, sampler: _Sampler) -> None:
    name = "GPU busy while training"
    if sampler.reason or not sampler.shares:
        trial.not_run(name, sampler.reason or "NVML gives no sample")
    else:
        share = sum(sampler.shares) / len(sampler.shares)
        trial.inform(name, share, "%", f"the mean of {len(sampler.shares)} samples; {_UNCALIBRATED}")


class _Sampler(threading.Thread):
    """Samples how busy a GPU is until the block ends. shares: percent. reason: why it could not.

    uuid: the GPU's, without what NVML puts before it.
    """

    def __init__(self, uuid: str) -> None:
        super().__init__(daemon=True)
        self.reason = ""
        self.shares: list[int] = []
        self._uuid = uuid
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            with hardware.open_nvml() as nvml:
                index = next(gpu.index for gpu in nvml.gpus() if gpu.uuid.endswith(self._uuid))
                is_over = False
                while not is_over:
                    # Also once at the end: NVML looks back over a time that is longer than a short training.
                    is_over = self._ended.wait(_SAMPLE_S)
                    self.shares.append(nvml.busy(index))
        except hardware.NoDriver as reason:
            self.reason = str(reason)
        except StopIteration:
            self.reason = "NVML does not know the GPU that trains: it is a slice of one"

    def __enter__(self) -> _Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
