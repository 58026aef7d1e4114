"""Kubernetes: its objects against the published schemas, and their run against an API server on loopback."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from envspec.conformance.receipt import RECEIPT_MARK
from envspec.conformance.request import Nodes, SuiteRequest
from envspec.errors import EnvspecError, UnfitMachine, UsageError
from envspec.fleet.kubernetes import ClusterError, KubernetesOptions, objects, open_api, run, yaml_of
from envspec.operations.suite_file import suite_file
from envspec.receipts.model import Image, read
from tests.support.builders.receipts import LOCK, check, made
from tests.support.machines import NotRun
from tests.support.machines.suite import GOOD, fake_torch
from tests.support.servers.kubernetes import (
    IMAGE_ID,
    PENDING,
    RUNNING,
    Cluster,
    Plan,
    container,
    ended,
    status,
)

VERSIONS: Final = ("1.35", "1.36", "1.37")
REQUEST: Final = SuiteRequest(device="cpu", checks=("device", "family"))
OPTIONS: Final = KubernetesOptions(
    image="registry.example.com/team/torch:2.9",
    suite=b"a suite",
    request=REQUEST,
    lock=LOCK,
    gpus_per_node=8,
    poll_s=0.02,
    limit_s=30,
    run_id="r1",
)
NODES: Final = replace(OPTIONS, nodes=2)
ALL: Final = replace(
    NODES,
    namespace="gpu-tests",
    resources={"rdma/hca": "1", "cpu": "32"},
    node_selector={"pool": "h100"},
    tolerations=("nvidia.com/gpu:NoSchedule", "pool=h100:NoExecute", "busy"),
    pull_secrets=("registry",),
    runtime_class="nvidia",
)


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise NotRun(f"the Python package {module} is not installed")


@pytest.fixture
def validate() -> Callable[[Mapping[str, Any], str], None]:
    """Raises what the schemas of a version refuse, unknown keys too."""
    needs("kubernetes_validate")
    import kubernetes_validate

    def check(document: Mapping[str, Any], version: str) -> None:
        # It takes an older version's if it does not have this one's.
        assert kubernetes_validate.validate(dict(document), version, strict=True) == version

    return check


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "options",
    [OPTIONS, NODES, ALL, replace(OPTIONS, nodes=1), replace(ALL, nodes=None), replace(OPTIONS, gpus_per_node=0)],
    ids=["every-node", "two-nodes", "all-options", "one-node", "every-node-all-options", "without-gpus"],
)
def test_the_schemas_accept_every_object(
    validate: Callable[[Mapping[str, Any], str], None], options: KubernetesOptions, version: str
) -> None:
    for document in objects(options):
        validate(document, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Job", ("spec", "completions"), "two"),
        ("Job", ("spec", "backoffLimitPerIndx"), 0),
        ("Job", ("spec", "template", "spec", "containers", 0, "command"), "python"),
        ("ConfigMap", ("binaryData", "suite.pyz"), 1),
        ("Service", ("spec", "ports", 0, "port"), "rendezvous"),
        ("DaemonSet", ("spec", "template", "spec", "containers", 0, "name"), None),
    ],
)
def test_the_schemas_refuse_a_wrong_object(
    validate: Callable[[Mapping[str, Any], str], None], version: str, kind: str, path: Sequence[Any], value: Any
) -> None:
    documents = {each["kind"]: each for options in (OPTIONS, NODES) for each in objects(options)}
    wrong = copy.deepcopy(documents[kind])
    inner: Any = wrong
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(Exception, match=r"type|Additional properties") as error:
        validate(wrong, version)
    assert type(error.value).__name__ == "ValidationError"


def _pod(options: KubernetesOptions) -> dict[str, Any]:
    spec: dict[str, Any] = objects(options)[0]["spec"]["template"]["spec"]
    return spec


def test_a_pod_has_no_privilege_and_the_gpus() -> None:
    for options in (OPTIONS, NODES):
        pod = _pod(options)
        (suite,) = pod["containers"]
        assert suite["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
        assert suite["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["automountServiceAccountToken"] is False
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod["volumes"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        # A container of a DaemonSet that ends is started again, and would run the suite again.
        assert ("--wait" in suite["command"]) == ("restartPolicy" not in pod) == (options.nodes is None)
    assert _pod(OPTIONS)["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert "nodeSelector" not in _pod(NODES) and "nodeSelector" not in _pod(replace(OPTIONS, gpus_per_node=0))
    assert _pod(ALL)["nodeSelector"] == {"pool": "h100"}
    assert _pod(ALL)["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "pool", "operator": "Equal", "value": "h100", "effect": "NoExecute"},
        {"key": "busy", "operator": "Exists"},
    ]


def test_pods_of_several_nodes_meet_at_the_first_and_share_no_node() -> None:
    job, _, service = objects(NODES)
    pod = job["spec"]["template"]["spec"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    words = pod["containers"][0]["command"]
    rendezvous = words[words.index("--rendezvous") + 1]
    host, _, port = rendezvous.partition(":")
    # NAME-INDEX.SERVICE: the name of the Job, and the pod's subdomain, which has to be the Service's name.
    assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}" and len(host) <= 63
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert int(port) == service["spec"]["ports"][0]["port"]
    assert service["spec"]["selector"].items() <= labels.items()
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert job["spec"]["backoffLimitPerIndex"] == 0 and pod["restartPolicy"] == "Never"
    assert job["spec"]["activeDeadlineSeconds"] > NODES.limit_s
    # One node meets nobody.
    alone = objects(replace(NODES, nodes=1))
    assert [each["kind"] for each in alone] == ["Job", "ConfigMap"] and "--rendezvous" not in str(alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (replace(OPTIONS, nodes=0), "no run on 0 nodes"),
        (replace(OPTIONS, gpus_per_node=-1), "no -1 GPUs"),
        (replace(OPTIONS, limit_s=0), "more than 0 s"),
        (replace(OPTIONS, image="Torch"), "not the name of an image"),
        (replace(OPTIONS, image="http://registry.example.com/torch"), "scheme"),
        (replace(OPTIONS, tolerations=("a:b:c",)), "not a taint"),
        (replace(OPTIONS, tolerations=("gpu:Never",)), "not a taint"),
        (replace(OPTIONS, suite=b"0" * (1 << 20)), "at most 1 MiB"),
    ],
)
def test_options_that_cannot_be_meant_are_errors(options: KubernetesOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        objects(options)
    assert error.value.exit_code == 2 and error.value.hint


def test_the_real_suite_with_a_large_lock_fits() -> None:
    (_, config) = objects(replace(OPTIONS, suite=suite_file()))
    sent = json.dumps(config)
    # What etcd takes of a whole object by default.
    assert len(sent) < 1_500_000


def test_yaml_is_the_same_objects_without_the_client() -> None:
    assert list(yaml.safe_load_all(yaml_of(objects(ALL)))) == objects(ALL)
    code = """
