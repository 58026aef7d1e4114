"""An API server of Kubernetes on loopback with the controllers and nodes that a run needs, as plans of its pods.

It creates pods for Jobs and DaemonSets, moves each through the states of its plan, one for each listing, and serves the
plan's log; a plan without a log runs the container's command with the files of its ConfigMap. What an owner owns is
deleted with it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.support.servers.faults import Answer
from tests.support.servers.threaded import Exchange, Threaded

TOKEN: Final = "t0ken"
IMAGE_ID: Final = "docker.io/library/torch@sha256:" + "a" * 64
PENDING: Final = {"phase": "Pending"}
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_KINDS: Final = {"configmaps": "ConfigMap", "services": "Service", "jobs": "Job", "daemonsets": "DaemonSet"}


def container(phase: str, state: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The status of a pod whose container is in a state."""
    found = {"name": "suite", "state": dict(state), "restartCount": 0, "imageID": IMAGE_ID, **more}
    return {"phase": phase, "containerStatuses": [found]}


def ended(status: int, reason: str = "Error") -> dict[str, Any]:
    """Of a container that was not started again."""
    phase = "Failed" if status else "Succeeded"
    return container(phase, {"terminated": {"exitCode": status, "reason": reason}})


RUNNING: Final = container("Running", {"running": {"startedAt": "2026-11-25T00:00:00Z"}})


@dataclass(frozen=True)
class Plan:
    """A pod. node: None while it is on none. meant_for: the node that a DaemonSet's controller chose for it.

    stages: its status at each listing; the last one stays, None: it is gone. log: what it has written; None for what
    its command writes, under `environ`. previous: of the container before. log_status: of HTTP. warning: reason and
    message of an event.
    """

    node: str | None
    stages: Sequence[Mapping[str, Any] | None] = (RUNNING,)
    log: str | None = ""
    previous: str = ""
    log_status: int = 200
    warning: tuple[str, str] | None = None
    meant_for: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Pod:
    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    plan: Plan
    log: str | None
    listed: int = 0


