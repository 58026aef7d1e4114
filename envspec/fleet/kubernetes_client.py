"""The API server of a Kubernetes cluster, by the official client: the extra `kubernetes`.

Answers are read as JSON: the client's models differ between its versions, and refuse values that are newer than they.
Importing the client takes 1 s of CPU: functions import it.

Source: kubernetes 31.0 and 37.0, `kubernetes.client` and `kubernetes.config`. Read 2026-11.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from envspec.context import counted
from envspec.errors import UsageError
from envspec.escaping import one_line
from envspec.fleet.results import ClusterError

#: Of one answer: the pods of a thousand nodes take a tenth.
_ANSWER_BYTES: Final = 128 << 20
#: Of a connection, seconds.
_CONNECT_S: Final = 10.0
#: Characters that a message quotes.
_QUOTED: Final = 600
#: Kind -> its API, and its name in the client's functions.
_KINDS: Final = {
    "ConfigMap": ("CoreV1Api", "config_map"),
    "DaemonSet": ("AppsV1Api", "daemon_set"),
    "Job": ("BatchV1Api", "job"),
    "Service": ("CoreV1Api", "service"),
}


class Api(Protocol):
    """One namespace of a cluster. Every method raises ClusterError."""

    def create(self, document: Mapping[str, Any], /) -> dict[str, Any]:
        """Create an object; it as the cluster has it."""
        ...

    def daemon_set(self, name: str, /) -> dict[str, Any]:
        """A DaemonSet with its status."""
        ...

    def pods(self, selector: str, /) -> list[dict[str, Any]]:
        """The pods with the labels of a selector."""
        ...

    def log(self, pod: str, most_bytes: int, /, *, previous: bool = False) -> str:
        """The beginning of the log of a pod's container; previous: of the one before it was started again."""
        ...

    def events(self, name: str, /) -> list[dict[str, Any]]:
        """The events of an object, oldest first."""
        ...

    def delete(self, kind: str, name: str, /) -> None:
        """Delete an object and what it owns; not an error if it does not exist."""
        ...


def open_api(
    namespace: str | None = None,
    *,
    context: str | None = None,
    kubeconfig: Path | None = None,
    timeout_s: float = 30.0,
    retries: int = 4,
) -> Api:
    """The cluster of a kubeconfig, without a request.

    namespace, context: by default the context's namespace, and the current context. kubeconfig: by default that of
    KUBECONFIG, else ~/.kube/config. timeout_s: of one answer. retries: of a connection that fails; the waits between
    them double from 1 s.

    Raises:
        UsageError: the client is not installed, the kubeconfig can't be used, or it has no such context.
    """
    try:
        from kubernetes import client, config
        from urllib3.util import Retry
    except ImportError as error:
        raise UsageError(
            "Kubernetes needs the Python package kubernetes, which is not installed",
            hint="install envspec[kubernetes]: `pip install 'envspec[kubernetes]'`",
        ) from error
    settings = client.Configuration()
    file = str(kubeconfig) if kubeconfig else None
    try:
        contexts, active = config.list_kube_config_contexts(config_file=file)
        found = next((each for each in contexts if each["name"] == context), None) if context else active
        if found is None:
            raise UsageError(
                f"the kubeconfig has no context {context}", hint="list them: `kubectl config get-contexts`"
            )
        config.load_kube_config(config_file=file, context=context, client_configuration=settings)
    except UsageError:
        raise
    # PyYAML's errors have no base that is the client's.
    except Exception as error:
        raise UsageError(
            f"the kubeconfig can't be used: {one_line(str(error))}",
            hint="name a file by KUBECONFIG with which `kubectl get pods` works",
        ) from error
    # urllib3 sends what creates an object again only if there was no connection.
    busy = (429, 503)
    settings.retries = Retry(retries, backoff_factor=1, status_forcelist=busy, raise_on_status=False)
    return _Client(client.ApiClient(settings), namespace or found["context"].get("namespace") or "default", timeout_s)


