"""Lock to conformance suite on the nodes of a cluster, to a folder of receipts, to a comparison of the nodes."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, Protocol

from envspec.context import Context
from envspec.diagnostics.machine import this_platform
from envspec.errors import UsageError
from envspec.escaping import one_line
from envspec.fleet import kubernetes, slurm
from envspec.fleet.results import NODES_FILE, TOGETHER, write
from envspec.io.files import read_untrusted
from envspec.models import Lock, Platform
from envspec.operations.conformance import SuiteSelection, local_python, lock_name, suite_request
from envspec.operations.suite_file import suite_file, write_suite_file
from envspec.receipts.fleet import Fleet, FleetNode, fleet
from envspec.receipts.model import RECEIPT_FILE, BadReceipt, Receipt, load

#: Of a receipt, or of nodes.json: a hundred times as many as they have.
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class FleetSelection:
    """Where to run the suite.

    nodes: how many; None for every node. minutes: until the last receipt. For Slurm, python: the command that starts
    the stack's Python on a node, None for the active environment's; nodelist, partition and options are sbatch's. For
    Kubernetes, image: a reference that nodes can pull; gpus_per_node: 0 for a stack without; namespace and context are
    kubectl's; selector: labels of nodes, None for those with a GPU; tolerations, beside that of the GPU's taint;
    resources: further limits of a pod; pull_secrets, runtime_class and shm (size of /dev/shm) are a pod's.
    """

    nodes: int | None = None
    minutes: int = 60
    python: str | None = None
    nodelist: str | None = None
    partition: str | None = None
    options: tuple[str, ...] = ()
    image: str | None = None
    gpus_per_node: int | None = None
    namespace: str | None = None
    context: str | None = None
    selector: Mapping[str, str] | None = None
    tolerations: tuple[str, ...] = ()
    resources: Mapping[str, str] | None = None
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None
    shm: str | None = None


class FleetRun(Protocol):
    """A run that is ready to start."""

    def dry_run(self, folder: Path) -> str:
        """What would be submitted, as text that its scheduler reads."""
        ...

    def run(self, folder: Path, report: Callable[[str], None]) -> None:
        """Write the receipts of all nodes into a folder. report: is called with lines of text."""
        ...


@dataclass(frozen=True, slots=True)
class _Slurm:
    options: slurm.SlurmOptions
    environ: Mapping[str, str]

    def dry_run(self, folder: Path) -> str:
        return slurm.dry_run(self.options, folder.absolute())

    def run(self, folder: Path, report: Callable[[str], None]) -> None:
        slurm.run(self.options, slurm.commands(self.environ), folder.absolute(), report)


@dataclass(frozen=True, slots=True)
class _Kubernetes:
    options: kubernetes.KubernetesOptions
    context: str | None

    def dry_run(self, folder: Path) -> str:  # noqa: ARG002 (the protocol's: no folder is shared)
        return kubernetes.yaml_of(kubernetes.objects(self.options))

    def run(self, folder: Path, report: Callable[[str], None]) -> None:
        api = kubernetes.open_api(self.options.namespace, context=self.context)
        kubernetes.run(self.options, api, folder, report)


def _on_slurm(lock: Lock, sha256: str, selection: SuiteSelection, where: FleetSelection, context: Context) -> FleetRun:
    _refuse("slurm", where, _KUBERNETES_ONLY)
    if where.nodes is not None and where.nodelist:
        raise UsageError("--nodes and --nodelist both choose nodes", hint="leave one of them out")
    options = slurm.SlurmOptions(
        python=tuple(shlex.split(where.python)) if where.python else (str(local_python(context.environ, None)),),
        suite=suite_file(),
        request=suite_request(lock, selection, this_platform()),
        lock=lock_name(lock, sha256),
        nodes=where.nodes,
        nodelist=where.nodelist,
        partition=where.partition,
        options=where.options,
        minutes=where.minutes,
        limit_s=2 * 60.0 * where.minutes,
    )
    return _Slurm(options, context.environ)


def _on_kubernetes(
    lock: Lock,
    sha256: str,
    selection: SuiteSelection,
    where: FleetSelection,
    context: Context,  # noqa: ARG001 (as for all)
) -> FleetRun:
    _refuse("kubernetes", where, _SLURM_ONLY)
    if where.image is None:
        raise UsageError(
            "nodes of Kubernetes pull an image",
            hint="`envspec image build LOCK --push REGISTRY/NAME:TAG`, then --image REGISTRY/NAME:TAG",
        )
    if where.gpus_per_node is None:
        raise UsageError("Kubernetes assigns GPUs only to pods that request them", hint="add --gpus-per-node 8, or 0")
    platform = next((each.target.platform for each in lock.resolutions if each.target.platform.is_linux), None)
    options = kubernetes.KubernetesOptions(
        image=where.image,
        suite=suite_file(),
        request=suite_request(lock, selection, platform or Platform.LINUX_64),
        lock=lock_name(lock, sha256),
        gpus_per_node=where.gpus_per_node,
        nodes=where.nodes,
        namespace=where.namespace,
        node_selector=where.selector,
        limit_s=60.0 * where.minutes,
        resources=where.resources or {},
        pull_secrets=where.pull_secrets,
        runtime_class=where.runtime_class,
    )
    options = replace(options, tolerations=(*options.tolerations, *where.tolerations), shm=where.shm or options.shm)
    return _Kubernetes(options, where.context)


#: Scheduler -> how a run of it is made ready.
SCHEDULERS: Final[Mapping[str, Callable[[Lock, str, SuiteSelection, FleetSelection, Context], FleetRun]]] = {
    "slurm": _on_slurm,
    "kubernetes": _on_kubernetes,
}


#: Field of a selection -> its option.
_SLURM_ONLY: Final = {
    "python": "--python",
    "nodelist": "--nodelist",
    "partition": "--partition",
    "options": "--sbatch",
}
_KUBERNETES_ONLY: Final = {
    "image": "--image",
    "gpus_per_node": "--gpus-per-node",
    "namespace": "--namespace",
    "context": "--context",
    "selector": "--selector",
    "tolerations": "--toleration",
    "resources": "--resource",
    "pull_secrets": "--pull-secret",
    "runtime_class": "--runtime-class",
    "shm": "--shm-size",
}


def _refuse(scheduler: str, where: FleetSelection, others: Mapping[str, str]) -> None:
    """Raise UsageError for an option that a scheduler would ignore."""
    for field, option in others.items():
        if getattr(where, field) not in (None, ()):
            raise UsageError(f"{option} is not for --on {scheduler}", hint=f"leave {option} out")


def prepare_fleet(
    scheduler: str, lock: Lock, sha256: str, selection: SuiteSelection, where: FleetSelection, context: Context
) -> FleetRun:
    """A run of the suite on the nodes of a cluster. sha256: of envspec.lock.

    Raises:
        UsageError: options that do not fit the scheduler, or a check that does not exist.
        UnfitMachine: the suite does not run on the lock's platform.
    """
    return SCHEDULERS[scheduler](lock, sha256, selection, where, context)


def run_fleet(prepared: FleetRun, folder: Path, report: Callable[[str], None]) -> None:
    """Run it. Ctrl-C and SIGTERM end what was submitted.

    Raises:
        ClusterError: the cluster refused a request, or did not answer. UnfitMachine: no node takes jobs.
        UsageError: the folder has another run, or can't be written.
    """
    with _terminated_by_interrupt():
        prepared.run(folder, report)


def read_fleet(folder: Path) -> Fleet:
    """What the nodes of a run, or receipts in folders of their nodes, say about each other.

    A node whose receipt can't be read is lost. Without nodes.json, the nodes are the folders that have a receipt.

    Raises:
        UsageError: the folder has no receipt.
    """
    states, together = _states(folder)
    folders = {each.name for each in folder.iterdir() if each.is_dir()}
    names = {*states, *(each.parent.name for each in folder.glob(f"*/{RECEIPT_FILE}"))}
    if not names:
        raise UsageError(
            f"{folder} has no receipts", hint="name the folder of `fleet run`, with NODE/receipt.json in it"
        )
    # A name in nodes.json may be any text: none of them leads to another folder.
    return fleet(
        _node(folder, name, states.get(name, ""), together.get(name, ""))
        if name in folders
        else FleetNode(name, None, states[name] or "no receipt")
        for name in names
    )


def _states(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Of nodes.json: node -> why it is lost, empty if it is not; and the same of the checks with others."""
    path = folder / NODES_FILE
    try:
        document = json.loads(read_untrusted(path, _MOST_BYTES).decode("utf-8"))
        found = [
            {str(name): _lost(str(each["state"]), str(each["reason"])) for name, each in rows.items()}
            for rows in (document["nodes"], document.get("together", {}))
        ]
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} can't be read: {why}", hint="`fleet run` writes it") from error
    return found[0], found[1]


