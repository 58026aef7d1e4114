"""Driver, GPUs, NVIDIA's toolkit; disk, shared memory, Python, settings."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.conformance.nvml import module_version, pci_gpus
from envspec.diagnostics.doctor.services import EngineStatus
from envspec.diagnostics.doctor.types import DoctorContext, DoctorFinding, FindingState
from envspec.diagnostics.machine import MachineGpu, NvmlReading

#: Default folders of CDI specifications (container-device-interface, `SPEC.md`).
_CDI: Final = ("etc/cdi", "var/run/cdi")
_DRIVER: Final = "NVIDIA driver"
_TOOLKIT: Final = "NVIDIA container toolkit"


class GpuState(Struct, frozen=True):
    """pci: NVIDIA display controllers on the bus. module: version of the kernel module. nodes: `/dev/nvidia*`."""

    system: str
    pci: int
    module: str | None
    nodes: tuple[str, ...]
    is_container: bool
    nvml: NvmlReading

    @property
    def has_gpu(self) -> bool:
        """Whether there is any sign of one."""
        return bool(self.pci or self.module or self.nodes or self.nvml.driver)


def read_gpus(context: DoctorContext) -> GpuState:
    nodes = sorted(node.name for node in (context.root / "dev").glob("nvidia*"))
    version = context.text("/sys/module/nvidia/version").strip()
    return GpuState(
        system=context.system,
        pci=len(pci_gpus(context.root)),
        module=version or module_version(context.root / "proc/driver/nvidia/version") or None,
        nodes=tuple(filter(re.compile(r"nvidia\d+").fullmatch, nodes)),
        is_container=any((context.root / mark).exists() for mark in (".dockerenv", "run/.containerenv")),
        nvml=context.nvml(),
    )


def gpu_findings(state: GpuState) -> tuple[DoctorFinding, ...]:
    """Driver first, then GPUs."""
    if state.system == "darwin":
        return (DoctorFinding(_DRIVER, FindingState.NOT_APPLICABLE, "macOS has none"),)
    if not state.has_gpu:
        todo = "nothing: locking needs no GPU, and `envspec fit --gpu NAME` checks a lock for another machine"
        return (DoctorFinding(_DRIVER, FindingState.NOT_APPLICABLE, "no NVIDIA GPU on this machine", todo),)
    return (_driver(state), _gpus(state))


def _driver(state: GpuState) -> DoctorFinding:
    nvml = state.nvml
    restart = "restart the machine (or unload and load the nvidia modules): the driver was upgraded since it started"
    if nvml.driver is not None:
        if state.module and state.module != nvml.driver:
            found = f"kernel module {state.module}, libraries {nvml.driver}"
            return DoctorFinding(_DRIVER, FindingState.WARNING, found, restart)
        return DoctorFinding(_DRIVER, FindingState.OK, nvml.driver)
    if state.module is None:
        found = f"{state.pci} NVIDIA GPU(s) on the PCI bus, no kernel module loaded"
        todo = (
            "install NVIDIA's driver on the host; if it is installed, run `modprobe nvidia` to see why it isn't loaded"
        )
        return DoctorFinding(_DRIVER, FindingState.MISSING, found, todo)
    if "mismatch" in nvml.problem.lower():
        todo = restart
    elif state.is_container and state.nodes:
        todo = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    elif state.is_container:
        todo = "start the container with `--gpus all` (docker) or `--device nvidia.com/gpu=all` (podman)"
    else:
        todo = "install the driver's libraries of the same version (libnvidia-ml, libcuda)"
    return DoctorFinding(_DRIVER, FindingState.WARNING, f"kernel module {state.module}; {nvml.problem}", todo)


def _gpus(state: GpuState) -> DoctorFinding:
    if state.nvml.gpus:
        return DoctorFinding("GPUs", FindingState.OK, ", ".join(map(_describe, state.nvml.gpus)))
    if state.nvml.driver is None:
        found = "none visible without the driver's libraries"
        return DoctorFinding("GPUs", FindingState.MISSING, found, "see NVIDIA driver")
    todo = "see `nvidia-smi -L` and the kernel's log"
    if state.is_container:
        todo = "start the container with `--gpus all`"
    return DoctorFinding("GPUs", FindingState.MISSING, "the driver shows none", todo)


def _describe(gpu: MachineGpu) -> str:
    details = []
    if gpu.capability is not None:
        details.append(f"compute capability {gpu.capability}")
    if gpu.memory_mib is not None:
        details.append(f"{gpu.memory_mib / 1024:.0f} GiB")
    return f"{gpu.name} ({', '.join(details)})" if details else gpu.name


async def toolkit_version(context: DoctorContext) -> str | None:
    """Of nvidia-ctk; None if it is not installed."""
    if not context.path_of("nvidia-ctk"):
        return None
    return await context.version("nvidia-ctk") or "version unknown"


def toolkit_finding(
    context: DoctorContext, version: str | None, gpu: GpuState, engines: Sequence[EngineStatus]
) -> DoctorFinding:
    """version: of nvidia-ctk. Docker finds GPUs by the hook, its `nvidia` runtime or CDI; podman by CDI alone."""
    if not gpu.has_gpu or gpu.system != "linux":
        return DoctorFinding(_TOOLKIT, FindingState.NOT_APPLICABLE, "for Linux machines with an NVIDIA GPU")
    if gpu.is_container and not engines:
        return DoctorFinding(_TOOLKIT, FindingState.NOT_APPLICABLE, "in a container: its host has it")
    hook = context.path_of("nvidia-container-runtime-hook") is not None
    if version is None and not hook:
        todo = "install the package nvidia-container-toolkit on the host, then restart the engine"
        return DoctorFinding(_TOOLKIT, FindingState.MISSING, "neither nvidia-ctk nor its runtime hook", todo)
    version = version or "only its hook"
    specs = _cdi_specs(context)
    for path, driver in specs.items():
        if driver and gpu.module and driver != gpu.module:
            todo = f"`nvidia-ctk cdi generate --output={path}`: containers would mount libraries that do not exist"
            found = f"{version}; {path} is for driver {driver}, {gpu.module} is loaded"
            return DoctorFinding(_TOOLKIT, FindingState.WARNING, found, todo)
    if not specs and any(engine.name == "podman" for engine in engines):
        todo = "for podman: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
        return DoctorFinding(_TOOLKIT, FindingState.WARNING, f"{version}; no CDI specification", todo)
    runtime = any("nvidia" in engine.runtimes for engine in engines)
    ways = ["hook"] * hook + ["docker runtime"] * runtime + [f"CDI {', '.join(specs)}"] * bool(specs)
    if not ways:
        todo = "`nvidia-ctk runtime configure --runtime=docker`, then restart docker"
        return DoctorFinding(_TOOLKIT, FindingState.WARNING, f"{version}; no engine is configured for it", todo)
    return DoctorFinding(_TOOLKIT, FindingState.OK, f"{version}; {', '.join(ways)}")


def _cdi_specs(context: DoctorContext) -> dict[str, str | None]:
    """CDI files for NVIDIA's devices -> the driver version whose libraries they mount, if they name it."""
    specs = {}
    for folder in _CDI:
        for path in sorted((context.root / folder).glob("*")):
            if path.suffix not in {".yaml", ".yml", ".json"}:
                continue
            name = f"/{folder}/{path.name}"
            text = context.text(name)
            if "nvidia.com/gpu" in text:
                driver = re.search(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)", text)
                specs[name] = driver[1] if driver else None
    return specs