class _Client:
    """An `Api`. client: the official one's."""

    def __init__(self, client: Any, namespace: str, timeout_s: float) -> None:
        self._client, self._namespace, self._timeouts = client, namespace, (_CONNECT_S, timeout_s)

    def create(self, document: Mapping[str, Any], /) -> dict[str, Any]:
        kind, name = document["kind"], document["metadata"]["name"]
        return self._object(f"creating the {kind} {name}", self._of(kind, "create"), self._namespace, document)

    def daemon_set(self, name: str, /) -> dict[str, Any]:
        doing = f"reading the DaemonSet {name}"
        return self._object(doing, self._of("DaemonSet", "read"), name, self._namespace)

    def pods(self, selector: str, /) -> list[dict[str, Any]]:
        listing = self._core("list_namespaced_pod")
        return list(self._object("listing pods", listing, self._namespace, label_selector=selector)["items"])

    def log(self, pod: str, most_bytes: int, /, *, previous: bool = False) -> str:
        reading = self._core("read_namespaced_pod_log")
        query = {"limit_bytes": most_bytes, "previous": previous}
        data = self._call(f"reading the log of {pod}", reading, pod, self._namespace, **query)
        return data[:most_bytes].decode("utf-8", "replace")

    def events(self, name: str, /) -> list[dict[str, Any]]:
        listing, selector = self._core("list_namespaced_event"), f"involvedObject.name={name}"
        found = self._object(f"listing events of {name}", listing, self._namespace, field_selector=selector)["items"]
        return sorted(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))

    def delete(self, kind: str, name: str, /) -> None:
        try:
            # `Background`: its pods are deleted as well, which the default of Jobs leaves to their owner.
            self._call(
                f"deleting the {kind} {name}",
                self._of(kind, "delete"),
                name,
                self._namespace,
                propagation_policy="Background",
            )
        except ClusterError as error:
            if error.status != 404:
                raise

    def _of(self, kind: str, verb: str) -> Callable[..., Any]:
        api, noun = _KINDS[kind]
        return self._method(api, f"{verb}_namespaced_{noun}")

    def _core(self, name: str) -> Callable[..., Any]:
        return self._method("CoreV1Api", name)

    def _method(self, api: str, name: str) -> Callable[..., Any]:
        from kubernetes import client

        found: Callable[..., Any] = getattr(getattr(client, api)(self._client), name)
        return found

    def _object(self, doing: str, method: Callable[..., Any], *words: object, **query: object) -> dict[str, Any]:
        data = self._call(doing, method, *words, **query)
        try:
            found = json.loads(data)
            if not isinstance(found, dict) or ("kind" in found and found["kind"] == "Status"):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise ClusterError(f"{self._server} did not answer with JSON while {doing}: {error}") from error
        return found

    def _call(self, doing: str, method: Callable[..., Any], *words: object, **query: object) -> bytes:
        """The bytes of an answer."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            response = method(*words, **query, _preload_content=False, _request_timeout=self._timeouts)
            data: bytes = response.read(_ANSWER_BYTES + 1)
            response.release_conn()
        except ApiException as error:
            raise self._refused(doing, error) from error
        except HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise ClusterError(
                f"{self._server} did not answer while {doing}: {one_line(str(reason))[:_QUOTED]}",
                hint="check that `kubectl get pods` works with the same context",
            ) from error
        if len(data) > _ANSWER_BYTES:
            raise ClusterError(f"{self._server} answered with more than {counted(_ANSWER_BYTES, 'byte')} while {doing}")
        return data

    @property
    def _server(self) -> str:
        return f"the cluster at {self._client.configuration.host}"

    def _refused(self, doing: str, error: Any) -> ClusterError:
        """error: the client's ApiException, whose body is a Status in JSON."""
        try:
            reason = str(json.loads(error.body)["message"])
        except (ValueError, TypeError, KeyError):
            reason = str(error.reason)
        status = error.status or None
        hints = {
            401: "log in to the cluster again",
            403: "docs/how-to/fleet-kubernetes.md lists the permissions that a run needs",
            404: "check that the namespace exists",
        }
        message = f"{self._server} refused {doing}: {status or 'TLS'}: {one_line(reason)[:_QUOTED]}"
        return ClusterError(message, hint=hints.get(error.status), status=status)
