"""NVIDIA's container toolkit: how a container gets its GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from envspec.doctor.engine import EngineFacts
from envspec.doctor.finding import Finding, State
from envspec.doctor.gpu import GpuFacts
from envspec.doctor.place import Place

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


async def look(place: Place) -> ToolkitFacts:
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


def judge(facts: ToolkitFacts, gpu: GpuFacts, engines: EngineFacts) -> tuple[Finding, ...]:
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
