"""Copies from and to pinned memory, on each card, and between each ordered pair of GPUs: GB/s, and every word arrives.

No number is judged by a constant: like GPUs of one machine are compared with each other, and each with what others
publish for it.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

from envspec.conformance.bounds import SIZES
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import best_time, case, distinct_words
from envspec.conformance.results import Driver, Gpu
from envspec.conformance.stragglers import SHARE, can_tell, described

#: What should be alike -> name -> GB/s.
_Rates = dict[tuple[str, ...], dict[str, float]]
_WORD_BYTES = 8


def check(context: CheckContext) -> None:
    """Measure each kind of copy."""
    torch = context.load("torch")
    if not context.request.cuda:
        for name in ("pinned memory to a GPU and back", "copies between GPUs"):
            context.not_run(name, "no GPU is requested")
        with context.phase("a copy in memory"):
            _measure(torch, context, "a copy in memory", ("cpu", "cpu"), factor=2)
        return
    rates: _Rates = {}
    gpus = context.request.gpus
    for index, gpu in enumerate(gpus):
        card = f"cuda:{index}"
        torch.cuda.set_device(index)
        with context.phase(f"copies of GPU {index}"):
            for name, ends, factor in (
                (f"pinned memory to GPU {index}", ("cpu", card), 1),
                (f"GPU {index} to pinned memory", (card, "cpu"), 1),
                (f"on GPU {index}", (card, card), 2),
            ):
                rate = _measure(torch, context, name, ends, factor)
                _add(rates, (name.replace(str(index), ""), gpu.name), name, rate)
    if len(gpus) < 2:
        context.not_run("copies between GPUs", "there is one GPU")
    for one, other in combinations(range(len(gpus)), 2):
        _pair(torch, context, one, other, rates)
    _compare(context, rates)


def _pair(torch: Any, context: CheckContext, one: int, other: int, rates: _Rates) -> None:
    """Both directions between two GPUs."""
    gpus, both = context.request.gpus, []
    how = connection(context.request.driver, gpus[one], gpus[other])
    for source, target in ((one, other), (other, one)):
        # torch copies in the source's stream, whose events are the clock.
        torch.cuda.set_device(source)
        name = f"GPU {source} to GPU {target}"
        path = "direct" if torch.cuda.can_device_access_peer(source, target) else "through the host"
        with context.phase(name):
            detail = "; ".join(filter(None, [how, path]))
            rate = _measure(torch, context, name, (f"cuda:{source}", f"cuda:{target}"), 1, detail)
        _add(rates, (gpus[source].name, gpus[target].name, how), name, rate)
        both.append(rate or 0.0)
    there, back = both
    if abs(there - back) > SHARE * max(both) and min(both):
        context.note(f"GPUs {one} and {other}: the directions differ", f"{there:.3g} and {back:.3g} GB/s")


def connection(driver: Driver | None, one: Gpu, other: Gpu) -> str:
    """How two GPUs are connected, as in the topology: `NV18`, `PHB`; empty if NVML does not show it."""
    if driver is None:
        return ""
    # NVML's numbers are not CUDA's.
    ends = sorted(board.index for board in driver.boards if board.pci in (one.pci, other.pci))
    return driver.topology.get("-".join(map(str, ends)), "")


def _measure(
    torch: Any, context: CheckContext, name: str, ends: tuple[str, str], factor: int, detail: str = ""
) -> float | None:
    """GB/s of a copy between two devices; None if it is refused. factor: 2 if one memory is read and written."""
    words = SIZES[f"bandwidth.bytes.{context.device}"] // _WORD_BYTES

    def pinned(tensor: Any) -> Any:
        if context.request.cuda and tensor.device.type == "cpu":
            return tensor.pin_memory()
        return tensor

    with case(torch, context, name):
        source = pinned(distinct_words(torch, words, ends[0]))
        target = pinned(torch.zeros(words, dtype=torch.int64, device=ends[1]))
        seconds, spread = best_time(torch, context.device, partial(target.copy_, source, non_blocking=True))
        wrong = int((target != distinct_words(torch, words, ends[1])).sum())
        context.exact(f"{name} is exact", ok=not wrong, detail=f"{wrong} of {words} words differ")
        rate = float(factor * words * _WORD_BYTES / seconds / 1e9)
        size = f"{words * _WORD_BYTES >> 20} MiB"
        if factor == 2:
            size += ", read and written"
        context.measure(name, rate, "GB/s", "; ".join(filter(None, [size, detail])), spread)
        return rate
    return None


def _add(rates: _Rates, kind: tuple[str, ...], name: str, rate: float | None) -> None:
    if rate is not None:
        rates.setdefault(kind, {})[name] = rate


def _compare(context: CheckContext, rates: _Rates) -> None:
    """Like copies of like GPUs with each other."""
    groups = [each for each in rates.values() if can_tell(each)]
    if not groups:
        context.not_run("stragglers", "there are fewer than three GPUs or pairs of a kind")
        return
    odd: list[str] = []
    for each in groups:
        odd += described(each)
    context.note("stragglers", "; ".join(odd) or f"none of {sum(map(len, groups))} rates")
