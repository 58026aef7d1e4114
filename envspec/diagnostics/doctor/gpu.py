"""GPUs, driver and CUDA toolkit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from envspec.diagnostics.doctor.services import EngineFacts
from envspec.diagnostics.doctor.types import Finding, Place, State
from envspec.diagnostics.machine import MachineGpu, Nvml

#: PCI's numbers: the vendor NVIDIA, and the class of display controllers (0x0300 VGA, 0x0302 3D).
_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """pci: NVIDIA display controllers on the bus. module: version of the loaded kernel module. nodes: `/dev/nvidia*`.

    contained: whether this runs in a container.
    """

    system: str
    pci: int
    module: str | None
    nodes: tuple[str, ...]
    contained: bool
    nvml: Nvml

    @property
    def has_gpu(self) -> bool:
        """Whether anything says that there is one."""
        return bool(self.pci or self.module or self.nodes or self.nvml.driver)


def observe_gpus(place: Place) -> GpuFacts:
    """Ask the kernel's files and NVML."""
    devices = sorted((place.root / "sys/bus/pci/devices").glob("*"))
    names = [f"sys/bus/pci/devices/{device.name}" for device in devices]
    nodes = (node.name for node in (place.root / "dev").glob("nvidia*"))
    return GpuFacts(
        system=place.system,
        pci=sum(
            (place.text(f"{name}/vendor") or "").strip() == _NVIDIA
            and (place.text(f"{name}/class") or "").startswith(_DISPLAY)
            for name in names
        ),
        module=_module(place),
        nodes=tuple(sorted(node for node in nodes if re.fullmatch(r"nvidia\d+", node))),
        contained=place.has("/.dockerenv") or place.has("/run/.containerenv"),
        nvml=place.nvml(),
    )


def judge_gpus(facts: GpuFacts) -> tuple[Finding, ...]:
    """Driver first, then GPUs."""
    if facts.system == "darwin":
        return (Finding("NVIDIA driver", State.NOT_APPLICABLE, "macOS has none", ""),)
    if not facts.has_gpu:
        found = "no NVIDIA GPU on this machine"
        todo = "nothing: locks are made here all the same, and `envspec fit --gpu NAME` answers for another machine"
        return (Finding("NVIDIA driver", State.NOT_APPLICABLE, found, todo),)
    return (_driver(facts), _gpus(facts))


def _driver(facts: GpuFacts) -> Finding:
    what, nvml = "NVIDIA driver", facts.nvml
    restart = "restart the machine (or unload and load the nvidia modules): the driver was upgraded since it started"
    if facts.module is None and nvml.driver is None:
        found = f"{facts.pci} NVIDIA GPU(s) on the PCI bus, no kernel module loaded"
        todo = "install NVIDIA's driver on the host; if it is installed, `modprobe nvidia` says why it isn't loaded"
        return Finding(what, State.MISSING, found, todo)
    if nvml.driver is None:
        return _without_nvml(facts, restart)
    if facts.module and facts.module != nvml.driver:
        return Finding(what, State.WARNING, f"kernel module {facts.module}, libraries {nvml.driver}", restart)
    return Finding(what, State.OK, nvml.driver)


def _without_nvml(facts: GpuFacts, restart: str) -> Finding:
    found = f"kernel module {facts.module}; {facts.nvml.problem}"
    if "mismatch" in facts.nvml.problem.lower():
        todo = restart
    elif facts.contained and facts.nodes:
        todo = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    elif facts.contained:
        todo = "start the container with `--gpus all` (docker) or `--device nvidia.com/gpu=all` (podman)"
    else:
        todo = "install the driver's libraries of the same version (libnvidia-ml, libcuda)"
    return Finding("NVIDIA driver", State.WARNING, found, todo)


def _gpus(facts: GpuFacts) -> Finding:
    gpus = facts.nvml.gpus
    if gpus:
        return Finding("GPUs", State.OK, ", ".join(map(_spoken, gpus)))
    if facts.nvml.driver is None:
        return Finding("GPUs", State.MISSING, "none visible without the driver's libraries", "see NVIDIA driver")
    todo = (
        "start the container with `--gpus all`" if facts.contained else "`nvidia-smi -L` and the kernel's log say why"
    )
    return Finding("GPUs", State.MISSING, "the driver shows none", todo)


