"""Jobs that run the conformance suite on the nodes of a cluster, and the comparison of their receipts."""

from __future__ import annotations

import base64
import io
import json
import shlex
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

import envspec.conformance
import envspec.verifier
from envspec.conformance.selection import SuiteSelection
from envspec.context import Context
from envspec.data import read_template
from envspec.diagnostics.machine import this_platform
from envspec.errors import UsageError
from envspec.escaping import one_line
from envspec.io.files import read_untrusted, replace_user_file, write_file
from envspec.models import Lock, Platform
from envspec.operations.conformance import local_python, lock_name, suite_request
from envspec.receipts.fleet import Fleet, FleetNode, fleet
from envspec.receipts.model import RECEIPT_FILE, BadReceipt, LockName, Receipt, load
from envspec.registry.reference import parse
from envspec.structs import replace
from envspec.version import VERSION

#: In a folder of receipts: the nodes of the run, one on a line.
NODES_FILE: Final = "nodes.txt"
#: In a node's folder: what it did together with other nodes.
TOGETHER: Final = "together"
#: In a folder of receipts: what the nodes read.
_SHARED: Final = ".envspec"
#: Checks whose ranks can be on several nodes.
_DISTRIBUTED: Final = ("ddp", "fsdp")
#: Of all data of a ConfigMap. Source: kubernetes.io, "ConfigMaps".
_CONFIG_MAP_BYTES: Final = 1 << 20
#: Of a receipt, or of the list of nodes: a hundred times as many as they have.
_MOST_BYTES: Final = 64 << 20


class FleetJob(Struct, frozen=True):
    """A run on the nodes of a cluster.

    minutes: time limit of a node.
    receipts: Slurm: the folder for the receipts, which all nodes share.
    python: Slurm: the command that starts the stack's Python on a node; None for the active environment's.
    image: Kubernetes: a reference that the nodes can pull.
    gpus: Kubernetes: GPUs of a pod; 0 for a stack without.
    nodes: Kubernetes: how many nodes, which then train together; 0 for every node, each alone.
    """

    minutes: int = 60
    receipts: Path | None = None
    python: str | None = None
    image: str | None = None
    gpus: int | None = None
    nodes: int = 0


def job_text(
    scheduler: str, lock: Lock, sha256: str, selection: SuiteSelection, job: FleetJob, context: Context
) -> str:
    """The script or the objects that run the suite on the nodes of a cluster.

    scheduler: a key of SCHEDULERS. sha256: of envspec.lock. For Slurm, the suite is written into the folder of
    receipts.

    Raises:
        UsageError: an option that the scheduler needs is missing, or a check does not exist.
        UnfitMachine: the suite does not run on the lock's platform.
    """
    return SCHEDULERS[scheduler](lock, sha256, selection, job, context)


def _slurm(lock: Lock, sha256: str, selection: SuiteSelection, job: FleetJob, context: Context) -> str:
    if job.receipts is None:
        raise UsageError("nodes of Slurm write their receipts into a folder that they share", hint="add --receipts DIR")
    receipts = job.receipts.absolute()
    request = suite_request(lock, selection, this_platform())
    together = tuple(name for name in request.checks if name in _DISTRIBUTED)
    required = tuple(name for name in request.required if name in together)
    name = lock_name(lock, sha256)
    files = {
        "suite.pyz": suite_file(),
        "request.json": _request_json(request, name),
        "together.json": _request_json(replace(request, checks=together, required=required, named=together), name),
    }
    for file, content in files.items():
        _write(receipts / _SHARED / file, content)
    python = job.python or shlex.quote(str(local_python(context.environ, None)))
    values = {"name": lock.name, "receipts": receipts, "minutes": job.minutes, "together": together}
    return read_template("jobs/slurm.sh").render(suite=f"{python} .envspec/suite.pyz", **values)


def _kubernetes(lock: Lock, sha256: str, selection: SuiteSelection, job: FleetJob, context: Context) -> str:  # noqa: ARG001 (as for all)
    if job.image is None:
        raise UsageError(
            "nodes of Kubernetes pull an image",
            hint="`envspec image build LOCK --push REGISTRY/NAME:TAG`, then --image REGISTRY/NAME:TAG",
        )
    if job.gpus is None:
        raise UsageError("Kubernetes assigns GPUs only to pods that request them", hint="add --gpus-per-node 8, or 0")
    image = parse(job.image)
    if image.scheme:
        raise UsageError(f"{job.image}: nodes can't be given a scheme", hint="leave it out")
    platform = next(iter(lock.linux_platforms), Platform.LINUX_64)
    request = suite_request(lock, selection, platform)
    document = _request_json(request, lock_name(lock, sha256))
    suite = suite_file()
    if len(suite) + len(document) > _CONFIG_MAP_BYTES:
        raise UsageError(
            f"the suite and its request have {len(suite) + len(document)} bytes, a ConfigMap at most 1 MiB",
            hint="lock fewer packages, or run the suite without the lock",
        )
    return read_template("jobs/kubernetes.yaml").render(
        name=lock.name,
        id="envspec-conformance",
        image=str(image),
        nodes=job.nodes,
        gpus=job.gpus,
        minutes=job.minutes,
        request=document.decode(),
        suite=base64.b64encode(suite).decode(),
    )


