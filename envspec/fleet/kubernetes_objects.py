"""The objects of Kubernetes that run the suite on nodes of a cluster. Pure.

Every node: a DaemonSet, whose pods wait after their receipt, since a container of it that ends is started again.
N nodes: an Indexed Job, whose pods meet at the stable host name of pod 0, which a headless Service resolves.

Sources: Kubernetes API reference 1.37 for Job, DaemonSet, Pod; kubernetes.io, "Jobs" ("Indexed Job with Pod-to-Pod
Communication", "Backoff limit per index") and "DaemonSet". Read 2026-11.
"""

from __future__ import annotations

import base64
import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from envspec.conformance.request import SuiteRequest
from envspec.errors import UsageError
from envspec.fleet.results import check_count, request_document
from envspec.receipts.model import LockName
from envspec.registry.reference import parse

GPU: Final = "nvidia.com/gpu"
#: The label of all objects of a run; its value is the run's ID.
RUN_LABEL: Final = "app.kubernetes.io/instance"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
#: The label that NVIDIA's GPU feature discovery gives to nodes with a GPU.
_HAS_GPU: Final = {f"{GPU}.present": "true"}
_SUITE: Final = "suite.pyz"
_REQUEST: Final = "request.json"
_MOUNT: Final = "/envspec"
_PORT: Final = 29400
#: Of all data of a ConfigMap. Source: kubernetes.io, "ConfigMaps".
_CONFIG_MAP_BYTES: Final = 1 << 20
#: How much longer than envspec a Job waits: if envspec was killed, it ends the pods, and their logs are lost.
_MARGIN_S: Final = 300
#: A finished Job of a killed envspec is deleted after this time, with all that it owns.
_KEPT_S: Final = 3600
#: After SIGTERM: nothing of a pod is needed then.
_GRACE_S: Final = 5
#: A taint as kubectl writes it: KEY[=VALUE][:EFFECT].
_TAINT: Final = re.compile(
    r"(?P<key>[^=:]+)(?:=(?P<value>[^=:]*))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """What to run where.

    image: a reference that the nodes can pull. suite: the bytes of the suite's file. request: what it runs; its nodes
    are those of the run. lock: for the receipts. nodes: how many; None for every node that the selector matches.
    gpus_per_node: 0 for a stack without. resources: further limits of a pod, as `rdma/hca` -> `1`. node_selector:
    labels; None for those of nodes with a GPU, if every node is meant. tolerations: taints, as `KEY[=VALUE][:EFFECT]`.
    pull_secrets: names of Secrets for the registry. runtime_class: by which pods get GPUs, if not by the cluster's
    default. shm: size of /dev/shm, as Kubernetes writes it. limit_s: seconds up to the last receipt; poll_s:
    between two looks at the pods. run_id: part of the names of all objects.
    """

    image: str
    suite: bytes = field(repr=False)
    request: SuiteRequest
    lock: LockName | None
    gpus_per_node: int
    nodes: int | None = None
    namespace: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] | None = None
    tolerations: tuple[str, ...] = (f"{GPU}:NoSchedule",)
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None
    shm: str = "16Gi"
    limit_s: float = 3600.0
    poll_s: float = 5.0
    run_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def name(self) -> str:
        """Of all objects of the run."""
        return f"envspec-{self.run_id}"


def objects(options: KubernetesOptions) -> list[dict[str, Any]]:
    """The objects of a run; in a cluster, the first one owns the others.

    Raises:
        UsageError: options that can't be meant. BadReference: the image's name.
    """
    check_count(options.nodes)
    if options.gpus_per_node < 0:
        raise UsageError(f"a node has no {options.gpus_per_node} GPUs", hint="use 0 for a stack without GPUs")
    if options.limit_s <= 0 or options.poll_s <= 0:
        raise UsageError("a time limit is more than 0 s", hint="name it in seconds")
    workload = _daemon_set(options) if options.nodes is None else _job(options, options.nodes)
    return [workload, _config_map(options), *([_service(options)] if _several(options) else [])]


def yaml_of(documents: Sequence[Mapping[str, Any]]) -> str:
    """Documents of YAML, for `kubectl apply`. Each is JSON, which YAML contains: ASCII alone."""
    return "".join(f"---\n{json.dumps(document, indent=2)}\n" for document in documents)


def _several(options: KubernetesOptions) -> bool:
    return (options.nodes or 1) > 1


def _labels(options: KubernetesOptions) -> dict[str, str]:
    return {_MANAGED_BY: "envspec", RUN_LABEL: options.run_id}


def _object(api: str, kind: str, options: KubernetesOptions) -> dict[str, Any]:
    namespace = {"namespace": options.namespace} if options.namespace else {}
    metadata = {"name": options.name, **namespace, "labels": _labels(options)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def _config_map(options: KubernetesOptions) -> dict[str, Any]:
    request = request_document(options.request, options.lock)
    if len(options.suite) + len(request) > _CONFIG_MAP_BYTES:
        raise UsageError(
            f"the suite and its request have {len(options.suite) + len(request)} bytes, a ConfigMap at most 1 MiB",
            hint="lock fewer packages, or run the suite without the lock",
        )
    suite = base64.b64encode(options.suite).decode("ascii")
    content = {"immutable": True, "binaryData": {_SUITE: suite}, "data": {_REQUEST: request}}
    return {**_object("v1", "ConfigMap", options), **content}


def _service(options: KubernetesOptions) -> dict[str, Any]:
    """Host names for pods, without an address of its own; before they are ready, since they meet while they start."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {RUN_LABEL: options.run_id},
        "ports": [{"name": "rendezvous", "port": _PORT}],
    }
    return {**_object("v1", "Service", options), "spec": spec}


