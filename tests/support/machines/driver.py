"""NVIDIA's driver and its toolkit's hook, both made here: the plumbing is tested, never CUDA or a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.machines.engine import OwnEngine

#: Whether one can be made here.
CAN: Final = shutil.which("gcc") is not None

#: What both libraries share: the card, and faults.
_SHARED: Final = """
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state;
    unsigned health; } Fabric;
typedef struct { unsigned id, scope; long long at, took; unsigned type, status; unsigned long long value; } Field;
typedef struct { void *device; unsigned long long kind, data; unsigned slice, part; } Event;
/* FAULTS has `FUNCTION=KIND` or `FUNCTION@GPU=KIND`, separated by commas: a status, or what the call does instead. */
/* Without its initialisation, or after its end, NVML's calls fail: NVML_ERROR_UNINITIALIZED. */
static int initialised;
static int fault(const char *function, int gpu) {
    char with_gpu[80], *faults = getenv("FAULTS"), *copy, *each, *rest;
    struct stat info;
    if (getenv("DRIVER_CALLS")) {
        int file = open(getenv("DRIVER_CALLS"), O_WRONLY | O_CREAT | O_APPEND, 0600);
        dprintf(file, "%s\\n", function);
        close(file);
    }
    if (!strncmp(function, "nvml", 4) && strcmp(function, "nvmlInit_v2") && !initialised) return 1;
    if (!faults) return 0;
    snprintf(with_gpu, sizeof with_gpu, "%s@%d", function, gpu);
    for (copy = strdup(faults); (each = strtok_r(copy, ",", &rest)); copy = NULL) {
        char *kind = strchr(each, '=');
        *kind++ = 0;
        if (strcmp(each, function) && strcmp(each, with_gpu)) continue;
        if (!strcmp(kind, "hang")) for (;;) pause();
        if (!strcmp(kind, "spin")) for (;;);
        if (!strcmp(kind, "ignore")) {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_BLOCK, &all, NULL);
            for (;;) pause();
        }
        if (!strcmp(kind, "crash")) abort();
        if (!strcmp(kind, "exit")) _exit(0);
        if (!strcmp(kind, "leave")) {
            if (!fork()) { setsid(); signal(SIGTERM, SIG_IGN); for (;;) pause(); }
            for (;;) pause();
        }
        if (!strcmp(kind, "kernel")) { stat(getenv("STUCK"), &info); continue; }
        return atoi(kind);
    }
    return 0;
}
/* VALUES has `NAME=NUMBER` or `NAME@GPU=NUMBER`, separated by commas; a check reads the second of `NUMBER>LATER`. */
static long value(const char *name, int gpu, long standard) {
    char with_gpu[80], *values = getenv("VALUES"), *copy, *each, *rest, *later;
    if (!values) return standard;
    snprintf(with_gpu, sizeof with_gpu, "%s@%d", name, gpu);
    for (copy = strdup(values); (each = strtok_r(copy, ",", &rest)); copy = NULL) {
        char *number = strchr(each, '=');
        *number++ = 0;
        if (strcmp(each, name) && strcmp(each, with_gpu)) continue;
        /* Of the suite's processes, those of checks have this variable. */
        if ((later = strchr(number, '>')) && getenv("CUBLAS_WORKSPACE_CONFIG")) number = later + 1;
        return strtol(number, NULL, 0);
    }
    return standard;
}
#define BEGIN(gpu) { int status = fault(__func__, gpu); if (status) return status; }
#define GPU long gpu = (long)h - 1; BEGIN(gpu)
static int visible(int number) {
    char *chosen = getenv("CUDA_VISIBLE_DEVICES"), *copy, *each, *rest;
    int count = 0;
    if (!chosen) return number < atoi(getenv("GPUS")) ? number : -1;
    for (copy = strdup(chosen); (each = strtok_r(copy, ",", &rest)); copy = NULL) {
        if (*each < '0' || *each > '9' || atoi(each) >= atoi(getenv("GPUS"))) return -1;
        if (count++ == number) return atoi(each);
    }
    return -1;
}
"""
#: Function -> its C code; `gpu` is the number of the GPU that it is about.
_CUDA: Final = {
    "cuInit": "(unsigned flags) { BEGIN(-1) return 0; }",
    "cuDriverGetVersion": '(int *version) { BEGIN(-1) *version = atoi(getenv("CUDA_VERSION")); return 0; }',
    "cuDeviceGetCount": "(int *count) { BEGIN(-1) for (*count = 0; visible(*count) >= 0;) ++*count; return 0; }",
    "cuDeviceGet": "(int *device, int number) { BEGIN(number) *device = visible(number); return 0; }",
    "cuDeviceGetName": '(char *text, int size, int gpu) { BEGIN(gpu) strncpy(text, getenv("CARD"), size); return 0; }',
    "cuDeviceGetUuid_v2": (
        "(unsigned char *uuid, int gpu) { BEGIN(gpu) memset(uuid, 0, 16); uuid[15] = gpu + 1; return 0; }"
    ),
    "cuDeviceGetUuid": (
        "(unsigned char *uuid, int gpu) { BEGIN(gpu) memset(uuid, 0, 16); uuid[15] = gpu + 1; return 0; }"
    ),
    "cuDeviceTotalMem_v2": '(size_t *size, int gpu) { BEGIN(gpu) *size = atoll(getenv("CARD_BYTES")); return 0; }',
    "cuDeviceGetPCIBusId": (
        '(char *text, int size, int gpu) { BEGIN(gpu) snprintf(text, size, "0000:%02x:00.0", gpu + 1); return 0; }'
    ),
    "cuDeviceGetAttribute": (
        '(int *value, int which, int gpu) { BEGIN(gpu) int sm = atoi(getenv("CARD_SM"));'
        ' *value = which == 75 ? sm / 10 : which == 76 ? sm % 10 : atoi(getenv("CARD_UNITS")); return 0; }'
    ),
    "cuGetErrorString": (
        '(int status, const char **text) { *text = status == 100 ? "no CUDA-capable device is detected"'
        ' : status == 802 ? "system not yet initialized" : "unknown error"; return 0; }'
    ),
}
_NVML: Final = {
    "nvmlInit_v2": "(void) { BEGIN(-1) ++initialised; return 0; }",
    "nvmlShutdown": "(void) { BEGIN(-1) --initialised; return 0; }",
    "nvmlSystemGetDriverVersion": (
        '(char *text, unsigned size) { BEGIN(-1) strncpy(text, getenv("DRIVER"), size); return 0; }'
    ),
    "nvmlDeviceGetCount_v2": '(unsigned *count) { BEGIN(-1) *count = atoi(getenv("NVML_GPUS")); return 0; }',
    "nvmlDeviceGetHandleByIndex_v2": (
        "(unsigned gpu, void **handle) { BEGIN(gpu) *handle = (void *)(long)(gpu + 1); return 0; }"
    ),
    "nvmlDeviceGetHandleByPciBusId_v2": (
        "(const char *pci, void **handle) { long gpu = strtol(strchr(pci, ':') + 1, NULL, 16) - 1;"
        " BEGIN(gpu) *handle = (void *)(gpu + 1); return 0; }"
    ),
    "nvmlDeviceGetName": '(void *h, char *text, unsigned size) { GPU strncpy(text, getenv("CARD"), size); return 0; }',
    "nvmlDeviceGetUUID": (
        "(void *h, char *text, unsigned size) { GPU"
        ' snprintf(text, size, "GPU-00000000-0000-0000-0000-%012lx", gpu + 1); return 0; }'
    ),
    "nvmlDeviceGetCudaComputeCapability": (
        '(void *h, int *major, int *minor) { GPU int sm = atoi(getenv("CARD_SM"));'
        " *major = sm / 10; *minor = sm % 10; return 0; }"
    ),
    "nvmlDeviceGetMemoryInfo": (
        '(void *h, unsigned long long *sizes) { GPU sizes[0] = atoll(getenv("CARD_BYTES")); return 0; }'
    ),
    "nvmlDeviceGetMigMode": (
        '(void *h, unsigned *now, unsigned *next) { GPU *now = *next = getenv("MIG") != NULL; return 0; }'
    ),
    "nvmlDeviceGetUtilizationRates": (
        '(void *h, unsigned *rates) { GPU rates[0] = value("busy", gpu, 87); rates[1] = 5; return 0; }'
    ),
    "nvmlDeviceGetClockInfo": "(void *h, int which, unsigned *mhz) { GPU *mhz = which == 1 ? 1980 : 2619; return 0; }",
    "nvmlDeviceGetPowerUsage": "(void *h, unsigned *mw) { GPU *mw = 650000; return 0; }",
    "nvmlDeviceGetTemperature": "(void *h, int which, unsigned *degrees) { GPU *degrees = 61; return 0; }",
    "nvmlDeviceGetCurrentClocksEventReasons": (
        '(void *h, unsigned long long *bits) { GPU *bits = value("reasons", gpu, 4); return 0; }'
    ),
    "nvmlDeviceGetCurrentClocksThrottleReasons": "(void *h, unsigned long long *bits) { GPU *bits = 32; return 0; }",
    "nvmlDeviceGetPciInfo_v3": (
        "(void *h, Pci *pci) { GPU memset(pci, 0, sizeof *pci);"
        ' snprintf(pci->bus_id, 32, "00000000:%02lX:00.0", gpu + 1); return 0; }'
    ),
    "nvmlDeviceGetNvLinkState": (
        '(void *h, unsigned link, unsigned *on) { GPU if (link >= value("all links", gpu, 18)) return 3;'
        ' *on = link < value("links", gpu, 4); return 0; }'
    ),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": (
        "(void *h, unsigned link, Pci *pci) { GPU memset(pci, 0, sizeof *pci);"
        ' strcpy(pci->bus_id, "00000000:A1:00.0"); return 0; }'
    ),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (
        '(void *h, unsigned link, unsigned *type) { GPU *type = 2 * value("switch", gpu, 0); return 0; }'
    ),
    "nvmlDeviceGetNvLinkErrorCounter": (
        "(void *h, unsigned link, int which, unsigned long long *count) { GPU"
        ' *count = link ? 0 : value("link errors", gpu, 0); return 0; }'
    ),
    "nvmlDeviceGetTotalEccErrors": (
        "(void *h, int which, int since, unsigned long long *count) { GPU"
        ' *count = value(which ? "uncorrected" : "corrected", gpu, 0); return 0; }'
    ),
    "nvmlDeviceGetRemappedRows": (
        "(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) { GPU"
        ' *corrected = value("remapped", gpu, 0); *uncorrected = 0; *pending = value("pending", gpu, 0);'
        ' *failed = value("failed", gpu, 0); return 0; }'
    ),
    "nvmlDeviceGetRetiredPagesPendingStatus": (
        '(void *h, unsigned *pending) { GPU *pending = value("retired", gpu, 0); return 0; }'
    ),
    "nvmlDeviceGetFieldValues": (
        "(void *h, int count, Field *field) { GPU field->status = field->id == 274 ? 0 : 3;"
        ' field->value = value("recovery", gpu, 0); return 0; }'
    ),
    "nvmlDeviceGetPcieReplayCounter": '(void *h, unsigned *count) { GPU *count = value("replays", gpu, 0); return 0; }',
    "nvmlDeviceGetMaxPcieLinkGeneration": "(void *h, unsigned *most) { GPU *most = 5; return 0; }",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "(void *h, unsigned *most) { GPU *most = 5; return 0; }",
    "nvmlDeviceGetMaxPcieLinkWidth": "(void *h, unsigned *most) { GPU *most = 16; return 0; }",
    "nvmlDeviceGetPcieThroughput": (
        '(void *h, int way, unsigned *kb) { GPU *kb = value("traffic", gpu, 20000000); return 0; }'
    ),
    "nvmlDeviceGetCurrPcieLinkGeneration": (
        '(void *h, unsigned *now) { GPU *now = value("generation", gpu, 5); return 0; }'
    ),
    "nvmlDeviceGetCurrPcieLinkWidth": '(void *h, unsigned *now) { GPU *now = value("width", gpu, 16); return 0; }',
    "nvmlDeviceGetGpuFabricInfoV": (
        "(void *h, Fabric *fabric) { GPU if (fabric->version != (sizeof(Fabric) | 2 << 24)) return 25;"
        ' fabric->state = value("fabric", gpu, 0); fabric->status = value("fabric status", gpu, 0);'
        ' fabric->health = value("fabric health", gpu, 0xaa); return 0; }'
    ),
    "nvmlDeviceGetPersistenceMode": "(void *h, unsigned *on) { GPU *on = 1; return 0; }",
    "nvmlEventSetCreate": "(void **set) { BEGIN(-1) *set = malloc(1); return 0; }",
    "nvmlDeviceRegisterEvents": "(void *h, unsigned long long kinds, void *set) { GPU return 0; }",
    "nvmlEventSetWait_v2": (
        "(void *set, Event *event, unsigned ms) { BEGIN(-1) static int gpu = -1; while (++gpu < 16) {"
        ' long xid = value("xid", gpu, 0); if (!xid) continue;'
        " event->device = (void *)(long)(gpu + 1); event->kind = 8; event->data = xid; return 0; }"
        " usleep(1000 * ms); return 10; }"
    ),
    "nvmlDeviceGetTopologyCommonAncestor": ("(void *h, void *other, unsigned *level) { GPU *level = 30; return 0; }"),
}
_TEXTS: Final = """
const char *nvmlErrorString(int status) {
    return status == 3 ? "Not Supported" : status == 4 ? "Insufficient Permissions" : status == 15 ? "GPU is lost"
        : status == 9 ? "Driver Not Loaded" : "Unknown Error";
}
"""


def _source(functions: Mapping[str, str], without: Collection[str]) -> str:
    return "\n".join(f"int {name}{code}" for name, code in functions.items() if name not in without)


def made(folder: Path, without: Collection[str] = ()) -> dict[str, str]:
    """The variables under which the libraries, made into `folder`, are found. without: functions that they lack.

    What they report is in further variables (`says`), and FAULTS has what they do wrong: `cuInit=802`,
    `nvmlDeviceGetName@1=15` for the second GPU; instead of a status `hang`, `ignore` (all signals), `crash`, `exit`,
    `leave` (a process behind) or `kernel` (in a system call on the file STUCK). VALUES has what NVML returns
    unlike a healthy GPU: `width=4`, `uncorrected@1=3`, `links@0=18>17` (before the checks, and in one).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, functions, more in (("libcuda.so.1", _CUDA, ""), ("libnvidia-ml.so.1", _NVML, _TEXTS)):
        command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(folder / name)]
        source = _SHARED + _source(functions, without) + more
        subprocess.run(command, input=source, text=True, check=True, timeout=120)
    return {"LD_LIBRARY_PATH": str(folder)}


def says(gpus: int = 1) -> dict[str, str]:
    """The variables by which it shows so many H100, all of them joined and each 87 % busy."""
    return {
        "GPUS": str(gpus),
        "NVML_GPUS": str(gpus),
        "DRIVER": "570.124.06",
        "CUDA_VERSION": "12080",
        "CARD": "NVIDIA H100 80GB HBM3",
        "CARD_SM": "90",
        "CARD_UNITS": "132",
        "CARD_BYTES": "85899345920",
    }


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
