"""The GPUs, the driver and the CUDA libraries in memory are those that the lock was made for."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

from envspec.conformance import hardware, imports, libraries
from envspec.conformance.events import Trial
from envspec.conformance.hardware import runs_any
from envspec.conformance.results import NotRun


def check(trial: Trial) -> None:
    """Raises NotRun on the CPU, after the libraries in memory were compared with the lock."""
    torch = imports.torch(trial)
    trial.ran("python", platform.python_version())
    if torch.version.cuda:
        trial.ran("CUDA of torch's build", str(torch.version.cuda))
    if not trial.order.cuda:
        _libraries(trial)
        raise NotRun("no GPU is asked for")
    with trial.phase("GPUs"):
        cards = _seen(trial, torch)
        _drivers_view(trial, cards)
        for kind in {(int(card.major), int(card.minor)): card for card in cards}.values():
            _gpu_code(trial, torch, kind)
    for index in range(len(cards)):
        _first_kernel(trial, torch, index)
    _libraries(trial)


def _seen(trial: Trial, torch: Any) -> list[Any]:
    """torch's properties of each GPU."""
    shown = hardware.devices()
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    told = f"torch sees {count}, CUDA shows {shown}"
    trial.exact("GPUs", ok=count == shown, told=told if visible is None else f"{told} (CUDA_VISIBLE_DEVICES={visible})")
    cards = [torch.cuda.get_device_properties(index) for index in range(count)]
    for index, card in enumerate(cards):
        trial.tell(f"GPU {index}", f"{card.name}, compute capability {card.major}.{card.minor}")
        trial.inform(f"GPU {index}, memory", card.total_memory, "bytes")
    return cards


def _drivers_view(trial: Trial, cards: list[Any]) -> None:
    locked = trial.order.locked
    try:
        with hardware.open_nvml() as nvml:
            driver, gpus = nvml.driver(), nvml.gpus()
    except hardware.NoDriver as reason:
        trial.not_run("the GPUs as NVML sees them", str(reason))
        trial.not_run("driver", str(reason))
        return
    trial.ran("driver", driver)
    known = {(gpu.name, gpu.compute_capability) for gpu in gpus}
    for index, card in enumerate(cards):
        # A slice of a GPU (MIG) is named after it, with the slice's size behind.
        found = any(card.name.startswith(name) and at == f"{card.major}.{card.minor}" for name, at in known)
        trial.exact(f"GPU {index} is one of NVML's", ok=found, told=f"{card.name}; NVML: {sorted(known)}")
    whole = not any(" MIG " in card.name for card in cards)
    if whole and not {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"} & set(os.environ):
        trial.exact("every GPU", ok=len(cards) == len(gpus), told=f"torch sees {len(cards)} of NVML's {len(gpus)}")
    if locked and locked.minimum_driver:
        told = f"driver {driver}; the lock asks for {locked.minimum_driver} or newer"
        trial.exact(
            "driver",
            ok=_numbers(driver) >= _numbers(locked.minimum_driver),
            told=told,
            hint=f"update NVIDIA's driver to {locked.minimum_driver} or newer, or lock an older CUDA",
        )
    else:
        trial.not_run("driver", f"no lock says which is the oldest that will do; here is {driver}")


def _gpu_code(trial: Trial, torch: Any, card: Any) -> None:
    capability = f"sm_{card.major}{card.minor}"
    holders = {"torch here": tuple(torch.cuda.get_arch_list())}
    for code in trial.order.locked.code if trial.order.locked else ():
        holders[f"{code.package} {code.version} of the lock"] = (*code.sm, *code.ptx)
    for holder, architectures in holders.items():
        told = f"{holder} has {' '.join(architectures) or 'no GPU code'}; {card.name} is {capability}"
        name = f"GPU code for {capability} of {holder}"
        runs = runs_any(architectures, (int(card.major), int(card.minor)))
        if not architectures or (holder.startswith("nvidia-") and not runs):
            # What NVIDIA's own packages leave out is most often a part that torch does not call.
            trial.tell(name, told)
        else:
            hint = f"name this GPU in [cuda] gpus and lock again: a build with code for {capability} is looked for"
            trial.exact(name, ok=runs, told=told, hint=hint)


def _first_kernel(trial: Trial, torch: Any, index: int) -> None:
    with trial.phase(f"first kernel on GPU {index}"):
        total = int(torch.arange(1000, device=f"cuda:{index}").sum().item())
    trial.exact(f"first kernel on GPU {index}", ok=total == 499_500, told=f"0 + 1 + ... + 999 = {total}")


def _libraries(trial: Trial) -> None:
    """What the CUDA libraries in memory say of themselves, against the lock."""
    with trial.phase("CUDA libraries in memory"):
        for name, library in libraries.LIBRARIES.items():
            found = libraries.mapped(library.prefix)
            if not found:
                trial.not_run(f"{name} = locked", f"torch has loaded no {library.prefix}")
            for path in found:
                version = libraries.version(library, path)
                trial.ran(name, ".".join(map(str, version)))
                _as_locked(trial, name, library, version, str(path))


def _as_locked(trial: Trial, name: str, library: libraries.CudaLibrary, version: tuple[int, ...], path: str) -> None:
    locked = [each for each in map(trial.order.version, library.names) if each]
    said = ".".join(map(str, version))
    if not locked:
        trial.not_run(
            f"{name} = locked", f"{said} runs, and no lock names another" if trial.order.locked else "no lock"
        )
        return
    same = any(_numbers(each)[: library.parts] == version for each in locked)
    trial.exact(
        f"{name} = locked",
        ok=same,
        told=f"{said} runs, from {path}; locked is {', '.join(locked)}",
        hint="the check `lock` says where it comes from; is there another one on LD_LIBRARY_PATH?",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
