"""GPUs, driver and the CUDA libraries in memory fit the lock."""

from __future__ import annotations

import os
import platform
from itertools import permutations
from typing import Any

from envspec.conformance import hardware
from envspec.conformance.bounds import SIZES
from envspec.conformance.events import CheckContext
from envspec.conformance.libraries import LIBRARIES
from envspec.conformance.numerics import distinct_words
from envspec.conformance.requirements import numbers
from envspec.conformance.results import Driver, NotRun
from envspec.conformance.text import named_texts

_INSTALLED = "the installed torch"
_RESET = "see `nvidia-smi -q` and Xid messages in the system log; take the machine out of use and reset the GPU"


def check(context: CheckContext) -> None:
    """Raises NotRun on the CPU, after it has compared the libraries in memory with the lock."""
    torch = context.load("torch")
    context.ran("python", platform.python_version())
    if torch.version.cuda:
        context.ran("CUDA of torch's build", str(torch.version.cuda))
    driver = context.request.driver
    if driver is None:
        _libraries(context)
        raise NotRun("no GPU is requested")
    _compare_driver(context, driver, str(torch.version.cuda or ""))
    _nvml(context, driver)
    with context.phase("GPUs"):
        gpus = _gpus(context, torch, driver)
        _every_gpu(context, driver)
        for gpu in {(int(each.major), int(each.minor)): each for each in gpus}.values():
            _gpu_code(context, torch, gpu)
    for index in range(len(gpus)):
        with context.phase(f"first kernel on GPU {index}"):
            total = int(torch.arange(1000, device=f"cuda:{index}").sum().item())
        context.exact(f"first kernel on GPU {index}", ok=total == 499_500, detail=f"0 + 1 + ... + 999 = {total}")
    _copies(context, torch, len(gpus))
    _libraries(context)


def _compare_driver(context: CheckContext, driver: Driver, torch_cuda: str) -> None:
    """The driver against the lock's minimum; without a lock, against the CUDA that torch is built for.

    A forward compatibility package brings a newer CUDA than the kernel's driver has: then CUDA decides. Without it, a
    driver runs every CUDA of its own major release. Source: NVIDIA, "CUDA Compatibility".
    """
    if driver.version:
        context.ran("driver", driver.version)
    context.ran("CUDA of the driver", driver.cuda)
    locked, as_if = context.request.locked, context.request.as_if
    minimum: str | None = None
    release: str | None = torch_cuda
    if locked:
        minimum, release = locked.minimum_driver, locked.cuda_release
    runs = f"driver {driver.version or 'of an unknown version'}, which runs CUDA {driver.cuda}"
    if as_if and as_if.minimum_driver:
        context.note("driver of the lock", f"{as_if.name} requires {as_if.minimum_driver} or newer")
    if minimum:
        ok = bool(driver.version) and numbers(driver.version) >= numbers(minimum)
        detail = f"{runs}; the lock requires {minimum} or newer"
        if release:
            ok = ok or numbers(driver.cuda) >= numbers(release)[:2]
            detail += f", or CUDA {release}"
        hint = f"update NVIDIA's driver to {minimum} or newer, or lock an older CUDA"
        context.exact("driver", ok=ok, detail=detail, hint=hint)
    elif release:
        context.exact(
            "driver",
            ok=numbers(driver.cuda)[:1] >= numbers(release)[:1],
            detail=f"{runs}; the stack is built for CUDA {release}",
            hint="update NVIDIA's driver, or install a torch that is built for an older CUDA",
        )
    else:
        context.not_run("driver", f"nothing sets a minimum; this machine has {runs}")


def _nvml(context: CheckContext, driver: Driver) -> None:
    """What NVML reports of each GPU: a field that has an error is a fault, a field that is lacking is not."""
    if driver.nvml_error:
        context.exact("NVML", ok=False, detail=driver.nvml_error, hint=_RESET)
    elif driver.nvml_missing:
        context.not_run("the GPUs as NVML sees them", driver.nvml_missing)
    for board in driver.boards:
        name = f"GPU {board.index} of NVML"
        if board.hidden:
            context.note(name, "this container or user may not use it")
            continue
        errors = named_texts(board.errors)
        context.exact(name, ok=not errors, detail=errors or f"{board.name} at {board.pci}", hint=_RESET)
        if board.lacking:
            context.not_run(f"{name}: {', '.join(board.lacking)}", named_texts(board.lacking))


def _gpus(context: CheckContext, torch: Any, driver: Driver) -> list[Any]:
    """Compare torch's GPUs with CUDA's; return torch's."""
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    context.exact("GPUs", ok=count == len(driver.gpus), detail=f"torch sees {count}, CUDA shows {len(driver.gpus)}")
    gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    addresses = {each.pci for each in driver.boards} - {""}
    uuids = {each.uuid for each in driver.boards}
    for gpu, shown in zip(gpus, driver.gpus):
        name = f"GPU {shown.index}"
        context.note(name, f"{shown.name}, compute capability {shown.compute_capability}, {shown.pci}, {shown.uuid}")
        context.measure(f"{name}, memory", shown.memory_bytes, "bytes")
        found = (gpu.name, f"{gpu.major}.{gpu.minor}", gpu.multi_processor_count)
        right = (shown.name, shown.compute_capability, shown.multiprocessors)
        # torch reports the UUID from 2.5 on; of a slice (MIG) it may be that of the whole GPU.
        is_slice = shown.uuid.startswith("MIG-")
        same = found == right and (is_slice or str(getattr(gpu, "uuid", shown.uuid)) in shown.uuid)
        context.exact(f"{name} is CUDA's", ok=same, detail=f"torch: {found}; CUDA: {right}, {shown.uuid}")
        if addresses:
            ok = shown.pci in addresses or shown.uuid in uuids
            detail = f"{shown.pci}; NVML: {', '.join(sorted(addresses))}"
            context.exact(f"{name} is one of NVML's", ok=ok, detail=detail)
    return gpus