def _daemon_set(options: KubernetesOptions) -> dict[str, Any]:
    selector = options.node_selector
    if selector is None:
        selector = _HAS_GPU if options.gpus_per_node else {}
    pod = _pod(options, selector, "--wait")
    spec = {"selector": {"matchLabels": _labels(options)}, "template": _template(options, pod)}
    return {**_object("apps/v1", "DaemonSet", options), "spec": spec}


def _job(options: KubernetesOptions, nodes: int) -> dict[str, Any]:
    words = []
    if _several(options):
        # The pods of an Indexed Job have the host names NAME-INDEX, and this variable.
        words = ["--nodes", str(nodes), "--node-rank", "$(JOB_COMPLETION_INDEX)"]
        words += ["--rendezvous", f"{options.name}-0.{options.name}:{_PORT}"]
    apart = {"labelSelector": {"matchLabels": {RUN_LABEL: options.run_id}}, "topologyKey": "kubernetes.io/hostname"}
    pod = {
        **_pod(options, options.node_selector or {}, *words),
        "restartPolicy": "Never",
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        **({"subdomain": options.name} if _several(options) else {}),
    }
    spec = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        # No pod is tried again. With `backoffLimit: 0`, the first that fails ends the others before their receipts.
        "backoffLimitPerIndex": 0,
        "activeDeadlineSeconds": math.ceil(options.limit_s) + _MARGIN_S,
        "ttlSecondsAfterFinished": _KEPT_S,
        "template": _template(options, pod),
    }
    return {**_object("batch/v1", "Job", options), "spec": spec}


def _template(options: KubernetesOptions, pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": _labels(options)}, "spec": pod}


def _pod(options: KubernetesOptions, selector: Mapping[str, str], *words: str) -> dict[str, Any]:
    """The pod's spec: no privilege, no token of the cluster, nothing of the node but its GPUs."""
    image = parse(options.image)
    if image.scheme:
        raise UsageError(f"{options.image}: nodes can't be given a scheme", hint="leave it out")
    gpus = {GPU: str(options.gpus_per_node)} if options.gpus_per_node else {}
    container = {
        "name": "suite",
        "image": str(image),
        "command": ["python", f"{_MOUNT}/{_SUITE}", "--request", f"{_MOUNT}/{_REQUEST}", "--print-receipt", *words],
        "resources": {"limits": {**options.resources, **gpus}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "suite", "mountPath": _MOUNT, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 (the mount itself)
        ],
    }
    optional = {
        "imagePullSecrets": [{"name": name} for name in options.pull_secrets],
        "runtimeClassName": options.runtime_class,
        "nodeSelector": dict(selector),
        "tolerations": [_toleration(taint) for taint in options.tolerations],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": [container],
        # Its default is 64 MiB, which NCCL and workers of data loaders exceed.
        "volumes": [
            {"name": "suite", "configMap": {"name": options.name}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shm}},
        ],
        **{key: value for key, value in optional.items() if value},
    }


def _toleration(taint: str) -> dict[str, str]:
    found = _TAINT.fullmatch(taint)
    if not found:
        hint = "the effects are NoSchedule, PreferNoSchedule and NoExecute"
        raise UsageError(f"{taint!r} is not a taint: the form is KEY[=VALUE][:EFFECT]", hint=hint)
    value, effect = found["value"], found["effect"]
    operator = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": found["key"], **operator, **({"effect": effect} if effect else {})}
