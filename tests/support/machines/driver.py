"""NVIDIA's driver and its toolkit's hook, both made here: the plumbing is tested, never CUDA or a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.machines.engine import OwnEngine

#: Whether one can be made here.
CAN: Final = shutil.which("gcc") is not None

_CUDA: Final = """
#include <stdlib.h>
int cuInit(unsigned flags) { return atoi(getenv("CUDA_SAYS")); }
int cuDeviceGetCount(int *count) { *count = atoi(getenv("GPUS")); return 0; }
int cuGetErrorString(int status, const char **text) { *text = "no CUDA-capable device is detected"; return 0; }
"""
_NVML: Final = """
#include <stdlib.h>
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return "Not Supported"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, getenv("DRIVER"), size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = atoi(getenv("NVML_GPUS")); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void *h, char *text, unsigned size) { strncpy(text, "NVIDIA H100 80GB HBM3", size); return 0; }
int nvmlDeviceGetUUID(void *h, char *text, unsigned size) { strncpy(text, "GPU-1", size); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *sizes) { sizes[0] = 85899345920ull; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, unsigned *rates) { rates[0] = 87; rates[1] = 5; return 0; }
int nvmlDeviceGetPciInfo_v3(void *h, Pci *pci) { memset(pci, 0, sizeof *pci); *pci->bus_id = '0' + (long)h; return 0; }
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *on) { *on = link < 4; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, Pci *pci) { memset(pci, 0, sizeof *pci); return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *level) { *level = 30; return 0; }
"""


def made(folder: Path) -> dict[str, str]:
    """The variables under which the libraries, made into `folder`, are found."""
    for name, source in (("libcuda.so.1", _CUDA), ("libnvidia-ml.so.1", _NVML)):
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name)]
        subprocess.run(command, input=source, text=True, check=True, timeout=120)
    return {"LD_LIBRARY_PATH": str(folder)}


def says(gpus: int = 1) -> dict[str, str]:
    """The variables by which it shows so many H100, all of them joined and each 87 % busy."""
    return {"CUDA_SAYS": "0", "GPUS": str(gpus), "NVML_GPUS": str(gpus), "DRIVER": "570.124.06"}


HOOK: Final = "nvidia-container-runtime-hook"
_SEEN: Final = "hook-*.json"
#: An OCI hook gets the container's state on its input; its bundle has the settings (OCI runtime specification, Hooks).
_SCRIPT: Final = """#!{interpreter} -I
import json, os, pathlib, sys
state = json.load(sys.stdin)
settings = json.loads(pathlib.Path(state["bundle"], "config.json").read_text())
seen = {{"words": sys.argv[1:], "container": state["id"], "environ": settings["process"]["env"]}}
pathlib.Path(__file__).resolve().parent.with_name(f"hook-{{os.getpid()}}.json").write_text(json.dumps(seen))
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One call. words: its arguments. container: the container's id. environ: what its process is given."""

    words: tuple[str, ...]
    container: str
    environ: Mapping[str, str]


def recording() -> str:
    """The text of the hook, for `own_engine`."""
    return _SCRIPT.format(interpreter=sys.executable)


def records(engine: OwnEngine) -> list[Record]:
    """What the hook was called with so far, in order of time."""
    paths = sorted(engine.folder.glob(_SEEN), key=lambda path: path.stat().st_mtime_ns)
    return [_record(json.loads(path.read_text())) for path in paths]


def _record(seen: Mapping[str, list[str]]) -> Record:
    environ = dict(line.split("=", 1) for line in seen["environ"])
    return Record(tuple(seen["words"]), str(seen["container"]), environ)