_GIB: Final = 2**30
#: Docker gives a container 64 MB, which NCCL and DataLoader workers use up (NVIDIA/nccl issue 342).
_ENOUGH_SHM: Final = _GIB
#: A torch stack with PyG is 7.8 GB unpacked (measured 2026-11-20), beside its wheels.
_ENOUGH_DISK: Final = 20 * 10**9


def _disk(context: DoctorContext) -> DoctorFinding:
    disk = context.space(context.cache)
    if disk is None:
        found = f"the space at {context.cache} can't be read"
        return DoctorFinding("disk", FindingState.WARNING, found, "name another ENVSPEC_CACHE_DIR")
    found = f"{_size(disk.free_bytes)} free at {context.cache}"
    if disk.free_bytes >= _ENOUGH_DISK:
        return DoctorFinding("disk", FindingState.OK, found, "")
    todo = "a torch stack is 8 GB (locking alone needs less than 1): make room or name another ENVSPEC_CACHE_DIR"
    return DoctorFinding("disk", FindingState.WARNING, found, todo)


def system_findings(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield _shm(context)
    if problem := context.open_cache():
        yield DoctorFinding("cache", FindingState.MISSING, problem.message, problem.hint or "")
    else:
        yield _disk(context)
    python = context.python
    text, todo = f"{python.version}, {python.executable}", ""
    if python.virtual:
        text += ", a virtual environment"
    elif python.managed:
        todo = "its packages belong to the system: install envspec into a virtual environment"
    yield DoctorFinding("Python", FindingState.OK, text, todo)


def _shm(context: DoctorContext) -> DoctorFinding:
    what = "shared memory"
    if context.system != "linux":
        return DoctorFinding(what, FindingState.NOT_APPLICABLE, "for Linux only")
    todo = "start the container with `--shm-size=8g` or `--ipc=host`: training on several GPUs fails without"
    path = context.root / "dev/shm"
    shm = context.space(path) if path.is_dir() else None
    if shm is None:
        return DoctorFinding(what, FindingState.MISSING, "there is no /dev/shm", todo)
    found = f"{_size(shm.total_bytes)} in /dev/shm"
    if shm.total_bytes < _ENOUGH_SHM:
        return DoctorFinding(what, FindingState.WARNING, found, todo)
    return DoctorFinding(what, FindingState.OK, found)


async def uv_finding(context: DoctorContext) -> DoctorFinding:
    path = context.uv()
    version = await context.version(path) if path else None
    if not version:
        todo = "install envspec again: uv is one of its dependencies"
        return DoctorFinding("uv", FindingState.MISSING, "its program is missing or can't be run", todo)
    return DoctorFinding("uv", FindingState.OK, version)


def _size(size_bytes: int) -> str:
    """`64 MiB`, `23.5 GiB`."""
    return f"{size_bytes / 2**20:.0f} MiB" if size_bytes < _GIB else f"{size_bytes / _GIB:.1f} GiB"


#: Settings that change which packages are found.
_SOURCES: Final = ("index", "index_url", "extra_index_url", "default_index", "find_links", "no_index", "constraint")
#: Variables that change no result.
_HARMLESS: Final = ("PIP_DISABLE_PIP_VERSION_CHECK", "PIP_DEFAULT_TIMEOUT", "PIP_CERT", "PIP_NO_INPUT", "PIP_NO_COLOR")


def configuration_finding(context: DoctorContext) -> DoctorFinding:
    """A warning if the machine names other sources of packages, which need `[[pip.index]]`.

    Only names of settings: their values may contain passwords.
    """
    what, settings = "settings of pip and uv", []
    for name, value in sorted(context.environ.items()):
        if value and name.startswith(("PIP_", "UV_")) and name not in _HARMLESS:
            settings.append(name)
    found = list(settings)
    for path in dict.fromkeys(_files(context)):
        if path.is_file():
            names = _settings(path)
            found.append(f"{path} ({', '.join(names)})" if names else str(path))
            settings += names
    if not found:
        return DoctorFinding(what, FindingState.OK, "none that matters")
    if any(map(_is_source, settings)):
        todo = "envspec ignores them; packages of these sources need a [[pip.index]] in the spec"
        return DoctorFinding(what, FindingState.WARNING, f"ignored: {'; '.join(found)}", todo)
    return DoctorFinding(what, FindingState.OK, f"ignored: {'; '.join(found)}")


def _is_source(setting: str) -> bool:
    return setting.lower().replace("-", "_").removeprefix("pip_").removeprefix("uv_") in _SOURCES


def _files(context: DoctorContext) -> Iterator[Path]:
    """Configuration files of pip (its user guide, "Configuration files") and uv (its "Configuration files")."""
    environ, home, root = context.environ, context.home, context.root
    for variable in ("PIP_CONFIG_FILE", "UV_CONFIG_FILE"):
        if (named := environ.get(variable)) and named != "/dev/null":
            yield Path(named)
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    shared = list(map(Path, filter(None, environ.get("XDG_CONFIG_DIRS", "").split(":"))))
    for folder in shared or [root / "etc/xdg"]:
        yield from (folder / "pip" / "pip.conf", folder / "uv" / "uv.toml")
    yield from (root / "etc/pip.conf", root / "etc/uv/uv.toml", home / ".pip" / "pip.conf")
    yield from (user / "pip" / "pip.conf", user / "uv" / "uv.toml", context.prefix / "pip.conf")
    yield from (home / "Library" / "Application Support" / "pip" / "pip.conf", home / "pip" / "pip.ini")


def _settings(path: Path) -> tuple[str, ...]:
    """The names of a file's settings; none if it can't be parsed."""
    from envspec import documents

    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            document = documents.parse_toml(text)
            return tuple(sorted({*document, *documents.table_of(document, "pip")} - {"pip"}))
        parser = configparser.RawConfigParser()
        parser.read_string(text)
    except (OSError, ValueError, configparser.Error):
        return ()
    names = set()
    for section in parser.sections():
        names.update(parser.options(section))
    return tuple(sorted(names))