def _spoken(gpu: MachineGpu) -> str:
    details = []
    if gpu.capability is not None:
        details.append(f"compute capability {gpu.capability}")
    if gpu.memory_mib is not None:
        details.append(f"{gpu.memory_mib / 1024:.0f} GiB")
    return f"{gpu.name} ({', '.join(details)})" if details else gpu.name


def _module(place: Place) -> str | None:
    if version := (place.text("/sys/module/nvidia/version") or "").strip():
        return version
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", place.text("/proc/driver/nvidia/version") or "")
    return found[1] if found else None


#: Where engines read CDI specifications by default (container-device-interface, `SPEC.md`).
_CDI: Final = ("etc/cdi", "var/run/cdi")
_WHAT: Final = "NVIDIA container toolkit"


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """A CDI file for NVIDIA's devices. driver: the version whose libraries it mounts, as far as it says."""

    path: str
    driver: str | None


@dataclass(frozen=True, slots=True)
class ToolkitFacts:
    """version: of nvidia-ctk, None without it. hook: whether the runtime hook is on PATH."""

    version: str | None
    hook: bool
    specs: tuple[CdiSpec, ...]


async def observe_toolkit(place: Place) -> ToolkitFacts:
    """Ask nvidia-ctk and read the CDI folders."""
    version = None
    if place.path_of("nvidia-ctk"):
        done = await place.ask(("nvidia-ctk", "--version"))
        found = re.search(r"\d+(?:\.\d+)+", done.stdout if done else "")
        version = found[0] if found else "version unknown"
    specs = []
    for folder in _CDI:
        for path in sorted((place.root / folder).glob("*")):
            name = f"/{folder}/{path.name}"
            text = place.text(name) if path.suffix in {".yaml", ".yml", ".json"} else None
            if text and "nvidia.com/gpu" in text:
                driver = re.search(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)", text)
                specs.append(CdiSpec(name, driver[1] if driver else None))
    return ToolkitFacts(version, place.path_of("nvidia-container-runtime-hook") is not None, tuple(specs))


def judge_toolkit(facts: ToolkitFacts, gpu: GpuFacts, engines: EngineFacts) -> tuple[Finding, ...]:
    """One finding; a machine without a GPU or inside a container needs no toolkit."""
    if not gpu.has_gpu or gpu.system != "linux":
        return (Finding(_WHAT, State.NOT_APPLICABLE, "for Linux machines with an NVIDIA GPU"),)
    if gpu.contained and not engines.engines:
        return (Finding(_WHAT, State.NOT_APPLICABLE, "in a container: its host has it"),)
    if facts.version is None and not facts.hook:
        todo = "install the package nvidia-container-toolkit on the host, then restart the engine"
        return (Finding(_WHAT, State.MISSING, "neither nvidia-ctk nor its runtime hook", todo),)
    version = facts.version or "only its hook"
    stale = [spec for spec in facts.specs if spec.driver and gpu.module and spec.driver != gpu.module]
    if stale:
        todo = f"`nvidia-ctk cdi generate --output={stale[0].path}`: containers would mount libraries that are gone"
        found = f"{version}; {stale[0].path} is for driver {stale[0].driver}, {gpu.module} is loaded"
        return (Finding(_WHAT, State.WARNING, found, todo),)
    return (_configured(facts, engines, version),)


def _configured(facts: ToolkitFacts, engines: EngineFacts, version: str) -> Finding:
    """Docker finds GPUs by the hook, its `nvidia` runtime or CDI; podman by CDI alone."""
    cdi = ", ".join(spec.path for spec in facts.specs)
    names = {engine.name for engine in engines.engines}
    if "podman" in names and not facts.specs:
        todo = "for podman: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
        return Finding(_WHAT, State.WARNING, f"{version}; no CDI specification", todo)
    runtime = any("nvidia" in engine.runtimes for engine in engines.engines)
    if not facts.hook and not runtime and not facts.specs:
        todo = "`nvidia-ctk runtime configure --runtime=docker`, then restart docker"
        return Finding(_WHAT, State.WARNING, f"{version}; no engine is configured for it", todo)
    ways = [way for way, there in (("hook", facts.hook), ("docker runtime", runtime), (f"CDI {cdi}", cdi)) if there]
    return Finding(_WHAT, State.OK, f"{version}; {', '.join(ways)}")
