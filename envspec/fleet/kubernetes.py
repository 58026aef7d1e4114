"""The suite on the nodes of a Kubernetes cluster: its objects, and their run up to the receipts.

options -> `objects`, which is pure -> `run`: creates them, reads receipts from the logs of pods, deletes them
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envspec.conformance.receipt import RECEIPT_MARK
from envspec.errors import UnfitMachine
from envspec.escaping import one_line
from envspec.fleet.kubernetes_client import Api, open_api
from envspec.fleet.kubernetes_objects import RUN_LABEL, KubernetesOptions, objects, yaml_of
from envspec.fleet.results import ClusterError, NodeState, joined, last_line, prepare, write, write_nodes
from envspec.receipts.model import RECEIPT_FILE, BadReceipt, Image, Receipt, dump, load

__all__ = ["Api", "ClusterError", "KubernetesOptions", "NodeState", "objects", "open_api", "run", "yaml_of"]

#: Of a log; a receipt has 0.2 MB.
_LOG_BYTES: Final = 16 << 20
#: Characters of a line that a reason quotes.
_QUOTED: Final = 600
#: Containers that wait for this reason do not start. Source: `pkg/kubelet/images/types.go` and `kuberuntime`.
_NEVER_STARTS: Final = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError", "RunContainerError"}
)
#: Names of nodes and pods: they are names of folders, too. Source: kubernetes.io, "DNS Subdomain Names".
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


def run(options: KubernetesOptions, api: Api, folder: Path, report: Callable[[str], None]) -> None:
    """Run the suite, and write `<node>/receipt.json` and nodes.json into a folder; what was created is deleted.

    A node whose receipt did not come is `lost`, with the reason. A pod that is on no node is listed by its own name.
    report: is called with lines of text: what happens to nodes, and what could not be deleted.

    Raises:
        ClusterError: the cluster refused a request, or did not answer. UnfitMachine: no node matches the selector.
        UsageError: options that can't be meant; the folder has another run, or can't be written.
    """
    documents = objects(options)
    collector = _Collector(options, api, folder, report)
    prepare(folder)
    tried: list[Mapping[str, Any]] = []
    try:
        owner: dict[str, Any] = {}
        for document in documents:
            # Also what fails: the answer may have been lost on its way.
            tried.append(document)
            created = api.create({**document, "metadata": {**document["metadata"], **owner}})
            # What a killed envspec leaves is deleted with the first object.
            owner = owner or {"ownerReferences": [_reference(created)]}
        collector.collect()
    finally:
        _delete(options, api, tried, report)


def _reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    name, uid = (owner["metadata"][key] for key in ("name", "uid"))
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name, "uid": uid}


def _delete(
    options: KubernetesOptions, api: Api, tried: Sequence[Mapping[str, Any]], report: Callable[[str], None]
) -> None:
    for document in tried:
        try:
            api.delete(document["kind"], options.name)
        except ClusterError as error:
            kinds = ",".join(each["kind"].lower() for each in tried)
            namespace = f" --namespace {options.namespace}" if options.namespace else ""
            report(
                f"not deleted: {error.message}; run `kubectl delete {kinds} -l {RUN_LABEL}={options.run_id}{namespace}`"
            )
            return


class _Collector:
    """Reads receipts until each pod has written one, or can't any more, or the time is over."""

    def __init__(self, options: KubernetesOptions, api: Api, folder: Path, report: Callable[[str], None]) -> None:
        self._options, self._api, self._folder, self._report = options, api, folder, report
        #: Node, or pod on none -> what is known in the end.
        self._nodes: dict[str, NodeState] = {}
        #: Name of a pod that is not done -> it as it was last seen.
        self._open: dict[str, dict[str, Any]] = {}
        #: How many pods there will be; None if the cluster does not know yet.
        self._expected = options.nodes
        self._reported: dict[str, str] = {}

    def collect(self) -> None:
        deadline = time.monotonic() + self._options.limit_s
        try:
            while not self._look_at_all():
                if time.monotonic() >= deadline:
                    self._give_up(f"no receipt after {self._options.limit_s:.0f} s", self._warning)
                    break
                time.sleep(self._options.poll_s)
        except BaseException as error:
            ended = f"the run ended before its receipt: {one_line(str(error.args[0]))}" if error.args else "interrupted"
            # Nothing more is requested: it may be the cluster that does not answer.
            self._give_up(ended, lambda _: "")
            raise
        finally:
            write_nodes(self._folder, self._nodes)
        if not self._nodes:
            warning = self._reported.get(self._options.name, "the cluster gives no reason")
            raise ClusterError(f"no pod of {self._options.name} was created: {warning}")

    def _look_at_all(self) -> bool:
        """Look at every pod once; whether all are done."""
        pods = {each["metadata"]["name"]: each for each in self._api.pods(f"{RUN_LABEL}={self._options.run_id}")}
        for name in sorted(self._open.keys() - pods.keys()):
            self._settle(name, NodeState("lost", joined("its pod was deleted", waits(self._open[name]))))
        # A DaemonSet makes another pod for a node whose pod was deleted.
        self._open = {name: pod for name, pod in pods.items() if _place(pod) not in self._nodes}
        for name, pod in list(self._open.items()):
            self._look_at(name, pod)
        if self._options.nodes is None:
            self._expected = self._scheduled()
        if self._missing():
            self._note(self._options.name, self._warning(self._options.name))
        return self._expected is not None and not self._open and not self._missing()

    def _missing(self) -> int:
        """How many pods have not been created."""
        return max(0, (self._expected or 0) - len(self._nodes) - len(self._open))

    def _scheduled(self) -> int | None:
        """Number of nodes that the DaemonSet is for; None until its controller has counted them."""
        status = self._api.daemon_set(self._options.name).get("status") or {}
        if not status.get("observedGeneration"):
            return None
        found = int(status.get("desiredNumberScheduled") or 0)
        if not found and not self._nodes:
            raise UnfitMachine(
                "no node of the cluster matches the selector and tolerates the pod",
                hint="`kubectl describe nodes` lists labels and taints: name them by the selector and the tolerations",
            )
        return found

    def _look_at(self, name: str, pod: Mapping[str, Any]) -> None:
        why, place, log, trouble = lost(pod), _place(pod), "", ""
        if _has_started(pod):
            try:
                log = self._api.log(name, _LOG_BYTES, previous=bool(_container(pod).get("restartCount")))
            except ClusterError as error:
                # One node that does not answer is no reason to end the others.
                if error.is_final:
                    raise
                trouble = error.message
        try:
            receipt = _receipt_in(log, name)
        except BadReceipt as error:
            receipt, why = None, error.message
        if receipt is None and len(log) >= _LOG_BYTES:
            why = f"its log has more than {_LOG_BYTES >> 20} MiB"
        if receipt:
            receipt = _with_image(receipt, self._options.image, pod)
            write(self._folder / place / RECEIPT_FILE, dump(receipt))
            self._settle(name, NodeState("finished"), joined(receipt.verdict.value, "; ".join(receipt.reasons)))
        elif why:
            self._settle(name, NodeState("lost", joined(why, trouble or last_line(log))))
        else:
            self._note(place, trouble or waits(pod))

    def _settle(self, pod: str, state: NodeState, text: str = "") -> None:
        """An open pod is done, or one that was not created."""
        place = _place(self._open[pod]) if pod in self._open else pod
        self._nodes[place] = state
        # Before the report, which may be interrupted.
        self._open.pop(pod, None)
        self._report(f"{place}: {text or joined(*state)}")

    def _note(self, name: str, text: str) -> None:
        """Report what something waits for, once."""
        if text and self._reported.get(name) != text:
            self._reported[name] = text
            self._report(f"{name}: {text}")

    def _give_up(self, why: str, warning: Callable[[str], str]) -> None:
        """What is open is lost. warning: of an object by its name."""
        for number in range(1, self._missing() + 1):
            name = self._options.name
            reason = joined(why, "no pod was created", self._reported.get(name, ""))
            self._settle(f"{name}-missing-{number}", NodeState("lost", reason))
        for name, pod in list(self._open.items()):
            reason = joined(why, waits(pod) or self._reported.get(_place(pod), ""), warning(name))
            self._settle(name, NodeState("lost", reason))

    def _warning(self, name: str) -> str:
        """The last warning of an object's events; empty if there is none, or if they can't be read."""
        try:
            found = [each for each in self._api.events(name) if each.get("type") == "Warning"]
        except ClusterError:
            return ""
        return _reason(found[-1]) if found else ""