import sys
from envspec.conformance.request import SuiteRequest
from envspec.fleet.kubernetes import KubernetesOptions, objects, yaml_of
options = KubernetesOptions("torch:2.9", b"\\xff", SuiteRequest("cpu", ("device",)), None, 8, nodes=2)
assert yaml_of(objects(options)).startswith("---\\n{") and "kubernetes" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


RECEIPT: Final = made(check("device"), check("ddp", status="failed", cause="found", reason="rank 1"), device="cuda")


def log_of(receipt: str = RECEIPT.model_dump_json()) -> str:
    return f"passed   device   1.0 s\n{RECEIPT_MARK}{receipt}\n"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client uses the proxies of the environment for loopback as well."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


class Ran:
    """A run against a cluster: what it reported, raised and wrote."""

    def __init__(
        self,
        cluster: Cluster,
        options: KubernetesOptions,
        on_line: Callable[[str], None] = lambda _: None,
        **patience: float,
    ) -> None:
        needs("kubernetes")
        self.folder = cluster.folder / "receipts"
        self.lines: list[str] = []
        self.error: EnvspecError | None = None

        def report(line: str) -> None:
            self.lines.append(line)
            on_line(line)

        api = open_api(kubeconfig=cluster.kubeconfig(), **{"retries": 0, **patience})  # type: ignore[arg-type]
        try:
            run(options, api, self.folder, report)
        except EnvspecError as error:
            self.error = error

    @property
    def nodes(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads((self.folder / "nodes.json").read_text(encoding="utf-8"))["nodes"]
        return found


def test_every_node_writes_its_receipt_and_nothing_is_left(tmp_path: Path) -> None:
    starting = container("Pending", {"waiting": {"reason": "ContainerCreating"}})
    plans = [Plan(f"node-{n}", [PENDING, starting, RUNNING], log_of()) for n in range(3)]
    with Cluster(tmp_path, *plans) as cluster:
        ran = Ran(cluster, OPTIONS)
        assert ran.error is None and cluster.left == []
    assert ran.nodes == {f"node-{n}": {"state": "finished", "reason": ""} for n in range(3)}
    for number in range(3):
        receipt = read(ran.folder / f"node-{number}")
        # The suite knows its Python, the cluster its image.
        image = Image(reference=OPTIONS.image, id=IMAGE_ID.partition("@")[2])
        assert receipt == RECEIPT.model_copy(update={"image": image, "local": None})
        assert receipt.lock == LOCK
    assert ran.lines.count("node-1: ContainerCreating") == 1 and "node-1: failed: ddp failed" in ran.lines
    # The client has passed on what `--dry-run` prints, and the first object owns the others.
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "envspec-r1", "uid": "uid-of-DaemonSet"}
    for sent, document in zip(cluster.created, objects(OPTIONS), strict=True):
        owners = sent["metadata"].pop("ownerReferences", None)
        assert sent == document and owners == (None if sent["kind"] == "DaemonSet" else [owner])


