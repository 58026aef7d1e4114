"""GPUs, driver and the CUDA libraries in memory fit the lock."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

from envspec.conformance import hardware
from envspec.conformance.events import CheckContext
from envspec.conformance.libraries import LIBRARIES
from envspec.conformance.results import NotRun


def check(context: CheckContext) -> None:
    """Raises NotRun on the CPU, after it has compared the libraries in memory with the lock."""
    torch = context.load("torch")
    context.ran("python", platform.python_version())
    if torch.version.cuda:
        context.ran("CUDA of torch's build", str(torch.version.cuda))
    if not context.request.cuda:
        _libraries(context)
        raise NotRun("no GPU is requested")
    with context.phase("GPUs"):
        gpus = _gpus(context, torch)
        _nvml(context, gpus)
        for gpu in {(int(each.major), int(each.minor)): each for each in gpus}.values():
            _gpu_code(context, torch, gpu)
    for index in range(len(gpus)):
        with context.phase(f"first kernel on GPU {index}"):
            total = int(torch.arange(1000, device=f"cuda:{index}").sum().item())
        context.exact(f"first kernel on GPU {index}", ok=total == 499_500, detail=f"0 + 1 + ... + 999 = {total}")
    _libraries(context)


def _gpus(context: CheckContext, torch: Any) -> list[Any]:
    shown = hardware.devices()
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    setting = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    context.exact("GPUs", ok=count == shown, detail=f"torch sees {count}, CUDA shows {shown}{setting}")
    gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    for index, gpu in enumerate(gpus):
        context.note(f"GPU {index}", f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}")
        context.measure(f"GPU {index}, memory", gpu.total_memory, "bytes")
    return gpus


def _nvml(context: CheckContext, gpus: list[Any]) -> None:
    """Compare torch's GPUs with NVML's, and the driver with the lock."""
    try:
        with hardware.open_nvml() as nvml:
            driver, listed = nvml.driver(), nvml.gpus()
    except hardware.NoDriver as error:
        context.not_run("the GPUs as NVML sees them", str(error))
        context.not_run("driver", str(error))
        return
    context.ran("driver", driver)
    kinds = {(gpu.name, gpu.compute_capability) for gpu in listed}
    for index, gpu in enumerate(gpus):
        # A slice of a GPU (MIG) has its name, followed by the slice's size.
        found = any(gpu.name.startswith(name) and at == f"{gpu.major}.{gpu.minor}" for name, at in kinds)
        context.exact(f"GPU {index} is one of NVML's", ok=found, detail=f"{gpu.name}; NVML: {sorted(kinds)}")
    whole = not any(" MIG " in gpu.name for gpu in gpus)
    if whole and not {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"} & set(os.environ):
        detail = f"torch sees {len(gpus)} of NVML's {len(listed)}"
        context.exact("every GPU", ok=len(gpus) == len(listed), detail=detail)
    minimum = context.request.locked.minimum_driver if context.request.locked else None
    if minimum:
        context.exact(
            "driver",
            ok=_numbers(driver) >= _numbers(minimum),
            detail=f"driver {driver}; the lock requires {minimum} or newer",
            hint=f"update NVIDIA's driver to {minimum} or newer, or lock an older CUDA",
        )
    else:
        context.not_run("driver", f"no lock sets a minimum; this machine's is {driver}")


def _gpu_code(context: CheckContext, torch: Any, gpu: Any) -> None:
    capability = f"sm_{gpu.major}{gpu.minor}"
    holders = {"the installed torch": tuple(torch.cuda.get_arch_list())}
    for code in context.request.locked.code if context.request.locked else ():
        holders[f"{code.package} {code.version} of the lock"] = (*code.sm, *code.ptx)
    for holder, architectures in holders.items():
        detail = f"{holder} has {' '.join(architectures) or 'no GPU code'}; {gpu.name} is {capability}"
        name = f"GPU code for {capability} of {holder}"
        runs = hardware.runs_any(architectures, (int(gpu.major), int(gpu.minor)))
        if not architectures or (holder.startswith("nvidia-") and not runs):
            # Parts that NVIDIA's own packages lack are mostly parts that torch does not call.
            context.note(name, detail)
        else:
            hint = f"name this GPU in [cuda] gpus and lock again, for a build with code for {capability}"
            context.exact(name, ok=runs, detail=detail, hint=hint)


def _libraries(context: CheckContext) -> None:
    """Compare the versions that CUDA libraries in memory report with the lock."""
    with context.phase("CUDA libraries in memory"):
        for name, library in LIBRARIES.items():
            locked = [each for each in map(context.request.version, library.names) if each]
            finding, mapped = f"{name} = locked", library.mapped()
            if not mapped:
                context.not_run(finding, f"torch has loaded no {library.prefix}")
            for path in mapped:
                version = library.version(path)
                text = ".".join(map(str, version))
                context.ran(name, text)
                if not locked:
                    no_lock = f"{text} runs, and the lock has none" if context.request.locked else "no lock"
                    context.not_run(finding, no_lock)
                    continue
                context.exact(
                    finding,
                    ok=any(_numbers(each)[: library.parts] == version for each in locked),
                    detail=f"{text} runs, from {path}; locked is {', '.join(locked)}",
                    hint="see the check `lock` for its origin; look for another one on LD_LIBRARY_PATH",
                )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