def lost(pod: Mapping[str, Any]) -> str:
    """Why no receipt is to be expected of a pod beyond its log; empty as long as there may be one."""
    status, container = pod.get("status") or {}, _container(pod)
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    if ended := state.get("terminated") or last.get("terminated"):
        evicted = _reason(status) if status.get("phase") == "Failed" else ""
        return evicted or f"its container ended with status {ended.get('exitCode')}: {_reason(ended)}"
    if status.get("phase") in ("Failed", "Succeeded"):
        return _reason(status) or f"its pod has {str(status['phase']).lower()} without a container"
    return _reason(waiting) if waiting.get("reason") in _NEVER_STARTS else ""


def waits(pod: Mapping[str, Any]) -> str:
    """What a pod waits for, or why it is being deleted; empty while its container runs."""
    conditions = {each["type"]: each for each in (pod.get("status") or {}).get("conditions") or ()}
    for kind, status in (("DisruptionTarget", "True"), ("PodScheduled", "False")):
        found = conditions.get(kind) or {}
        if found.get("status") == status:
            return _reason(found)
    return _reason((_container(pod).get("state") or {}).get("waiting") or {})


def _container(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a pod's only container; empty before the node has it."""
    found = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return dict(found[0])


def _has_started(pod: Mapping[str, Any]) -> bool:
    container = _container(pod)
    states = {**(container.get("state") or {}), **(container.get("lastState") or {})}
    return bool(states.get("running") or states.get("terminated"))


def _place(pod: Mapping[str, Any]) -> str:
    """The pod's node, or its own name: a name of a folder."""
    spec = pod.get("spec") or {}
    place = str(spec.get("nodeName") or _meant_for(spec) or pod["metadata"]["name"])
    if not _NAME.fullmatch(place):
        raise ClusterError(f"the cluster has a node of the name {one_line(place)[:_QUOTED]!r}, which is none")
    return place


def _meant_for(spec: Mapping[str, Any]) -> str:
    """The node that a DaemonSet's controller has chosen for a pod, before the pod is on it; empty for other pods.

    Source: kubernetes.io, "DaemonSet", "How Daemon Pods are scheduled".
    """
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    fields = (each for term in terms for each in term.get("matchFields") or () if each["key"] == "metadata.name")
    return next((str(each["values"][0]) for each in fields), "")


def _receipt_in(log: str, pod: str) -> Receipt | None:
    """The last receipt in a log. Raises BadReceipt if it is not valid."""
    # What follows the last line feed may be written just now.
    lines = (line for line in reversed(log.split("\n")[:-1]) if line.startswith(RECEIPT_MARK))
    line = next(lines, None)
    return load(line.removeprefix(RECEIPT_MARK), f"the receipt in the log of {pod}") if line else None


def _with_image(receipt: Receipt, reference: str, pod: Mapping[str, Any]) -> Receipt:
    """The suite knows its Python only, the cluster the digest of the image."""
    digest = str(_container(pod).get("imageID") or "").rpartition("@")[2]
    image = Image(reference=reference, id=digest)
    return receipt.model_copy(update={"image": image, "local": None}) if digest else receipt


def _reason(said: Mapping[str, Any]) -> str:
    """`reason: message` of a condition, a state or an event."""
    return one_line(joined(str(said.get("reason") or ""), str(said.get("message") or "")))[:_QUOTED]