class Cluster(Threaded):
    """plans: of the pods of the one workload. warning: of the workload's events.

    requests: `GET pods` and the like. created: bodies as they came. left: kind and name of what was not deleted.
    fail: by request, an answer instead of the usual one; None: no answer until the server stops. busy: how many
    requests that change nothing are put off.
    """

    def __init__(self, folder: Path, *plans: Plan, warning: tuple[str, str] | None = None) -> None:
        super().__init__()
        self.folder, self.plans, self.warning = folder, plans, warning
        self.requests: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.fail: dict[str, Answer | None] = {}
        self.busy = 0
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._pods: dict[str, _Pod] = {}

    def kubeconfig(self, token: str = TOKEN) -> Path:
        """A file that leads to it; its context names the namespace `tests`."""
        path = self.folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "loopback",
            "contexts": [{"name": "loopback", "context": {"cluster": "c", "user": "u", "namespace": "tests"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://{self.host}"}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    @property
    def left(self) -> list[tuple[str, str]]:
        return [*self._objects, *(("Pod", name) for name in self._pods)]

    def handle(self, request: Exchange) -> None:
        body = request.body()
        target = urlsplit(request.path)
        place, _, rest = target.path.partition("/namespaces/tests/")
        resource, *names = rest.split("/")
        done = f"{request.command} {'/'.join([resource, *names[1:]])}"
        self.requests.append(done)
        if self.busy and request.command == "GET":
            self.busy -= 1
            answer = status(503, "busy")
        elif done in self.fail:
            failure = self.fail[done]
            if failure is None:
                self.stopping.wait()
                return
            answer = failure
        elif request.headers.get("Authorization") != f"Bearer {TOKEN}":
            answer = status(401, "Unauthorized")
        else:
            query = {key: values[0] for key, values in parse_qs(target.query).items()}
            answer = self._answer(request.command, f"{place} {resource}", names, query, body)
        request.answer(answer)

    def _answer(
        self, command: str, resource: str, names: Sequence[str], query: Mapping[str, str], body: bytes
    ) -> Answer:
        kind = _KINDS.get(resource.rpartition(" ")[2], "")
        match command, resource, names:
            case "POST", (
                "/api/v1 configmaps" | "/api/v1 services" | "/apis/batch/v1 jobs" | "/apis/apps/v1 daemonsets"
            ), []:
                return self._create(kind, json.loads(body))
            case "GET", "/apis/apps/v1 daemonsets", [name] if (kind, name) in self._objects:
                counted = {"observedGeneration": 1, "desiredNumberScheduled": len(self.plans)}
                return reply({**self._objects[kind, name], "status": counted})
            case "GET", "/api/v1 pods", []:
                return reply({"kind": "PodList", "items": self._listed(query["labelSelector"])})
            case "GET", "/api/v1 pods", [name, "log"] if name in self._pods:
                return self._log(self._pods[name], query)
            case "GET", "/api/v1 events", []:
                return reply({"kind": "EventList", "items": self._events(query["fieldSelector"])})
            case "DELETE", _, [name] if (kind, name) in self._objects:
                assert query == {"propagationPolicy": "Background"}
                return self._delete(kind, name)
        return status(404, f"{resource} {'/'.join(names)} not found")

    def _create(self, kind: str, document: dict[str, Any]) -> Answer:
        self.created.append(document)
        assert document["kind"] == kind
        name = document["metadata"]["name"]
        made = {**document, "metadata": {**document["metadata"], "uid": f"uid-of-{kind}"}}
        self._objects[kind, name] = made
        if kind in ("Job", "DaemonSet"):
            template = document["spec"]["template"]
            for index, plan in enumerate(self.plans):
                labels = {**template["metadata"]["labels"], _INDEX: str(index)}
                self._pods[f"{name}-{index}-x2v9k"] = _Pod(name, labels, template["spec"], plan, plan.log)
        return reply(made, 201)

    def _delete(self, kind: str, name: str) -> Answer:
        owner = self._objects.pop((kind, name))["metadata"]["uid"]
        for key, owned in list(self._objects.items()):
            if owner in [each["uid"] for each in owned["metadata"].get("ownerReferences", ())]:
                self._objects.pop(key)
        if kind in ("Job", "DaemonSet"):
            self._pods.clear()
        return reply({"kind": "Status", "status": "Success"})

    def _listed(self, selector: str) -> list[dict[str, Any]]:
        key, _, value = selector.partition("=")
        found = []
        for name, pod in self._pods.items():
            stage = pod.plan.stages[min(pod.listed, len(pod.plan.stages) - 1)]
            pod.listed += 1
            if stage is not None and pod.labels[key] == value:
                spec = {**pod.spec, **({"nodeName": pod.plan.node} if pod.plan.node else {})}
                if pod.plan.meant_for:
                    fields = [{"key": "metadata.name", "operator": "In", "values": [pod.plan.meant_for]}]
                    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
                    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
                found.append({"metadata": {"name": name, "labels": pod.labels}, "spec": spec, "status": stage})
        return found

    def _log(self, pod: _Pod, query: Mapping[str, str]) -> Answer:
        if pod.plan.log_status != 200:
            return status(pod.plan.log_status, "the node does not answer")
        if pod.log is None:
            pod.log = self._run(pod)
        log = pod.plan.previous if query.get("previous", "").lower() == "true" else pod.log
        return Answer(200, log.encode("utf-8")[: int(query["limitBytes"])], {"Content-Type": "text/plain"})

    def _run(self, pod: _Pod) -> str:
        """The output of the container's command on this machine."""
        folder = self.folder / str(pod.plan.node)
        (config,) = (each for (kind, _), each in self._objects.items() if kind == "ConfigMap")
        (spec,) = pod.spec["containers"]
        mount = spec["volumeMounts"][0]["mountPath"]
        folder.mkdir()
        for name, text in config["data"].items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, encoded in config["binaryData"].items():
            (folder / name).write_bytes(base64.b64decode(encoded, validate=True))
        words = [word.replace(mount, str(folder)) for word in spec["command"]]
        words = [word.replace("$(JOB_COMPLETION_INDEX)", pod.labels[_INDEX]) for word in words]
        assert words[0] == "python"
        # It would wait until it is deleted.
        done = subprocess.run(
            [sys.executable, *(word for word in words[1:] if word != "--wait")],
            env={**os.environ, **pod.plan.environ},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.stdout.decode("utf-8")

    def _events(self, selector: str) -> list[dict[str, Any]]:
        _, _, name = selector.partition("involvedObject.name=")
        warning = self._pods[name].plan.warning if name in self._pods else self.warning
        usual = {
            "type": "Normal",
            "reason": "Scheduled",
            "message": "assigned",
            "lastTimestamp": "2026-11-25T00:00:09Z",
        }
        if warning is None:
            return [usual]
        reason, message = warning
        return [
            {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": "2026-11-25T00:00:01Z"},
            usual,
        ]


def reply(document: Mapping[str, Any], code: int = 200) -> Answer:
    return Answer(code, json.dumps(document).encode(), {"Content-Type": "application/json"})


def status(code: int, message: str) -> Answer:
    """An error as API servers send it."""
    return reply({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}, code)
