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

#: The C code of both libraries.
_SOURCE: Final = Path(__file__).with_name("driver_source")


def made(folder: Path, without: Collection[str] = ()) -> dict[str, str]:
    """The variables under which the libraries, made into `folder`, are found. without: functions that they lack.

    What they report is in further variables (`says`), and FAULTS has what they do wrong: `cuInit=802`,
    `nvmlDeviceGetName@1=15` for the second GPU; instead of a status `hang`, `ignore` (all signals), `crash`, `exit`,
    `leave` (a process behind) or `kernel` (in a system call on the file STUCK). VALUES has what NVML returns
    unlike a healthy GPU: `width=4`, `uncorrected@1=3`, `links@0=18>17` (before the checks, and in one).
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A function of another name is not found.
    absent = [f"-D{name}=absent_{name}" for name in without]
    for name, source in (("libcuda.so.1", "cuda.c"), ("libnvidia-ml.so.1", "nvml.c")):
        command = ["gcc", "-shared", "-fPIC", "-w", *absent, "-o", str(folder / name), str(_SOURCE / source)]
        subprocess.run(command, check=True, timeout=120)
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