def _every_gpu(context: CheckContext, driver: Driver) -> None:
    """CUDA shows every GPU that this process may use, or that CUDA_VISIBLE_DEVICES names.

    NVML in a container lists the GPUs that the container was given, whatever NVIDIA_VISIBLE_DEVICES is.
    """
    name, shown = "every GPU", len(driver.gpus)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    usable = [each for each in driver.boards if not each.hidden]
    if any(each.mig for each in usable):
        context.not_run(name, "a GPU is divided into slices (MIG), of which CUDA shows one")
    elif visible is not None:
        # The first entry that is not valid ends the list.
        detail = f"CUDA_VISIBLE_DEVICES is {visible!r}, and CUDA shows {shown}"
        hint = "name only GPUs that exist, each of them once"
        context.exact(name, ok=shown == len(visible.split(",")), detail=detail, hint=hint)
    elif driver.boards:
        detail = f"CUDA shows {shown} of NVML's {len(usable)}"
        context.exact(name, ok=shown == len(usable), detail=detail, hint=_RESET)
    else:
        context.not_run(name, driver.nvml_error or driver.nvml_missing or "NVML lists no GPU")


def _copies(context: CheckContext, torch: Any, count: int) -> None:
    """Copy from each GPU to each other one, and compare every word."""
    name = "copies between GPUs"
    if count < 2:
        context.not_run(name, "there is one GPU")
        return
    words = SIZES["device.copy_bytes"] // 8
    pairs = list(permutations(range(count), 2))
    wrong = []

    def pattern(source: int, at: int) -> Any:
        return distinct_words(torch, words, f"cuda:{at}") + source

    with context.phase(name):
        sent: dict[int, Any] = {}
        for source, target in pairs:
            if source not in sent:
                sent = {source: pattern(source, source)}
            different = int((sent[source].to(f"cuda:{target}") != pattern(source, target)).sum())
            if different:
                wrong.append(f"{source} to {target}: {different} of {words} words")
        direct = sum(bool(torch.cuda.can_device_access_peer(one, other)) for one, other in pairs)
    size = f"{words * 8 >> 20} MiB"
    detail = "; ".join(wrong) or f"{len(pairs)} ordered pairs, {size} each, {direct} of them with direct access"
    hint = "switch the IOMMU and PCIe ACS off, or set NCCL_P2P_DISABLE=1: they are known to break direct copies"
    context.exact(name, ok=not wrong, detail=detail, hint=hint)


def _gpu_code(context: CheckContext, torch: Any, gpu: Any) -> None:
    capability = f"sm_{gpu.major}{gpu.minor}"
    holders = {_INSTALLED: tuple(torch.cuda.get_arch_list())}
    for each in context.request.reference_or_empty.code:
        holders[f"{each.package} {each.version} of the lock"] = (*each.sm, *each.ptx)
    for holder, architectures in holders.items():
        code = f"code for {' '.join(architectures)}" if architectures else "no GPU code"
        detail = f"{holder} has {code}; {gpu.name} is {capability}"
        name = f"GPU code for {capability} of {holder}"
        runs = hardware.runs_any(architectures, (int(gpu.major), int(gpu.minor)))
        if not architectures or (holder.startswith("nvidia-") and not runs):
            # Parts that NVIDIA's own packages lack are mostly parts that torch does not call.
            context.note(name, detail)
        else:
            hint = f"name this GPU in [cuda] gpus and lock again, for a build with code for {capability}"
            found = context.exact if holder == _INSTALLED else context.as_locked
            found(name, ok=runs, detail=detail, hint=hint)


def _libraries(context: CheckContext) -> None:
    """Compare the versions that CUDA libraries in memory report with the lock."""
    with context.phase("CUDA libraries in memory"):
        for name, library in LIBRARIES.items():
            packages = context.request.reference_or_empty.packages
            locked = [packages[each] for each in library.names if each in packages]
            finding, mapped = f"{name} = locked", library.mapped()
            if not mapped:
                context.not_run(finding, f"torch has loaded no {library.prefix}")
            for path in mapped:
                try:
                    version = library.version(path)
                except (OSError, AttributeError) as error:
                    context.not_run(finding, f"{path}: {error}")
                    continue
                text = ".".join(map(str, version))
                context.ran(name, text)
                if not locked:
                    no_lock = f"{text} runs, and the lock has none" if context.request.reference else "no lock"
                    context.not_run(finding, no_lock)
                    continue
                context.as_locked(
                    finding,
                    ok=any(numbers(each)[: library.parts] == version for each in locked),
                    detail=f"{text} runs, from {path}; locked is {', '.join(locked)}",
                    hint="see the check `libraries` for its origin; look for another one on LD_LIBRARY_PATH",
                )