def _lost(state: str, reason: str) -> str:
    return "" if state == "finished" else reason or f"its state is {state}"


def _node(folder: Path, name: str, lost: str, lost_together: str) -> FleetNode:
    receipt, problem = _read(folder / name)
    with_others = folder / name / TOGETHER
    together, problem_together = _read(with_others) if with_others.is_dir() else (None, "")
    return FleetNode(name, receipt, lost or problem, together, lost_together or problem_together)


def _read(folder: Path) -> tuple[Receipt | None, str]:
    """The receipt in a folder, or why there is none."""
    path = folder / RECEIPT_FILE
    try:
        return load(read_untrusted(path, _MOST_BYTES).decode("utf-8"), str(path)), ""
    except FileNotFoundError:
        return None, "no receipt"
    except OSError as error:
        return None, f"its receipt can't be read: {error.strerror}"
    except (BadReceipt, ValueError, RecursionError) as error:
        return None, one_line(error.message if isinstance(error, BadReceipt) else f"its receipt is not valid: {error}")


def write_programs(folder: Path, receipts: Path, python: Path, environ: Mapping[str, str]) -> list[Path]:
    """Write the programs of a node for Slurm, and the suite's file that they run; returns their paths.

    receipts: the folder of a run. python: of the nodes.
    Raises:
        UsageError: the folder can't be written.
    """
    suite = write_suite_file(folder.absolute() / "envspec-conformance.pyz")
    scontrol = shutil.which("scontrol", path=environ.get("PATH")) or "/usr/bin/scontrol"
    texts = slurm.programs(suite, receipts.absolute(), python, scontrol, environ.get("SLURM_CONF", ""))
    for name, text in texts.items():
        write(folder / name, text)
        (folder / name).chmod(0o755)
    return [suite, *(folder / name for name in texts)]


@contextmanager
def _terminated_by_interrupt() -> Iterator[None]:
    """SIGTERM ends a block as Ctrl-C does; then this process exits as if the signal had ended it."""

    def on_signal(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 (the signal module's signature)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
