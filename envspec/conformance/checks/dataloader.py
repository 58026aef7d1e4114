"""Data loading: every way of it gives the same batches in the same order, in enough shared memory, and fast enough."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envspec.conformance import data_loading, imports
from envspec.conformance.bounds import SIZES
from envspec.conformance.data_loading import Large, Pictures
from envspec.conformance.events import Trial
from envspec.conformance.results import Level

_SHM = "/dev/shm"  # noqa: S108 (its size is what is asked)
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


def check(trial: Trial) -> None:
    """The variants, shared memory, and a training loop against one whose data is on the device already."""
    torch = imports.torch(trial)
    with trial.phase("pictures"):
        pictures = Pictures(SIZES["loader.pictures"], trial.order.seed)
        wanted = [_sums(torch, *_joined(torch, batch)) for batch in _by_hand(pictures)]
    trial.fingerprint("pictures", [repr(wanted).encode()], Level.UNIVERSAL)
    for name, options in _VARIANTS.items():
        if options.get("pin_memory") and not trial.order.cuda:
            # Without CUDA the loader leaves it out: without a word in torch 2.6, with a warning from 2.9 on.
            trial.not_run(name, "memory is pinned for a GPU, and none is asked for")
        else:
            _variant(trial, torch, pictures, name, options, wanted)
    _shared_memory(trial, torch)
    with _lost(trial, "training"):
        data_loading.training(trial, torch, pictures)


def _by_hand(pictures: Pictures) -> Iterator[list[tuple[Any, int]]]:
    size = SIZES["loader.batch"]
    for first in range(0, len(pictures), size):
        yield [pictures[index] for index in range(first, min(first + size, len(pictures)))]


def _joined(torch: Any, batch: Sequence[tuple[Any, int]]) -> tuple[Any, Any]:
    return torch.stack([each for each, _ in batch]), torch.tensor([index for _, index in batch])


def _sums(torch: Any, pictures: Any, indices: Any) -> list[tuple[int, int]]:
    """(index, sum over a picture's bytes, each times its place) of a batch, in its order."""
    flat = pictures.flatten(1).to(torch.int64)
    places = torch.arange(1, flat.shape[1] + 1)
    return list(zip(indices.tolist(), (flat * places).sum(1).tolist()))


def _variant(
    trial: Trial,
    torch: Any,
    pictures: Pictures,
    name: str,
    options: Mapping[str, Any],
    wanted: Sequence[list[tuple[int, int]]],
) -> None:
    with trial.phase(name), _lost(trial, name):
        loader = torch.utils.data.DataLoader(pictures, batch_size=SIZES["loader.batch"], **options)
        for epoch in range(2 if options.get("persistent_workers") else 1):
            part = f"{name}, epoch {epoch + 1}"
            batches = list(loader)
            found = [_sums(torch, *batch) for batch in batches]
            trial.exact(part, ok=found == list(wanted), told=_compared(found, wanted))
            if options.get("pin_memory"):
                pinned = sum(bool(each.is_pinned()) for each, _ in batches)
                trial.exact(f"{part}, pinned", ok=pinned == len(batches), told=f"{pinned} of {len(batches)} batches")


def _compared(found: Sequence[list[tuple[int, int]]], wanted: Sequence[list[tuple[int, int]]]) -> str:
    here, right = ([sample for batch in batches for sample in batch] for batches in (found, wanted))
    if here == right:
        return f"{len(here)} samples as they were made, in order"
    if len(here) != len(right):
        missing = sorted({index for index, _ in right} - {index for index, _ in here})
        return (
            f"{len(here)} samples where {len(right)} are there; missing: {', '.join(map(str, missing[:5])) or 'none'}"
        )
    place = next(place for place, (one, other) in enumerate(zip(here, right)) if one != other)
    return f"the sample at {place} is (index, sum) {here[place]} where {right[place]} is right"


@contextmanager
def _lost(trial: Trial, part: str) -> Iterator[None]:
    """Where a worker is lost in the block, that is what was found, and the check goes on."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        told = "; ".join(_lines(error))
        if _NO_ROOM.search(told):
            trial.exact(part, ok=False, told=f"out of shared memory: {told}", hint=_SHM_HINT)
        elif _WORKER.search(told):
            trial.exact(part, ok=False, told=told)
        else:
            raise


def _lines(error: BaseException) -> Iterator[str]:
    """An error and those behind it, a line each: which signal ended a worker stands in the second one alone."""
    each: BaseException | None = error
    while each is not None:
        lines = [line.strip() for line in str(each).splitlines() if line.strip()] or [type(each).__name__]
        yield lines[0]
        if lines[0].startswith("Caught "):
            # What a worker raised comes with its traceback, whose last line tells.
            yield lines[-1]
        each = each.__cause__


def _shared_memory(trial: Trial, torch: Any) -> None:
    """Batches of a common size, as many as workers keep ready: asked of the file system first, then made."""
    workers, prefetch, size = SIZES["loader.shm_workers"], SIZES["loader.shm_prefetch"], SIZES["loader.shm_batch"]
    shape = (3, 224, 224)
    batch_bytes = size * 4 * shape[0] * shape[1] * shape[2]
    needed = workers * prefetch * batch_bytes
    with trial.phase("shared memory"):
        free = shutil.disk_usage(_SHM).free if Path(_SHM).is_dir() else 0
        told = (
            f"{workers} workers x {prefetch} batches x {batch_bytes / 1e6:.0f} MB = {needed / 1e6:.0f} MB; "
            f"{free / 1e6:.0f} MB are free in {_SHM}"
        )
        trial.exact("shared memory, free", ok=free >= needed, told=told, hint=_SHM_HINT)
        with _lost(trial, "shared memory, used"):
            _filled(trial, torch, Large(workers * prefetch * size, shape))


def _filled(trial: Trial, torch: Any, pictures: Large) -> None:
    size = SIZES["loader.shm_batch"]
    loader = torch.utils.data.DataLoader(
        pictures,
        batch_size=size,
        num_workers=SIZES["loader.shm_workers"],
        prefetch_factor=SIZES["loader.shm_prefetch"],
    )
    # Kept until the last one is there, so that the room is needed whatever is faster.
    kept = list(loader)
    used = sum(each.numel() * each.element_size() for each in kept)
    right = all(int(batch[0, 0, 0, 0]) == index * size for index, batch in enumerate(kept))
    trial.exact("shared memory, used", ok=right, told=f"{used / 1e6:.0f} MB of batches at a time")