#: Scheduler -> what writes its job.
SCHEDULERS: Final[Mapping[str, Callable[[Lock, str, SuiteSelection, FleetJob, Context], str]]] = {
    "slurm": _slurm,
    "kubernetes": _kubernetes,
}


def _request_json(request: Any, lock: LockName) -> bytes:
    """What `--request` of the suite's file reads."""
    return json.dumps({"request": asdict(request), "lock": lock.model_dump()}).encode()


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}", hint="name another folder") from error


def read_fleet(folder: Path) -> Fleet:
    """What the nodes of a run, with receipts in folders of their names, say about each other.

    A node of nodes.txt is lost if it has no receipt that can be read. Without nodes.txt, the nodes are the folders that
    have a receipt.

    Raises:
        UsageError: the folder has no receipt.
    """
    folders = {each.name for each in folder.iterdir() if each.is_dir()}
    names = set(_read_names(folder))
    for receipt in folder.glob(f"*/{RECEIPT_FILE}"):
        names.add(receipt.parent.name)
    if not names:
        raise UsageError(f"{folder} has no receipts", hint="name a folder with NODE/receipt.json in it")
    nodes = [_node(folder, name) for name in names & folders]
    # A name in nodes.txt may be any text: none of them leads to another folder.
    nodes += [FleetNode(name, None, "no receipt") for name in names - folders]
    return fleet(nodes)


def _read_names(folder: Path) -> list[str]:
    path = folder / NODES_FILE
    try:
        text = read_untrusted(path, _MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path} can't be read: {why}", hint="write the names of the nodes, one on a line") from error
    return text.split()


def _node(folder: Path, name: str) -> FleetNode:
    receipt, problem = _read(folder / name)
    with_others = folder / name / TOGETHER
    if not with_others.is_dir():
        return FleetNode(name, receipt, problem)
    together, problem_together = _read(with_others)
    return FleetNode(name, receipt, problem, together, problem_together)


def _read(folder: Path) -> tuple[Receipt | None, str]:
    """The receipt in a folder, or why there is none."""
    path = folder / RECEIPT_FILE
    try:
        return load(read_untrusted(path, _MOST_BYTES).decode("utf-8"), str(path)), ""
    except FileNotFoundError:
        return None, "no receipt"
    except OSError as error:
        return None, f"its receipt can't be read: {error.strerror}"
    except BadReceipt as error:
        return None, one_line(error.message)
    except (ValueError, RecursionError) as error:
        return None, one_line(f"its receipt is not valid: {error}")


_SHEBANG: Final = b"#!/usr/bin/env python3\n"
#: It is unpacked at its start: processes of checks start faster from files than from an archive, 16 of them in a run.
_MAIN: Final = """\
import sys

if sys.version_info < (3, 9):
    sys.exit("envspec-conformance needs Python 3.9 or newer; this is " + sys.version.split()[0])

import os
import tempfile
import zipfile

with tempfile.TemporaryDirectory(prefix="envspec-suite-") as folder:
    zipfile.ZipFile(sys.path[0]).extractall(folder)
    program = os.path.basename(sys.argv[0])
    sys.path[0] = folder
    from envspec.conformance.main import main

    status = main(sys.argv[1:], "{version}", program)
sys.exit(status)
"""
#: The earliest time that a zip has: the same suite gives the same bytes.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def suite_file() -> bytes:
    """The bytes of the file."""
    contents = {"__main__.py": _MAIN.replace("{version}", VERSION).encode(), "envspec/__init__.py": b""}
    for package in (envspec.conformance, envspec.verifier):
        folder = Path(package.__path__[0])
        for path in folder.rglob("*.py"):
            contents[f"envspec/{folder.name}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    packed = io.BytesIO()
    packed.write(_SHEBANG)
    # Uncompressed: compressed bytes depend on the version of zlib.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, contents[name])
    return packed.getvalue()


def write_suite_file(path: Path) -> Path:
    """Write the file, executable.

    Raises:
        UsageError: it can't be written.
    """
    replace_user_file(path, suite_file())
    path.chmod(0o755)
    return path