@pytest.mark.parametrize("options", [NODES, replace(OPTIONS, nodes=1), OPTIONS], ids=["two", "one", "every"])
def test_the_real_suite_is_run_by_what_the_objects_say(tmp_path: Path, options: KubernetesOptions) -> None:
    stack = fake_torch(tmp_path / "stack", GOOD)
    plans = [Plan(f"node-{n}", [RUNNING], None, environ=stack) for n in range(options.nodes or 2)]
    with Cluster(tmp_path, *plans) as cluster:
        ran = Ran(cluster, replace(options, suite=suite_file(), gpus_per_node=0))
        assert ran.error is None and cluster.left == []
    for rank, plan in enumerate(plans):
        receipt = read(ran.folder / str(plan.node))
        assert (receipt.lock, receipt.device) == (LOCK, "cpu") and receipt.image
        assert [each.check for each in receipt.checks] == ["device", "family"]
        several = Nodes(2, rank, "envspec-r1-0.envspec-r1:29400")
        assert receipt.nodes == (several if options.nodes == 2 else Nodes())


RESTARTED: Final = container(
    "Running", {"running": {}}, restartCount=1, lastState={"terminated": {"exitCode": 1, "reason": "Error"}}
)
PREEMPTED: Final = {
    **RUNNING,
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
}
LOST: Final = {
    "the container failed": (Plan("bad", [ended(6)], "error: there is no GPU\n"), "status 6: Error: error: there is"),
    "no receipt": (Plan("bad", [ended(0, "Completed")], "nothing\n"), "status 0: Completed: nothing"),
    "out of memory": (Plan("bad", [ended(137, "OOMKilled")]), "status 137: OOMKilled"),
    "started again": (
        Plan("bad", [RESTARTED], "", "error: it crashed\n"),
        "status 1: Error: error: it crashed",
    ),
    "evicted": (
        Plan("bad", [{"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}]),
        "Evicted: The node was low on memory",
    ),
    "no image": (
        Plan("bad", [container("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}})]),
        "ImagePullBackOff: manifest unknown",
    ),
    "deleted": (
        Plan("bad", [PREEMPTED, None]),
        "its pod was deleted: PreemptionByScheduler",
    ),
    "no valid receipt": (Plan("bad", [RUNNING], log_of('{"format": 1, "checks": []}')), "is not a valid receipt"),
    "a receipt of a newer envspec": (Plan("bad", [RUNNING], log_of('{"format": 99, "checks": []}')), "format 99"),
    "no JSON": (Plan("bad", [RUNNING], log_of("{")), "is not JSON"),
    "a log without an end": (Plan("bad", [RUNNING], "x" * (17 << 20)), "more than 16 MiB"),
    "its log is gone": (Plan("bad", [ended(1)], log_status=404), "status 1: Error: the cluster at"),
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("options", [OPTIONS, NODES], ids=["every-node", "two-nodes"])
def test_a_lost_node_has_its_reason_and_the_others_their_receipts(
    tmp_path: Path, name: str, options: KubernetesOptions
) -> None:
    plan, reason = LOST[name]
    with Cluster(tmp_path, plan, Plan("good", [PENDING, RUNNING], log_of())) as cluster:
        ran = Ran(cluster, options)
        assert ran.error is None and cluster.left == []
    assert ran.nodes["good"] == {"state": "finished", "reason": ""} and ran.nodes["bad"]["state"] == "lost"
    assert reason in ran.nodes["bad"]["reason"]
    # What is done is not looked at again.
    assert len(ran.lines) == len(set(ran.lines))
    assert sorted(each.name for each in ran.folder.iterdir()) == ["good", "nodes.json"]


UNSCHEDULABLE: Final = {
    **PENDING,
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes: Insufficient GPU"}
    ],
}
LATE: Final = {
    "unschedulable": (Plan(None, [UNSCHEDULABLE]), "Unschedulable: 0/4 nodes: Insufficient GPU"),
    "no volume": (Plan("late", [PENDING], warning=("FailedMount", "no ConfigMap")), "FailedMount: no ConfigMap"),
    "running": (Plan("late", [RUNNING], "passed   device   1.0 s\n"), "no receipt after 1 s"),
    "half a receipt": (Plan("late", [RUNNING], log_of().rstrip("\n")), "no receipt after 1 s"),
    "its node does not answer": (Plan("late", [RUNNING], log_status=500), "500: the node does not answer"),
}


@pytest.mark.parametrize("name", LATE)
def test_what_is_late_is_lost_with_what_it_waits_for(tmp_path: Path, name: str) -> None:
    plan, reason = LATE[name]
    with Cluster(tmp_path, plan, Plan("good", [RUNNING], log_of())) as cluster:
        ran = Ran(cluster, replace(NODES, limit_s=1))
        assert ran.error is None and cluster.left == []
    (late,) = ran.nodes.keys() - {"good"}
    # A pod without a node has its own name.
    assert late == (plan.node or "envspec-r1-0-x2v9k") and ran.nodes[late]["state"] == "lost"
    assert ran.nodes[late]["reason"].startswith("no receipt after 1 s") and reason in ran.nodes[late]["reason"]
    assert ran.nodes["good"]["state"] == "finished"


def test_a_node_without_free_gpus_is_lost_by_its_own_name(tmp_path: Path) -> None:
    with Cluster(tmp_path, Plan(None, [UNSCHEDULABLE], meant_for="busy")) as cluster:
        ran = Ran(cluster, replace(OPTIONS, limit_s=0.1))
    assert ran.nodes["busy"]["reason"].endswith("Unschedulable: 0/4 nodes: Insufficient GPU")


def test_pods_that_are_not_created_are_lost_with_the_reason_of_their_owner(tmp_path: Path) -> None:
    quota = ("FailedCreate", "exceeded quota: gpus")
    with Cluster(tmp_path, Plan("good", [RUNNING], log_of()), warning=quota) as cluster:
        ran = Ran(cluster, replace(NODES, limit_s=1))
    reason = "no receipt after 1 s: no pod was created: FailedCreate: exceeded quota: gpus"
    assert ran.nodes["envspec-r1-missing-1"] == {"state": "lost", "reason": reason}
    assert ran.lines.count("envspec-r1: FailedCreate: exceeded quota: gpus") == 1


def test_no_node_is_an_error(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        ran = Ran(cluster, OPTIONS)
        assert cluster.left == []
    assert isinstance(ran.error, UnfitMachine) and "no node of the cluster matches" in str(ran.error)


@pytest.mark.parametrize(
    "request_line",
    ["POST daemonsets", "POST configmaps", "GET pods", "GET daemonsets", "GET pods/log"],
)
@pytest.mark.parametrize("code", [401, 403])
def test_a_request_that_is_refused_is_one_message(tmp_path: Path, request_line: str, code: int) -> None:
    with Cluster(tmp_path, Plan("node", [RUNNING], log_of())) as cluster:
        cluster.fail[request_line] = status(code, 'User "me" cannot do this')
        ran = Ran(cluster, OPTIONS)
        assert cluster.left == []
    assert isinstance(ran.error, ClusterError) and ran.error.exit_code == 5 and ran.error.hint
    assert f'{code}: User "me" cannot do this' in ran.error.message
    assert not ran.lines or ran.nodes["node"]["state"] == ("finished" if request_line == "GET daemonsets" else "lost")


def test_events_that_may_not_be_read_are_no_error(tmp_path: Path) -> None:
    with Cluster(tmp_path, Plan("late", [PENDING])) as cluster:
        cluster.fail["GET events"] = status(403, "no events")
        ran = Ran(cluster, replace(NODES, nodes=1, limit_s=0.1))
    assert ran.error is None and ran.nodes["late"]["reason"] == "no receipt after 0 s"


def test_a_cluster_that_hangs_is_an_error_in_time(tmp_path: Path) -> None:
    with Cluster(tmp_path, Plan("node", [RUNNING], log_of())) as cluster:
        cluster.fail["GET pods"] = None
        began = time.monotonic()
        ran = Ran(cluster, OPTIONS, timeout_s=0.5)
        assert time.monotonic() - began < 20
        assert cluster.left == []
    assert isinstance(ran.error, ClusterError) and "did not answer while listing pods" in ran.error.message


def test_a_cluster_that_goes_away_is_an_error_and_names_what_may_be_left(tmp_path: Path) -> None:
    with Cluster(tmp_path, Plan(None, [UNSCHEDULABLE])) as cluster:
        ran = Ran(cluster, OPTIONS, lambda line: cluster.close() if "Unschedulable" in line else None)
    assert isinstance(ran.error, ClusterError) and "did not answer while" in ran.error.message
    assert ran.nodes["envspec-r1-0-x2v9k"]["state"] == "lost"
    assert "kubectl delete daemonset,configmap -l app.kubernetes.io/instance=r1" in ran.lines[-1]


def test_a_cluster_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    with Cluster(tmp_path, Plan("node", [RUNNING], log_of())) as cluster:
        cluster.busy = 2
        ran = Ran(cluster, OPTIONS, retries=3)
        assert ran.error is None and ran.nodes["node"]["state"] == "finished"


def test_an_interrupted_run_deletes_its_objects(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line == "good: failed: ddp failed":
            os.kill(os.getpid(), signal.SIGINT)

    with Cluster(tmp_path, Plan("good", [RUNNING], log_of()), Plan("open", [RUNNING])) as cluster:
        with pytest.raises(KeyboardInterrupt):
            Ran(cluster, NODES, interrupt)
        assert cluster.left == []
    nodes = json.loads((tmp_path / "receipts" / "nodes.json").read_text(encoding="utf-8"))["nodes"]
    finished, interrupted = {"state": "finished", "reason": ""}, {"state": "lost", "reason": "interrupted"}
    assert nodes == {"good": finished, "open": interrupted}
    assert read(tmp_path / "receipts" / "good").lock == LOCK


@pytest.mark.parametrize("node", ["../up", "Node", "a/b", ".."])
def test_a_node_whose_name_is_no_folder_is_an_error(tmp_path: Path, node: str) -> None:
    with Cluster(tmp_path, Plan(node, [RUNNING], log_of())) as cluster:
        ran = Ran(cluster, replace(NODES, nodes=1))
        assert cluster.left == []
    assert isinstance(ran.error, ClusterError) and "has a node of the name" in ran.error.message


def test_a_folder_of_another_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts" / "nodes.json").write_text("{}")
    with Cluster(tmp_path, Plan("node", [RUNNING], log_of())) as cluster:
        ran = Ran(cluster, OPTIONS)
        assert cluster.requests == []
    assert isinstance(ran.error, UsageError) and "another run" in ran.error.message


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "receipts").write_text("a file")
    with Cluster(tmp_path, Plan("node", [RUNNING], log_of())) as cluster:
        ran = Ran(cluster, OPTIONS)
        assert cluster.requests == []
    assert isinstance(ran.error, UsageError) and "can't be written" in ran.error.message


@pytest.mark.parametrize("text", ["", "{", "- 1", "apiVersion: v1\nkind: Config\ncontexts: []\n"])
def test_a_kubeconfig_that_cannot_be_used_is_an_error(tmp_path: Path, text: str) -> None:
    needs("kubernetes")
    path = tmp_path / "kubeconfig"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="the kubeconfig can't be used"):
        open_api(kubeconfig=path)
    with pytest.raises(UsageError, match="the kubeconfig can't be used"):
        open_api(kubeconfig=tmp_path / "missing")


def test_a_context_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    needs("kubernetes")
    with Cluster(tmp_path) as cluster, pytest.raises(UsageError, match="no context other"):
        open_api(context="other", kubeconfig=cluster.kubeconfig())


def test_without_the_client_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["kubernetes"] = None
from envspec.errors import UsageError
from envspec.fleet.kubernetes import open_api
try:
    open_api()
except UsageError as error:
    print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'envspec[kubernetes]'" in done.stdout
