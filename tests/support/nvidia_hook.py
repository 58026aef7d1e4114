"""A stand-in for the NVIDIA toolkit's hook that notes what the engine hands it: the plumbing of `--gpus`, never CUDA.

An engine offers GPUs where an executable of this name is on the daemon's PATH at its start (moby,
daemon/nvidia_linux.go), and runs it before a container that was given a DeviceRequest.

    with own_engine({HOOK: recording()}) as engine:
        ...
        assert records(engine)[0].environ["NVIDIA_VISIBLE_DEVICES"] == "all"
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.engine import OwnEngine

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
